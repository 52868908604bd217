//! Lists of deliveries: which index a page walks, and how far.
//!
//! What an index has in the order of ids is walked until the page is full. What none has (a tenant, a type, an error, a
//! state that every delivery passes through) is sieved out of a window of [`SCANNED_AT_MOST`] rows, so that a page costs no
//! more on a long history; it ends where the window does, and the next one goes on from there. What is under way, and what
//! waits while that is little, is read and sorted instead, because it may be anywhere.

use weir_core::{DeliveryState, DestinationId, ErrorKind, delivery::Delivery, pattern::EventPattern};
use weir_store::{DeliveryFilter, ErrorFilter, Page, PageRequest, SCANNED_AT_MOST, StoreResult};

use crate::{
    SqliteStore,
    history::{Conditions, cut, delivery_ids_of},
    rows::{self, DELIVERY_COLUMNS, LAST_ATTEMPT, failure_code, state_code},
    sql::Values,
};

/// How a page finds its deliveries. Which index, is decided here and not by the planner: without statistics it would guess,
/// with stale ones it would guess wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk {
    index: &'static str,
    /// Of a partial index; must be in the statement word for word.
    predicate: Option<&'static str>,
    /// Whether the page may have to pass over many rows, and so ends with its window.
    windowed: bool,
}

impl Walk {
    /// By the ids, as far as it takes.
    const BY_ID: Self = Self { index: "NOT INDEXED", predicate: None, windowed: false };

    /// `few_wait`: no more wait than may be read and sorted for one page.
    pub(crate) fn of(filter: &DeliveryFilter, few_wait: bool) -> Self {
        use DeliveryState::{Cancelled, Dead, Delivering, Expired, Failed, Superseded};
        let ended = matches!(filter.state, Some(Failed | Dead | Cancelled | Superseded | Expired));
        let waiting = filter.state.is_some_and(DeliveryState::is_waiting);
        let (index, predicate) = match (filter.event_id, filter.destination_id) {
            (Some(_), _) => return Self::BY_ID,
            (None, _) if filter.state == Some(Delivering) => {
                return Self {
                    index: "INDEXED BY deliveries_claimed",
                    predicate: Some("d.state = 1"),
                    windowed: false,
                };
            }
            (None, _) if waiting && few_wait => {
                return Self {
                    index: "INDEXED BY deliveries_due",
                    predicate: Some("d.state IN (0, 2)"),
                    windowed: false,
                };
            }
            (None, Some(_)) if ended => ("INDEXED BY deliveries_ended_of_destination", Some("d.state > 3")),
            (None, None) if ended => ("INDEXED BY deliveries_ended", Some("d.state > 3")),
            (None, Some(_)) => ("INDEXED BY deliveries_of_destination", None),
            (None, None) => ("NOT INDEXED", None),
        };
        let windowed = is_sieved(filter) || (filter.state.is_some() && !ended);
        Self { index, predicate, windowed }
    }
}

/// Whether rows are left out by what is not in the table itself.
pub(crate) fn is_sieved(filter: &DeliveryFilter) -> bool {
    filter.tenant.is_some() || filter.event_type.is_some() || filter.error.is_some()
}

impl SqliteStore {
    pub(crate) async fn deliveries_page(
        &self,
        filter: &DeliveryFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Delivery>> {
        let waiting = filter.state.is_some_and(DeliveryState::is_waiting);
        let walk = Walk::of(filter, waiting && self.few_wait(filter.destination_id).await?);
        let window_end = if walk.windowed { self.window_end(filter, page, walk).await? } else { None };
        let (sql, values) = deliveries_page(filter, page, walk, window_end);
        let rows = self.read(sql, values, rows::delivery).await?;
        let mut page = cut(rows, page, |delivery| *delivery.id.as_bytes());
        page.next = page.next.or(window_end);
        Ok(page)
    }

    async fn few_wait(&self, of: Option<DestinationId>) -> StoreResult<bool> {
        let mut conditions = Conditions::new();
        conditions.of_destination(of.as_ref());
        conditions.values.int(SCANNED_AT_MOST.into());
        let sql = format!(
            "SELECT 1 FROM deliveries d INDEXED BY deliveries_due WHERE {} AND d.state IN (0, 2) LIMIT 1 OFFSET +?",
            conditions.sql
        );
        Ok(self.read(sql, conditions.values, |_| Ok(())).await?.is_empty())
    }

    /// The last id of the page's window; `None` when all that is left is less than a window.
    async fn window_end(
        &self,
        filter: &DeliveryFilter,
        page: PageRequest,
        walk: Walk,
    ) -> StoreResult<Option<[u8; 16]>> {
        let (sql, values) = window_end(filter, page, walk);
        Ok(self.read(sql, values, |row| rows::id(row, 0)).await?.pop())
    }
}

impl<'f> Conditions<'f> {
    pub(crate) fn of_destination(&mut self, id: Option<&'f DestinationId>) {
        if let Some(id) = id {
            self.add("d.destination_id = ?").blob(id.as_bytes());
        }
    }

