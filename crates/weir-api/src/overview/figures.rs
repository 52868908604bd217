//! The figures of one destination, from what the store counts.

use std::time::Duration;

use weir_core::{
    DeliveryState, Destination, Limiter, Timestamp,
    breaker::BreakerState,
    preview::{Answers, Bound, Drain, Forecast, steady_inflow},
    refusals::Refusals,
};
use weir_store::StateCounts;

/// A destination that uses at least this share of its limit sends as fast as the limit allows: slots leave out up to
/// 1 % of a window, and rates are averages that follow a change slowly.
const FULL_USE: f64 = 0.9;

/// What is measured of a destination.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measured {
    pub(crate) counts: StateCounts,
    /// When the oldest waiting delivery was created.
    pub(crate) oldest_at: Option<Timestamp>,
    /// Sends of the last 10 to 20 seconds.
    pub(crate) achieved_per_s: f64,
    /// New deliveries of the last minute, of its older part and of its newer part.
    pub(crate) arrivals_per_s: f64,
    pub(crate) older_arrivals_per_s: f64,
    pub(crate) newer_arrivals_per_s: f64,
    /// Refusals within the limit, as far as is known.
    pub(crate) refusals: Option<Refusals>,
}

/// The figures of a destination.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    pub(crate) counts: StateCounts,
    pub(crate) oldest_age: Option<Duration>,
    pub(crate) configured_per_s: Option<f64>,
    /// The rate that is allowed now.
    pub(crate) effective_per_s: Option<f64>,
    pub(crate) achieved_per_s: f64,
    pub(crate) arrivals_per_s: f64,
    /// The strictest limit or the minimum interval, and the share of it that is used.
    pub(crate) binding: Option<Bound>,
    pub(crate) usage: Option<f64>,
    pub(crate) drain_eta: Option<Duration>,
    /// `None`: unknown, or nothing is sent at present.
    pub(crate) drains: Option<bool>,
    pub(crate) reason: Option<Reason>,
    /// Refusals within the limit.
    pub(crate) refusals: Option<Refusals>,
}

/// Why a backlog is not sent faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Paused,
    /// The breaker is not closed.
    Breaker,
    /// The receiver refuses sends although they keep the limit. Before a hold, of which it is the cause.
    RefusedWithinLimit,
    Held,
    /// Deliveries wait for an earlier one of their message group.
    Ordered,
    /// The destination answers slowly: `max_in_flight` is reached below the limit.
    Slow,
    Limit,
}

impl Reason {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Breaker => "breaker",
            Self::RefusedWithinLimit => "refused_within_limit",
            Self::Held => "held",
            Self::Ordered => "ordered",
            Self::Slow => "slow",
            Self::Limit => "limit",
        }
    }
}

impl Figures {
    pub(crate) fn of(destination: &Destination, measured: &Measured, now: Timestamp) -> Self {
        let &Measured { counts, oldest_at, achieved_per_s, arrivals_per_s, .. } = measured;
        let settings = &destination.settings;
        let limits = &settings.rate_limits;
        let (configured_per_s, binding) = limits.strictest().unzip();
        let usage = configured_per_s.map(|rate| (achieved_per_s / rate).min(1.0));
        let is_stopped = settings.paused || destination.breaker.state(now) != BreakerState::Closed;
        let is_held = destination.held_until.is_some_and(|until| until > now);
        let reason = reason(destination, measured, usage, now);
        let drain = drain(destination, measured, reason, now);
        let is_empty = counts.waiting() == 0;
        Self {
            counts,
            oldest_age: oldest_at.filter(|_| !is_empty).map(|at| now.since(at)),
            configured_per_s,
            effective_per_s: match configured_per_s {
                _ if is_stopped || is_held => Some(0.0),
                configured => configured.map(|rate| rate * destination.breaker.share(now)),
            },
            achieved_per_s,
            arrivals_per_s,
            binding,
            usage,
            drain_eta: drain.after().filter(|_| is_empty || !is_stopped),
            drains: drain.is_expected().filter(|_| is_empty || !is_stopped),
            reason,
            refusals: measured.refusals,
        }
    }
}

fn reason(destination: &Destination, measured: &Measured, usage: Option<f64>, now: Timestamp) -> Option<Reason> {
    let counts = &measured.counts;
    if counts.waiting() == 0 {
        return None;
    }
    let settings = &destination.settings;
    let is_full = counts.of(DeliveryState::Delivering) >= u64::from(settings.max_in_flight);
    let is_at_limit = usage.is_some_and(|usage| usage >= FULL_USE);
    match () {
        () if settings.paused => Some(Reason::Paused),
        () if destination.breaker.state(now) != BreakerState::Closed => Some(Reason::Breaker),
        () if measured.refusals.is_some() => Some(Reason::RefusedWithinLimit),
        () if destination.held_until.is_some_and(|until| until > now) => Some(Reason::Held),
        () if is_at_limit => Some(Reason::Limit),
        () if is_full => Some(Reason::Slow),
        // Neither the limit nor `max_in_flight` is reached, so what waits is not due: behind the heads of message
        // groups, or until a retry.
        () if settings.order.is_by_key() => Some(Reason::Ordered),
        () if counts.of(DeliveryState::Pending) == 0 => None,
        () => usage.map(|_| Reason::Limit),
    }
}

fn drain(destination: &Destination, measured: &Measured, reason: Option<Reason>, now: Timestamp) -> Drain {
    // Under a backlog the cursors are where a send of just now left them.
    let limits = &destination.settings.rate_limits;
    let mut limiter = Limiter::recovered(limits, Some(now));
    limiter.hold(destination.held_until.unwrap_or(Timestamp::MIN));
    // Where the limit is not what binds, the recent rate is the best estimate.
    let is_measured = limits.is_unlimited() || matches!(reason, Some(Reason::Slow | Reason::Ordered));
    let achieved = measured.achieved_per_s;
    let answers = (is_measured && achieved > 0.0)
        .then(|| Answers { max_in_flight: 1, time: Duration::from_secs_f64(1.0 / achieved) });
    let inflow_per_s = steady_inflow(measured.older_arrivals_per_s, measured.newer_arrivals_per_s);
    let drain = Forecast::new(&limiter, answers, now).drain(measured.counts.waiting(), inflow_per_s);
    // The recent rate may only reflect the inflow, and a higher rate may be possible.
    if drain == Drain::Never && limits.is_unlimited() { Drain::Unknown } else { drain }
}

#[cfg(test)]
mod tests;
