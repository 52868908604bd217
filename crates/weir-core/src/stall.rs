//! Stalls: a destination has deliveries that are due, its limits, holds, breaker and order allow a send, and none starts.
//!
//! That is the failure that nothing else shows: a backlog is the effect of a limit, and a process can be healthy and do
//! nothing. The instant from which a start was allowed is known exactly ([`Sight::allowed_since`]), so a start is late
//! from the first millisecond on. It counts as a stall after [`STALLED_AFTER`].

use std::{collections::HashMap, time::Duration};

pub use crate::fault::{Fault, Late, Outage};
use crate::{Destination, DestinationId, Limiter, RateLimit, Timestamp, breaker::BreakerState, limit::Shape};

/// A start that is late by so much is a stall. Runs, permits and slots take a second together when servers are slow, a
/// lost wake is found within 5 s, and the work of a dead process is taken over within 10 s.
pub const STALLED_AFTER: Duration = Duration::from_secs(10);
/// A start that is late by so much is shown to people who look: above what a run of a loaded installation takes.
pub const SHOWN_AFTER: Duration = Duration::from_secs(3);
/// An attempt that ends is recorded within this time.
const RECORDED_WITHIN: Duration = Duration::from_secs(15);
/// Connecting takes at most this long, or the timeout of the destination if that is shorter.
const CONNECTING: Duration = Duration::from_secs(10);
/// A destination that uses less than this share of its limit falls behind: slots alone leave out at most 1 % of it, and
/// missed slots raise an alert of their own above 5 %.
pub const FULL_USE: f64 = 0.8;
/// With fewer sends than this in the time that was measured, their number says little about the rate.
const MEASURABLE: f64 = 10.0;

/// What the queue knows of one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Permits published that have no slot yet.
    pub queued: u32,
    /// Sends started and not yet settled.
    pub in_flight: u32,
    /// The lowered maximum of outstanding permits, if there is one.
    pub lowered_maximum: Option<u32>,
    /// When the last slot began.
    pub last_start: Option<Timestamp>,
    /// The earliest start of the next slot, also in the past. `None`: the queue has no cursors for the destination.
    pub next_start: Option<Timestamp>,
}

/// What is known of a destination in one pass of the watch.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    pub destination: &'a Destination,
    /// Since when its oldest delivery has been due, by the store. `None`: none waits that is due.
    pub due_since: Option<Timestamp>,
    /// The last send that the store knows.
    pub last_sent_at: Option<Timestamp>,
    /// `None`: the queue does not answer.
    pub progress: Option<Progress>,
}

impl Sight<'_> {
    /// Since when something is owed: a due delivery, or a permit without a slot. `None` if nothing is, or if it is
    /// paused, held, or its breaker is open.
    fn owed_since(&self, now: Timestamp) -> Option<Timestamp> {
        let Destination { settings, held_until, released_at, breaker, .. } = self.destination;
        // A permit is no older than the claim of its delivery, which the caller has seen.
        let has_permits = self.progress.is_some_and(|progress| progress.queued > 0);
        let owed = self.due_since.or(has_permits.then_some(Timestamp::MIN))?;
        let is_stopped = settings.paused || breaker.state(now) == BreakerState::Open;
        // After its breaker has closed, a destination gets a growing share of its limit for a few seconds.
        let is_starting = breaker.state(now) == BreakerState::Closed && !breaker.allows_full_rate(now);
        let begins = [*held_until, *released_at, breaker.next_probe_at()].into_iter().flatten();
        let since = begins.fold(owed, Timestamp::max);
        (!is_stopped && !is_starting && since <= now).then_some(since)
    }

    /// Since when the limits allow a start that has not come. `None`: nothing is owed, or nothing may start at `now`.
    pub fn allowed_since(&self, now: Timestamp) -> Option<Timestamp> {
        let owed = self.owed_since(now)?;
        // A member of a limit group may wait for the others, which one destination does not show.
        if self.destination.settings.limit_group.is_some() {
            return None;
        }
        let progress = self.progress.unwrap_or_default();
        // Of a breaker that is half open, one probe at a time.
        let is_probing = self.destination.breaker.state(now) == BreakerState::HalfOpen;
        let most = if is_probing { 1 } else { self.destination.settings.max_in_flight };
        let most = progress.lowered_maximum.map_or(most, |lowered| lowered.min(most)).max(1);
        if progress.in_flight >= most {
            return None;
        }
        // Without its cursors the next slot follows the last send, as it does when a run recovers them.
        let limits = &self.destination.settings.rate_limits;
        let recovered = || Limiter::recovered(limits, self.last_sent_at).next_start(Timestamp::MIN);
        let next = progress.next_start.unwrap_or_else(recovered);
        let last_start = self.last_start().unwrap_or(Timestamp::MIN);
        // The next delivery may cost more than what is left of a window, which nobody knows here. An empty window has room for it.
        let in_costs = limits.as_slice().iter().filter(|limit| limit.is_in_costs());
        let emptied = in_costs.map(|limit| last_start + limit.span()).max();
        let since = owed.max(next).max(last_start).max(emptied.unwrap_or(Timestamp::MIN));
        (since <= now).then_some(since)
    }

    fn last_start(&self) -> Option<Timestamp> {
        self.last_sent_at.max(self.progress.and_then(|progress| progress.last_start))
    }
}

