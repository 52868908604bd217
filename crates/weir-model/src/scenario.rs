//! A scenario: the size of the world, the faults that may happen, and the remedies of the protocol.

use crate::state::Ticks;

/// The width of a slot: one tick. A send in a tick may start at any instant of it.
pub(crate) const SLOT_WIDTH: Ticks = 1;
/// The shortest time between two paced runs of one job.
pub(crate) const CADENCE: Ticks = 1;
/// How long before the start of its slot a permit is published.
pub(crate) const LEAD: Ticks = 1;
/// How far ahead of now a slot is granted at most.
pub(crate) const GRANT_AHEAD: Ticks = 1;
/// A permit whose slot would start later than this is withdrawn.
pub(crate) const SLOT_HORIZON: Ticks = 2;
/// How long a run may take before another scheduler may claim its job.
pub(crate) const LEASE: Ticks = 2;
/// Within this time after its start a send is answered and recorded; a worker that takes longer counts as crashed.
pub(crate) const TIMEOUT: Ticks = 1;
/// When a refused delivery is due again.
pub(crate) const RETRY: Ticks = 2;

/// A small world.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// W, in ticks.
    pub window: Ticks,
    /// R; the spacing `(W + J) / R` must be whole.
    pub rate: u8,
    /// The terms after each edit.
    pub edits: &'static [Terms],
    /// How many events the producer commits.
    pub deliveries: usize,
    /// The most claims and permits at one time.
    pub permits: usize,
    pub schedulers: usize,
    pub fast_path: FastPath,
    /// How long after the claim a worker may ask for a slot. This must be longer than the wait for a slot, or a permit
    /// may be too late each time.
    pub start_within: Ticks,
    /// How many ticks too early slots continue after a loss. A test uses it to show that the wait is not longer than
    /// necessary.
    pub resume_early: Ticks,
    pub faults: Faults,
    /// The remedies that this world does not have. A test removes one to show that it is needed, or
    /// that another one is needed without it.
    pub without: [Option<Remedy>; 2],
}

/// The settings of the destination that the step which grants slots needs. Their version is the number of edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub rate: u8,
    pub suspended: bool,
}

/// Which new deliveries are stored as claimed, and admitted after the commit without a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastPath {
    /// No delivery uses the fast path: each waits for a run.
    Closed,
    /// The queue is in the same process and reserves room when the last run found less than it was allowed to claim and
    /// a slot is free. A delivery with reserved room is admitted unless the destination is suspended before.
    KeepsRoom,
    /// The producer is in another process, and its admission estimate may be outdated. So any delivery may use the fast
    /// path. The queue decides, and admits it only when the last run found less than it was allowed to claim and a slot
    /// is free.
    Guesses,
}

/// How often each fault may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Faults {
    /// Crashes of workers, schedulers, producers and editors together.
    pub crashes: u8,
    /// The queue comes back empty.
    pub losses: u8,
    /// The queue comes back with the state of an older snapshot.
    pub restores: u8,
    /// The one process of the embedded build dies, with its queue, and starts again.
    pub restarts: u8,
    /// The queue has published or admitted, and the reply to the scheduler or the producer is lost.
    pub lost_replies: u8,
    /// The destination answers a send with an error. This is not a fault of Weir.
    pub refusals: u8,
    /// Ticks that pass while a process could take a step and does not: the slowness of all processes together.
    pub stalls: u8,
}

