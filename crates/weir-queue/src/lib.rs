//! The schedule, the permits and the delivery queue.
//!
//! The schedule holds one job per destination. A scheduler claims due jobs as leases ([`Schedule::claim_due`]). It
//! publishes permits and re-queues the job in one atomic step ([`Schedule::publish`]). Workers take permits
//! ([`Permits::take`]), get ready to send, ask for a slot ([`Permits::take_slot`]), send inside it, and settle. The
//! queue is a cache of the store: losing it loses no event.
//!
//! A permit's life:
//!
//! ```text
//! publish ─┬▶ queued ──take_slot: granted──▶ in flight ──settle──▶ settled: its room is free ──recorded──▶ removed
//! admit ───┘    │ ▲                            │   ▲
//!               │ └─ take_slot: later, no room └───┘ take_slot: after a missed slot, another one
//!               └──── hand_back ──▶ removed          not sent; its claim was released; costs no slot
//! ```
//!
//! A permit is the right to *ask*. Only the step that grants a slot gives the right to send. This step checks all
//! conditions: the permit, the destination's [`Terms`], its hold, the room below `max_in_flight`, and the cursors. So
//! an edit, a pause or a hold also applies to outstanding permits.
//!
//! Runs publish a backlog. A new delivery to a destination without a backlog needs no run: it takes the fast path. It
//! is claimed as it is stored, with reserved room ([`Schedule::reserve`]), and admitted after the commit
//! ([`Schedule::admit`]).
//!
//! `memory` is the queue inside a process. `mailbox` hands items from senders that must not wait to one receiver.

#[cfg(feature = "conformance")]
pub mod conformance;
mod edits;
mod mailbox;
pub mod memory;
mod paces;

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
pub use edits::Edits;
pub use mailbox::Mailbox;
pub use paces::known_paces;
use tokio::time::Instant;
use weir_core::{
    Destination, DestinationId, LimitGroup, LimitGroupId, Limiter, RateLimits, Slot, Timestamp,
    adaptive::{AdaptiveRate, PaceCursor, Sample, Status},
    breaker::BreakerState,
    claim::{Claim, ClaimedDelivery, ProcessId},
    limit_group::DEFAULT_WEIGHT,
    plan::NextRun,
    stall::Progress,
};

/// A permit whose slot would start later than this from now is withdrawn, because it would only wait in the worker.
/// Longer than the spacing of one a second, so that such a permit waits for its next slot.
pub const SLOT_HORIZON: Duration = Duration::from_secs(2);
/// No send starts later than this after a loss of the queue's data in a slot that was granted before the loss: slots
/// are granted 40 ms ahead and are at most 2.5 s wide.
pub const LAST_OLD_START: Duration = Duration::from_secs(3);
/// The longest time that permits are published earlier for workers that take long to be ready, mostly to connect. Below
/// [`SLOT_HORIZON`]: a permit that asks earlier than that is withdrawn.
pub const LONGEST_PREPARATION: Duration = Duration::from_millis(1_500);
/// The longest time that runs begin earlier because they take long: for a store that is 50 ms away and a run that waits
/// for the previous one. Longer runs are a fault, and permits that are published even earlier would only fill workers.
pub const LONGEST_RUN: Duration = Duration::from_millis(500);
/// How long a job waits at most for a settle or a wake, because either may be lost. A lost one costs a second, and a
/// job that waits for a slow receiver one run a second.
pub const RUN_FALLBACK: Duration = Duration::from_secs(1);

/// How long callers outside Weir keep their place, and the slots that are promised to them, without another request. Longer
/// than a slow call; a promise that nobody fetches keeps the others waiting.
pub const RESERVED_FOR: Duration = Duration::from_secs(1);
/// Callers ask again after this time at the latest, so that they keep their place.
pub const RESERVED_AGAIN: Duration = Duration::from_millis(400);

/// How long a record of a process is shown to others. With the time until the next look, a process that dies is forgotten
/// within 3 s.
pub const RECORD_KEPT: Duration = Duration::from_millis(2_800);

/// The whole interface of a queue.
pub trait Queue: Schedule + Permits + Leases + Send + Sync + 'static {}
impl<T: Schedule + Permits + Leases + Send + Sync + 'static> Queue for T {}

