//! Reads for the API: events, deliveries and sends.
//!
//! Lists are in descending order of ids, one page at a time. Ids begin with their creation time, so a range of times is
//! a range of ids, and only the partitions of its days are read.

use std::{cmp::Reverse, time::Duration};

use async_trait::async_trait;
use sqlx::{
    Arguments as _, AssertSqlSafe, Connection as _, Encode, Execute as _, PgPool, Postgres, Row as _, Type,
    postgres::{PgArguments, PgRow},
    query::Query,
    raw_sql,
    types::Uuid,
};
use weir_core::{
    DeliveryId, DestinationId, EventId, Timestamp, access::TenantScope, delivery::Delivery, event::Event,
    limit_key::is_of_key,
};
use weir_store::{
    DeliveryDetail, EventFilter, History, ListOrder, Obstacle, PageRequest, PastRecord, PastRequest, SCANNED_AT_MOST,
    SendRecord, SendsRequest, StoreError, StoreResult, delivery_ids_of, event_columns, first_id, replica_answers,
    rows::{
        self, ATTEMPT_COLUMNS, DELIVERY_COLUMNS, LAST_ATTEMPT, PAST_ATTEMPT_COLUMNS, PAST_DELIVERY_COLUMNS, Row as _,
    },
};

use crate::{
    PostgresStore,
    errors::store_error,
    replica::{READ_TIMEOUT, Replica},
    rows::{Read, uuid},
    writer::{COMMIT_TIMEOUT, within},
};

#[async_trait]
impl History for PostgresStore {
    async fn event(&self, id: EventId) -> StoreResult<Option<Event>> {
        let sql = concat!("SELECT ", event_columns!("e.body"), " FROM events e WHERE e.id = $1");
        Ok(self
            .read(sqlx::query(sql).bind(uuid(id.as_bytes())), |row| rows::event(row, &self.shared.keyring))
            .await?
            .pop())
    }

    async fn event_deliveries(&self, id: EventId) -> StoreResult<Vec<Delivery>> {
        self.select(event_deliveries(id), rows::delivery).await
    }

    async fn tenants_with_keys(&self, most: u32) -> StoreResult<Vec<String>> {
        self.read(sqlx::query(TENANTS_WITH_KEYS).bind(i64::from(most)), |row| row.text(0)).await
    }

