//! The schedule, the permits and the delivery queue.
//!
//! One job per destination waits in the schedule. A scheduler claims due jobs as leases ([`Schedule::claim_due`]), and
//! publishes permitted attempts and re-queues the job in one atomic step ([`Schedule::publish`]). Workers take permits
//! ([`Permits::take`]), ask for a slot when theirs has passed or they had to connect first, and settle. The queue is a
//! cache of the store: losing it loses no event.
//!
//! A permit's life:
//!
//! ```text
//! publish ─┬▶ queued ──start────▶ in flight ──settle──▶ gone
//! admit ───┘    │ ▲                   │
//!               │ └── take_slot ──────┘   the slot was missed at the wire: not sent, another slot
//!               └──── hand_back ──▶ gone  withdrawn, its claim released: not sent
//! ```
//!
//! A backlog is published by runs. A delivery that is new, to a destination without a backlog, needs none: it is claimed as it
//! is stored, for room that was kept ([`Schedule::reserve`]), and admitted after the commit ([`Schedule::admit`]). It takes
//! the next slot off the same cursors.
//!
//! Two sets of cursors keep each destination. `issued` paces how fast permits are published; `slots` hands out the
//! intervals in which sends start. They differ only by permits published without a slot: to a destination that is *cold*
//! (the worker has no standing connection) a slot would pass while the connection is made, so the worker takes it once the
//! connection stands. Exactness rests on `slots` alone.

#[cfg(feature = "conformance")]
pub mod conformance;
mod mailbox;
pub mod memory;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
pub use mailbox::Mailbox;
use weir_core::{
    Destination, DestinationId, Limiter, RateLimits, Slot, Timestamp, claim::ClaimedDelivery, plan::NextRun,
};

/// No slot is granted that starts later than this from now: a permit that would have to wait longer goes back instead.
///
/// The queue sees to it and not the worker, for two reasons. A slot that a worker declines has moved the cursor, so the
/// next is as far away, and a slow limit would never send again. And after a loss of the queue the scheduler must know how
/// late a slot granted before it can start.
pub const SLOT_HORIZON: Duration = Duration::from_secs(2);
/// How long after a send over a standing connection the next one probably finds one too. Node's default keep-alive is 5 s.
pub const WARM_FOR: Duration = Duration::from_secs(4);
/// This long after the queue lost what it knew, no permit of before starts any more: a worker starts none without having heard
/// of the queue in the 2.5 seconds before, and then sends within its slot.
pub const LAST_OLD_START: Duration = Duration::from_secs(3);
/// How long a job that waits for a settle or a wake waits at most: one that never comes must not stop it for good.
pub const RUN_FALLBACK: Duration = Duration::from_secs(1);

/// Both halves of a queue.
pub trait Queue: Schedule + Permits + Send + Sync + 'static {}
impl<T: Schedule + Permits + Send + Sync + 'static> Queue for T {}

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

/// A destination was created, edited, paused, resumed or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    pub destination_id: DestinationId,
    /// Paused or deleted: permits that have not started are withdrawn.
    pub suspended: bool,
}

/// A claimed job: the right to run it once.
#[derive(Debug, Clone)]
pub struct Lease {
    pub destination_id: DestinationId,
    /// Rises with each claim; a publish with an older one is stale.
    pub epoch: u64,
    /// Rises with each wake and edit; a stop that saw an older one re-queues the job instead.
    pub version: u64,
    /// When the job was due.
    pub due: Timestamp,
    /// Permits published that no worker has started yet.
    pub queued: u32,
    /// Sends started and not yet settled.
    pub in_flight: u32,
    /// The cursors up to which permits have been issued; `None` when they are not known (a new queue, or a lost one): the
    /// scheduler recovers them from the store.
    pub issued: Option<Limiter>,
    /// When the queue began to keep what it knows now: the start of the process, or of Redis. Permits of before are not granted
    /// slots any more; one that had a slot may still start in the three seconds after.
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
    /// The limits in force; the cursors are moved to follow them.
    pub limits: RateLimits,
    /// The cursors to begin with, where the lease knew none.
    pub recovered: Option<Limiter>,
    pub deliveries: Vec<ClaimedDelivery>,
    pub next: NextRun,
}