/// A shared queue.
pub type SharedQueue = Arc<dyn Queue>;

/// A call of the queue failed. The kind says whether it may have been carried out. For a call about several
/// destinations it is the kind of the first part that failed; other parts may have been carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The call was not sent.
    #[error("the queue cannot be reached: {0}")]
    NotSent(String),
    /// The queue answered that it has not carried out the call.
    #[error("the queue refuses the call: {0}")]
    Refused(String),
    /// The call may have been carried out.
    #[error("no usable answer from the queue: {0}")]
    Unknown(String),
}

pub type QueueResult<T> = Result<T, QueueError>;

/// The destination has deliveries due from this instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    pub destination_id: DestinationId,
    pub due: Timestamp,
}

/// No slot of the destination starts before `until`. A destination with limit keys is held by the id of
/// [their budget](weir_core::limit_key::budget_of_keys). When it ends, one send at a time is in flight, and one more with
/// each that is answered and not refused, until `max_in_flight` is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub destination_id: DestinationId,
    pub until: Timestamp,
    /// When the send whose answer asks for the hold started. A release ends only the holds that earlier sends asked
    /// for, in whatever order hold and release arrive.
    pub sent_at: Timestamp,
}

/// The settings of a destination that decide whether a slot is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Rises with each edit and with the end of an override: [`Destination::version`]. Older terms never replace newer ones.
    pub version: Timestamp,
    pub limits: RateLimits,
    pub max_in_flight: u32,
    /// Paused, deleted, or its breaker is open: no slot is granted.
    pub suspended: bool,
    /// The budget that the destination shares with others. Its terms come with runs and [`Schedule::edited_groups`].
    pub group: Option<LimitGroupId>,
    /// The limit group of a destination with limit keys, in the terms of the budget that its keys share and in those of its
    /// flows. Each slot is taken from it, too.
    pub outer: Option<LimitGroupId>,
    /// The share of the group's slots, in relation to the weights of the other members that have a backlog.
    pub weight: u16,
    /// A pace finds itself below the limits. Without it the queue forgets the pace at once.
    pub is_adaptive: bool,
    /// The hold that the store knows; [`Timestamp::MIN`] for none. The queue usually knows it before.
    pub held_until: Timestamp,
    /// The last release of a hold; [`Timestamp::MIN`] for none. A later one than the queue knows replaces its hold with
    /// `held_until`; under an earlier one `held_until` does not count.
    pub released_at: Timestamp,
    /// The group is a destination with limit keys. Its flows have terms of the same version: older ones are as good as unknown,
    /// so an edit of the destination applies to all of them at once.
    pub of_keys: bool,
    /// When the override ends that they come from. From then on they are as good as unknown: no slot is granted, and the
    /// job is due. The next run brings those that are in force.
    pub until: Option<Timestamp>,
}

impl Terms {
    /// The terms of a destination at `now`.
    ///
    /// Of one with limit keys: the terms of its deliveries without a key. Those of a key are the terms of its
    /// [flow](Destination::flow).
    pub fn of(destination: &Destination, now: Timestamp) -> Self {
        if destination.shared_budget() != destination.settings.limit_group {
            return Self { outer: destination.outer_group(), ..Self::of(&destination.flow(None), now) };
        }
        let until = destination.temporary.override_at(now).map(|overridden| overridden.until);
        let version = destination.version(now);
        let destination = destination.at(now);
        let settings = &destination.settings;
        Self {
            version,
            limits: settings.rate_limits.clone(),
            max_in_flight: settings.max_in_flight,
            suspended: settings.paused || destination.breaker.state(now) == BreakerState::Open,
            group: settings.limit_group,
            outer: None,
            weight: settings.weight,
            is_adaptive: settings.adaptive.is_some(),
            of_keys: false,
            held_until: destination.held_until.unwrap_or(Timestamp::MIN),
            released_at: destination.released_at.unwrap_or(Timestamp::MIN),
            until,
        }
    }

