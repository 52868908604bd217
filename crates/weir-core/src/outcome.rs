//! From the result of a send to the consequences for its delivery and destination.

mod holds;

use std::time::Duration;

use crate::{
    answer_history::RefusalTrend,
    error_kind::AttemptOutcome,
    hints::Hints,
    limit::RateLimits,
    retry::{Next, RetryPolicy},
    time::Timestamp,
};
pub use crate::{error_kind::Failure, hints::MAX_HEADER_TEXT};

/// The longest hold a destination may ask for with `Retry-After`. A wrong date must not silence a destination for days;
/// after an hour it is asked again.
pub const MAX_HOLD: Duration = Duration::from_secs(3_600);

/// The result of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendResult {
    /// The status of an answer arrived. It decides, even if the rest of the answer was not complete.
    Answer { status: u16, hints: Hints },
    /// There was no usable answer.
    Failure(Failure),
}

impl SendResult {
    /// Whether a living endpoint puts Weir off, and how.
    pub fn refusal(&self) -> Option<Refusal> {
        let Self::Answer { status, hints } = self else { return None };
        let (asks, is_used_up) = (!hints.retry_after.is_empty(), !hints.used_up.is_empty());
        match status {
            429 => Some(Refusal::TooMany),
            // GitHub answers its secondary limits, and the primary one, with 403.
            403 if asks || is_used_up => Some(Refusal::TooMany),
            503 if is_used_up => Some(Refusal::TooMany),
            503 if asks => Some(Refusal::Busy),
            _ => None,
        }
    }

    /// The status of the answer, or why there was none.
    pub fn parts(&self) -> (Option<u16>, Option<Failure>) {
        match self {
            Self::Answer { status, .. } => (Some(*status), None),
            Self::Failure(failure) => (None, Some(*failure)),
        }
    }

    /// What was ignored of the answer's headers, for the destination's owner.
    pub fn malformed_headers(&self) -> Option<&str> {
        let Self::Answer { hints, .. } = self else { return None };
        hints.malformed.as_deref()
    }
}

/// How a living endpoint puts Weir off. Neither is a failure of the endpoint, so the breaker does not count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There were too many requests: 429, or 403 or 503 with a used-up quota, or 403 with `Retry-After`. Unless the
    /// retry policy says otherwise, only the age of the delivery bounds how many of these it gets.
    TooMany,
    /// 503 with `Retry-After`: the endpoint is down for a while, and says so. It counts as an attempt.
    Busy,
}

/// The consequence for the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    Retry {
        at: Timestamp,
    },
    /// The delivery was refused permanently: `failed`.
    Failed,
    /// The attempts or the age are exhausted.
    Dead,
}

/// The consequence for the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    None,
    /// No send starts for a time.
    Hold(RequestedHold),
    /// The endpoint is gone (410).
    Pause,
}

/// A hold that a destination asked for by its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedHold {
    /// No send starts before this instant.
    pub until: Timestamp,
    pub reason: HoldReason,
    /// The header that asked for it, such as `retry-after: 120`: one line of at most [`MAX_HEADER_TEXT`] bytes.
    pub header: String,
    /// For how long every answer has been a refusal, if the hold is longer for that than what was asked for.
    pub longer_for: Option<Duration>,
}

/// Why a destination is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    RetryAfter,
    QuotaUsedUp,
    /// The destination refuses requests and does not say until when.
    Refused,
}

/// All consequences of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub outcome: AttemptOutcome,
    pub verdict: Verdict,
    pub effect: Effect,
    pub refusal: Option<Refusal>,
    /// Whether the attempt counts against `max_attempts`.
    pub is_counted: bool,
}

/// The circumstances of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    pub policy: &'a RetryPolicy,
    pub limits: &'a RateLimits,
    /// The pace of the destination follows refusals, so one that does not say until when holds nothing.
    pub is_adaptive: bool,
    /// The number of this attempt among those that count, 1 for the first.
    pub attempt: u32,
    /// When the delivery's event was created.
    pub created_at: Timestamp,
    pub now: Timestamp,
    /// Uniform in [0, 1).
    pub jitter: f64,
    /// What this answer and those before it say.
    pub refusals: RefusalTrend,
}

/// Judges an attempt.
pub fn judge(result: &SendResult, circumstances: &Circumstances<'_>) -> Decision {
    let &Circumstances { policy, limits, is_adaptive, attempt, created_at, now, jitter, refusals } = circumstances;
    let refusal = result.refusal();
    let requested = holds::requested(result, limits, is_adaptive, refusals, jitter);
    // The destination is held, and a retry waits for the end of the hold or for the instant that was asked for.
    let held_until = requested.hold.as_ref().map(|(delay, ..)| now + *delay);
    let not_before = held_until.max(requested.asked.map(|delay| now + delay));
    let effect = match (requested.hold, held_until) {
        (Some((delay, reason, header)), Some(until)) => {
            let longer_for = requested.asked.filter(|asked| delay > *asked).map(|_| refusals.lasts);
            Effect::Hold(RequestedHold { until, reason, header, longer_for })
        }
        _ => Effect::None,
    };
    let is_counted = refusal != Some(Refusal::TooMany) || policy.refusals_count;
    let next = match (refusal, not_before) {
        // The receiver has said when.
        (Some(Refusal::TooMany), Some(at)) if requested.asked.is_some() => {
            policy.next_at(at, attempt, created_at, is_counted)
        }
        (..) => policy.next(attempt, created_at, now, jitter, not_before, is_counted),
    };
    // A failure that may pass is retried until the attempts or the age are exhausted.
    let retry = match next {
        Next::RetryAt(at) => Verdict::Retry { at },
        Next::Exhausted => Verdict::Dead,
    };
    // The status decides about the delivery, and about the destination only when it is gone (410).
    let (outcome, verdict, effect) = match *result {
        SendResult::Answer { status: 200..=299, .. } => (AttemptOutcome::Delivered, Verdict::Delivered, effect),
        _ if refusal.is_some() => (AttemptOutcome::Retryable, retry, effect),
        SendResult::Answer { status: 408 | 425 | 500..=599, .. } | SendResult::Failure(_) => {
            (AttemptOutcome::Retryable, retry, effect)
        }
        SendResult::Answer { status: 410, .. } => (AttemptOutcome::Rejected, Verdict::Failed, Effect::Pause),
        SendResult::Answer { .. } => (AttemptOutcome::Rejected, Verdict::Failed, effect),
    };
    Decision { outcome, verdict, effect, refusal, is_counted }
}

#[cfg(test)]
mod tests;
