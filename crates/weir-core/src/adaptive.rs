//! A pace that finds itself: below the hard limits of a destination, what its receiver can take.
//!
//! The pace is a cursor of its own beside the hard limits' cursors. A slot starts at the maximum of all of them, so the
//! pace can only delay: no window can hold more sends than without it. Everything here is pure. Workers report
//! [`Sample`]s, whoever holds the job calls [`AdaptiveRate::step`], and times are arguments.
//!
//! Two things are learnt, because receivers limit two things:
//!
//! - the *rate*, from refusals. The share of refusals at a known rate says what the receiver took: `w = r · ok / n`.
//!   The pace goes to 0.9 w, climbs to 0.97 w, rests, and then probes in growing steps (AIMD anchored on goodput).
//! - the *window*, the requests in flight. A receiver with a queue answers late instead of refusing. By Little's law
//!   `base · r` requests are in flight without a queue, so 1.5 times as many and a few is enough for any receiver
//!   at rate r. Beyond that, sends wait for answers: the receiver's own speed is the clock, without a queue at the
//!   receiver that grows until it is noticed. A concurrency limit is found in the same place, as a smaller window.
//!
//! Neither is believed without a test of causality. If a cut does not make the share of refusals smaller, they do not
//! come from the rate: the cut is undone, and the share is the background above which refusals count. If half of the
//! window does not make answers quicker, they are slow for another reason, and their time is the new base.
//!
//! ```text
//! starting ──signal──▶ throttled ──clean epochs──▶ climbing to 0.97 w ──▶ resting ──▶ growing ──signal──▶ throttled
//!     any ──nothing but refusals, or Retry-After──▶ held ──a probe is answered──▶ climbing
//! ```
//!
//! Sources: AIMD (Chiu and Jain 1989); Little's law (1961); TCP Vegas (Brakmo and Peterson 1994) for the base and BBR
//! (Cardwell et al. 2016) for goodput as the anchor; the AWS SDKs' adaptive mode and Vector's ARC for what answers mean;
//! failsafe-go for the doubt whether load is the cause.

mod held;
mod reason;
mod sample;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::held::Wall;
pub use self::{
    reason::{Change, Reason},
    sample::{Quota, Sample, Verdict},
};
use crate::Timestamp;

/// The pace at which an unknown receiver is tried first.
const FIRST_PER_S: f64 = 10.0;
/// An epoch is as long and has as many answers, or it is as long as [`LONGEST_EPOCH_S`].
const EPOCH_S: f64 = 1.0;
const EPOCH_ANSWERS: u32 = 10;
const LONGEST_EPOCH_S: f64 = 60.0;
const DOUBTFUL_ANSWERS: u32 = 50;
const DOUBTFUL_S: f64 = 5.0;
/// With half of the answers bad, an epoch ends early.
const EARLY_S: f64 = 0.25;
/// More refusals than this share, above the background, are a signal.
const TOLERATED: f64 = 0.02;
/// After a cut, relative to what the receiver took, and where the climb ends.
const CUT: f64 = 0.9;
const CLIMBED: f64 = 0.97;
const CLIMB: f64 = 1.05;
/// Probes: the first step, its growth in each epoch, and the largest one.
const FIRST_STEP: f64 = 0.02;
/// Steps do not grow before the pace is so far above the ceiling that the receiver must have changed.
const KNOWN: f64 = 1.1;
const STEP_GROWTH: f64 = 1.4;
const LARGEST_STEP: f64 = 0.25;
/// In one window of a receiver that counts longer ones.
const LARGEST_STEP_OF_WINDOWS: f64 = 0.05;
/// A rest, and how long it becomes when the same ceiling is met again.
const REST_S: f64 = 5.0;
const LONGEST_REST_S: f64 = 20.0;
const MEMORY_LASTS_S: f64 = 3_600.0;
const REFUSED: f64 = 0.01;
const LONGEST_PAID_REST_S: f64 = 25.0;
/// A background is tested anew after this time, and after twice as long each time that it is confirmed.
const LONGEST_DOUBT_S: f64 = 60.0;
const BACKGROUND_TEST_S: f64 = 60.0;
const LONGEST_BACKGROUND_TEST_S: f64 = 600.0;
/// A window, relative to the requests that are in flight without a queue, and the places beside them.
const SLACK: f64 = 1.5;
const SPARE_PLACES: f64 = 4.0;
/// How much smaller the window is made to see whether answers come sooner.
const WINDOW_TEST: f64 = 0.5;
/// The pace that is kept above the goodput while the window binds.
const HEADROOM: f64 = 1.3;