    /// The terms of a group at `now`, which name it as their own group. Nobody but people holds a group, so each edit replaces
    /// its hold. Without a maximum of its own, it is the largest number.
    pub fn of_group(group: &LimitGroup, now: Timestamp) -> Self {
        let effective = group.at(now);
        let held_until = group.temporary.hold_at(now).map_or(Timestamp::MIN, |hold| hold.until);
        // Receivers hold destinations.
        let (held_until, released_at) = match &group.keys_of {
            Some(of) => (of.held_until.unwrap_or(Timestamp::MIN), of.released_at.unwrap_or(Timestamp::MIN)),
            None => (held_until, group.updated_at),
        };
        Self {
            limits: effective.rate_limits.clone(),
            max_in_flight: effective.max_in_flight.unwrap_or(u32::MAX),
            suspended: group.keys_of.is_some_and(|of| of.suspended),
            group: Some(group.id),
            outer: group.outer(),
            weight: group.keys_of.map_or(DEFAULT_WEIGHT, |of| of.weight),
            of_keys: group.keys_of.is_some(),
            held_until,
            released_at,
            until: group.temporary.override_at(now).map(|overridden| overridden.until),
            ..Self::deleted(group.version(now))
        }
    }

    /// The limit group whose shard has these budgets. `None`: they are in the shard of the destination.
    pub fn home(&self) -> Option<LimitGroupId> {
        self.outer.or(self.group)
    }

    /// Whether they are still in force.
    pub fn are_valid(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// The terms of a destination that was deleted at `version`.
    pub fn deleted(version: Timestamp) -> Self {
        let [held_until, released_at] = [Timestamp::MIN; 2];
        let limits = RateLimits::UNLIMITED;
        let (group, weight) = (None, DEFAULT_WEIGHT);
        Self {
            version,
            limits,
            max_in_flight: 0,
            suspended: true,
            group,
            outer: None,
            weight,
            is_adaptive: false,
            of_keys: false,
            held_until,
            released_at,
            until: None,
        }
    }
}

/// A destination was created, edited, paused, resumed or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermsChange {
    pub destination_id: DestinationId,
    pub terms: Terms,
}

/// The pace of an adaptive destination: its state, the cursor by which slots are granted, and what workers have reported
/// since the last run, with the times of arrival. A lease has all of it; afterwards the run is its only writer.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    pub rate: AdaptiveRate,
    pub cursor: PaceCursor,
    pub reports: Vec<(Timestamp, Sample)>,
}

/// With this many reports a job runs, so that a destination without a backlog is judged too.
pub const REPORTS_OF_A_RUN: usize = 16;
/// The most reports that a job keeps: those of four workers in the time of [`REPORTS_OF_A_RUN`]. The oldest are dropped,
/// which costs an epoch some answers.
pub const MOST_REPORTS: usize = 64;
/// The job of a slower pace runs with each report, because its next paced run may be a minute away.
pub const SLOW_PACE: Duration = Duration::from_secs(1);

impl Pace {
    pub fn new(rate: AdaptiveRate, now: Timestamp) -> Self {
        Self { cursor: rate.cursor(now), rate, reports: Vec::new() }
    }
}

/// The share of a run in the budget that its destination shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub group: LimitGroupId,
    /// The most permits that the run may publish. What it leaves goes to the other members at once.
    pub permits: u32,
    /// The queue knows the terms and the cursors of the group. If not, the run publishes no permit: it recovers them from
    /// the store.
    pub is_known: bool,
    /// [`JobLease::known_since`] of the group.
    pub known_since: Timestamp,
    /// Where the group is the budget of limit keys: the limit group of their destination.
    pub outer: Option<OuterGroup>,
}

/// What the queue knows of the limit group of a destination with limit keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterGroup {
    pub group: LimitGroupId,
    /// As [`Turn::is_known`].
    pub is_known: bool,
    /// As [`Turn::known_since`].
    pub known_since: Timestamp,
}

impl Turn {
    /// The groups of the turn, the inner one first.
    pub fn groups(&self) -> impl Iterator<Item = OuterGroup> + use<> {
        let Self { group, is_known, known_since, outer, .. } = *self;
        std::iter::once(OuterGroup { group, is_known, known_since }).chain(outer)
    }
}

