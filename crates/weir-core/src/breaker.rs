//! The circuit breaker: a destination that fails gets no more sends, except one probe at a time.
//!
//! ```text
//!           > half of a minute's attempts failed, or 10 in a row
//! closed ────────────────────────────────────────────────────────▶ open ──open_ms passed──▶ half open
//!    ▲                                                               ▲                        │   │
//!    │                                                               └──probe fails: doubled──┘   │
//!    └──────── probe succeeds, or gets 429: a slow start back to the limit ───────────────────────┘
//! ```
//!
//! An endpoint that refuses requests (429, 503 with `Retry-After`) lives: that is no failure.
//!
//! The state of the breaker is stored in the destination's record, so every process sees it and it survives restarts.
//! The attempts are counted where the answers arrive ([`AttemptWindow`]): each worker process judges by its own
//! attempts.
//!
//! Source of the states: M. Nygard, "Release It!", 2007.

mod window;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::window::{AttemptWindow, EndedAttempt};
use crate::{backoff::exponential, time::Timestamp};

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BreakerPolicy {
    /// The breaker opens when more than this fraction of the last minute's attempts failed and there were at least
    /// [`Self::min_attempts`]; 0 to 1.
    pub failure_ratio: f64,
    /// 1 to [`MAX_COUNT`].
    pub min_attempts: u32,
    /// The breaker opens after this many failures in a row, 1 to [`MAX_COUNT`].
    pub consecutive: u32,
    /// How long the breaker stays open the first time; within [`OPEN_MS`].
    pub open_ms: u32,
    /// The longest time for which the breaker stays open. The time doubles after each failed probe. Within [`OPEN_MS`],
    /// and at least [`Self::open_ms`].
    pub open_max_ms: u32,
    /// If the breaker does not close for this many seconds, Weir pauses the destination. Within [`PAUSE_AFTER_S`].
    /// `None`: Weir never pauses it for this reason.
    pub pause_after_s: Option<u32>,
}

/// The largest `min_attempts` and `consecutive`. With larger numbers the breaker would hardly ever open.
pub const MAX_COUNT: u32 = 100_000;
/// The allowed range of `open_ms` and `open_max_ms`: up to a day.
pub const OPEN_MS: std::ops::RangeInclusive<u32> = 100..=86_400_000;
/// The allowed range of `pause_after_s`: up to a year.
pub const PAUSE_AFTER_S: std::ops::RangeInclusive<u32> = 1..=31_536_000;

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failure_ratio: 0.5,
            min_attempts: 20,
            consecutive: 10,
            open_ms: 30_000,
            open_max_ms: 1_800_000,
            pause_after_s: Some(432_000),
        }
    }
}

impl BreakerPolicy {
    /// How long the breaker stays open when it opens for the `opened`-th time in a row.
    fn open_for(&self, opened: u32) -> Duration {
        let [first, cap] = [self.open_ms, self.open_max_ms].map(|ms| Duration::from_millis(ms.into()));
        exponential(first, cap, opened.saturating_sub(1))
    }
}

/// The recorded state of a breaker. The default is closed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// `None`: the breaker is closed.
    open: Option<Open>,
    /// When the breaker closed last.
    closed_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    /// When the breaker first opened after the last success.
    since: Timestamp,
    /// How many times in a row the breaker has opened.
    times: u32,
    reason: String,
    next_probe_at: Timestamp,
}

/// A breaker's state at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum BreakerState {
    Closed,
    /// Nothing is sent.
    Open,
    /// One probe at a time.
    HalfOpen,
}

