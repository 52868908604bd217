//! Lists of deliveries: the index that a page reads, and how far it reads, as [`weir_store::History::list_deliveries`]
//! says.

use weir_core::{DeliveryState, DestinationId, ErrorKind, delivery::Delivery, pattern::EventPattern};
use weir_store::{
    DeliveryFilter, EXAMINED_AT_MOST, ErrorFilter, FailureGroups, ListCount, ListPart, Page, PageRequest,
    SCANNED_AT_MOST, Scan, StoreResult, delivery_ids_of,
    rows::{self, DELIVERY_COLUMNS, FAILED_COLUMNS, LAST_ATTEMPT, Row as _, failure_code, state_code},
};

use crate::{SqliteStore, history::WhereClause, sql::Values};

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
            (Scan::Sorted, ..) if part.states == [DeliveryState::Delivering] => {
                ("INDEXED BY deliveries_claimed", Some("d.state = 1"))
            }
            (Scan::Sorted, ..) => ("INDEXED BY deliveries_due", Some("d.state IN (0, 2)")),
            // The states of deliveries that ended undelivered have indexes in the order of ids.
            (_, Some(_), Some(_)) => ("INDEXED BY deliveries_ended_of_destination", Some("d.state > 3")),
            (_, Some(_), None) => ("INDEXED BY deliveries_ended", Some("d.state > 3")),
            // Every other list reads the ids.
            (_, None, Some(_)) => ("INDEXED BY deliveries_of_destination", None),
            (_, None, None) => ("NOT INDEXED", None),
        };
        Self { index, predicate }
    }
}

impl SqliteStore {
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
            let (sql, values) = deliveries_page(filter, &part, page, end);
            let rows = self.read(sql, values, rows::delivery).await?;
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
            let (sql, values) = count_of_part(filter, &part, left);
            let counted = self.read(sql, values, |row| Ok((row.count(0)?, row.count(1)?))).await?;
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
            let (sql, values) = failures_of_part(filter, part, limit as u64);
            let mut read = self.read(sql, values, rows::failed_delivery).await?;
            capped |= read.len() > limit;
            read.truncate(limit);
            examined.append(&mut read);
        }
        Ok(FailureGroups::of(examined, capped))
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
        part: &ListPart,
        page: PageRequest,
        rows: u32,
    ) -> StoreResult<Option<[u8; 16]>> {
        let (sql, values) = window_end(filter, part, page, rows);
        Ok(self.read(sql, values, |row| row.id(0)).await?.pop())
    }
}

/// The condition on the state of a delivery `d`. Literals, not parameters: SQLite uses a partial index only for a
/// condition that is known at planning time.
fn in_states(states: &[DeliveryState]) -> String {
    let codes: Vec<_> = states.iter().map(|state| state_code(*state).to_string()).collect();
    match codes.as_slice() {
        [] => "1".to_owned(),
        [one] => format!("d.state = {one}"),
        several => format!("d.state IN ({})", several.join(", ")),
    }
}

impl<'f> WhereClause<'f> {
    pub(crate) fn of_destination(&mut self, id: Option<&'f DestinationId>) {
        if let Some(id) = id {
            self.add("d.destination_id = ?").blob(id.as_bytes());
        }
    }

    /// Adds the terms that the index of a part serves.
    fn indexed(&mut self, filter: &'f DeliveryFilter, part: &ListPart, cursor: Option<[u8; 16]>) {
        // The ids of an event's deliveries begin with its millisecond. Other events may share it.
        if let Some(id) = &filter.event_id {
            let (first, beyond) = delivery_ids_of(*id);
            self.add("d.id >= ?").owned_blob(first);
            self.add("d.id < ?").owned_blob(beyond);
            self.add("d.event_id = ?").blob(id.as_bytes());
        }
        self.of_destination(filter.destination_id.as_ref());
        if let Some(predicate) = PartIndex::of(filter, part).predicate {
            self.add(predicate);
            self.add(&in_states(&part.states));
        }
        self.range("d", (filter.order, cursor), filter.from, filter.to);
    }

    /// Adds the terms on the joined events and last attempts.
    pub(crate) fn filter_joined(&mut self, filter: &'f DeliveryFilter) {
        self.of_tenants(&filter.tenants);
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

pub(crate) fn window_end<'f>(
    filter: &'f DeliveryFilter,
    part: &ListPart,
    page: PageRequest,
    rows: u32,
) -> (String, Values<'f>) {
    let mut conditions = WhereClause::new();
    conditions.indexed(filter, part, page.before);
    conditions.values.int(i64::from(rows) - 1);
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
    conditions.add(&in_states(&part.states));
    if let Some(end) = window_end {
        conditions.add(&format!("d.id {} ?", filter.order.until())).owned_blob(end);
    }
    let limit = i64::from(page.limit) + 1;
    // Limit the rows before the events are looked up, unless the filter needs the events.
    conditions.values.int(if filter.filters_joined() { -1 } else { limit });
    // The terms so far filter the inner query. Those on events and last attempts filter the outer one.
    let planned = std::mem::replace(&mut conditions.sql, "1".to_owned());
    conditions.filter_joined(filter);
    conditions.values.int(limit);
    let (index, order) = (PartIndex::of(filter, part).index, filter.order.sql());
    let sql = format!(
        "SELECT {DELIVERY_COLUMNS} FROM (
            SELECT * FROM deliveries d {index} WHERE {planned} ORDER BY d.id {order} LIMIT +?
         ) d CROSS JOIN events e ON e.id = d.event_id {LAST_ATTEMPT} WHERE {} ORDER BY d.id {order} LIMIT +?",
        conditions.sql
    );
    (sql, conditions.values)
}

/// The first deliveries of a part, which are examined, as a CTE, and then the terms that they must match. At most one
/// more than `limit`, however few match.
fn examined<'f>(filter: &'f DeliveryFilter, part: &ListPart, limit: u64) -> (String, WhereClause<'f>) {
    let mut conditions = WhereClause::new();
    conditions.indexed(filter, part, None);
    conditions.values.int(limit as i64 + 1);
    let indexed = std::mem::replace(&mut conditions.sql, "1".to_owned());
    let cte = format!(
        "WITH examined AS (
            SELECT d.id, d.event_id, d.destination_id, d.state, d.attempts, d.created_at FROM deliveries d {}
            WHERE {indexed} ORDER BY d.id {} LIMIT +?
        )",
        PartIndex::of(filter, part).index,
        filter.order.sql()
    );
    conditions.add(&in_states(&part.states));
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
