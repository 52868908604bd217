//! The attempts of the last minute, which decide when a breaker opens.

use std::time::Duration;

use super::{Breaker, BreakerPolicy, Signal};
use crate::{
    delivery::AttemptOutcome,
    outcome::{Effect, Refusal},
    time::Timestamp,
};

/// The parts of an ended attempt that matter to a breaker.
#[derive(Debug, Clone)]
pub struct EndedAttempt {
    pub outcome: AttemptOutcome,
    pub effect: Effect,
    pub refusal: Option<Refusal>,
    /// When the work on the attempt began. A probe begins after `next_probe_at`.
    pub began: Timestamp,
    pub now: Timestamp,
}

/// What an attempt says about the health of its destination.
enum Health {
    Succeeded,
    Failed,
    /// The endpoint lives and has refused the request. That ends an outage, but is no success.
    Lives,
    /// Nothing: its outcome is unknown, or the destination asks for a delay, or it is gone (410) and is paused.
    Unknown,
}

impl EndedAttempt {
    fn health(&self) -> Health {
        match (self.outcome, self.refusal, &self.effect) {
            (AttemptOutcome::Delivered, ..) => Health::Succeeded,
            (_, Some(Refusal::TooMany), _) => Health::Lives,
            (AttemptOutcome::Unknown, ..) | (_, Some(Refusal::Busy), _) | (.., Effect::Hold(_) | Effect::Pause) => {
                Health::Unknown
            }
            (AttemptOutcome::Retryable | AttemptOutcome::Rejected, None, Effect::None) => Health::Failed,
        }
    }
}

/// The length of a bucket of the window. Six buckets make a minute, which forgets a sixth of its attempts at a time.
const BUCKET: Duration = Duration::from_secs(10);
const BUCKETS: usize = 6;

/// The attempts of a destination in the last minute, in buckets of ten seconds.
#[derive(Debug, Clone, Default)]
pub struct AttemptWindow {
    buckets: [Bucket; BUCKETS],
    consecutive: u32,
    /// Attempts that began before this instant are not counted, because the breaker changed after they began.
    since: Timestamp,
    last: Timestamp,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    number: i64,
    attempts: u32,
    failures: u32,
}

impl AttemptWindow {
    /// Counts an attempt. Returns the breaker's new state if the attempt changes it.
    pub fn observe(&mut self, breaker: &Breaker, policy: &BreakerPolicy, ending: &EndedAttempt) -> Option<Breaker> {
        let signal = match ending.health() {
            Health::Succeeded => self.count(false, policy, ending),
            Health::Failed => self.count(true, policy, ending),
            Health::Lives => Signal::Success,
            Health::Unknown => return None,
        };
        let changed = breaker.after(signal, ending.began, policy, ending.now)?;
        *self = Self { since: ending.now, last: ending.now, ..Self::default() };
        Some(changed)
    }

    /// Whether the window is empty: the last attempt was counted longer ago than the window lasts.
    pub fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.last) > BUCKET * (BUCKETS as u32 + 1)
    }

    fn count(&mut self, failed: bool, policy: &BreakerPolicy, ending: &EndedAttempt) -> Signal {
        // The breaker has changed since this attempt began, so the attempt says nothing about its present state.
        if ending.began < self.since {
            return if failed { Signal::Failure } else { Signal::Success };
        }
        // Buckets are used again after a minute: one that still holds an earlier minute starts at zero.
        let number = ending.now.as_nanos() / BUCKET.as_nanos() as i64;
        let bucket = &mut self.buckets[number.rem_euclid(BUCKETS as i64) as usize];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket.attempts += 1;
        bucket.failures += u32::from(failed);
        self.last = ending.now;
        // A success ends the row of failures and never opens the breaker.
        if !failed {
            self.consecutive = 0;
            return Signal::Success;
        }
        // The first condition: `consecutive` failures in a row.
        self.consecutive += 1;
        if self.consecutive >= policy.consecutive {
            return Signal::Trips(format!("{} attempts in a row failed", self.consecutive));
        }
        // The second condition: at least `min_attempts` in the last minute, and a larger fraction of failures than
        // `failure_ratio`. Buckets of an earlier minute are left out.
        let recent = self.buckets.iter().filter(|bucket| bucket.number > number - BUCKETS as i64);
        let (attempts, failures) = recent
            .fold((0, 0), |(attempts, failures), bucket| (attempts + bucket.attempts, failures + bucket.failures));
        if attempts >= policy.min_attempts && f64::from(failures) > policy.failure_ratio * f64::from(attempts) {
            return Signal::Trips(format!("{failures} of {attempts} attempts within a minute failed"));
        }
        Signal::Failure
    }
}
