//! The figures of one destination, computed once: `/backlog`, the row of the overview and `/preview` are views of them.
//! They differ only in what they know: `/backlog` and `/preview` read one destination anew, with its last send and its answer
//! times; a sample of the overview has all destinations and counts only what they send.

mod keys;
mod shares;

use std::time::Duration;

use weir_core::{
    Condition, DeliveryState, Destination, Limiter, RateLimit, RateLimits, Timestamp,
    adaptive::Status,
    destination::Settings,
    limit::Shape,
    limiter::{COST_OF_ONE, Ring},
    preview::{Answers, Bound, Drain, Forecast, steady_inflow},
    refusals::Refusals,
    shares::Share,
    stall::Fault,
    temporary::Override,
};
use weir_store::{StateCounts, WatchedKeys};

pub(crate) use self::{
    keys::{KeyFigures, KeysTogether},
    shares::{mean_cost, share},
};

/// A destination that uses at least this share of its limit sends as fast as the limit allows: slots leave out up to
/// 1 % of a window, and rates are averages that follow a change slowly.
const FULL_USE: f64 = 0.9;
/// This many deliveries of the last minute are a flood, whose rate is that of the time since it began. Fewer are an
/// ordinary trickle, whose rate is the mean of the minute.
const FLOOD: u64 = 30;
/// So many failures without a success are the receiver's, and no longer those of single deliveries. Fewer than open a breaker.
pub(crate) const FAILING: u64 = 3;
/// The shortest time over which arrivals are averaged.
const SHORTEST: Duration = Duration::from_secs(1);

/// What is measured of a destination.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    pub(crate) counts: StateCounts,
    /// When the oldest waiting delivery was created.
    pub(crate) oldest_at: Option<Timestamp>,
    /// Sends of the last seconds, or of the last minute: see [`is_slow`].
    pub(crate) achieved_per_s: f64,
    /// New deliveries of the last minute or since a flood began ([`flood_began`]), of the older part of this time and of its
    /// newer part.
    pub(crate) arrivals_per_s: f64,
    pub(crate) older_arrivals_per_s: f64,
    pub(crate) newer_arrivals_per_s: f64,
    pub(crate) last_sent_at: Option<Timestamp>,
    /// What is recorded for limits of the window shape.
    pub(crate) rings: Vec<Ring>,
    /// For limits in costs, of what waits; in parts of [`COST_OF_ONE`], and 0 where it is not known.
    pub(crate) usual_cost: u32,
    /// The average answer time; `None` without recent answers, or if it is not measured.
    pub(crate) answer_time: Option<Duration>,
    /// Refusals within the limit, as far as is known.
    pub(crate) refusals: Option<Refusals>,
    /// Whether at least [`FAILING`] attempts failed in the last minute, and none succeeded.
    pub(crate) fails: bool,
    /// Why Weir itself does not send, or not as fast as it may.
    pub(crate) fault: Option<Fault>,
    /// The adaptive pace, if the destination has one.
    pub(crate) pace: Option<Status>,
    /// What it may send of the rate of its limit group ([`share`]).
    pub(crate) share: Option<Share>,
    /// What the limits of its limit keys allow, where that is read.
    pub(crate) keys: Option<KeysTogether>,
    /// Where `keys` are not read: what was seen of its limit keys some time ago.
    pub(crate) watched_keys: Option<WatchedKeys>,
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
    pub(crate) utilisation: Option<f64>,
    pub(crate) drain_eta: Option<Duration>,
    /// `None`: unknown, or nothing is sent at present.
    pub(crate) drains: Option<bool>,
    pub(crate) reason: Option<Reason>,
    /// The time from a send to its answer.
    pub(crate) answer_time: Option<Duration>,
    /// Refusals within the limit.
    pub(crate) refusals: Option<Refusals>,
    pub(crate) pace: Option<Status>,
    pub(crate) share: Option<Share>,
    /// The arrivals that go on ([`steady_inflow`]).
    pub(crate) inflow_per_s: f64,
    /// As that of [`Measured`].
    pub(crate) usual_cost: u32,
}

/// Why a backlog is not sent faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Reason {
    Paused,
    /// The breaker is not closed.
    Breaker,
    /// The receiver refuses sends although they keep the limit. Before a hold, of which it is the cause.
    RefusedWithinLimit,
    Held,
    /// Deliveries wait for an earlier one of their message group.
    Ordered,
    /// Attempts fail, and what waits is due again later.
    Failing,
    /// The destination answers slowly: `max_in_flight` is reached below the limit.
    Slow,
    /// It sends as fast as its adaptive pace.
    Adaptive,
    /// It sends its share of its limit group.
    Group,
    /// What waits is of limit keys whose own limits allow no more, or that are paused.
    Key,
    Limit,
    /// Weir itself does not send, or not as fast as it may.
    #[strum(transparent)]
    Fault(Fault),
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }
}