    async fn delivery(&self, id: DeliveryId) -> StoreResult<Option<DeliveryDetail>> {
        let sql = format!(
            "SELECT {DELIVERY_COLUMNS} FROM deliveries d JOIN events e ON e.id = d.event_id {LAST_ATTEMPT} WHERE d.id = $1"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(uuid(id.as_bytes()));
        let Some(delivery) = self.read(query, rows::delivery).await?.pop() else {
            return Ok(None);
        };
        let sql = format!("SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE delivery_id = $1 ORDER BY number");
        let attempts = self
            .read(sqlx::query(AssertSqlSafe(sql)).bind(uuid(id.as_bytes())), |row| {
                rows::attempt(row, &self.shared.keyring)
            })
            .await?;
        Ok(Some(DeliveryDetail { delivery, attempts }))
    }

    async fn sends(&self, request: SendsRequest) -> StoreResult<Vec<SendRecord>> {
        let position = request.position();
        let sql = if is_of_key(request.destination_id) { SENDS_OF_FLOW } else { SENDS };
        let query = sqlx::query(sql)
            .bind(uuid(request.destination_id.as_bytes()))
            .bind(position.sent_at.as_nanos())
            .bind(request.to.as_nanos())
            .bind(uuid(position.delivery_id.as_bytes()))
            .bind(i64::from(position.number))
            .bind(i64::from(request.limit));
        let rows = self.fetch(Some(IN_ORDER), query).await.map_err(|error| store_error(&error))?;
        read_all(&rows, rows::send)
    }

    async fn past(&self, request: PastRequest) -> StoreResult<Vec<PastRecord>> {
        if let Some(page) = self.past_of_neighbours(request).await? {
            return Ok(page);
        }
        let (delivery_id, number) = request.after;
        let query = sqlx::query(AssertSqlSafe(past()))
            .bind(uuid(request.destination_id.as_bytes()))
            .bind(uuid(delivery_id.as_bytes()))
            .bind(i64::from(number))
            .bind(i64::from(request.limit));
        let rows = self.fetch(Some(IN_ORDER), query).await.map_err(|error| store_error(&error))?;
        read_all(&rows, rows::past)
    }

    async fn destination_existed(&self, id: DestinationId) -> StoreResult<bool> {
        let query = sqlx::query("SELECT 1 FROM destinations WHERE id = $1").bind(uuid(id.as_bytes()));
        Ok(!self.read(query, |_| Ok(())).await?.is_empty())
    }

    async fn check(&self) -> StoreResult<()> {
        self.shared.write_failures.check()?;
        let standby = self.read(sqlx::query("SELECT pg_is_in_recovery()"), |row| row.flag(0)).await?;
        if standby == [false] {
            return Ok(());
        }
        let reason = "the PostgreSQL server is a standby".to_owned();
        Err(StoreError::CannotWrite { obstacle: Obstacle::ReadOnly, reason })
    }
}

/// From one tenant to the next in the index of the keys, however many keys each of them has.
pub(crate) const TENANTS_WITH_KEYS: &str = "
WITH RECURSIVE tenants (tenant) AS (
    SELECT (SELECT tenant FROM idempotency_keys ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT tenant FROM idempotency_keys k WHERE k.tenant > last.tenant ORDER BY k.tenant LIMIT 1)
    FROM tenants last WHERE last.tenant IS NOT NULL
)
SELECT tenant FROM tenants WHERE tenant IS NOT NULL LIMIT $1";

/// The index has the deliveries in this order; only the attempts of one delivery are sorted.
pub(crate) fn past() -> String {
    format!(
        "SELECT {PAST_DELIVERY_COLUMNS}, {PAST_ATTEMPT_COLUMNS} FROM deliveries d LEFT JOIN attempts a ON a.delivery_id = d.id
            LEFT JOIN replays p ON p.id = d.replay_id
         WHERE d.destination_id = $1 AND d.id <= $2 AND (d.id < $2 OR a.number::bigint > $3)
         ORDER BY d.id DESC, a.number LIMIT $4"
    )
}

/// Settings for a statement that reads one page of a long range. A generic plan knows neither the range nor the page:
/// it expects few rows, and would fetch and sort the remaining range for each page. With these settings only
/// incremental sorts remain.
pub(crate) const IN_ORDER: &str = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";

/// A transaction whose statements see the same rows, each as [`IN_ORDER`].
const ONE_SNAPSHOT_IN_ORDER: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
    SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";

/// Settings for a statement that joins all destinations with what was counted for each: a nested loop would compare each
/// with each.
pub(crate) const HASHED: &str = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_nestloop = off";

/// The sends of a destination, or of one of its flows. The order of each index is by `sent_at`, so only the few attempts
/// with the same `sent_at` are sorted.
macro_rules! sends {
    ($of:literal) => {
        concat!(
            r#"
SELECT a.sent_at, a.delivery_id, a.number, a.duration_ms, a.outcome, coalesce(p.created_at, d.deliver_at, d.created_at),
    coalesce(a.status_code = 429 OR (a.status_code IN (403, 503) AND (a.response_headers LIKE '%"retry-after"%'
        OR a.response_headers LIKE '%ratelimit-remaining","0"%')), false), a.status_code, a.failure, d.cost
FROM attempts a JOIN deliveries d ON d.id = a.delivery_id
    LEFT JOIN replays p ON p.id = d.replay_id AND p.created_at <= a.sent_at
WHERE a."#,
            $of,
            r#"_id = $1 AND a.sent_at >= $2 AND a.sent_at < $3
    AND (a.sent_at > $2 OR (a.delivery_id, a.number::bigint) > ($4, $5))
ORDER BY a.sent_at, a.delivery_id, a.number LIMIT $6"#
        )
    };
}

pub(crate) const SENDS: &str = sends!("destination");
pub(crate) const SENDS_OF_FLOW: &str = sends!("flow");

/// The deliveries of a page of the past, without their attempts.
pub(crate) fn past_deliveries() -> String {
    format!(
        "SELECT {PAST_DELIVERY_COLUMNS} FROM deliveries d LEFT JOIN replays p ON p.id = d.replay_id
         WHERE d.destination_id = $1 AND d.id <= $2 ORDER BY d.id DESC LIMIT $3"
    )
}

/// The attempts of all deliveries in a range of ids, whatever their destination.
pub(crate) fn past_attempts() -> String {
    format!(
        "SELECT a.delivery_id, {PAST_ATTEMPT_COLUMNS} FROM attempts a
         WHERE a.delivery_id >= $1 AND a.delivery_id <= $2 LIMIT $3"
    )
}

impl PostgresStore {
    /// A page of the past of a destination that has a large part of all deliveries: then the attempts between the first
    /// and the last delivery are mostly its own. To read them as one range takes a third of what a look-up for each
    /// delivery takes. `None`: others' attempts are more than a page.
    async fn past_of_neighbours(&self, request: PastRequest) -> StoreResult<Option<Vec<PastRecord>>> {
        let (after, number) = request.after;
        let rows = match self.current_replica().await {
            Some(replica) => match neighbours(&replica.pool, READ_TIMEOUT, request).await {
                Err(error) => {
                    replica.failed(error);
                    neighbours(&self.pool, COMMIT_TIMEOUT, request).await
                }
                rows => rows,
            },
            None => neighbours(&self.pool, COMMIT_TIMEOUT, request).await,
        };
        let Some((deliveries, attempts)) = rows.map_err(|error| store_error(&error))? else { return Ok(None) };
        let deliveries = read_all(&deliveries, rows::past_delivery)?;
        let mut attempts = read_all(&attempts, |row| Ok((row.delivery_id(0)?, rows::past_attempt(row, 1)?)))?;
        attempts.sort_unstable_by_key(|(id, attempt)| (Reverse(*id), attempt.number));
        let mut attempts = attempts.into_iter().peekable();
        let mut page = Vec::with_capacity(request.limit as usize);
        for delivery in deliveries {
            let id = delivery.delivery_id;
            while attempts.next_if(|(of, _)| *of > id).is_some() {}
            let mut own = std::iter::from_fn(|| attempts.next_if(|(of, _)| *of == id)).peekable();
            if own.peek().is_none() && id != after {
                page.push(delivery);
            }
            let unread = own.filter(|(_, attempt)| id != after || attempt.number > number);
            page.extend(unread.map(|(_, attempt)| PastRecord { attempt: Some(attempt), ..delivery }));
        }
        page.truncate(request.limit as usize);
        Ok(Some(page))
    }

