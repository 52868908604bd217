//! The schedule, the permits and the delivery queue.
//!
//! One job per destination waits in the schedule. A scheduler claims due jobs as leases ([`Schedule::claim_due`]), and
//! publishes permits and re-queues the job in one atomic step ([`Schedule::publish`]). Workers take permits
//! ([`Permits::take`]), stand ready to send, ask for a slot ([`Permits::take_slot`]), send inside it, and settle. The queue is a
//! cache of the store: losing it loses no event.
//!
//! A permit's life:
//!
//! ```text
//! publish ─┬▶ queued ──take_slot: granted──▶ in flight ──settle──▶ room for others ──recorded──▶ gone
//! admit ───┘    │ ▲                            │   ▲
//!               │ └─ take_slot: later          └───┘ take_slot: the slot was missed, another one
//!               └──── hand_back ──▶ gone             not sent, its claim released; costs no slot
//! ```
//!
//! A permit is the right to *ask*. Only the step that grants a slot gives the right to send, and it looks at everything that
//! decides: the permit, the destination's [`Terms`], its hold, the room below `max_in_flight`, and the cursors. An edit, a pause
//! or a hold thus binds for permits that are out as well.
//!
//! A backlog is published by runs. A delivery that is new, to a destination without a backlog, needs none: it is claimed as it
//! is stored, for room that was kept ([`Schedule::reserve`]), and admitted after the commit ([`Schedule::admit`]).

#[cfg(feature = "conformance")]
pub mod conformance;
mod mailbox;
pub mod memory;

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
pub use mailbox::Mailbox;
use tokio::time::Instant;
use weir_core::{
    Destination, DestinationId, Limiter, RateLimits, Slot, Timestamp,
    breaker::BreakerState,
    claim::{Claim, ClaimedDelivery, ProcessId},
    plan::NextRun,
};

/// A permit whose slot would start later than this from now goes back: it would only wait in the worker.
pub const SLOT_HORIZON: Duration = Duration::from_secs(2);
/// This long after the queue lost what it knew, no send starts any more in a slot that was granted before: slots are granted
/// 40 ms ahead and are at most 2.5 s wide.
pub const LAST_OLD_START: Duration = Duration::from_secs(3);
/// Permits are published so much earlier at most, for workers that take long to stand ready: connections take as long.
pub const LONGEST_PREPARATION: Duration = Duration::from_millis(1_500);
/// How long a job that waits for a settle or a wake waits at most: one that never comes must not stop it for good.
pub const RUN_FALLBACK: Duration = Duration::from_secs(1);

/// All of a queue.
pub trait Queue: Schedule + Permits + Leases + Send + Sync + 'static {}
impl<T: Schedule + Permits + Leases + Send + Sync + 'static> Queue for T {}

/// A queue, shared.
pub type SharedQueue = Arc<dyn Queue>;

/// The queue cannot be reached, or the outcome of the call is unknown.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the queue is unavailable: {0}")]
pub struct QueueError(pub String);

pub type QueueResult<T> = Result<T, QueueError>;

/// The destination has deliveries due from this instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    pub destination_id: DestinationId,
    pub due: Timestamp,
}

/// What the step that grants slots must know of a destination's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Rises with each edit: the destination's `updated_at`. Older terms never replace newer ones.
    pub version: Timestamp,
    pub limits: RateLimits,
    pub max_in_flight: u32,
    /// Paused, deleted, or its breaker is open: no slot is granted.
    pub suspended: bool,
}

impl Terms {
    /// Those of a destination as it is now.
    pub fn of(destination: &Destination, now: Timestamp) -> Self {
        let settings = &destination.settings;
        Self {
            version: destination.updated_at,
            limits: settings.rate_limits.clone(),
            max_in_flight: settings.max_in_flight,
            suspended: settings.paused || destination.breaker.state(now) == BreakerState::Open,
        }
    }

    /// Those of a destination that was deleted at `version`.
    pub fn deleted(version: Timestamp) -> Self {
        Self { version, limits: RateLimits::UNLIMITED, max_in_flight: 0, suspended: true }
    }
}

/// A destination was created, edited, paused, resumed or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub destination_id: DestinationId,
    pub terms: Terms,
}

/// A claimed job: the right to run it once.
#[derive(Debug, Clone)]
pub struct Lease {
    pub destination_id: DestinationId,
    /// Rises with each claim; a publish with an older one is stale.
    pub epoch: u64,
    /// Rises with each wake; a stop that saw an older one re-queues the job instead.
    pub version: u64,
    /// When the job was due.
    pub due: Timestamp,
    /// Permits published that have no slot yet.
    pub queued: u32,
    /// Sends started and not yet settled.
    pub in_flight: u32,
    /// Where the next slots may begin; `None` when that is not known (a new queue, or a lost one): the scheduler recovers it from
    /// the store.
    pub cursors: Option<Limiter>,
    /// How long workers took to stand ready.
    pub preparation: Duration,
    /// A bound on what may be out, below `max_in_flight`, while workers have no places for more.
    pub window: Option<u32>,
    /// When the queue began to keep what it knows now: the start of the process, or of Redis. Permits of before are not granted
    /// slots any more; one that had a slot may still be sent within [`LAST_OLD_START`].
    pub known_since: Timestamp,
}

/// What a claim of due jobs brought.
#[derive(Debug, Clone, Default)]
pub struct DueJobs {
    pub leases: Vec<Lease>,
    /// Permits in the delivery queue that no worker has taken yet.
    pub depth: usize,
}

/// What a run publishes, and when the job runs next unless the run continues.
#[derive(Debug, Clone)]
pub struct Publication {
    pub lease: Lease,
    /// The destination's terms as the run read them; `None` when it is gone. The cursors are moved to follow them.
    pub terms: Option<Terms>,
    /// The cursors to begin with, where the lease knew none.
    pub recovered: Option<Limiter>,
    pub deliveries: Vec<ClaimedDelivery>,
    pub next: NextRun,
}

