//! From the result of a send to the consequences for its delivery and destination.

use std::time::Duration;

use crate::{
    delivery::AttemptOutcome,
    retry::{Next, RetryPolicy},
    time::Timestamp,
};

/// The longest hold a destination may ask for with `Retry-After`. A wrong date must not silence a destination for days;
/// after an hour it is asked again.
pub const MAX_HOLD: Duration = Duration::from_secs(3_600);

/// The result of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendResult {
    /// The status and the headers of an answer arrived. They decide, even if the body was not complete.
    Answer {
        status: u16,
        retry_after: Option<Duration>,
        /// How long Weir's quota at the receiver stays used up (see [`crate::quota`]).
        used_up_for: Option<Duration>,
    },
    /// There was no usable answer.
    Failure(Failure),
}

/// Why there was no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The host name has no address.
    Dns,
    /// The connection was refused, reset before the request, or could not be made in time.
    Connect,
    Tls,
    /// The answer's headers did not arrive within `timeout_ms`.
    Timeout,
    /// The connection broke after the request was sent and before the answer's headers arrived.
    Broken,
    /// The address is in a range that is not allowed.
    Forbidden,
}

impl Failure {
    /// Every kind. The stores save the index in this list, so a new kind must be added at the end.
    pub const ALL: [Self; 6] = [Self::Dns, Self::Connect, Self::Tls, Self::Timeout, Self::Broken, Self::Forbidden];

    /// The name in metrics and filters.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Forbidden => "forbidden",
        }
    }

    /// The failure with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.as_str() == name)
    }
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
}

/// The most bytes of a header that are shown with a hold. Every known form of these headers is shorter.
pub const MAX_HEADER_TEXT: usize = 200;

/// Why a destination is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    RetryAfter,
    QuotaUsedUp,
}

/// All consequences of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub outcome: AttemptOutcome,
    pub verdict: Verdict,
    pub effect: Effect,
}

/// Judges attempt number `attempt` of an event created at `created_at`. `jitter` is uniform in [0, 1).
pub fn judge(
    result: &SendResult,
    policy: &RetryPolicy,
    attempt: u32,
    created_at: Timestamp,
    now: Timestamp,
    jitter: f64,
) -> Decision {
    // A failure that may pass is retried until the attempts or the age are exhausted.
    let retry = |not_before| match policy.next(attempt, created_at, now, jitter, not_before) {
        Next::RetryAt(at) => Verdict::Retry { at },
        Next::Exhausted => Verdict::Dead,
    };
    // A delay that the destination asks for holds all its deliveries, for an hour at most. A retry waits for its end.
    let hold = hold_for(result).map(|(delay, reason)| (now + delay.min(MAX_HOLD), reason));
    let effect = hold.map_or(Effect::None, |(until, reason)| {
        Effect::Hold(RequestedHold { until, reason, header: header_of(reason) })
    });
    let not_before = hold.map(|(until, _)| until);
    // The status decides about the delivery, and about the destination only when it is gone (410).
    let (outcome, verdict, effect) = match *result {
        SendResult::Answer { status: 200..=299, .. } => (AttemptOutcome::Delivered, Verdict::Delivered, effect),
        SendResult::Answer { status: 408 | 425 | 429 | 500..=599, .. } | SendResult::Failure(_) => {
            (AttemptOutcome::Retryable, retry(not_before), effect)
        }
        SendResult::Answer { status: 410, .. } => (AttemptOutcome::Rejected, Verdict::Failed, Effect::Pause),
        SendResult::Answer { .. } => (AttemptOutcome::Rejected, Verdict::Failed, effect),
    };
    Decision { outcome, verdict, effect }
}

/// The delay that the destination asks for, by `Retry-After` or by its quota: the longer of both.
fn hold_for(result: &SendResult) -> Option<(Duration, HoldReason)> {
    let SendResult::Answer { status, retry_after, used_up_for } = *result else { return None };
    let asked = retry_after.filter(|_| matches!(status, 429 | 503)).map(|delay| (delay, HoldReason::RetryAfter));
    let used_up = used_up_for.map(|delay| (delay, HoldReason::QuotaUsedUp));
    [used_up, asked].into_iter().flatten().max_by_key(|(delay, _)| *delay)
}

fn header_of(reason: HoldReason) -> String {
    match reason {
        HoldReason::RetryAfter => "retry-after",
        HoldReason::QuotaUsedUp => "ratelimit",
    }
    .to_owned()
}

