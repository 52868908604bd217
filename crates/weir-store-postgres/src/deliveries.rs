//! Lists of deliveries: the index that a page reads, and how far it reads, as [`weir_store::History::list_deliveries`]
//! says.

use sqlx::AssertSqlSafe;
use weir_core::{DeliveryState, DestinationId, ErrorKind, delivery::Delivery, pattern::EventPattern};
use weir_store::{
    DeliveryFilter, ErrorFilter, Page, PageRequest, SCANNED_AT_MOST, StoreResult,
    rows::{self, DELIVERY_COLUMNS, Row as _, failure_code, state_code},
};

use crate::{PostgresStore, history::Select, rows::uuid};

/// How a page finds its deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListPlan {
    /// In descending order of ids until the page is full.
    ById,
    /// In descending order of ids to the end of a window.
    Window,
    /// All deliveries in this state, sorted: there are few.
    Sorted,
}

impl ListPlan {
    /// `is_backlog_small`: the waiting deliveries are few enough to be read and sorted for one page.
    pub(crate) fn of(filter: &DeliveryFilter, is_backlog_small: bool) -> Self {
        use DeliveryState::{Cancelled, Dead, Delivering, Expired, Failed, Superseded};
        match filter.state {
            _ if filter.event_id.is_some() => Self::ById,
            Some(Delivering) => Self::Sorted,
            Some(state) if state.is_waiting() && is_backlog_small => Self::Sorted,
            None | Some(Failed | Dead | Cancelled | Superseded | Expired) if !filter.filters_joined() => Self::ById,
            _ => Self::Window,
        }
    }
}

impl PostgresStore {
    pub(crate) async fn deliveries_page(
        &self,
        filter: &DeliveryFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Delivery>> {
        // Choose how to read. Only for a waiting state does the size of the backlog matter.
        let waiting = filter.state.is_some_and(DeliveryState::is_waiting);
        let plan = ListPlan::of(filter, waiting && self.is_backlog_small(filter.destination_id).await?);
        // Find the end of the window first: the page reads no further, however few rows match.
        let end = if plan == ListPlan::Window { self.window_end(filter, page).await? } else { None };
        let (sql, arguments) = deliveries_page(filter, page, plan, end).into_parts();
        let rows = self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), rows::delivery).await?;
        let mut page = Page::of(rows, page, |delivery| *delivery.id.as_bytes());
        // A page that its window did not fill continues after the window.
        page.next = page.next.or(end);
        Ok(page)
    }

    async fn is_backlog_small(&self, of: Option<DestinationId>) -> StoreResult<bool> {
        let (sql, arguments) = large_backlog(of).into_parts();
        Ok(self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), |_| Ok(())).await?.is_empty())
    }

    /// The last id of the page's window; `None` if fewer rows than a window remain.
    async fn window_end(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Option<[u8; 16]>> {
        let (sql, arguments) = window_end(filter, page).into_parts();
        Ok(self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), |row| row.id(0)).await?.pop())
    }
}

/// Returns a row if the backlog is too large to be sorted for one page.
pub(crate) fn large_backlog(of: Option<DestinationId>) -> Select {
    let mut select = Select::new("SELECT d.state FROM deliveries d".to_owned());
    select.of_destination(of);
    select.condition("d.state IN (0, 2)");
    select.sql.push_str(" ORDER BY d.destination_id LIMIT 1 OFFSET");
    select.value(i64::from(SCANNED_AT_MOST));
    select
}

pub(crate) fn window_end(filter: &DeliveryFilter, page: PageRequest) -> Select {
    let mut select = Select::new("SELECT d.id FROM deliveries d".to_owned());
    select.of_destination(filter.destination_id);
    select.ended(filter.state);
    select.range("d", page, filter.from, filter.to);
    select.sql.push_str(" ORDER BY d.id DESC LIMIT 1 OFFSET");
    select.value(i64::from(SCANNED_AT_MOST) - 1);
    select
}

