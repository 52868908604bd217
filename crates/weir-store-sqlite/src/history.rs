//! Reads for the API, on read-only connections.
//!
//! Lists are sorted by id, newest first, and split into pages. Ids begin with their creation time, so a range of times
//! is a range of ids, and every list reads one index backwards from its cursor. The index is chosen here and not by the
//! planner, which would guess without statistics and choose wrongly with stale ones.

use std::panic::resume_unwind;

use async_trait::async_trait;
use rusqlite::Connection;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    DeliveryId, DestinationId, EventId, Timestamp, access::TenantScope, delivery::Delivery, event::Event,
    limit_key::is_of_key,
};
use weir_store::{
    DeliveryDetail, EventFilter, History, ListOrder, PageRequest, PastRecord, PastRequest, SCANNED_AT_MOST, SendRecord,
    SendsRequest, StoreResult, delivery_ids_of, event_columns, first_id,
    rows::{
        self, ATTEMPT_COLUMNS, DELIVERY_COLUMNS, LAST_ATTEMPT, PAST_ATTEMPT_COLUMNS, PAST_DELIVERY_COLUMNS, Row as _,
    },
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::{Error, Result},
    open::reading_connection,
    sql::{Values, fetch, query, values},
};

#[async_trait]
impl History for SqliteStore {
    async fn event(&self, id: EventId) -> StoreResult<Option<Event>> {
        let sql = concat!("SELECT ", event_columns!("e.body"), " FROM events e WHERE e.id = ?").to_owned();
        Ok(self.read(sql, values![id.as_bytes()], |row| rows::event(row, &self.keyring)).await?.pop())
    }

    async fn event_deliveries(&self, id: EventId) -> StoreResult<Vec<Delivery>> {
        let sql = format!(
            "SELECT {DELIVERY_COLUMNS} FROM deliveries d NOT INDEXED CROSS JOIN events e ON e.id = d.event_id
             {LAST_ATTEMPT} WHERE d.id >= ? AND d.id < ? AND d.event_id = ? ORDER BY d.id DESC"
        );
        let (first, beyond) = delivery_ids_of(id);
        self.read(sql, values![first, beyond, id.as_bytes()], rows::delivery).await
    }

    async fn tenants_with_keys(&self, most: u32) -> StoreResult<Vec<String>> {
        self.read(TENANTS_WITH_KEYS.to_owned(), values![most], |row| row.text(0)).await
    }

    async fn delivery(&self, id: DeliveryId) -> StoreResult<Option<DeliveryDetail>> {
        let Some(delivery) = self.delivery_row(id).await? else {
            return Ok(None);
        };
        let sql = format!("SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE delivery_id = ? ORDER BY number");
        let attempts = self.read(sql, values![id.as_bytes()], |row| rows::attempt(row, &self.keyring)).await?;
        Ok(Some(DeliveryDetail { delivery, attempts }))
    }

    async fn sends(&self, request: SendsRequest) -> StoreResult<Vec<SendRecord>> {
        let position = request.position();
        let mut values = values![request.destination_id.as_bytes()];
        values.bind(position.sent_at).bind(request.to).bind(position.sent_at);
        values.bind(position.delivery_id.as_bytes()).bind(position.number).bind(request.limit);
        let sql = if is_of_key(request.destination_id) { SENDS_OF_FLOW } else { SENDS };
        self.read(sql.to_owned(), values, rows::send).await
    }

