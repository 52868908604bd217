//! Retention of attempts and events, by days: what the deliveries of a day have left behind once the whole day is older
//! than the retention.
//!
//! ```text
//! find_day ─┬─ no delivery is kept ─────────┬─ keys ─┬─ the day is dropped ──────────────┬─ next day
//!           ├─ few, among many events ──────┘        ├─ few are copied to a new partition,┤
//!           │                                        │  and the old one is dropped        │
//!           └─ many, or no more than are kept ─────── events ─ attempts, row by row ──────┘
//! ```

use std::collections::HashMap;

use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, postgres::PgRow, raw_sql};
use weir_core::retention::Cutoffs;
use weir_store::{PrunePosition, PruneStep, Pruned, first_id, rows::Row as _};

use crate::{
    Shared,
    errors::is_in_use,
    partitions::{Day, MILLIS_PER_DAY, day_of, day_of_id},
    rows::{Read, uuid},
};

/// The most rows that one step reads. It deletes some or all of them. A step of events takes about 9 ms in the server.
const STEP: i64 = 2_000;
/// The most events that one step reads to find those with idempotency keys.
const KEY_STEP: i64 = 20_000;

/// Up to so many deliveries of a day are copied out of its partitions...
const MOST_KEPT: i64 = 20_000;
/// ...if their bodies and answers have at most so many bytes. Meanwhile nobody can write an attempt of that day: copying
/// so many takes half a second on a busy machine, and a statement is ended after 2 s.
const MOST_KEPT_BYTES: i64 = 64 * 1024 * 1024;
const COPY_SETTINGS: &str = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '2s'";
/// They are copied if the day has so many events more than twice as many. So a day is copied only while that gives most
/// of its disk back, and not in each pass again.
const WORTH_IT: i64 = 1_000;

/// The days of which everything that may go was deleted row by row, with the number of deliveries that were kept. While that
/// number is the same, nothing else may go, so later passes do not read the rows of the day again. At most as many as there
/// are days with partitions.
#[derive(Debug, Default)]
pub(crate) struct FinishedDays(Mutex<Finished>);

#[derive(Debug, Default)]
struct Finished {
    /// The day that is being deleted row by row, as it was counted before.
    begun: Option<(Day, i64)>,
    kept: HashMap<Day, i64>,
}

impl FinishedDays {
    /// Whether nothing of the day may go. Otherwise its deletion begins.
    fn begin(&self, day: Day, kept: i64) -> bool {
        let mut days = self.0.lock();
        let is_finished = days.kept.get(&day) == Some(&kept);
        days.begun = (!is_finished).then_some((day, kept));
        is_finished
    }

    fn finish(&self, day: Day) {
        let mut days = self.0.lock();
        if let Some((_, kept)) = days.begun.take().filter(|(begun, _)| *begun == day) {
            days.kept.insert(day, kept);
        }
    }

    fn forget_before(&self, day: Day) {
        self.0.lock().kept.retain(|kept, _| *kept >= day);
    }
}

/// The remaining deliveries of an event have ids of its millisecond.
pub(crate) const DELETE_EVENTS: &str = "
WITH old AS MATERIALIZED (
    -- The next events, with the first and the last id that their deliveries can have.
    SELECT id, (left(id::text, 13) || '-0000-0000-000000000000')::uuid AS first,
        (left(id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid AS last
    FROM events WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3
), childless AS MATERIALIZED (
    -- Those of which no delivery is left.
    SELECT id FROM old WHERE NOT EXISTS (
        SELECT FROM deliveries d WHERE d.id >= old.first AND d.id <= old.last AND d.event_id = old.id
    )
), deleted AS (
    -- Delete them, with their idempotency keys.
    DELETE FROM events e USING childless WHERE e.id = childless.id
    RETURNING e.id, e.tenant, e.idempotency_key
), keys AS (
    DELETE FROM idempotency_keys k USING deleted
    WHERE k.tenant = deleted.tenant AND k.idempotency_key = deleted.idempotency_key AND k.event_id = deleted.id
)
SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM deleted), (SELECT id FROM old ORDER BY id DESC LIMIT 1)";

pub(crate) const DELETE_ATTEMPTS: &str = "
WITH old AS MATERIALIZED (
    -- The next attempts, with all of the last delivery.
    SELECT delivery_id FROM attempts WHERE delivery_id > $1 AND delivery_id < $2
    ORDER BY delivery_id FETCH FIRST $3 ROWS WITH TIES
), orphans AS MATERIALIZED (
    SELECT delivery_id FROM (SELECT DISTINCT delivery_id FROM old) one
    WHERE NOT EXISTS (SELECT FROM deliveries d WHERE d.id = one.delivery_id)
), deleted AS (
    DELETE FROM attempts a USING orphans WHERE a.delivery_id = orphans.delivery_id RETURNING 1
)
SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM deleted),
    (SELECT delivery_id FROM old ORDER BY delivery_id DESC LIMIT 1)";

