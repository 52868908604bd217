//! The steps of a replay. Each moves some deliveries into the replay backlog or puts them back, and stores its progress
//! in the same transaction.

use std::collections::BTreeSet;

use rusqlite::Row;
use weir_core::{DeliveryId, DeliveryState, DestinationId, ReplayId, Timestamp, activity::Activity, order::BEHIND};
use weir_store::{
    ListOrder, MessageGroup, NewReplay, OpenReplay, ReplayFigures, ReplayFilter, ReplayPhase, ReplayPosition,
    ReplayStep, ReplayTask,
    rows::{self, Corrupt, Row as _, phase_code},
    sql,
};

use crate::{
    error::Result,
    history::WhereClause,
    replays::{FIGURES, eligible, filter_joins, index_for_state},
    sql::{Batch, MAX_ROWS, Values, execute, query, values},
    transaction::Transaction,
};

/// The deliveries that one step reads: about 10 ms of the writer's time, because claims and events wait for it.
const STEP: usize = MAX_ROWS;

const INSERT: &str = sql!(
    "
INSERT INTO replays (id, filter, phase, created_at, total, moved, delivered, failed, cancelled)
VALUES (?, ?, {moving}, ?, ?, 0, 0, 0, 0)"
);

const SELECT_OPEN: &str =
    sql!("SELECT phase, filter, created_at, place, moved FROM replays WHERE id = ? AND phase IN ({open_replay})");

const SELECT_PHASE: &str = "SELECT phase FROM replays WHERE id = ?";

const CANCEL: &str =
    sql!("UPDATE replays SET phase = {cancelling}, ended_at = ? WHERE id = ? AND phase IN ({moving}, {moved})");

const SAVE_PROGRESS: &str = "UPDATE replays SET place = ?, moved = ? WHERE id = ?";

const MARK_MOVED: &str = sql!("UPDATE replays SET phase = {moved}, place = NULL, moved = ?2, total = ?2 WHERE id = ?1");

const END: &str = "
UPDATE replays SET phase = ?, delivered = ?, failed = ?, cancelled = ?, ended_at = coalesce(ended_at, ?) WHERE id = ?";

const INSERT_REPLAY_DESTINATION: &str =
    "INSERT OR IGNORE INTO replay_destinations (replay_id, destination_id) VALUES (?, ?)";

const DELETE_REPLAY_DESTINATIONS: &str = "DELETE FROM replay_destinations WHERE replay_id = ?";

