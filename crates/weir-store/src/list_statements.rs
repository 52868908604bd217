//! How both stores read lists of deliveries and events, counts, and groups of failures.
//!
//! A store has only the statements, which differ in their dialect and in how they choose an index. [`Lists`] runs them
//! part by part ([`DeliveryFilter::parts`]) and puts the rows together, so that both stores give the same answers.

use async_trait::async_trait;
use weir_core::{DestinationId, delivery::Delivery, event::Event};

use crate::{
    DeliveryFilter, EXAMINED_AT_MOST, EventFilter, FailedDelivery, FailureGroups, ListCount, ListPart, Page,
    PageRequest, Scan, StoreResult,
};

/// The most dead letters that are counted before a discard: a few seconds of reading.
pub const DISCARDS_COUNTED: u32 = 1_000_000;

/// Lists of deliveries and events, counts, and groups of failures. Every store with [`ListStatements`] has them.
#[async_trait]
pub trait Lists: Send + Sync {
    /// The events have empty bodies: those of a page may take hundreds of megabytes.
    /// [`History::bodies`](crate::History::bodies) reads them.
    ///
    /// A filter by type or tenant is applied to a window of [`SCANNED_AT_MOST`](crate::SCANNED_AT_MOST) events, with which
    /// the page ends. An idempotency key is looked up.
    async fn list_events(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Page<Event>>;

    /// Reads at most [`SCANNED_AT_MOST`](crate::SCANNED_AT_MOST) deliveries, with any filter ([`DeliveryFilter::parts`]):
    ///
    /// - A filter that an index serves in the order of ids is read until the page is full.
    /// - Other filters are a tenant, an event type, an error, and a state that every delivery passes through. They are
    ///   applied to a window of [`SCANNED_AT_MOST`](crate::SCANNED_AT_MOST) rows, so that the cost of a page does not
    ///   depend on the length of the history. The page ends with its window, and the next page starts there.
    /// - Deliveries in flight, and waiting deliveries of a small backlog, are read and sorted, because their ids may be
    ///   anywhere.
    async fn list_deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Page<Delivery>>;

    /// The number of deliveries that match, among the first [`EXAMINED_AT_MOST`] in the order of the filter.
    async fn count_deliveries(&self, filter: &DeliveryFilter) -> StoreResult<ListCount>;

    /// The number of dead letters that a discard with this filter would settle, at most [`DISCARDS_COUNTED`].
    async fn count_discard(&self, filter: &DeliveryFilter) -> StoreResult<ListCount>;

    /// The deliveries that match, grouped by destination, state and error. Examines at most [`EXAMINED_AT_MOST`]
    /// deliveries, the same number of each state. Only for states with an index: those of deliveries that ended undelivered.
    async fn group_failures(&self, filter: &DeliveryFilter) -> StoreResult<FailureGroups>;
}

/// The statements of the lists of one store.
#[async_trait]
pub trait ListStatements: Sync {
    /// Whether at most [`SCANNED_AT_MOST`](crate::SCANNED_AT_MOST) deliveries wait: at one destination, or at all of
    /// them.
    async fn is_backlog_small(&self, destination_id: Option<DestinationId>) -> StoreResult<bool>;

    /// The last id of a window of `rows` deliveries of a part, which begins after `page.before`. `None` if fewer
    /// remain.
    async fn window_end(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        page: PageRequest,
        rows: u32,
    ) -> StoreResult<Option<[u8; 16]>>;

    /// The deliveries of a part that match, in the order of the filter: those after `page.before` and not after
    /// `window_end`, at most one more than the page has.
    async fn page_of_part(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        page: PageRequest,
        window_end: Option<[u8; 16]>,
    ) -> StoreResult<Vec<Delivery>>;

    /// How many deliveries of a part were examined, at most one more than `limit`, and how many of them match.
    async fn count_of_part(&self, filter: &DeliveryFilter, part: &ListPart, limit: u64) -> StoreResult<(u64, u64)>;

