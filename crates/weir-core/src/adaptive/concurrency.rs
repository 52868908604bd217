//! Limits of the concurrency: receivers that refuse what finds too many others in flight.
//!
//! The queue counts with each grant how many are in flight, and a request that such a receiver refuses has found more than
//! those that it takes. A few refusals in an epoch do not show that, so the evidence is kept over epochs. Then the window
//! goes below the least that was refused, and after a rest one more request is tried.

use serde::{Deserialize, Serialize};

use super::{AdaptiveRate, REST_S, Reason, Sample, seconds};
use crate::Timestamp;

/// The fewest refused requests that count as evidence.
const FEWEST: f64 = 5.0;
/// With more refused requests than this, the older ones count half.
const REMEMBERED: f64 = 40.0;
/// Refused requests must have found more others in flight than accepted ones: by so many standard deviations…
const CLEAR: f64 = 4.0;
/// …and on average by so many requests, and by this share of the mean. Where many are in flight, the receiver accepts an even
/// pace as well as a window.
const MORE: f64 = 0.5;
const MORE_OF: f64 = 0.15;
/// While the pace rises faster than this, later requests find more others in flight because of the rise.
const STEADY_STEP: f64 = 0.05;
/// With a smaller window, the receiver must still have this share of the requests in service that it had before. Otherwise it
/// does not limit its concurrency. The goodput would not tell: it also falls when answers become slower.
const STILL_USED: f64 = 0.75;
/// For so long no window is tried after it did not help.
const DISTRUSTED_S: f64 = 120.0;

/// How many more others the refused requests found in flight than the accepted ones of the same epochs. Four numbers: the
/// refused requests, the sum of their differences, the variance of this sum if there is no difference, and the least sum that
/// counts as evidence. An array, because the state must be short as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Crowding([f64; 4]);

impl Crowding {
    fn add(&mut self, answers: &Sample) {
        let (ok, bad) = (f64::from(answers.ok), f64::from(answers.bad));
        if answers.ok < 3 || answers.bad == 0 {
            return;
        }
        let mean = answers.ok_in_flight as f64 / ok;
        // Whole numbers: their variance is known no better.
        let variance = (answers.ok_in_flight2 as f64 / ok - mean * mean).max(0.25);
        let more = answers.bad_in_flight as f64 - bad * mean;
        let kept = if self.0[0] > REMEMBERED { 0.5 } else { 1.0 };
        let of_epoch = [bad, more, bad * variance * (1.0 + bad / ok), bad * MORE.max(MORE_OF * mean)];
        self.0 = std::array::from_fn(|sum| kept * self.0[sum] + of_epoch[sum]);
    }

    fn is_clear(&self) -> bool {
        let [refused, more, variance, wanted] = self.0;
        refused >= FEWEST && more >= CLEAR * variance.sqrt() && more >= wanted
    }
}

impl AdaptiveRate {
    pub(super) fn note_crowding(&mut self, answers: &Sample) {
        if self.ceiling.is_some() && self.step <= STEADY_STEP {
            self.crowding.add(answers);
        }
    }

    /// Whether the receiver limits its concurrency. It does if refused requests found more others in flight than accepted
    /// ones, or if they were more than the window that is known.
    pub(super) fn is_by_concurrency(&self, answers: &Sample) -> bool {
        let least = f64::from(answers.least_bad_in_flight);
        answers.refuses_by_concurrency()
            || self.crowding.is_clear()
            || self.refused_window.is_some_and(|window| least >= window.round() - 1.0)
    }

    /// The window goes below the least that was refused. Returns whether that is of use.
    pub(super) fn narrow(&mut self, answers: &Sample, goodput: f64, text: &str, now: Timestamp) -> bool {
        let refused = answers.least_bad_in_flight;
        let used = goodput * answers.mean_s();
        self.narrowed += 1;
        self.crowding = Crowding::default();
        if self.refused_window.is_none() {
            self.used_before = used;
        }
        if self.narrowed > 4 || self.leaves_unused(answers, used) {
            // Smaller windows have not helped: the pace must become lower.
            self.narrowed = 0;
            self.give_up_window(now);
            return false;
        }
        let old = self.refused_window.unwrap_or(f64::INFINITY);
        let window = f64::from(refused.saturating_sub(1)).min(old.round() - 1.0).max(1.0);
        // A moment ago the window was one larger, to try whether the receiver accepts that. So it is the old window again.
        let is_same = window >= (0.8 * old).min(old - 1.5);
        self.rest_s = if is_same { (2.0 * self.rest_s).min(self.longest_rest_s(now)) } else { REST_S };
        self.refused_window = Some(window);
        self.generation = self.generation.wrapping_add(1);
        self.rest_until = now + seconds(self.rest_s);
        self.say(Reason::Throttled, format!("{text}, when {refused} or more were in flight"), now);
        true
    }

    /// After a rest one more request may be in flight.
    pub(super) fn widen(&mut self, goodput: f64, answers: &Sample, now: Timestamp) {
        if self.leaves_unused(answers, goodput * answers.mean_s()) {
            return self.give_up_window(now);
        }
        self.follow(goodput);
        if now >= self.rest_until
            && let Some(window) = &mut self.refused_window
        {
            *window += (0.05 * *window).max(1.0);
            self.rest_until = now + seconds(1.0);
        }
        self.say(Reason::Resting, "as many requests are in flight as the receiver takes".to_owned(), now);
    }

    /// Whether so many fewer requests are in service than before the window that it cannot be what the receiver limits.
    fn leaves_unused(&self, answers: &Sample, used: f64) -> bool {
        answers.ok >= 3 && used < STILL_USED * self.used_before
    }

    fn give_up_window(&mut self, now: Timestamp) {
        self.refused_window = None;
        self.trusts_refused_window = now + seconds(DISTRUSTED_S);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptive::Verdict;

    /// Answers to requests that were the n-th in flight.
    fn epoch(ok: &[u32], bad: &[u32]) -> Sample {
        let mut sample = Sample::default();
        ok.iter().for_each(|in_flight| sample.add(Verdict::Ok, 0.05, *in_flight));
        bad.iter().for_each(|in_flight| sample.add(Verdict::Throttled, 0.01, *in_flight));
        sample
    }

    fn is_clear(epochs: usize, sample: &Sample) -> bool {
        let mut crowding = Crowding::default();
        (0..epochs).for_each(|_| crowding.add(sample));
        crowding.is_clear()
    }

    #[test]
    fn single_refusals_of_several_epochs_show_that_they_found_more_in_flight() {
        let few = epoch(&[1, 2, 2, 3, 2, 3, 1, 2], &[4]);
        assert!(!few.refuses_by_concurrency());
        assert_eq!([4, 5].map(|epochs| is_clear(epochs, &few)), [false, true]);
    }

    #[test]
    fn refusals_that_find_as_many_or_a_small_part_more_show_nothing() {
        assert!(!is_clear(100, &epoch(&[1, 2, 2, 3, 2, 3, 1, 2], &[2, 3])));
        assert!(!is_clear(100, &epoch(&[19, 20, 20, 21, 20, 19, 21], &[22])), "an even pace is taken as well");
        assert!(!is_clear(100, &epoch(&[1, 2], &[4])), "too few to compare with");
    }
}