    pub(crate) async fn read<T>(
        &self,
        query: Query<'_, Postgres, PgArguments>,
        row: impl Fn(&PgRow) -> Read<T>,
    ) -> StoreResult<Vec<T>> {
        read_all(&self.fetch(None, query).await.map_err(|error| store_error(&error))?, row)
    }

    /// The rows of a statement for which these settings apply.
    pub(crate) async fn read_with<T>(
        &self,
        settings: &'static str,
        query: Query<'_, Postgres, PgArguments>,
        row: impl Fn(&PgRow) -> Read<T>,
    ) -> StoreResult<Vec<T>> {
        read_all(&self.fetch(Some(settings), query).await.map_err(|error| store_error(&error))?, row)
    }

    /// The rows of a statement that was built from conditions.
    pub(crate) async fn select<T>(&self, select: Select, row: impl Fn(&PgRow) -> Read<T>) -> StoreResult<Vec<T>> {
        let (sql, arguments) = select.into_parts();
        self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), row).await
    }

    /// The rows of a statement, of the replica if it may answer and does.
    async fn fetch(
        &self,
        settings: Option<&'static str>,
        mut query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let Some(replica) = self.current_replica().await else {
            return fetch_from(&self.pool, COMMIT_TIMEOUT, settings, query).await;
        };
        let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?.unwrap_or_default();
        let sql = query.sql();
        let first = sqlx::query_with(sql.clone(), arguments.clone());
        match fetch_from(&replica.pool, READ_TIMEOUT, settings, first).await {
            Ok(rows) => Ok(rows),
            Err(error) => {
                replica.failed(error);
                fetch_from(&self.pool, COMMIT_TIMEOUT, settings, sqlx::query_with(sql, arguments)).await
            }
        }
    }

    /// The replica, if it may answer this request and does.
    async fn current_replica(&self) -> Option<&Replica> {
        let replica = self.replica.as_ref()?;
        // An earlier read of the same request may have failed there.
        (replica_answers(replica.is_current(&self.pool)).await && !replica.is_passed_over()).then_some(replica)
    }
}

