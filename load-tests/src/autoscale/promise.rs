//! The promises of autoscaling, and the judge of whether a run kept them. Pure, on the [trace](Trace) of a run.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Deserialize;

use super::{
    hpa::{Amount, Rules},
    trace::{Server, Trace},
};

/// Time that does not become shorter in a faster run. Prometheus and the workers have to start, and only then does the
/// lag that they recorded leave the windows of the queries. With these 6 s a promise had 18 s in all; one run needed
/// 17.9 s.
const NOT_SPED_UP_S: f64 = 6.0;

/// Times are seconds since the beginning of the run.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Promise {
    /// The 99th percentile of the start lag falls below `p99_ms` at most `within_s` after `from_s`, and stays below
    /// until `until_s`. This holds for Weir's own metric and for the lag at the receivers, counted from the instant at
    /// which an event was meant to be posted.
    Settles { from_s: f64, within_s: f64, until_s: f64, p99_ms: f64 },
    /// The number of replicas is at most `times_at_most` times the number that `places` concurrent sends need.
    Replicas { from_s: f64, until_s: f64, places: f64, times_at_most: f64 },
    /// The number of replicas changes its direction at most `at_most` times.
    Reversals { from_s: f64, until_s: f64, at_most: u32 },
    /// The number of replicas stays at the minimum.
    StaysAtMinimum { from_s: f64, until_s: f64 },
    /// The load falls from `places` concurrent sends. The workers that it needed stay for the time window of
    /// `scaleDown`. Then their number falls, no faster than the policies of `scaleDown` allow, and reaches the minimum
    /// before `until_s`.
    ScalesIn { from_s: f64, until_s: f64, places: f64 },
    /// The number of replicas does not change while this server is down.
    Holds(Server),
    /// After the server has restarted, the same as `settles`.
    Recovers { of: Server, within_s: f64, until_s: f64, p99_ms: f64 },
}

/// The result of a promise.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct Verdict {
    pub(crate) promise: String,
    pub(crate) measured: String,
    pub(crate) is_kept: bool,
}

impl Promise {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Settles { .. } => "settles",
            Self::Replicas { .. } => "replicas",
            Self::Reversals { .. } => "reversals",
            Self::StaysAtMinimum { .. } => "stays_at_minimum",
            Self::ScalesIn { .. } => "scales_in",
            Self::Holds(_) => "holds",
            Self::Recovers { .. } => "recovers",
        }
    }

    pub(super) fn speed_up(&mut self, times: f64) {
        let not_sped_up_s = if times > 1.0 { NOT_SPED_UP_S } else { 0.0 };
        match self {
            Self::Settles { from_s, within_s, until_s, .. } => {
                [from_s, until_s].into_iter().for_each(|time| *time /= times);
                *within_s = *within_s / times + not_sped_up_s;
            }
            Self::Replicas { from_s, until_s, .. }
            | Self::Reversals { from_s, until_s, .. }
            | Self::StaysAtMinimum { from_s, until_s }
            | Self::ScalesIn { from_s, until_s, .. } => [from_s, until_s].into_iter().for_each(|time| *time /= times),
            Self::Holds(_) => {}
            Self::Recovers { within_s, until_s, .. } => {
                *until_s /= times;
                *within_s = *within_s / times + not_sped_up_s;
            }
        }
    }

    pub(crate) fn judge(&self, trace: &Trace) -> Verdict {
        match *self {
            Self::Settles { from_s, within_s, until_s, p99_ms } => settles(trace, from_s, within_s, until_s, p99_ms),
            Self::Replicas { from_s, until_s, places, times_at_most } => {
                let needed = needed(trace, places);
                let most = trace.replicas(from_s, until_s).map(|(_, replicas)| replicas).max().unwrap_or_default();
                Verdict {
                    promise: format!("at most {times_at_most} × the {needed:.0} needed workers"),
                    measured: format!("at most {most}"),
                    // Without a measurement the promise is not kept.
                    is_kept: f64::from(most) <= needed * times_at_most && most > 0,
                }
            }
            Self::Reversals { from_s, until_s, at_most } => {
                let reversals = reversals(trace.replicas(from_s, until_s).map(|(_, replicas)| replicas));
                Verdict {
                    promise: format!("the number of workers changes its direction at most {at_most} ×"),
                    measured: format!("{reversals} ×"),
                    is_kept: reversals <= at_most,
                }
            }
            Self::StaysAtMinimum { from_s, until_s } => {
                let most = trace.replicas(from_s, until_s).map(|(_, replicas)| replicas).max().unwrap_or_default();
                Verdict {
                    promise: format!("no more workers than the minimum of {}", trace.min),
                    measured: format!("at most {most}"),
                    is_kept: most == trace.min,
                }
            }
            Self::ScalesIn { from_s, until_s, places } => scales_in(trace, from_s, until_s, places),
            Self::Holds(of) => holds(trace, of),
            Self::Recovers { of, within_s, until_s, p99_ms } => {
                // The time counts from the restart. Without a restart the promise is not kept.
                let Some(back_s) = trace.outage(of).map(|(_, until_s)| until_s) else {
                    return Verdict {
                        promise: format!("{of:?} restarts"),
                        measured: "it did not restart".to_owned(),
                        is_kept: false,
                    };
                };
                let verdict = settles(trace, back_s, within_s, until_s, p99_ms);
                Verdict { promise: format!("after the restart of {of:?}: {}", verdict.promise), ..verdict }
            }
        }
    }
}

/// The number of workers that `places` concurrent sends need at the target busy ratio.
fn needed(trace: &Trace, places: f64) -> f64 {
    (places / (f64::from(trace.capacity) * trace.busy_target)).ceil()
}

