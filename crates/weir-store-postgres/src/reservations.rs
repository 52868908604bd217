//! Slots of limit groups that callers outside Weir have taken.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use weir_core::{LimitGroupId, ReservationId, Timestamp, limit::RateLimit, reservation::Reservation};
use weir_store::{
    Cancelled, Page, PageRequest, Reservations, ReservedSlots, SentCounts, StoreResult, reservations_below,
    rows::{self, Row as _},
    sql,
};

use crate::{
    PostgresStore,
    edit::change,
    rows::{column, uuid},
};

const INSERT: &str = "INSERT INTO reservations (id, group_id, cost, created_at, starts_at, ends_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])";

const BY_ID: &str = sql!("SELECT {reservation_columns} FROM reservations WHERE id = $1");

const LOCK: &str = sql!("SELECT {reservation_columns} FROM reservations WHERE id = $1 FOR UPDATE");

const CANCEL: &str = "UPDATE reservations SET cancelled_at = $2 WHERE id = $1";

pub(crate) const LIST: &str = sql!(
    "SELECT {reservation_columns} FROM reservations
WHERE group_id = $1 AND ends_at >= $2 AND (ends_at, id) < ($3, $4) ORDER BY ends_at DESC, id DESC LIMIT $5"
);

pub(crate) const AFTER: &str = sql!("SELECT {reservation_columns} FROM reservations
WHERE group_id = $1 AND (ends_at, id) > ($2, $3) AND ends_at < $4 AND cancelled_at IS NULL ORDER BY ends_at, id LIMIT $5");

pub(crate) const HAS_RESERVED: &str = "
SELECT EXISTS (SELECT 1 FROM reservations WHERE group_id = $1 AND ends_at >= $2)
    OR EXISTS (SELECT 1 FROM limit_groups t CROSS JOIN restored m
        WHERE t.id = $1 AND m.single AND t.created_at <= m.sends_until AND m.sends_until >= $2)";

/// The second part is the mark of a restore, as of sends.
pub(crate) const COUNTS: &str = "
SELECT ends_at / $3 + 1, CASE WHEN $4 THEN sum(cost)::bigint ELSE count(*) END FROM reservations
    WHERE group_id = $1 AND ends_at > $2 AND cancelled_at IS NULL GROUP BY 1
UNION ALL SELECT -2, (SELECT m.sends_until FROM limit_groups t CROSS JOIN restored m
    WHERE t.id = $1 AND m.single AND t.created_at <= m.sends_until AND m.sends_until > $2)";

/// Ids are in the order of their time.
pub(crate) const PRUNE: &str = "DELETE FROM reservations WHERE id IN (
    SELECT id FROM reservations WHERE id < $1 ORDER BY id LIMIT $2)";

/// The most rows that one step deletes.
const STEP: i64 = 500;

#[async_trait]
impl Reservations for PostgresStore {
    async fn add_reservations(&self, new: &[Reservation]) -> StoreResult<()> {
        self.edit(|connection| change(insert(connection, new))).await
    }

    async fn reservation(&self, id: ReservationId) -> StoreResult<Option<Reservation>> {
        let query = sqlx::query(BY_ID).bind(uuid(id.as_bytes()));
        Ok(self.read(query, rows::reservation).await?.pop())
    }

    async fn cancel_reservation(
        &self,
        group: LimitGroupId,
        id: ReservationId,
        now: Timestamp,
    ) -> StoreResult<Cancelled> {
        self.edit(|connection| change(cancel(connection, group, id, now))).await
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
        let query = sqlx::query(LIST)
            .bind(uuid(group.as_bytes()))
            .bind(from.as_nanos())
            .bind(end.as_nanos())
            .bind(uuid(&id))
            .bind(i64::from(page.limit) + 1);
        Ok(Page::of(self.read(query, rows::reservation).await?, page, |one| *one.id.as_bytes()))
    }

    async fn reserved_after(
        &self,
        group: LimitGroupId,
        (end, id): (Timestamp, ReservationId),
        to: Timestamp,
        limit: u32,
    ) -> StoreResult<Vec<Reservation>> {
        let query = sqlx::query(AFTER)
            .bind(uuid(group.as_bytes()))
            .bind(end.as_nanos())
            .bind(uuid(id.as_bytes()))
            .bind(to.as_nanos())
            .bind(i64::from(limit));
        self.read(query, rows::reservation).await
    }

    async fn prune_reservations(&self, before: Timestamp) -> StoreResult<u64> {
        self.edit(|connection| change(prune(connection, ReservationId::new(before, 0)))).await
    }
}

#[async_trait]
impl ReservedSlots for PostgresStore {
    async fn has_reserved(&self, group: LimitGroupId, since: Timestamp) -> StoreResult<bool> {
        let query = sqlx::query(HAS_RESERVED).bind(uuid(group.as_bytes())).bind(since.as_nanos());
        Ok(self.read(query, |row| row.flag(0)).await?.contains(&true))
    }

    async fn reserved_counts(
        &self,
        group: LimitGroupId,
        since: Timestamp,
        limit: RateLimit,
    ) -> StoreResult<SentCounts> {
        let query = sqlx::query(COUNTS)
            .bind(uuid(group.as_bytes()))
            .bind(since.as_nanos())
            .bind(limit.bucket().as_nanos() as i64)
            .bind(limit.is_in_costs());
        Ok(rows::sent_counts(self.read(query, |row| Ok((row.int(0)?, row.optional_int(1)?))).await?))
    }
}

async fn insert(connection: &mut PgConnection, new: &[Reservation]) -> Result<(), sqlx::Error> {
    let query = sqlx::query(INSERT)
        .bind(column(new, |one| uuid(one.id.as_bytes())))
        .bind(column(new, |one| uuid(one.group.as_bytes())))
        .bind(column(new, |one| i64::from(one.cost)))
        .bind(column(new, |one| one.created_at.as_nanos()))
        .bind(column(new, |one| one.starts_at.as_nanos()))
        .bind(column(new, |one| one.ends_at.as_nanos()));
    query.execute(connection).await.map(drop)
}

async fn cancel(
    connection: &mut PgConnection,
    group: LimitGroupId,
    id: ReservationId,
    now: Timestamp,
) -> Result<Cancelled, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let found = sqlx::query(LOCK).bind(uuid(id.as_bytes())).fetch_optional(&mut *transaction).await?;
    let found = found.as_ref().map(rows::reservation).transpose()?;
    let cancelled = Cancelled::decide(found, group, now);
    if let Cancelled::Now(_) = cancelled {
        sqlx::query(CANCEL).bind(uuid(id.as_bytes())).bind(now.as_nanos()).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(cancelled)
}

async fn prune(connection: &mut PgConnection, first_kept: ReservationId) -> Result<u64, sqlx::Error> {
    let query = sqlx::query(PRUNE).bind(uuid(first_kept.as_bytes())).bind(STEP);
    Ok(query.execute(connection).await?.rows_affected())
}
