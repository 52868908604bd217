//! A pace that finds itself: below the hard limits of a destination, what its receiver can take.
//!
//! The pace is a cursor of its own beside the hard limits' cursors. A slot starts at the maximum of all of them, so the
//! pace can only delay: no window can hold more sends than without it. Everything here is pure. A queue grants slots by
//! [`PaceCursor`], workers report [`Sample`]s, whoever holds the job calls [`AdaptiveRate::learn`], and times are
//! arguments.
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

mod concurrency;
mod cursor;
mod epoch;
mod fall;
mod floor;
mod growth;
mod held;
mod observed;
mod reason;
mod refusals;
mod sample;
mod told;
mod window;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::{concurrency::Crowding, epoch::Epoch, floor::Floor, held::Wall, refusals::Doubt, told::Told};
pub use self::{
    cursor::PaceCursor,
    fall::{COMPARED, Fall},
    observed::{Observation, Stretch, is_load},
    reason::{Change, Reason, Status},
    sample::{Quota, Sample, Verdict},
};
use crate::{RateLimits, Timestamp};

/// The pace at which an unknown receiver is tried first.
const FIRST_PER_S: f64 = 10.0;
/// An epoch lasts this long at least.
const EPOCH_S: f64 = 1.0;
/// After a cut, relative to what the receiver took, and where the climb ends.
const CUT: f64 = 0.9;
const CLIMBED: f64 = 0.97;
/// The first step of a probe.
const FIRST_STEP: f64 = 0.02;
/// The first rest.
const REST_S: f64 = 5.0;
/// How long a wall is remembered: a receiver that counts minutes does so for ever, and is met again once an hour.
const MEMORY_LASTS_S: f64 = 3_600.0;
/// A background is tested anew after this time, and after twice as long each time that it is confirmed.
const BACKGROUND_TEST_S: f64 = 60.0;
/// The store has a copy of the state that is no older than this when the pace has changed by a tenth.
const COPY_EVERY_S: f64 = 10.0;
/// A copy that is younger than this is fresh.
const FRESH_S: f64 = 60.0;

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

