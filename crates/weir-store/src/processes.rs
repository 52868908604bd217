//! Heartbeats: the running processes, and the claims of dead ones.
//!
//! Each process that makes claims has a row with a beat, which it raises regularly; its claims name the process. The
//! other processes observe the beats, each with its own clock. When a beat has not changed for too long, they declare
//! its process dead.
//!
//! ```text
//! register ──▶ beat, beat, … ──▶ deregister
//!                 └──stops──▶ declared dead ──▶ its claims are orphaned ──▶ resolved as unknown outcomes
//! ```
//!
//! A process that takes the permits of others' claims renews these claims when it needs them for long, or when the queue
//! loses its permits. Then it owns them: what became of the process that made them does not matter any more.
//!
//! A process that was only disconnected finds at its next beat that its row is gone. It has stopped sending by then,
//! and registers again.

use std::time::Duration;

use async_trait::async_trait;
use weir_core::{
    AttemptId, DeliveryState, Timestamp,
    claim::{Claim, ProcessId},
    delivery::{Attempt, AttemptDetails, AttemptOutcome},
    outcome::Verdict,
};

use crate::{AttemptResult, Recovered, Settlement, StoreResult};

/// How often a process raises its beat.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How long a lease is valid after the last beat. Then the process stops by itself: it takes no slots and no permits,
/// and publishes none.
pub const LEASE_VALID: Duration = Duration::from_secs(4);
/// A process whose beat has not changed for this long is declared dead. This is longer than a lease, so the process has
/// stopped by then.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);

/// A process and its beat. The value has no meaning; a change shows that the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessBeat {
    pub id: ProcessId,
    pub beat: i64,
}

/// What a process says of itself, for people who look at the installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessProfile {
    /// The command that started it: `serve`, `api`, `scheduler` or `worker`.
    pub role: String,
    pub version: String,
    /// The name of its machine; in a container that of the container. Empty: an older version.
    pub host: String,
    pub started_at: Timestamp,
}

/// A registered process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningProcess {
    pub id: ProcessId,
    /// `None`: an older version, which stores no profile, or a process that registered a moment ago.
    pub profile: Option<ProcessProfile>,
    /// By how many microseconds the clock of its machine is ahead of that of the queue's server; negative: behind. `None`:
    /// an older version, a queue without a server, or no beat yet.
    pub clock_ahead_us: Option<i64>,
}

#[async_trait]
pub trait Processes: Send + Sync {
    /// Registers this process. It owns every claim that this handle makes from then on, also by ingest. Earlier claims
    /// have no owner and end only when they expire.
    async fn register_process(&self) -> StoreResult<ProcessId>;

    /// Stores what this process says of itself, until it registers again or is removed.
    async fn describe_process(&self, profile: ProcessProfile) -> StoreResult<()>;

    /// The registered processes, in the order of their ids.
    async fn running_processes(&self) -> StoreResult<Vec<RunningProcess>>;

    /// Raises the beat of this process, and says by how many microseconds its clock is ahead
    /// ([`RunningProcess::clock_ahead_us`]). `false` if it is no longer registered, because it was declared dead; it then
    /// makes no claims until it registers again.
    async fn beat(&self, clock_ahead_us: Option<i64>) -> StoreResult<bool>;

    /// Fails if this process lacks a key that may have sealed rows: it must not send then. If the store does not know the
    /// key that this process seals with, it learns of it.
    async fn check_keys(&self) -> StoreResult<()>;

    /// The processes that can be declared dead. A store with a single process has none.
    async fn processes(&self) -> StoreResult<Vec<ProcessBeat>>;

    /// Removes a process if its beat is still this one. `false` if the beat has changed or the process is already
    /// removed.
    async fn declare_dead(&self, id: ProcessId, beat: i64) -> StoreResult<bool>;

    /// Removes this process when it shuts down. Its remaining claims are orphaned at once.
    async fn deregister(&self) -> StoreResult<()>;

    /// This process holds the permits of these claims, or makes their attempts: it owns them from now on, and none of
    /// them expires before `expires_at`. A later expiry stays. Claims that no longer hold are skipped. Returns how many
    /// hold.
    async fn renew_claims(&self, claims: Vec<Claim>, expires_at: Timestamp) -> StoreResult<u64>;

    /// At most `limit` claims whose owners are no longer registered.
    async fn orphaned_claims(&self, limit: u32) -> StoreResult<Vec<Claim>>;

    /// Resolves exactly these claims, as [`crate::Outbox::recover_claims`] resolves expired ones. Claims that were
    /// settled, released or resolved meanwhile, or are being settled now, are skipped.
    async fn resolve_claims(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<Recovered>;
}

/// A claim whose process is no longer registered, with the data that decides the next state of its delivery.
#[derive(Debug, Clone, Copy)]
pub struct AbandonedClaim {
    pub claim: Claim,
    /// Attempts counted before this one.
    pub attempts: u32,
    /// The attempts among them that do not count: those before the delivery was replayed, and refusals.
    pub attempts_before: u32,
    /// `None` if the destination is deleted.
    pub max_attempts: Option<u32>,
}

impl AbandonedClaim {
    /// The result of its attempt. The request may have been sent, at any time until now, so the attempt counts.
    pub fn unknown_outcome(&self, now: Timestamp) -> AttemptResult {
        let Self { claim, attempts, attempts_before, max_attempts } = *self;
        // The attempt counts. Refusals and those before a replay do not count against the retries.
        let number = attempts + 1;
        let exhausted = max_attempts.is_some_and(|most| number.saturating_sub(attempts_before) >= most);
        let attempt = Attempt {
            // The random bits of the delivery's id and the number make the id unique.
            id: AttemptId::new(now, u128::from_be_bytes(*claim.delivery_id.as_bytes()).wrapping_add(number.into())),
            delivery_id: claim.delivery_id,
            number,
            // The latest possible instant, so that recovered cursors and the audit have an upper bound.
            sent_at: Some(now),
            duration_ms: 0,
            outcome: AttemptOutcome::Unknown,
            status_code: None,
            error: Some(
                "the sender stopped before it could record the outcome; the request may have arrived".to_owned(),
            ),
            failure: None,
            response_body: None,
            details: AttemptDetails::default(),
        };
        // Due again at once, unless no attempt is left. The store cancels the delivery instead if its destination is
        // deleted.
        let verdict = if exhausted { Verdict::Dead } else { Verdict::Retry { at: now } };
        AttemptResult { claim, attempt, verdict, is_counted: true, now }
    }
}

impl Recovered {
    /// How many claims were resolved.
    pub fn total(&self) -> u64 {
        self.retried + self.dead + self.cancelled + self.superseded
    }

    /// Counts the settlements of abandoned claims.
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