    /// What the walk's index knows.
    fn walk(&mut self, filter: &'f DeliveryFilter, page: PageRequest, walk: Walk) {
        self.of_destination(filter.destination_id.as_ref());
        if let Some(predicate) = walk.predicate {
            self.add(predicate);
        }
        if let (Some(state), Some(_)) = (filter.state, walk.predicate) {
            // Written out, not bound: a partial index is only used for a condition that is known when the plan is made.
            self.add(&format!("d.state = {}", state_code(state)));
        }
        self.range("d", page, filter.from, filter.to);
    }

    /// What the events and the last attempts know.
    pub(crate) fn sieve(&mut self, filter: &'f DeliveryFilter) {
        if let Some(tenant) = &filter.tenant {
            self.add("e.tenant = ?").text(tenant);
        }
        if let Some(pattern) = &filter.event_type {
            self.of_type(pattern);
        }
        match filter.error {
            None => {}
            Some(ErrorFilter::Status(status)) => {
                self.add("a.outcome <> 0 AND a.status_code = ?").int(status.into());
            }
            Some(ErrorFilter::Kind(ErrorKind::Unknown)) => {
                self.add("a.outcome = 3");
            }
            Some(ErrorFilter::Kind(ErrorKind::Failure(failure))) => {
                self.add("a.failure = ?").int(failure_code(failure));
            }
            Some(ErrorFilter::Kind(ErrorKind::Answer(class))) => {
                self.add("a.outcome IN (1, 2) AND a.failure IS NULL AND a.status_code / 100 = ?").int(class.into());
            }
        }
    }

    /// Of the event `e`.
    pub(crate) fn of_type(&mut self, pattern: &'f EventPattern) {
        match pattern {
            EventPattern::Any => self.add("instr(e.event_type, 'weir.') <> 1"),
            EventPattern::Exact(exact) => self.add("e.event_type = ?").text(exact),
            EventPattern::Prefix(prefix) => self.add("instr(e.event_type, ?) = 1").text(prefix),
        };
    }
}

pub(crate) fn window_end(filter: &DeliveryFilter, page: PageRequest, walk: Walk) -> (String, Values<'_>) {
    let mut conditions = Conditions::new();
    conditions.walk(filter, page, walk);
    conditions.values.int(i64::from(SCANNED_AT_MOST) - 1);
    let sql = format!(
        "SELECT d.id FROM deliveries d {} WHERE {} ORDER BY d.id DESC LIMIT 1 OFFSET +?",
        walk.index, conditions.sql
    );
    (sql, conditions.values)
}

/// One row more than the page has, from the ids below `page.before` down to `window_end`.
pub(crate) fn deliveries_page(
    filter: &DeliveryFilter,
    page: PageRequest,
    walk: Walk,
    window_end: Option<[u8; 16]>,
) -> (String, Values<'_>) {
    let mut conditions = Conditions::new();
    if let Some(id) = &filter.event_id {
        let (first, beyond) = delivery_ids_of(id);
        conditions.add("d.id >= ?").owned_blob(first);
        conditions.add("d.id < ?").owned_blob(beyond);
        conditions.add("d.event_id = ?").blob(id.as_bytes());
    }
    conditions.walk(filter, page, walk);
    if let (Some(state), None) = (filter.state, walk.predicate) {
        conditions.add(&format!("d.state = {}", state_code(state)));
    }
    if let Some(end) = window_end {
        conditions.add("d.id >= ?").owned_blob(end.to_vec());
    }
    let limit = i64::from(page.limit) + 1;
    // The page is cut before the events are looked up, unless they decide what is in it.
    conditions.values.int(if is_sieved(filter) { -1 } else { limit });
    let walked = std::mem::replace(&mut conditions.sql, "1".to_owned());
    conditions.sieve(filter);
    conditions.values.int(limit);
    let sql = format!(
        "SELECT {DELIVERY_COLUMNS} FROM (
            SELECT * FROM deliveries d {} WHERE {walked} ORDER BY d.id DESC LIMIT +?
         ) d CROSS JOIN events e ON e.id = d.event_id {LAST_ATTEMPT} WHERE {} ORDER BY d.id DESC LIMIT +?",
        walk.index, conditions.sql
    );
    (sql, conditions.values)
}