/// What an operator chooses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The pace never falls below this.
    pub min_per_s: f64,
    pub max_per_s: Option<f64>,
    /// Whether late answers bound the requests in flight.
    pub latency: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { min_per_s: 1.0 / 60.0, max_per_s: None, latency: true }
    }
}

/// What an epoch has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Epoch {
    from: Timestamp,
    sent: u32,
    /// Whether a send had to wait because the window was full.
    was_full: bool,
    answers: Sample,
}

impl Epoch {
    fn new(from: Timestamp) -> Self {
        Self { from, sent: 0, was_full: false, answers: Sample::default() }
    }
}

/// A doubt whether the pace is the cause of refusals, until the answers after a cut have resolved it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Doubt {
    since: Timestamp,
    /// The pace before all cuts, the one before the last of them, and the share of refusals there.
    rate_before: f64,
    rate_tried: f64,
    share: f64,
    /// How often the pace has been halved, after a first cut has been of no use.
    halved: u8,
    /// The answers since the cut, and the refusals among them.
    answers: f64,
    bad: f64,
}

/// The trial of a smaller window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct WindowTest {
    /// The mean logarithm of the times below which there was a queue.
    threshold: f64,
    answers: u32,
    /// Whether it has said once that the times do not depend on the window.
    is_repeated: bool,
}

/// The pace of one destination and what it rests on. Less than 600 bytes as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveRate {
    settings: Settings,
    max_in_flight: u32,
    rate: f64,
    generation: u32,
    next_start: Timestamp,
    /// What the receiver was last seen to take at most. `None`: no signal has come yet.
    ceiling: Option<f64>,
    rest_s: f64,
    rest_until: Timestamp,
    step: f64,
    refused_since_rest: f64,
    /// The share of refusals that does not depend on the pace.
    background: f64,
    doubt: Option<Doubt>,
    /// The pace before the cuts of a doubt that more refusals have interrupted.
    doubted: Option<f64>,
    next_background_test: Timestamp,
    background_test_wait_s: f64,
    /// The pace of the last clean epoch, until it has been used for a cut.
    proven: Option<f64>,
    last_cut: Timestamp,
    /// While no epoch has passed since: a smaller share of refusals than one in so many may come from before it.
    settling: u32,
    /// The mean time of an answer without a queue, and the mean of its logarithm.
    base: Option<(f64, f64)>,
    /// Late answers in a row of epochs with a full window.
    late: Sample,
    late_epochs: u8,
    /// The mean logarithm of the times that a test has explained by a queue.
    explained_ln: f64,
    /// The window by late answers, by refusals, and what is tried.
    late_window: Option<f64>,
    refused_window: Option<f64>,
    /// The goodput when the window by refusals was found, and how often it was made smaller without success.
    goodput_before_narrowing: f64,
    narrowed: u8,
    trusts_refused_window: Timestamp,
    window_test: Option<WindowTest>,
    next_window_test: Timestamp,
    window_test_wait_s: f64,
    /// Until when a `RateLimit` header caps the pace, and where.
    advertised: Option<(f64, Timestamp)>,
    wall: Option<Wall>,
    /// The longest wall of the last hour, and when it ended or a refusal confirmed it.
    longest_wall: (f64, Timestamp),
    /// When the present cycle began and what has been taken since: what a receiver that counts minutes takes in one.
    cycle_from: Timestamp,
    cycle_ok: u64,
    epoch: Epoch,
    since: Timestamp,
    reason: Reason,
    detail: String,
}