/// What is remembered of a destination from one pass to the next, because facts of one instant do not say since when they
/// hold: it may have been paused, or without room, a moment ago. The caller forgets it when an attempt is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track {
    /// When it began.
    began: Timestamp,
    /// Since when a start has been allowed at each look.
    allowed_from: Option<Timestamp>,
    /// When the first slot was seen that was granted since.
    granted_at: Option<Timestamp>,
}

impl Track {
    /// The track after a look at `now`. `before`: when the watch looked last, or when it began. `None` if nothing is owed.
    pub fn next(last: Option<Self>, sight: &Sight<'_>, before: Timestamp, now: Timestamp) -> Option<Self> {
        sight.owed_since(now)?;
        let last = last.unwrap_or(Self { began: before, allowed_from: None, granted_at: None });
        let is_granted = sight.progress.and_then(|progress| progress.last_start).is_some_and(|at| at > last.began);
        Some(Self {
            allowed_from: sight.allowed_since(now).map(|_| last.allowed_from.unwrap_or(before)),
            granted_at: last.granted_at.or(is_granted.then_some(now)),
            ..last
        })
    }

    /// Since when a start is late.
    ///
    /// Two things count. A start is allowed, and no slot has been granted. Or slots are granted, and no attempt is
    /// recorded in a time in which each attempt must have ended.
    ///
    /// `is_connecting`: workers have taken the permits, and may be connecting. That is the receiver's time.
    pub fn late_since(&self, sight: &Sight<'_>, is_connecting: bool, now: Timestamp) -> Option<Timestamp> {
        let timeout = Duration::from_millis(sight.destination.settings.timeout_ms.into());
        let allowed = self.allowed_from.and_then(|from| Some(from.max(sight.allowed_since(now)?)));
        let allowed = allowed.map(|since| if is_connecting { since + timeout.min(CONNECTING) } else { since });
        let unrecorded = self.granted_at.map(|at| at + timeout + RECORDED_WITHIN);
        [allowed, unrecorded].into_iter().flatten().filter(|since| *since <= now).min()
    }
}

/// The share of its limit that a destination has used during `measured`, if it had due deliveries all that time. `None`:
/// the time is too short to say, its pace or its share of a limit group is below the limit, or a limit is in costs, which
/// nobody sums up here. `sends`: those that are recorded, and those in flight.
pub fn used(destination: &Destination, sends: u64, measured: Duration) -> Option<f64> {
    let settings = &destination.settings;
    let limits = &settings.rate_limits;
    let is_in_costs = limits.as_slice().iter().any(RateLimit::is_in_costs);
    if settings.adaptive.is_some() || settings.limit_group.is_some() || is_in_costs {
        return None;
    }
    // The sends of a window may all have started just before.
    let spent = limits.of_shape(Shape::Window).map(RateLimit::span).max().unwrap_or_default();
    let allowed = limits.per_second()? * measured.saturating_sub(spent).as_secs_f64();
    (allowed >= MEASURABLE).then(|| sends as f64 / allowed)
}

