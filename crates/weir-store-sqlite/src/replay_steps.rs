//! The steps of a replay: some deliveries moved into the lane, or back out of it, in one transaction with the place the next
//! step goes on from.

use std::collections::BTreeSet;

use rusqlite::Row;
use weir_core::{DeliveryId, DeliveryState, DestinationId, ReplayId, Timestamp, order::BEHIND};
use weir_store::{MessageGroup, NewReplay, PageRequest, ReplayFigures, ReplayFilter, ReplayPhase, ReplayStep};

use crate::{
    error::{Error, Result},
    history::Conditions,
    replays::{FIGURES, eligible, figure, phase, phase_code, sieved_by, walked},
    rows::{Columns as _, delivery_id, destination_id, int, text, time},
    sql::{Batch, MAX_ROWS, Values, execute, padded, query},
    writer::Transaction,
};

/// How many deliveries a step looks at: what the writer does in about ten milliseconds, since claims and events wait for it.
const STEP: usize = MAX_ROWS;

const INSERT: &str = "
INSERT INTO replays (id, filter, phase, created_at, total, moved, delivered, failed, cancelled)
VALUES (?, ?, 0, ?, ?, 0, 0, 0, 0)";

const SELECT_OPEN: &str =
    "SELECT phase, filter, created_at, place, moved FROM replays WHERE id = ? AND phase IN (0, 1, 3)";

const SELECT_PHASE: &str = "SELECT phase FROM replays WHERE id = ?";

const CANCEL: &str = "UPDATE replays SET phase = 3, ended_at = ? WHERE id = ? AND phase IN (0, 1)";

const GO_ON: &str = "UPDATE replays SET place = ?, moved = ? WHERE id = ?";

const ALL_MOVED: &str = "UPDATE replays SET phase = 1, place = NULL, moved = ?2, total = ?2 WHERE id = ?1";

const END: &str = "
UPDATE replays SET phase = ?, delivered = ?, failed = ?, cancelled = ?, ended_at = coalesce(ended_at, ?) WHERE id = ?";

const INSERT_LANE: &str = "INSERT OR IGNORE INTO replay_destinations (replay_id, destination_id) VALUES (?, ?)";

const DELETE_LANES: &str = "DELETE FROM replay_destinations WHERE replay_id = ?";

/// Whether something of a replay waits or is under way.
pub(crate) const IS_UNDER_WAY: &str = "
SELECT 1 FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < 3 LIMIT 1";

/// The same without what somebody has pulled forward or what has come forward in its line: that goes on after a cancellation.
pub(crate) const IS_LEFT: &str = "
SELECT 1 FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < 3
    AND (is_replay = 1 OR next_attempt_at = 9223372036854775807) LIMIT 1";

/// What a cancelled replay has not sent yet.
pub(crate) const WAITING_OF_REPLAY: &str = "
SELECT id FROM deliveries INDEXED BY deliveries_replayed
WHERE replay_id = ? AND replay_id IS NOT NULL AND state < 3 AND state <> 1
    AND (is_replay = 1 OR next_attempt_at = 9223372036854775807) LIMIT +?";

/// Columns: id, replay, due, now, whether it joins its line. The plus keeps the planner from walking what has ended instead of looking up these.
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

/// Where a replay has got to: among its states, and in each in the order of ids.
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
struct Open {
    id: ReplayId,
    phase: ReplayPhase,
    filter: ReplayFilter,
    created_at: Timestamp,
    place: Place,
    moved: u64,
}

