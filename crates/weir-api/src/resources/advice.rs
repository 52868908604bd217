//! The setting that would let a destination send faster, and what it would do: the forecast of its figures with another
//! value.

use weir_api_types as types;
use weir_core::{
    Destination, Period, RateLimit, RateLimits, Timestamp,
    limit::{MAX_LIMIT, MinInterval},
    preview::{Bound, Forecast},
};

use super::preview::binding;
use crate::figures::{Figures, Measured, Reason, millis};

/// Above the need: answer times and arrivals vary.
const HEADROOM: f64 = 1.25;
/// The largest `max_in_flight`.
const MOST_IN_FLIGHT: u32 = 10_000;

/// What would help against the reason of `figures`. `None`: no setting of the destination would, or the need is not known.
pub(crate) fn advice(
    destination: &Destination,
    measured: &Measured,
    figures: &Figures,
    now: Timestamp,
) -> Option<types::Advice> {
    let settings = &destination.at(now).settings;
    let limits = &settings.rate_limits;
    let forecast = |limits: &RateLimits| measured.forecast(destination, limits, settings.max_in_flight, now);
    match figures.reason? {
        Reason::Slow => {
            let time_s = figures.answer_time?.as_secs_f64();
            let present_per_s = f64::from(settings.max_in_flight) / time_s;
            // As many as the limit allows; without one, as many as arrive, or twice as many as now.
            let wanted_per_s = figures.configured_per_s.unwrap_or_else(|| wanted(measured, figures, present_per_s));
            let value = above(settings.max_in_flight, wanted_per_s * time_s * HEADROOM, MOST_IN_FLIGHT)?;
            let forecast = measured.forecast(destination, limits, value, now);
            Some(view(measured, "max_in_flight", value, None, &forecast))
        }
        Reason::Limit => match figures.binding? {
            Bound::Limit(limit) => {
                let taken = if limit.is_in_costs() { measured.usual_cost() } else { 1.0 };
                let wanted_per_s = wanted(measured, figures, limit.per_second() / taken) * taken;
                let value = above(limit.limit.get(), wanted_per_s * limit.period.window().as_secs_f64(), MAX_LIMIT)?;
                let raised = forecast(&raised(limits, limit, value)?);
                Some(view(measured, "limit", value, Some(limit.period), &raised))
            }
            Bound::MinInterval(interval) => {
                let value = interval.as_millis() / 2;
                let shorter = limits.clone().with_min_interval(Some(MinInterval::from_millis(value)?));
                Some(view(measured, "min_interval_ms", value, None, &forecast(&shorter)))
            }
            Bound::MaxInFlight | Bound::Adaptive | Bound::Group | Bound::Key => None,
        },
        _ => None,
    }
}

/// The rate that keeps up with the arrivals, if the backlog would never drain; otherwise twice the present one.
fn wanted(measured: &Measured, figures: &Figures, present_per_s: f64) -> f64 {
    match figures.drains {
        Some(false) => measured.arrivals_per_s.max(present_per_s) * HEADROOM,
        _ => present_per_s * 2.0,
    }
}

/// The next whole number, above the present value and at most the largest one that is allowed.
fn above(present: u32, wanted: f64, most: u32) -> Option<u32> {
    (present < most).then(|| (wanted.ceil() as u32).clamp(present + 1, most))
}

/// The limits with another value of one of them.
fn raised(limits: &RateLimits, limit: RateLimit, value: u32) -> Option<RateLimits> {
    let raised = RateLimit::with_burst(value, limit.period, limit.burst.get())?.with_margin(limit.margin_ms())?;
    let raised = if limit.is_in_costs() { raised.in_costs()? } else { raised.with_shape(limit.shape())? };
    let of_periods = limits.as_slice().iter().map(|one| if one.period == limit.period { raised } else { *one });
    let raised = RateLimits::new(of_periods.collect()).ok()?;
    Some(raised.with_min_interval(limits.min_interval()))
}

fn view(measured: &Measured, setting: &str, value: u32, period: Option<Period>, forecast: &Forecast) -> types::Advice {
    let drain = measured.drain(forecast);
    types::Advice {
        setting: setting.to_owned(),
        value,
        period: period.map(|period| period.to_string()),
        effective_per_s: forecast.per_second().map(millis),
        binding: forecast.bound().map(binding),
        drain_eta_s: drain.after().map(|time| millis(time.as_secs_f64())),
        drains: drain.is_expected(),
    }
}