/// A rate as people say it: `2 per second`, `1 per minute`, `3.5 per hour`.
pub fn in_words(per_s: f64) -> String {
    let (number, unit) = match per_s {
        1.0.. => (per_s, "second"),
        // A minute is stored with four digits.
        0.016.. => (per_s * 60.0, "minute"),
        _ => (per_s * 3_600.0, "hour"),
    };
    let text = format!("{number:.1}");
    format!("{} per {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

impl Settings {
    /// These settings below the hard limits.
    #[must_use]
    pub fn within(self, limits: &RateLimits) -> Self {
        let most = [self.max_per_s, limits.per_second()].into_iter().flatten().reduce(f64::min);
        Self { max_per_s: most, ..self }
    }
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

/// The pace of one destination and what it rests on. Less than 2 KB as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveRate {
    settings: Settings,
    max_in_flight: u32,
    rate: f64,
    generation: u32,
    /// After a loss the first slot waits until then.
    not_before: Timestamp,
    /// What the receiver was last seen to take at most. `None`: no signal has come yet.
    ceiling: Option<f64>,
    rest_s: f64,
    rest_until: Timestamp,
    step: f64,
    /// The refusals that the next rest is to pay for.
    refused_since_rest: f64,
    /// The share of refusals that does not depend on the pace.
    background: f64,
    #[serde(default)]
    floor: Floor,
    doubt: Option<Doubt>,
    /// The pace before the cuts of a doubt that more refusals have interrupted.
    doubted: Option<f64>,
    next_background_test: Timestamp,
    background_test_wait_s: f64,
    /// The pace of the last clean epoch, until it has been used for a cut.
    proven: Option<f64>,
    last_cut: Timestamp,
    /// The last cut went to a pace at which nothing had been refused a moment before.
    #[serde(default)]
    is_cut_proven: bool,
    /// The last cut ended an ascent: more had been taken than before, and the pace after it was clean.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_ascent_over: bool,
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
    /// The requests in service when the window by refusals was found, and how often it was made smaller without success. An
    /// earlier version had the goodput instead, and needs the field.
    #[serde(rename = "goodput_before_narrowing")]
    used_before: f64,
    narrowed: u8,
    #[serde(default)]
    crowding: Crowding,
    trusts_refused_window: Timestamp,
    /// How far the window has been widened since a test has found that the answers are slow for another reason.
    #[serde(default)]
    widened: Option<f64>,
    window_test: Option<WindowTest>,
    next_window_test: Timestamp,
    window_test_wait_s: f64,
    /// Until when a `RateLimit` header caps the pace, and where.
    advertised: Option<(f64, Timestamp)>,
    wall: Option<Wall>,
    /// The longest wall of the last hour, and when it ended or a refusal confirmed it.
    longest_wall: (f64, Timestamp),
    #[serde(default)]
    told: Told,
    /// When the present cycle began and what has been taken since: what a receiver that counts minutes takes in one.
    cycle_from: Timestamp,
    cycle_ok: u64,
    epoch: Epoch,
    /// The last report or run.
    learnt_at: Timestamp,
    /// The breaker of the destination is not closed.
    is_interrupted: bool,
    /// The pace in the last copy, and when it was made.
    copied: (f64, Timestamp),
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
            not_before: Timestamp::MIN,
            ceiling: None,
            rest_s: REST_S,
            rest_until: Timestamp::MIN,
            step: FIRST_STEP,
            refused_since_rest: 0.0,
            background: 0.0,
            floor: Floor::default(),
            doubt: None,
            doubted: None,
            next_background_test: Timestamp::MIN,
            background_test_wait_s: BACKGROUND_TEST_S,
            proven: None,
            last_cut: Timestamp::MIN,
            is_cut_proven: false,
            is_ascent_over: false,
            settling: u32::MAX,
            base: None,
            late: Sample::default(),
            late_epochs: 0,
            explained_ln: f64::MIN,
            late_window: None,
            refused_window: None,
            used_before: 0.0,
            narrowed: 0,
            crowding: Crowding::default(),
            trusts_refused_window: Timestamp::MIN,
            widened: None,
            window_test: None,
            next_window_test: Timestamp::MIN,
            window_test_wait_s: REST_S,
            advertised: None,
            wall: None,
            longest_wall: (0.0, Timestamp::MIN),
            told: Told::default(),
            cycle_from: now,
            cycle_ok: 0,
            epoch: Epoch::new(now),
            learnt_at: now,
            is_interrupted: false,
            copied: (0.0, Timestamp::MIN),
            since: now,
            reason: Reason::Starting,
            detail: String::new(),
        };
        if let Some(achieved) = achieved_per_s.filter(|achieved| *achieved > FIRST_PER_S) {
            new.detail = format!("the receiver took {achieved:.3}/s before");
        }
        new.rate = new.clamped(new.rate);
        new
    }

    /// The pace after a loss of the queue, from a copy of this state: at 0.8 of it if the copy is fresh, else at half.
    pub fn resumed(copy: Self, saved_at: Timestamp, now: Timestamp) -> Self {
        let is_fresh = now.since(saved_at).as_secs_f64() < FRESH_S;
        let rate = copy.clamped(copy.rate * if is_fresh { 0.8 } else { 0.5 });
        // Slots of the lost state may still be used, so the first slot waits for one spacing.
        let not_before = now + seconds(1.0 / rate);
        let mut resumed = Self { rate, not_before, wall: None, window_test: None, doubt: None, proven: None, ..copy };
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

    /// How many requests may be in flight.
    pub fn window(&self) -> u32 {
        let most = f64::from(self.max_in_flight);
        let window = [self.late_window, self.refused_window].into_iter().flatten().fold(most, f64::min);
        (window.round() as u32).clamp(1, self.max_in_flight)
    }

    /// Follows the settings: a lowered maximum binds at once, and a raised one is grown into.
    pub fn configure(&mut self, settings: Settings, max_in_flight: u32, now: Timestamp) {
        (self.settings, self.max_in_flight) = (settings, max_in_flight);
        let before = self.rate;
        self.rate = self.clamped(before);
        if self.rate < before {
            self.say(Reason::AtLimit, "the limit was lowered".to_owned(), now);
        }
    }

    /// The breaker of the destination is open or not. Reports say nothing while it is; when it closes, the pace is half.
    pub fn interrupt(&mut self, is_interrupted: bool, now: Timestamp) {
        if self.is_interrupted && !is_interrupted {
            (self.wall, self.doubt, self.window_test) = (None, None, None);
            self.rate = self.clamped(0.5 * self.rate);
            self.generation = self.generation.wrapping_add(1);
            self.begin_cycle(now);
            self.say(Reason::Resting, "the circuit breaker was open".to_owned(), now);
        }
        self.is_interrupted = is_interrupted;
    }

    /// Takes over what the queue and the workers have noted since the last run; each report with its arrival, in this
    /// order.
    pub fn learn(&mut self, cursor: &PaceCursor, reports: &[(Timestamp, Sample)], now: Timestamp) {
        self.granted(cursor);
        if !self.is_interrupted {
            for (at, report) in reports {
                // After a time without reports the epoch has ended before this one.
                if at.since(self.learnt_at) >= seconds(EPOCH_S) {
                    self.step(*at);
                }
                self.observe(report, *at);
                self.learnt_at = *at;
            }
            self.step(now);
        }
        self.learnt_at = now;
    }

    /// The run leaves deliveries waiting because the window is full.
    pub fn leaves_waiting(&mut self) {
        self.epoch.was_full = true;
    }

    /// Whether the store needs a new copy; it counts as made.
    pub fn needs_copy(&mut self, now: Timestamp) -> bool {
        let (rate, at) = self.copied;
        let is_changed = (self.rate - rate).abs() >= 0.1 * rate;
        let needs = is_changed && now.since(at) >= seconds(COPY_EVERY_S);
        if needs {
            self.copied = (self.rate, now);
        }
        needs
    }

    fn clamped(&self, rate: f64) -> f64 {
        rate.min(self.settings.max_per_s.unwrap_or(f64::INFINITY)).max(self.settings.min_per_s)
    }
}

/// Seconds as a duration; a day at most.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))
}

#[cfg(test)]
mod tests;