/// A delivery that a step looks at.
struct Candidate {
    id: DeliveryId,
    destination_id: DestinationId,
    taken: bool,
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
            ReplayPhase::Moving => self.move_some(open, now),
            ReplayPhase::Cancelling => self.put_some_back(id, now),
            _ => self.end_if_over(id, ReplayPhase::Completed, now).map(|_| ReplayStep::default()),
        }
    }

    fn open_replay(&self, id: ReplayId) -> Result<Option<Open>> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let read = |row: &Row<'_>| {
            let place = row.optional_blob(3)?.map(|place| Place::read(place).ok_or(Error::Corrupt("a place")));
            Ok(Open {
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

    /// Moves what the replay is after of the next deliveries in its first state that is not walked to its end.
    fn move_some(&mut self, open: Open, now: Timestamp) -> Result<ReplayStep> {
        let Open { id, filter, created_at, mut place, moved, .. } = open;
        let Some(&state) = filter.states.get(place.state) else {
            self.all_moved(id, moved)?;
            return Ok(ReplayStep { more: true, ..ReplayStep::default() });
        };
        let (sql, values) = candidates(&filter, state, created_at, now, &place.after);
        let read = |row: &Row<'_>| {
            Ok(Candidate {
                id: delivery_id(row, 0)?,
                destination_id: destination_id(row, 1)?,
                taken: int(row, 2)? == 1,
                ordering_key: row.optional_text(3)?,
            })
        };
        let seen = query(self.connection, &sql, &values, read)?;
        place = match seen.last() {
            Some(last) if seen.len() == STEP => Place { after: *last.id.as_bytes(), ..place },
            _ => Place { state: place.state + 1, ..Place::default() },
        };
        let taken: Vec<_> = seen.into_iter().filter(|candidate| candidate.taken).collect();
        let mut lines = BTreeSet::new();
        for part in taken.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(5 * size);
            for one in part {
                let line = self.line_to_join(one);
                let due = if line.is_some() { BEHIND } else { created_at };
                values.blob(one.id.as_bytes()).blob(id.as_bytes()).int(due.as_nanos()).int(now.as_nanos());
                values.int(line.is_some().into());
                lines.extend(line);
            }
            values.nulls(5 * (size - part.len()));
            execute(self.connection, &MOVE.sql(size), &values)?;
        }
        self.advance_message_groups(&lines)?;
        let wake: BTreeSet<DestinationId> = taken.iter().map(|one| one.destination_id).collect();
        for to in &wake {
            let mut values = Values::default();
            values.blob(id.as_bytes()).blob(to.as_bytes());
            execute(self.connection, INSERT_LANE, &values)?;
        }
        let mut values = Values::default();
        values.owned_blob(place.to_bytes()).int((moved + taken.len() as u64) as i64).blob(id.as_bytes());
        execute(self.connection, GO_ON, &values)?;
        Ok(ReplayStep { moved: taken.len() as u64, wake: wake.into_iter().collect(), more: true })
    }

    /// What has a place in an order goes in its turn, beside what is live, and not in the lane.
    fn line_to_join(&self, one: &Candidate) -> Option<MessageGroup> {
        let destination = self.destinations.get(one.destination_id)?;
        let ordering_key = one.ordering_key.clone().filter(|_| destination.settings.order.is_by_key())?;
        Some(MessageGroup { destination_id: one.destination_id, ordering_key })
    }

    fn all_moved(&mut self, id: ReplayId, moved: u64) -> Result<()> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(moved as i64);
        execute(self.connection, ALL_MOVED, &values).map(drop)
    }

    /// What is claimed ends by itself; should it wait again after, the next step finds it.
    fn put_some_back(&mut self, id: ReplayId, now: Timestamp) -> Result<ReplayStep> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(STEP as i64);
        let waiting = query(self.connection, WAITING_OF_REPLAY, &values, |row| delivery_id(row, 0))?;
        if waiting.is_empty() {
            self.end_if_over(id, ReplayPhase::Cancelled, now)?;
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

    /// Ends a replay of which nothing waits or is under way, with its figures as they are then.
    fn end_if_over(&mut self, id: ReplayId, ended: ReplayPhase, now: Timestamp) -> Result<()> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let is_left = if ended == ReplayPhase::Cancelled { IS_LEFT } else { IS_UNDER_WAY };
        if !query(self.connection, is_left, &values, |_| Ok(()))?.is_empty() {
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
            .int(phase_code(ended))
            .int(figures.delivered as i64)
            .int(figures.failed as i64)
            .int(figures.cancelled as i64)
            .int(now.as_nanos())
            .blob(id.as_bytes());
        execute(self.connection, END, &values)?;
        let mut values = Values::default();
        values.blob(id.as_bytes());
        execute(self.connection, DELETE_LANES, &values).map(drop)
    }
}

/// The next deliveries in a state, in the order of ids, and of each whether the replay takes it.
pub(crate) fn candidates<'f>(
    filter: &'f ReplayFilter,
    state: DeliveryState,
    began: Timestamp,
    now: Timestamp,
    after: &[u8; 16],
) -> (String, Values<'f>) {
    let (index, indexed) = walked(filter, state);
    let mut conditions = Conditions::new();
    // The first values of the statement: whether it is taken.
    eligible(&mut conditions, state, began, now);
    conditions.sieve(&filter.deliveries);
    let taken = std::mem::replace(&mut conditions.sql, "1".to_owned());
    conditions.add(&indexed);
    conditions.of_destination(filter.deliveries.destination_id.as_ref());
    let page = PageRequest { before: None, limit: 0 };
    conditions.range("d", page, filter.deliveries.from, filter.deliveries.to);
    conditions.add("d.id > ?").owned_blob(after.to_vec());
    conditions.values.int(STEP as i64);
    let sql = format!(
        "SELECT d.id, d.destination_id, coalesce({taken}, 0), d.ordering_key FROM (
            SELECT * FROM deliveries d {index} WHERE {} ORDER BY d.id LIMIT +?
        ) d {} ORDER BY d.id",
        conditions.sql,
        sieved_by(filter)
    );
    (sql, conditions.values)
}
