//! Lists of deliveries: the index that a page reads, and how far it reads, as [`weir_store::History::list_deliveries`]
//! says.

use sqlx::AssertSqlSafe;
use weir_core::{DeliveryState, DestinationId, ErrorKind, delivery::Delivery, pattern::EventPattern};
use weir_store::{
    DeliveryFilter, EXAMINED_AT_MOST, ErrorFilter, FailureGroups, ListCount, ListPart, Page, PageRequest,
    SCANNED_AT_MOST, Scan, StoreResult,
    rows::{self, DELIVERY_COLUMNS, FAILED_COLUMNS, Row as _, failure_code, state_code},
};

use crate::{PostgresStore, history::Select, rows::uuid};

/// The event `e` and the last attempt `a` of a delivery `d`. `OFFSET 0` makes these joins a lookup per row. Without it
/// the planner could estimate that a condition on them is selective, and start with a scan of all events or attempts.
pub(crate) const JOINED: &str =
    "CROSS JOIN LATERAL (SELECT event_type, tenant FROM events WHERE id = d.event_id OFFSET 0) e
    LEFT JOIN LATERAL (
        SELECT outcome, status_code, failure, error FROM attempts
        WHERE delivery_id = d.id AND number = d.attempts OFFSET 0
    ) a ON true";

impl PostgresStore {
    /// The statements that read a list. Only for waiting states does the size of the backlog matter.
    async fn parts(&self, filter: &DeliveryFilter) -> StoreResult<Vec<ListPart>> {
        let is_small = filter.includes_waiting() && self.is_backlog_small(filter.destination_id).await?;
        Ok(filter.parts(is_small))
    }

    pub(crate) async fn deliveries_page(
        &self,
        filter: &DeliveryFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Delivery>> {
        let mut pages = Vec::new();
        for part in self.parts(filter).await? {
            // Find the end of the window first: the page reads no further, however few rows match.
            let end = match part.scan {
                Scan::Window(rows) => self.window_end(filter, &part, page, rows).await?,
                Scan::ById | Scan::Sorted => None,
            };
            let (sql, arguments) = deliveries_page(filter, &part, page, end).into_parts();
            let rows = self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), rows::delivery).await?;
            let mut read = Page::of(rows, page, |delivery| *delivery.id.as_bytes());
            // A page that its window did not fill continues after the window.
            read.next = read.next.or(end);
            pages.push(read);
        }
        Ok(Page::merged(pages, page, filter.order, |delivery| *delivery.id.as_bytes()))
    }

    pub(crate) async fn deliveries_count(&self, filter: &DeliveryFilter) -> StoreResult<ListCount> {
        let mut count = ListCount::default();
        let mut left = u64::from(EXAMINED_AT_MOST);
        for part in self.parts(filter).await? {
            let (sql, arguments) = count_of_part(filter, &part, left).into_parts();
            let query = sqlx::query_with(AssertSqlSafe(sql), arguments?);
            let counted = self.read(query, |row| Ok((row.count(0)?, row.count(1)?))).await?;
            match count.add(left, counted.first().copied().unwrap_or_default()) {
                Some(remaining) => left = remaining,
                None => break,
            }
        }
        Ok(count)
    }

    pub(crate) async fn failure_groups(&self, filter: &DeliveryFilter) -> StoreResult<FailureGroups> {
        let parts = self.parts(filter).await?;
        let limit = EXAMINED_AT_MOST as usize / parts.len().max(1);
        let (mut examined, mut capped) = (Vec::new(), false);
        for part in &parts {
            let (sql, arguments) = failures_of_part(filter, part, limit as u64).into_parts();
            let mut read = self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), rows::failed_delivery).await?;
            capped |= read.len() > limit;
            read.truncate(limit);
            examined.append(&mut read);
        }
        Ok(FailureGroups::of(examined, capped))
    }

    async fn is_backlog_small(&self, of: Option<DestinationId>) -> StoreResult<bool> {
        let (sql, arguments) = large_backlog(of).into_parts();
        Ok(self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), |_| Ok(())).await?.is_empty())
    }

    /// The last id of the page's window; `None` if fewer rows than a window remain.
    async fn window_end(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        page: PageRequest,
        rows: u32,
    ) -> StoreResult<Option<[u8; 16]>> {
        let (sql, arguments) = window_end(filter, part, page, rows).into_parts();
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

pub(crate) fn window_end(filter: &DeliveryFilter, part: &ListPart, page: PageRequest, rows: u32) -> Select {
    let mut select = Select::new("SELECT d.id FROM deliveries d".to_owned());
    select.of_destination(filter.destination_id);
    select.ended(part.indexed_state());
    select.range("d", (filter.order, page.before), filter.from, filter.to);
    select.sql.push_str(&format!(" ORDER BY d.id {} LIMIT 1 OFFSET", filter.order.sql()));
    select.value(i64::from(rows) - 1);
    select
}

/// The table of a part that is scanned in the order of ids.
fn scanned(part: &ListPart) -> &'static str {
    if part.scan == Scan::Sorted { "few" } else { "d" }
}