    async fn past(&self, request: PastRequest) -> StoreResult<Vec<PastRecord>> {
        if self.readers.is_closed() {
            return Err(Error::from(sqlx::Error::PoolClosed).into());
        }
        // A million records are read in turn. sqlx copies each value of a row and hands it to another thread, which takes
        // longer than to read it.
        let (kept, path) = (self.past_reader.lock().take(), self.file());
        let read = move || -> Result<_> {
            let connection = kept.map_or_else(|| reading_connection(&path), Ok)?;
            let records = past_page(&connection, &request)?;
            Ok((connection, records))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (connection, records) = read.unwrap_or_else(|ended| resume_unwind(ended.into_panic()))?;
        // Kept for the next page. A caller that stops early leaves it to the next one, or to the end of the store.
        let is_last = records.len() < request.limit as usize;
        *self.past_reader.lock() = (!is_last && !self.readers.is_closed()).then_some(connection);
        Ok(records)
    }

    async fn destination_existed(&self, id: DestinationId) -> StoreResult<bool> {
        let sql = "SELECT 1 FROM destinations WHERE id = ?".to_owned();
        Ok(!self.read(sql, values![id.as_bytes()], |_| Ok(())).await?.is_empty())
    }

    async fn check(&self) -> StoreResult<()> {
        self.write_failures.check()?;
        // Proves that the writer runs and can lock the database.
        self.edit(Durable::No, |_| Ok(())).await?;
        self.read("SELECT 1".to_owned(), Values::default(), |_| Ok(())).await.map(drop)
    }
}

/// From one tenant to the next in the index of the keys, however many keys each of them has.
pub(crate) const TENANTS_WITH_KEYS: &str = "
WITH RECURSIVE tenants (tenant) AS (
    SELECT (SELECT tenant FROM events INDEXED BY events_idempotency
        WHERE idempotency_key IS NOT NULL ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT tenant FROM events INDEXED BY events_idempotency
        WHERE idempotency_key IS NOT NULL AND tenant > last.tenant ORDER BY tenant LIMIT 1)
    FROM tenants last WHERE last.tenant IS NOT NULL
)
SELECT tenant FROM tenants WHERE tenant IS NOT NULL LIMIT ?";

/// The sends of a destination, or of one of its flows. Each index ends with the primary key, so it is already in this order.
macro_rules! sends {
    ($of:literal) => {
        concat!(
            r#"
SELECT a.sent_at, a.delivery_id, a.number, a.duration_ms, a.outcome, coalesce(p.created_at, d.deliver_at, d.created_at),
    coalesce(a.status_code = 429 OR (a.status_code IN (403, 503) AND (a.response_headers LIKE '%"retry-after"%'
        OR a.response_headers LIKE '%ratelimit-remaining","0"%')), false), a.status_code, a.failure, d.cost
FROM attempts a INDEXED BY attempts_of_"#,
            $of,
            r#" CROSS JOIN deliveries d ON d.id = a.delivery_id
    LEFT JOIN replays p ON p.id = d.replay_id AND p.created_at <= a.sent_at
WHERE a."#,
            $of,
            r#"_id = ? AND a.sent_at >= ? AND a.sent_at < ?
    AND (a.sent_at > ? OR (a.delivery_id, a.number) > (?, ?))
ORDER BY a.sent_at, a.delivery_id, a.number LIMIT +?"#
        )
    };
}

pub(crate) const SENDS: &str = sends!("destination");
pub(crate) const SENDS_OF_FLOW: &str = sends!("flow");

/// The index has the deliveries in this order, and the primary key the attempts of each. Asked for both, SQLite would
/// sort the attempts of each delivery, because it does not know that a delivery is in the index once: half a second for a
/// million. So the order of the attempts is not asked for, and a test of the plan says that it is the key's.
pub(crate) fn past() -> String {
    format!(
        "SELECT {PAST_DELIVERY_COLUMNS}, {PAST_ATTEMPT_COLUMNS} FROM deliveries d INDEXED BY deliveries_of_destination
            LEFT JOIN attempts a ON a.delivery_id = d.id LEFT JOIN replays p ON p.id = d.replay_id
         WHERE d.destination_id = ? AND d.id <= ? AND (d.id < ? OR a.number > ?)
         ORDER BY d.id DESC LIMIT +?"
    )
}

/// One page of the past, on a connection for it alone.
fn past_page(connection: &Connection, request: &PastRequest) -> Result<Vec<PastRecord>> {
    let (delivery_id, number) = request.after;
    let id = delivery_id.as_bytes();
    let values = values![request.destination_id.as_bytes(), id, id, number, request.limit];
    query(connection, &past(), &values, |row| rows::past(row))
}

impl SqliteStore {
    async fn delivery_row(&self, id: DeliveryId) -> StoreResult<Option<Delivery>> {
        let sql = format!(
            "SELECT {DELIVERY_COLUMNS} FROM deliveries d CROSS JOIN events e ON e.id = d.event_id {LAST_ATTEMPT}
             WHERE d.id = ?"
        );
        Ok(self.read(sql, values![id.as_bytes()], rows::delivery).await?.pop())
    }

