//! Reads for the API: events, deliveries, attempts, send starts.

use std::{collections::BTreeSet, fmt, str::FromStr};

use async_trait::async_trait;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, ErrorKind, EventId, Timestamp,
    access::TenantScope,
    delivery::{Attempt, Delivery},
    error_kind::InvalidErrorKind,
    event::{Event, EventBody},
    pattern::EventPattern,
};

use crate::{FailureGroups, ListCount, ListOrder, StoreResult};

/// Where a page begins, and how many rows it has.
#[derive(Debug, Clone, Copy)]
pub struct PageRequest {
    /// The id of the last row of the previous page. The page has the rows after it, in the order of the list.
    pub before: Option<[u8; 16]>,
    /// 1 to 200.
    pub limit: u32,
}

/// Rows in the order of the list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// The `before` of the next page; `None` on the last page.
    pub next: Option<[u8; 16]>,
}

impl<T> Page<T> {
    /// A page of `rows`, which were read with a limit of one more than the page. The extra row shows that there is a
    /// next page.
    pub fn of(mut rows: Vec<T>, page: PageRequest, id: impl Fn(&T) -> [u8; 16]) -> Self {
        let limit = page.limit as usize;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(id);
        Self { rows, next }
    }
}

/// A bound below every id made in this millisecond and above every earlier id.
pub fn first_id(millis: i64) -> [u8; 16] {
    let millis = millis.clamp(0, 0xffff_ffff_ffff).unsigned_abs();
    let mut id = [0; 16];
    id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    id
}

/// The range of ids that has the deliveries of an event, which begin with the millisecond of its id: the first id of
/// the range, and the first id after it.
pub fn delivery_ids_of(event: EventId) -> ([u8; 16], [u8; 16]) {
    let millis = event.made_at().as_millis();
    (first_id(millis), first_id(millis + 1))
}

/// Which events to list. Times are of `created_at`, `from` included, `to` excluded.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub event_type: Option<EventPattern>,
    pub tenants: TenantScope,
    /// Needs `tenants`, because a key belongs to its tenant: no index has the keys of all tenants. Without them it is
    /// ignored.
    pub idempotency_key: Option<String>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub order: ListOrder,
}

impl EventFilter {
    /// Whether it has terms that no index serves, so that a page ends with its window.
    pub fn is_windowed(&self) -> bool {
        self.event_type.is_some() || self.tenants != TenantScope::All
    }

    /// Whether only Weir's own events match. They have an index, so the window is of them alone: alerts of last week
    /// are found behind a million events of today.
    pub fn is_operational(&self) -> bool {
        self.event_type.as_ref().is_some_and(EventPattern::is_operational)
    }

    /// The tenants and the key, if the events are found by their idempotency key.
    pub fn by_key(&self) -> Option<(&BTreeSet<String>, &str)> {
        Some((self.tenants.tenants()?, self.idempotency_key.as_deref()?))
    }
}

/// The most deliveries or events that a page of a list reads when no index serves its filter. A page that ends at this
/// bound may be short or empty and still have a `next`.
pub const SCANNED_AT_MOST: u32 = 5_000;

/// Which deliveries to list. Times are of `created_at`, `from` included, `to` excluded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeliveryFilter {
    pub destination_id: Option<DestinationId>,
    pub event_id: Option<EventId>,
    /// Only deliveries in one of these states. Empty: in any state.
    pub states: Vec<DeliveryState>,
    pub tenants: TenantScope,
    pub event_type: Option<EventPattern>,
    /// The error of the last counted attempt.
    pub error: Option<ErrorFilter>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub order: ListOrder,
}

impl DeliveryFilter {
    /// Whether it has terms on the event or the last attempt, so that a statement must join them.
    pub fn filters_joined(&self) -> bool {
        self.tenants != TenantScope::All || self.event_type.is_some() || self.error.is_some()
    }
}

/// A filter by error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorFilter {
    Kind(ErrorKind),
    /// A response with exactly this status.
    Status(u16),
}

impl fmt::Display for ErrorFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Status(status) => status.fmt(f),
        }
    }
}

/// A kind of error, or the exact status of a response.
impl FromStr for ErrorFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let status = text.parse().ok().filter(|status| matches!(status, 100..=199 | 300..=999));
        status
            .map(Self::Status)
            .or_else(|| text.parse().ok().map(Self::Kind))
            .ok_or_else(|| format!("{InvalidErrorKind}, or a status that is not 2xx, such as 503"))
    }
}

