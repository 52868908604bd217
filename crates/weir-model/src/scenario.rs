//! What is checked: how large the world is, what may go wrong in it, and which remedies the protocol has.

use crate::state::Ticks;

/// The width of a slot: a tick. A send in a tick may start at any instant of it.
pub(crate) const SLOT_WIDTH: Ticks = 1;
/// The shortest time between two paced runs of one job.
pub(crate) const CADENCE: Ticks = 1;
/// How long before its start a slot is published.
pub(crate) const LEAD: Ticks = 1;
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
    /// The rate after the one edit, if there is one.
    pub edited_rate: Option<u8>,
    /// How many events the producer commits.
    pub deliveries: usize,
    /// How many claims and permits exist at one time at most.
    pub permits: usize,
    pub schedulers: usize,
    pub connections: Connections,
    pub express: Express,
    /// How long after its claim a send may start. Longer than a granted slot is ahead, or a permit that waits for its slot
    /// may be too late each time.
    pub start_within: Ticks,
    /// How many ticks too soon slots go on after a loss: to see that none is waited in vain.
    pub haste: Ticks,
    pub faults: Faults,
    pub remedies: Remedies,
}

/// What workers find when they want to send, which decides whether permits are published with slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connections {
    Warm,
    Cold,
    /// Either, at each publication.
    Any,
}

/// Which new deliveries are stored as claimed, and admitted after the commit without a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Express {
    /// None: each waits for a run.
    Closed,
    /// Those for which the queue keeps room, in one process with it: a job that ran dry and a slot that is free. What
    /// room was kept for is admitted, whatever a run does meanwhile.
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
    /// A stale run that gives its claims back wakes the job.
    pub release_wakes: bool,
    /// A stopped job keeps its cursors.
    pub cursors_outlive_stop: bool,
    /// Permits leave `queued` and `in_flight` at their deadlines.
    pub permit_deadlines: bool,
    /// The slot is checked again when the request leaves.
    pub slot_gate: bool,
    /// An entry whose worker died is dropped and not sent by another.
    pub at_most_once: bool,
    /// The queue notices that it came back empty or stale: nothing of an earlier generation is valid.
    pub generation: bool,
    /// How slots go on after a loss while claims are out.
    pub after_loss: AfterLoss,
    /// The queue grants no slot that starts later than W + J from now. Without it a worker declines such a slot when it
    /// has asked for it, but waits for one that was published.
    pub slot_horizon: bool,
    /// A missed slot that another follows is not given back for a new one.
    pub exchange_last: bool,
    /// What is admitted takes the next slot off the cursors that runs use.
    pub admit_paces: bool,
    /// Nothing is admitted while the cursors are not known.
    pub admit_knows: bool,
    /// Nothing is admitted under other limits than its producer read: the job runs and reads them.
    pub admit_in_force: bool,
    /// An admission whose answer was lost is given back only if nobody else can use its permit.
    pub admit_sole: bool,
    /// The claim of a delivery that was not admitted is released.
    pub decline_releases: bool,
    /// Then its job is woken.
    pub decline_wakes: bool,
}

/// How slots go on after a loss while claims are out, whose permits may have slots from before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLoss {
    /// As if their sends had started by now: right for the embedded queue, which dies with its workers.
    CountsAsNow,
    /// Not until they are settled or have expired, or 2·(W + J) has passed.
    Waits,
    /// One spacing after the last slot that can have been granted before the loss.
    GoesOn,
}

impl Remedies {
    /// Every one of them.
    pub const ALL: Self = Self {
        wake_version: true,
        wake_pulls_forward: true,
        sweep: true,
        publish_epoch: true,
        claim_expiry: true,
        claim_epoch: true,
        never_unclaim: true,
        release_wakes: true,
        cursors_outlive_stop: true,
        permit_deadlines: true,
        slot_gate: true,
        at_most_once: true,
        generation: true,
        after_loss: AfterLoss::Waits,
        slot_horizon: true,
        exchange_last: true,
        admit_paces: true,
        admit_knows: true,
        admit_in_force: true,
        admit_sole: true,
        decline_releases: true,
        decline_wakes: true,
    };
}

impl Scenario {
    /// One event, one a window of one tick, warm connections, no express, no faults, every remedy.
    pub const SMALL: Self = Self {
        window: 1,
        rate: 1,
        edited_rate: None,
        deliveries: 1,
        permits: 3,
        schedulers: 1,
        connections: Connections::Warm,
        express: Express::Closed,
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

    /// How long after a loss claims that are out are waited for: slots granted before it lie up to W + J ahead, and their
    /// sends count for another W + J.
    pub(crate) fn quarantine(&self) -> Ticks {
        2 * (self.window + SLOT_WIDTH)
    }

    /// How far ahead a granted slot starts at most, if the protocol bounds it.
    pub(crate) fn horizon(&self) -> Ticks {
        self.window + SLOT_WIDTH
    }

    /// The most sends a window may hold: a window that spans the edit is bounded by the larger rate.
    pub(crate) fn most_sends(&self) -> u8 {
        self.rate.max(self.edited_rate.unwrap_or(0))
    }
}