/// What a run has read of the group of its destination.
#[derive(Debug, Clone)]
pub struct GroupRun {
    /// Its [`Terms::of_group`] count. Older terms never replace newer ones.
    pub terms: Arc<LimitGroup>,
    /// The recovered cursors, when the queue knows none.
    pub recovered: Option<Limiter>,
}

/// A destination that has left a shard, because its group has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftShard {
    /// Or the budget that its limit keys share.
    pub destination_id: DestinationId,
    pub of_keys: bool,
    pub shard: u16,
    /// [`Terms::version`] of the destination, which is elsewhere by them.
    pub version: Timestamp,
}

/// A claimed job: the right to run it once.
#[derive(Debug, Clone)]
pub struct JobLease {
    pub destination_id: DestinationId,
    /// Where the job is ([`Schedule::shard_of`]).
    pub shard: u16,
    /// `None` where the destination has no group, or the queue does not know it yet.
    pub turn: Option<Turn>,
    /// Rises with each claim. A publication with an older epoch is stale.
    pub epoch: u64,
    /// Rises with each wake, except one for which the job already runs early enough. A stop with an older version re-queues
    /// the job instead.
    pub version: u64,
    /// When the job was due.
    pub due: Timestamp,
    /// Permits published that have no slot yet.
    pub queued: u32,
    /// Sends started and not yet settled.
    pub in_flight: u32,
    /// Where the next slots may begin. `None` in a new queue, or one that lost its data: the scheduler recovers the
    /// cursors from the store.
    pub cursors: Option<Limiter>,
    /// `None` where the destination is not adaptive, or the queue has lost the pace: then the store has a copy.
    pub pace: Option<Box<Pace>>,
    /// How long workers take to be ready to send.
    pub preparation: Duration,
    /// How long a run of the job takes, from its due time to its publication.
    pub run_time: Duration,
    /// How many attempts end until this run and the next one have published and their permits are ready, as measured
    /// since the last lease.
    pub ahead: u32,
    /// The maximum of outstanding permits, below `max_in_flight`, while workers have no places for more or after a hold.
    pub max_outstanding: Option<u32>,
    /// When the job's current data began: at the start of the process, with the loss of Redis, or with the loss of this
    /// job alone. Earlier permits get no slots any more; an earlier permit that had a slot may still be sent within
    /// [`LAST_OLD_START`].
    pub known_since: Timestamp,
}

/// The result of a claim of due jobs.
#[derive(Debug, Clone, Default)]
pub struct DueJobs {
    pub leases: Vec<JobLease>,
    /// Permits in the delivery queue that no worker has taken.
    pub depth: usize,
}

/// The result of a run: what it publishes, and when the job runs next.
#[derive(Debug, Clone)]
pub struct Publication {
    pub lease: JobLease,
    /// The terms that the run read; `None` when the destination was deleted. The cursors are moved to these limits.
    pub terms: Option<Terms>,
    /// The recovered cursors, when the lease has none.
    pub recovered: Option<Limiter>,
    /// The budgets that the job shares: the group of the destination; or the budget of limit keys, and then the limit group
    /// of their destination.
    pub groups: Vec<GroupRun>,
    /// The pace after the run. `None` where the destination is not adaptive.
    pub pace: Option<Box<AdaptiveRate>>,
    pub deliveries: Vec<ClaimedDelivery>,
    pub next: NextRun,
}

/// The answer to a [`Publication`].
#[derive(Debug, Clone)]
pub enum Published {
    Done,
    /// Nothing was published, because the lease had expired and the job was claimed again, or the destination was
    /// edited after the run had read it. The claims must be released.
    Stale(Vec<ClaimedDelivery>),
    /// The queue did not answer, so the permits may be published. Their claims must not be released: they are settled
    /// or expire.
    Unknown,
}

/// Names one permit of a flow: of a destination, or of one of its limit keys.
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
    /// When its slot is expected: the worker is ready by then and asks a little earlier. `None`: the worker asks as
    /// soon as it is ready.
    pub expected_at: Option<Timestamp>,
    pub delivery: ClaimedDelivery,
}