/// The deliveries of a page of the past and all attempts between the first and the last of them, of one snapshot.
/// `None`: the attempts are more than two pages.
async fn neighbours(
    pool: &PgPool,
    limit: Duration,
    request: PastRequest,
) -> Result<Option<(Vec<PgRow>, Vec<PgRow>)>, sqlx::Error> {
    let page = i64::from(request.limit);
    let mut connection = pool.acquire().await?;
    let rows = within(limit, async {
        let mut snapshot = connection.begin_with(ONE_SNAPSHOT_IN_ORDER).await?;
        let deliveries = sqlx::query(AssertSqlSafe(past_deliveries()))
            .bind(uuid(request.destination_id.as_bytes()))
            .bind(uuid(request.after.0.as_bytes()))
            // The first one may have been read.
            .bind(page + 1);
        let deliveries = deliveries.fetch_all(&mut *snapshot).await?;
        let id = |row: Option<&PgRow>| row.map(|row| row.try_get_unchecked::<Uuid, _>(0)).transpose();
        let (Some(newest), Some(oldest)) = (id(deliveries.first())?, id(deliveries.last())?) else {
            snapshot.commit().await?;
            return Ok(Some((deliveries, Vec::new())));
        };
        let attempts = sqlx::query(AssertSqlSafe(past_attempts())).bind(oldest).bind(newest).bind(2 * page + 1);
        let attempts = attempts.fetch_all(&mut *snapshot).await?;
        snapshot.commit().await?;
        Ok((attempts.len() as i64 <= 2 * page).then_some((deliveries, attempts)))
    });
    let rows = rows.await;
    if rows.is_err() {
        // The connection may be lost, or in the middle of an answer.
        connection.close_on_drop();
    }
    rows
}

/// The rows of a statement. The settings, if there are any, apply only to its transaction.
async fn fetch_from(
    pool: &PgPool,
    limit: Duration,
    settings: Option<&'static str>,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let rows = within(limit, async {
        let Some(settings) = settings else { return query.fetch_all(&mut *connection).await };
        let mut transaction = connection.begin().await?;
        raw_sql(settings).execute(&mut *transaction).await?;
        let rows = query.fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    });
    let rows = rows.await;
    if rows.is_err() {
        // The connection may be lost, or in the middle of an answer.
        connection.close_on_drop();
    }
    rows
}

fn read_all<T>(rows: &[PgRow], read: impl Fn(&PgRow) -> Read<T>) -> StoreResult<Vec<T>> {
    rows.iter().map(read).collect::<Read<_>>().map_err(|error| store_error(&error.into()))
}

/// A statement built from conditions, with its values.
pub(crate) struct Select {
    pub(crate) sql: String,
    arguments: PgArguments,
    error: Option<sqlx::Error>,
}

impl Select {
    /// Begins a statement with `head`; the WHERE clause is added.
    pub(crate) fn new(head: String) -> Self {
        Self { sql: format!("{head} WHERE true"), arguments: PgArguments::default(), error: None }
    }

    /// Adds a condition that needs no value.
    pub(crate) fn condition(&mut self, condition: &str) {
        self.sql.push_str(" AND ");
        self.sql.push_str(condition);
    }

    /// Adds a condition and the value that follows it.
    pub(crate) fn compare<'t, T: Encode<'t, Postgres> + Type<Postgres>>(&mut self, condition: &str, value: T) {
        self.condition(condition);
        self.value(value);
    }

    pub(crate) fn value<'t, T: Encode<'t, Postgres> + Type<Postgres>>(&mut self, value: T) {
        if let Err(error) = self.arguments.add(value) {
            self.error.get_or_insert(sqlx::Error::Encode(error));
        }
        self.sql.push_str(&format!(" ${}", self.arguments.len()));
    }

