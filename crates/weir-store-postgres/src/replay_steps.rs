//! The steps of a replay. A step moves some deliveries back to waiting, or puts them back to their earlier states, and
//! saves the progress of the replay in the same transaction. It locks the row of the replay, so one process makes a
//! step, and the others skip the replay.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgRow, types::Uuid};
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp};
use weir_store::{
    MessageGroup, OpenReplay, ReplayFigures, ReplayFilter, ReplayPhase, ReplayPosition, ReplayStep, ReplayTask,
    rows::{self, Corrupt, Row as _, phase_code},
    sql,
};

use crate::{
    deliveries::JOINED,
    history::Select,
    message_groups::{advance, of_columns},
    rows::{Read, Unreadable, uuid},
};

/// How many deliveries a step reads.
const STEP: i64 = 1_000;

const LOCK: &str = sql!(
    "
SELECT phase, filter, created_at, place, seen, moved FROM replays
WHERE id = $1 AND phase IN ({open_replay}) FOR UPDATE SKIP LOCKED"
);

const SAVE_PROGRESS: &str = "UPDATE replays SET place = $2, seen = $3, moved = $4 WHERE id = $1";

const MARK_MOVED: &str = sql!("UPDATE replays SET phase = {moved}, total = moved WHERE id = $1");

const END: &str = "
UPDATE replays SET phase = $2, delivered = $3, failed = $4, cancelled = $5, ended_at = coalesce(ended_at, $6) WHERE id = $1";

/// Counts by state: an index-only scan, on pages that vacuum has marked all-visible.
pub(crate) const FIGURES: &str = "SELECT state, count(*) FROM deliveries WHERE replay_id = $1 GROUP BY state";

const DELETE_REPLAY_DESTINATIONS: &str = "DELETE FROM replay_destinations WHERE replay_id = $1";

