//! Lists of deliveries: the index that a page reads, and how far it reads, as [`weir_store::Lists::list_deliveries`]
//! says.

use async_trait::async_trait;
use weir_core::{DeliveryState, DestinationId, delivery::Delivery, event::Event, pattern::EventPattern};
use weir_store::{
    DeliveryFilter, EventFilter, FailedDelivery, ListPart, ListStatements, PageRequest, SCANNED_AT_MOST, Scan,
    StoreResult,
    rows::{self, DELIVERY_COLUMNS, FAILED_COLUMNS, Row as _, error_condition, in_states, state_code},
    sql,
};

use crate::{
    PostgresStore,
    history::{self, Select},
    rows::uuid,
};

/// The event `e` and the last attempt `a` of a delivery `d`. `OFFSET 0` makes these joins a lookup per row. Without it
/// the planner could estimate that a condition on them is selective, and start with a scan of all events or attempts.
pub(crate) const JOINED: &str =
    "CROSS JOIN LATERAL (SELECT event_type, tenant, cost FROM events WHERE id = d.event_id OFFSET 0) e
    LEFT JOIN LATERAL (
        SELECT outcome, status_code, failure, error FROM attempts
        WHERE delivery_id = d.id AND number = d.attempts OFFSET 0
    ) a ON true";

#[async_trait]
impl ListStatements for PostgresStore {
    async fn is_backlog_small(&self, destination_id: Option<DestinationId>) -> StoreResult<bool> {
        Ok(self.select(large_backlog(destination_id), |_| Ok(())).await?.is_empty())
    }

    async fn window_end(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        page: PageRequest,
        rows: u32,
    ) -> StoreResult<Option<[u8; 16]>> {
        Ok(self.select(window_end(filter, part, page, rows), |row| row.id(0)).await?.pop())
    }

    async fn page_of_part(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        page: PageRequest,
        window_end: Option<[u8; 16]>,
    ) -> StoreResult<Vec<Delivery>> {
        self.select(deliveries_page(filter, part, page, window_end), rows::delivery).await
    }

    async fn count_of_part(&self, filter: &DeliveryFilter, part: &ListPart, limit: u64) -> StoreResult<(u64, u64)> {
        let select = count_of_part(filter, part, limit);
        let counted = self.select(select, |row| Ok((row.count(0)?, row.count(1)?))).await?;
        Ok(counted.first().copied().unwrap_or_default())
    }

    async fn failures_of_part(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        limit: u64,
    ) -> StoreResult<Vec<FailedDelivery>> {
        self.select(failures_of_part(filter, part, limit), rows::failed_delivery).await
    }

    async fn events_window_end(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Option<[u8; 16]>> {
        Ok(self.select(history::events_window_end(filter, page), |row| row.id(0)).await?.pop())
    }

    async fn events_of_page(
        &self,
        filter: &EventFilter,
        page: PageRequest,
        window_end: Option<[u8; 16]>,
    ) -> StoreResult<Vec<Event>> {
        self.select(history::events_page(filter, page, window_end), |row| rows::event(row, &self.shared.keyring)).await
    }
}

/// Returns a row if the backlog is too large to be sorted for one page.
pub(crate) fn large_backlog(of: Option<DestinationId>) -> Select {
    let mut select = Select::new("SELECT d.state FROM deliveries d".to_owned());
    select.of_destination(of);
    select.condition(sql!("d.state IN ({waiting})"));
    select.sql.push_str(" ORDER BY d.destination_id LIMIT 1 OFFSET");
    select.value(i64::from(SCANNED_AT_MOST));
    select
}

pub(crate) fn window_end(filter: &DeliveryFilter, part: &ListPart, page: PageRequest, rows: u32) -> Select {
    let mut select = Select::new("SELECT d.id FROM deliveries d".to_owned());
    select.of_index(filter, part.indexed_state());
    select.range("d", (filter.order, page.before), filter.from, filter.to);
    select.sql.push_str(&format!(" ORDER BY d.id {} LIMIT 1 OFFSET", filter.order.sql()));
    select.value(i64::from(rows) - 1);
    select
}

/// The table of a part whose ids are compared and sorted.
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
    select.of_index(filter, part.indexed_state());
    if few {
        select.condition(&in_states("d.state", &part.states));
        if part.states.iter().all(|state| state.is_waiting()) {
            select.condition(sql!("d.state IN ({waiting})"));
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

/// Reads one row more than the page has, from the ids after `page.before` to `window_end`.
pub(crate) fn deliveries_page(
    filter: &DeliveryFilter,
    part: &ListPart,
    page: PageRequest,
    window_end: Option<[u8; 16]>,
) -> Select {
    let mut select = indexed(filter, part, page.before);
    // `state + 0` keeps the planner from reading and sorting all deliveries in these states.
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
    /// Adds `true` and the conditions that an examined delivery must match.
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

    /// Adds the conditions that one index serves in the order of ids: those of a limit key, in any state; or those of a
    /// destination, in a state that has an index.
    pub(crate) fn of_index(&mut self, filter: &DeliveryFilter, state: Option<DeliveryState>) {
        if let Some(flow) = filter.flow_id() {
            return self.compare("d.flow_id =", uuid(flow.as_bytes()));
        }
        self.of_destination(filter.destination_id);
        self.ended(state);
    }

    /// Adds the condition for a state that has an index in the order of ids.
    fn ended(&mut self, state: Option<DeliveryState>) {
        use DeliveryState::{Cancelled, Dead, Expired, Failed, Superseded};
        if let Some(state @ (Failed | Dead | Cancelled | Superseded | Expired)) = state {
            self.condition(&format!("{} AND d.state = {}", sql!("d.state > {delivered}"), state_code(state)));
        }
    }

    /// Adds the conditions on the events and the last attempts.
    pub(crate) fn filter_joined(&mut self, filter: &DeliveryFilter) {
        self.of_tenants(&filter.tenants);
        if let Some(pattern) = &filter.event_type {
            self.of_type(pattern);
        }
        match filter.error.map(error_condition) {
            None => {}
            Some((condition, None)) => self.condition(condition),
            Some((condition, Some(value))) => self.compare(condition, value),
        }
    }

    /// Adds the condition of the index `events_operational`, if the filter implies it.
    pub(crate) fn operational(&mut self, filter: &EventFilter) {
        if filter.is_operational() {
            self.condition("starts_with(e.event_type, 'weir.')");
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
