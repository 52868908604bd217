//! Refusals: how far the pace falls, and whether it was the cause.

use serde::{Deserialize, Serialize};

use super::{AdaptiveRate, BACKGROUND_TEST_S, CUT, EPOCH_S, FIRST_STEP, Reason, Sample, seconds};
use crate::Timestamp;

/// More refusals than this share, above the background, are a signal.
pub(super) const TOLERATED: f64 = 0.02;
/// Of failures that are no 429 up to this share is believed not to depend on the pace after one test instead of two: most
/// limits say 429, and so few do little harm until the next test of the background.
const SMALL: f64 = 0.1;
/// A doubt is resolved with the answers that have come by then.
const LONGEST_DOUBT_S: f64 = 60.0;
/// The longest time between two tests of a background.
const LONGEST_BACKGROUND_TEST_S: f64 = 600.0;

/// A doubt whether the pace is the cause of refusals, until the answers after a cut have resolved it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Doubt {
    since: Timestamp,
    /// The pace before all cuts, the one before the last of them, and the share of refusals there.
    rate_before: f64,
    rate_tried: f64,
    /// The ceiling before the cuts.
    #[serde(default)]
    ceiling: Option<f64>,
    /// The share of refusals that is known and not in doubt.
    #[serde(default)]
    background: f64,
    share: f64,
    /// How often the pace has been halved, after a first cut has been of no use.
    halved: u8,
    /// The answers since the cut, and the refusals among them.
    answers: f64,
    bad: f64,
    /// Whether the refusals are no 429.
    #[serde(default)]
    is_of_failures: bool,
}

impl AdaptiveRate {
    /// So many refusals and nothing else are no chance.
    pub(super) fn refusals_of_a_wall(&self) -> u32 {
        let of_background = if self.background > 0.0 { 1e-4_f64.ln() / self.background.ln() } else { 0.0 };
        (of_background.ceil() as u32).max(4)
    }

    /// Whether the refusals are more than the background explains.
    pub(super) fn is_too_many(&self, answers: &Sample) -> bool {
        let n = f64::from(answers.answers());
        let expected = self.background * n;
        let noise = 2.5 * (expected * (1.0 - self.background)).sqrt();
        answers.bad > 0 && f64::from(answers.bad) - expected - noise >= (TOLERATED * n).max(1.0)
    }

