//! The delivery state machine.
//!
//! ```text
//! pending ──claim──▶ delivering ──2xx──▶ delivered
//!                      │  ├─ 408, 425, 429, 5xx, timeout, connect or TLS error ──▶ retrying ──due──▶ delivering
//!                      │  ├─ other 3xx, 4xx ──▶ failed          (410 also pauses the destination)
//!                      │  └─ attempts or age exhausted ──▶ dead
//!                      └─ permit not used ──▶ pending / retrying, attempt not counted
//! pending | retrying ──cancel / destination deleted──▶ cancelled
//!                    ──expires_at passed──▶ expired
//!                    ──a newer event of its coalesce_key──▶ superseded   (while delivering: instead of retrying)
//! any ended state ──retry by hand──▶ pending                 (not once `expires_at` has passed)
//! failed | dead | cancelled | delivered ──replay──▶ pending, as part of the replay
//! pending | retrying in a replay ──the replay is cancelled──▶ its previous state
//! ```
//!
//! At a destination with strict order, a pending delivery may have to wait for another one: see [`crate::order`].

use std::net::SocketAddr;

pub use crate::error_kind::AttemptOutcome;
use crate::{
    error_kind::{ErrorKind, Failure},
    id::{AttemptId, DeliveryId, DestinationId, EventId},
    limit_key::LimitKey,
    time::Timestamp,
};

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DeliveryState {
    Pending,
    Delivering,
    Retrying,
    Delivered,
    Failed,
    Dead,
    Cancelled,
    /// A newer event of the same `coalesce_key` took its place.
    Superseded,
    /// Its event's time to live ended while it was waiting.
    Expired,
}

impl DeliveryState {
    /// Every state, in the order of a delivery's life cycle.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Delivering,
        Self::Retrying,
        Self::Delivered,
        Self::Failed,
        Self::Dead,
        Self::Cancelled,
        Self::Superseded,
        Self::Expired,
    ];

    /// The name in JSON and in the store.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// The state with this name.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// Whether the delivery waits for a claim.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Pending | Self::Retrying)
    }

    /// Whether the delivery has ended: its state changes only by a retry by hand or a replay.
    pub const fn is_terminal(self) -> bool {
        !self.is_waiting() && !matches!(self, Self::Delivering)
    }

    /// The waiting state of a delivery with this many counted attempts.
    pub const fn waiting(attempts: u32) -> Self {
        if attempts == 0 { Self::Pending } else { Self::Retrying }
    }
}

/// A delivery as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub event_id: EventId,
    pub event_type: String,
    pub destination_id: DestinationId,
    pub state: DeliveryState,
    /// Attempts counted so far.
    pub attempts: u32,
    /// When the delivery is due, while it is waiting.
    pub next_attempt_at: Option<Timestamp>,
    /// The delivery is not claimed at this instant or later.
    pub expires_at: Option<Timestamp>,
    /// How much of a limit in costs each attempt takes.
    pub cost: u32,
    /// The limit key; `None` where the destination had none when the event was stored.
    pub limit_key: Option<LimitKey>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The end of the last counted attempt, unless the attempt was deleted by retention.
    pub last_attempt: Option<LastAttempt>,
}

/// The parts of a delivery's last attempt that a list shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastAttempt {
    pub status_code: Option<u16>,
    /// The error in words.
    pub error: Option<String>,
    pub error_kind: Option<ErrorKind>,
}

/// One outbound HTTP request of a delivery; append-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub id: AttemptId,
    pub delivery_id: DeliveryId,
    /// The number of the attempt, 1 for the first.
    pub number: u32,
    /// When the request was written to the socket. `None` when no connection could be made. For an unknown outcome, the
    /// latest instant at which the request can have been sent.
    pub sent_at: Option<Timestamp>,
    pub duration_ms: u32,
    pub outcome: AttemptOutcome,
    pub status_code: Option<u16>,
    /// The error, in words for the destination's owner.
    pub error: Option<String>,
    /// Why there was no usable answer; `None` when there was one.
    pub failure: Option<Failure>,
    /// The body of the answer, at most 16 KiB; of a 2xx answer at most 1 KiB.
    pub response_body: Option<String>,
    pub details: AttemptDetails,
}

impl Attempt {
    pub fn error_kind(&self) -> Option<ErrorKind> {
        ErrorKind::of(self.outcome, self.failure, self.status_code)
    }
}

/// What the owner of a destination needs to find out why an attempt ended as it did. Decides nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttemptDetails {
    /// The time that was signed: the `webhook-timestamp` of the request. `None` if nothing was sent.
    pub signed_at: Option<Timestamp>,
    /// The connection that carried the request. `None` if there was none.
    pub connection: Option<ConnectionDetails>,
    /// The first headers of the answer, in their order, without those that may hold credentials.
    pub response_headers: Vec<(String, String)>,
}

/// The connection of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionDetails {
    pub remote_address: SocketAddr,
    /// How long the name look-up and the TCP connection took. `None` if the connection had been used before.
    pub connect_ms: Option<u32>,
    /// How long the TLS handshake took. `None` also without TLS.
    pub tls_ms: Option<u32>,
}