/// When a flood began, if the deliveries that arrived since `from` are one: `first_at` is when the first of them arrived.
/// Otherwise `from`. In the first minute of a flood, the mean of the whole minute would be far below its rate.
pub(crate) fn flood_began(arrivals: u64, first_at: Option<Timestamp>, from: Timestamp) -> Timestamp {
    first_at.filter(|_| arrivals >= FLOOD).map_or(from, |at| at.max(from))
}

/// A number per second of a time, which counts as a second if it is shorter.
pub(crate) fn per_second(n: u64, from: Timestamp, to: Timestamp) -> f64 {
    n as f64 / to.since(from).max(SHORTEST).as_secs_f64()
}

impl Measured {
    /// The time from a send to its answer. Where it is not measured, but all places of `max_in_flight` are taken below the
    /// limit, a send starts when an answer comes: so the rate of the sends tells it (Little's law).
    fn answer_time(&self, settings: &Settings) -> Option<Duration> {
        let tells = self.is_full(settings) && !self.is_at_limit(settings) && self.achieved_per_s > 0.0;
        let told = || Duration::from_secs_f64(f64::from(settings.max_in_flight) / self.achieved_per_s);
        self.answer_time.or_else(|| tells.then(told))
    }

    /// Whether all places of `max_in_flight` are taken.
    fn is_full(&self, settings: &Settings) -> bool {
        self.counts.of(DeliveryState::Delivering) >= u64::from(settings.max_in_flight)
    }

    /// Whether it sends as fast as its pace, which is below its limits.
    fn is_at_pace(&self, settings: &Settings) -> bool {
        let below = |per_s: f64| self.allowed_per_s(settings).is_none_or(|limit| per_s < limit);
        self.pace.as_ref().is_some_and(|pace| below(pace.per_s) && self.achieved_per_s >= FULL_USE * pace.per_s)
    }

    /// Whether it could send more without its limit group.
    fn is_bound_by_group(&self) -> bool {
        self.share.is_some_and(|share| share.binds)
    }

    /// Whether it sends its share of the limit group.
    fn is_at_share(&self) -> bool {
        self.share.is_some_and(|share| share.binds && self.achieved_per_s >= FULL_USE * share.per_s)
    }

    /// Whether the limit group, and so each member, is held.
    pub(crate) fn is_held_by_group(&self, now: Timestamp) -> bool {
        self.share.is_some_and(|share| share.is_held(now))
    }

    fn is_at_limit(&self, settings: &Settings) -> bool {
        self.utilisation(settings).is_some_and(|utilisation| utilisation >= FULL_USE)
    }

    /// Whether a limit of the window shape allows no send now: all of its window may have been sent long ago.
    fn has_spent_a_window(&self, now: Timestamp) -> bool {
        self.rings.iter().any(|ring| ring.earliest(0, now) > now)
    }

    /// The share of the limits that is used.
    fn utilisation(&self, settings: &Settings) -> Option<f64> {
        self.allowed_per_s(settings).map(|rate| (self.achieved_per_s / rate).min(1.0))
    }

    pub(crate) fn usual_cost(&self) -> f64 {
        as_number(self.usual_cost)
    }

    /// The rate of sends that the limits allow in the long run.
    fn allowed_per_s(&self, settings: &Settings) -> Option<f64> {
        settings.rate_limits.strictest_at(self.usual_cost()).map(|(per_s, _)| per_s)
    }

    /// How the destination would send with these limits. A hold counts; a pause or an open breaker does not. If they are
    /// those of its override, those of the settings follow at the end.
    pub(crate) fn forecast(
        &self,
        destination: &Destination,
        limits: &RateLimits,
        max_in_flight: u32,
        now: Timestamp,
    ) -> Forecast {
        let effective = destination.at(now);
        let in_force = &effective.settings;
        let answers = self.answer_time(in_force).map(|time| Answers { max_in_flight, time });
        let forecast = self.forecast_with(&effective, limits, answers, now);
        let is_in_force = *limits == in_force.rate_limits && max_in_flight == in_force.max_in_flight;
        match destination.temporary.override_at(now).filter(|_| is_in_force) {
            Some(&Override { until, .. }) => {
                // As if the last send had been at the end.
                let then = Self { last_sent_at: Some(until), rings: Vec::new(), ..self.clone() };
                let below = &destination.settings;
                forecast.until(until, then.forecast(destination, &below.rate_limits, below.max_in_flight, until))
            }
            None => forecast,
        }
    }