    /// Whether the answers since a cut say that the cut was of no use: then it is undone, and this share of refusals is
    /// the background.
    pub(super) fn resolve(&mut self, answers: &Sample, now: Timestamp) -> bool {
        let memory_s = self.memory_s(now);
        let is_wall = answers.ok == 0 && answers.bad >= self.refusals_of_a_wall();
        let Some(doubt) = &mut self.doubt else { return false };
        let (n, bad) = (f64::from(answers.answers()), f64::from(answers.bad));
        if is_wall || bad > 2.0 + 1.4 * doubt.share * n + 3.0 * (doubt.share * n).sqrt() {
            // The receiver takes even less now.
            self.doubted = Some(doubt.rate_before);
            self.doubt = None;
            return false;
        }
        let age_s = now.since(doubt.since).as_secs_f64();
        if age_s < memory_s + EPOCH_S {
            // A window of the receiver may still count the sends before the cut.
            return false;
        }
        doubt.answers += n;
        doubt.bad += bad;
        // What is above the background, if the cut was of no use.
        let of_background = doubt.background.min(doubt.share) * doubt.answers;
        let expected = doubt.share * doubt.answers - of_background;
        let needed = match doubt.halved {
            0 => 10.0,
            // A background that was found before is tested again with less.
            _ if doubt.rate_tried == doubt.rate_before => 8.0,
            // Each second at half of the pace costs more than what a wrong answer would, until the next test.
            _ if doubt.is_of_failures && doubt.share <= SMALL => 8.0,
            _ => 15.0,
        };
        let is_clear = expected >= 4.0 && doubt.bad <= of_background + 0.15 * expected;
        if expected < needed && !is_clear && age_s < memory_s + LONGEST_DOUBT_S {
            return false;
        }
        let Doubt { rate_before, rate_tried, ceiling, background, answers, bad, halved, is_of_failures, .. } = *doubt;
        let share_tried = doubt.share;
        self.doubt = None;
        let share = bad / answers.max(1.0);
        let fewer = match (background > 0.0, halved) {
            (true, _) => 0.5,
            (false, 0) => 0.15,
            (false, _) => 0.4,
        };
        if bad <= of_background + fewer * expected {
            // Fewer: it was us.
            self.doubted = None;
            let kept = if background > 0.0 { (self.background + share) / 2.0 } else { self.background.min(share) };
            self.set_background(kept);
            self.background_test_wait_s = BACKGROUND_TEST_S;
            self.place_background_test(age_s, now);
            if halved > 0 {
                // What the receiver takes lies between.
                self.cut_to((rate_tried * (1.0 - share_tried)).max(self.rate), now);
            }
            return false;
        }
        // A bucket without room refuses half of anything from its rate to twice as much, so a large share asks for more.
        // And so few that they would be no signal need no second test: it would take a minute.
        let is_told = bad - of_background >= 0.35 * expected || share <= TOLERATED;
        let is_small = is_of_failures && share <= SMALL && is_told;
        let enough = match background > 0.0 || is_small {
            true => 0,
            false if share > 0.3 => 2,
            false => 1,
        };
        if halved < enough {
            // Where the pace is the cause, half of it is refused less.
            let (rate_tried, halved) = (self.rate, halved + 1);
            self.cut_to(0.5 / CUT * rate_tried, now);
            self.doubt = Some(Doubt {
                since: now,
                rate_before,
                rate_tried,
                ceiling,
                background,
                share,
                halved,
                answers: 0.0,
                bad: 0.0,
                is_of_failures,
            });
            return true;
        }
        // The ceiling of the cuts was none.
        self.ceiling = ceiling.filter(|_| self.background > 0.0);
        let found = share.min(0.6);
        self.floor.is_of_failures = is_of_failures;
        self.set_background(if self.background > 0.0 { (self.background + found) / 2.0 } else { found });
        self.place_background_test(age_s, now);
        self.background_test_wait_s = (2.0 * self.background_test_wait_s).min(LONGEST_BACKGROUND_TEST_S);
        self.refused_window = None;
        self.rate = self.clamped(rate_before);
        self.rest_until = Timestamp::MAX;
        self.generation = self.generation.wrapping_add(1);
        let text = format!("{bad} of {answers} answers were refusals, and no fewer at a lower pace");
        self.say(Reason::Resting, text, now);
        true
    }

    /// A test at half of the pace is to cost a twentieth of the sends, whatever it finds.
    fn place_background_test(&mut self, last_took_s: f64, now: Timestamp) {
        self.next_background_test = now + seconds(self.background_test_wait_s.max(10.0 * last_took_s));
    }

    /// Lowers the pace for a moment to see whether the background still does not depend on it.
    pub(super) fn tests_background(&mut self, now: Timestamp) -> bool {
        if self.background == 0.0 || self.ceiling.is_none() || now < self.next_background_test {
            return false;
        }
        self.doubt = Some(Doubt {
            since: now,
            rate_before: self.rate,
            rate_tried: self.rate,
            ceiling: self.ceiling,
            background: 0.0,
            share: self.background,
            halved: 1,
            answers: 0.0,
            bad: 0.0,
            is_of_failures: false,
        });
        self.rate = self.clamped(0.5 * self.rate);
        self.forget_evidence();
        self.generation = self.generation.wrapping_add(1);
        self.say(Reason::Resting, "testing whether fewer are refused at a lower pace".to_owned(), now);
        true
    }