    /// The examined deliveries of a part, at most one more than `limit`, each with whether it matches.
    async fn failures_of_part(
        &self,
        filter: &DeliveryFilter,
        part: &ListPart,
        limit: u64,
    ) -> StoreResult<Vec<FailedDelivery>>;

    /// The last id of a window of events. The window begins after `page.before` and has
    /// [`SCANNED_AT_MOST`](crate::SCANNED_AT_MOST) events. Only Weir's own events count if the filter asks for these
    /// ([`EventFilter::is_operational`]). `None` if fewer remain.
    async fn events_window_end(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Option<[u8; 16]>>;

    /// The events that match, in the order of the filter: those after `page.before` and not after `window_end`, at most
    /// one more than the page has.
    async fn events_of_page(
        &self,
        filter: &EventFilter,
        page: PageRequest,
        window_end: Option<[u8; 16]>,
    ) -> StoreResult<Vec<Event>>;
}

#[async_trait]
impl<S: ListStatements + Send> Lists for S {
    async fn list_deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Page<Delivery>> {
        let mut pages = Vec::new();
        for part in parts(self, filter).await? {
            // Find the end of the window first: the page reads no further, however few rows match.
            let end = match part.scan {
                Scan::Window(rows) => self.window_end(filter, &part, page, rows).await?,
                Scan::ById | Scan::Sorted => None,
            };
            let rows = self.page_of_part(filter, &part, page, end).await?;
            let mut read = Page::of(rows, page, |delivery| *delivery.id.as_bytes());
            // A page that its window did not fill continues after the window.
            read.next = read.next.or(end);
            pages.push(read);
        }
        Ok(Page::merged(pages, page, filter.order, |delivery| *delivery.id.as_bytes()))
    }

    async fn count_deliveries(&self, filter: &DeliveryFilter) -> StoreResult<ListCount> {
        count_of(self, filter, EXAMINED_AT_MOST).await
    }

    async fn count_discard(&self, filter: &DeliveryFilter) -> StoreResult<ListCount> {
        count_of(self, filter, DISCARDS_COUNTED).await
    }

    async fn group_failures(&self, filter: &DeliveryFilter) -> StoreResult<FailureGroups> {
        let parts = parts(self, filter).await?;
        let limit = EXAMINED_AT_MOST as usize / parts.len().max(1);
        let (mut examined, mut capped) = (Vec::new(), false);
        for part in &parts {
            let mut read = self.failures_of_part(filter, part, limit as u64).await?;
            // The row beyond the limit only shows that there are more.
            capped |= read.len() > limit;
            read.truncate(limit);
            examined.append(&mut read);
        }
        Ok(FailureGroups::of(examined, capped))
    }

    async fn list_events(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Page<Event>> {
        // Of no tenant there is no event.
        if filter.tenants.tenants().is_some_and(|tenants| tenants.is_empty()) {
            return Ok(Page { rows: Vec::new(), next: None });
        }
        // Find the end of the window first: the page reads no further, however few events match.
        let is_windowed = filter.is_windowed() && filter.by_key().is_none();
        let end = if is_windowed { self.events_window_end(filter, page).await? } else { None };
        let rows = self.events_of_page(filter, page, end).await?;
        let mut read = Page::of(rows, page, |event| *event.id.as_bytes());
        read.next = read.next.or(end);
        Ok(read)
    }
}

/// What the statements of a list read. The size of the backlog matters only for waiting states.
async fn parts<S: ListStatements>(store: &S, filter: &DeliveryFilter) -> StoreResult<Vec<ListPart>> {
    let is_small = filter.includes_waiting() && store.is_backlog_small(filter.destination_id).await?;
    Ok(filter.parts(is_small))
}

/// How many deliveries match, with at most `most` examined.
async fn count_of<S: ListStatements>(store: &S, filter: &DeliveryFilter, most: u32) -> StoreResult<ListCount> {
    let mut count = ListCount::default();
    let mut left = u64::from(most);
    for part in parts(store, filter).await? {
        let counted = store.count_of_part(filter, &part, left).await?;
        match count.add(left, counted) {
            Some(remaining) => left = remaining,
            None => break,
        }
    }
    Ok(count)
}
