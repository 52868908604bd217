//! The window: how many requests may be in flight.

use super::{AdaptiveRate, REST_S, Reason, Sample, WindowTest, seconds};
use crate::Timestamp;

/// A window, relative to the requests that are in flight without a queue, and the places beside them.
const SLACK: f64 = 1.5;
const SPARE_PLACES: f64 = 4.0;
/// How much smaller the window is made to see whether answers come sooner.
const WINDOW_TEST: f64 = 0.5;
/// The pace that is kept above the goodput while the window binds.
const HEADROOM: f64 = 1.3;
/// Answers are late when they take so many times the base.
const LATE: f64 = 1.3;
/// The longest time between two tests of the window.
const LONGEST_WAIT_S: f64 = 60.0;

/// Answers that a test needs, times the squared coefficient of variation of their times.
const ANSWERS_OF_TEST: f64 = 250.0;

impl AdaptiveRate {
    /// The base follows shorter times at once, and longer ones only after a test has shown that they are not a queue.
    pub(super) fn learn_base(&mut self, answers: &Sample) {
        if answers.ok < 5 {
            return;
        }
        let (mean, ln) = (answers.mean_s(), answers.mean_ln());
        let nearer = |old: f64, new: f64| old + 0.3 * (new - old);
        self.base = Some(match self.base {
            Some((base, base_ln)) if ln < base_ln => (nearer(base, mean).min(base), nearer(base_ln, ln)),
            Some(base) => base,
            None => (mean, ln),
        });
    }

    /// The window for the present pace, while it is not tested.
    pub(super) fn place_window(&mut self) {
        if self.window_test.is_none() && self.settings.latency {
            let placed = self.base.map(|(base, _)| SLACK * self.rate * base + SPARE_PLACES);
            self.widened = self.widened.filter(|widened| placed.is_none_or(|placed| *widened < placed));
            self.late_window = self.widened.or(placed);
        }
    }

    /// Answers are not late, so the window may be twice as large.
    pub(super) fn may_widen(&mut self) {
        self.widened = self.widened.map(|widened| 2.0 * widened);
    }

    /// An epoch in which the window decided.
    pub(super) fn full(&mut self, answers: &Sample, rate: f64, now: Timestamp) {
        let goodput = rate * f64::from(answers.ok) / f64::from(answers.answers().max(1));
        if let Some(test) = self.window_test.take() {
            return self.tested(&test, answers, now);
        }
        if self.refused_window.is_some_and(|window| window <= self.late_window.unwrap_or(f64::INFINITY)) {
            return self.widen(goodput, answers, now);
        }
        if !self.settings.latency {
            return self.say(Reason::Latency, "as many requests are in flight as may be".to_owned(), now);
        }
        let Some((base_s, base_ln)) = self.base else { return self.learn_base(answers) };
        self.ceiling.get_or_insert(self.rate);
        if answers.mean_ln() < base_ln + LATE.ln() || answers.ok < 5 {
            (self.late, self.late_epochs) = (Sample::default(), 0);
            if answers.ok >= 5 {
                self.may_widen();
            }
            return self.learn_base(answers);
        }
        if self.late.ok > 0 && (answers.mean_ln() - self.late.mean_ln()).abs() > 1.25_f64.ln() {
            (self.late, self.late_epochs) = (Sample::default(), 0);
        }
        // The first epoch still shows how the queue grew.
        self.late_epochs = self.late_epochs.saturating_add(1);
        if self.late_epochs > 1 {
            self.late.merge(answers);
        }
        let window = f64::from(self.window());
        let ln_before = self.late.mean_ln();
        let without_queue = base_ln.max(ln_before + WINDOW_TEST.ln());
        let spread = self.late.spread() * WINDOW_TEST.ln() / (ln_before - without_queue).max(0.2);
        let needed = (ANSWERS_OF_TEST * (spread * spread).exp_m1()).clamp(20.0, 600.0) as u32;
        // A test explains times that are not much longer than it saw.
        let is_explained = answers.mean_ln() < self.explained_ln + 1.4_f64.ln();
        if (now >= self.next_window_test || !is_explained) && self.late.ok >= needed {
            let threshold = (ln_before + without_queue) / 2.0;
            self.window_test = Some(WindowTest { threshold, answers: needed, is_repeated: false });
            self.late_window = Some((window * WINDOW_TEST).max(1.0));
            self.generation = self.generation.wrapping_add(1);
            self.explained_ln = ln_before;
            (self.late, self.late_epochs) = (Sample::default(), 0);
        } else if is_explained {
            self.follow(goodput);
            let placed = SLACK * self.rate * base_s + SPARE_PLACES;
            if (placed - window).abs() > 0.2 * window {
                (self.late, self.late_epochs) = (Sample::default(), 0);
            }
        }
        let text = format!("answers take {:.0} ms instead of {:.0} ms", answers.mean_s() * 1e3, base_s * 1e3);
        self.say(Reason::Latency, text, now);
    }

    /// The window binds for a reason, so the pace stays near the goodput.
    pub(super) fn follow(&mut self, goodput: f64) {
        if self.rate > 1.15 * HEADROOM * goodput {
            self.rate = self.clamped((HEADROOM * goodput).max(0.7 * self.rate));
        }
        self.ceiling = Some(self.ceiling.unwrap_or(self.rate).min(self.rate));
    }

    /// With a smaller window answers came sooner, or only fewer of them came.
    fn tested(&mut self, test: &WindowTest, answers: &Sample, now: Timestamp) {
        let (mean, ln) = (answers.mean_s(), answers.mean_ln());
        if ln < test.threshold {
            // There was a queue. Without it the base can be seen.
            self.learn_base(answers);
            return self.window_test_over(now);
        }
        if !test.is_repeated {
            self.window_test = Some(WindowTest { is_repeated: true, ..*test });
            return;
        }
        self.base = Some((mean, ln));
        // A few slow answers may have hidden that there is a queue. At once the window for the new base would be so many
        // requests that the queue outlasts the time limit of its requests.
        self.widened = Some(f64::from(self.window()));
        self.explained_ln = f64::MIN;
        self.window_test_wait_s = REST_S;
        self.next_window_test = now;
        let text = format!("answers take {:.0} ms, with fewer in flight too", mean * 1e3);
        self.say(Reason::Growing, text, now);
    }

    pub(super) fn window_test_over(&mut self, now: Timestamp) {
        self.next_window_test = now + seconds(self.window_test_wait_s);
        self.window_test_wait_s = (2.0 * self.window_test_wait_s).min(LONGEST_WAIT_S);
    }
}
