//! The window: how many requests may be in flight.

use super::{AdaptiveRate, HEADROOM, REST_S, Reason, SLACK, SPARE_PLACES, Sample, WINDOW_TEST, WindowTest, seconds};
use crate::Timestamp;

/// Answers are late when they take so many times the base.
const LATE: f64 = 1.3;
/// The longest time between two tests of the window.
const LONGEST_WAIT_S: f64 = 60.0;

impl AdaptiveRate {
    /// The base follows shorter times at once, and longer ones only after a test has shown that they are not a queue.
    pub(super) fn learn_base(&mut self, answers: &Sample) {
        if answers.ok < 5 {
            return;
        }
        let mean = answers.mean_s();
        self.base_s = Some(match self.base_s {
            Some(base) if mean < base => base + 0.3 * (mean - base),
            Some(base) => base,
            None => mean,
        });
    }

    /// The window for the present pace, while it is not tested.
    pub(super) fn place_window(&mut self) {
        if self.window_test.is_none() && self.settings.latency {
            self.late_window = self.base_s.map(|base| SLACK * self.rate * base + SPARE_PLACES);
        }
    }

    /// An epoch in which the window decided.
    pub(super) fn full(&mut self, answers: &Sample, dt: f64, now: Timestamp) {
        let mean = answers.mean_s();
        let goodput = f64::from(answers.ok) / dt;
        if let Some(test) = self.window_test.take() {
            return self.tested(&test, mean, goodput, now);
        }
        if self.refused_window.is_some_and(|window| window <= self.late_window.unwrap_or(f64::INFINITY)) {
            return self.widen(goodput, now);
        }
        let Some(base) = self.base_s else { return self.learn_base(answers) };
        if mean < LATE * base || answers.ok < 5 {
            self.learn_base(answers);
            return;
        }
        if now >= self.next_window_test {
            self.window_test = Some(WindowTest { mean_before_s: mean, spread: answers.spread() });
            self.late_window = Some(f64::from(self.window()) * WINDOW_TEST);
            self.generation = self.generation.wrapping_add(1);
        } else {
            self.follow(goodput);
        }
        let text = format!("answers take {:.0} ms instead of {:.0} ms", mean * 1_000.0, base * 1_000.0);
        self.say(Reason::Latency, text, now);
    }

    /// The window binds for a reason, so the pace stays near the goodput.
    fn follow(&mut self, goodput: f64) {
        let target = HEADROOM * goodput;
        if self.rate > target {
            self.rate = self.clamped(target.max(0.7 * self.rate));
        }
        self.ceiling = Some(self.ceiling.unwrap_or(self.rate).min(self.rate));
        self.rest_until = Timestamp::MIN;
    }

    /// A larger window either brought more answers, or only later ones.
    fn tested(&mut self, test: &WindowTest, mean: f64, goodput: f64, now: Timestamp) {
        // By Little's law the goodput grew by the growth of the window divided by that of the times.
        let growth = WINDOW_TEST * test.mean_before_s / mean;
        if growth > 1.0 + (WINDOW_TEST - 1.0) / 2.0 {
            self.base_s = Some(mean.min(test.mean_before_s));
            self.window_test_wait_s = REST_S;
            self.next_window_test = now;
            self.say(Reason::Growing, "more requests in flight brought more answers".to_owned(), now);
        } else {
            self.window_test_over(now);
            self.follow(goodput);
        }
    }

    pub(super) fn window_test_over(&mut self, now: Timestamp) {
        self.next_window_test = now + seconds(self.window_test_wait_s);
        self.window_test_wait_s = (2.0 * self.window_test_wait_s).min(LONGEST_WAIT_S);
    }

    /// The receiver refuses by concurrency: the window goes below the least that was refused.
    pub(super) fn narrow(&mut self, answers: &Sample, text: String, now: Timestamp) {
        let refused = f64::from(answers.least_bad_in_flight);
        let window = (refused - 1.0).max(1.0);
        match self.refused_window {
            // The window has not helped: the rate must.
            Some(old) if window >= old => {
                self.refused_window = None;
                self.trusts_refused_window = now + seconds(60.0);
            }
            old => {
                let is_same = old.is_some_and(|old| window >= 0.85 * old);
                self.rest_s = if is_same { (2.0 * self.rest_s).min(self.longest_rest_s(now)) } else { REST_S };
                self.refused_window = Some(window);
                self.generation = self.generation.wrapping_add(1);
                self.rest_until = now + seconds(self.rest_s);
                self.say(Reason::Throttled, format!("{text}, when {refused} or more were in flight"), now);
            }
        }
    }

    /// After a rest one more request may be in flight.
    fn widen(&mut self, goodput: f64, now: Timestamp) {
        self.follow_window(goodput);
        if now >= self.rest_until
            && let Some(window) = &mut self.refused_window
        {
            *window += (0.05 * *window).max(1.0);
            self.rest_until = now + seconds(1.0);
        }
        self.say(Reason::Resting, "as many requests are in flight as the receiver takes".to_owned(), now);
    }

    fn follow_window(&mut self, goodput: f64) {
        let rest_until = self.rest_until;
        self.follow(goodput);
        self.rest_until = rest_until;
    }
}
