//! The end of deliveries: the results of workers, and manual retries, cancellations, discards and purges.

use std::sync::Arc;

use async_trait::async_trait;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, Timestamp,
    activity::Activity,
    claim::Claim,
    delivery::{Attempt, AttemptOutcome},
    outcome::Verdict,
};

use crate::{Purge, PurgePosition, PurgeStep, StoreResult, latency_bucket};

/// One attempt to record, and its verdict on the delivery.
#[derive(Debug, Clone)]
pub struct AttemptResult {
    pub claim: Claim,
    pub attempt: Attempt,
    pub verdict: Verdict,
    /// Whether the attempt counts against `max_attempts`. One that does not is a refusal, and the delivery is retried.
    pub is_counted: bool,
    /// When the attempt was judged.
    pub now: Timestamp,
}

impl AttemptResult {
    /// When the attempt started; if it could not connect, when it was judged.
    pub fn started_at(&self) -> Timestamp {
        self.attempt.sent_at.unwrap_or(self.now)
    }

    /// The bucket of the latency; `None` if nothing was sent, or if it is unknown what happened.
    pub fn latency_bucket(&self) -> Option<u16> {
        let is_known = self.attempt.sent_at.is_some() && self.attempt.outcome != AttemptOutcome::Unknown;
        is_known.then(|| latency_bucket(self.attempt.duration_ms))
    }

    /// The next state of the delivery by the verdict, and when a retry is due. Only the store knows whether it can be
    /// retried: a delivery of a deleted destination becomes `cancelled` instead, and a replaced one `superseded`
    /// ([`crate::intake`]).
    pub fn next_state(&self) -> (DeliveryState, Option<Timestamp>) {
        match self.verdict {
            Verdict::Delivered => (DeliveryState::Delivered, None),
            Verdict::Failed => (DeliveryState::Failed, None),
            Verdict::Retry { at } => (DeliveryState::Retrying, Some(at)),
            Verdict::Dead => (DeliveryState::Dead, None),
        }
    }
}

/// The effect of a recorded attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    Settled(DeliveryState),
    /// Settled, and the delivery has left its message group: the next one is the head, due at this time.
    Advanced {
        state: DeliveryState,
        next_due: Timestamp,
    },
    /// The claim had expired and was recovered. Nothing was changed.
    ClaimLost,
}

impl Settlement {
    /// The new state of the delivery; `None` if the claim was lost.
    pub fn state(self) -> Option<DeliveryState> {
        match self {
            Self::Settled(state) | Self::Advanced { state, .. } => Some(state),
            Self::ClaimLost => None,
        }
    }
}

/// The result of a manual request for one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryAction {
    Done {
        destination_id: DestinationId,
    },
    NotFound,
    /// The delivery's state, given here, does not allow the request.
    Refused(DeliveryState),
    /// The delivery's `expires_at` has passed.
    Expired,
    /// The delivery's destination is deleted.
    DestinationGone,
}

impl DeliveryAction {
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}

#[async_trait]
pub trait Results: Send + Sync {
    /// Records attempts and moves their deliveries to their next states ([`AttemptResult::next_state`]) in one
    /// commit. Returns the settlements in the same order. A delivery that has ended, or has failed
    /// `skip_after_attempts` times, leaves its message group; the next one becomes the head.
    async fn settle(&self, results: Vec<Arc<AttemptResult>>) -> StoreResult<Vec<Settlement>>;

    /// Makes a delivery due at once: an ended delivery returns to `pending`, a waiting one becomes due now. The counted
    /// attempts stay, so a delivery without attempts left gets one more. Refused while `delivering`, and once its
    /// `expires_at` has passed. The delivery order is kept: a delivery behind the head of its message group stays
    /// there, and an ended one joins its group again at its old position among the deliveries behind the head.
    async fn retry_delivery(&self, id: DeliveryId, now: Timestamp, activity: Activity) -> StoreResult<DeliveryAction>;

    /// Cancels a waiting delivery. Refused in any other state.
    async fn cancel_delivery(&self, id: DeliveryId, now: Timestamp, activity: Activity) -> StoreResult<DeliveryAction>;

    /// Discards those of these deliveries that are dead letters: they become `cancelled`. At most
    /// [`DISCARDED_AT_ONCE`](crate::DISCARDED_AT_ONCE), in one transaction. Returns how many. The activity counts what was
    /// discarded: `before` is the number that earlier steps have discarded.
    async fn discard_deliveries(
        &self,
        ids: Vec<DeliveryId>,
        now: Timestamp,
        activity: &Activity,
        before: u64,
    ) -> StoreResult<u64>;

    /// One step of a purge: cancels some of its deliveries after a position, in a transaction that is too short to
    /// delay claims and ingest. Claimed deliveries are skipped. All steps share one activity, which counts what the
    /// steps have cancelled: `before` is the number that earlier steps have cancelled.
    async fn purge_some(
        &self,
        purge: &Purge,
        after: Option<PurgePosition>,
        activity: &Activity,
        before: u64,
    ) -> StoreResult<PurgeStep>;

    /// The number of deliveries that a purge would cancel now. Reads only the waiting deliveries of its destination.
    async fn count_purge(&self, purge: &Purge) -> StoreResult<u64>;

    /// Cancels all deliveries of a purge, step by step. Returns how many. If a step fails, the deliveries of earlier
    /// steps stay cancelled.
    async fn purge(&self, purge: &Purge, activity: Activity) -> StoreResult<u64> {
        let mut step = self.purge_some(purge, None, &activity, 0).await?;
        let mut cancelled = step.cancelled;
        while let Some(position) = step.next {
            step = self.purge_some(purge, Some(position), &activity, cancelled).await?;
            cancelled += step.cancelled;
        }
        Ok(cancelled)
    }
}
