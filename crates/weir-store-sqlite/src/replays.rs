//! Replays: recorded, counted, shown. Their steps are in `replay_steps`.

use async_trait::async_trait;
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp};
use weir_store::{
    ClaimRequest, Claims, NewReplay, Page, PageRequest, Replay, ReplayFigures, ReplayFilter, ReplayPhase, ReplayStep,
    Replays, StoreResult,
};

use crate::{
    SqliteStore,
    deliveries::is_sieved,
    edits::Edit,
    error::{Error, Result},
    history::{Conditions, cut},
    rows::{self, Columns, LAST_ATTEMPT, count, destination_id, int, optional_time, state_code, text, time},
    sql::Values,
};

#[async_trait]
impl Replays for SqliteStore {
    async fn count_replay(&self, filter: &ReplayFilter, now: Timestamp) -> StoreResult<u64> {
        let mut total = 0;
        for &state in &filter.states {
            let (sql, values) = counted(filter, state, now);
            total += self.read(sql, values, |row| count(row, 0)).await?.into_iter().sum::<u64>();
        }
        Ok(total)
    }

    async fn create_replay(&self, replay: NewReplay, total: u64) -> StoreResult<()> {
        self.ask((replay, total), |edit| Edit::operation(Edit::CreateReplay(edit))).await
    }

    async fn replay(&self, id: ReplayId) -> StoreResult<Option<Replay>> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let Some(replay) = self.read(format!("{SELECT} WHERE id = ?"), values, replay).await?.pop() else {
            return Ok(None);
        };
        self.with_figures(replay).await.map(Some)
    }

    async fn list_replays(&self, page: PageRequest) -> StoreResult<Page<Replay>> {
        let mut conditions = Conditions::new();
        if let Some(before) = page.before {
            conditions.add("id < ?").owned_blob(before.to_vec());
        }
        conditions.values.int(i64::from(page.limit) + 1);
        let sql = format!("{SELECT} WHERE {} ORDER BY id DESC LIMIT +?", conditions.sql);
        let mut page = cut(self.read(sql, conditions.values, replay).await?, page, |replay| *replay.id.as_bytes());
        for replay in &mut page.rows {
            *replay = self.with_figures(replay.clone()).await?;
        }
        Ok(page)
    }

    async fn cancel_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<Option<ReplayPhase>> {
        self.ask((id, now), |edit| Edit::operation(Edit::CancelReplay(edit))).await
    }

    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>> {
        let id = |row: &_| Ok(ReplayId::from_bytes(rows::id(row, 0)?));
        self.read(OPEN.to_owned(), Values::default(), id).await
    }

    async fn step_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<ReplayStep> {
        self.ask((id, now), |edit| Edit::operation(Edit::StepReplay(edit))).await
    }

    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>> {
        self.read(LANES.to_owned(), Values::default(), |row| destination_id(row, 0)).await
    }

    async fn claim_replays(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        self.ask((requests, now), |edit| Edit::operation(Edit::ClaimReplays(edit))).await
    }
}

const SELECT: &str = "SELECT id, filter, phase, created_at, ended_at, total, delivered, failed, cancelled FROM replays";

pub(crate) const OPEN: &str = "SELECT id FROM replays INDEXED BY replays_open WHERE phase IN (0, 1, 3) ORDER BY id";

const LANES: &str = "SELECT DISTINCT destination_id FROM replay_destinations ORDER BY destination_id";

/// By the states of its deliveries, from the index alone.
pub(crate) const FIGURES: &str = "
SELECT state, count(*) FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL GROUP BY state";

/// What [`SELECT`] reads.
pub(crate) fn replay(row: &impl Columns) -> Result<Replay> {
    Ok(Replay {
        id: ReplayId::from_bytes(rows::id(row, 0)?),
        filter: ReplayFilter::from_stored(&text(row, 1)?).ok_or(Error::Corrupt("a filter"))?,
        phase: phase(row, 2)?,
        created_at: time(row, 3)?,
        ended_at: optional_time(row, 4)?,
        figures: ReplayFigures {
            total: count(row, 5)?,
            delivered: count(row, 6)?,
            failed: count(row, 7)?,
            cancelled: count(row, 8)?,
        },
    })
}