    fn forecast_with(
        &self,
        destination: &Destination,
        limits: &RateLimits,
        answers: Option<Answers>,
        now: Timestamp,
    ) -> Forecast {
        // The cursors are in the queue. Under a backlog they are where the last send left them.
        let is_known = |limit: &RateLimit| self.rings.iter().any(|ring| ring.limit == *limit);
        let mut limiter = if limits.of_shape(Shape::Window).all(is_known) {
            Limiter::recovered(limits, self.last_sent_at)
        } else {
            Limiter::recovered(&limits.evenly(), self.last_sent_at)
        };
        self.rings.iter().for_each(|ring| limiter.recall(ring.clone()));
        limiter.expect_cost(self.usual_cost);
        let held_until = destination.held_until.max(self.share.and_then(|share| share.held_until));
        limiter.hold(held_until.unwrap_or(Timestamp::MIN));
        Forecast::new(&limiter, answers, now)
            .paced(Bound::Adaptive, self.pace.as_ref().map(|pace| pace.per_s))
            .paced(Bound::Group, self.share.map(|share| share.most_per_s))
            .paced(Bound::Key, self.keys.map(|keys| keys.per_s))
    }

    /// When the backlog becomes empty, according to the forecast. By a fault of Weir less is sent, and nobody knows when
    /// that ends: then according to the recent rate.
    pub(crate) fn drain(&self, forecast: &Forecast) -> Drain {
        let (waiting, inflow_per_s) =
            (self.counts.waiting(), steady_inflow(self.older_arrivals_per_s, self.newer_arrivals_per_s));
        let drain = forecast.drain(waiting, inflow_per_s);
        let drain = match (self.keys, drain) {
            (Some(keys), _) if keys.longest.is_none() && waiting > 0 => Drain::Unknown,
            // What arrives may be of keys that do not wait.
            (Some(_), Drain::Never) if forecast.bound() == Some(Bound::Key) => Drain::Unknown,
            // While one key waits for its own limits, the others may have drained.
            (Some(keys), Drain::After(after)) if waiting > 0 => {
                Drain::After(keys.longest.map_or(after, |key| after.max(key)))
            }
            (None, Drain::After(after)) if waiting > 0 => match self.watched_keys {
                None => drain,
                Some(keys) => keys.drain_in.map_or(Drain::Unknown, |last| Drain::After(after.max(last))),
            },
            (_, drain) => drain,
        };
        if self.fault.is_none() || waiting == 0 {
            return drain;
        }
        let after = Duration::try_from_secs_f64(waiting as f64 / (self.achieved_per_s - inflow_per_s)).ok();
        match after {
            _ if self.achieved_per_s <= 0.0 => Drain::Unknown,
            Some(after) => drain.after().map_or(Drain::After(after), |at_limit| Drain::After(after.max(at_limit))),
            None => Drain::Never,
        }
    }
}

impl Figures {
    pub(crate) fn of(destination: &Destination, measured: &Measured, now: Timestamp) -> Self {
        let Measured { counts, oldest_at, achieved_per_s, arrivals_per_s, .. } = *measured;
        let stored = destination;
        let destination = &*stored.at(now);
        let settings = &destination.settings;
        let limits = &settings.rate_limits;
        let (configured_per_s, binding) = limits.strictest_at(measured.usual_cost()).unzip();
        let utilisation = measured.utilisation(settings);
        let reason = reason(destination, measured, now);
        let forecast = measured.forecast(stored, limits, settings.max_in_flight, now);
        let is_empty = counts.waiting() == 0;
        // While it is stopped, nobody knows when it drains.
        let drain = Some(drain(destination, measured, &forecast, reason, now));
        let drain = drain.filter(|_| is_empty || !destination.is_stopped());
        Self {
            counts,
            oldest_age: oldest_at.filter(|_| !is_empty).map(|at| now.since(at)),
            configured_per_s,
            effective_per_s: match forecast.per_second() {
                _ if destination.is_stopped() || destination.is(Condition::Held, now) => Some(0.0),
                _ if measured.is_held_by_group(now) => Some(0.0),
                // All that wait are paused.
                _ if measured.keys.is_some_and(|keys| keys.per_s == 0.0) => Some(0.0),
                _ if reason == Some(Reason::Key) && measured.keys.is_none() => Some(achieved_per_s),
                // After the breaker has closed, a growing share is allowed.
                rate => rate.map(|rate| rate * destination.breaker.share(now)),
            },
            achieved_per_s,
            arrivals_per_s,
            binding,
            utilisation,
            drain_eta: drain.and_then(Drain::after),
            drains: drain.and_then(Drain::is_expected),
            reason,
            answer_time: measured.answer_time(settings),
            refusals: measured.refusals,
            pace: measured.pace.clone(),
            share: measured.share,
            inflow_per_s: steady_inflow(measured.older_arrivals_per_s, measured.newer_arrivals_per_s),
            usual_cost: measured.usual_cost,
        }
    }
}