/// The request of a worker that is ready to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRequest {
    pub id: PermitId,
    /// How long the worker took to be ready, from the publication of the permit. `None` when it was reported before.
    pub preparation: Option<Duration>,
    /// The last slot that the worker got for the permit is over, and nothing was or will be sent in it. While it is
    /// still the last slot that was granted, its spacing is given back before another one is granted.
    pub missed: bool,
    /// [`ClaimedDelivery::cost`] of the permit: the slot takes it from each limit in costs, or nothing.
    pub cost: u32,
}

impl SlotRequest {
    /// The first request of a permit with a cost of 1, whose worker was ready at once.
    pub fn new(id: PermitId) -> Self {
        Self { id, preparation: None, missed: false, cost: 1 }
    }
}

/// What a slot of an adaptive destination is granted under; the report of its answer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacedGrant {
    /// [`PaceCursor::generation`].
    pub generation: u32,
    /// The requests in flight, this one included.
    pub in_flight: u32,
}

/// What a worker has seen of an adaptive destination since its last report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    pub destination_id: DestinationId,
    pub sample: Sample,
}

/// The answer to a [`SlotRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotAnswer {
    /// The permit is in flight.
    Granted(Slot, Option<PacedGrant>),
    /// The next slot starts at this instant, which is too far ahead to grant it now. Ask again a little before it.
    Later(Timestamp),
    /// `max_in_flight` sends are in flight. Ask again in a few milliseconds.
    NoRoom,
    /// The cost is above a limit, so no slot is ever granted.
    AboveLimit,
    /// Release the claim, then hand the permit back: the destination is suspended, the permit is not valid any more, or
    /// the next slot is beyond [`SLOT_HORIZON`].
    Withdrawn,
}

/// A permit whose attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    pub id: PermitId,
    /// When its send started, if the receiver answered and did not refuse it. Then one more send may be in flight after
    /// a hold that ended before this instant.
    pub answered: Option<Timestamp>,
}

impl From<PermitId> for Settled {
    /// An attempt without such an answer.
    fn from(id: PermitId) -> Self {
        Self { id, answered: None }
    }
}

/// A permit that a worker did not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedBack {
    pub id: PermitId,
    /// The worker had no place for it: requests to this destination take long, and other destinations need places too.
    pub crowded: bool,
}

/// A slot that a caller outside Weir wants from a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedSlot {
    pub cost: u32,
    /// How long the slot is at least wide for the caller.
    pub width: Duration,
}

/// The answer to [`Schedule::reserve_slots`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservedSlots {
    /// The slots of the first that were wanted, in their order.
    pub granted: Vec<Slot>,
    /// When to ask again for the others. Ask earlier when others want slots, too.
    pub next: Option<Timestamp>,
    /// When the slot of the first of the others is expected, if one waits.
    pub expected: Option<Timestamp>,
    /// The queue does not know the cursors of the group. The caller recovers them and asks again.
    pub is_unknown: bool,
    /// The cost of the first that was not granted is above a limit, so it never will be.
    pub is_above_limit: bool,
}

/// Why a caller outside Weir gets no slot, or its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReserveAnswer {
    Granted(Slot),
    /// Not within the time that the caller waits. A slot is expected at this instant.
    Later(Timestamp),
    /// The cost is above a limit of the group.
    AboveLimit,
    /// As many callers wait in this process as may wait.
    TooMany,
}

/// Takes slots of groups for callers outside Weir, in turn. One for each process that answers the API.
#[async_trait]
pub trait ReserveSlots: Send + Sync + 'static {
    /// Waits at most `wait` for a slot. A caller that goes away (the future is dropped) leaves its place.
    async fn reserve(
        &self,
        group: Arc<LimitGroup>,
        wanted: WantedSlot,
        wait: Duration,
    ) -> Result<ReserveAnswer, ReserveError>;

    /// Whether the caller may be told of its slot, whose row is durable now: [`Schedule::has_kept`].
    async fn has_kept(&self, group: LimitGroupId, start: Timestamp) -> QueueResult<bool>;

    /// Gives a slot back whose caller will not use it.
    async fn give_back(&self, group: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()>;
}