/// Whether a delivery of a replay waits or is in flight. With `$2` this includes deliveries that are live by now
/// ([`ReplayPhase::waits_for_live`]).
pub(crate) const IS_UNFINISHED: &str = sql! {"
SELECT 1 FROM deliveries
WHERE replay_id = $1 AND state < {delivered} AND (is_replay OR next_attempt_at = {end_of_time} OR $2) LIMIT 1"};

/// Deliveries that wait for the replay, also behind a head, get their earlier states back.
pub(crate) const PUT_BACK: &str = sql! {"
WITH waiting AS MATERIALIZED (
    SELECT id FROM deliveries
    WHERE replay_id = $1 AND state IN ({waiting}) AND (is_replay OR next_attempt_at = {end_of_time})
    LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE deliveries d SET state = d.state_before, state_before = NULL, attempts_before = NULL, replay_id = NULL, is_replay = false,
    updated_at = $3
FROM waiting WHERE d.id = waiting.id"};

pub(crate) async fn step(
    connection: &mut PgConnection,
    id: ReplayId,
    now: Timestamp,
) -> Result<ReplayStep, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    // No row: the replay has ended, or another process makes its step.
    let row = sqlx::query(LOCK).bind(uuid(id.as_bytes())).fetch_optional(&mut *transaction).await?;
    let Some(row) = row else { return Ok(ReplayStep::default()) };
    let open = read_open(id, &row)?;
    let mut message_groups = BTreeSet::new();
    let step = match open.task() {
        ReplayTask::Move(state) => move_some(&mut transaction, &open, state, now, &mut message_groups).await?,
        ReplayTask::MarkMoved => mark_moved(&mut transaction, id).await?,
        ReplayTask::PutBack => match put_back(&mut transaction, id, now).await? {
            0 => end_if_finished(&mut transaction, id, ReplayPhase::Cancelled, now).await?,
            moved => ReplayStep::of(moved, Vec::new()),
        },
        ReplayTask::End(ended) => end_if_finished(&mut transaction, id, ended, now).await?,
    };
    transaction.commit().await?;
    advance(&message_groups, &[], connection).await;
    Ok(step)
}

/// Reads a row of [`LOCK`].
fn read_open(id: ReplayId, row: &PgRow) -> Read<OpenReplay> {
    let state = usize::try_from(row.int(3)?).map_err(|_| Corrupt("a position"))?;
    Ok(OpenReplay {
        id,
        phase: rows::phase(row, 0)?,
        filter: row.parsed(1, "a filter", ReplayFilter::from_stored)?,
        created_at: row.time(2)?,
        position: ReplayPosition { state, after: row.id(4)? },
        moved: row.count(5)?,
    })
}

/// Reads the next deliveries in a state and moves those that the replay takes. Ordered deliveries join their
/// message groups among the live deliveries: the caller advances these groups after its commit.
async fn move_some(
    connection: &mut PgConnection,
    open: &OpenReplay,
    state: DeliveryState,
    now: Timestamp,
    message_groups: &mut BTreeSet<MessageGroup>,
) -> Result<ReplayStep, sqlx::Error> {
    // One statement reads the next deliveries and moves those that the replay takes.
    let (sql, arguments) = move_statement(open, state, now).into_parts();
    let arguments = arguments.map_err(|_| Unreadable::from(Corrupt("a filter")))?;
    let row = sqlx::query_with(AssertSqlSafe(sql), arguments).fetch_one(&mut *connection).await?;
    let moved = row.count(1)?;
    let wake: Vec<Uuid> = row.try_get_unchecked(3)?;
    let (ordered_destinations, keys): (Vec<Uuid>, Vec<String>) = (row.try_get_unchecked(4)?, row.try_get_unchecked(5)?);
    message_groups.extend(of_columns(ordered_destinations, keys));
    let flows: Vec<Uuid> = row.try_get_unchecked(6)?;
    // Save the position in the same transaction: after a crash the next step continues here and moves nothing twice.
    let position = open.position.next(row.optional_id(2)?, row.int(0)? == STEP);
    sqlx::query(SAVE_PROGRESS)
        .bind(uuid(open.id.as_bytes()))
        .bind(position.state as i32)
        .bind(uuid(&position.after))
        .bind((open.moved + moved) as i64)
        .execute(connection)
        .await?;
    let ids = |ids: Vec<Uuid>| ids.into_iter().map(|id| DestinationId::from_bytes(id.into_bytes())).collect();
    Ok(ReplayStep::of(moved, ids(wake)).with_flows(ids(flows)))
}

async fn mark_moved(connection: &mut PgConnection, id: ReplayId) -> Result<ReplayStep, sqlx::Error> {
    sqlx::query(MARK_MOVED).bind(uuid(id.as_bytes())).execute(connection).await?;
    Ok(ReplayStep::of(0, Vec::new()))
}

/// Returns how many deliveries it put back.
async fn put_back(connection: &mut PgConnection, id: ReplayId, now: Timestamp) -> Result<u64, sqlx::Error> {
    let put_back = sqlx::query(PUT_BACK).bind(uuid(id.as_bytes())).bind(STEP).bind(now.as_nanos());
    Ok(put_back.execute(connection).await?.rows_affected())
}

async fn end_if_finished(
    connection: &mut PgConnection,
    id: ReplayId,
    ended: ReplayPhase,
    now: Timestamp,
) -> Result<ReplayStep, sqlx::Error> {
    let id = uuid(id.as_bytes());
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
        .bind(now.as_nanos())
        .execute(&mut *connection)
        .await?;
    // The runs of its destinations need not claim for this replay any more.
    sqlx::query(DELETE_REPLAY_DESTINATIONS).bind(id).execute(connection).await?;
    Ok(ReplayStep::default())
}

/// The joins that the filter needs, each a lookup per row.
pub(crate) fn filter_joins(filter: &ReplayFilter) -> &'static str {
    if filter.deliveries.filters_joined() { JOINED } else { "" }
}

/// One step of a replay that moves deliveries:
///
/// 1. Read the next deliveries in a state, in the order of ids (`seen`).
/// 2. Lock their destinations against deletion (`live`).
/// 3. Select the deliveries that the replay takes (`wanted`). This is separate from the row locks: otherwise the
///    planner could start with all deliveries of the destinations.
/// 4. Lock the rows that have not changed since (`chosen`), skip rows that another transaction has locked, and move the
///    locked ones (`moved`).
fn move_statement(open: &OpenReplay, state: DeliveryState, now: Timestamp) -> Select {
    let mut select = seen(open, state);
    add_wanted(&mut select, open, state, now);
    add_moved(&mut select, open, now);
    // `inserted`: the runs of these destinations also claim deliveries of replays.
    select.sql.push_str(
        "), inserted AS (
            INSERT INTO replay_destinations (replay_id, destination_id) SELECT",
    );
    select.value(uuid(open.id.as_bytes()));
    select.sql.push_str(
        ", destination_id FROM (SELECT DISTINCT destination_id FROM moved) m ON CONFLICT DO NOTHING
        )",
    );
    select.sql.push_str(RESULT);
    select
}