impl AdaptiveRate {
    /// The pace of a destination of which nothing is known, or only at which rate it has taken requests of late.
    pub fn new(settings: Settings, max_in_flight: u32, achieved_per_s: Option<f64>, now: Timestamp) -> Self {
        let mut new = Self {
            settings,
            max_in_flight,
            rate: FIRST_PER_S.max(achieved_per_s.unwrap_or(0.0)),
            generation: 0,
            next_start: Timestamp::MIN,
            ceiling: None,
            rest_s: REST_S,
            rest_until: Timestamp::MIN,
            step: FIRST_STEP,
            refused_since_rest: 0.0,
            background: 0.0,
            doubt: None,
            doubted: None,
            next_background_test: Timestamp::MIN,
            background_test_wait_s: BACKGROUND_TEST_S,
            proven: None,
            last_cut: Timestamp::MIN,
            settling: u32::MAX,
            base: None,
            late: Sample::default(),
            late_epochs: 0,
            explained_ln: f64::MIN,
            late_window: None,
            refused_window: None,
            goodput_before_narrowing: 0.0,
            narrowed: 0,
            trusts_refused_window: Timestamp::MIN,
            window_test: None,
            next_window_test: Timestamp::MIN,
            window_test_wait_s: REST_S,
            advertised: None,
            wall: None,
            longest_wall: (0.0, Timestamp::MIN),
            cycle_from: now,
            cycle_ok: 0,
            epoch: Epoch::new(now),
            since: now,
            reason: Reason::Starting,
            detail: String::new(),
        };
        new.rate = new.clamped(new.rate);
        new
    }

    /// The pace after a loss of the queue, from a copy of this state: at 0.8 of it if the copy is fresh, else at half.
    pub fn resumed(copy: Self, is_fresh: bool, now: Timestamp) -> Self {
        let rate = copy.clamped(copy.rate * if is_fresh { 0.8 } else { 0.5 });
        // Slots of the lost state may still be used, so the first slot waits for one spacing.
        let next_start = now + seconds(1.0 / rate);
        let mut resumed = Self { rate, next_start, wall: None, window_test: None, doubt: None, proven: None, ..copy };
        resumed.begin_cycle(now);
        resumed.generation = resumed.generation.wrapping_add(1);
        resumed.say(Reason::Resting, "the state of the queue was lost".to_owned(), now);
        resumed
    }

    /// The pace in sends per second.
    pub fn per_s(&self, now: Timestamp) -> f64 {
        match self.advertised {
            Some((rate, until)) if now < until => rate.min(self.rate).max(self.settings.min_per_s),
            _ => self.rate,
        }
    }

    /// Which pace new slots follow; grants carry it and answers bring it back.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// How many requests may be in flight.
    pub fn window(&self) -> u32 {
        let most = f64::from(self.max_in_flight);
        let window = [self.late_window, self.refused_window].into_iter().flatten().fold(most, f64::min);
        (window.round() as u32).clamp(1, self.max_in_flight)
    }

    /// Why the pace is what it is, and since when.
    pub fn reason(&self) -> (Reason, &str, Timestamp) {
        (self.reason, &self.detail, self.since)
    }

    /// The earliest start of the next slot by the pace alone. `None`: not before an answer comes.
    pub fn next_start(&mut self, in_flight: u32) -> Option<Timestamp> {
        if let Some(wall) = &self.wall {
            return wall.next_probe();
        }
        if in_flight >= self.window() {
            self.epoch.was_full = true;
            return None;
        }
        Some(self.next_start)
    }