pub(crate) fn phase(row: &impl Columns, column: usize) -> Result<ReplayPhase> {
    let phase = usize::try_from(int(row, column)?).ok().and_then(|code| ReplayPhase::ALL.get(code).copied());
    phase.ok_or(Error::Corrupt("a phase"))
}

/// The number of a phase: its place in [`ReplayPhase::ALL`].
pub(crate) const fn phase_code(phase: ReplayPhase) -> i64 {
    phase as i64
}

/// What [`FIGURES`] counts.
pub(crate) fn figure(row: &impl Columns) -> Result<(DeliveryState, u64)> {
    Ok((rows::state(row, 0)?, count(row, 1)?))
}

impl SqliteStore {
    /// A replay under way is counted as it is now; of one that has ended the row knows.
    async fn with_figures(&self, mut replay: Replay) -> StoreResult<Replay> {
        if replay.phase.is_open() {
            let mut values = Values::default();
            values.blob(replay.id.as_bytes());
            for (state, deliveries) in self.read(FIGURES.to_owned(), values, figure).await? {
                replay.figures.count(state, deliveries);
            }
        }
        Ok(replay)
    }
}

/// Which index holds a state in the order of ids, with the condition it needs word for word.
pub(crate) fn walked(filter: &ReplayFilter, state: DeliveryState) -> (&'static str, String) {
    let ended = format!("d.state > 3 AND d.state = {}", state_code(state));
    match (state, filter.deliveries.destination_id) {
        (DeliveryState::Delivered, None) => ("NOT INDEXED", "1".to_owned()),
        (DeliveryState::Delivered, Some(_)) => ("INDEXED BY deliveries_of_destination", "1".to_owned()),
        (_, None) => ("INDEXED BY deliveries_ended", ended),
        (_, Some(_)) => ("INDEXED BY deliveries_ended_of_destination", ended),
    }
}

/// What a replay that begins at `began` may take of the deliveries `d`, at `now`.
pub(crate) fn eligible(conditions: &mut Conditions<'_>, state: DeliveryState, began: Timestamp, now: Timestamp) {
    conditions.add(&format!("d.state = {}", state_code(state)));
    conditions.add("d.updated_at <= ?").int(began.as_nanos());
    conditions.add("(d.expires_at IS NULL OR d.expires_at > ?)").int(now.as_nanos());
    conditions.add(
        "(d.replay_id IS NULL OR NOT EXISTS (SELECT 1 FROM replays p WHERE p.id = d.replay_id AND p.phase IN (0, 1, 3)))",
    );
    conditions.add("EXISTS (SELECT 1 FROM destinations t WHERE t.id = d.destination_id AND t.deleted_at IS NULL)");
}

/// Joins what a filter sieves by, where it does.
pub(crate) fn sieved_by(filter: &ReplayFilter) -> String {
    if is_sieved(&filter.deliveries) {
        format!("CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id {LAST_ATTEMPT}")
    } else {
        String::new()
    }
}

pub(crate) fn counted(filter: &ReplayFilter, state: DeliveryState, now: Timestamp) -> (String, Values<'_>) {
    let (index, indexed) = walked(filter, state);
    let mut conditions = Conditions::new();
    conditions.add(&indexed);
    conditions.of_destination(filter.deliveries.destination_id.as_ref());
    let page = PageRequest { before: None, limit: 0 };
    conditions.range("d", page, filter.deliveries.from, filter.deliveries.to);
    eligible(&mut conditions, state, now, now);
    conditions.sieve(&filter.deliveries);
    let sql = format!("SELECT count(*) FROM deliveries d {index} {} WHERE {}", sieved_by(filter), conditions.sql);
    (sql, conditions.values)
}
