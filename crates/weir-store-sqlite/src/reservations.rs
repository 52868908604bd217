//! Slots of limit groups that callers outside Weir have taken.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{LimitGroupId, ReservationId, Timestamp, limit::RateLimit, reservation::Reservation};
use weir_store::{
    Cancelled, Page, PageRequest, Reservations, ReservedSlots, SentCounts, StoreResult, reservations_below,
    rows::{self, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    edit::Durable,
    sql::{Batch, MAX_ROWS, Values, execute, fetch, query, values},
};

static INSERT: Batch = Batch::new(
    "INSERT INTO reservations (id, group_id, cost, created_at, starts_at, ends_at) SELECT * FROM (VALUES ",
    "(?, ?, ?, ?, ?, ?)",
    ") WHERE column1 IS NOT NULL",
);

const BY_ID: &str = sql!("SELECT {reservation_columns} FROM reservations WHERE id = ?");

const CANCEL: &str = "UPDATE reservations SET cancelled_at = ? WHERE id = ?";

pub(crate) const LIST: &str = sql!(
    "SELECT {reservation_columns} FROM reservations INDEXED BY reservations_of_group
WHERE group_id = ? AND ends_at >= ? AND (ends_at, id) < (?, ?) ORDER BY ends_at DESC, id DESC LIMIT +?"
);

pub(crate) const AFTER: &str = sql!(
    "SELECT {reservation_columns} FROM reservations INDEXED BY reservations_of_group
WHERE group_id = ? AND (ends_at, id) > (?, ?) AND ends_at < ? AND cancelled_at IS NULL ORDER BY ends_at, id LIMIT +?"
);

pub(crate) const HAS_RESERVED: &str = "
SELECT EXISTS (SELECT 1 FROM reservations INDEXED BY reservations_of_group WHERE group_id = ?1 AND ends_at >= ?2)
    OR EXISTS (SELECT 1 FROM limit_groups t CROSS JOIN restored m
        WHERE t.id = ?1 AND m.single = 1 AND t.created_at <= m.sends_until AND m.sends_until >= ?2)";

/// The second part is the mark of a restore, as of sends.
pub(crate) const COUNTS: &str = "
SELECT ends_at / ?3 + 1, CASE WHEN ?4 THEN sum(cost) ELSE count(*) END
    FROM reservations INDEXED BY reservations_of_group
    WHERE group_id = ?1 AND ends_at > ?2 AND cancelled_at IS NULL GROUP BY 1
UNION ALL SELECT -2, (SELECT m.sends_until FROM limit_groups t CROSS JOIN restored m
    WHERE t.id = ?1 AND m.single = 1 AND t.created_at <= m.sends_until AND m.sends_until > ?2)";

/// Ids are in the order of their time.
pub(crate) const PRUNE: &str = "DELETE FROM reservations WHERE id IN (
    SELECT id FROM reservations WHERE id < ? ORDER BY id LIMIT +?)";

/// The most rows that one step deletes: about a millisecond of the writer's time.
const STEP: i64 = 500;

#[async_trait]
impl Reservations for SqliteStore {
    async fn add_reservations(&self, new: &[Reservation]) -> StoreResult<()> {
        let new = new.to_vec();
        self.edit(Durable::Yes, move |transaction| {
            new.chunks(MAX_ROWS).try_for_each(|part| {
                let (sql, values) = INSERT.of(Values::default(), part, |values, one| {
                    values.bind(one.id.as_bytes()).bind(one.group.as_bytes()).bind(one.cost);
                    values.bind(one.created_at).bind(one.starts_at).bind(one.ends_at);
                });
                execute(transaction.connection, &sql, &values).map(drop)
            })
        })
        .await
    }

    async fn reservation(&self, id: ReservationId) -> StoreResult<Option<Reservation>> {
        Ok(fetch(&self.readers, BY_ID, values![id.as_bytes()], rows::reservation).await?.pop())
    }

    async fn cancel_reservation(
        &self,
        group: LimitGroupId,
        id: ReservationId,
        now: Timestamp,
    ) -> StoreResult<Cancelled> {
        self.edit(Durable::Yes, move |transaction| {
            let found = query(transaction.connection, BY_ID, &values![id.as_bytes()], |row| rows::reservation(row))?;
            let cancelled = Cancelled::decide(found.into_iter().next(), group, now);
            if let Cancelled::Now(_) = cancelled {
                execute(transaction.connection, CANCEL, &values![now, id.as_bytes()])?;
            }
            Ok(cancelled)
        })
        .await
    }

    async fn list_reservations(
        &self,
        group: LimitGroupId,
        from: Timestamp,
        to: Timestamp,
        page: PageRequest,
    ) -> StoreResult<Page<Reservation>> {
        let last = match page.before {
            None => None,
            // Deleted meanwhile: the older ones are too.
            Some(id) => match self.reservation(ReservationId::from_bytes(id)).await? {
                None => return Ok(Page { rows: Vec::new(), next: None }),
                last => last,
            },
        };
        let (end, id) = reservations_below(to, last.as_ref());
        let values = values![group.as_bytes(), from, end, &id, i64::from(page.limit) + 1];
        let found = fetch(&self.readers, LIST, values, rows::reservation).await?;
        Ok(Page::of(found, page, |one| *one.id.as_bytes()))
    }

    async fn reserved_after(
        &self,
        group: LimitGroupId,
        (end, id): (Timestamp, ReservationId),
        to: Timestamp,
        limit: u32,
    ) -> StoreResult<Vec<Reservation>> {
        let values = values![group.as_bytes(), end, id.as_bytes(), to, limit];
        Ok(fetch(&self.readers, AFTER, values, rows::reservation).await?)
    }

    async fn prune_reservations(&self, before: Timestamp) -> StoreResult<u64> {
        let first_kept = ReservationId::new(before, 0);
        self.edit(Durable::No, move |transaction| {
            execute(transaction.connection, PRUNE, &values![first_kept.as_bytes(), STEP])
        })
        .await
    }
}

#[async_trait]
impl ReservedSlots for SqliteStore {
    async fn has_reserved(&self, group: LimitGroupId, since: Timestamp) -> StoreResult<bool> {
        let values = values![group.as_bytes(), since];
        let found = fetch(&self.readers, HAS_RESERVED, values, |row: &SqliteRow| row.flag(0)).await?;
        Ok(found.contains(&true))
    }

    async fn reserved_counts(
        &self,
        group: LimitGroupId,
        since: Timestamp,
        limit: RateLimit,
    ) -> StoreResult<SentCounts> {
        let values = values![group.as_bytes(), since, limit.bucket().as_nanos() as i64, limit.is_in_costs()];
        let read = |row: &SqliteRow| Ok((row.int(0)?, row.optional_int(1)?));
        Ok(rows::sent_counts(fetch(&self.readers, COUNTS, values, read).await?))
    }
}