/// A slot could not be asked for; nobody got one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The store, which knows the group's last sends, did not answer.
    #[error("the store does not answer: {0}")]
    Store(String),
}

/// What the queue knows of some destinations, for the watch over stalls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueProgress {
    /// How long the oldest permit that no worker has taken has waited.
    pub untaken_for: Duration,
    /// In the order of the request; the default for a destination that the queue does not know.
    pub of: Vec<Progress>,
}

/// The interface for schedulers and producers.
#[async_trait]
pub trait Schedule {
    /// Makes sure that a job runs at `due` or earlier. Idempotent. A parked job becomes due earlier, but a paced job
    /// keeps its pace.
    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()>;

    /// Applies new terms, and makes the jobs of the edited destinations due at once. Ignores terms that are not newer
    /// than the known ones.
    async fn edited(&self, edits: &[TermsChange]) -> QueueResult<()>;

    /// Applies new terms of groups, unless the queue knows newer ones. Permits that wait for a slot get it by these
    /// terms.
    async fn edited_groups(&self, edits: &[Arc<LimitGroup>]) -> QueueResult<()>;

    /// Where the budgets of a destination of this group are: all budgets of a destination are in one shard. A queue
    /// inside one process has one.
    fn shard_of(&self, _id: DestinationId, _group: Option<LimitGroupId>) -> u16 {
        0
    }

    /// Takes note of the limit group of a destination, or of a flow of it, for calls that name only this id.
    fn learn_group(&self, _id: DestinationId, _group: Option<LimitGroupId>) {}

    /// Removes the jobs and permits of destinations in shards that they have left: after the answer no permit of them
    /// gets a slot. `false` where the shard knows newer terms of the destination: the run has read old ones.
    async fn close(&self, left: &[LeftShard]) -> QueueResult<Vec<bool>> {
        Ok(vec![true; left.len()])
    }

    /// Holds destinations. A hold is only extended; terms with a later `released_at` end it. A hold that was asked for
    /// before the known release is ignored.
    async fn hold(&self, holds: &[Hold]) -> QueueResult<()>;

    /// Waits until a job is due and claims up to `max` due jobs, earliest first, each for `lease_for`. If a lease ends
    /// without a publication, its job is due again.
    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs>;

    /// Returns when the queue can be reached.
    async fn check(&self) -> QueueResult<()>;

    /// How far these destinations, flows of limit keys or [their budgets](weir_core::limit_key::budget_of_keys) have come.
    /// Changes nothing.
    async fn progress(&self, ids: &[DestinationId]) -> QueueResult<QueueProgress>;

    /// The paces of these destinations, in the order of the request. `None` for a destination that is not adaptive, or
    /// whose pace the queue does not know. Changes nothing.
    async fn paces(&self, ids: &[DestinationId]) -> QueueResult<Vec<Option<Status>>> {
        Ok(vec![None; ids.len()])
    }

    /// Publishes permits and re-queues or removes each job, atomically for each publication.
    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>>;

    /// Reserves room for a permit that [`Self::admit`] will publish without a run. `flow`: that of the delivery's limit key,
    /// otherwise the destination. There is room under four conditions: the last run of the job found less than it was allowed
    /// to claim, the job has the terms of this destination, a slot is free now (or soon, if only replays have a backlog), and
    /// fewer than `max_in_flight` permits are outstanding. Slot and room are needed in each budget of the flow, beside one
    /// permit for each member that waits for its turn there.
    fn reserve(&self, destination: &Destination, flow: DestinationId) -> bool;

    /// Releases reserved room.
    fn unreserve(&self, flow: DestinationId);

    /// Publishes deliveries without a run. Room was reserved for each of them, and each carries the destination that it
    /// was claimed for. Must not wait. Deliveries that cannot be published come back from [`Self::declined`].
    fn admit(&self, deliveries: Vec<ClaimedDelivery>);

    /// Takes slots of a group for callers outside Weir, who wait in this order; `group` has what the queue may not know of it.
    /// Together they have turns like one member with weight 1. No slot starts later than the queue grants ahead.
    async fn reserve_slots(&self, _group: &GroupRun, _wanted: &[WantedSlot]) -> QueueResult<ReservedSlots> {
        Err(QueueError::Refused("this queue has no reservations".to_owned()))
    }

