//! Whether the store is slow, by the shortest time of each tenth of a second, and for how long.
//!
//! The detection is that of CoDel (Nichols and Jacobson, 2012): a queue that never empties shows in the *shortest* wait
//! of a window, while a burst does not. The target is fixed; nothing is learned, so nothing can drift.
//!
//! Clients take turns in the store, so the events of a quiet client are short whatever the others wait for. Therefore the
//! wait is at least what the queue that never emptied in the window takes, at the best rate of the last second (Little's
//! law).
//!
//! A store may take long for each commit by its nature (a slow disk), which is no overload. So the time counts only
//! while at least [`LEAST_BOUND`] events are in the store: below that number ingest is never bounded anyway.

use std::time::Duration;

use crate::time::Timestamp;

/// How often the pressure is judged.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Ticks of a second.
const SECOND: usize = 10;
/// The store has stopped if nothing finishes for this long although something is in it.
const STOPPED: Duration = Duration::from_secs(1);
/// The level rises by one for each of these times under pressure, and falls by one for each calm second.
const RISE_TICKS: u32 = 2;
const FALL_TICKS: u32 = 10;
/// The level at which events are bounded.
const HIGHEST: u8 = 3;
/// The events in flight are never bounded to less than this, or to more than [`MOST_BOUND`].
pub const LEAST_BOUND: u32 = 64;
pub const MOST_BOUND: u32 = 16_384;

/// A count over the last second, in ticks.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    ticks: [u32; SECOND],
    current: usize,
    sum: u32,
}

impl Counts {
    pub(super) fn add(&mut self) {
        self.ticks[self.current] += 1;
        self.sum += 1;
    }

    pub(super) fn per_s(&self) -> u32 {
        self.sum
    }

    /// In one tick at most.
    fn most(&self) -> u32 {
        self.ticks.iter().copied().max().unwrap_or_default()
    }

    pub(super) fn tick(&mut self) {
        self.current = (self.current + 1) % SECOND;
        self.sum -= std::mem::take(&mut self.ticks[self.current]);
    }
}

#[derive(Debug)]
pub(super) struct Pressure {
    /// An event waits at most this long for the store; half of it is too long for the shortest wait.
    target: Duration,
    /// Events in the store.
    in_store: u32,
    /// The most and the least in this tick.
    most_in_store: u32,
    least_in_store: u32,
    /// The last end of an ingest, or when the store was idle before the first.
    moved_at: Timestamp,
    /// In this tick.
    shortest: Option<Duration>,
    shortest_recording: Option<Duration>,
    /// Of the last full tick, here and in other processes.
    recording: Duration,
    recording_elsewhere: Duration,
    completed: Counts,
    slow_ticks: u32,
    pressed_ticks: u32,
    calm_ticks: u32,
    level: u8,
    /// Whether events are bounded: at the highest level, and before it while even the shortest wait is over the target.
    is_bound: bool,
}

impl Pressure {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            target: Duration::from_millis(250),
            in_store: 0,
            most_in_store: 0,
            least_in_store: 0,
            moved_at: now,
            shortest: None,
            shortest_recording: None,
            recording: Duration::ZERO,
            recording_elsewhere: Duration::ZERO,
            completed: Counts::default(),
            slow_ticks: 0,
            pressed_ticks: 0,
            calm_ticks: 0,
            level: 0,
            is_bound: false,
        }
    }

    pub(super) fn set_target(&mut self, target: Duration) {
        self.target = target;
    }

    pub(super) fn began(&mut self, now: Timestamp) {
        if self.in_store == 0 {
            self.moved_at = now;
        }
        self.in_store += 1;
        self.most_in_store = self.most_in_store.max(self.in_store);
    }

    /// `took`: `None` if the store did not finish.
    pub(super) fn ended(&mut self, took: Option<Duration>, now: Timestamp) {
        self.in_store -= 1;
        self.least_in_store = self.least_in_store.min(self.in_store);
        let Some(took) = took else { return };
        self.moved_at = now;
        self.completed.add();
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
    }

    pub(super) fn recorded(&mut self, waited: Duration) {
        self.shortest_recording = Some(self.shortest_recording.map_or(waited, |shortest| shortest.min(waited)));
    }

    pub(super) fn recorded_elsewhere(&mut self, waited: Duration) {
        self.recording_elsewhere = waited;
    }

    pub(super) fn recording_wait(&self) -> Duration {
        self.recording
    }

    pub(super) fn completed_per_s(&self) -> u32 {
        self.completed.per_s()
    }

    pub(super) fn level(&self) -> u8 {
        self.level
    }

    /// Ends a tick.
    pub(super) fn tick(&mut self, now: Timestamp) {
        let most_in_store = std::mem::replace(&mut self.most_in_store, self.in_store);
        let standing = self.standing();
        self.least_in_store = self.in_store;
        let shortest = self.shortest.take().map(|shortest| shortest.max(standing));
        self.recording = self.shortest_recording.take().unwrap_or_default();
        let deliveries_wait = self.recording.max(self.recording_elsewhere) >= self.target;
        let is_slow = match shortest {
            Some(shortest) => shortest >= self.target / 2 || deliveries_wait,
            // Nothing finished: as before, unless nothing was there.
            None => most_in_store > 0 && (self.slow_ticks > 0 || deliveries_wait),
        };
        self.slow_ticks = if is_slow && most_in_store >= LEAST_BOUND { self.slow_ticks.saturating_add(1) } else { 0 };
        let has_stopped = self.in_store > 0 && now.since(self.moved_at) >= STOPPED;
        if self.slow_ticks >= 2 || has_stopped {
            self.is_bound |= shortest >= Some(self.target);
            self.calm_ticks = 0;
            self.pressed_ticks += 1;
            if self.pressed_ticks == RISE_TICKS {
                self.pressed_ticks = 0;
                self.level = (self.level + 1).min(HIGHEST);
            }
        } else {
            self.pressed_ticks = 0;
            self.calm_ticks += 1;
            if self.calm_ticks == FALL_TICKS {
                self.calm_ticks = 0;
                self.level = self.level.saturating_sub(1);
            }
            self.is_bound = false;
        }
        self.is_bound |= self.level == HIGHEST;
        self.completed.tick();
    }

    /// What the queue of this tick takes at least.
    fn standing(&self) -> Duration {
        TICK.mul_f64(f64::from(self.least_in_store) / f64::from(self.completed.most().max(1)))
    }

    /// The events that may be in flight in all processes: as many as the store completes within the target (Little's
    /// law). `None`: as many as the class allows. `elsewhere`: what other processes complete in a second.
    pub(super) fn bound(&self, elsewhere: u32) -> Option<u32> {
        let within_target = f64::from(self.completed.per_s() + elsewhere) * self.target.as_secs_f64();
        self.is_bound.then_some((within_target as u32).clamp(LEAST_BOUND, MOST_BOUND))
    }
}