    /// Refusals: the pace falls to what the receiver took.
    pub(super) fn refused(&mut self, answers: &Sample, rate: f64, is_early: bool, dt: f64, now: Timestamp) {
        let answers = &self.note_429(answers);
        let n = f64::from(answers.answers());
        let share = f64::from(answers.bad) / n;
        let what = match answers.throttled {
            0 => "5xx or timeouts",
            throttled if throttled == answers.bad => "429",
            _ => "429, 5xx or timeouts",
        };
        let text = format!("{} of {} answers were {what}", answers.bad, answers.answers());
        if self.window_test.take().is_some() {
            self.window_test_over(now);
        }
        if answers.ok == 0
            && answers.bad >= self.refusals_of_a_wall()
            && (dt >= EPOCH_S || self.is_recent_cut(2.0, now))
        {
            self.stand(None, answers.throttled * 2 >= answers.bad, now);
            self.detail = text;
            return;
        }
        let is_trusted = self.trusts_refused_window <= now && self.ceiling.is_some();
        if is_trusted && self.is_by_concurrency(answers) && self.narrow(answers, rate * (1.0 - share), &text, now) {
            return;
        }
        // A few answers in a minute say little about the rate of a receiver that counts minutes.
        let is_counting = self.counts_windows(now);
        let least = match (is_counting, is_early) {
            (true, _) => 0.7,
            (false, true) => 0.5,
            (false, false) => 0.3,
        };
        let taken = rate * ((1.0 - share) / (1.0 - self.background)).clamp(least, 1.0);
        // A bucket without room refuses every other request just above its rate, which it took a moment ago.
        let is_quota = answers.throttled > 0;
        let clean = self.proven.take().filter(|_| is_quota && share < 0.6);
        let proven = clean.filter(|clean| *clean > taken);
        // A cut that does not reach what the receiver took says nothing about the cause.
        let is_proven = proven.is_some();
        let (memory_s, cycle_s) = (self.memory_s(now), now.since(self.cycle_from).as_secs_f64());
        // Unless an earlier doubt has not been resolved.
        let is_telling = !is_early && (proven.is_none() || self.doubted.is_some()) && !is_counting;
        let (rate_tried, ceiling) = (self.rate, self.ceiling);
        let rate_before = self.doubted.unwrap_or(rate_tried).max(rate_tried);
        let background = self.background;
        let doubt = Doubt {
            since: now,
            rate_before,
            rate_tried,
            ceiling,
            background,
            share,
            halved: 0,
            answers: 0.0,
            bad: 0.0,
            is_of_failures: answers.throttled == 0,
        };
        self.doubt = is_telling.then_some(doubt);
        if is_telling {
            self.doubted = None;
        }
        let mut taken = proven.map_or(taken, |proven| proven.min(rate));
        if self.rest_until <= now && self.ceiling.is_some_and(|ceiling| taken > 0.7 * ceiling) {
            // The ascent is to blame, and not a fall of what the receiver takes.
            self.refused_since_rest += f64::from(answers.bad) - self.background * n;
        }
        // A receiver that counts minutes refuses at the end of one, however little it was exceeded.
        if is_counting {
            if cycle_s >= memory_s {
                taken = taken.max((self.cycle_ok as f64 / cycle_s).min(rate));
            }
            self.longest_wall.1 = now;
            if cycle_s > 2.0 * memory_s {
                self.cycle_from = now - seconds(memory_s);
                self.cycle_ok = (taken * memory_s) as u64;
            }
        }
        self.cut_to(taken, now);
        self.is_cut_proven = is_proven;
        self.is_ascent_over = !is_proven && clean.is_some_and(|clean| self.rate <= clean);
        if is_proven {
            self.settling = 20;
        }
        self.say(Reason::Throttled, text, now);
    }

    /// The pace goes below `taken`, which is the new ceiling.
    pub(super) fn cut_to(&mut self, taken: f64, now: Timestamp) {
        let is_same = self.ceiling.is_some_and(|ceiling| (taken - ceiling).abs() < 0.15 * ceiling);
        self.rest_s = if is_same { (self.rest_s * 2.0).min(self.longest_rest_s(now)) } else { self.first_rest_s(now) };
        self.ceiling = Some(taken);
        self.forget_evidence();
        self.rate = self.clamped(CUT * taken);
        self.step = FIRST_STEP;
        self.explained_ln = f64::MIN;
        (self.last_cut, self.is_cut_proven, self.is_ascent_over) = (now, false, false);
        self.settling = 3;
        self.generation = self.generation.wrapping_add(1);
        self.rest_until = Timestamp::MAX;
        self.told.refused();
    }

    pub(super) fn is_recent_cut(&self, within_s: f64, now: Timestamp) -> bool {
        now.since(self.last_cut).as_secs_f64() < within_s
    }
}
