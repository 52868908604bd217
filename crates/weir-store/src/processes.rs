//! Process leases: which processes live, and the claims of those that died.
//!
//! Each process that makes claims has a row with a beat, which it raises; its claims name it. The others watch the beats, each by
//! its own clock: when one stands still for too long, they declare its process dead.
//!
//! ```text
//! register ──▶ beat, beat, … ──▶ deregister
//!                 └──stands still──▶ declared dead ──▶ its claims are orphaned ──▶ resolved as of unknown outcome
//! ```
//!
//! A process that was only cut off finds its row gone by its next beat. It must have stopped sending by then, and registers anew.

use std::time::Duration;

use async_trait::async_trait;
use weir_core::{
    AttemptId, DeliveryState, Timestamp,
    claim::{Claim, ProcessId},
    delivery::{Attempt, AttemptOutcome},
    outcome::Verdict,
};

use crate::{AttemptResult, Recovered, Settlement, StoreResult};

/// A process raises its beat so often.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// A lease lasts this long after the last beat. Then the process stops by itself: it asks for no slot, and it takes and publishes no
/// permit.
pub const LEASE_VALID: Duration = Duration::from_secs(4);
/// When a beat has not changed for this long, its process is declared dead. This is longer than a lease lasts, so the process has
/// stopped by then.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);

/// A process and its beat. Beats mean nothing but that one which has changed was raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessBeat {
    pub id: ProcessId,
    pub beat: i64,
}

#[async_trait]
pub trait Processes {
    /// Registers this process. It owns every claim that this handle makes from then on, also by ingest; claims made before have no
    /// owner, and end by their expiry alone.
    async fn register_process(&self) -> StoreResult<ProcessId>;

    /// Raises the beat of this process. `false`: it is not registered, because it was declared dead. It makes no claims then, until
    /// it registers anew.
    async fn beat(&self) -> StoreResult<bool>;

    /// The processes that may be declared dead. A store that belongs to one process has none.
    async fn processes(&self) -> StoreResult<Vec<ProcessBeat>>;

    /// Removes a process whose beat is still this one. `false`: it has beaten meanwhile, or is gone already.
    async fn declare_dead(&self, id: ProcessId, beat: i64) -> StoreResult<bool>;

    /// Removes this process at its orderly end. What it has left claimed is orphaned at once.
    async fn deregister(&self) -> StoreResult<()>;

    /// Claims whose owners are not registered any more, at most `limit`.
    async fn orphaned_claims(&self, limit: u32) -> StoreResult<Vec<Claim>>;

    /// Resolves exactly these claims as [`crate::Outbox::recover_claims`] does those that have expired. What was settled, given back
    /// or resolved meanwhile is passed over, and so is what somebody is just settling.
    async fn resolve_claims(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<Recovered>;
}

/// A claim whose holder is gone, and what decides how its delivery goes on.
#[derive(Debug, Clone, Copy)]
pub struct AbandonedClaim {
    pub claim: Claim,
    /// Attempts counted before this one.
    pub attempts: u32,
    /// Those of them that were made before the delivery was replayed.
    pub attempts_before: u32,
    /// `None` when the destination is gone.
    pub max_attempts: Option<u32>,
}

impl AbandonedClaim {
    /// The result of its attempt: it may have been sent, up to this moment, and it counts.
    pub fn unknown_outcome(&self, now: Timestamp) -> AttemptResult {
        let Self { claim, attempts, attempts_before, max_attempts } = *self;
        let number = attempts + 1;
        let exhausted = max_attempts.is_some_and(|most| number.saturating_sub(attempts_before) >= most);
        let attempt = Attempt {
            // No fresh randomness here; the delivery's own and the number make it unique.
            id: AttemptId::new(now, u128::from_be_bytes(*claim.delivery_id.as_bytes()).wrapping_add(number.into())),
            delivery_id: claim.delivery_id,
            number,
            sent_at: Some(now),
            duration_ms: 0,
            outcome: AttemptOutcome::Unknown,
            status_code: None,
            error: Some(
                "the sender stopped before it could record the outcome; the request may have arrived".to_owned(),
            ),
            failure: None,
            response_body: None,
        };
        let verdict = if exhausted { Verdict::Dead } else { Verdict::Retry { at: now } };
        AttemptResult { claim, attempt, verdict, now }
    }
}

impl Recovered {
    /// How many claims were resolved.
    pub fn total(&self) -> u64 {
        self.retried + self.dead + self.cancelled + self.superseded
    }

    /// What became of abandoned claims.
    pub fn of(settlements: &[Settlement]) -> Self {
        let count = |state| settlements.iter().filter(|settled| settled.state() == Some(state)).count() as u64;
        Self {
            retried: count(DeliveryState::Retrying),
            dead: count(DeliveryState::Dead),
            cancelled: count(DeliveryState::Cancelled),
            superseded: count(DeliveryState::Superseded),
        }
    }
}
