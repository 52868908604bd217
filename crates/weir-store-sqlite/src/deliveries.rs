//! Lists of deliveries: the index that a page reads, and how far it reads, as [`weir_store::History::list_deliveries`]
//! says.

use weir_core::{DeliveryState, DestinationId, ErrorKind, delivery::Delivery, pattern::EventPattern};
use weir_store::{
    DeliveryFilter, ErrorFilter, Page, PageRequest, SCANNED_AT_MOST, StoreResult, delivery_ids_of,
    rows::{self, DELIVERY_COLUMNS, LAST_ATTEMPT, Row as _, failure_code, state_code},
};

use crate::{SqliteStore, history::WhereClause, sql::Values};

/// How a page finds its deliveries. The index is chosen here and not by the planner, which would guess without
/// statistics and choose wrongly with stale ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListPlan {
    index: &'static str,
    /// The predicate of a partial index. The statement must contain it word for word.
    predicate: Option<&'static str>,
    /// Whether many rows may not match, so that the page ends with its window.
    windowed: bool,
}

impl ListPlan {
    /// By id, until the page is full.
    const BY_ID: Self = Self { index: "NOT INDEXED", predicate: None, windowed: false };

    /// `is_backlog_small`: the waiting deliveries are few enough to be read and sorted for one page.
    pub(crate) fn of(filter: &DeliveryFilter, is_backlog_small: bool) -> Self {
        use DeliveryState::{Cancelled, Dead, Delivering, Expired, Failed, Superseded};
        let ended = matches!(filter.state, Some(Failed | Dead | Cancelled | Superseded | Expired));
        let waiting = filter.state.is_some_and(DeliveryState::is_waiting);
        let (index, predicate) = match (filter.event_id, filter.destination_id) {
            // An event has few deliveries. Their ids are in one narrow range.
            (Some(_), _) => return Self::BY_ID,
            // There are only as many claims as sends in flight: all of them may be read.
            (None, _) if filter.state == Some(Delivering) => {
                return Self {
                    index: "INDEXED BY deliveries_claimed",
                    predicate: Some("d.state = 1"),
                    windowed: false,
                };
            }
            // A few waiting deliveries may be anywhere in a long history: read all of them and sort.
            (None, _) if waiting && is_backlog_small => {
                return Self {
                    index: "INDEXED BY deliveries_due",
                    predicate: Some("d.state IN (0, 2)"),
                    windowed: false,
                };
            }
            // The states of deliveries that ended undelivered have indexes in the order of ids.
            (None, Some(_)) if ended => ("INDEXED BY deliveries_ended_of_destination", Some("d.state > 3")),
            (None, None) if ended => ("INDEXED BY deliveries_ended", Some("d.state > 3")),
            // Every other list reads ids backwards.
            (None, Some(_)) => ("INDEXED BY deliveries_of_destination", None),
            (None, None) => ("NOT INDEXED", None),
        };
        // A filter without an index may refuse most rows, so the page ends with its window.
        let windowed = filter.filters_joined() || (filter.state.is_some() && !ended);
        Self { index, predicate, windowed }
    }
}

impl SqliteStore {
    pub(crate) async fn deliveries_page(
        &self,
        filter: &DeliveryFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Delivery>> {
        // Choose the index. Only for a waiting state does the size of the backlog matter.
        let waiting = filter.state.is_some_and(DeliveryState::is_waiting);
        let plan = ListPlan::of(filter, waiting && self.is_backlog_small(filter.destination_id).await?);
        // Find the end of the window first: the page reads no further, however few rows match.
        let window_end = if plan.windowed { self.window_end(filter, page, plan).await? } else { None };
        let (sql, values) = deliveries_page(filter, page, plan, window_end);
        let rows = self.read(sql, values, rows::delivery).await?;
        let mut page = Page::of(rows, page, |delivery| *delivery.id.as_bytes());
        // A page that its window did not fill continues after the window.
        page.next = page.next.or(window_end);
        Ok(page)
    }

    async fn is_backlog_small(&self, of: Option<DestinationId>) -> StoreResult<bool> {
        let mut conditions = WhereClause::new();
        conditions.of_destination(of.as_ref());
        conditions.values.int(SCANNED_AT_MOST.into());
        let sql = format!(
            "SELECT 1 FROM deliveries d INDEXED BY deliveries_due WHERE {} AND d.state IN (0, 2) LIMIT 1 OFFSET +?",
            conditions.sql
        );
        Ok(self.read(sql, conditions.values, |_| Ok(())).await?.is_empty())
    }

    /// The last id of the page's window. `None` when fewer rows than a window remain.
    async fn window_end(
        &self,
        filter: &DeliveryFilter,
        page: PageRequest,
        plan: ListPlan,
    ) -> StoreResult<Option<[u8; 16]>> {
        let (sql, values) = window_end(filter, page, plan);
        Ok(self.read(sql, values, |row| row.id(0)).await?.pop())
    }
}

impl<'f> WhereClause<'f> {
    pub(crate) fn of_destination(&mut self, id: Option<&'f DestinationId>) {
        if let Some(id) = id {
            self.add("d.destination_id = ?").blob(id.as_bytes());
        }
    }

