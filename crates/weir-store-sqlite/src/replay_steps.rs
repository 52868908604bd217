//! The steps of a replay. Each moves some deliveries into the replay backlog or puts them back, and stores its progress
//! in the same transaction.

use std::collections::BTreeSet;

use rusqlite::Row;
use weir_core::{DeliveryId, DeliveryState, DestinationId, ReplayId, Timestamp, order::BEHIND};
use weir_store::{
    MessageGroup, NewReplay, PageRequest, ReplayFigures, ReplayFilter, ReplayPhase, ReplayStep, stored::phase_code,
};

use crate::{
    error::{Error, Result},
    history::WhereClause,
    replays::{FIGURES, eligible, figure, filter_joins, index_for_state, phase},
    rows::{Columns as _, delivery_id, destination_id, int, text, time},
    sql::{Batch, MAX_ROWS, Values, execute, padded, query},
    writer::Transaction,
};

/// The deliveries that one step reads: about 10 ms of the writer's time, because claims and events wait for it.
const STEP: usize = MAX_ROWS;

const INSERT: &str = "
INSERT INTO replays (id, filter, phase, created_at, total, moved, delivered, failed, cancelled)
VALUES (?, ?, 0, ?, ?, 0, 0, 0, 0)";

const SELECT_OPEN: &str =
    "SELECT phase, filter, created_at, place, moved FROM replays WHERE id = ? AND phase IN (0, 1, 3)";

const SELECT_PHASE: &str = "SELECT phase FROM replays WHERE id = ?";

const CANCEL: &str = "UPDATE replays SET phase = 3, ended_at = ? WHERE id = ? AND phase IN (0, 1)";

const SAVE_PROGRESS: &str = "UPDATE replays SET place = ?, moved = ? WHERE id = ?";

const MARK_MOVED: &str = "UPDATE replays SET phase = 1, place = NULL, moved = ?2, total = ?2 WHERE id = ?1";

const END: &str = "
UPDATE replays SET phase = ?, delivered = ?, failed = ?, cancelled = ?, ended_at = coalesce(ended_at, ?) WHERE id = ?";

const INSERT_REPLAY_DESTINATION: &str =
    "INSERT OR IGNORE INTO replay_destinations (replay_id, destination_id) VALUES (?, ?)";

const DELETE_REPLAY_DESTINATIONS: &str = "DELETE FROM replay_destinations WHERE replay_id = ?";

/// Whether any delivery of a replay waits or is in flight.
pub(crate) const IS_UNFINISHED: &str = "
SELECT 1 FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < 3 LIMIT 1";

/// The same without deliveries that are live by now: those retried by hand, and heads of message groups. They are still
/// sent after a cancellation.
pub(crate) const IS_UNFINISHED_IN_REPLAY: &str = "
SELECT 1 FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < 3
    AND (is_replay = 1 OR next_attempt_at = 9223372036854775807) LIMIT 1";

/// The waiting deliveries of a replay that is being cancelled.
pub(crate) const WAITING_OF_REPLAY: &str = "
SELECT id FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < 3 AND state <> 1
    AND (is_replay = 1 OR next_attempt_at = 9223372036854775807) LIMIT +?";

/// Columns: id, replay, due, now, whether it joins its message group. The plus keeps the planner from scanning the
/// ended deliveries instead of looking up these.
pub(crate) static MOVE: Batch = Batch::new(
    "UPDATE OR ROLLBACK deliveries SET state = 0, state_before = state, attempts_before = attempts, replaced = NULL,
        replay_id = r.column2, next_attempt_at = r.column3, updated_at = r.column4, is_replay = NOT r.column5,
        ordering_key = CASE WHEN r.column5 THEN ordering_key END
    FROM (VALUES ",
    "(?,?,?,?,?)",
    ",",
    ") AS r WHERE deliveries.id = r.column1 AND +state > 2",
);

/// Columns: id, now.
pub(crate) static PUT_BACK: Batch = Batch::new(
    "UPDATE OR ROLLBACK deliveries SET state = state_before, state_before = NULL, attempts_before = NULL, replay_id = NULL,
        is_replay = 0, updated_at = r.column2
    FROM (VALUES ",
    "(?,?)",
    ",",
    ") AS r WHERE deliveries.id = r.column1 AND +state IN (0, 2)",
);

/// The progress of a replay: the index of the current state in its filter, and the last id read in that state.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    state: usize,
    after: [u8; 16],
}

impl Place {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (&state, after) = bytes.split_first()?;
        Some(Self { state: state.into(), after: after.try_into().ok()? })
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.state as u8];
        bytes.extend(self.after);
        bytes
    }
}