impl BreakerState {
    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// How long a destination takes to return to its limit after its breaker has closed. The time is long enough to notice
/// that a receiver fails again under load before it gets its whole limit, and short compared with the outage.
pub const SLOW_START: Duration = Duration::from_secs(10);
/// The fraction of its limit with which a destination begins: the receiver has answered only probes so far.
const FIRST_SHARE: f64 = 0.05;

impl Breaker {
    pub fn state(&self, now: Timestamp) -> BreakerState {
        match &self.open {
            None => BreakerState::Closed,
            Some(open) if now < open.next_probe_at => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Why the breaker is not closed.
    pub fn reason(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.reason.as_str())
    }

    /// When the next probe may be sent, unless the breaker is closed.
    pub fn next_probe_at(&self) -> Option<Timestamp> {
        self.open.as_ref().map(|open| open.next_probe_at)
    }

    /// How long the breaker has been open, if that is so long that the destination is to be paused.
    pub fn pauses_after(&self, policy: &BreakerPolicy, now: Timestamp) -> Option<Duration> {
        let longest = Duration::from_secs(policy.pause_after_s?.into());
        let open_for = now.since(self.open.as_ref()?.since);
        (open_for >= longest).then_some(open_for)
    }

    /// The fraction of its limit that the destination may use: above 0, and 1 after the slow start.
    pub fn share(&self, now: Timestamp) -> f64 {
        let Some(closed_at) = self.closed_at else { return 1.0 };
        (now.since(closed_at).as_secs_f64() / SLOW_START.as_secs_f64()).clamp(FIRST_SHARE, 1.0)
    }

    /// Whether the destination may use its whole limit.
    pub fn allows_full_rate(&self, now: Timestamp) -> bool {
        self.open.is_none() && self.share(now) >= 1.0
    }

    /// The breaker after an attempt that began at `began` and ended at `now`. `None`: it does not change.
    fn after(&self, signal: Signal, began: Timestamp, policy: &BreakerPolicy, now: Timestamp) -> Option<Self> {
        match (&self.open, signal) {
            (None, Signal::Trips(reason)) => Some(self.opened(1, reason, policy, now)),
            // An attempt that began before the probe does not count as the probe.
            (Some(open), _) if began < open.next_probe_at => None,
            (Some(_), Signal::Success) => Some(Self { open: None, closed_at: Some(now) }),
            (Some(open), Signal::Failure | Signal::Trips(_)) => {
                Some(self.opened(open.times.saturating_add(1), open.reason.clone(), policy, now))
            }
            _ => None,
        }
    }

    fn opened(&self, times: u32, reason: String, policy: &BreakerPolicy, now: Timestamp) -> Self {
        let since = self.open.as_ref().map_or(now, |open| open.since);
        let next_probe_at = now + policy.open_for(times);
        Self { open: Some(Open { since, times, reason, next_probe_at }), closed_at: self.closed_at }
    }
}

/// The effect of an attempt on the breaker.
enum Signal {
    Success,
    Failure,
    /// A failure that opens the breaker, with the reason in words.
    Trips(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        delivery::AttemptOutcome,
        outcome::{Effect, HoldReason, Refusal, RequestedHold},
    };

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn ended(outcome: AttemptOutcome, secs: f64) -> EndedAttempt {
        let now = NOW + Duration::from_secs_f64(secs);
        EndedAttempt { outcome, effect: Effect::None, refusal: None, began: now, now }
    }

    fn failure(secs: f64) -> EndedAttempt {
        ended(AttemptOutcome::Retryable, secs)
    }

    fn success(secs: f64) -> EndedAttempt {
        ended(AttemptOutcome::Delivered, secs)
    }

    /// The breaker after these attempts, and the instants at which it changed.
    fn breaker_after(endings: &[EndedAttempt]) -> (Breaker, Vec<Timestamp>) {
        let (mut breaker, mut window, mut changes) = (Breaker::default(), AttemptWindow::default(), Vec::new());
        for ending in endings {
            if let Some(changed) = window.observe(&breaker, &BreakerPolicy::default(), ending) {
                breaker = changed;
                changes.push(ending.now);
            }
        }
        (breaker, changes)
    }

    #[test]
    fn ten_failures_in_a_row_open_the_breaker() {
        let mut endings = vec![failure(0.0); 9];
        endings.extend([success(1.0)]);
        assert_eq!(breaker_after(&endings).0.state(NOW), BreakerState::Closed, "nine, then a success");
        endings.extend(vec![failure(2.0); 9]);
        assert!(breaker_after(&endings).1.is_empty());
        endings.push(failure(3.0));
        let (breaker, _) = breaker_after(&endings);
        assert_eq!(breaker.reason(), Some("10 attempts in a row failed"));
        assert_eq!(breaker.state(NOW + Duration::from_secs(32)), BreakerState::Open);
        assert_eq!(breaker.state(NOW + Duration::from_secs(33)), BreakerState::HalfOpen);
    }