/// Whether any delivery of a replay waits or is in flight.
pub(crate) const IS_UNFINISHED: &str = sql! {"
SELECT 1 FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < {delivered} LIMIT 1"};

/// The same without deliveries that are live by now ([`ReplayPhase::waits_for_live`]).
pub(crate) const IS_UNFINISHED_IN_REPLAY: &str = sql! {"
SELECT 1 FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < {delivered}
    AND (is_replay = 1 OR next_attempt_at = {end_of_time}) LIMIT 1"};

/// The waiting deliveries of a replay that is being cancelled.
pub(crate) const WAITING_OF_REPLAY: &str = sql! {"
SELECT id, destination_id, state, state_before FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < {delivered} AND state <> {delivering}
    AND (is_replay = 1 OR next_attempt_at = {end_of_time}) LIMIT +?"};

/// Columns: id, replay, due, now, whether it joins its message group. `+state` makes the planner look up the given ids;
/// with `state` it could scan all ended deliveries.
pub(crate) static MOVE: Batch = Batch::new(
    sql! {"UPDATE OR ROLLBACK deliveries SET state = {pending}, state_before = state, attempts_before = attempts, replaced = NULL,
        replay_id = r.column2, next_attempt_at = r.column3, updated_at = r.column4, is_replay = NOT r.column5,
        ordering_key = CASE WHEN r.column5 THEN ordering_key END
    FROM (VALUES "},
    "(?,?,?,?,?)",
    sql!(") AS r WHERE deliveries.id = r.column1 AND +state > {retrying}"),
);

/// Columns: id, now.
pub(crate) static PUT_BACK: Batch = Batch::new(
    "UPDATE OR ROLLBACK deliveries SET state = state_before, state_before = NULL, attempts_before = NULL, replay_id = NULL,
        is_replay = 0, updated_at = r.column2
    FROM (VALUES ",
    "(?,?)",
    sql!(") AS r WHERE deliveries.id = r.column1 AND +state IN ({waiting})"),
);

/// A stored position: the index of the state in one byte, and the last id.
fn read_position(bytes: &[u8]) -> Option<ReplayPosition> {
    let (&state, after) = bytes.split_first()?;
    Some(ReplayPosition { state: state.into(), after: after.try_into().ok()? })
}

fn position_bytes(position: ReplayPosition) -> Vec<u8> {
    let mut bytes = vec![position.state as u8];
    bytes.extend(position.after);
    bytes
}

/// A delivery that a step reads.
struct Candidate {
    id: DeliveryId,
    destination_id: DestinationId,
    is_eligible: bool,
    ordering_key: Option<String>,
    /// The flow of its limit key.
    flow_id: Option<DestinationId>,
}

impl Transaction<'_, '_> {
    pub(crate) fn create_replay(&mut self, replay: &NewReplay, total: u64) -> Result<()> {
        let values = values![replay.id.as_bytes(), replay.filter.to_stored(), replay.created_at, total as i64];
        execute(self.connection, INSERT, &values).map(drop)
    }

    pub(crate) fn cancel_replay(
        &mut self,
        id: ReplayId,
        now: Timestamp,
        activity: &Activity,
    ) -> Result<Option<ReplayPhase>> {
        if execute(self.connection, CANCEL, &values![now, id.as_bytes()])? == 1 {
            self.record(activity)?;
        }
        Ok(query(self.connection, SELECT_PHASE, &values![id.as_bytes()], |row| rows::phase(row, 0))?.pop())
    }

    pub(crate) fn step_replay(&mut self, id: ReplayId, now: Timestamp) -> Result<ReplayStep> {
        let Some(open) = self.open_replay(id)? else { return Ok(ReplayStep::default()) };
        match open.task() {
            ReplayTask::Move(state) => self.move_some(&open, state, now),
            ReplayTask::MarkMoved => self.mark_moved(&open),
            ReplayTask::PutBack => match self.put_back(id, now)? {
                0 => self.end_if_finished(id, ReplayPhase::Cancelled, now),
                moved => Ok(ReplayStep::of(moved, Vec::new())),
            },
            ReplayTask::End(ended) => self.end_if_finished(id, ended, now),
        }
    }

    fn open_replay(&self, id: ReplayId) -> Result<Option<OpenReplay>> {
        let read = |row: &Row<'_>| {
            let position = row.optional_bytes(3)?.map(|position| read_position(position).ok_or(Corrupt("a position")));
            Ok(OpenReplay {
                id,
                phase: rows::phase(row, 0)?,
                filter: row.parsed(1, "a filter", ReplayFilter::from_stored)?,
                created_at: row.time(2)?,
                position: position.transpose()?.unwrap_or_default(),
                moved: row.count(4)?,
            })
        };
        Ok(query(self.connection, SELECT_OPEN, &values![id.as_bytes()], read)?.pop())
    }

    /// Reads the next deliveries in a state and moves those that the replay takes.
    fn move_some(&mut self, open: &OpenReplay, state: DeliveryState, now: Timestamp) -> Result<ReplayStep> {
        // Read the next deliveries. The saved position also moves past those that the replay does not take.
        let (sql, values) = candidates(open, state, now);
        let read = |row: &Row<'_>| {
            Ok(Candidate {
                id: row.delivery_id(0)?,
                destination_id: row.destination_id(1)?,
                is_eligible: row.flag(2)?,
                ordering_key: row.optional_text(3)?,
                flow_id: row.optional_id(4)?.map(DestinationId::from_bytes),
            })
        };
        let seen = query(self.connection, &sql, &values, read)?;
        let position = open.position.next(seen.last().map(|last| *last.id.as_bytes()), seen.len() == STEP);
        let taken: Vec<_> = seen.into_iter().filter(|candidate| candidate.is_eligible).collect();
        // Ordered deliveries join their message groups behind the others; the groups without a head then get one.
        let mut message_groups = BTreeSet::new();
        for part in taken.chunks(MAX_ROWS) {
            let (sql, values) = MOVE.of(Values::default(), part, |values, one| {
                let message_group = self.message_group_to_join(one);
                let due = if message_group.is_some() { BEHIND } else { open.created_at };
                values.bind(one.id.as_bytes()).bind(open.id.as_bytes()).bind(due).bind(now);
                values.bind(message_group.is_some());
                message_groups.extend(message_group);
                self.changes.moved(one.destination_id, state, DeliveryState::Pending, now);
            });
            execute(self.connection, &sql, &values)?;
        }
        self.advance_message_groups(&message_groups)?;
        // Record the destinations, so that their runs claim replays, and the progress.
        let wake: BTreeSet<DestinationId> = taken.iter().map(|one| one.destination_id).collect();
        for to in &wake {
            execute(self.connection, INSERT_REPLAY_DESTINATION, &values![open.id.as_bytes(), to.as_bytes()])?;
        }
        // Save the position with the moves: after a crash the next step continues here and moves nothing twice.
        let moved = taken.len() as u64;
        let values = values![position_bytes(position), (open.moved + moved) as i64, open.id.as_bytes()];
        execute(self.connection, SAVE_PROGRESS, &values)?;
        let flows: BTreeSet<DestinationId> = taken.iter().filter_map(|one| one.flow_id).collect();
        Ok(ReplayStep::of(moved, wake.into_iter().collect()).with_flows(flows.into_iter().collect()))
    }

    /// An ordered delivery joins its message group and is sent as a live delivery, not within the replay share.
    fn message_group_to_join(&self, one: &Candidate) -> Option<MessageGroup> {
        let destination = self.destinations.get(one.destination_id)?;
        let ordering_key = one.ordering_key.clone().filter(|_| destination.settings.order.is_by_key())?;
        Some(MessageGroup { destination_id: one.destination_id, ordering_key })
    }

    fn mark_moved(&mut self, open: &OpenReplay) -> Result<ReplayStep> {
        execute(self.connection, MARK_MOVED, &values![open.id.as_bytes(), open.moved as i64])?;
        Ok(ReplayStep::of(0, Vec::new()))
    }

    /// Returns how many deliveries it put back.
    fn put_back(&mut self, id: ReplayId, now: Timestamp) -> Result<u64> {
        let values = values![id.as_bytes(), STEP as i64];
        let read = |row: &Row<'_>| Ok((row.delivery_id(0)?, row.destination_id(1)?, [row.state(2)?, row.state(3)?]));
        let waiting = query(self.connection, WAITING_OF_REPLAY, &values, read)?;
        if waiting.is_empty() {
            return Ok(0);
        }
        let (sql, values) = PUT_BACK.of(Values::default(), &waiting, |values, one| {
            let (one, destination_id, [state, state_before]) = one;
            values.bind(one.as_bytes()).bind(now);
            self.changes.moved(*destination_id, *state, *state_before, now);
        });
        execute(self.connection, &sql, &values)?;
        Ok(waiting.len() as u64)
    }

    fn end_if_finished(&mut self, id: ReplayId, ended: ReplayPhase, now: Timestamp) -> Result<ReplayStep> {
        let of_replay = values![id.as_bytes()];
        let is_unfinished = if ended.waits_for_live() { IS_UNFINISHED } else { IS_UNFINISHED_IN_REPLAY };
        if !query(self.connection, is_unfinished, &of_replay, |_| Ok(()))?.is_empty() {
            return Ok(ReplayStep::default());
        }
        // Nothing waits for the replay any more: store its figures, which each request has counted until now.
        let counted = query(self.connection, FIGURES, &of_replay, |row| rows::figure(row))?;
        let figures: ReplayFigures = counted.into_iter().collect();
        let mut values = Values::default();
        values
            .bind(phase_code(ended))
            .bind(figures.delivered as i64)
            .bind(figures.failed as i64)
            .bind(figures.cancelled as i64)
            .bind(now)
            .bind(id.as_bytes());
        execute(self.connection, END, &values)?;
        // The runs of its destinations need not claim for this replay any more.
        execute(self.connection, DELETE_REPLAY_DESTINATIONS, &of_replay)?;
        Ok(ReplayStep::default())
    }
}

/// The next deliveries in a state, in the order of ids, and whether the replay takes each.
pub(crate) fn candidates(open: &OpenReplay, state: DeliveryState, now: Timestamp) -> (String, Values<'_>) {
    let OpenReplay { filter, created_at, position, .. } = open;
    let (index, indexed) = index_for_state(filter, state);
    let mut conditions = WhereClause::new();
    // The conditions for whether the replay takes a delivery become a column of the result, so their values come first
    // in the statement.
    eligible(&mut conditions, state, *created_at, now);
    conditions.filter_joined(&filter.deliveries);
    // They are a column and not a filter, because the saved position must also move past deliveries that the replay does
    // not take.
    let is_eligible = std::mem::replace(&mut conditions.sql, "1".to_owned());
    conditions.add(&indexed);
    conditions.of_destination(filter.deliveries.destination_id.as_ref());
    conditions.of_flow(filter.deliveries.flow_id());
    // The conditions of the index, the times of the filter, and the position.
    conditions.range("d", (ListOrder::Newest, None), filter.deliveries.from, filter.deliveries.to);
    conditions.add("d.id > ?").bind(position.after);
    conditions.values.bind(STEP as i64);
    let sql = format!(
        "SELECT d.id, d.destination_id, coalesce({is_eligible}, 0), d.ordering_key, d.flow_id FROM (
            SELECT * FROM deliveries d {index} WHERE {} ORDER BY d.id LIMIT +?
        ) d {} ORDER BY d.id",
        conditions.sql,
        filter_joins(filter)
    );
    (sql, conditions.values)
}
