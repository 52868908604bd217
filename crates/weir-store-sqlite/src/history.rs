//! Reads for the API, on read-only connections.
//!
//! Lists are sorted by id, newest first, and split into pages. Ids begin with their creation time, so a range of times
//! is a range of ids, and every list reads one index backwards from its cursor. The index is chosen here and not by the
//! planner, which would guess without statistics and choose wrongly with stale ones.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    DeliveryId, DestinationId, EventId, Timestamp,
    delivery::{AttemptOutcome, Delivery},
    event::Event,
};
use weir_store::{
    DeliveryDetail, DeliveryFilter, EventFilter, History, Page, PageRequest, SendPlace, SendRecord, SendsRequest,
    StoreResult, stored::outcome_code,
};

use crate::{
    SqliteStore,
    edits::Edit,
    error::{Error, Result},
    rows::{
        self, ATTEMPT_COLUMNS, BODILESS_EVENT_COLUMNS, DELIVERY_COLUMNS, EVENT_COLUMNS, LAST_ATTEMPT, delivery_id,
        small, time,
    },
    sql::{Values, fetch},
};

#[async_trait]
impl History for SqliteStore {
    async fn event(&self, id: EventId) -> StoreResult<Option<Event>> {
        let sql = format!("SELECT {EVENT_COLUMNS} FROM events e WHERE e.id = ?");
        Ok(self.read(sql, one(id.as_bytes()), rows::event).await?.pop())
    }

    async fn event_deliveries(&self, id: EventId) -> StoreResult<Vec<Delivery>> {
        let sql = format!(
            "SELECT {DELIVERY_COLUMNS} FROM deliveries d NOT INDEXED CROSS JOIN events e ON e.id = d.event_id
             {LAST_ATTEMPT} WHERE d.id >= ? AND d.id < ? AND d.event_id = ? ORDER BY d.id DESC"
        );
        let (first, beyond) = delivery_ids_of(&id);
        let mut values = Values::default();
        values.owned_blob(first).owned_blob(beyond).blob(id.as_bytes());
        self.read(sql, values, rows::delivery).await
    }

