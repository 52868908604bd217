//! Reads for the API: events, deliveries, attempts, send starts.

use async_trait::async_trait;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, ErrorKind, EventId, Timestamp,
    delivery::{Attempt, AttemptOutcome, Delivery},
    event::{Event, EventBody},
};

use crate::{StoreResult, first_id};

/// A delivery with its attempts, first to last.
#[derive(Debug, Clone)]
pub struct DeliveryDetail {
    pub delivery: Delivery,
    pub attempts: Vec<Attempt>,
}

/// Which recorded sends of a destination to read.
#[derive(Debug, Clone, Copy)]
pub struct SendsRequest {
    /// Or the flow of one of its limit keys.
    pub destination_id: DestinationId,
    /// Sends in `[from, to)`.
    pub from: Timestamp,
    pub to: Timestamp,
    /// The last send of the previous page. The page has later sends.
    pub after: Option<SendPosition>,
    pub limit: u32,
}

impl SendsRequest {
    /// The position after which the page begins.
    pub fn position(&self) -> SendPosition {
        let beginning = SendPosition { sent_at: self.from, delivery_id: DeliveryId::from_bytes([0; 16]), number: 0 };
        self.after.map_or(beginning, |after| after.max(beginning))
    }
}

/// The position of a send among those of its destination: by time, and at the same time by attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SendPosition {
    pub sent_at: Timestamp,
    pub delivery_id: DeliveryId,
    /// The number of the attempt within its delivery.
    pub number: u32,
}

/// One recorded send start, for the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRecord {
    /// For a send of unknown outcome, with the latest instant at which it may have started.
    pub position: SendPosition,
    /// For a successful attempt: when its event was created (or was due, or its replay began), and when the response
    /// was complete.
    pub delivered: Option<(Timestamp, Timestamp)>,
    pub cost: u32,
    /// Whether the outcome is unknown, because it could not be recorded.
    pub is_unknown: bool,
    /// Whether the receiver said that it takes no more now: 429, or 503 or 403 with `Retry-After` or a used-up quota.
    pub is_refused: bool,
    pub status_code: Option<u16>,
    /// `None` for a successful attempt.
    pub error_kind: Option<ErrorKind>,
}

/// Which recorded deliveries of a destination to read, the latest first, with their attempts.
#[derive(Debug, Clone, Copy)]
pub struct PastRequest {
    pub destination_id: DestinationId,
    /// The delivery and the number of the attempt after which the page begins. Deliveries of the page are earlier ones.
    pub after: (DeliveryId, u32),
    /// Of attempts, and of deliveries without any.
    pub limit: u32,
}

impl PastRequest {
    /// The deliveries that were created before this instant, or in its millisecond.
    pub fn new(destination_id: DestinationId, before: Timestamp, limit: u32) -> Self {
        let beyond = DeliveryId::from_bytes(first_id(before.as_millis().saturating_add(1)));
        Self { destination_id, after: (beyond, u32::MAX), limit }
    }
}

/// A recorded delivery with one of its attempts, for a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastRecord {
    pub delivery_id: DeliveryId,
    pub state: DeliveryState,
    /// When it was due first.
    pub due_at: Timestamp,
    /// When it is due now, if it waits.
    pub next_attempt_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// When the last replay that took it began.
    pub replayed_at: Option<Timestamp>,
    pub cost: u32,
    /// `None`: the delivery has none.
    pub attempt: Option<PastRecordAttempt>,
}

/// One recorded attempt, for a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastRecordAttempt {
    pub number: u32,
    /// When it was sent; without a connection, when it began.
    pub began_at: Timestamp,
    pub duration_ms: u32,
    pub outcome: AttemptOutcome,
}

impl PastRecord {
    /// The place after which the next page begins, if this is the last record of a page.
    pub fn position(&self) -> (DeliveryId, u32) {
        (self.delivery_id, self.attempt.map_or(u32::MAX, |attempt| attempt.number))
    }
}

#[async_trait]
pub trait History: Send + Sync {
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

    /// The tenants that have events with an idempotency key, in their order, at most `most`. No index has the keys of all
    /// tenants, so a key is looked up in each of these. One probe of an index for each tenant.
    async fn tenants_with_keys(&self, most: u32) -> StoreResult<Vec<String>>;

    async fn delivery(&self, id: DeliveryId) -> StoreResult<Option<DeliveryDetail>>;

    /// A page of the recorded send starts of a destination or a flow, earliest first. A page with fewer rows than its limit is
    /// the last.
    async fn sends(&self, request: SendsRequest) -> StoreResult<Vec<SendRecord>>;

    /// A page of the deliveries of a destination, the latest first, each with its attempts, the first one first. A page with
    /// fewer records than its limit is the last.
    async fn past(&self, request: PastRequest) -> StoreResult<Vec<PastRecord>>;

    /// Whether a destination with this id exists or was deleted.
    async fn destination_existed(&self, id: DestinationId) -> StoreResult<bool>;

    /// Returns once the store has proved that it can read and write.
    async fn check(&self) -> StoreResult<()>;
}