    pub(crate) async fn read<T>(
        &self,
        sql: String,
        values: Values<'_>,
        row: impl Fn(&SqliteRow) -> Result<T>,
    ) -> StoreResult<Vec<T>> {
        Ok(fetch(&self.readers, sql, values, row).await?)
    }
}

/// The terms of a WHERE clause, with their values.
pub(crate) struct WhereClause<'f> {
    pub(crate) sql: String,
    pub(crate) values: Values<'f>,
}

impl<'f> WhereClause<'f> {
    pub(crate) fn new() -> Self {
        Self { sql: "1".to_owned(), values: Values::default() }
    }

    pub(crate) fn add(&mut self, term: &str) -> &mut Values<'f> {
        self.sql.push_str(" AND ");
        self.sql.push_str(term);
        &mut self.values
    }

    /// The index that has the events of a list in the order of their ids. Adds its condition.
    fn index_of_ids(&mut self, filter: &EventFilter) -> &'static str {
        if !filter.is_operational() {
            return "events_id";
        }
        self.add("instr(e.event_type, 'weir.') = 1");
        "events_operational"
    }

    /// Adds the term on the tenant of the event `e`.
    pub(crate) fn of_tenants(&mut self, tenants: &'f TenantScope) {
        if let Some(tenants) = tenants.tenants() {
            let parameters = vec!["?"; tenants.len()].join(", ");
            let values = self.add(&format!("e.tenant IN ({parameters})"));
            for tenant in tenants {
                values.bind(tenant);
            }
        }
    }

    /// Adds the cursor and the times as a range of ids of `table`, and the exact times, because ids have only
    /// milliseconds.
    pub(crate) fn range(
        &mut self,
        table: &str,
        (order, cursor): (ListOrder, Option<[u8; 16]>),
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) {
        if let Some(cursor) = cursor {
            self.add(&format!("{table}.id {} ?", order.after())).bind(cursor);
        }
        if let Some(from) = from {
            self.add(&format!("{table}.id >= ?")).bind(first_id(from.as_millis()));
            self.add(&format!("{table}.created_at >= ?")).bind(from);
        }
        if let Some(to) = to {
            self.add(&format!("{table}.id < ?")).bind(first_id(to.as_millis().saturating_add(1)));
            self.add(&format!("{table}.created_at < ?")).bind(to);
        }
    }
}

/// The last id of the page's window. No row if fewer events than a window remain.
pub(crate) fn events_window_end(filter: &EventFilter, page: PageRequest) -> (String, Values<'_>) {
    let mut conditions = WhereClause::new();
    let index = conditions.index_of_ids(filter);
    conditions.range("e", (filter.order, page.before), filter.from, filter.to);
    conditions.values.bind(i64::from(SCANNED_AT_MOST) - 1);
    let sql = format!(
        "SELECT e.id FROM events e INDEXED BY {index} WHERE {} ORDER BY e.id {} LIMIT 1 OFFSET +?",
        conditions.sql,
        filter.order.sql()
    );
    (sql, conditions.values)
}

pub(crate) fn events_page(
    filter: &EventFilter,
    page: PageRequest,
    window_end: Option<[u8; 16]>,
) -> (String, Values<'_>) {
    let mut conditions = WhereClause::new();
    let index = match filter.by_key() {
        // One event of each tenant at most.
        Some((_, key)) => {
            conditions.add("e.idempotency_key IS NOT NULL AND e.idempotency_key = ?").bind(key);
            "events_idempotency"
        }
        None => conditions.index_of_ids(filter),
    };
    if let Some(pattern) = &filter.event_type {
        conditions.of_type(pattern);
    }
    conditions.of_tenants(&filter.tenants);
    conditions.range("e", (filter.order, page.before), filter.from, filter.to);
    if let Some(end) = window_end {
        conditions.add(&format!("e.id {} ?", filter.order.until())).bind(end);
    }
    conditions.values.bind(i64::from(page.limit) + 1);
    // An empty body costs nothing to read.
    let columns = event_columns!("x''");
    let sql = format!(
        "SELECT {columns} FROM events e INDEXED BY {index} WHERE {} ORDER BY e.id {} LIMIT +?",
        conditions.sql,
        filter.order.sql()
    );
    (sql, conditions.values)
}