/// Reads a `Retry-After` value: seconds, or an HTTP date compared with the wall clock. Source: RFC 9110, section
/// 10.2.3. A date in the past asks for no delay; anything else is ignored.
pub fn retry_after(value: &str, wall: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    let since_epoch = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::MIN.after(since_epoch).since(wall))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn judged(result: SendResult) -> Decision {
        judge(&result, &RetryPolicy::default(), 1, NOW, NOW, 0.5)
    }

    fn held(until: Timestamp, reason: HoldReason) -> Effect {
        Effect::Hold(RequestedHold { until, reason, header: header_of(reason) })
    }

    fn answer(status: u16) -> SendResult {
        SendResult::Answer { status, retry_after: None, used_up_for: None }
    }

    #[test]
    fn the_status_decides_between_delivered_retry_and_failed() {
        let retried = Verdict::Retry { at: NOW + Duration::from_secs(5) };
        for status in [200, 201, 204, 299] {
            assert_eq!(judged(answer(status)).verdict, Verdict::Delivered, "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            assert_eq!(judged(answer(status)).verdict, retried, "{status}");
        }
        for status in [100, 300, 301, 302, 304, 307, 400, 401, 403, 404, 409, 410, 422] {
            assert_eq!(judged(answer(status)).verdict, Verdict::Failed, "{status}");
        }
        for failure in
            [Failure::Dns, Failure::Connect, Failure::Tls, Failure::Timeout, Failure::Broken, Failure::Forbidden]
        {
            assert_eq!(judged(SendResult::Failure(failure)).verdict, retried, "{failure:?}");
        }
    }

    #[test]
    fn gone_pauses_the_destination() {
        assert_eq!(judged(answer(410)).effect, Effect::Pause);
        assert_eq!(judged(answer(404)).effect, Effect::None);
    }

    #[test]
    fn retry_after_on_429_and_503_holds_the_destination_for_an_hour_at_most() {
        let asked = |status, secs| {
            judged(SendResult::Answer { status, retry_after: Some(Duration::from_secs(secs)), used_up_for: None })
        };
        let in_a_minute = NOW + Duration::from_secs(60);
        for status in [429, 503] {
            assert_eq!(asked(status, 60).effect, held(in_a_minute, HoldReason::RetryAfter));
            assert_eq!(asked(status, 60).verdict, Verdict::Retry { at: in_a_minute });
            assert_eq!(asked(status, 1_000_000).effect, held(NOW + MAX_HOLD, HoldReason::RetryAfter));
        }
        assert_eq!(asked(500, 60).effect, Effect::None);
    }

    #[test]
    fn a_used_up_quota_holds_the_destination_with_any_status() {
        let minute = Duration::from_secs(60);
        let used_up =
            |status, retry_after| judged(SendResult::Answer { status, retry_after, used_up_for: Some(minute) });
        let held_for = |delay, reason| held(NOW + delay, reason);
        let held = held_for(minute, HoldReason::QuotaUsedUp);
        assert_eq!((used_up(200, None).verdict, used_up(200, None).effect), (Verdict::Delivered, held));
        assert_eq!(
            (used_up(500, None).verdict, used_up(500, None).effect),
            (Verdict::Retry { at: NOW + minute }, held)
        );
        assert_eq!(used_up(410, None).effect, Effect::Pause);
        assert_eq!(used_up(429, Some(minute / 2)).effect, held);
        assert_eq!(used_up(429, Some(minute * 2)).effect, held_for(minute * 2, HoldReason::RetryAfter));
    }

    #[test]
    fn an_exhausted_delivery_is_dead_and_a_hold_still_holds() {
        let policy = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        let result = SendResult::Answer { status: 429, retry_after: Some(Duration::from_secs(1)), used_up_for: None };
        let decision = judge(&result, &policy, 1, NOW, NOW, 0.5);
        assert_eq!(decision.verdict, Verdict::Dead);
        assert_eq!(decision.effect, held(NOW + Duration::from_secs(1), HoldReason::RetryAfter));
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let wall = Timestamp::from_secs(784_111_777 - 30);
        assert_eq!(retry_after("120", wall), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", wall), Some(Duration::from_secs(30)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", wall + Duration::from_secs(60)), Some(Duration::ZERO));
        assert_eq!(retry_after("soon", wall), None);
        assert_eq!(retry_after("-5", wall), None);
    }
}