/// A replay with steps to take.
struct OpenReplay {
    id: ReplayId,
    phase: ReplayPhase,
    filter: ReplayFilter,
    created_at: Timestamp,
    place: Place,
    moved: u64,
}

/// A delivery that a step reads.
struct Candidate {
    id: DeliveryId,
    destination_id: DestinationId,
    is_eligible: bool,
    ordering_key: Option<String>,
}

impl Transaction<'_, '_> {
    pub(crate) fn create_replay(&mut self, replay: &NewReplay, total: u64) -> Result<()> {
        let mut values = Values::default();
        values
            .blob(replay.id.as_bytes())
            .owned_text(replay.filter.to_stored())
            .int(replay.created_at.as_nanos())
            .int(total as i64);
        execute(self.connection, INSERT, &values).map(drop)
    }

    pub(crate) fn cancel_replay(&mut self, id: ReplayId, now: Timestamp) -> Result<Option<ReplayPhase>> {
        let mut values = Values::default();
        values.int(now.as_nanos()).blob(id.as_bytes());
        execute(self.connection, CANCEL, &values)?;
        let mut values = Values::default();
        values.blob(id.as_bytes());
        Ok(query(self.connection, SELECT_PHASE, &values, |row| phase(row, 0))?.pop())
    }

    pub(crate) fn step_replay(&mut self, id: ReplayId, now: Timestamp) -> Result<ReplayStep> {
        let Some(open) = self.open_replay(id)? else { return Ok(ReplayStep::default()) };
        match open.phase {
            ReplayPhase::Moving => self.move_next(open, now),
            ReplayPhase::Cancelling => self.put_back(id, now),
            _ => self.end_if_finished(id, ReplayPhase::Completed, now).map(|_| ReplayStep::default()),
        }
    }

