//! Replays: created, counted and read. Their steps are in `replay_steps`.

use async_trait::async_trait;
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp, activity::Activity};
use weir_store::{
    ClaimRequest, Claims, Created, Creation, ListOrder, NewReplay, Page, PageRequest, Replay, ReplayFilter,
    ReplayPhase, ReplayStep, ReplaySteps, Replays, StoreResult,
    rows::{self, LAST_ATTEMPT, REPLAY_COLUMNS, Row as _, state_code},
    sql,
};

use crate::{
    SqliteStore,
    claims::{with_idle, without_idle},
    edit::Durable,
    history::WhereClause,
    sql::{Values, values},
};

#[async_trait]
impl Replays for SqliteStore {
    async fn count_replay(&self, filter: &ReplayFilter, now: Timestamp) -> StoreResult<u64> {
        let mut total = 0;
        for &state in &filter.states {
            let (sql, values) = count_sql(filter, state, now);
            total += self.read(sql, values, |row| row.count(0)).await?.into_iter().sum::<u64>();
        }
        Ok(total)
    }

    async fn create_replay(&self, replay: NewReplay, total: u64, creation: Creation) -> StoreResult<Created<()>> {
        self.edit(Durable::Yes, move |transaction| {
            transaction.create_once(&creation, |this| this.create_replay(&replay, total))
        })
        .await
    }

    async fn replay(&self, id: ReplayId) -> StoreResult<Option<Replay>> {
        let sql = format!("SELECT {REPLAY_COLUMNS} FROM replays WHERE id = ?");
        let Some(replay) = self.read(sql, values![id.as_bytes()], rows::replay).await?.pop() else {
            return Ok(None);
        };
        self.with_figures(replay).await.map(Some)
    }

    async fn list_replays(&self, page: PageRequest) -> StoreResult<Page<Replay>> {
        let mut conditions = WhereClause::new();
        if let Some(before) = page.before {
            conditions.add("id < ?").bind(before.to_vec());
        }
        conditions.values.bind(i64::from(page.limit) + 1);
        let where_clause = conditions.sql;
        let sql = format!("SELECT {REPLAY_COLUMNS} FROM replays WHERE {where_clause} ORDER BY id DESC LIMIT +?");
        let rows = self.read(sql, conditions.values, rows::replay).await?;
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
        self.edit(Durable::Yes, move |transaction| transaction.cancel_replay(id, now, &activity)).await
    }
}

#[async_trait]
impl ReplaySteps for SqliteStore {
    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>> {
        self.read(OPEN.to_owned(), Values::default(), |row| row.replay_id(0)).await
    }

    async fn step_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<ReplayStep> {
        self.edit(Durable::No, move |transaction| transaction.step_replay(id, now)).await
    }

    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>> {
        self.read(REPLAY_DESTINATIONS.to_owned(), Values::default(), |row| row.destination_id(0)).await
    }

    async fn claim_replays(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>> {
        let idle = self.idle_requests(&requests, true).await?;
        let requests = without_idle(requests, &idle);
        if requests.is_empty() {
            return Ok(with_idle(Vec::new(), &idle));
        }
        let is_durable = requests.iter().any(|request| request.durable);
        let durable = if is_durable { Durable::Yes } else { Durable::No };
        let claims = self.edit(durable, move |transaction| transaction.claim_all(&requests, now, true)).await?;
        Ok(with_idle(claims, &idle))
    }
}

pub(crate) const OPEN: &str =
    sql!("SELECT id FROM replays INDEXED BY replays_open WHERE phase IN ({open_replay}) ORDER BY id");

const REPLAY_DESTINATIONS: &str = "SELECT DISTINCT destination_id FROM replay_destinations ORDER BY destination_id";

/// The number of a replay's deliveries in each state, from the index alone.
pub(crate) const FIGURES: &str = "
SELECT state, count(*) FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL GROUP BY state";

impl SqliteStore {
    /// Counts the deliveries of an open replay. The row of an ended replay has the final figures.
    async fn with_figures(&self, mut replay: Replay) -> StoreResult<Replay> {
        if replay.phase.is_open() {
            replay.figures.extend(self.read(FIGURES.to_owned(), values![replay.id.as_bytes()], rows::figure).await?);
        }
        Ok(replay)
    }
}

/// The index that has a state in the order of ids, and the condition that it needs word for word.
pub(crate) fn index_for_state(filter: &ReplayFilter, state: DeliveryState) -> (&'static str, String) {
    let ended = format!("{} AND d.state = {}", sql!("d.state > {delivered}"), state_code(state));
    match (state, filter.deliveries.destination_id) {
        // Of one limit key, in any state.
        _ if filter.deliveries.limit_key.is_some() => ("INDEXED BY deliveries_of_flow", "1".to_owned()),
        (DeliveryState::Delivered, None) => ("NOT INDEXED", "1".to_owned()),
        (DeliveryState::Delivered, Some(_)) => ("INDEXED BY deliveries_of_destination", "1".to_owned()),
        (_, None) => ("INDEXED BY deliveries_ended", ended),
        (_, Some(_)) => ("INDEXED BY deliveries_ended_of_destination", ended),
    }
}

/// The conditions on a delivery `d` that a replay may take at `now`, if the replay began at `began`.
pub(crate) fn eligible(conditions: &mut WhereClause<'_>, state: DeliveryState, began: Timestamp, now: Timestamp) {
    conditions.add(&format!("d.state = {}", state_code(state)));
    conditions.add("d.updated_at <= ?").bind(began);
    conditions.add("(d.expires_at IS NULL OR d.expires_at > ?)").bind(now);
    conditions.add(
        sql!("(d.replay_id IS NULL OR NOT EXISTS (SELECT 1 FROM replays p WHERE p.id = d.replay_id AND p.phase IN ({open_replay})))"),
    );
    conditions.add("EXISTS (SELECT 1 FROM destinations t WHERE t.id = d.destination_id AND t.deleted_at IS NULL)");
}

/// Joins the other tables that the filter needs.
pub(crate) fn filter_joins(filter: &ReplayFilter) -> String {
    if filter.deliveries.filters_joined() {
        format!("CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id {LAST_ATTEMPT}")
    } else {
        String::new()
    }
}

pub(crate) fn count_sql(filter: &ReplayFilter, state: DeliveryState, now: Timestamp) -> (String, Values<'_>) {
    let (index, indexed) = index_for_state(filter, state);
    let mut conditions = WhereClause::new();
    conditions.add(&indexed);
    conditions.of_destination(filter.deliveries.destination_id.as_ref());
    conditions.of_flow(filter.deliveries.flow_id());
    conditions.range("d", (ListOrder::Newest, None), filter.deliveries.from, filter.deliveries.to);
    eligible(&mut conditions, state, now, now);
    conditions.filter_joined(&filter.deliveries);
    let sql = format!("SELECT count(*) FROM deliveries d {index} {} WHERE {}", filter_joins(filter), conditions.sql);
    (sql, conditions.values)
}
