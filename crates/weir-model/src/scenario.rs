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
    pub remedies: Remedies,
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

/// The remedies of the protocol. [The crate documentation](crate) says which race each remedy prevents.
#[derive(Debug, Clone, Copy)]
pub struct Remedies {
    /// The version of a destination's terms rises with each edit. Without this, the clock of an editor is behind, and
    /// the version falls.
    pub versions_rise: bool,
    /// A stop that would remove the job detects a wake during the run.
    pub wake_version: bool,
    /// A wake moves a parked job to an earlier time.
    pub wake_pulls_forward: bool,
    /// The sweep searches the store for due deliveries without a job and for expired claims.
    pub sweep: bool,
    /// A publication is refused when its job has been claimed again.
    pub publish_epoch: bool,
    /// Claims expire.
    pub claim_expiry: bool,
    /// A result or a release names the claim that it ends.
    pub claim_epoch: bool,
    /// After a publication whose reply was lost, the claims are not released.
    pub never_unclaim: bool,
    /// The queue recognises a repeated publication by its name. The epoch is not enough: a run that continues keeps its
    /// lease.
    pub publish_once: bool,
    /// A publication is refused when the queue knows newer terms than the run has read.
    pub publish_version: bool,
    /// Older terms never replace newer ones, regardless of the order in which edits are announced.
    pub edit_version: bool,
    /// A stale run that releases its claims wakes the job.
    pub release_wakes: bool,
    /// A stopped job keeps its cursor.
    pub cursor_outlives_stop: bool,
    /// Permits leave `queued` and `in_flight` at their deadlines.
    pub permit_deadlines: bool,
    /// The step that grants a slot uses the limits of an edit from the announcement. Without this, from the next run.
    pub grant_limits: bool,
    /// That step grants no slot to a suspended destination.
    pub grant_suspension: bool,
    /// That step grants no slot that starts later than one tick from now. Without this, it grants any slot within the
    /// horizon.
    pub grant_ahead: bool,
    /// The slot is checked again when the request is written.
    pub slot_gate: bool,
    /// A missed slot gives its spacing back only while it is the last one that was granted. Without this, always.
    pub give_back_last: bool,
    /// The entry of a dead worker is dropped, and no other worker sends it.
    pub at_most_once: bool,
    /// The queue detects that it came back empty or stale: the state of an earlier generation is not valid.
    pub generation: bool,
    /// After a loss, while claims are unsettled, slots continue after the last slot that can have been granted before
    /// the loss (`LAST_OLD_START`). Without this, they continue as if the sends of those claims had started by now.
    pub last_old_start: bool,
    /// No delivery is admitted while the cursor is unknown.
    pub admit_needs_cursor: bool,
    /// No delivery is admitted when the queue applies other terms than the producer has read. The job runs and reads
    /// the terms.
    pub admit_checks_version: bool,
    /// The queue recognises a repeated admission, after a lost reply, by its name.
    pub admit_once: bool,
    /// The claim of a delivery that was not admitted is released.
    pub decline_releases: bool,
    /// The job of a delivery that was not admitted is woken.
    pub decline_wakes: bool,
}

impl Remedies {
    /// All remedies.
    pub const ALL: Self = Self {
        versions_rise: true,
        wake_version: true,
        wake_pulls_forward: true,
        sweep: true,
        publish_epoch: true,
        claim_expiry: true,
        claim_epoch: true,
        never_unclaim: true,
        publish_once: true,
        publish_version: true,
        edit_version: true,
        release_wakes: true,
        cursor_outlives_stop: true,
        permit_deadlines: true,
        grant_limits: true,
        grant_suspension: true,
        grant_ahead: true,
        slot_gate: true,
        give_back_last: true,
        at_most_once: true,
        generation: true,
        last_old_start: true,
        admit_needs_cursor: true,
        admit_checks_version: true,
        admit_once: true,
        decline_releases: true,
        decline_wakes: true,
    };
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
        remedies: Remedies::ALL,
    };

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
        if self.remedies.versions_rise { version > other } else { version < other }
    }

    /// The most sends in a window in which these terms are in force.
    pub(crate) fn limit(&self, version: u8) -> u8 {
        let Terms { rate, suspended } = self.terms(version);
        if suspended { 0 } else { rate }
    }
}