    async fn list_events(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Page<Event>> {
        let (sql, values) = events_page(filter, page);
        let rows = self.read(sql, values, rows::event).await?;
        Ok(into_page(rows, page, |event| *event.id.as_bytes()))
    }

    async fn delivery(&self, id: DeliveryId) -> StoreResult<Option<DeliveryDetail>> {
        let Some(delivery) = self.delivery_row(id).await? else {
            return Ok(None);
        };
        let sql = format!("SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE delivery_id = ? ORDER BY number");
        let attempts = self.read(sql, one(id.as_bytes()), rows::attempt).await?;
        Ok(Some(DeliveryDetail { delivery, attempts }))
    }

    async fn list_deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Page<Delivery>> {
        self.deliveries_page(filter, page).await
    }

    async fn sends(&self, request: SendsRequest) -> StoreResult<Vec<SendRecord>> {
        let place = request.place();
        let mut values = one(request.destination_id.as_bytes());
        values.int(place.sent_at.as_nanos()).int(request.to.as_nanos()).int(place.sent_at.as_nanos());
        values.blob(place.delivery_id.as_bytes()).int(place.number.into()).int(request.limit.into());
        self.read(SENDS.to_owned(), values, send).await
    }

    async fn destination_existed(&self, id: DestinationId) -> StoreResult<bool> {
        let sql = "SELECT 1 FROM destinations WHERE id = ?".to_owned();
        Ok(!self.read(sql, one(id.as_bytes()), |_| Ok(())).await?.is_empty())
    }

    async fn check(&self) -> StoreResult<()> {
        self.ask((), |edit| Edit::operation(Edit::Check(edit))).await?;
        self.read("SELECT 1".to_owned(), Values::default(), |_| Ok(())).await.map(drop)
    }
}

/// The index ends with the primary key, so it is already in this order.
pub(crate) const SENDS: &str = "
SELECT a.sent_at, a.delivery_id, a.number, a.duration_ms, a.outcome, coalesce(p.created_at, d.deliver_at, d.created_at)
FROM attempts a INDEXED BY attempts_of_destination CROSS JOIN deliveries d ON d.id = a.delivery_id
    LEFT JOIN replays p ON p.id = d.replay_id AND p.created_at <= a.sent_at
WHERE a.destination_id = ? AND a.sent_at >= ? AND a.sent_at < ?
    AND (a.sent_at > ? OR (a.delivery_id, a.number) > (?, ?))
ORDER BY a.sent_at, a.delivery_id, a.number LIMIT +?";

fn send(row: &SqliteRow) -> Result<SendRecord> {
    let place = SendPlace { sent_at: time(row, 0)?, delivery_id: delivery_id(row, 1)?, number: small(row, 2)? };
    let answered_at = place.sent_at + std::time::Duration::from_millis(small(row, 3)?.into());
    let outcome = rows::int(row, 4)?;
    let is = |wanted| outcome == i64::from(outcome_code(wanted));
    let delivered = is(AttemptOutcome::Delivered);
    Ok(SendRecord {
        place,
        delivered: delivered.then(|| Ok::<_, Error>((time(row, 5)?, answered_at))).transpose()?,
        is_unknown: is(AttemptOutcome::Unknown),
    })
}

impl SqliteStore {
    async fn delivery_row(&self, id: DeliveryId) -> StoreResult<Option<Delivery>> {
        let sql = format!(
            "SELECT {DELIVERY_COLUMNS} FROM deliveries d CROSS JOIN events e ON e.id = d.event_id {LAST_ATTEMPT}
             WHERE d.id = ?"
        );
        Ok(self.read(sql, one(id.as_bytes()), rows::delivery).await?.pop())
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

fn one(id: &[u8; 16]) -> Values<'_> {
    let mut values = Values::default();
    values.blob(id);
    values
}

/// Makes a page from its rows and one more, which exists if there is another page.
pub(crate) fn into_page<T>(mut rows: Vec<T>, page: PageRequest, id: impl Fn(&T) -> [u8; 16]) -> Page<T> {
    let limit = page.limit as usize;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(id);
    Page { rows, next }
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

    /// Adds the cursor and the times as a range of ids of `table`, and the exact times, because ids have only
    /// milliseconds.
    pub(crate) fn range(&mut self, table: &str, page: PageRequest, from: Option<Timestamp>, to: Option<Timestamp>) {
        if let Some(before) = page.before {
            self.add(&format!("{table}.id < ?")).owned_blob(before.to_vec());
        }
        if let Some(from) = from {
            self.add(&format!("{table}.id >= ?")).owned_blob(first_id(from.as_millis()));
            self.add(&format!("{table}.created_at >= ?")).int(from.as_nanos());
        }
        if let Some(to) = to {
            self.add(&format!("{table}.id < ?")).owned_blob(first_id(to.as_millis().saturating_add(1)));
            self.add(&format!("{table}.created_at < ?")).int(to.as_nanos());
        }
    }
}

/// A bound below every id created in this millisecond and above every earlier id.
pub(crate) fn first_id(millis: i64) -> Vec<u8> {
    let millis = millis.clamp(0, 0xffff_ffff_ffff).unsigned_abs();
    let mut id = vec![0; 16];
    id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    id
}

/// The range of ids that contains the deliveries of an event: those that begin with the same millisecond.
pub(crate) fn delivery_ids_of(id: &EventId) -> (Vec<u8>, Vec<u8>) {
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&id.as_bytes()[..6]);
    let millis = i64::from_be_bytes(millis);
    (first_id(millis), first_id(millis + 1))
}

pub(crate) fn events_page(filter: &EventFilter, page: PageRequest) -> (String, Values<'_>) {
    let mut conditions = WhereClause::new();
    if let Some(event_type) = &filter.event_type {
        conditions.add("e.event_type = ?").text(event_type);
    }
    if let Some(tenant) = &filter.tenant {
        conditions.add("e.tenant = ?").text(tenant);
    }
    conditions.range("e", page, filter.from, filter.to);
    conditions.values.int(i64::from(page.limit) + 1);
    let columns = if filter.with_bodies { EVENT_COLUMNS } else { BODILESS_EVENT_COLUMNS };
    let sql = format!(
        "SELECT {columns} FROM events e INDEXED BY events_id WHERE {} ORDER BY e.id DESC LIMIT +?",
        conditions.sql
    );
    (sql, conditions.values)
}