/// A delivery with its attempts, first to last.
#[derive(Debug, Clone)]
pub struct DeliveryDetail {
    pub delivery: Delivery,
    pub attempts: Vec<Attempt>,
}

/// Which recorded sends of a destination to read.
#[derive(Debug, Clone, Copy)]
pub struct SendsRequest {
    pub destination_id: DestinationId,
    /// Sends in `[from, to)`.
    pub from: Timestamp,
    pub to: Timestamp,
    /// The last send of the previous page. The page has later sends.
    pub after: Option<SendPlace>,
    pub limit: u32,
}

impl SendsRequest {
    /// The position after which the page begins.
    pub fn place(&self) -> SendPlace {
        let beginning = SendPlace { sent_at: self.from, delivery_id: DeliveryId::from_bytes([0; 16]), number: 0 };
        self.after.map_or(beginning, |after| after.max(beginning))
    }
}

/// The position of a send among those of its destination: by time, and at the same time by attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SendPlace {
    pub sent_at: Timestamp,
    pub delivery_id: DeliveryId,
    /// The number of the attempt within its delivery.
    pub number: u32,
}

/// One recorded send start, for the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRecord {
    /// For a send of unknown outcome, with the latest instant at which it may have started.
    pub place: SendPlace,
    /// For a successful attempt: when its event was created (or was due, or its replay began), and when the response
    /// was complete.
    pub delivered: Option<(Timestamp, Timestamp)>,
    /// Whether the outcome is unknown, because it could not be recorded.
    pub is_unknown: bool,
    /// Whether the receiver said that it takes no more now: 429, or 503 or 403 with `Retry-After` or a used-up quota.
    pub is_refused: bool,
}

#[async_trait]
pub trait History {
    /// The event, without its deliveries.
    async fn event(&self, id: EventId) -> StoreResult<Option<Event>>;

    /// The bodies of these events, in the same order; `None` where there is no such event. They are few, and may be
    /// large, so they are read one by one.
    async fn bodies(&self, ids: &[EventId]) -> StoreResult<Vec<Option<EventBody>>> {
        let mut bodies = Vec::with_capacity(ids.len());
        for &id in ids {
            bodies.push(self.event(id).await?.map(|event| event.body));
        }
        Ok(bodies)
    }

    /// Every delivery of an event.
    async fn event_deliveries(&self, id: EventId) -> StoreResult<Vec<Delivery>>;

    /// The events have empty bodies: those of a page may take hundreds of megabytes. [`Self::bodies`] reads them.
    ///
    /// A filter by type or tenant is applied to a window of [`SCANNED_AT_MOST`] events, with which the page ends. An
    /// idempotency key is looked up.
    async fn list_events(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Page<Event>>;

    async fn delivery(&self, id: DeliveryId) -> StoreResult<Option<DeliveryDetail>>;

    /// Reads at most [`SCANNED_AT_MOST`] deliveries, with any filter ([`DeliveryFilter::parts`]):
    ///
    /// - A filter that an index serves in the order of ids is read until the page is full.
    /// - Other filters are a tenant, an event type, an error, and a state that every delivery passes through. They are
    ///   applied to a window of [`SCANNED_AT_MOST`] rows, so that the cost of a page does not depend on the length of
    ///   the history. The page ends with its window, and the next page starts there.
    /// - Deliveries in flight, and waiting deliveries of a small backlog, are read and sorted, because their ids may be
    ///   anywhere.
    async fn list_deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Page<Delivery>>;

    /// The number of deliveries that match, among the first [`EXAMINED_AT_MOST`](crate::EXAMINED_AT_MOST) in the order
    /// of the filter.
    async fn count_deliveries(&self, filter: &DeliveryFilter) -> StoreResult<ListCount>;

    /// The deliveries that match, grouped by destination, state and error. Examines at most
    /// [`EXAMINED_AT_MOST`](crate::EXAMINED_AT_MOST) deliveries, the same number of each state. Only for states with an
    /// index: those of deliveries that ended undelivered.
    async fn group_failures(&self, filter: &DeliveryFilter) -> StoreResult<FailureGroups>;

    /// A page of the recorded send starts of a destination, earliest first. A page with fewer rows than its limit is
    /// the last.
    async fn sends(&self, request: SendsRequest) -> StoreResult<Vec<SendRecord>>;

    /// Whether a destination with this id exists or was deleted.
    async fn destination_existed(&self, id: DestinationId) -> StoreResult<bool>;

    /// Returns once the store has proved that it can read and write.
    async fn check(&self) -> StoreResult<()>;
}