/// Deletes the idempotency keys of a day before its events go, but not those of events that are kept.
pub(crate) const DELETE_KEYS: &str = "
WITH seen AS MATERIALIZED (
    -- The next events. Most or none of them may have a key.
    SELECT id, tenant, idempotency_key FROM events WHERE id > $1 AND id < $2 ORDER BY id LIMIT $4
), old AS MATERIALIZED (
    SELECT id, tenant, idempotency_key, (left(id::text, 13) || '-0000-0000-000000000000')::uuid AS first,
        (left(id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid AS last
    FROM seen WHERE idempotency_key IS NOT NULL ORDER BY id LIMIT $3
), childless AS MATERIALIZED (
    SELECT id, tenant, idempotency_key FROM old WHERE NOT EXISTS (
        SELECT FROM deliveries d WHERE d.id >= old.first AND d.id <= old.last AND d.event_id = old.id
    )
), keys AS (
    DELETE FROM idempotency_keys k USING childless
    WHERE k.tenant = childless.tenant AND k.idempotency_key = childless.idempotency_key AND k.event_id = childless.id
)
SELECT (SELECT count(*) FROM seen), (SELECT count(*) FROM old), (SELECT id FROM seen ORDER BY id DESC LIMIT 1),
    (SELECT id FROM old ORDER BY id DESC LIMIT 1)";

const ANY_KEY: &str = "SELECT EXISTS (SELECT FROM idempotency_keys)";

/// The first day between two days that has a partition.
const NEXT_DAY: &str = "
SELECT min(day) FROM (
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD') - DATE '1970-01-01' AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent IN ('events'::regclass, 'attempts'::regclass)
) days WHERE day > $1 AND day < $2";

/// How many deliveries of a day are kept, up to a limit.
pub(crate) const KEPT: &str = "
SELECT count(*) FROM (
    SELECT FROM deliveries WHERE id >= first_id_of_day($1) AND id < first_id_of_day($1 + 1) LIMIT $2
) kept";

/// How many events a day has, up to a limit.
pub(crate) const EVENTS_OF_DAY: &str = "
SELECT count(*) FROM (
    SELECT FROM events WHERE id >= first_id_of_day($1) AND id < first_id_of_day($1 + 1) LIMIT $2
) few";

const DROP_DAY: &str = "SELECT drop_partitions($1)";

/// What is kept of a day. Each row is looked up by its key, whatever the planner expects: its figures are from before
/// the deletion.
fn kept_rows(day: Day) -> [String; 2] {
    let of_day = format!("id >= first_id_of_day({day}) AND id < first_id_of_day({day} + 1)");
    [
        format!(
            "(SELECT DISTINCT event_id FROM deliveries WHERE {of_day}) kept CROSS JOIN LATERAL
            (SELECT * FROM events WHERE id = kept.event_id AND {of_day} OFFSET 0) one"
        ),
        format!(
            "(SELECT id FROM deliveries WHERE {of_day}) kept CROSS JOIN LATERAL
            (SELECT * FROM attempts WHERE delivery_id = kept.id
                AND delivery_id >= first_id_of_day({day}) AND delivery_id < first_id_of_day({day} + 1) OFFSET 0) one"
        ),
    ]
}

/// The bytes of what is kept. It also brings the rows into memory, so that copying them is short.
fn bytes_kept(day: Day) -> String {
    let [events, attempts] = kept_rows(day);
    format!(
        "SELECT ((SELECT coalesce(sum(pg_column_size(one.body)), 0) FROM {events})
            + (SELECT coalesce(sum(coalesce(pg_column_size(one.response_body), 0)), 0) FROM {attempts}))::bigint"
    )
}

/// Replaces the partitions of a day by new ones, which hold only the rows that are kept. From the first statement on
/// nobody can write to the old partitions, so nothing is lost. The last statements lock the whole tables. They are quick,
/// and they fail if they would have to wait: a session that waits for the lock of the first statement may hold a lock that
/// they need, and then both would wait for ever.
fn copy_day(day: Day, name: &str) -> String {
    let [events, attempts] = kept_rows(day);
    let new = |parent: &str, kept: &str| {
        format!(
            "CREATE TABLE {parent}_{name}_kept (LIKE {parent} INCLUDING ALL);
            INSERT INTO {parent}_{name}_kept SELECT one.* FROM {kept};"
        )
    };
    let attach = |parent: &str| {
        format!(
            "ALTER TABLE {parent}_{name}_kept RENAME TO {parent}_{name};
            ALTER TABLE {parent} ATTACH PARTITION {parent}_{name}
                FOR VALUES FROM (first_id_of_day({day})) TO (first_id_of_day({day} + 1));"
        )
    };
    [
        format!("LOCK TABLE events_{name}, attempts_{name} IN SHARE MODE;"),
        new("events", &events),
        new("attempts", &attempts),
        format!("DROP TABLE events_{name}, attempts_{name};"),
        attach("events"),
        attach("attempts"),
    ]
    .concat()
}

/// Finds the next day that is old as a whole, and how what is left of it is deleted.
pub(crate) async fn find_day(
    connection: &mut PgConnection,
    cutoffs: &Cutoffs,
    after: Day,
    shared: &Shared,
) -> Result<PruneStep, sqlx::Error> {
    let Some(before) = cutoffs.events() else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
    let row = sqlx::query(NEXT_DAY).bind(after).bind(day_of(before)).fetch_one(&mut *connection).await?;
    let day: Option<Day> = sqlx::Row::try_get_unchecked(&row, 0)?;
    // No such day is left. The attempts and events of younger days stay until those are old.
    let Some(day) = day else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
    if after < 0 {
        shared.finished_days.forget_before(day);
    }
    let next = if !goes_at_once(connection, day).await? {
        match shared.finished_days.begin(day, kept(connection, day, i64::MAX).await?) {
            true => PrunePosition::Days(day),
            false => PrunePosition::Events(first_id_of(day)),
        }
    } else if sqlx::query(ANY_KEY).fetch_one(connection).await?.flag(0)? {
        PrunePosition::Keys(first_id_of(day))
    } else {
        PrunePosition::Keys(last_id_of(day))
    };
    Ok(PruneStep::of(Pruned::NOTHING, next))
}

/// Whether the partitions of a day are dropped, without what is kept, if anything is.
async fn goes_at_once(connection: &mut PgConnection, day: Day) -> Result<bool, sqlx::Error> {
    let kept = kept(connection, day, MOST_KEPT + 1).await?;
    if kept == 0 || kept > MOST_KEPT {
        return Ok(kept == 0);
    }
    let worth_it = kept * 2 + WORTH_IT;
    let events = sqlx::query(EVENTS_OF_DAY).bind(day).bind(worth_it).fetch_one(&mut *connection).await?.int(0)?;
    Ok(events >= worth_it)
}

async fn kept(connection: &mut PgConnection, day: Day, most: i64) -> Result<i64, sqlx::Error> {
    Ok(sqlx::query(KEPT).bind(day).bind(most).fetch_one(connection).await?.int(0)?)
}

/// Deletes the idempotency keys of a day, step by step, and then drops the day.
pub(crate) async fn prune_keys(
    connection: &mut PgConnection,
    cutoffs: &Cutoffs,
    after: [u8; 16],
    shared: &Shared,
) -> Result<PruneStep, sqlx::Error> {
    let day = day_of_id(&after);
    let row = sqlx::query(DELETE_KEYS)
        .bind(uuid(&after))
        .bind(uuid(&first_id_of(day + 1)))
        .bind(STEP)
        .bind(KEY_STEP)
        .fetch_one(&mut *connection)
        .await?;
    // A full step: more keys may follow.
    let next = if row.int(1)? == STEP { row.optional_id(3)? } else { last_of(&row, KEY_STEP, 2)? };
    if let Some(next) = next {
        return Ok(PruneStep::of(Pruned::NOTHING, PrunePosition::Keys(next)));
    }
    // No key names the day any more, except for what is kept.
    let dropped = match kept(connection, day, 1).await? {
        0 => drop_day(connection, day, shared).await?,
        _ => keep_few(connection, day).await?,
    };
    let next = match dropped {
        true => PrunePosition::Days(day),
        // A later pass tries again. If others use the tables all the time, rows are deleted one by one after a day.
        false if cutoffs.events().is_some_and(|before| day < day_of(before) - 1) => {
            PrunePosition::Events(first_id_of(day))
        }
        false => PrunePosition::Days(day),
    };
    Ok(PruneStep::of(Pruned { days: dropped.into(), ..Pruned::NOTHING }, next))
}

/// Returns whether the day was dropped: not if another session uses its tables. If an event of that day still comes,
/// ingest makes its partitions again.
async fn drop_day(connection: &mut PgConnection, day: Day, shared: &Shared) -> Result<bool, sqlx::Error> {
    let dropped = sqlx::query(DROP_DAY).bind(day).execute(connection).await;
    shared.partitions.forget();
    match dropped {
        Ok(_) => Ok(true),
        Err(error) if is_in_use(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Copies what is kept of a day, and drops the rest. Returns whether it could.
async fn keep_few(connection: &mut PgConnection, day: Day) -> Result<bool, sqlx::Error> {
    // Without a lock, so it may take longer than the copy: the rows may have to come from the disk.
    let bytes = sqlx::query(AssertSqlSafe(bytes_kept(day))).persistent(false);
    if bytes.fetch_one(&mut *connection).await?.int(0)? > MOST_KEPT_BYTES {
        return Ok(false);
    }
    let mut transaction = connection.begin().await?;
    raw_sql(COPY_SETTINGS).execute(&mut *transaction).await?;
    let copied = async {
        let name = "SELECT to_char(DATE '1970-01-01' + $1, 'YYYYMMDD')";
        let name = sqlx::query(name).bind(day).fetch_one(&mut *transaction).await?.text(0)?;
        raw_sql(AssertSqlSafe(copy_day(day, &name))).execute(&mut *transaction).await
    }
    .await;
    match copied {
        Ok(_) => transaction.commit().await.map(|()| true),
        Err(error) if is_in_use(&error) => transaction.rollback().await.map(|()| false),
        Err(error) => Err(error),
    }
}

/// Deletes the events of a day that have no deliveries, row by row.
pub(crate) async fn prune_events(connection: &mut PgConnection, after: [u8; 16]) -> Result<PruneStep, sqlx::Error> {
    let row = step(connection, DELETE_EVENTS, after).await?;
    let next = last_of(&row, STEP, 2)?.map(PrunePosition::Events);
    let next = next.unwrap_or(PrunePosition::Attempts(first_id_of(day_of_id(&after))));
    Ok(PruneStep::of(Pruned { events: row.count(1)?, ..Pruned::NOTHING }, next))
}

/// Deletes the attempts of a day that have no delivery, row by row.
pub(crate) async fn prune_attempts(
    connection: &mut PgConnection,
    after: [u8; 16],
    shared: &Shared,
) -> Result<PruneStep, sqlx::Error> {
    let row = step(connection, DELETE_ATTEMPTS, after).await?;
    let next = last_of(&row, STEP, 2)?.map(PrunePosition::Attempts);
    let next = next.unwrap_or_else(|| {
        shared.finished_days.finish(day_of_id(&after));
        PrunePosition::Days(day_of_id(&after))
    });
    Ok(PruneStep::of(Pruned { attempts: row.count(1)?, ..Pruned::NOTHING }, next))
}

/// One step through the rows of a day.
async fn step(connection: &mut PgConnection, statement: &'static str, after: [u8; 16]) -> Result<PgRow, sqlx::Error> {
    let beyond = first_id_of(day_of_id(&after) + 1);
    sqlx::query(statement).bind(uuid(&after)).bind(uuid(&beyond)).bind(STEP).fetch_one(connection).await
}

/// The last id that a step has read; `None` if it read fewer rows than its limit, so that nothing remains.
fn last_of(row: &PgRow, limit: i64, column: usize) -> Read<Option<[u8; 16]>> {
    if row.int(0)? < limit { Ok(None) } else { row.optional_id(column) }
}

/// Before all ids of a day.
fn first_id_of(day: Day) -> [u8; 16] {
    first_id(i64::from(day) * MILLIS_PER_DAY)
}

/// After all ids of a day.
fn last_id_of(day: Day) -> [u8; 16] {
    let mut id = [0xff; 16];
    id[..6].copy_from_slice(&first_id((i64::from(day) + 1) * MILLIS_PER_DAY - 1)[..6]);
    id
}
