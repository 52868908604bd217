//! Reads for people, on connections that cannot write.
//!
//! Lists are newest first by id, a page at a time. Ids begin with the time they were made, so a range of times is a range
//! of ids, and every list walks one index backwards from its cursor. Which index, is decided here and not by the planner:
//! without statistics it would guess, with stale ones it would guess wrong.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, EventId, Timestamp,
    delivery::{AttemptOutcome, Delivery},
    event::Event,
};
use weir_store::{DeliveryDetail, DeliveryFilter, EventFilter, History, Page, PageRequest, SendRecord, StoreResult};

use crate::{
    SqliteStore,
    edits::Edit,
    error::{Error, Result},
    rows::{self, ATTEMPT_COLUMNS, DELIVERY_COLUMNS, EVENT_COLUMNS, outcome_code, small, state_code, time},
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
             WHERE d.id >= ? AND d.id < ? AND d.event_id = ? ORDER BY d.id DESC"
        );
        let (first, beyond) = delivery_ids_of(&id);
        let mut values = Values::default();
        values.owned_blob(first).owned_blob(beyond).blob(id.as_bytes());
        self.read(sql, values, |row| self.delivery_as_it_is(row)).await
    }

    async fn list_events(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Page<Event>> {
        let (sql, values) = events_page(filter, page);
        let rows = self.read(sql, values, rows::event).await?;
        Ok(cut(rows, page, |event| *event.id.as_bytes()))
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
        let rows = match filter.state {
            Some(DeliveryState::Delivering) => self.claimed_deliveries(filter, page).await?,
            Some(DeliveryState::Pending | DeliveryState::Retrying) => {
                // What is claimed is among the rows, and left out of the page after they are read.
                let claimed = self.claims.count(filter.destination_id) as u32;
                let longer = PageRequest { limit: page.limit.saturating_add(claimed), ..page };
                let mut rows = self.deliveries(filter, longer).await?;
                rows.retain(|delivery| Some(delivery.state) == filter.state);
                rows
            }
            _ => self.deliveries(filter, page).await?,
        };
        Ok(cut(rows, page, |delivery| *delivery.id.as_bytes()))
    }

    async fn sends(&self, id: DestinationId, from: Timestamp, to: Timestamp) -> StoreResult<Vec<SendRecord>> {
        let mut values = one(id.as_bytes());
        values.int(from.as_nanos()).int(to.as_nanos());
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

pub(crate) const SENDS: &str = "
SELECT a.sent_at, a.duration_ms, a.outcome, coalesce(d.deliver_at, d.created_at)
FROM attempts a INDEXED BY attempts_of_destination CROSS JOIN deliveries d ON d.id = a.delivery_id
WHERE a.destination_id = ? AND a.sent_at >= ? AND a.sent_at < ? AND a.outcome <> 3
ORDER BY a.sent_at";

fn send(row: &SqliteRow) -> Result<SendRecord> {
    let sent_at = time(row, 0)?;
    let delivered = rows::int(row, 2)? == outcome_code(AttemptOutcome::Delivered);
    let answered_at = sent_at + std::time::Duration::from_millis(small(row, 1)?.into());
    Ok(SendRecord { sent_at, delivered: delivered.then(|| Ok::<_, Error>((time(row, 3)?, answered_at))).transpose()? })
}

impl SqliteStore {
    async fn deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Vec<Delivery>> {
        let (sql, values) = deliveries_page(filter, page);
        self.read(sql, values, |row| self.delivery_as_it_is(row)).await
    }

    fn delivery_as_it_is(&self, row: &SqliteRow) -> Result<Delivery> {
        Ok(self.claims.overlay(rows::delivery(row)?))
    }

    /// The page of what is under way: known by id in memory, and as little as sends are in flight.
    async fn claimed_deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Vec<Delivery>> {
        let mut ids = self.claims.ids(filter.destination_id);
        ids.retain(|id| page.before.is_none_or(|before| *id.as_bytes() < before));
        ids.sort_unstable_by(|one, other| other.cmp(one));
        let fits = |delivery: &Delivery| {
            delivery.state == DeliveryState::Delivering
                && filter.event_id.is_none_or(|id| delivery.event_id == id)
                && filter.from.is_none_or(|from| from <= delivery.created_at)
                && filter.to.is_none_or(|to| delivery.created_at < to)
        };
        let mut rows = Vec::new();
        for id in ids {
            rows.extend(self.delivery_row(id).await?.filter(fits));
            if rows.len() > page.limit as usize {
                break;
            }
        }
        Ok(rows)
    }

    async fn delivery_row(&self, id: DeliveryId) -> StoreResult<Option<Delivery>> {
        let sql = format!(
            "SELECT {DELIVERY_COLUMNS} FROM deliveries d CROSS JOIN events e ON e.id = d.event_id WHERE d.id = ?"
        );
        Ok(self.read(sql, one(id.as_bytes()), |row| self.delivery_as_it_is(row)).await?.pop())
    }

    async fn read<T>(
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

/// One row more than the page was asked for, which tells that there is another page.
fn cut<T>(mut rows: Vec<T>, page: PageRequest, id: impl Fn(&T) -> [u8; 16]) -> Page<T> {
    let limit = page.limit as usize;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(id);
    Page { rows, next }
}

/// Terms of a WHERE with their values.
struct Conditions<'f> {
    sql: String,
    values: Values<'f>,
}

impl<'f> Conditions<'f> {
    fn new() -> Self {
        Self { sql: "1".to_owned(), values: Values::default() }
    }

    fn add(&mut self, term: &str) -> &mut Values<'f> {
        self.sql.push_str(" AND ");
        self.sql.push_str(term);
        &mut self.values
    }

    /// The cursor and the times, as a range of ids of `table`; then the times themselves, which are finer.
    fn range(&mut self, table: &str, page: PageRequest, from: Option<Timestamp>, to: Option<Timestamp>) {
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

/// A bound below every id made in this millisecond and above every earlier one.
fn first_id(millis: i64) -> Vec<u8> {
    let millis = millis.clamp(0, 0xffff_ffff_ffff).unsigned_abs();
    let mut id = vec![0; 16];
    id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    id
}

/// Between which ids the deliveries of an event lie: they begin with the same millisecond.
fn delivery_ids_of(id: &EventId) -> (Vec<u8>, Vec<u8>) {
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&id.as_bytes()[..6]);
    let millis = i64::from_be_bytes(millis);
    (first_id(millis), first_id(millis + 1))
}

pub(crate) fn events_page(filter: &EventFilter, page: PageRequest) -> (String, Values<'_>) {
    let mut conditions = Conditions::new();
    if let Some(event_type) = &filter.event_type {
        conditions.add("e.event_type = ?").text(event_type);
    }
    if let Some(tenant) = &filter.tenant {
        conditions.add("e.tenant = ?").text(tenant);
    }
    conditions.range("e", page, filter.from, filter.to);
    conditions.values.int(i64::from(page.limit) + 1);
    let sql = format!(
        "SELECT {EVENT_COLUMNS} FROM events e INDEXED BY events_id WHERE {} ORDER BY e.id DESC LIMIT +?",
        conditions.sql
    );
    (sql, conditions.values)
}

pub(crate) fn deliveries_page(filter: &DeliveryFilter, page: PageRequest) -> (String, Values<'_>) {
    use DeliveryState::{Cancelled, Dead, Expired, Failed, Pending, Retrying, Superseded};
    let mut conditions = Conditions::new();
    // The waiting states and `delivering` have no index in the order of ids, which every ingest and claim would have to
    // keep: their part of the due index or of the claims is read and sorted, however long the history is.
    let (index, predicate) = match (filter.event_id, filter.destination_id, filter.state) {
        (Some(_), _, _) => ("NOT INDEXED", None),
        (None, _, Some(Pending | Retrying)) => ("INDEXED BY deliveries_due", Some("d.state IN (0, 2)")),
        (None, Some(_), Some(Failed | Dead | Cancelled | Superseded | Expired)) => {
            ("INDEXED BY deliveries_ended_of_destination", Some("d.state IN (4, 5, 6, 7, 8)"))
        }
        (None, None, Some(Failed | Dead | Cancelled | Superseded | Expired)) => {
            ("INDEXED BY deliveries_ended", Some("d.state IN (4, 5, 6, 7, 8)"))
        }
        (None, Some(_), _) => ("INDEXED BY deliveries_of_destination", None),
        (None, None, _) => ("NOT INDEXED", None),
    };
    if let Some(predicate) = predicate {
        conditions.add(predicate);
    }
    if let Some(id) = &filter.event_id {
        let (first, beyond) = delivery_ids_of(id);
        conditions.add("d.id >= ?").owned_blob(first);
        conditions.add("d.id < ?").owned_blob(beyond);
        conditions.add("d.event_id = ?").blob(id.as_bytes());
    }
    if let Some(id) = &filter.destination_id {
        conditions.add("d.destination_id = ?").blob(id.as_bytes());
    }
    if let Some(state) = filter.state {
        // Written out, not bound: a partial index is only used for a condition that is known when the plan is made.
        conditions.add(&format!("d.state = {}", state_code(state)));
    }
    conditions.range("d", page, filter.from, filter.to);
    conditions.values.int(i64::from(page.limit) + 1);
    // The page is cut before the events are looked up.
    let sql = format!(
        "SELECT {DELIVERY_COLUMNS} FROM (
            SELECT * FROM deliveries d {index} WHERE {} ORDER BY d.id DESC LIMIT +?
         ) d CROSS JOIN events e ON e.id = d.event_id ORDER BY d.id DESC",
        conditions.sql
    );
    (sql, conditions.values)
}