    /// Adds the terms that the index of the plan serves.
    fn plan_conditions(&mut self, filter: &'f DeliveryFilter, page: PageRequest, plan: ListPlan) {
        self.of_destination(filter.destination_id.as_ref());
        if let Some(predicate) = plan.predicate {
            self.add(predicate);
        }
        if let (Some(state), Some(_)) = (filter.state, plan.predicate) {
            // A literal, not a parameter: SQLite uses a partial index only for a condition that is known at planning
            // time.
            self.add(&format!("d.state = {}", state_code(state)));
        }
        self.range("d", page, filter.from, filter.to);
    }

    /// Adds the terms on the joined events and last attempts.
    pub(crate) fn filter_joined(&mut self, filter: &'f DeliveryFilter) {
        if let Some(tenant) = &filter.tenant {
            self.add("e.tenant = ?").text(tenant);
        }
        if let Some(pattern) = &filter.event_type {
            self.of_type(pattern);
        }
        // By the last attempt. Outcomes: 0 delivered, 1 retryable, 2 rejected, 3 unknown.
        match filter.error {
            None => {}
            Some(ErrorFilter::Status(status)) => {
                self.add("a.outcome <> 0 AND a.status_code = ?").int(status.into());
            }
            Some(ErrorFilter::Kind(ErrorKind::Unknown)) => {
                self.add("a.outcome = 3");
            }
            Some(ErrorFilter::Kind(ErrorKind::Failure(failure))) => {
                self.add("a.failure = ?").int(failure_code(failure).into());
            }
            Some(ErrorFilter::Kind(ErrorKind::Answer(class))) => {
                self.add("a.outcome IN (1, 2) AND a.failure IS NULL AND a.status_code / 100 = ?").int(class.into());
            }
        }
    }

    /// Adds the term on the type of the event `e`.
    pub(crate) fn of_type(&mut self, pattern: &'f EventPattern) {
        match pattern {
            EventPattern::Any => self.add("instr(e.event_type, 'weir.') <> 1"),
            EventPattern::Exact(exact) => self.add("e.event_type = ?").text(exact),
            EventPattern::Prefix(prefix) => self.add("instr(e.event_type, ?) = 1").text(prefix),
        };
    }
}

pub(crate) fn window_end(filter: &DeliveryFilter, page: PageRequest, plan: ListPlan) -> (String, Values<'_>) {
    let mut conditions = WhereClause::new();
    conditions.plan_conditions(filter, page, plan);
    conditions.values.int(i64::from(SCANNED_AT_MOST) - 1);
    let sql = format!(
        "SELECT d.id FROM deliveries d {} WHERE {} ORDER BY d.id DESC LIMIT 1 OFFSET +?",
        plan.index, conditions.sql
    );
    (sql, conditions.values)
}

/// Reads one row more than the page has, from the ids below `page.before` down to `window_end`.
pub(crate) fn deliveries_page(
    filter: &DeliveryFilter,
    page: PageRequest,
    plan: ListPlan,
    window_end: Option<[u8; 16]>,
) -> (String, Values<'_>) {
    let mut conditions = WhereClause::new();
    // The ids of an event's deliveries begin with its millisecond. Other events may share it.
    if let Some(id) = &filter.event_id {
        let (first, beyond) = delivery_ids_of(*id);
        conditions.add("d.id >= ?").owned_blob(first);
        conditions.add("d.id < ?").owned_blob(beyond);
        conditions.add("d.event_id = ?").blob(id.as_bytes());
    }
    // Add the conditions that the index of the plan serves.
    conditions.plan_conditions(filter, page, plan);
    // A state without an index of its own is compared row by row.
    if let (Some(state), None) = (filter.state, plan.predicate) {
        conditions.add(&format!("d.state = {}", state_code(state)));
    }
    if let Some(end) = window_end {
        conditions.add("d.id >= ?").owned_blob(end.to_vec());
    }
    let limit = i64::from(page.limit) + 1;
    // Limit the rows before the events are looked up, unless the filter needs the events.
    conditions.values.int(if filter.filters_joined() { -1 } else { limit });
    // The terms so far filter the inner query. Those on events and last attempts filter the outer one.
    let planned = std::mem::replace(&mut conditions.sql, "1".to_owned());
    conditions.filter_joined(filter);
    conditions.values.int(limit);
    let sql = format!(
        "SELECT {DELIVERY_COLUMNS} FROM (
            SELECT * FROM deliveries d {} WHERE {planned} ORDER BY d.id DESC LIMIT +?
         ) d CROSS JOIN events e ON e.id = d.event_id {LAST_ATTEMPT} WHERE {} ORDER BY d.id DESC LIMIT +?",
        plan.index, conditions.sql
    );
    (sql, conditions.values)
}
