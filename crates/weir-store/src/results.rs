//! The worker's side, and a person's: how deliveries end.

use async_trait::async_trait;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, Timestamp, claim::Claim, delivery::Attempt, outcome::Verdict,
};

use crate::StoreResult;

/// One attempt to record and what it makes of its delivery.
#[derive(Debug, Clone)]
pub struct AttemptResult {
    pub claim: Claim,
    pub attempt: Attempt,
    pub verdict: Verdict,
    /// When the attempt was judged.
    pub now: Timestamp,
}

/// What became of a recorded attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    Settled(DeliveryState),
    /// The claim was lost meanwhile (expired and recovered). Nothing was changed.
    ClaimLost,
}

/// What a person's request did to a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryAction {
    Done {
        destination_id: DestinationId,
    },
    NotFound,
    /// It is in this state, which does not allow it.
    Refused(DeliveryState),
    /// Its `expires_at` has passed.
    Expired,
    /// Its destination is deleted.
    DestinationGone,
}

#[async_trait]
pub trait Results {
    /// Records attempts and moves their deliveries on, in one group commit. Answers in the same order. A retry of a
    /// deleted destination's delivery becomes `cancelled`, one with a newer delivery of its coalesce key `superseded`.
    async fn settle(&self, results: Vec<AttemptResult>) -> StoreResult<Vec<Settlement>>;

    /// Makes a delivery due at once: a terminal one goes back to `pending`, a waiting one is pulled forward. Its counted
    /// attempts stay, so one whose attempts were exhausted gets one more. Refused while `delivering`, and once its
    /// `expires_at` has passed.
    async fn retry_delivery(&self, id: DeliveryId, now: Timestamp) -> StoreResult<DeliveryAction>;

    /// Cancels a waiting delivery. Refused in any other state.
    async fn cancel_delivery(&self, id: DeliveryId, now: Timestamp) -> StoreResult<DeliveryAction>;
}
