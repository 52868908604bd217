//! The steps of a replay. A step moves some deliveries back to waiting, or puts them back to their earlier states, and
//! saves the progress of the replay in the same transaction. It locks the row of the replay, so one process makes a
//! step, and the others skip the replay.

use std::collections::BTreeSet;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgRow, types::Uuid};
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp};
use weir_store::{
    MessageGroup, OpenReplay, ReplayFigures, ReplayFilter, ReplayPhase, ReplayPlace, ReplayStep, ReplayTask,
    end_of_time,
    rows::{self, Corrupt, Row as _, phase_code},
};

use crate::{
    edits::Edit,
    history::Select,
    message_groups::{advance, of_columns},
    replays::{FIGURES, filter_joins},
    rows::{Read, Unreadable, uuid},
};

/// How many deliveries a step reads.
const STEP: i64 = 1_000;

const LOCK: &str = "
SELECT phase, filter, created_at, place, seen, moved FROM replays
WHERE id = $1 AND phase IN (0, 1, 3) FOR UPDATE SKIP LOCKED";

const SAVE_PROGRESS: &str = "UPDATE replays SET place = $2, seen = $3, moved = $4 WHERE id = $1";

const MARK_MOVED: &str = "UPDATE replays SET phase = 1, total = moved WHERE id = $1";

const END: &str = "
UPDATE replays SET phase = $2, delivered = $3, failed = $4, cancelled = $5, ended_at = coalesce(ended_at, $6) WHERE id = $1";

const DELETE_REPLAY_DESTINATIONS: &str = "DELETE FROM replay_destinations WHERE replay_id = $1";