    /// A slot starts.
    pub fn take(&mut self, start: Timestamp) {
        if let Some(wall) = &mut self.wall {
            wall.probe(start);
        }
        self.epoch.sent += 1;
        self.next_start = start + seconds(1.0 / self.per_s(start));
    }

    /// Takes the report of a worker.
    pub fn observe(&mut self, sample: &Sample, now: Timestamp) {
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

    /// Judges the epoch if it has ended. Returns the change of the pace, if that is one to tell.
    pub fn step(&mut self, now: Timestamp) -> Option<Change> {
        if self.wall.is_some() {
            return None;
        }
        let Epoch { from, sent, was_full, answers } = self.epoch;
        let dt = now.since(from).as_secs_f64();
        let n = answers.answers();
        let is_wall = answers.ok == 0 && answers.bad >= self.refusals_of_a_wall() && dt >= EPOCH_S;
        let is_early = dt >= EARLY_S && f64::from(answers.bad) >= 5.0 + self.background * f64::from(n) && answers.bad * 2 >= n;
        // A few refusals may be chance: they wait for more answers.
        let is_doubtful = (1..3).contains(&answers.bad) && n < DOUBTFUL_ANSWERS && dt < DOUBTFUL_S;
        let is_over = dt >= EPOCH_S && n >= self.epoch_answers() && !is_doubtful;
        if !is_early && !is_over && !is_wall && dt < LONGEST_EPOCH_S {
            return None;
        }
        let before = self.rate;
        let rate = self.rate.min(f64::from(sent) / dt);
        let is_paced = f64::from(sent) >= 0.85 * self.per_s(now) * dt;
        self.epoch = Epoch::new(now);
        let is_settling = !is_early && answers.bad.saturating_mul(std::mem::replace(&mut self.settling, u32::MAX)) < n;
        if self.resolve(&answers, now) {
            self.proven = None;
        } else if is_settling && answers.bad > 0 && self.is_recent_cut(10.0, now) {
            // A window of the receiver still counts the sends before the cut.
        } else if self.doubt.is_none() && self.is_too_many(&answers) {
            self.refused(&answers, rate, is_early, dt, now);
        } else if self.doubt.is_none() {
            self.narrowed = 0;
            self.proven = Some(rate);
            if was_full && !is_paced {
                self.full(&answers, rate, now);
            } else {
                (self.late, self.late_epochs) = (Sample::default(), 0);
                self.learn_base(&answers);
                if !is_paced {
                    self.say(Reason::Idle, "fewer deliveries are due than the pace allows".to_owned(), now);
                } else if !self.tests_background(now) {
                    self.grow(dt, now);
                }
            }
        }
        self.place_window();
        Change::between(before, self, now)
    }

    /// So many refusals and nothing else are no chance.
    fn refusals_of_a_wall(&self) -> u32 {
        let of_background = if self.background > 0.0 { 1e-4_f64.ln() / self.background.ln() } else { 0.0 };
        (of_background.ceil() as u32).max(4)
    }

    fn epoch_answers(&self) -> u32 {
        // What depends on a share or a spread needs as many answers as they ask for.
        let of_background = if self.background > 0.0 { 15.0 / self.background } else { 0.0 };
        let of_test = self.window_test.map_or(0, |test| test.answers);
        EPOCH_ANSWERS.max((of_background as u32).min(200)).max(of_test)
    }

    fn clamped(&self, rate: f64) -> f64 {
        rate.min(self.settings.max_per_s.unwrap_or(f64::INFINITY)).max(self.settings.min_per_s)
    }

    /// Whether the refusals are more than the background explains.
    fn is_too_many(&self, answers: &Sample) -> bool {
        let n = f64::from(answers.answers());
        let expected = self.background * n;
        let noise = 2.5 * (expected * (1.0 - self.background)).sqrt();
        answers.bad > 0 && f64::from(answers.bad) - expected - noise >= (TOLERATED * n).max(1.0)
    }

    /// Whether the answers since a cut say that the cut was of no use: then it is undone, and this share of refusals is
    /// the background.
    fn resolve(&mut self, answers: &Sample, now: Timestamp) -> bool {
        let memory_s = self.memory_s(now);
        let Some(doubt) = &mut self.doubt else { return false };
        let (n, bad) = (f64::from(answers.answers()), f64::from(answers.bad));
        if bad > 1.4 * doubt.share * n + 3.0 * (doubt.share * n).sqrt() {
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
        let expected = doubt.share * doubt.answers;
        let needed = if doubt.halved > 0 { 15.0 } else { 10.0 };
        let is_clear = expected >= 4.0 && doubt.bad <= 0.15 * expected;
        if expected < needed && !is_clear && age_s < memory_s + LONGEST_DOUBT_S {
            return false;
        }
        let Doubt { rate_before, rate_tried, answers, bad, halved, .. } = *doubt;
        let share_tried = doubt.share;
        self.doubt = None;
        let share = bad / answers.max(1.0);
        if bad <= if halved > 0 { 0.4 } else { 0.15 } * expected {
            // Fewer: it was us.
            self.doubted = None;
            self.background = self.background.min(share);
            self.background_test_wait_s = BACKGROUND_TEST_S;
            if halved > 0 {
                // What the receiver takes lies between.
                self.cut_to((rate_tried * (1.0 - share_tried)).max(self.rate), now);
            }
            return false;
        }
        // A bucket without room refuses half of anything from its rate to twice as much, so a large share asks for more.
        let enough = if share > 0.3 { 2 } else { 1 };
        if halved < enough {
            // Where the pace is the cause, half of it is refused less.
            let (rate_tried, halved) = (self.rate, halved + 1);
            self.cut_to(0.5 / CUT * rate_tried, now);
            self.doubt = Some(Doubt { since: now, rate_before, rate_tried, share, halved, answers: 0.0, bad: 0.0 });
            return true;
        }
        if self.background == 0.0 {
            // The ceiling was none.
            self.ceiling = None;
        }
        let found = share.min(0.6);
        self.background = if self.background > 0.0 { (self.background + found) / 2.0 } else { found };
        self.next_background_test = now + seconds(self.background_test_wait_s);
        self.background_test_wait_s = (2.0 * self.background_test_wait_s).min(LONGEST_BACKGROUND_TEST_S);
        self.refused_window = None;
        self.rate = self.clamped(rate_before);
        self.rest_until = Timestamp::MAX;
        self.generation = self.generation.wrapping_add(1);
        let text = format!("{bad} of {answers} answers were refusals, and no fewer at a lower pace");
        self.say(Reason::Resting, text, now);
        true
    }

    /// Lowers the pace for a moment to see whether the background still does not depend on it.
    fn tests_background(&mut self, now: Timestamp) -> bool {
        if self.background == 0.0 || now < self.next_background_test {
            return false;
        }
        self.doubt = Some(Doubt {
            since: now,
            rate_before: self.rate,
            rate_tried: self.rate,
            share: self.background,
            halved: 1,
            answers: 0.0,
            bad: 0.0,
        });
        self.rate = self.clamped(0.5 * self.rate);
        self.generation = self.generation.wrapping_add(1);
        self.say(Reason::Resting, "testing whether fewer are refused at a lower pace".to_owned(), now);
        true
    }

    /// Refusals: the pace falls to what the receiver took.
    fn refused(&mut self, answers: &Sample, rate: f64, is_early: bool, dt: f64, now: Timestamp) {
        let n = f64::from(answers.answers());
        let share = f64::from(answers.bad) / n;
        let text = format!("{} of {} answers were refusals", answers.bad, answers.answers());
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
        let least = if is_early { 0.5 } else { 0.3 };
        let taken = rate * ((1.0 - share) / (1.0 - self.background)).clamp(least, 1.0);
        // A bucket without room refuses every other request just above its rate, which it took a moment ago.
        let proven = self.proven.take().filter(|proven| share < 0.6 && *proven > taken);
        // A cut that does not reach what the receiver took says nothing about the cause.
        let is_proven = proven.is_some();
        let (memory_s, cycle_s) = (self.memory_s(now), now.since(self.cycle_from).as_secs_f64());
        let is_counting = memory_s >= held::TELLING_S;
        let is_full_cut = !is_early && proven.is_none() && !is_counting && self.background == 0.0;
        let (rate_before, rate_tried) = (self.doubted.take().unwrap_or(self.rate).max(self.rate), self.rate);
        let doubt = Doubt { since: now, rate_before, rate_tried, share, halved: 0, answers: 0.0, bad: 0.0 };
        self.doubt = is_full_cut.then_some(doubt);
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
        if is_proven {
            self.settling = 20;
        }
        self.say(Reason::Throttled, text, now);
    }

    /// The pace goes below `taken`, which is the new ceiling.
    fn cut_to(&mut self, taken: f64, now: Timestamp) {
        let is_same = self.ceiling.is_some_and(|ceiling| (taken - ceiling).abs() < 0.15 * ceiling);
        self.rest_s = if is_same { (self.rest_s * 2.0).min(self.longest_rest_s(now)) } else { self.first_rest_s(now) };
        self.ceiling = Some(taken);
        self.rate = self.clamped(CUT * taken);
        self.step = FIRST_STEP;
        self.explained_ln = f64::MIN;
        self.last_cut = now;
        self.settling = 3;
        self.generation = self.generation.wrapping_add(1);
        self.next_start = self.next_start.max(now);
        self.rest_until = Timestamp::MAX;
    }

    fn is_recent_cut(&self, within_s: f64, now: Timestamp) -> bool {
        now.since(self.last_cut).as_secs_f64() < within_s
    }

    /// The longest wall of the last hour: how long the receiver's memory is.
    fn memory_s(&self, now: Timestamp) -> f64 {
        let (longest, at) = self.longest_wall;
        if now.since(at).as_secs_f64() < MEMORY_LASTS_S { longest.clamp(1.0, 60.0) } else { 1.0 }
    }

    fn first_rest_s(&self, now: Timestamp) -> f64 {
        REST_S.max(2.0 * self.memory_s(now))
    }

    fn longest_rest_s(&self, now: Timestamp) -> f64 {
        LONGEST_REST_S.max(10.0 * self.memory_s(now))
    }

    /// A clean epoch in which the pace decided.
    fn grow(&mut self, dt: f64, now: Timestamp) {
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
        if self.rest_until == Timestamp::MAX {
            // The refusals of the last ascent are to be one in a hundred.
            let is_counting = self.memory_s(now) >= held::TELLING_S;
            let (budget, most_s) =
                if is_counting { (REFUSED / 2.0, self.longest_rest_s(now)) } else { (REFUSED, LONGEST_PAID_REST_S) };
            let paid_s = (self.refused_since_rest / (budget * self.rate)).min(most_s);
            self.rest_until = now + seconds(self.rest_s.max(paid_s));
            self.refused_since_rest = 0.0;
        }
        if now < self.rest_until {
            return self.say(Reason::Resting, format!("just below {ceiling:.3}/s, where the receiver refused"), now);
        }
        if self.rate < KNOWN * ceiling {
            self.step = FIRST_STEP;
        }
        let memory_s = self.memory_s(now);
        let largest = if memory_s < held::TELLING_S { LARGEST_STEP } else { LARGEST_STEP_OF_WINDOWS };
        let most = largest.min(largest * dt / memory_s);
        self.rate = self.clamped(self.rate * (1.0 + self.step.min(most)));
        self.step = (self.step * STEP_GROWTH).min(most);
        self.say(Reason::Growing, "no refusal since the last rest".to_owned(), now);
    }
}

mod window;

/// Seconds as a duration; a day at most.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))
}
