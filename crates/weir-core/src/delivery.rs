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
//!                    ──a newer event of its coalesce_key──▶ superseded   (of what is delivering: in place of retrying)
//! any ended one ──retry by hand──▶ pending                 (not once `expires_at` has passed)
//! failed | dead | cancelled | delivered ──replay──▶ pending, in the lane
//! pending | retrying in the lane ──the replay is cancelled──▶ what it was before
//! ```
//!
//! Where there is an order, one that is pending may have to wait for another: see [`crate::order`].

use crate::{
    error_kind::ErrorKind,
    id::{AttemptId, DeliveryId, DestinationId, EventId},
    outcome::Failure,
    time::Timestamp,
};

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Its event's time to live ended while it waited.
    Expired,
}

impl DeliveryState {
    /// Every state, in the order of a delivery's life.
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
        match self {
            Self::Pending => "pending",
            Self::Delivering => "delivering",
            Self::Retrying => "retrying",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
            Self::Expired => "expired",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether the delivery waits for a claim.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Pending | Self::Retrying)
    }

    /// Whether nothing more happens by itself.
    pub const fn is_terminal(self) -> bool {
        !self.is_waiting() && !matches!(self, Self::Delivering)
    }

    /// The waiting state of a delivery with this many counted attempts.
    pub const fn waiting(attempts: u32) -> Self {
        if attempts == 0 { Self::Pending } else { Self::Retrying }
    }
}

/// A delivery as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub event_id: EventId,
    pub event_type: String,
    pub destination_id: DestinationId,
    pub state: DeliveryState,
    /// Attempts counted so far.
    pub attempts: u32,
    /// When it is due, while it waits.
    pub next_attempt_at: Option<Timestamp>,
    /// From here on it is not sent any more.
    pub expires_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// How its last counted attempt ended, as long as that is kept.
    pub last_attempt: Option<LastAttempt>,
}

/// What a list shows of a delivery's last attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastAttempt {
    pub status_code: Option<u16>,
    /// In words.
    pub error: Option<String>,
    pub error_kind: Option<ErrorKind>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// The destination answered 2xx.
    Delivered,
    /// Failed in a way that another try may mend.
    Retryable,
    /// Refused for good.
    Rejected,
    /// The sender died or lost its claim before it could record what happened. The request may have arrived.
    Unknown,
}

impl AttemptOutcome {
    pub const ALL: [Self; 4] = [Self::Delivered, Self::Retryable, Self::Rejected, Self::Unknown];

    /// The name in JSON and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retryable => "retryable",
            Self::Rejected => "rejected",
            Self::Unknown => "unknown",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == name)
    }
}

/// One outbound HTTP request of a delivery; append-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub id: AttemptId,
    pub delivery_id: DeliveryId,
    /// 1 for the first.
    pub number: u32,
    /// When the request left for the socket; `None` when no connection could be made, so that nothing left; of an unknown
    /// outcome, the latest instant it can have left.
    pub sent_at: Option<Timestamp>,
    pub duration_ms: u32,
    pub outcome: AttemptOutcome,
    pub status_code: Option<u16>,
    /// What went wrong, in words fit for the destination's owner.
    pub error: Option<String>,
    /// Why there was no usable answer, if there was none.
    pub failure: Option<Failure>,
    /// The answer's body, cut to 16 KiB.
    pub response_body: Option<String>,
}