/// A remedy of the protocol. [The crate documentation](crate) says which race it prevents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The version of a destination's terms rises with each edit. Without this, the clock of an editor is behind, and
    /// the version falls.
    VersionsRise,
    /// A stop that would remove the job detects a wake during the run.
    WakeVersion,
    /// A wake moves a parked job to an earlier time.
    WakePullsForward,
    /// The sweep searches the store for due deliveries without a job and for expired claims.
    Sweep,
    /// A publication is refused when its job has been claimed again.
    PublishEpoch,
    /// Claims expire.
    ClaimExpiry,
    /// A result or a release names the claim that it ends.
    ClaimEpoch,
    /// After a publication whose reply was lost, the claims are not released.
    NeverUnclaim,
    /// The queue recognises a repeated publication by its name. The epoch is not enough: a run that continues keeps its
    /// lease.
    PublishOnce,
    /// A publication is refused when the queue knows newer terms than the run has read.
    PublishVersion,
    /// Older terms never replace newer ones, regardless of the order in which edits are announced.
    EditVersion,
    /// A stale run that releases its claims wakes the job.
    ReleaseWakes,
    /// A stopped job keeps its cursor.
    CursorOutlivesStop,
    /// Permits leave `queued` and `in_flight` at their deadlines.
    PermitDeadlines,
    /// The step that grants a slot uses the limits of an edit from the announcement. Without this, from the next run.
    GrantLimits,
    /// That step grants no slot to a suspended destination.
    GrantSuspension,
    /// That step grants no slot that starts later than one tick from now. Without this, it grants any slot within the
    /// horizon.
    GrantAhead,
    /// The slot is checked again when the request is written.
    SlotGate,
    /// A missed slot gives its spacing back only while it is the last one that was granted. Without this, always.
    GiveBackLast,
    /// The entry of a dead worker is dropped, and no other worker sends it.
    AtMostOnce,
    /// The queue detects that it came back empty or stale: the state of an earlier generation is not valid.
    Generation,
    /// After a loss, while claims are unsettled, slots continue after the last slot that can have been granted before
    /// the loss (`LAST_OLD_START`). Without this, they continue as if the sends of those claims had started by now.
    LastOldStart,
    /// No delivery is admitted while the cursor is unknown.
    AdmitNeedsCursor,
    /// No delivery is admitted when the queue applies other terms than the producer has read. The job runs and reads
    /// the terms.
    AdmitChecksVersion,
    /// The queue recognises a repeated admission, after a lost reply, by its name.
    AdmitOnce,
    /// The claim of a delivery that was not admitted is released.
    DeclineReleases,
    /// The job of a delivery that was not admitted is woken.
    DeclineWakes,
}

impl Scenario {
    /// One event, one send in a window of one tick, no fast path, all remedies, and no faults except stalls.
    pub const SMALL: Self = Self {
        window: 1,
        rate: 1,
        edits: &[],
        deliveries: 1,
        permits: 3,
        schedulers: 1,
        fast_path: FastPath::Closed,
        start_within: 3,
        resume_early: 0,
        faults: Faults { crashes: 0, losses: 0, restores: 0, restarts: 0, lost_replies: 0, refusals: 0, stalls: 4 },
        without: [None; 2],
    };

    pub(crate) fn has(&self, remedy: Remedy) -> bool {
        !self.without.contains(&Some(remedy))
    }

    /// T = (W + J) / R.
    pub(crate) fn spacing(&self, rate: u8) -> Ticks {
        (self.window + SLOT_WIDTH) / rate as Ticks
    }

    /// The largest spacing: older instants make no difference.
    pub(crate) fn long_ago(&self) -> Ticks {
        -(self.window + SLOT_WIDTH)
    }

    /// The largest relevant age of a generation: from this age, the last slot of the previous generation makes no
    /// difference.
    pub(crate) fn old_age(&self) -> Ticks {
        GRANT_AHEAD + self.window + SLOT_WIDTH
    }

    pub(crate) fn terms(&self, version: u8) -> Terms {
        let original = Terms { rate: self.rate, suspended: false };
        usize::from(version).checked_sub(1).map_or(original, |edit| self.edits[edit])
    }

    /// Whether the terms of `version` count as newer than those of `other`.
    pub(crate) fn is_newer(&self, version: u8, other: u8) -> bool {
        if self.has(Remedy::VersionsRise) { version > other } else { version < other }
    }

    /// The most sends in a window in which these terms are in force.
    pub(crate) fn limit(&self, version: u8) -> u8 {
        let Terms { rate, suspended } = self.terms(version);
        if suspended { 0 } else { rate }
    }
}