/// What a pass of the watch found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StallReport {
    /// When it was made; [`Timestamp::MIN`] before the first pass.
    pub at: Timestamp,
    /// Whether the watch has run for so long that it has seen every stall.
    pub is_complete: bool,
    /// What is wrong with the installation, whether or not a start is late.
    pub fault: Option<Fault>,
    /// Since when the database takes no writes, and why.
    pub unwritable: Option<(Timestamp, &'static str)>,
    /// Starts that are late by [`SHOWN_AFTER`] or more.
    pub late: HashMap<DestinationId, Late>,
    /// Destinations that send, and less than their limits allow.
    pub behind: HashMap<DestinationId, Fault>,
}

impl StallReport {
    /// A report that is older than this says nothing any more: passes are at most ten seconds apart, and one may wait for
    /// its servers.
    const VALID: Duration = Duration::from_secs(30);

    /// Why Weir itself does not send to the destination, or not as fast as it may.
    pub fn fault_of(&self, id: DestinationId, now: Timestamp) -> Option<Fault> {
        let fault = self.late.get(&id).map(|late| late.fault).or_else(|| self.behind.get(&id).copied());
        fault.filter(|_| now.since(self.at) <= Self::VALID)
    }

    /// Whether the destination is stalled by a fault of its own. `None`: not known, also of a start that is late but not
    /// yet by so much that every process sees a stall, and during an outage.
    pub fn stall_of(&self, id: DestinationId, now: Timestamp) -> Option<Option<Late>> {
        if now.since(self.at) > Self::VALID {
            return None;
        }
        match self.late.get(&id) {
            Some(late) => (self.is_stall(late) && !late.fault.is_of_installation()).then_some(Some(*late)),
            None => self.is_complete.then_some(None),
        }
    }

    /// The stalled destinations.
    pub fn stalled(&self) -> impl Iterator<Item = (DestinationId, Late)> {
        self.late.iter().filter(|(_, late)| self.is_stall(late)).map(|(id, late)| (*id, *late))
    }

    /// Those that are stalled by a fault of their own.
    pub fn stalled_alone(&self) -> impl Iterator<Item = DestinationId> {
        self.stalled().filter(|(_, late)| !late.fault.is_of_installation()).map(|(id, _)| id)
    }

    /// Those that are stalled by an outage.
    pub fn stalled_by_outage(&self) -> impl Iterator<Item = (DestinationId, Late)> {
        self.stalled().filter(|(_, late)| late.fault.is_of_installation())
    }

    /// The fault of the installation that stalls destinations or lets no event in. `None`: not known; `Some(None)`: there
    /// is none.
    pub fn outage(&self, now: Timestamp) -> Option<Option<Outage>> {
        if now.since(self.at) > Self::VALID {
            return None;
        }
        if let Some((since, obstacle)) = self.unwritable {
            return Some(Some(Outage { fault: Fault::StoreUnwritable, since, obstacle: Some(obstacle) }));
        }
        // Each keeps the fault of its last look, and only some are looked at in each pass: what is wrong now goes first.
        let Some((_, first)) = self.stalled_by_outage().min_by_key(|(id, late)| (late.since, *id)) else {
            return self.is_complete.then_some(None);
        };
        let fault = self.fault.filter(|fault| fault.is_of_installation()).unwrap_or(first.fault);
        Some(Some(Outage { fault, since: first.since, obstacle: None }))
    }

    fn is_stall(&self, late: &Late) -> bool {
        self.at.since(late.since) >= STALLED_AFTER
    }
}

#[cfg(test)]
mod tests;
