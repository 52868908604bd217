//! Lists of deliveries: the index that a page reads, and how far it reads, as [`weir_store::Lists::list_deliveries`]
//! says.

use async_trait::async_trait;
use weir_core::{DeliveryState, DestinationId, delivery::Delivery, event::Event, pattern::EventPattern};
use weir_store::{
    DeliveryFilter, EventFilter, FailedDelivery, ListPart, ListStatements, PageRequest, SCANNED_AT_MOST, Scan,
    StoreResult, delivery_ids_of,
    rows::{self, DELIVERY_COLUMNS, FAILED_COLUMNS, LAST_ATTEMPT, Row as _, error_condition, in_states},
    sql,
};

use crate::{
    SqliteStore,
    history::{self, WhereClause},
    sql::Values,
};

/// The index of a part of a list. It is chosen here and not by the planner, which would guess without statistics and
/// choose wrongly with stale ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PartIndex {
    index: &'static str,
    /// The predicate of a partial index. The statement must contain it word for word.
    predicate: Option<&'static str>,
}

impl PartIndex {
    fn of(filter: &DeliveryFilter, part: &ListPart) -> Self {
        let (index, predicate) = match (part.scan, part.indexed_state(), filter.destination_id) {
            // The ids of an event's deliveries are in one narrow range.
            _ if filter.event_id.is_some() => ("NOT INDEXED", None),
            _ if filter.limit_key.is_some() => ("INDEXED BY deliveries_of_flow", None),
            (Scan::Sorted, ..) if part.states == [DeliveryState::Delivering] => {
                ("INDEXED BY deliveries_claimed", Some(sql!("d.state = {delivering}")))
            }
            (Scan::Sorted, ..) => ("INDEXED BY deliveries_due", Some(sql!("d.state IN ({waiting})"))),
            // The states of deliveries that ended undelivered have indexes in the order of ids.
            (_, Some(_), Some(_)) => {
                ("INDEXED BY deliveries_ended_of_destination", Some(sql!("d.state > {delivered}")))
            }
            (_, Some(_), None) => ("INDEXED BY deliveries_ended", Some(sql!("d.state > {delivered}"))),
            // Every other list reads the ids.
            (_, None, Some(_)) => ("INDEXED BY deliveries_of_destination", None),
            (_, None, None) => ("NOT INDEXED", None),
        };
        Self { index, predicate }
    }
}

#[async_trait]
impl ListStatements for SqliteStore {
    async fn is_backlog_small(&self, destination_id: Option<DestinationId>) -> StoreResult<bool> {
        let mut conditions = WhereClause::new();
        conditions.of_destination(destination_id.as_ref());
        conditions.values.bind(SCANNED_AT_MOST);
        let sql = format!(
            "SELECT 1 FROM deliveries d INDEXED BY deliveries_due WHERE {} AND {} LIMIT 1 OFFSET +?",
            conditions.sql,
            sql!("d.state IN ({waiting})")
        );
        Ok(self.read(sql, conditions.values, |_| Ok(())).await?.is_empty())
    }

    async fn window_end(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        page: PageRequest,
        rows: u32,
    ) -> StoreResult<Option<[u8; 16]>> {
        let (sql, values) = window_end(filter, part, page, rows);
        Ok(self.read(sql, values, |row| row.id(0)).await?.pop())
    }

    async fn page_of_part(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        page: PageRequest,
        window_end: Option<[u8; 16]>,
    ) -> StoreResult<Vec<Delivery>> {
        let (sql, values) = deliveries_page(filter, part, page, window_end);
        self.read(sql, values, rows::delivery).await
    }

    async fn count_of_part(&self, filter: &DeliveryFilter, part: &ListPart, limit: u64) -> StoreResult<(u64, u64)> {
        let (sql, values) = count_of_part(filter, part, limit);
        let counted = self.read(sql, values, |row| Ok((row.count(0)?, row.count(1)?))).await?;
        Ok(counted.first().copied().unwrap_or_default())
    }

    async fn failures_of_part(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        limit: u64,
    ) -> StoreResult<Vec<FailedDelivery>> {
        let (sql, values) = failures_of_part(filter, part, limit);
        self.read(sql, values, rows::failed_delivery).await
    }

    async fn events_window_end(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Option<[u8; 16]>> {
        let (sql, values) = history::events_window_end(filter, page);
        Ok(self.read(sql, values, |row| row.id(0)).await?.pop())
    }

    async fn events_of_page(
        &self,
        filter: &EventFilter,
        page: PageRequest,
        window_end: Option<[u8; 16]>,
    ) -> StoreResult<Vec<Event>> {
        let (sql, values) = history::events_page(filter, page, window_end);
        self.read(sql, values, |row| rows::event(row, &self.keyring)).await
    }
}

impl<'f> WhereClause<'f> {
    pub(crate) fn of_destination(&mut self, id: Option<&'f DestinationId>) {
        if let Some(id) = id {
            self.add("d.destination_id = ?").bind(id.as_bytes());
        }
    }

    /// Adds the term on the flow of a limit key.
    pub(crate) fn of_flow(&mut self, id: Option<DestinationId>) {
        if let Some(id) = id {
            self.add("d.flow_id = ?").bind(*id.as_bytes());
        }
    }

