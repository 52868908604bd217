//! What is checked: how large the world is, what may go wrong in it, and which remedies the protocol has.

use crate::state::Ticks;

/// The width of a slot: a tick. A send in a tick may start at any instant of it.
pub(crate) const SLOT_WIDTH: Ticks = 1;
/// The shortest time between two paced runs of one job.
pub(crate) const CADENCE: Ticks = 1;
/// How long before its slot may start a permit is published.
pub(crate) const LEAD: Ticks = 1;
/// How far ahead a slot is granted at most.
pub(crate) const GRANT_AHEAD: Ticks = 1;
/// A permit whose slot would start later than this goes back.
pub(crate) const SLOT_HORIZON: Ticks = 2;
/// How long a run may take before its job is claimed by another.
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
    /// How many claims and permits exist at one time at most.
    pub permits: usize,
    pub schedulers: usize,
    pub fast_path: FastPath,
    /// How long after its claim a worker may ask for a slot. Longer than the wait for one, or a permit may be too late each
    /// time.
    pub start_within: Ticks,
    /// How many ticks too soon slots go on after a loss: to see that none is waited in vain.
    pub haste: Ticks,
    pub faults: Faults,
    pub remedies: Remedies,
}

/// What the step that grants slots must know of the destination's settings. Their version is the number of edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub rate: u8,
    pub suspended: bool,
}

/// Which new deliveries are stored as claimed, and admitted after the commit without a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastPath {
    /// None: each waits for a run.
    Closed,
    /// Those for which the queue keeps room, in one process with it: a job that ran dry and a slot that is free. What
    /// room was kept for is admitted unless the destination is suspended meanwhile.
    KeepsRoom,
    /// Any: what a producer apart from the queue knows of it may be old. The queue decides, and admits only while the
    /// job is dry and a slot is free.
    Guesses,
}

/// How often each fault may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Faults {
    /// Of workers, schedulers, producers and editors together.
    pub crashes: u8,
    /// The queue comes back empty.
    pub losses: u8,
    /// The queue comes back as it was when a snapshot was taken.
    pub restores: u8,
    /// The one process of the embedded build dies, with its queue, and starts again.
    pub restarts: u8,
    /// The queue has published or admitted, and the scheduler or the producer does not hear of it.
    pub lost_replies: u8,
    /// The destination answers a send with an error. Not a fault of Weir's.
    pub refusals: u8,
    /// Ticks that pass while a process could take a step and does not: how slow everybody together may be.
    pub stalls: u8,
}

/// The remedies of the protocol; [the crate's page](crate) says which race each closes.
#[derive(Debug, Clone, Copy)]
pub struct Remedies {
    /// The version of a destination's terms rises with each edit. Without it, an editor's clock is behind, and it falls.
    pub versions_rise: bool,
    /// A wake during a run is seen by the stop that would remove the job.
    pub wake_version: bool,
    /// A wake moves a parked job to an earlier time.
    pub wake_pulls_forward: bool,
    /// The store is searched for due deliveries without a job and for claims that expired.
    pub sweep: bool,
    /// A publication is refused when its job has been claimed again.
    pub publish_epoch: bool,
    /// Claims end by themselves.
    pub claim_expiry: bool,
    /// A result or a release names the claim it ends.
    pub claim_epoch: bool,
    /// After a publication whose reply was lost, the claims are left alone.
    pub never_unclaim: bool,
    /// A publication that is repeated is known by its name. The epoch does not tell: a run that goes on keeps its lease.
    pub publish_once: bool,
    /// A publication is refused when the queue knows newer terms than its run has read.
    pub publish_version: bool,
    /// Older terms never replace newer ones, in whatever order edits are announced.
    pub edit_version: bool,
    /// A stale run that gives its claims back wakes the job.
    pub release_wakes: bool,
    /// A stopped job keeps its cursor.
    pub cursor_outlives_stop: bool,
    /// Permits leave `queued` and `in_flight` at their deadlines.
    pub permit_deadlines: bool,
    /// The step that grants a slot follows the limits of an edit from its announcement on. Without it, from the next run on.
    pub grant_limits: bool,
    /// It grants none to a suspended destination.
    pub grant_suspension: bool,
    /// It grants none that starts later than a tick from now. Without it, any that is waited for.
    pub grant_ahead: bool,
    /// The slot is checked again when the request leaves.
    pub slot_gate: bool,
    /// An entry whose worker died is dropped and not sent by another.
    pub at_most_once: bool,
    /// The queue notices that it came back empty or stale: nothing of an earlier generation is valid.
    pub generation: bool,
    /// After a loss, while claims are out, slots go on after the last that can have been granted before it
    /// (`LAST_OLD_START`). Without it, as if the sends of those claims had started by now.
    pub last_old_start: bool,
    /// Nothing is admitted while the cursor is not known.
    pub admit_knows: bool,
    /// Nothing is admitted under other terms than its producer read: the job runs and reads them.
    pub admit_in_force: bool,
    /// An admission that is repeated, because its answer was lost, is known by its name.
    pub admit_once: bool,
    /// The claim of a delivery that was not admitted is released.
    pub decline_releases: bool,
    /// Then its job is woken.
    pub decline_wakes: bool,
}

impl Remedies {
    /// Every one of them.
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
        at_most_once: true,
        generation: true,
        last_old_start: true,
        admit_knows: true,
        admit_in_force: true,
        admit_once: true,
        decline_releases: true,
        decline_wakes: true,
    };
}

impl Scenario {
    /// One event, one a window of one tick, no fast path, no faults, every remedy.
    pub const SMALL: Self = Self {
        window: 1,
        rate: 1,
        edits: &[],
        deliveries: 1,
        permits: 3,
        schedulers: 1,
        fast_path: FastPath::Closed,
        start_within: 3,
        haste: 0,
        faults: Faults { crashes: 0, losses: 0, restores: 0, restarts: 0, lost_replies: 0, refusals: 0, stalls: 4 },
        remedies: Remedies::ALL,
    };

    /// T = (W + J) / R.
    pub(crate) fn spacing(&self, rate: u8) -> Ticks {
        (self.window + SLOT_WIDTH) / rate as Ticks
    }

    /// As long ago as that is as long ago as ever: the largest spacing.
    pub(crate) fn long_ago(&self) -> Ticks {
        -(self.window + SLOT_WIDTH)
    }

    /// From this age on it makes no difference how old a generation is: the last slot of before is as long ago as ever.
    pub(crate) fn old_age(&self) -> Ticks {
        GRANT_AHEAD + self.window + SLOT_WIDTH
    }

    pub(crate) fn terms(&self, version: u8) -> Terms {
        let original = Terms { rate: self.rate, suspended: false };
        usize::from(version).checked_sub(1).map_or(original, |edit| self.edits[edit])
    }

    /// Whether these terms count as newer than the others.
    pub(crate) fn is_newer(&self, version: u8, other: u8) -> bool {
        if self.remedies.versions_rise { version > other } else { version < other }
    }

    /// The most sends of a window in which these terms are in force.
    pub(crate) fn limit(&self, version: u8) -> u8 {
        let Terms { rate, suspended } = self.terms(version);
        if suspended { 0 } else { rate }
    }
}
