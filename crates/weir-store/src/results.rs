//! The worker's side, and a person's: how deliveries end.

use std::sync::Arc;

use async_trait::async_trait;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, Timestamp, claim::Claim, delivery::Attempt, outcome::Verdict,
    pattern::EventPattern,
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
    /// Settled, and it has left its line: the next of that has come forward, due at this time.
    Advanced {
        state: DeliveryState,
        next_due: Timestamp,
    },
    /// The claim was lost meanwhile (expired and recovered). Nothing was changed.
    ClaimLost,
}

impl Settlement {
    /// The state that it led to; `None` when the claim was lost.
    pub fn state(self) -> Option<DeliveryState> {
        match self {
            Self::Settled(state) | Self::Advanced { state, .. } => Some(state),
            Self::ClaimLost => None,
        }
    }
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

/// Which waiting deliveries of a destination to cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purge {
    pub destination_id: DestinationId,
    pub pending: bool,
    pub retrying: bool,
    pub event_type: Option<EventPattern>,
    /// Of events created before this instant only: the beginning of the purge at the latest, so that what comes in meanwhile
    /// stays.
    pub before: Timestamp,
    /// When it began.
    pub now: Timestamp,
}

impl Purge {
    pub fn takes(&self, state: DeliveryState) -> bool {
        match state {
            DeliveryState::Pending => self.pending,
            DeliveryState::Retrying => self.retrying,
            _ => false,
        }
    }
}

/// Where a purge has got to, in the order in which deliveries are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgePlace {
    pub due: Timestamp,
    pub id: DeliveryId,
}

/// What one bounded transaction of a purge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeStep {
    pub cancelled: u64,
    /// Where the next goes on; `None` at the end.
    pub next: Option<PurgePlace>,
}

#[async_trait]
pub trait Results {
    /// Records attempts and moves their deliveries on, in one group commit. Answers in the same order. A retry of a
    /// deleted destination's delivery becomes `cancelled`, one with a newer delivery of its coalesce key `superseded`. Who leaves
    /// its line, because it has ended or has failed `skip_after_attempts` times, lets the next come forward.
    async fn settle(&self, results: Vec<Arc<AttemptResult>>) -> StoreResult<Vec<Settlement>>;

    /// Makes a delivery due at once: a terminal one goes back to `pending`, a waiting one is pulled forward. Its counted
    /// attempts stay, so one whose attempts were exhausted gets one more. Refused while `delivering`, and once its
    /// `expires_at` has passed. In a line it keeps to the order: one that is behind stays behind, and one that had ended
    /// joins its line again, at its old place among those behind.
    async fn retry_delivery(&self, id: DeliveryId, now: Timestamp) -> StoreResult<DeliveryAction>;

    /// Cancels a waiting delivery. Refused in any other state.
    async fn cancel_delivery(&self, id: DeliveryId, now: Timestamp) -> StoreResult<DeliveryAction>;

    /// Cancels some of what a purge is after, from a place on, in one transaction that is too short to be in the way of
    /// claims and ingest. What is claimed is passed over.
    async fn purge_some(&self, purge: &Purge, after: Option<PurgePlace>) -> StoreResult<PurgeStep>;

    /// Cancels all that a purge is after, step by step, and answers how many. Should a step fail, what was cancelled stays so.
    async fn purge(&self, purge: &Purge) -> StoreResult<u64> {
        let mut step = self.purge_some(purge, None).await?;
        let mut cancelled = step.cancelled;
        while let Some(place) = step.next {
            step = self.purge_some(purge, Some(place)).await?;
            cancelled += step.cancelled;
        }
        Ok(cancelled)
    }
}