    /// Adds the cursor and the times as a range of ids of `table`, and the times themselves, which are more precise
    /// than the ids.
    pub(crate) fn range(
        &mut self,
        table: &str,
        (order, cursor): (ListOrder, Option<[u8; 16]>),
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) {
        if let Some(cursor) = cursor {
            self.compare(&format!("{table}.id {}", order.after()), uuid(&cursor));
        }
        if let Some(from) = from {
            self.compare(&format!("{table}.id >="), uuid(&first_id(from.as_millis())));
            self.compare(&format!("{table}.created_at >="), from.as_nanos());
        }
        if let Some(to) = to {
            self.compare(&format!("{table}.id <"), uuid(&first_id(to.as_millis().saturating_add(1))));
            self.compare(&format!("{table}.created_at <"), to.as_nanos());
        }
    }

    /// Adds the conditions for the deliveries of an event.
    pub(crate) fn of_event(&mut self, id: EventId) {
        let (first, beyond) = delivery_ids_of(id);
        self.compare("d.id >=", uuid(&first));
        self.compare("d.id <", uuid(&beyond));
        self.compare("d.event_id =", uuid(id.as_bytes()));
    }

    /// Adds the condition on the tenant of the event `e`.
    pub(crate) fn of_tenants(&mut self, tenants: &TenantScope) {
        if let Some(tenants) = tenants.tenants() {
            let tenants: Vec<&String> = tenants.iter().collect();
            self.compare("e.tenant = ANY(", tenants);
            self.sql.push(')');
        }
    }

    /// Adds the order of ids and a limit of one row more than the page.
    pub(crate) fn page(&mut self, table: &str, order: ListOrder, page: PageRequest) {
        self.sql.push_str(&format!(" ORDER BY {table}.id {} LIMIT", order.sql()));
        self.value(i64::from(page.limit) + 1);
    }

    pub(crate) fn into_parts(self) -> (String, StoreResult<PgArguments>) {
        (self.sql, self.error.map_or(Ok(self.arguments), |error| Err(store_error(&error))))
    }
}

pub(crate) fn event_deliveries(id: EventId) -> Select {
    let mut select = Select::new("SELECT * FROM deliveries d".to_owned());
    select.of_event(id);
    let sql = format!(
        "SELECT {DELIVERY_COLUMNS} FROM ({}) d JOIN events e ON e.id = d.event_id {LAST_ATTEMPT} ORDER BY d.id DESC",
        select.sql
    );
    Select { sql, ..select }
}

/// The last id of the page's window. No row if fewer events than a window remain.
pub(crate) fn events_window_end(filter: &EventFilter, page: PageRequest) -> Select {
    let mut select = Select::new("SELECT e.id FROM events e".to_owned());
    select.operational(filter);
    select.range("e", (filter.order, page.before), filter.from, filter.to);
    select.sql.push_str(&format!(" ORDER BY e.id {} LIMIT 1 OFFSET", filter.order.sql()));
    select.value(i64::from(SCANNED_AT_MOST) - 1);
    select
}

pub(crate) fn events_page(filter: &EventFilter, page: PageRequest, window_end: Option<[u8; 16]>) -> Select {
    // An empty body costs nothing to read.
    let columns = event_columns!("''::bytea");
    let mut select = match filter.by_key() {
        None => Select::new(format!("SELECT {columns} FROM events e")),
        // One event of each tenant at most.
        Some((tenants, key)) => {
            let joined = "FROM idempotency_keys k JOIN events e ON e.id = k.event_id";
            let mut select = Select::new(format!("SELECT {columns} {joined}"));
            select.compare("k.tenant = ANY(", tenants.iter().collect::<Vec<_>>());
            select.sql.push(')');
            select.compare("k.idempotency_key =", key);
            select
        }
    };
    if let Some(pattern) = &filter.event_type {
        select.of_type(pattern);
    }
    if filter.by_key().is_none() {
        select.operational(filter);
    }
    select.of_tenants(&filter.tenants);
    select.range("e", (filter.order, page.before), filter.from, filter.to);
    if let Some(end) = window_end {
        select.compare(&format!("e.id {}", filter.order.until()), uuid(&end));
    }
    select.page("e", filter.order, page);
    select
}