/// What became of a [`Publication`].
#[derive(Debug, Clone)]
pub enum Published {
    Done,
    /// The lease had expired and the job was claimed again, or its destination was edited since the run read it. Nothing was
    /// published; the claims go back to the store.
    Stale(Vec<ClaimedDelivery>),
    /// The queue did not answer: the permits may be out. Their claims must be left to be settled or to expire.
    Unknown,
}

/// Names one permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PermitId {
    pub destination_id: DestinationId,
    pub serial: u64,
}

/// The right to ask for a slot, for one send of a claimed delivery.
#[derive(Debug, Clone)]
pub struct Permit {
    pub id: PermitId,
    pub published_at: Timestamp,
    /// When its slot is expected: the worker stands ready by then and asks a little before. `None`: as soon as it stands ready.
    pub expected_at: Option<Timestamp>,
    pub delivery: ClaimedDelivery,
}

/// A worker stands ready to send and asks for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRequest {
    pub id: PermitId,
    /// How long it took to stand ready: nothing over a standing connection. `None`: that was told before.
    pub preparation: Option<Duration>,
}

/// The answer to a worker that asks for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotAnswer {
    /// The permit is in flight.
    Granted(Slot),
    /// The next slot starts then: too far ahead to be granted now. Ask again a little before.
    Later(Timestamp),
    /// The destination is suspended, has no room, the permit is no longer good, or the next slot lies beyond [`SLOT_HORIZON`]:
    /// release the claim, then hand the permit back.
    Withdrawn,
}

/// A permit that was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedBack {
    pub id: PermitId,
    /// The worker had no place for it: requests to this destination take long, and others need places too.
    pub crowded: bool,
}

/// The scheduler's and the producer's half.
#[async_trait]
pub trait Schedule {
    /// Makes sure a job runs at `due` or earlier. Idempotent; pulls a parked job forward, but not below its pace.
    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()>;

    /// Runs the jobs of edited destinations at once, whatever they wait for, unless these terms or newer ones are known.
    async fn edited(&self, edits: &[Edit]) -> QueueResult<()>;

    /// No slot of the destination starts before `until`; a hold is only ever extended.
    async fn hold(&self, destination_id: DestinationId, until: Timestamp) -> QueueResult<()>;

    /// Waits until a job is due and claims up to `max` of them, earliest due first, each for `lease_for`. A lease that
    /// ends without a publish makes its job due again.
    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs>;

    /// Answers when the queue can be reached.
    async fn check(&self) -> QueueResult<()>;

    /// Publishes permits and re-queues or removes each job, atomically for each publication.
    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>>;

    /// Keeps room for a permit that [`Self::admit`] is to publish at once and without a run: the last run of the
    /// destination's job found less than it was allowed to take, its terms are those of this destination, a slot is free now,
    /// and fewer than `max_in_flight` permits are out.
    fn reserve(&self, destination: &Destination) -> bool;

    /// Gives up room that was kept.
    fn unreserve(&self, destination_id: DestinationId);

    /// Publishes deliveries for each of which room was kept, without a run; each says with which settings. Must not wait.
    /// What cannot be published after all comes back by [`Self::declined`].
    fn admit(&self, deliveries: Vec<ClaimedDelivery>);

    /// Waits until deliveries have been declined and answers them: their claims go back to the store.
    async fn declined(&self) -> Vec<ClaimedDelivery>;
}

/// The worker's half.
#[async_trait]
pub trait Permits {
    /// Waits for permits and takes up to `max` of them, in the order they were published.
    async fn take(&self, max: usize) -> QueueResult<Vec<Permit>>;

    /// Takes no more: answers what had been fetched for [`Permits::take`] and not yet taken, to go back unsent. The last call.
    async fn stop_taking(&self) -> Vec<Permit>;

    /// The one way to send: a slot for a worker that stands ready, decided and granted in one step.
    async fn take_slot(&self, request: SlotRequest) -> QueueResult<SlotAnswer>;

    /// The attempts of these permits have ended; room for others.
    async fn settle(&self, ids: &[PermitId]) -> QueueResult<()>;

    /// The store has the attempts of these settled permits: until then each is there to be found, should this process die.
    fn recorded(&self, ids: &[PermitId]);

    /// These permits were not used and their claims are released. One that had no slot costs none.
    async fn hand_back(&self, permits: &[HandedBack]) -> QueueResult<()>;
}

/// A permit that a process left that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftPermit {
    pub id: PermitId,
    pub claim: Claim,
    /// A slot was granted for it, so it may have been sent.
    pub had_slot: bool,
}

/// What the processes that share a queue must know of each other. A queue inside one process dies with it, and knows of no other.
#[async_trait]
pub trait Leases {
    /// This process is alive until then: later, unless this is called again, it takes and publishes no permit and gets no slot.
    /// Permits that it took under another name are not good any more.
    fn renew_lease(&self, _process: ProcessId, _until: Instant) {}

    /// Who has permits in hand.
    async fn holders(&self) -> QueueResult<Vec<ProcessId>> {
        Ok(Vec::new())
    }

    /// Permits that these processes had in hand: some, and none only if there are none. Those without a slot can get none any more.
    /// Each comes again until it is handed back, or settled and recorded.
    async fn left_permits(&self, _gone: &[ProcessId]) -> QueueResult<Vec<LeftPermit>> {
        Ok(Vec::new())
    }

    /// The claims of all permits that are in the delivery queue or in somebody's hand.
    async fn permitted_claims(&self) -> QueueResult<HashSet<Claim>> {
        Ok(HashSet::new())
    }
}
