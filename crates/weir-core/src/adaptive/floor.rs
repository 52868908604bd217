//! The floor: the share of refusals that was seen well below what the receiver takes, so it is no matter of the pace.

use serde::{Deserialize, Serialize};

use super::{AdaptiveRate, BACKGROUND_TEST_S, CLIMBED, REST_S, Sample, seconds, told::TELLING_S};
use crate::Timestamp;

/// While starting, up to this share is believed only when a higher pace has shown whether the pace is its cause: a limit
/// that refuses a tenth refuses more than half of twice as much.
const EXCUSED: f64 = 0.1;
/// A smaller number of answers does not tell this share from a larger one.
const EXCUSED_OF: u32 = 20;
/// A pace that was lower than this part of what the receiver takes is well below.
const WELL_BELOW: f64 = 0.7;
/// What a test has found weighs as much as so many answers, and those after it are forgotten after a few times as many.
const WEIGHT: f64 = 200.0;
const REMEMBERED: f64 = 1_000.0;

/// The same two numbers for the errors of a receiver whose limit says 429: that so many are more than
/// [`EXCUSED`] is believed at these odds.
const MORE_ERRORS: f64 = 0.25;
const CLEAR_ERRORS: f64 = 5.0;

/// A smaller background is none.
const NONE: f64 = 0.006;

/// Refusals above the background that are to be found, as a share of all answers.
const MORE: f64 = 0.06;
/// The logarithm of the odds at which they are believed: once in some 50,000 answers by chance.
const CLEAR: f64 = 7.6;
/// At a pace that the receiver has taken more than once, single 429s are the bursts of others, or sends that left late:
/// these shares are told apart there, at these odds. What is above that pace is refused at the first sign.
const RESTING: (f64, f64) = (0.005, 0.03);
const CLEAR_RESTING: f64 = 4.0;

/// Answers and the refusals among them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Tally(f64, f64);

impl Tally {
    fn add(&mut self, answers: f64, bad: f64) {
        self.0 += answers;
        self.1 += bad;
    }
}

/// What an epoch says of the pace.
pub(super) enum Judgement {
    Fine,
    /// The next epochs will say.
    Unclear,
    /// So many answers, of which too many were refusals.
    TooMany(Sample),
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Floor {
    /// The highest pace of the start so far, what was seen there, and what was seen at lower ones.
    pace: f64,
    there: Tally,
    below: Tally,
    /// The pace at which refusals were excused last.
    excused_at: f64,
    /// The background when it was tested last, and what was seen since at paces that the receiver took.
    tested: f64,
    since: Tally,
    /// The evidence that more is refused than the background.
    evidence: f64,
    /// The answers that it comes from, the refusals and the 429s among them. No [`Sample`]: the state is to stay small.
    weighed: [u32; 3],
    /// The limit of the receiver has said 429.
    #[serde(default)]
    says_429: bool,
    /// The background has no 429s.
    #[serde(default)]
    pub(super) is_of_failures: bool,
    /// The 429s of the start below what is taken.
    #[serde(default)]
    start_429: u32,
    /// The evidence that a receiver that says 429 fails more than [`EXCUSED`].
    #[serde(default)]
    errors: f64,
}

impl AdaptiveRate {
    /// Whether these refusals may be no matter of the pace, and the next pace of the start will tell.
    pub(super) fn is_excused(&self, answers: &Sample) -> bool {
        let n = f64::from(answers.answers());
        // A window of the receiver may have filled up at the end of the epoch, and more would only make its wall longer.
        // One 429 may be chance.
        let most = match answers.throttled {
            0 | 1 => EXCUSED * n + 2.0 * (EXCUSED * (1.0 - EXCUSED) * n).sqrt(),
            _ => 1.0,
        };
        self.ceiling.is_none()
            && answers.bad > 0
            && answers.answers() >= EXCUSED_OF
            && f64::from(answers.bad) <= most
            && (answers.bad == 1 || self.rate > 1.5 * self.floor.excused_at)
    }

    /// Whether a few answers more of the start will tell if these failures are excused.
    pub(super) fn may_be_excused(&self, answers: &Sample) -> bool {
        self.ceiling.is_none()
            && answers.throttled <= 1
            && answers.bad * 2 < answers.answers()
            && answers.answers() < EXCUSED_OF
    }

    /// Notes an epoch of the start. When it ends the start, what was seen well below is the background.
    pub(super) fn note_start(&mut self, answers: &Sample, rate: f64, is_excused: bool, now: Timestamp) {
        if self.ceiling.is_some() {
            return;
        }
        let (n, bad) = (f64::from(answers.answers()), f64::from(answers.bad));
        if is_excused {
            self.floor.excused_at = self.rate;
        } else if self.background == 0.0 && self.is_too_many(answers) {
            let Floor { pace, mut below, there, .. } = self.floor;
            if pace <= WELL_BELOW * rate * (n - bad) / n {
                below.add(there.0, there.1);
            }
            // One refusal less than were seen: a single one may be chance.
            let Tally(answers, bad) = below;
            let share = (bad - 1.0) / answers;
            if share > 0.0 && share <= 2.0 * EXCUSED {
                self.floor.is_of_failures = self.floor.start_429 == 0;
                self.set_background(share);
                self.next_background_test = now + seconds(BACKGROUND_TEST_S);
            }
            return;
        }
        let floor = &mut self.floor;
        floor.start_429 += answers.throttled;
        if rate > 1.4 * floor.pace {
            floor.pace = rate;
            let Tally(answers, bad) = std::mem::take(&mut floor.there);
            floor.below.add(answers, bad);
        }
        floor.there.add(n, bad);
    }

