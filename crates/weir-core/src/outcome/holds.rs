//! When a destination is held, and for how long.
//!
//! | answer | hint | own limit | the destination |
//! |---|---|---|---|
//! | refusal | a wait | any | is held for it; longer once it has refused everything for a while |
//! | refusal | a wait that may be next to nothing: `Retry-After: 1` rounded up | keeps most requests unrefused | goes on at its limit |
//! | refusal | none | any | is held once it has refused everything for a while; at once without a limit; never if it is adaptive |
//! | other | used-up quota | none, or higher than the quota | is held until the reset, at most for a window |
//! | other | used-up quota | not higher | goes on at its limit |

use std::time::Duration;

use super::{HoldReason, MAX_HOLD, Refusal, SendResult};
use crate::{
    answer_history::RefusalTrend,
    hints::{Hints, UsedUp, Wait},
    limit::{RateLimit, RateLimits},
};

/// How long a destination without a limit is held after a refusal that does not say until when: the shortest window of
/// common limits. Sends would go on as fast as the receiver can refuse them otherwise.
const SHORTEST_SILENT: Duration = Duration::from_secs(1);
/// Longer silence would hide for too long that the receiver accepts requests again.
const LONGEST_SILENT: Duration = Duration::from_secs(60);
/// A hold is extended to this long at most, so a receiver that accepts again is noticed after this time at the latest.
const LONGEST_EXTENDED: Duration = Duration::from_secs(10);
/// A limited destination that refuses everything for this long has another limit than ours, not jitter.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an answer asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Requested {
    /// The hold of the destination, at most [`MAX_HOLD`].
    pub(super) hold: Option<(Duration, HoldReason, String)>,
    /// The wait that a refusal asks for, at most [`MAX_HOLD`]. The delivery waits for so long even if its destination
    /// is not held.
    pub(super) asked: Option<Duration>,
}

pub(super) fn requested(
    result: &SendResult,
    limits: &RateLimits,
    is_adaptive: bool,
    refusals: RefusalTrend,
    jitter: f64,
) -> Requested {
    let SendResult::Answer { status, hints } = result else { return Requested::default() };
    match result.refusal() {
        None => Requested { hold: by_announcement(hints, limits), asked: None },
        Some(refusal) => {
            // 429 and 403 with a wait of zero say as little as those without any.
            let Some((wait, reason)) = longest(hints).filter(|(wait, _)| !wait.delay.is_zero()) else {
                let is_held = refusal == Refusal::TooMany && !is_adaptive;
                let hold = if is_held { silent(*status, limits, refusals) } else { None };
                return Requested { hold, asked: None };
            };
            let asked = wait.delay.min(MAX_HOLD);
            // A spacing without burst is kept anyway.
            let kept = spacing(limits, |limit| limit.burst.get() == 1);
            let needed = spacing(limits, |_| true);
            let may_be_nothing = wait.at_least().is_zero() && refusals.are_rare && !limits.is_unlimited();
            let hold = if may_be_nothing { asked.min(needed) } else { asked.max(extended(refusals, jitter)) };
            let hold = (hold > kept).then(|| (hold, reason, wait.header.clone()));
            Requested { hold, asked: Some(asked) }
        }
    }
}

/// The longest wait that a refusal asks for. If a finer hint says the same, the finer one: `X-Retry-In: 7.8ms` beside
/// `Retry-After: 1`.
fn longest(hints: &Hints) -> Option<(&Wait, HoldReason)> {
    let retry_after = hints.retry_after.iter().map(|wait| (wait, HoldReason::RetryAfter));
    // A wait that is only derived from a window does not count beside one that the receiver has named.
    let quotas = hints.used_up.iter().filter(|used_up| !used_up.is_guess || hints.retry_after.is_empty());
    // A reset alone does not say that it is the cause of the refusal: it counts if nothing else does.
    let is_alone = hints.retry_after.is_empty() && hints.used_up.is_empty();
    let resets = hints.resets.iter().filter(|_| is_alone);
    let quotas = quotas.map(|used_up| &used_up.wait).chain(resets).map(|wait| (wait, HoldReason::QuotaUsedUp));
    let waits = || retry_after.clone().chain(quotas.clone());
    let (longest, reason) = waits().max_by_key(|(wait, reason)| (wait.delay, *reason == HoldReason::RetryAfter))?;
    let is_finer = |wait: &Wait| {
        wait.rounding < longest.rounding && wait.delay <= longest.delay && wait.delay > longest.at_least()
    };
    let finest = waits().filter(|(wait, _)| is_finer(wait)).max_by_key(|(wait, _)| wait.delay);
    Some(finest.unwrap_or((longest, reason)))
}

/// The least hold of a destination that refuses every request, however short the wait that it names: a quarter to a half
/// of the time for which it has done so. Thousands of requests a second that are refused again would cost its neighbours
/// more than it could gain. At random, so that destinations which began together are not all asked at the same instant.
fn extended(refusals: RefusalTrend, jitter: f64) -> Duration {
    (refusals.lasts / 2).min(LONGEST_EXTENDED).mul_f64(0.5 + jitter / 2.0)
}

/// A refusal that does not say until when.
fn silent(status: u16, limits: &RateLimits, refusals: RefusalTrend) -> Option<(Duration, HoldReason, String)> {
    let is_patient = !limits.is_unlimited() && refusals.lasts < PATIENCE;
    // Half as long as it has lasted: the longer it refuses, the less often it is asked.
    let hold = (refusals.lasts / 2).clamp(SHORTEST_SILENT, LONGEST_SILENT);
    (!is_patient).then(|| (hold, HoldReason::Refused, format!("{status} without a time")))
}

/// A used-up quota that another answer than a refusal announces. It is an advice before anything has gone wrong, so it
/// counts only where our own limits would exceed the quota.
fn by_announcement(hints: &Hints, limits: &RateLimits) -> Option<(Duration, HoldReason, String)> {
    let lower = hints.used_up.iter().filter(|used_up| is_lower(used_up, limits));
    let hold = |used_up: &UsedUp| used_up.wait.delay.min(used_up.window.unwrap_or(MAX_HOLD)).min(MAX_HOLD);
    let longest = lower.max_by_key(|used_up| hold(used_up))?;
    Some((hold(longest), HoldReason::QuotaUsedUp, longest.wait.header.clone()))
}

/// Whether the announced quota is lower than our own limits, per time. If the receiver does not name the window, it is
/// at least as long as the time until the reset. If it does not name the quota either, it is another limit than ours
/// when its window is longer than each of ours.
fn is_lower(used_up: &UsedUp, limits: &RateLimits) -> bool {
    let Some(own_per_second) = limits.per_second() else { return true };
    let window = used_up.window.unwrap_or(used_up.wait.at_least());
    match used_up.quota {
        Some(quota) => own_per_second * window.as_secs_f64() > quota as f64 * 1.001,
        None => limits.as_slice().iter().all(|limit| window > limit.period.window()),
    }
}

/// The longest spacing of these limits.
fn spacing(limits: &RateLimits, counts: impl Fn(&RateLimit) -> bool) -> Duration {
    limits.as_slice().iter().filter(|limit| counts(limit)).map(RateLimit::spacing).max().unwrap_or_default()
}