    /// Gives a reserved slot back that nobody has used, if it is the last that the group has granted. Otherwise it stays
    /// taken, which only delays.
    async fn give_back_reserved(&self, _group: LimitGroupId, _cost: u32, _start: Timestamp) -> QueueResult<()> {
        Ok(())
    }

    /// Whether the queue still has the data in which it granted this slot. A queue that has lost them may not have counted
    /// the slot since then, unless the store had its row before. A queue inside one process loses nothing while it runs.
    async fn has_kept(&self, _group: LimitGroupId, _start: Timestamp) -> QueueResult<bool> {
        Ok(true)
    }

    /// Waits for declined deliveries. Their claims must be released.
    async fn declined(&self) -> Vec<ClaimedDelivery>;
}

/// The interface for workers.
#[async_trait]
pub trait Permits {
    /// Waits for permits and takes up to `max` of them, in the order of publication.
    async fn take(&self, max: usize) -> QueueResult<Vec<Permit>>;

    /// Stops taking permits. Returns the permits that were fetched for [`Permits::take`] and not taken; their claims
    /// must be released. [`Permits::take`] must not be called afterwards.
    async fn stop_taking(&self) -> Vec<Permit>;

    /// The only way to send: decides about a slot and grants it in one step, for a worker that is ready.
    async fn take_slot(&self, request: SlotRequest) -> QueueResult<SlotAnswer>;

    /// How long a request for a slot takes until its answer is here, at the upper end of what was measured lately. Workers
    /// ask earlier by this time.
    fn slot_round_trip(&self) -> Duration {
        Duration::ZERO
    }

    /// The attempts of these permits have ended. Their room is free for other permits.
    async fn settle(&self, settled: &[Settled]) -> QueueResult<()>;

    /// Reports answers of adaptive destinations to their jobs. One that is lost costs little, so nothing is repeated.
    async fn report(&self, _reports: &[Report]) -> QueueResult<()> {
        Ok(())
    }

    /// The store has recorded the attempts of these settled permits. Until then other processes can find the permits,
    /// in case this process dies.
    fn recorded(&self, ids: &[PermitId]);

    /// A number that changes whenever the queue has lost permits that this process holds, or may have lost them. Then only
    /// this process knows of its attempts, and must say so in the store.
    fn losses(&self) -> u64 {
        0
    }

    /// These permits were not used, and their claims are released. A permit without a slot costs none.
    async fn hand_back(&self, permits: &[HandedBack]) -> QueueResult<()>;
}

/// A permit that a dead process held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphanedPermit {
    pub id: PermitId,
    pub claim: Claim,
    /// A slot was granted for the permit, so the delivery may have been sent.
    pub had_slot: bool,
}

/// What processes that share a queue know of each other. The default methods are for a queue inside one process.
#[async_trait]
pub trait Leases {
    /// Renews the lease of this process. After `until` the process takes and publishes no permit and gets no slot.
    /// Permits that it took under another id are not valid any more.
    fn renew_lease(&self, _process: ProcessId, _until: Instant) {}

    /// The processes that hold permits.
    async fn holders(&self) -> QueueResult<Vec<ProcessId>> {
        Ok(Vec::new())
    }

    /// Permits that these dead processes held. Returns a part of them, and an empty list only if there are none.
    /// Permits without a slot can get none any more. A permit is returned again until it is handed back, or settled and
    /// recorded.
    async fn orphaned_permits(&self, _dead: &[ProcessId]) -> QueueResult<Vec<OrphanedPermit>> {
        Ok(Vec::new())
    }

    /// Publishes a record of this process, which expires after [`RECORD_KEPT`], and returns those of all others.
    async fn exchange(&self, _record: Vec<u8>) -> QueueResult<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    /// The claims of all permits that are in the delivery queue or held by a process. `None` if the queue has lost its
    /// data a moment ago: then workers may hold permits that it does not know of, until they have renewed their claims.
    async fn permitted_claims(&self) -> QueueResult<Option<HashSet<Claim>>> {
        Ok(Some(HashSet::new()))
    }
}