/// Reads one row more than the page has, from the ids below `page.before` down to `window_end`.
pub(crate) fn deliveries_page(
    filter: &DeliveryFilter,
    page: PageRequest,
    plan: ListPlan,
    window_end: Option<[u8; 16]>,
) -> Select {
    // Begin with the conditions that an index serves. Few deliveries are found by their state, the others by ids.
    let few = plan == ListPlan::Sorted;
    let columns = if few { "d.id, d.created_at" } else { "*" };
    let mut select = Select::new(format!("SELECT {columns} FROM deliveries d"));
    if let Some(id) = filter.event_id {
        select.of_event(id);
    }
    select.of_destination(filter.destination_id);
    match filter.state {
        // A literal, not a parameter: the planner uses a partial index only for a condition that is known at planning
        // time.
        Some(state) if few => {
            select.condition(&format!("d.state = {}", state_code(state)));
            if state.is_waiting() {
                select.condition("d.state IN (0, 2)");
            }
        }
        Some(state) => {
            select.ended(Some(state));
            // The sum keeps the planner from reading and sorting all deliveries in this state.
            select.condition(&format!("d.state + 0 = {}", state_code(state)));
        }
        None => {}
    }
    if few {
        // In a CTE of its own, so that the planner does not scan the ids because of the range or the order.
        select.sql = format!(
            "WITH few AS MATERIALIZED ({}) SELECT d.* FROM few JOIN deliveries d ON d.id = few.id WHERE true",
            select.sql
        );
    }
    // Continue after the page before, within the times of the filter and the window.
    let scanned = if few { "few" } else { "d" };
    select.range(scanned, page, filter.from, filter.to);
    if let Some(end) = window_end {
        select.compare("d.id >=", uuid(&end));
    }
    // The LIMIT is applied before the events are joined, unless the filter has conditions on them.
    if filter.filters_joined() {
        select.sql.push_str(&format!(" ORDER BY {scanned}.id DESC"));
    } else {
        select.page(scanned, page);
    }
    with_events(select, filter, page)
}

/// The deliveries that `select` finds, joined with their events and last attempts, and filtered by them. `OFFSET 0`
/// makes these joins a lookup per row. Without it the planner could estimate that a condition on them is selective, and
/// start with a scan of all events or attempts.
fn with_events(mut select: Select, filter: &DeliveryFilter, page: PageRequest) -> Select {
    select.sql = format!(
        "SELECT {DELIVERY_COLUMNS} FROM ({}) d
        CROSS JOIN LATERAL (SELECT event_type, tenant FROM events WHERE id = d.event_id OFFSET 0) e
        LEFT JOIN LATERAL (
            SELECT outcome, status_code, failure, error FROM attempts
            WHERE delivery_id = d.id AND number = d.attempts OFFSET 0
        ) a ON true WHERE true",
        select.sql
    );
    select.filter_joined(filter);
    select.page("d", page);
    select
}

impl Select {
    pub(crate) fn of_destination(&mut self, id: Option<DestinationId>) {
        if let Some(id) = id {
            self.compare("d.destination_id =", uuid(id.as_bytes()));
        }
    }

    /// Adds the condition for a state that has an index in the order of ids.
    pub(crate) fn ended(&mut self, state: Option<DeliveryState>) {
        use DeliveryState::{Cancelled, Dead, Expired, Failed, Superseded};
        if let Some(state @ (Failed | Dead | Cancelled | Superseded | Expired)) = state {
            self.condition(&format!("d.state > 3 AND d.state = {}", state_code(state)));
        }
    }

    /// Adds the conditions on the events and the last attempts.
    pub(crate) fn filter_joined(&mut self, filter: &DeliveryFilter) {
        if let Some(tenant) = &filter.tenant {
            self.compare("e.tenant =", tenant);
        }
        if let Some(pattern) = &filter.event_type {
            self.of_type(pattern);
        }
        // By the last attempt. Outcomes: 0 delivered, 1 retryable, 2 rejected, 3 unknown.
        match filter.error {
            None => {}
            Some(ErrorFilter::Status(status)) => self.compare("a.outcome <> 0 AND a.status_code =", i32::from(status)),
            Some(ErrorFilter::Kind(ErrorKind::Unknown)) => self.condition("a.outcome = 3"),
            Some(ErrorFilter::Kind(ErrorKind::Failure(failure))) => self.compare("a.failure =", failure_code(failure)),
            Some(ErrorFilter::Kind(ErrorKind::Answer(class))) => {
                let answered = "a.outcome IN (1, 2) AND a.failure IS NULL AND a.status_code / 100 =";
                self.compare(answered, i32::from(class));
            }
        }
    }

    /// Adds the condition on the type of the event `e`.
    pub(crate) fn of_type(&mut self, pattern: &EventPattern) {
        match pattern {
            EventPattern::Any => self.condition("NOT starts_with(e.event_type, 'weir.')"),
            EventPattern::Exact(exact) => self.compare("e.event_type =", exact),
            EventPattern::Prefix(prefix) => {
                self.compare("starts_with(e.event_type,", prefix);
                self.sql.push(')');
            }
        }
    }
}