fn settles(trace: &Trace, from_s: f64, within_s: f64, until_s: f64, p99_ms: f64) -> Verdict {
    let lag = settled(&trace.lag_ms, from_s, until_s, trace.step_s, p99_ms);
    let late = settled(&trace.late_ms, from_s, until_s, trace.sync_s, p99_ms);
    let describe = |settled: &Result<(f64, f64), &str>| match settled {
        Ok((after_s, most)) => format!("after {after_s:.1} s, at most {most:.0} ms"),
        Err(why) => (*why).to_owned(),
    };
    let is_kept = |settled: &Result<(f64, f64), &str>| matches!(settled, Ok((after_s, _)) if *after_s <= within_s);
    Verdict {
        promise: format!("p99 start lag falls below {p99_ms:.0} ms within {within_s:.0} s and stays below"),
        measured: format!("{}; receivers: {}", describe(&lag), describe(&late)),
        is_kept: is_kept(&lag) && is_kept(&late),
    }
}

/// When a series was last too high, counted from `from_s`, and its highest value.
fn settled(
    series: &[(f64, f64)],
    from_s: f64,
    until_s: f64,
    step_s: f64,
    p99_ms: f64,
) -> Result<(f64, f64), &'static str> {
    let during: Vec<_> = series.iter().filter(|(at, _)| (from_s..until_s).contains(at)).collect();
    let most = during.iter().map(|(_, ms)| *ms).reduce(f64::max).ok_or("not measured")?;
    let last_s = during.last().map_or(from_s, |(at, _)| *at);
    if until_s - last_s > (until_s - from_s) / 4.0 {
        return Err("not measured to the end");
    }
    let late = during.iter().rfind(|(_, ms)| *ms >= p99_ms);
    Ok((late.map_or(0.0, |(at, _)| at + step_s - from_s), most))
}

/// How often a series changes its direction.
fn reversals(series: impl Iterator<Item = u32>) -> u32 {
    let series: Vec<_> = series.collect();
    let directions: Vec<_> = series.windows(2).map(|two| two[1].cmp(&two[0])).filter(|way| way.is_ne()).collect();
    directions.windows(2).filter(|two| two[0] != two[1]).count() as u32
}

fn scales_in(trace: &Trace, from_s: f64, until_s: f64, places: f64) -> Verdict {
    let series: Vec<_> = trace.replicas(from_s, until_s).collect();
    let window_s = trace.down.window.as_secs_f64();
    let needed = needed(trace, places) as u32;
    let mut faults = Vec::new();
    // During the window, the workers that the load needed stay.
    // The last recommendation before the step may be one sync old.
    let kept = series.iter().filter(|(at, _)| *at < from_s + window_s - trace.sync_s).map(|(_, replicas)| *replicas);
    let kept = kept.min().unwrap_or_default();
    if kept < needed {
        faults.push(format!("only {kept} within the window"));
    }

    // Afterwards no step is larger than the policies allow.
    for (number, (at, replicas)) in series.iter().enumerate().skip(1) {
        let least = least_allowed(&trace.down, &series[..number], *at);
        if *replicas < least && *replicas < series[number - 1].1 {
            faults.push(format!("{replicas} at {at:.1} s, where the policy allows {least}"));
        }
    }

    // At the end the minimum is reached.
    let last = series.last().map_or(0, |(_, replicas)| *replicas);
    if last != trace.min {
        faults.push(format!("{last} at the end"));
    }
    let reached = series.iter().find(|(_, replicas)| *replicas == trace.min).map_or(until_s, |(at, _)| *at);
    Verdict {
        promise: format!(
            "{needed} workers stay for {window_s:.0} s, then their number falls by the policy to {}",
            trace.min
        ),
        measured: if faults.is_empty() {
            format!("{kept} stayed, and {last} were reached after {:.1} s", reached - from_s)
        } else {
            faults.join("; ")
        },
        is_kept: faults.is_empty(),
    }
}

/// The lowest number that the policies allow, computed from the series alone: they limit the change since the beginning
/// of their periods.
fn least_allowed(rules: &Rules, before: &[(f64, u32)], at: f64) -> u32 {
    let of = |amount: Amount, period: Duration| {
        let begins = at - period.as_secs_f64();
        // A change exactly at the beginning is outside the period. The tolerance is for rounding.
        let then = before.iter().rfind(|(time, _)| *time <= begins + 1e-3).or(before.first());
        let then = then.map_or(0, |(_, replicas)| *replicas);
        match amount {
            Amount::Pods(pods) => then.saturating_sub(pods),
            Amount::Percent(percent) => (f64::from(then) * (1.0 - f64::from(percent) / 100.0)).max(0.0) as u32,
        }
    };
    rules.policies.iter().map(|policy| of(policy.amount, policy.period)).min().unwrap_or_default()
}

fn holds(trace: &Trace, of: Server) -> Verdict {
    let promise = format!("the number of workers does not change while {of:?} is down");
    let Some((from_s, until_s)) = trace.outage(of) else {
        return Verdict { promise, measured: format!("{of:?} was not down"), is_kept: false };
    };
    let before = trace.replicas(0.0, from_s).last().map_or(trace.min, |(_, replicas)| replicas);
    let during: Vec<_> = trace.replicas(from_s, until_s).map(|(_, replicas)| replicas).collect();
    let (least, most) = (during.iter().min().copied(), during.iter().max().copied());
    Verdict {
        promise,
        measured: match (least, most) {
            (Some(least), Some(most)) => {
                format!("{before} before the outage, {least} to {most} during its {:.0} s", until_s - from_s)
            }
            _ => "not measured".to_owned(),
        },
        is_kept: least == Some(before) && most == Some(before),
    }
}