/// Whether a delivery of a replay waits or is in flight. With `$2` this includes deliveries that are live by now
/// ([`ReplayPhase::waits_for_live`]).
pub(crate) const IS_UNFINISHED: &str = concat!(
    "SELECT 1 FROM deliveries
    WHERE replay_id = $1 AND state < 3 AND (is_replay OR next_attempt_at = ",
    end_of_time!(),
    " OR $2) LIMIT 1"
);

/// Deliveries that wait for the replay, also behind a head, get their earlier states back.
pub(crate) const PUT_BACK: &str = concat!(
    "
WITH waiting AS MATERIALIZED (
    SELECT id FROM deliveries
    WHERE replay_id = $1 AND state IN (0, 2) AND (is_replay OR next_attempt_at = ",
    end_of_time!(),
    ")
    LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE deliveries d SET state = d.state_before, state_before = NULL, attempts_before = NULL, replay_id = NULL, is_replay = false,
    updated_at = $3
FROM waiting WHERE d.id = waiting.id"
);

pub(crate) struct Step {
    pub(crate) id: ReplayId,
    pub(crate) now: Timestamp,
}

#[async_trait]
impl Edit for Step {
    type Answer = ReplayStep;

    async fn run(&self, connection: &mut PgConnection) -> Result<ReplayStep, sqlx::Error> {
        let mut transaction = connection.begin().await?;
        // No row: the replay has ended, or another process makes its step.
        let row = sqlx::query(LOCK).bind(uuid(self.id.as_bytes())).fetch_optional(&mut *transaction).await?;
        let Some(row) = row else { return Ok(ReplayStep::default()) };
        let open = self.read_open(&row)?;
        let mut message_groups = BTreeSet::new();
        let step = match open.task() {
            ReplayTask::Move(state) => self.move_some(&open, state, &mut message_groups, &mut transaction).await?,
            ReplayTask::MarkMoved => self.mark_moved(&mut transaction).await?,
            ReplayTask::PutBack => match self.put_back(&mut transaction).await? {
                0 => self.end_if_finished(ReplayPhase::Cancelled, &mut transaction).await?,
                moved => ReplayStep::of(moved, Vec::new()),
            },
            ReplayTask::End(ended) => self.end_if_finished(ended, &mut transaction).await?,
        };
        transaction.commit().await?;
        advance(&message_groups, &[], connection).await;
        Ok(step)
    }
}

impl Step {
    /// Reads a row of [`LOCK`].
    fn read_open(&self, row: &PgRow) -> Read<OpenReplay> {
        let state = usize::try_from(row.int(3)?).map_err(|_| Corrupt("a place"))?;
        Ok(OpenReplay {
            id: self.id,
            phase: rows::phase(row, 0)?,
            filter: row.parsed(1, "a filter", ReplayFilter::from_stored)?,
            created_at: row.time(2)?,
            place: ReplayPlace { state, after: row.id(4)? },
            moved: row.count(5)?,
        })
    }

    /// Reads the next deliveries in a state and moves those that the replay takes. Ordered deliveries join their
    /// message groups among the live deliveries: the caller advances these groups after its commit.
    async fn move_some(
        &self,
        open: &OpenReplay,
        state: DeliveryState,
        message_groups: &mut BTreeSet<MessageGroup>,
        connection: &mut PgConnection,
    ) -> Result<ReplayStep, sqlx::Error> {
        // One statement reads the next deliveries and moves those that the replay takes.
        let (sql, arguments) = move_some(open, state, self.now).into_parts();
        let arguments = arguments.map_err(|_| Unreadable::from(Corrupt("a filter")))?;
        let row = sqlx::query_with(AssertSqlSafe(sql), arguments).fetch_one(&mut *connection).await?;
        let moved = row.count(1)?;
        let wake: Vec<Uuid> = row.try_get_unchecked(3)?;
        let (ordered_destinations, keys): (Vec<Uuid>, Vec<String>) =
            (row.try_get_unchecked(4)?, row.try_get_unchecked(5)?);
        message_groups.extend(of_columns(ordered_destinations, keys));
        // Save the place in the same transaction: after a crash the next step continues here and moves nothing twice.
        let place = open.place.next(row.optional_id(2)?, row.int(0)? == STEP);
        sqlx::query(SAVE_PROGRESS)
            .bind(uuid(self.id.as_bytes()))
            .bind(place.state as i32)
            .bind(uuid(&place.after))
            .bind((open.moved + moved) as i64)
            .execute(connection)
            .await?;
        let wake = wake.into_iter().map(|id| DestinationId::from_bytes(id.into_bytes()));
        Ok(ReplayStep::of(moved, wake.collect()))
    }

    async fn mark_moved(&self, connection: &mut PgConnection) -> Result<ReplayStep, sqlx::Error> {
        sqlx::query(MARK_MOVED).bind(uuid(self.id.as_bytes())).execute(connection).await?;
        Ok(ReplayStep::of(0, Vec::new()))
    }

    /// Returns how many deliveries it put back.
    async fn put_back(&self, connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let put_back = sqlx::query(PUT_BACK).bind(uuid(self.id.as_bytes())).bind(STEP).bind(self.now.as_nanos());
        Ok(put_back.execute(connection).await?.rows_affected())
    }

    async fn end_if_finished(
        &self,
        ended: ReplayPhase,
        connection: &mut PgConnection,
    ) -> Result<ReplayStep, sqlx::Error> {
        let id = uuid(self.id.as_bytes());
        let unfinished = sqlx::query(IS_UNFINISHED).bind(id).bind(ended.waits_for_live());
        if unfinished.fetch_optional(&mut *connection).await?.is_some() {
            return Ok(ReplayStep::default());
        }
        // Nothing waits for the replay any more: store its figures, which each request has counted until now.
        let counted = sqlx::query(FIGURES).bind(id).fetch_all(&mut *connection).await?;
        let figures: ReplayFigures = counted.iter().map(rows::figure).collect::<Read<_>>()?;
        sqlx::query(END)
            .bind(id)
            .bind(phase_code(ended))
            .bind(figures.delivered as i64)
            .bind(figures.failed as i64)
            .bind(figures.cancelled as i64)
            .bind(self.now.as_nanos())
            .execute(&mut *connection)
            .await?;
        // The runs of its destinations need not claim for this replay any more.
        sqlx::query(DELETE_REPLAY_DESTINATIONS).bind(id).execute(connection).await?;
        Ok(ReplayStep::default())
    }
}

/// One step of a replay that moves deliveries:
///
/// 1. Read the next deliveries in a state, in the order of ids (`seen`).
/// 2. Lock their destinations against deletion (`live`).
/// 3. Select the deliveries that the replay takes (`wanted`). This is separate from the row locks: otherwise the
///    planner could start with all deliveries of the destinations.
/// 4. Lock the rows that have not changed since (`chosen`), skip rows that another transaction has locked, and move the
///    locked ones (`moved`).
fn move_some(open: &OpenReplay, state: DeliveryState, now: Timestamp) -> Select {
    // `seen`: the next deliveries in this state, after the place. Their number says whether the state is read to its
    // end.
    let mut select = Select::new("SELECT d.* FROM deliveries d".to_owned());
    select.index_for_state(&open.filter, state);
    select.compare("d.id >", uuid(&open.place.after));
    select.sql.push_str(" ORDER BY d.id LIMIT");
    select.value(STEP);
    // `live`: destinations are locked before deliveries, as in a deletion. `wanted`: the filter chooses among `seen`.
    select.sql = format!(
        "WITH seen AS MATERIALIZED ({}), live AS MATERIALIZED (
            SELECT id, ordered FROM destinations
            WHERE id IN (SELECT destination_id FROM seen) AND deleted_at IS NULL FOR KEY SHARE
        ), wanted AS MATERIALIZED (
            SELECT d.id, d.updated_at FROM seen d {} WHERE d.destination_id IN (SELECT id FROM live)",
        select.sql,
        filter_joins(&open.filter)
    );
    select.eligible(state, open.created_at, now);
    select.filter_joined(&open.filter.deliveries);
    // `chosen` locks the rows that have not changed. `moved` makes these deliveries wait, and keeps the values that a
    // cancellation restores.
    select.sql.push_str(
        "), chosen AS MATERIALIZED (
            SELECT d.id, d.destination_id FROM wanted JOIN deliveries d
                ON d.id = wanted.id AND d.updated_at = wanted.updated_at
            WHERE d.state + 0 NOT IN (0, 1, 2) FOR UPDATE OF d SKIP LOCKED
        ), moved AS (
            UPDATE deliveries d SET state = 0, state_before = d.state, attempts_before = d.attempts, replaced = NULL, replay_id =",
    );
    select.value(uuid(open.id.as_bytes()));
    // A delivery with a key at an ordered destination joins its message group. It becomes a live delivery behind the
    // others of the group.
    select.sql.push_str(concat!(
        ", ordering_key = CASE WHEN live.ordered THEN d.ordering_key END,
            is_replay = NOT (live.ordered AND d.ordering_key IS NOT NULL),
            next_attempt_at = CASE WHEN live.ordered AND d.ordering_key IS NOT NULL THEN ",
        end_of_time!(),
        " ELSE",
    ));
    select.value(open.created_at.as_nanos());
    select.sql.push_str(" END, updated_at =");
    select.value(now.as_nanos());
    // `inserted`: the runs of these destinations also claim deliveries of replays.
    select.sql.push_str(
        " FROM chosen JOIN live ON live.id = chosen.destination_id WHERE d.id = chosen.id
            RETURNING d.destination_id, d.ordering_key
        ), inserted AS (
            INSERT INTO replay_destinations (replay_id, destination_id) SELECT",
    );
    select.value(uuid(open.id.as_bytes()));
    // The result: how many deliveries were read and moved, the last id that was read, the destinations to wake, and the
    // message groups to advance.
    select.sql.push_str(
        ", destination_id FROM (SELECT DISTINCT destination_id FROM moved) m ON CONFLICT DO NOTHING
        )
        SELECT (SELECT count(*) FROM seen), (SELECT count(*) FROM moved), (SELECT id FROM seen ORDER BY id DESC LIMIT 1),
            ARRAY(SELECT DISTINCT destination_id FROM moved),
            ARRAY(SELECT destination_id FROM moved WHERE ordering_key IS NOT NULL ORDER BY destination_id, ordering_key),
            ARRAY(SELECT ordering_key FROM moved WHERE ordering_key IS NOT NULL ORDER BY destination_id, ordering_key)",
    );
    select
}

#[cfg(test)]
pub(crate) fn step_of(filter: ReplayFilter, state: DeliveryState) -> String {
    move_some(&weir_store::conformance::begun(filter), state, Timestamp::MIN).sql
}
