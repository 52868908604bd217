//! Replays: creation, counts, reads and cancellation. Their steps are in replay_steps.rs.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp, activity::Activity};
use weir_store::{
    ClaimRequest, Claims, Created, Creation, ListOrder, NewReplay, Page, PageRequest, Replay, ReplayFilter,
    ReplayPhase, ReplayStep, ReplaySteps, Replays, StoreResult,
    rows::{self, REPLAY_COLUMNS, Row as _, state_code},
    sql,
};

use crate::{
    PostgresStore,
    activity::{record, record_creation},
    edit::change,
    history::Select,
    replay_steps::{FIGURES, filter_joins, step},
    rows::uuid,
};

#[async_trait]
impl Replays for PostgresStore {
    async fn count_replay(&self, filter: &ReplayFilter, now: Timestamp) -> StoreResult<u64> {
        let mut total = 0;
        for &state in &filter.states {
            let rows = self.select(count_sql(filter, state, now), |row| row.count(0)).await?;
            total += rows.into_iter().sum::<u64>();
        }
        Ok(total)
    }

    async fn create_replay(&self, replay: NewReplay, total: u64, creation: Creation) -> StoreResult<Created<()>> {
        self.edit(|connection| change(create(connection, &replay, total, &creation))).await
    }

    async fn replay(&self, id: ReplayId) -> StoreResult<Option<Replay>> {
        let sql = format!("SELECT {REPLAY_COLUMNS} FROM replays WHERE id = $1");
        let query = sqlx::query(AssertSqlSafe(sql)).bind(uuid(id.as_bytes()));
        let Some(replay) = self.read(query, rows::replay).await?.pop() else { return Ok(None) };
        self.with_figures(replay).await.map(Some)
    }

    async fn list_replays(&self, page: PageRequest) -> StoreResult<Page<Replay>> {
        let mut select = Select::new(format!("SELECT {REPLAY_COLUMNS} FROM replays"));
        select.range("replays", (ListOrder::Newest, page.before), None, None);
        select.page("replays", ListOrder::Newest, page);
        let rows = self.select(select, rows::replay).await?;
        let mut page = Page::of(rows, page, |replay| *replay.id.as_bytes());
        for replay in &mut page.rows {
            *replay = self.with_figures(replay.clone()).await?;
        }
        Ok(page)
    }

    async fn cancel_replay(
        &self,
        id: ReplayId,
        now: Timestamp,
        activity: Activity,
    ) -> StoreResult<Option<ReplayPhase>> {
        self.edit(|connection| change(cancel(connection, id, now, &activity))).await
    }
}

#[async_trait]
impl ReplaySteps for PostgresStore {
    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>> {
        self.read(sqlx::query(OPEN), |row| row.replay_id(0)).await
    }

    async fn step_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<ReplayStep> {
        self.edit(|connection| change(step(connection, id, now))).await
    }

    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>> {
        self.read(sqlx::query(REPLAY_DESTINATIONS), |row| row.destination_id(0)).await
    }

    async fn claim_replays(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        self.claim_all(requests, now, true).await
    }
}

pub(crate) const OPEN: &str = sql!("SELECT id FROM replays WHERE phase IN ({open_replay}) ORDER BY id");

const REPLAY_DESTINATIONS: &str = "SELECT DISTINCT destination_id FROM replay_destinations ORDER BY destination_id";

const INSERT: &str =
    sql!("INSERT INTO replays (id, filter, phase, created_at, total) VALUES ($1, $2, {moving}, $3, $4)");

const CANCEL: &str =
    sql!("UPDATE replays SET phase = {cancelling}, ended_at = $2 WHERE id = $1 AND phase IN ({moving}, {moved})");

const PHASE: &str = "SELECT phase FROM replays WHERE id = $1";

impl PostgresStore {
    /// Adds the current counts to an open replay. The row of an ended replay contains its counts.
    async fn with_figures(&self, mut replay: Replay) -> StoreResult<Replay> {
        if replay.phase.is_open() {
            let query = sqlx::query(FIGURES).bind(uuid(replay.id.as_bytes()));
            replay.figures.extend(self.read(query, rows::figure).await?);
        }
        Ok(replay)
    }
}

async fn create(
    connection: &mut PgConnection,
    replay: &NewReplay,
    total: u64,
    creation: &Creation,
) -> Result<Created<()>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    if let Some(before) = record_creation(&mut transaction, creation).await? {
        transaction.rollback().await?;
        return Ok(Created::Before(before));
    }
    let insert = sqlx::query(INSERT)
        .bind(uuid(replay.id.as_bytes()))
        .bind(replay.filter.to_stored())
        .bind(replay.created_at.as_nanos())
        .bind(total as i64);
    insert.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(Created::New(()))
}

async fn cancel(
    connection: &mut PgConnection,
    id: ReplayId,
    now: Timestamp,
    activity: &Activity,
) -> Result<Option<ReplayPhase>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let id = uuid(id.as_bytes());
    let cancel = sqlx::query(CANCEL).bind(id).bind(now.as_nanos());
    if cancel.execute(&mut *transaction).await?.rows_affected() == 1 {
        record(&mut transaction, activity).await?;
    }
    let row = sqlx::query(PHASE).bind(id).fetch_optional(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(row.map(|row| rows::phase(&row, 0)).transpose()?)
}

impl Select {
    /// Adds the conditions that an index on the deliveries `d` serves.
    pub(crate) fn index_for_state(&mut self, filter: &ReplayFilter, state: DeliveryState) {
        self.of_index(&filter.deliveries, Some(state));
        self.range("d", (ListOrder::Newest, None), filter.deliveries.from, filter.deliveries.to);
    }

    /// Adds the conditions for the deliveries `d` that a replay from `began` may take at `now`. `state + 0` keeps the
    /// planner from starting with all deliveries in this state.
    pub(crate) fn eligible(&mut self, state: DeliveryState, began: Timestamp, now: Timestamp) {
        self.condition(&format!("d.state + 0 = {}", state_code(state)));
        self.compare("d.updated_at <=", began.as_nanos());
        self.compare(sql!("coalesce(d.expires_at, {end_of_time}) >"), now.as_nanos());
        self.condition(sql!(
            "(d.replay_id IS NULL OR d.replay_id NOT IN (SELECT p.id FROM replays p WHERE p.phase IN ({open_replay})))"
        ));
    }
}

pub(crate) fn count_sql(filter: &ReplayFilter, state: DeliveryState, now: Timestamp) -> Select {
    let head = format!("SELECT count(*) FROM deliveries d {}", filter_joins(filter));
    let mut select = Select::new(head);
    select.index_for_state(filter, state);
    select.eligible(state, now, now);
    select.condition("EXISTS (SELECT FROM destinations t WHERE t.id = d.destination_id AND t.deleted_at IS NULL)");
    select.filter_joined(&filter.deliveries);
    select
}
