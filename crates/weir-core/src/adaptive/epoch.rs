//! Epochs: the answers that are judged together, and what follows from them.

use serde::{Deserialize, Serialize};

use super::{AdaptiveRate, EPOCH_S, Reason, Sample, floor::Judgement};
use crate::Timestamp;

/// An epoch is over after [`EPOCH_S`] with so many answers, or after [`LONGEST_EPOCH_S`].
const EPOCH_ANSWERS: u32 = 10;
const LONGEST_EPOCH_S: f64 = 60.0;
/// One or two refusals may be chance, so an epoch with them is longer.
const DOUBTFUL_ANSWERS: u32 = 50;
const DOUBTFUL_S: f64 = 5.0;
/// With half of the answers bad, an epoch ends early.
const EARLY_S: f64 = 0.25;

/// What an epoch has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Epoch {
    pub(super) from: Timestamp,
    pub(super) sent: u32,
    /// Whether a send had to wait because the window was full.
    pub(super) was_full: bool,
    pub(super) answers: Sample,
}

impl Epoch {
    pub(super) fn new(from: Timestamp) -> Self {
        Self { from, sent: 0, was_full: false, answers: Sample::default() }
    }
}

impl AdaptiveRate {
    /// Takes the report of a worker.
    pub(super) fn observe(&mut self, sample: &Sample, now: Timestamp) {
        if let Some(quota) = sample.quota.filter(|quota| quota.remaining > 0 && quota.reset > now) {
            let left_s = quota.reset.since(now).as_secs_f64().max(1.0);
            self.advertised = Some((0.95 * f64::from(quota.remaining) / left_s, quota.reset));
        }
        self.cycle_ok += u64::from(sample.ok);
        if let Some(until) = sample.held_until.filter(|until| *until > now) {
            self.stand(Some(until), true, now);
        }
        if sample.generation != self.generation {
            return;
        }
        match &mut self.wall {
            Some(wall) if sample.ok > 0 => {
                let wall = *wall;
                self.resume(&wall, now);
            }
            Some(wall) => wall.refused(now),
            None => self.epoch.answers.merge(sample),
        }
    }

    /// Judges the epoch if it has ended.
    pub(super) fn step(&mut self, now: Timestamp) {
        if self.wall.is_some() {
            return;
        }
        let Epoch { from, sent, was_full, answers: all } = self.epoch;
        let (answers, errors) = self.without_errors(&all);
        let dt = now.since(from).as_secs_f64();
        let n = answers.answers();
        let is_wall = answers.ok == 0 && answers.bad >= self.refusals_of_a_wall() && dt >= EPOCH_S;
        let is_early =
            dt >= EARLY_S && f64::from(answers.bad) >= 5.0 + self.background * f64::from(n) && answers.bad * 2 >= n;
        // A few refusals may be chance: they wait for more answers.
        let is_excused = self.is_excused(&answers);
        let is_doubtful = ((1..3).contains(&answers.bad) && n < DOUBTFUL_ANSWERS
            || answers.bad >= 3 && self.may_be_excused(&answers))
            && dt < DOUBTFUL_S
            && !is_excused
            && self.background == 0.0;
        let is_over = dt >= EPOCH_S && n >= self.epoch_answers() && !is_doubtful;
        if !is_early && !is_over && !is_wall && dt < LONGEST_EPOCH_S {
            return;
        }
        // A slow pace has few slots in an epoch, and a part of one sends nothing.
        let slots = (self.per_s(now) * dt).floor().max(1.0);
        let is_paced = f64::from(sent) >= 0.85 * slots;
        let rate = if f64::from(sent) >= slots {
            self.per_s(now)
        } else {
            self.rate.min(f64::from(sent.max(all.answers())) / dt)
        };
        self.epoch = Epoch::new(now);
        self.note_errors(errors);
        self.note_start(&answers, rate, is_excused, now);
        if !is_early {
            self.note_crowding(&answers);
        }
        let is_settling = !is_early && answers.bad.saturating_mul(std::mem::replace(&mut self.settling, u32::MAX)) < n;
        if self.resolve(&answers, now) {
            self.proven = None;
        } else if is_settling && answers.bad > 0 && self.is_recent_cut(10.0, now) {
            // A window of the receiver still counts the sends before the cut.
        } else if is_early && answers.ok > 0 && self.is_cut_proven && self.is_recent_cut(2.0 * EARLY_S, now) {
            // A receiver that counts what it refused needs a moment, too.
        } else if is_early && answers.ok > 0 && self.is_ascent_over && self.is_recent_cut(EPOCH_S, now) {
            // So does one that counts calendar seconds: the rest of a full one says nothing about a pace that was clean before.
        } else if self.doubt.is_none() {
            match if is_excused { Judgement::Fine } else { self.judge(&answers, is_early, now) } {
                Judgement::TooMany(answers) => self.refused(&answers, rate, is_early, dt, now),
                Judgement::Unclear => {}
                Judgement::Fine => self.fine(&answers, rate, was_full && !is_paced, is_paced, dt, now),
            }
        }
        self.place_window();
        self.name_bounds(now);
    }

    /// An epoch in which not too much was refused.
    fn fine(&mut self, answers: &Sample, rate: f64, is_full: bool, is_paced: bool, dt: f64, now: Timestamp) {
        self.narrowed = 0;
        // With a background one epoch proves little. Neither do a few answers: a pace that is a little too high fills a window
        // only after several.
        let is_few = answers.answers() < EPOCH_ANSWERS;
        let above = self.ceiling.filter(|ceiling| is_few && *ceiling < rate);
        self.proven = (self.background == 0.0).then(|| above.map_or(rate, |ceiling| (ceiling + rate) / 2.0));
        self.note_floor(answers);
        if is_full {
            return self.full(answers, rate, now);
        }
        (self.late, self.late_epochs) = (Sample::default(), 0);
        self.may_widen();
        self.learn_base(answers);
        if !is_paced {
            self.say(Reason::Idle, "fewer deliveries are due than the pace allows".to_owned(), now);
        } else if !self.tests_background(now) {
            self.grow(dt, now);
        }
    }

    /// What bounds the pace from outside is said instead of what it would do itself.
    fn name_bounds(&mut self, now: Timestamp) {
        let is_up = matches!(self.reason, Reason::Starting | Reason::Growing | Reason::Resting);
        if is_up && self.per_s(now) < self.rate {
            self.say(Reason::Advertised, format!("the receiver announced {:.3}/s", self.per_s(now)), now);
        } else if is_up && self.settings.max_per_s.is_some_and(|most| self.rate >= most) {
            self.say(Reason::AtLimit, "the limit is lower than what the receiver takes".to_owned(), now);
        }
    }

    fn epoch_answers(&self) -> u32 {
        // What depends on a spread needs as many answers as it asks for.
        let of_test = self.window_test.map_or(0, |test| test.answers);
        EPOCH_ANSWERS.max(of_test)
    }
}