    /// The answers without errors that are no matter of the pace, and the evidence that they are more than that. Where a
    /// limit says 429, other failures say little about it: up to [`EXCUSED`] of them do not count.
    pub(super) fn without_errors(&self, answers: &Sample) -> (Sample, f64) {
        let (failed, ok) = (answers.bad - answers.throttled, answers.ok);
        let none = (MORE_ERRORS / EXCUSED).ln();
        let fewer = ((1.0 - MORE_ERRORS) / (1.0 - EXCUSED)).ln();
        let evidence = (self.floor.errors + f64::from(failed) * none + f64::from(ok) * fewer).max(0.0);
        let excuses = self.floor.says_429 && self.background == 0.0 && evidence < CLEAR_ERRORS;
        (if excuses { answers.without_failures() } else { *answers }, evidence)
    }

    /// An epoch has ended with this evidence.
    pub(super) fn note_errors(&mut self, evidence: f64) {
        self.floor.errors = if evidence < CLEAR_ERRORS { evidence } else { 0.0 };
    }

    /// Too much was refused. When most of it was 429, the limit says 429, and a background of failures is none of its.
    pub(super) fn note_429(&mut self, answers: &Sample) -> Sample {
        if answers.throttled < 3 || answers.throttled * 2 < answers.bad {
            return *answers;
        }
        self.floor.says_429 = true;
        if self.floor.is_of_failures && self.background > 0.0 && self.background <= EXCUSED {
            self.set_background(0.0);
        }
        self.without_errors(answers).0
    }

    /// The background is this share.
    pub(super) fn set_background(&mut self, share: f64) {
        self.background = share;
        (self.floor.tested, self.floor.since) = (share, Tally::default());
        self.forget_evidence();
    }

    pub(super) fn forget_evidence(&mut self) {
        (self.floor.evidence, self.floor.weighed) = (0.0, [0; 3]);
    }

    /// Whether more is refused than the background explains. Where there is one, a sequential test (CUSUM, Page 1954)
    /// weighs the answers of several epochs, because a small share needs many.
    pub(super) fn judge(&mut self, answers: &Sample, is_early: bool, now: Timestamp) -> Judgement {
        let is_resting = !is_early && answers.ok > 0 && self.is_at_rest(answers, now);
        if !is_resting && (self.background == 0.0 || is_early || answers.ok == 0) {
            if self.is_too_many(answers) {
                return Judgement::TooMany(*answers);
            }
            if self.background == 0.0 {
                return Judgement::Fine;
            }
        }
        let ((none, more), clear) = match is_resting {
            true => (RESTING, CLEAR_RESTING),
            false => ((self.background, self.background + MORE.max(0.5 * self.background)), CLEAR),
        };
        let of_bad = f64::from(answers.bad) * (more / none).ln();
        let of_ok = f64::from(answers.ok) * ((1.0 - more) / (1.0 - none)).ln();
        let floor = &mut self.floor;
        floor.evidence += of_bad + of_ok;
        let [n, bad, throttled] = &mut floor.weighed;
        (*n, *bad) = (*n + answers.answers(), *bad + answers.bad);
        *throttled += answers.throttled;
        if floor.evidence >= clear {
            let least_bad_in_flight = answers.least_bad_in_flight;
            let (ok, bad, throttled) = (*n - *bad, *bad, *throttled);
            return Judgement::TooMany(Sample { ok, bad, throttled, least_bad_in_flight, ..Sample::default() });
        }
        if floor.evidence >= 0.5 * clear {
            return Judgement::Unclear;
        }
        if floor.evidence <= 0.0 {
            self.forget_evidence();
        }
        Judgement::Fine
    }

    /// Whether the pace is no higher than the receiver has taken more than once, and it refuses by 429 only. A longer
    /// window is exceeded by a little for long, and a limit of the concurrency is met by the window.
    fn is_at_rest(&self, answers: &Sample, now: Timestamp) -> bool {
        self.background == 0.0
            && answers.throttled == answers.bad
            && self.doubted.is_none()
            && self.refused_window.is_none()
            && self.rest_s > REST_S
            && self.memory_s(now) < TELLING_S
            && self.ceiling.is_some_and(|ceiling| self.rate <= 1.001 * CLIMBED * ceiling)
    }

    /// The background follows what is seen at a pace that the receiver took, but never above what a test has found: it
    /// would follow an overload.
    pub(super) fn note_floor(&mut self, answers: &Sample) {
        let is_below = self.ceiling.is_none_or(|ceiling| self.rate <= 1.001 * CLIMBED * ceiling);
        if self.background == 0.0 || !is_below {
            return;
        }
        let Floor { tested, since, .. } = &mut self.floor;
        if since.0 > REMEMBERED {
            *since = Tally(since.0 / 2.0, since.1 / 2.0);
        }
        since.add(answers.answers().into(), answers.bad.into());
        self.background = ((WEIGHT * *tested + since.1) / (WEIGHT + since.0)).min(*tested);
        if self.background < NONE {
            self.set_background(0.0);
        }
    }
}