/// The deliveries of a part as an index finds them, after a cursor and within the times of the filter. Few deliveries
/// are found by their state, the others by ids.
fn indexed(filter: &DeliveryFilter, part: &ListPart, cursor: Option<[u8; 16]>) -> Select {
    let few = part.scan == Scan::Sorted;
    let columns = if few { "d.id, d.created_at" } else { "*" };
    let mut select = Select::new(format!("SELECT {columns} FROM deliveries d"));
    if let Some(id) = filter.event_id {
        select.of_event(id);
    }
    select.of_destination(filter.destination_id);
    select.ended(part.indexed_state());
    if few {
        select.condition(&in_states("d.state", &part.states));
        if part.states.iter().all(|state| state.is_waiting()) {
            select.condition("d.state IN (0, 2)");
        }
        // In a CTE of its own, so that the planner does not scan the ids because of the range or the order.
        select.sql = format!(
            "WITH few AS MATERIALIZED ({}) SELECT d.* FROM few JOIN deliveries d ON d.id = few.id WHERE true",
            select.sql
        );
    }
    select.range(scanned(part), (filter.order, cursor), filter.from, filter.to);
    select
}

/// The condition on a state. Literals, not parameters: the planner uses a partial index only for a condition that is
/// known at planning time.
fn in_states(state: &str, states: &[DeliveryState]) -> String {
    let codes: Vec<_> = states.iter().map(|state| state_code(*state).to_string()).collect();
    match codes.as_slice() {
        [] => "true".to_owned(),
        [one] => format!("{state} = {one}"),
        several => format!("{state} IN ({})", several.join(", ")),
    }
}

/// Reads one row more than the page has, from the ids after `page.before` to `window_end`.
pub(crate) fn deliveries_page(
    filter: &DeliveryFilter,
    part: &ListPart,
    page: PageRequest,
    window_end: Option<[u8; 16]>,
) -> Select {
    let mut select = indexed(filter, part, page.before);
    // The sum keeps the planner from reading and sorting all deliveries in these states.
    select.condition(&in_states("d.state + 0", &part.states));
    if let Some(end) = window_end {
        select.compare(&format!("d.id {}", filter.order.until()), uuid(&end));
    }
    // The LIMIT is applied before the events are joined, unless the filter has conditions on them.
    let scanned = scanned(part);
    if filter.filters_joined() {
        select.sql.push_str(&format!(" ORDER BY {scanned}.id {}", filter.order.sql()));
    } else {
        select.page(scanned, filter.order, page);
    }
    select.sql = format!("SELECT {DELIVERY_COLUMNS} FROM ({}) d {JOINED} WHERE true", select.sql);
    select.filter_joined(filter);
    select.page("d", filter.order, page);
    select
}

/// The first deliveries of a part, which are examined, as a CTE. At most one more than `limit`, however few match.
fn examined(filter: &DeliveryFilter, part: &ListPart, limit: u64) -> Select {
    let mut select = indexed(filter, part, None);
    select.sql.push_str(&format!(" ORDER BY {}.id {} LIMIT", scanned(part), filter.order.sql()));
    select.value(limit as i64 + 1);
    select.sql = format!("WITH examined AS ({})", select.sql);
    select
}

impl Select {
    /// Adds the conditions that an examined delivery must match, after `true`.
    fn matching(&mut self, filter: &DeliveryFilter, part: &ListPart) {
        self.sql.push_str("true");
        self.condition(&in_states("d.state", &part.states));
        self.filter_joined(filter);
    }
}

/// How many deliveries of a part were examined, and how many of them match.
pub(crate) fn count_of_part(filter: &DeliveryFilter, part: &ListPart, limit: u64) -> Select {
    let mut select = examined(filter, part, limit);
    select.sql.push_str(" SELECT count(*), count(*) FILTER (WHERE ");
    select.matching(filter, part);
    let joins = if filter.filters_joined() { JOINED } else { "" };
    select.sql.push_str(&format!(") FROM examined d {joins}"));
    select
}

/// The examined deliveries of a part with their last attempts, and whether they match.
pub(crate) fn failures_of_part(filter: &DeliveryFilter, part: &ListPart, limit: u64) -> Select {
    let mut select = examined(filter, part, limit);
    select.sql.push_str(&format!(" SELECT {FAILED_COLUMNS}, ("));
    select.matching(filter, part);
    select
        .sql
        .push_str(&format!(") IS TRUE FROM examined d {JOINED} LEFT JOIN destinations t ON t.id = d.destination_id"));
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
        self.of_tenants(&filter.tenants);
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
