//! When a failed delivery is attempted again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{backoff::exponential, time::Timestamp};

/// The number of attempts, their delays, and the age at which a delivery is given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// 1 to 100.
    pub max_attempts: u32,
    /// The greatest age, counted from the event's creation or its `deliver_at`; 1 s to 30 days.
    pub max_age_s: u32,
    pub delays: RetryDelays,
    /// Whether refusals ([`Refusal::TooMany`](crate::outcome::Refusal::TooMany)) count against `max_attempts`. Absent in
    /// policies that earlier versions stored.
    #[serde(default)]
    pub refusals_count: bool,
}

/// The delays between attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryDelays {
    /// Full jitter: `uniform(0, min(cap, base·2^(n−1)))` after attempt n.
    /// Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    Backoff { base_ms: u32, cap_ms: u32 },
    /// After attempt n the n-th of these delays. The last one is repeated. No jitter.
    Schedule(Vec<u32>),
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 16,
            max_age_s: 72 * 3_600,
            delays: RetryDelays::Backoff { base_ms: 10_000, cap_ms: 3_600_000 },
            refusals_count: false,
        }
    }
}

/// The consequence of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next attempt is due at this instant.
    RetryAt(Timestamp),
    /// The attempts are exhausted, or the delivery would exceed its greatest age before the next attempt.
    Exhausted,
}

impl RetryPolicy {
    /// The consequence of attempt number `attempt` (1 for the first), which failed at `now`, of an event created at
    /// `created_at`. `jitter` is uniform in [0, 1). `not_before` is the earliest instant that the destination asked for
    /// (`Retry-After`). The later of it and the policy's own delay applies. Only an attempt that `is_counted` can be the
    /// last one.
    pub fn next(
        &self,
        attempt: u32,
        created_at: Timestamp,
        now: Timestamp,
        jitter: f64,
        not_before: Option<Timestamp>,
        is_counted: bool,
    ) -> Next {
        let at = (now + self.delay(attempt, jitter)).max(not_before.unwrap_or(Timestamp::MIN));
        self.next_at(at, attempt, created_at, is_counted)
    }

    /// As [`Self::next`], with a retry at this instant.
    pub fn next_at(&self, at: Timestamp, attempt: u32, created_at: Timestamp, is_counted: bool) -> Next {
        let is_last = is_counted && attempt >= self.max_attempts;
        let is_too_old = at > created_at + Duration::from_secs(self.max_age_s.into());
        if is_last || is_too_old { Next::Exhausted } else { Next::RetryAt(at) }
    }

    /// The longest delay after attempt number `attempt`, without what a destination asks for.
    pub fn longest_delay(&self, attempt: u32) -> Duration {
        self.delay(attempt, 1.0)
    }

    fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let step = attempt.saturating_sub(1);
        match &self.delays {
            RetryDelays::Backoff { base_ms, cap_ms } => {
                let [base, cap] = [*base_ms, *cap_ms].map(|ms| Duration::from_millis(ms.into()));
                exponential(base, cap, step).mul_f64(jitter.clamp(0.0, 1.0))
            }
            RetryDelays::Schedule(delays_ms) => {
                let delay_ms = delays_ms.get(step as usize).or(delays_ms.last()).copied().unwrap_or(0);
                Duration::from_millis(delay_ms.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    #[test]
    fn the_last_attempt_exhausts_a_delivery() {
        let policy = RetryPolicy { max_attempts: 3, ..RetryPolicy::default() };
        assert!(matches!(policy.next(2, NOW, NOW, 0.5, None, true), Next::RetryAt(_)));
        assert_eq!(policy.next(3, NOW, NOW, 0.5, None, true), Next::Exhausted);
    }

    #[test]
    fn a_retry_beyond_the_greatest_age_is_not_made() {
        let policy = RetryPolicy { max_age_s: 10, ..RetryPolicy::default() };
        assert_eq!(policy.next(1, NOW, NOW, 0.5, None, true), Next::RetryAt(NOW + Duration::from_secs(5)));
        assert_eq!(policy.next(1, NOW, NOW + Duration::from_secs(6), 0.5, None, true), Next::Exhausted);
    }

    #[test]
    fn only_the_age_bounds_attempts_that_do_not_count() {
        let policy = RetryPolicy { max_attempts: 1, max_age_s: 10, ..RetryPolicy::default() };
        assert_eq!(policy.next(1, NOW, NOW, 0.5, None, false), Next::RetryAt(NOW + Duration::from_secs(5)));
        assert_eq!(policy.next(1, NOW, NOW + Duration::from_secs(6), 0.5, None, false), Next::Exhausted);
        assert_eq!(policy.next_at(NOW, 1, NOW, true), Next::Exhausted);
    }

    #[test]
    fn a_policy_that_an_earlier_version_stored_does_not_count_refusals() {
        let stored =
            r#"{"max_attempts":16,"max_age_s":259200,"delays":{"backoff":{"base_ms":10000,"cap_ms":3600000}}}"#;
        assert_eq!(serde_json::from_str::<RetryPolicy>(stored).unwrap(), RetryPolicy::default());
    }

    #[test]
    fn a_schedule_repeats_its_last_delay() {
        let policy = RetryPolicy { delays: RetryDelays::Schedule(vec![100, 200]), ..RetryPolicy::default() };
        let delays = [1, 2, 3, 9].map(|attempt| policy.next(attempt, NOW, NOW, 0.9, None, true));
        assert_eq!(delays, [100, 200, 200, 200].map(|ms| Next::RetryAt(NOW + Duration::from_millis(ms))));
    }

    #[test]
    fn the_later_of_the_delay_and_retry_after_applies() {
        let policy = RetryPolicy::default();
        let asked = NOW + Duration::from_secs(60);
        assert_eq!(policy.next(1, NOW, NOW, 0.0, Some(asked), true), Next::RetryAt(asked));
        assert_eq!(policy.next(1, NOW, NOW, 0.5, Some(NOW), true), Next::RetryAt(NOW + Duration::from_secs(5)));
    }

    proptest! {
        #[test]
        fn full_jitter_stays_within_its_ceiling(attempt in 1u32..15, jitter in 0.0f64..1.0) {
            let Next::RetryAt(at) = RetryPolicy::default().next(attempt, NOW, NOW, jitter, None, true) else { panic!("not exhausted") };
            let ceiling = (10u64 << (attempt - 1)).min(3_600);
            prop_assert!(at.since(NOW) <= Duration::from_secs(ceiling));
            prop_assert!(at.since(NOW).abs_diff(Duration::from_secs(ceiling).mul_f64(jitter)) < Duration::from_micros(1));
        }
    }
}
