//! Growth: the pace rises while nothing is refused, and rests below what was.

use super::{AdaptiveRate, CLIMBED, FIRST_STEP, MEMORY_LASTS_S, REST_S, Reason, seconds, told::TELLING_S};
use crate::Timestamp;

/// The climb to what the receiver took, in each epoch.
const CLIMB: f64 = 1.05;
/// Steps do not grow before the pace is so far above the ceiling that the receiver must have changed.
const KNOWN: f64 = 1.1;
/// How a step grows in each epoch, and the largest one.
const STEP_GROWTH: f64 = 1.4;
const LARGEST_STEP: f64 = 0.25;
/// In one window of a receiver that counts longer ones.
const LARGEST_STEP_OF_WINDOWS: f64 = 0.05;
/// How long a rest becomes when the same ceiling is met again.
const LONGEST_REST_S: f64 = 20.0;
/// Or so many sends, where a receiver takes a few in a minute: one refusal is a large share of them.
const RESTED_SENDS: f64 = 40.0;
/// A rest also pays for the refusals of the ascent before it: they are to be this share of the sends.
const REFUSED: f64 = 0.01;
const LONGEST_PAID_REST_S: f64 = 25.0;

impl AdaptiveRate {
    /// The longest wall of the last hour: how long the receiver's memory is.
    pub(super) fn memory_s(&self, now: Timestamp) -> f64 {
        let (longest, at) = self.longest_wall;
        if now.since(at).as_secs_f64() < MEMORY_LASTS_S { longest.clamp(1.0, 60.0) } else { 1.0 }
    }

    /// Whether the receiver counts long windows, which fill up.
    pub(super) fn counts_windows(&self, now: Timestamp) -> bool {
        self.memory_s(now) >= TELLING_S && !self.told.is_too_long()
    }

    pub(super) fn first_rest_s(&self, now: Timestamp) -> f64 {
        REST_S.max(2.0 * self.memory_s(now))
    }

    pub(super) fn longest_rest_s(&self, now: Timestamp) -> f64 {
        let sends_s = if self.counts_windows(now) { RESTED_SENDS / self.rate } else { 0.0 };
        LONGEST_REST_S.max(10.0 * self.memory_s(now)).max(sends_s.min(MEMORY_LASTS_S / 2.0))
    }

    /// A clean epoch in which the pace decided.
    pub(super) fn grow(&mut self, dt: f64, now: Timestamp) {
        let Some(ceiling) = self.ceiling else {
            self.rate = self.clamped(self.rate * 2.0);
            return self.say(Reason::Starting, "no refusal so far".to_owned(), now);
        };
        if self.explained_ln > f64::MIN {
            // Late answers bounded the pace, and the window still does.
            self.rate = self.clamped(self.rate * (1.0 + LARGEST_STEP));
            return self.say(Reason::Growing, "answers are no longer late".to_owned(), now);
        }
        let climbed = CLIMBED * ceiling;
        if self.rate < climbed {
            self.rate = self.clamped((self.rate * CLIMB).min(climbed));
            return self.say(Reason::Growing, format!("the receiver took {ceiling:.3}/s"), now);
        }
        // A rest that has not begun ends at the end of time; a copy of the state is exact to the millisecond.
        if self.rest_until > now + seconds(86_400.0) {
            // The refusals of the last ascent are to be one in a hundred.
            let is_counting = self.counts_windows(now);
            let (budget, most_s) =
                if is_counting { (REFUSED / 2.0, self.longest_rest_s(now)) } else { (REFUSED, LONGEST_PAID_REST_S) };
            let paid_s = (self.refused_since_rest / (budget * self.rate)).min(most_s);
            self.rest_until = now + seconds(self.rest_s.max(paid_s));
            self.refused_since_rest = 0.0;
        }
        if now < self.rest_until {
            return self.say(Reason::Resting, format!("just below {ceiling:.3}/s, where the receiver refused"), now);
        }
        let memory_s = if self.told.is_too_long() { 1.0 } else { self.memory_s(now) };
        if self.rate < KNOWN * ceiling {
            self.step = FIRST_STEP;
        } else {
            self.told.outgrow(dt, memory_s);
        }
        let largest = if memory_s < TELLING_S { LARGEST_STEP } else { LARGEST_STEP_OF_WINDOWS };
        let most = largest.min(largest * dt / memory_s);
        self.rate = self.clamped(self.rate * (1.0 + self.step.min(most)));
        self.step = (self.step * STEP_GROWTH).min(most);
        self.say(Reason::Growing, "no refusal since the last rest".to_owned(), now);
    }
}
