//! How both stores read lists of deliveries and events, counts, and groups of failures.
//!
//! A store has only the statements, which differ in their dialect and in how they choose an index. This trait runs them
//! part by part ([`DeliveryFilter::parts`]) and puts the rows together, so that both stores give the same answers.

use async_trait::async_trait;
use weir_core::{DestinationId, delivery::Delivery, event::Event};

use crate::{
    DeliveryFilter, EXAMINED_AT_MOST, EventFilter, FailedDelivery, FailureGroups, ListCount, ListPart, Page,
    PageRequest, Scan, StoreResult,
};

/// The statements of the lists of one store, and the lists that are read with them.
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

    /// [`History::list_deliveries`](crate::History::list_deliveries).
    async fn page_of_deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Page<Delivery>> {
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

    /// [`History::count_deliveries`](crate::History::count_deliveries), with at most `most` examined.
    async fn count_of_deliveries(&self, filter: &DeliveryFilter, most: u32) -> StoreResult<ListCount> {
        let mut count = ListCount::default();
        let mut left = u64::from(most);
        for part in parts(self, filter).await? {
            let counted = self.count_of_part(filter, &part, left).await?;
            match count.add(left, counted) {
                Some(remaining) => left = remaining,
                None => break,
            }
        }
        Ok(count)
    }

    /// [`History::group_failures`](crate::History::group_failures).
    async fn groups_of_failures(&self, filter: &DeliveryFilter) -> StoreResult<FailureGroups> {
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

    /// [`History::list_events`](crate::History::list_events).
    async fn page_of_events(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Page<Event>> {
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
async fn parts<S: ListStatements + ?Sized>(store: &S, filter: &DeliveryFilter) -> StoreResult<Vec<ListPart>> {
    let is_small = filter.includes_waiting() && store.is_backlog_small(filter.destination_id).await?;
    Ok(filter.parts(is_small))
}