    /// Adds the terms that the index of a part serves.
    fn indexed(&mut self, filter: &'f DeliveryFilter, part: &ListPart, cursor: Option<[u8; 16]>) {
        // The ids of an event's deliveries begin with its millisecond. Other events may share it.
        if let Some(id) = &filter.event_id {
            let (first, beyond) = delivery_ids_of(*id);
            self.add("d.id >= ?").bind(first);
            self.add("d.id < ?").bind(beyond);
            self.add("d.event_id = ?").bind(id.as_bytes());
        }
        self.of_destination(filter.destination_id.as_ref());
        self.of_flow(filter.flow_id());
        if let Some(predicate) = PartIndex::of(filter, part).predicate {
            self.add(predicate);
            self.add(&in_states("d.state", &part.states));
        }
        self.range("d", (filter.order, cursor), filter.from, filter.to);
    }

    /// Adds the terms on the joined events and last attempts.
    pub(crate) fn filter_joined(&mut self, filter: &'f DeliveryFilter) {
        self.of_tenants(&filter.tenants);
        if let Some(pattern) = &filter.event_type {
            self.of_type(pattern);
        }
        match filter.error.map(error_condition) {
            None => {}
            Some((term, None)) => {
                self.add(term);
            }
            Some((term, Some(value))) => {
                self.add(&format!("{term} ?")).bind(value);
            }
        }
    }

    /// Adds the term on the type of the event `e`.
    pub(crate) fn of_type(&mut self, pattern: &'f EventPattern) {
        match pattern {
            EventPattern::Any => self.add("instr(e.event_type, 'weir.') <> 1"),
            EventPattern::Exact(exact) => self.add("e.event_type = ?").bind(exact),
            EventPattern::Prefix(prefix) => self.add("instr(e.event_type, ?) = 1").bind(prefix),
        };
    }
}

pub(crate) fn window_end<'f>(
    filter: &'f DeliveryFilter,
    part: &ListPart,
    page: PageRequest,
    rows: u32,
) -> (String, Values<'f>) {
    let mut conditions = WhereClause::new();
    conditions.indexed(filter, part, page.before);
    conditions.values.bind(i64::from(rows) - 1);
    let sql = format!(
        "SELECT d.id FROM deliveries d {} WHERE {} ORDER BY d.id {} LIMIT 1 OFFSET +?",
        PartIndex::of(filter, part).index,
        conditions.sql,
        filter.order.sql()
    );
    (sql, conditions.values)
}

/// Reads one row more than the page has, from the ids after `page.before` to `window_end`.
pub(crate) fn deliveries_page<'f>(
    filter: &'f DeliveryFilter,
    part: &ListPart,
    page: PageRequest,
    window_end: Option<[u8; 16]>,
) -> (String, Values<'f>) {
    let mut conditions = WhereClause::new();
    conditions.indexed(filter, part, page.before);
    // States without an index of their own are compared row by row.
    conditions.add(&in_states("d.state", &part.states));
    if let Some(end) = window_end {
        conditions.add(&format!("d.id {} ?", filter.order.until())).bind(end);
    }
    let limit = i64::from(page.limit) + 1;
    // Limit the rows before the events are looked up, unless the filter needs the events.
    conditions.values.bind(if filter.filters_joined() { -1 } else { limit });
    // The terms so far filter the inner query. Those on events and last attempts filter the outer one.
    let planned = std::mem::replace(&mut conditions.sql, "1".to_owned());
    conditions.filter_joined(filter);
    conditions.values.bind(limit);
    let (index, order) = (PartIndex::of(filter, part).index, filter.order.sql());
    let sql = format!(
        "SELECT {DELIVERY_COLUMNS} FROM (
            SELECT * FROM deliveries d {index} WHERE {planned} ORDER BY d.id {order} LIMIT +?
         ) d CROSS JOIN events e ON e.id = d.event_id {LAST_ATTEMPT} WHERE {} ORDER BY d.id {order} LIMIT +?",
        conditions.sql
    );
    (sql, conditions.values)
}

/// A CTE with the deliveries of a part that are examined, and the conditions that they must match. The CTE reads at
/// most one delivery more than `limit`, however few match.
fn examined<'f>(filter: &'f DeliveryFilter, part: &ListPart, limit: u64) -> (String, WhereClause<'f>) {
    let mut conditions = WhereClause::new();
    conditions.indexed(filter, part, None);
    conditions.values.bind(limit as i64 + 1);
    let indexed = std::mem::replace(&mut conditions.sql, "1".to_owned());
    let cte = format!(
        "WITH examined AS (
            SELECT d.id, d.event_id, d.destination_id, d.state, d.attempts, d.created_at FROM deliveries d {}
            WHERE {indexed} ORDER BY d.id {} LIMIT +?
        )",
        PartIndex::of(filter, part).index,
        filter.order.sql()
    );
    conditions.add(&in_states("d.state", &part.states));
    conditions.filter_joined(filter);
    (cte, conditions)
}

/// How many deliveries of a part were examined, and how many of them match.
pub(crate) fn count_of_part<'f>(filter: &'f DeliveryFilter, part: &ListPart, limit: u64) -> (String, Values<'f>) {
    let (cte, matching) = examined(filter, part, limit);
    let joins = if filter.filters_joined() {
        format!("CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id {LAST_ATTEMPT}")
    } else {
        String::new()
    };
    let sql = format!("{cte} SELECT count(*), count(*) FILTER (WHERE {}) FROM examined d {joins}", matching.sql);
    (sql, matching.values)
}

/// The examined deliveries of a part with their last attempts, and whether they match.
pub(crate) fn failures_of_part<'f>(filter: &'f DeliveryFilter, part: &ListPart, limit: u64) -> (String, Values<'f>) {
    let (cte, matching) = examined(filter, part, limit);
    let sql = format!(
        "{cte} SELECT {FAILED_COLUMNS}, ({}) IS TRUE FROM examined d
        CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id {LAST_ATTEMPT}
        LEFT JOIN destinations t ON t.id = d.destination_id",
        matching.sql
    );
    (sql, matching.values)
}