/// A usual cost as a number.
pub(crate) fn as_number(usual_cost: u32) -> f64 {
    f64::from(usual_cost.max(COST_OF_ONE)) / f64::from(COST_OF_ONE)
}

fn reason(destination: &Destination, measured: &Measured, now: Timestamp) -> Option<Reason> {
    let counts = &measured.counts;
    let fault = measured.fault.map(Reason::Fault);
    if counts.waiting() == 0 {
        // All of it may be claimed, in permits that nobody uses.
        return fault.filter(|_| counts.of(DeliveryState::Delivering) > 0);
    }
    let settings = &destination.settings;
    match () {
        () if destination.is(Condition::Paused, now) => Some(Reason::Paused),
        () if destination.is(Condition::Breaker, now) => Some(Reason::Breaker),
        () if measured.refusals.is_some() => Some(Reason::RefusedWithinLimit),
        () if destination.is(Condition::Held, now) || measured.is_held_by_group(now) => Some(Reason::Held),
        () if fault.is_some() => fault,
        () if measured.has_spent_a_window(now) => Some(Reason::Limit),
        () if measured.is_at_limit(settings) && !measured.is_known_to_be_bound_by_keys(settings) => Some(Reason::Limit),
        () if measured.is_at_share() => Some(Reason::Group),
        () if measured.is_at_pace(settings) => Some(Reason::Adaptive),
        () if measured.is_full(settings) => Some(Reason::Slow),
        () if measured.fails && (settings.order.is_by_key() || counts.of(DeliveryState::Pending) == 0) => {
            Some(Reason::Failing)
        }
        // Neither the limit nor `max_in_flight` is reached, so what waits is not due: behind the heads of message
        // groups, or until a retry.
        () if settings.order.is_by_key() => Some(Reason::Ordered),
        () if counts.of(DeliveryState::Pending) == 0 => None,
        () if measured.is_bound_by_group() => Some(Reason::Group),
        () if measured.is_bound_by_keys(destination, now) => Some(Reason::Key),
        () if measured.pace.is_some() => Some(Reason::Adaptive),
        () => (!settings.rate_limits.is_unlimited()).then_some(Reason::Limit),
    }
}

fn drain(
    destination: &Destination,
    measured: &Measured,
    forecast: &Forecast,
    reason: Option<Reason>,
    now: Timestamp,
) -> Drain {
    let limits = &destination.settings.rate_limits;
    if matches!(reason, Some(Reason::Fault(_))) {
        return measured.drain(forecast);
    }
    if reason == Some(Reason::Key) && measured.keys.is_none() && measured.achieved_per_s <= 0.0 {
        return Drain::Unknown;
    }
    // Where neither the limit nor a known answer time bounds the rate, the recent rate is the best estimate.
    let is_unbounded =
        (limits.is_unlimited() && measured.pace.is_none() && measured.share.is_none() && measured.keys.is_none())
            || reason == Some(Reason::Slow);
    let is_measured = measured.answer_time(&destination.settings).is_some();
    let is_estimated = reason == Some(Reason::Ordered)
        || (reason == Some(Reason::Key) && measured.keys.is_none())
        || (is_unbounded && !is_measured);
    let achieved = measured.achieved_per_s;
    if !is_estimated || achieved <= 0.0 {
        return measured.drain(forecast);
    }
    let answers = Answers { max_in_flight: 1, time: Duration::from_secs_f64(1.0 / achieved) };
    let drain = measured.drain(&measured.forecast_with(destination, limits, Some(answers), now));
    // The recent rate may only reflect the inflow, and a higher rate may be possible.
    let is_unsure = limits.is_unlimited() || reason == Some(Reason::Key);
    if drain == Drain::Never && is_unsure { Drain::Unknown } else { drain }
}

/// Rounded to three digits after the point. What is below one keeps four significant digits: a limit of one a minute is
/// 0.01667 a second.
pub(crate) fn millis(value: f64) -> f64 {
    let zeros = if value == 0.0 { 0.0 } else { (-value.abs().log10()).floor().clamp(0.0, 9.0) };
    let scale = 10_f64.powf(if zeros > 0.0 { 4.0 + zeros } else { 3.0 });
    (value * scale).round() / scale
}

/// Whether sends are averaged over a minute: in a few seconds there may be none, although the limit is used. A limit of the
/// window shape may be used up at the begin of its window.
pub(crate) fn is_slow(limits: &RateLimits) -> bool {
    let is_longer = |limit: &RateLimit| limit.period.window() > SHORTEST;
    limits.per_second().is_some_and(|rate| rate < 1.0) || limits.of_shape(Shape::Window).any(is_longer)
}

#[cfg(test)]
mod tests;