/// The next deliveries in this state, after the position. Their number says whether the state is read to its end.
fn seen(open: &OpenReplay, state: DeliveryState) -> Select {
    let mut select = Select::new("SELECT d.* FROM deliveries d".to_owned());
    select.index_for_state(&open.filter, state);
    select.compare("d.id >", uuid(&open.position.after));
    select.sql.push_str(" ORDER BY d.id LIMIT");
    select.value(STEP);
    select
}

/// `live`: destinations are locked before deliveries, as in a deletion. `wanted`: the filter chooses among `seen`.
fn add_wanted(select: &mut Select, open: &OpenReplay, state: DeliveryState, now: Timestamp) {
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
}

/// `chosen` locks the rows that have not changed. `moved` makes these deliveries wait, and keeps the values that a
/// cancellation restores. A delivery with a key at an ordered destination joins its message group: it becomes a live
/// delivery behind the others of the group.
fn add_moved(select: &mut Select, open: &OpenReplay, now: Timestamp) {
    select.sql.push_str(sql!(
        "), chosen AS MATERIALIZED (
            SELECT d.id, d.destination_id FROM wanted JOIN deliveries d
                ON d.id = wanted.id AND d.updated_at = wanted.updated_at
            WHERE d.state + 0 NOT IN ({pending}, {delivering}, {retrying}) FOR UPDATE OF d SKIP LOCKED
        ), moved AS (
            UPDATE deliveries d SET state = {pending}, state_before = d.state, attempts_before = d.attempts, replaced = NULL, replay_id ="
    ));
    select.value(uuid(open.id.as_bytes()));
    select.sql.push_str(sql!(
        ", ordering_key = CASE WHEN live.ordered THEN d.ordering_key END,
            is_replay = NOT (live.ordered AND d.ordering_key IS NOT NULL),
            next_attempt_at = CASE WHEN live.ordered AND d.ordering_key IS NOT NULL THEN {end_of_time} ELSE"
    ));
    select.value(open.created_at.as_nanos());
    select.sql.push_str(" END, updated_at =");
    select.value(now.as_nanos());
    select.sql.push_str(
        " FROM chosen JOIN live ON live.id = chosen.destination_id WHERE d.id = chosen.id
            RETURNING d.destination_id, d.ordering_key, d.flow_id
        ",
    );
}

/// How many deliveries were read and moved, the last id that was read, the destinations to wake, and the message groups
/// to advance, and the flows with limit keys to wake.
const RESULT: &str = "
        SELECT (SELECT count(*) FROM seen), (SELECT count(*) FROM moved), (SELECT id FROM seen ORDER BY id DESC LIMIT 1),
            ARRAY(SELECT DISTINCT destination_id FROM moved),
            ARRAY(SELECT destination_id FROM moved WHERE ordering_key IS NOT NULL ORDER BY destination_id, ordering_key),
            ARRAY(SELECT ordering_key FROM moved WHERE ordering_key IS NOT NULL ORDER BY destination_id, ordering_key),
            ARRAY(SELECT DISTINCT flow_id FROM moved WHERE flow_id IS NOT NULL)";

#[cfg(test)]
pub(crate) fn step_of(filter: ReplayFilter, state: DeliveryState) -> String {
    move_statement(&weir_store::conformance::begun(filter), state, Timestamp::MIN).sql
}