/// What became of a [`Publication`].
#[derive(Debug, Clone)]
pub enum Published {
    Done,
    /// The lease had expired and the job was claimed again, or its destination was edited meanwhile. Nothing was
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

/// The right to start one send to a destination inside a slot. Used at most once.
#[derive(Debug, Clone)]
pub struct Permit {
    pub id: PermitId,
    /// `None`: to be taken with [`Permits::take_slot`] once a connection stands.
    pub slot: Option<Slot>,
    pub delivery: ClaimedDelivery,
}

/// What a worker says when it asks for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRequest {
    /// A standing connection was found, so the destination's next permits may be published with their slots. A permit that had a
    /// slot and missed it for want of a connection says `false`.
    pub warm: bool,
    /// Nothing was or will be sent in the slot that the permit was given last, which nobody else has. If none was handed out after
    /// it, the new one comes in exchange: what was missed costs its time and not its spacing, which may be a day.
    ///
    /// A cursor never moves back by it, because the exchange is one step: were it made twice, or late, a slot would be lost and no
    /// window exceeded.
    pub in_exchange: bool,
}

impl SlotRequest {
    /// Of a permit that has had no slot, with a standing connection.
    pub const WARM: Self = Self { warm: true, in_exchange: false };
    /// Likewise, with a connection that had to be made.
    pub const COLD: Self = Self { warm: false, in_exchange: false };
}

/// The answer to a worker that asks for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotAnswer {
    Granted(Slot),
    /// The destination is suspended, the permit has expired, or the next slot lies beyond [`SLOT_HORIZON`]: release the claim, then hand the permit back.
    Withdrawn,
}

/// The answer to who asks whether a delivery needs a run ([`Schedule::reserve`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It needs none: room for its permit is kept.
    Kept,
    /// Only room is wanting: as many permits are out as may be, and the last run found no backlog.
    Full,
    /// It has to wait for a run, or may have to.
    Closed,
}

impl Room {
    pub fn is_kept(self) -> bool {
        self == Self::Kept
    }
}

/// The scheduler's and the producer's half.
#[async_trait]
pub trait Schedule {
    /// Makes sure a job runs at `due` or earlier. Idempotent; pulls a parked job forward, but not below its pace.
    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()>;

    /// Runs the jobs of edited destinations at once, whatever they wait for.
    async fn edited(&self, edits: &[Edit]) -> QueueResult<()>;

    /// No slot of the destination starts before `until`; a hold is only ever extended.
    async fn hold(&self, destination_id: DestinationId, until: Timestamp) -> QueueResult<()>;

    /// Waits until a job is due and claims up to `max` of them, earliest due first, each for `lease_for`. A lease that
    /// ends without a publish makes its job due again.
    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs>;

    /// Answers when the queue can be reached.
    async fn check(&self) -> QueueResult<()>;

    /// Publishes attempts with their slots and re-queues or removes each job, atomically for each publication.
    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>>;

    /// Keeps room for a permit that [`Self::admit`] is to publish at once and without a run: the last run of the
    /// destination's job found less than it was allowed to take, its cursors follow these limits, a slot is free now, and
    /// fewer than `max_in_flight` permits are out.
    ///
    /// The permit is good until `expires_at`.
    ///
    /// The limits matter because only a run moves the cursors over to others: were an edit's announcement lost, a destination
    /// that never needs a run would keep the old ones for ever.
    fn reserve(&self, destination: &Destination, expires_at: Timestamp) -> Room;

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

    /// Another slot for a permit that has none or missed it; not an attempt.
    async fn take_slot(&self, id: PermitId, request: SlotRequest) -> QueueResult<SlotAnswer>;

    /// The send is about to leave: queued → in flight. Must not wait. `false` when the permit is known to be no longer good
    /// (its destination was suspended or held meanwhile, or it expired): then nothing may be sent.
    #[must_use]
    fn start(&self, id: PermitId) -> bool;

    /// The attempts of these permits are recorded; room for others.
    async fn settle(&self, ids: &[PermitId]) -> QueueResult<()>;

    /// These permits were not used and their claims are released.
    async fn hand_back(&self, ids: &[PermitId]) -> QueueResult<()>;
}