    #[test]
    fn more_than_half_of_twenty_attempts_failing_within_a_minute_opens_the_breaker() {
        let mixed = |failures: usize| {
            let mut endings: Vec<_> = (0..20).map(|n| if n % 2 == 0 { success(0.0) } else { failure(0.0) }).collect();
            endings.extend(vec![failure(1.0); failures]);
            endings
        };
        assert!(breaker_after(&mixed(0)).1.is_empty(), "half is not more than half");
        assert_eq!(breaker_after(&mixed(1)).0.reason(), Some("11 of 21 attempts within a minute failed"));
    }

    #[test]
    fn failures_of_more_than_a_minute_ago_do_not_count() {
        let mut endings: Vec<_> = (0..19).map(|n| if n % 9 == 8 { success(0.0) } else { failure(0.0) }).collect();
        endings.extend([success(61.0), failure(62.0)]);
        assert!(breaker_after(&endings).1.is_empty());
    }

    #[test]
    fn a_failed_probe_doubles_the_open_time_up_to_its_maximum() {
        let (mut breaker, mut window) = (Breaker::default(), AttemptWindow::default());
        let policy = BreakerPolicy::default();
        for _ in 0..10 {
            breaker = window.observe(&breaker, &policy, &failure(0.0)).unwrap_or(breaker);
        }
        let mut now = NOW;
        let mut lengths = Vec::new();
        for _ in 0..8 {
            let probe_at = breaker.next_probe_at().unwrap();
            lengths.push(probe_at.since(now).as_secs());
            now = probe_at;
            let probe = EndedAttempt { began: now, now, ..failure(0.0) };
            breaker = window.observe(&breaker, &policy, &probe).unwrap();
        }
        assert_eq!(lengths, [30, 60, 120, 240, 480, 960, 1_800, 1_800]);
    }

    #[test]
    fn a_destination_is_to_be_paused_when_every_probe_has_failed_for_days() {
        let policy = BreakerPolicy { pause_after_s: Some(86_400), ..BreakerPolicy::default() };
        let (mut breaker, mut window) = (Breaker::default(), AttemptWindow::default());
        for _ in 0..10 {
            breaker = window.observe(&breaker, &policy, &failure(0.0)).unwrap_or(breaker);
        }
        let mut probes = 0;
        let mut now = NOW;
        while breaker.pauses_after(&policy, now).is_none() {
            now = breaker.next_probe_at().unwrap();
            breaker = window.observe(&breaker, &policy, &EndedAttempt { began: now, now, ..failure(0.0) }).unwrap();
            probes += 1;
        }
        assert!(now.since(NOW) >= Duration::from_secs(86_400) && now.since(NOW) < Duration::from_secs(86_400 + 1_800));
        assert_eq!(probes, 53, "only the probes are sent within a day");
        assert_eq!(breaker.pauses_after(&policy, now), Some(now.since(NOW)));
        let policy = BreakerPolicy { pause_after_s: None, ..policy };
        assert_eq!(breaker.pauses_after(&policy, now + Duration::from_secs(1 << 30)), None);
    }

    #[test]
    fn a_successful_probe_closes_the_breaker_with_a_slow_start() {
        let mut endings = vec![failure(0.0); 10];
        endings.push(success(31.0));
        let (breaker, _) = breaker_after(&endings);
        let closed_at = NOW + Duration::from_secs(31);
        assert_eq!((breaker.state(closed_at), breaker.reason()), (BreakerState::Closed, None));
        assert!(!breaker.allows_full_rate(closed_at));
        assert_eq!(breaker.share(closed_at), FIRST_SHARE);
        assert_eq!(breaker.share(closed_at + Duration::from_secs(5)), 0.5);
        assert!(breaker.allows_full_rate(closed_at + SLOW_START));
    }