    fn open_replay(&self, id: ReplayId) -> Result<Option<OpenReplay>> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let read = |row: &Row<'_>| {
            let place = row.optional_blob(3)?.map(|place| Place::read(place).ok_or(Error::Corrupt("a place")));
            Ok(OpenReplay {
                id,
                phase: phase(row, 0)?,
                filter: ReplayFilter::from_stored(&text(row, 1)?).ok_or(Error::Corrupt("a filter"))?,
                created_at: time(row, 2)?,
                place: place.transpose()?.unwrap_or_default(),
                moved: int(row, 4)?.unsigned_abs(),
            })
        };
        Ok(query(self.connection, SELECT_OPEN, &values, read)?.pop())
    }

    /// Reads the next deliveries in the current state and moves those that the replay takes.
    fn move_next(&mut self, open: OpenReplay, now: Timestamp) -> Result<ReplayStep> {
        let OpenReplay { id, filter, created_at, mut place, moved, .. } = open;
        let Some(&state) = filter.states.get(place.state) else {
            self.mark_moved(id, moved)?;
            return Ok(ReplayStep { more: true, ..ReplayStep::default() });
        };
        let (sql, values) = candidates(&filter, state, created_at, now, &place.after);
        let read = |row: &Row<'_>| {
            Ok(Candidate {
                id: delivery_id(row, 0)?,
                destination_id: destination_id(row, 1)?,
                is_eligible: int(row, 2)? == 1,
                ordering_key: row.optional_text(3)?,
            })
        };
        let seen = query(self.connection, &sql, &values, read)?;
        // A full step continues after its last delivery; otherwise the next state begins.
        place = match seen.last() {
            Some(last) if seen.len() == STEP => Place { after: *last.id.as_bytes(), ..place },
            _ => Place { state: place.state + 1, ..Place::default() },
        };
        let taken: Vec<_> = seen.into_iter().filter(|candidate| candidate.is_eligible).collect();
        // Ordered deliveries join their message groups behind the others; the groups without a head then get one.
        let mut message_groups = BTreeSet::new();
        for part in taken.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(5 * size);
            for one in part {
                let message_group = self.message_group_to_join(one);
                let due = if message_group.is_some() { BEHIND } else { created_at };
                values.blob(one.id.as_bytes()).blob(id.as_bytes()).int(due.as_nanos()).int(now.as_nanos());
                values.int(message_group.is_some().into());
                message_groups.extend(message_group);
            }
            values.nulls(5 * (size - part.len()));
            execute(self.connection, &MOVE.sql(size), &values)?;
        }
        self.advance_message_groups(&message_groups)?;
        // Record the destinations, so that their runs claim replays, and the progress.
        let wake: BTreeSet<DestinationId> = taken.iter().map(|one| one.destination_id).collect();
        for to in &wake {
            let mut values = Values::default();
            values.blob(id.as_bytes()).blob(to.as_bytes());
            execute(self.connection, INSERT_REPLAY_DESTINATION, &values)?;
        }
        let mut values = Values::default();
        values.owned_blob(place.to_bytes()).int((moved + taken.len() as u64) as i64).blob(id.as_bytes());
        execute(self.connection, SAVE_PROGRESS, &values)?;
        Ok(ReplayStep { moved: taken.len() as u64, wake: wake.into_iter().collect(), more: true })
    }

    /// An ordered delivery joins its message group and is sent as a live delivery, not within the replay share.
    fn message_group_to_join(&self, one: &Candidate) -> Option<MessageGroup> {
        let destination = self.destinations.get(one.destination_id)?;
        let ordering_key = one.ordering_key.clone().filter(|_| destination.settings.order.is_by_key())?;
        Some(MessageGroup { destination_id: one.destination_id, ordering_key })
    }

    fn mark_moved(&mut self, id: ReplayId, moved: u64) -> Result<()> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(moved as i64);
        execute(self.connection, MARK_MOVED, &values).map(drop)
    }

    /// Claimed deliveries are not changed. If one waits again later, the next step puts it back.
    fn put_back(&mut self, id: ReplayId, now: Timestamp) -> Result<ReplayStep> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(STEP as i64);
        let waiting = query(self.connection, WAITING_OF_REPLAY, &values, |row| delivery_id(row, 0))?;
        if waiting.is_empty() {
            self.end_if_finished(id, ReplayPhase::Cancelled, now)?;
            return Ok(ReplayStep::default());
        }
        let size = padded(waiting.len());
        let mut values = Values::with_capacity(2 * size);
        for one in &waiting {
            values.blob(one.as_bytes()).int(now.as_nanos());
        }
        values.nulls(2 * (size - waiting.len()));
        execute(self.connection, &PUT_BACK.sql(size), &values)?;
        Ok(ReplayStep { moved: waiting.len() as u64, wake: Vec::new(), more: true })
    }

    /// Ends a replay and stores its final figures, once none of its deliveries waits or is in flight.
    fn end_if_finished(&mut self, id: ReplayId, ended: ReplayPhase, now: Timestamp) -> Result<()> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let is_unfinished = if ended == ReplayPhase::Cancelled { IS_UNFINISHED_IN_REPLAY } else { IS_UNFINISHED };
        if !query(self.connection, is_unfinished, &values, |_| Ok(()))?.is_empty() {
            return Ok(());
        }
        let mut figures = ReplayFigures::default();
        let mut values = Values::default();
        values.blob(id.as_bytes());
        for (state, deliveries) in query(self.connection, FIGURES, &values, |row| figure(row))? {
            figures.count(state, deliveries);
        }
        let mut values = Values::default();
        values
            .int(phase_code(ended).into())
            .int(figures.delivered as i64)
            .int(figures.failed as i64)
            .int(figures.cancelled as i64)
            .int(now.as_nanos())
            .blob(id.as_bytes());
        execute(self.connection, END, &values)?;
        let mut values = Values::default();
        values.blob(id.as_bytes());
        execute(self.connection, DELETE_REPLAY_DESTINATIONS, &values).map(drop)
    }
}

/// The next deliveries in a state, in the order of ids, and whether the replay takes each.
pub(crate) fn candidates<'f>(
    filter: &'f ReplayFilter,
    state: DeliveryState,
    began: Timestamp,
    now: Timestamp,
    after: &[u8; 16],
) -> (String, Values<'f>) {
    let (index, indexed) = index_for_state(filter, state);
    let mut conditions = WhereClause::new();
    // The first values of the statement belong to the column that says whether the replay takes the delivery.
    eligible(&mut conditions, state, began, now);
    conditions.filter_joined(&filter.deliveries);
    let is_eligible = std::mem::replace(&mut conditions.sql, "1".to_owned());
    conditions.add(&indexed);
    conditions.of_destination(filter.deliveries.destination_id.as_ref());
    let page = PageRequest { before: None, limit: 0 };
    conditions.range("d", page, filter.deliveries.from, filter.deliveries.to);
    conditions.add("d.id > ?").owned_blob(after.to_vec());
    conditions.values.int(STEP as i64);
    let sql = format!(
        "SELECT d.id, d.destination_id, coalesce({is_eligible}, 0), d.ordering_key FROM (
            SELECT * FROM deliveries d {index} WHERE {} ORDER BY d.id LIMIT +?
        ) d {} ORDER BY d.id",
        conditions.sql,
        filter_joins(filter)
    );
    (sql, conditions.values)
}