    #[test]
    fn attempts_that_began_before_the_breaker_changed_do_not_count() {
        let mut endings = vec![failure(0.0); 10];
        // These attempts were in flight when the breaker opened. They end while it is open, half open and closed.
        let late = |outcome, secs| EndedAttempt { began: NOW, ..ended(outcome, secs) };
        endings.extend([late(AttemptOutcome::Delivered, 5.0), late(AttemptOutcome::Retryable, 31.0)]);
        assert_eq!(breaker_after(&endings).1.len(), 1);
        endings.push(success(32.0));
        endings.extend(vec![late(AttemptOutcome::Retryable, 33.0); 30]);
        assert_eq!(breaker_after(&endings).1.len(), 2);
    }

    fn refused(refusal: Refusal, secs: f64) -> EndedAttempt {
        EndedAttempt { refusal: Some(refusal), ..failure(secs) }
    }

    #[test]
    fn refusals_do_not_open_the_breaker() {
        let header = "retry-after: 60".to_owned();
        let hold = RequestedHold {
            until: NOW + Duration::from_secs(60),
            reason: HoldReason::RetryAfter,
            header,
            longer_for: None,
        };
        let held = EndedAttempt { effect: Effect::Hold(hold), ..failure(0.0) };
        for ending in [held, refused(Refusal::TooMany, 0.0), refused(Refusal::Busy, 0.0)] {
            assert!(breaker_after(&vec![ending; 100]).1.is_empty());
        }
        let mixed: Vec<_> =
            (0..100).map(|n| if n % 10 == 9 { failure(0.0) } else { refused(Refusal::TooMany, 0.0) }).collect();
        assert_eq!(breaker_after(&mixed).1.len(), 1, "the failures between them are in a row");
    }

    #[test]
    fn a_probe_that_is_refused_closes_the_breaker() {
        let failures = vec![failure(0.0); 10];
        let ended_with =
            |last| breaker_after(&[&failures[..], &[last]].concat()).0.state(NOW + Duration::from_secs(31));
        assert_eq!(ended_with(refused(Refusal::TooMany, 31.0)), BreakerState::Closed);
        assert_eq!(ended_with(refused(Refusal::Busy, 31.0)), BreakerState::HalfOpen);
        assert_eq!(ended_with(refused(Refusal::TooMany, 1.0)), BreakerState::HalfOpen, "it began before the probe");
    }

    proptest! {
        #[test]
        fn the_breaker_opens_exactly_when_its_policy_says_and_never_while_open(steps in prop::collection::vec((0u64..20_000, any::<bool>()), 1..400)) {
            let policy = BreakerPolicy::default();
            let (mut breaker, mut window) = (Breaker::default(), AttemptWindow::default());
            let mut now = NOW;
            let mut row = 0;
            let mut minute: Vec<(Timestamp, bool)> = Vec::new();
            for (gap_ms, failed) in steps {
                now = now + Duration::from_millis(gap_ms);
                let state = breaker.state(now);
                if state == BreakerState::Open {
                    // Nothing is sent while the breaker is open.
                    continue;
                }
                row = if failed { row + 1 } else { 0 };
                minute.push((now, failed));
                let ending = EndedAttempt { began: now, now, ..if failed { failure(0.0) } else { success(0.0) } };
                let changed = window.observe(&breaker, &policy, &ending);
                let recent: Vec<bool> = minute.iter().filter(|(at, _)| now.since(*at) < Duration::from_secs(60)).map(|one| one.1).collect();
                let failures = recent.iter().filter(|failed| **failed).count();
                match (state, &changed) {
                    (BreakerState::HalfOpen, changed) => {
                        let next = changed.as_ref().map(|breaker| breaker.state(now));
                        prop_assert_eq!(next, Some(if failed { BreakerState::Open } else { BreakerState::Closed }));
                    }
                    (_, Some(_)) => prop_assert!(row >= 10 || (recent.len() >= 20 && 2 * failures > recent.len())),
                    (_, None) => prop_assert!(row < 10, "the breaker should have opened"),
                }
                if let Some(changed) = changed {
                    breaker = changed;
                    (row, minute) = (0, Vec::new());
                }
            }
        }
    }
}
