//! Walls: times in which the receiver takes nothing, and the probes that find their end.

use serde::{Deserialize, Serialize};

use super::{AdaptiveRate, CUT, FIRST_STEP, Reason, epoch::Epoch, seconds, told::TELLING_S};
use crate::{Timestamp, time::InWords};

/// A probe whose answer does not come is forgotten after this time.
pub(super) const LOST_PROBE_S: f64 = 60.0;

/// The receiver refuses everything at present.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Wall {
    since: Timestamp,
    probe_at: Timestamp,
    /// Whether a probe is on its way, until `probe_at` at most.
    is_probing: bool,
    /// Whether the refusals were 429: a window of the receiver is full. Otherwise the receiver is out of order.
    is_quota: bool,
    /// Whether a `Retry-After` said its end, and no probe has been refused.
    #[serde(default)]
    is_told: bool,
}

impl Wall {
    /// When the next probe may be sent.
    pub(super) fn probe_at(&self) -> Timestamp {
        self.probe_at
    }

    /// Notes the start of the last slot. It is a probe, unless it was granted before the wall was known.
    pub(super) fn probed(&mut self, at: Timestamp) {
        if at >= self.probe_at {
            self.is_probing = true;
            self.probe_at = at + seconds(LOST_PROBE_S);
        }
    }

    fn wait_s(&self, now: Timestamp) -> f64 {
        let age_s = now.since(self.since).as_secs_f64();
        if self.is_quota { (age_s / 4.0).clamp(1.0, 60.0) } else { (age_s / 8.0).clamp(1.0, 15.0) }
    }

    /// The probe was refused: the next one waits longer the older the wall is.
    pub(super) fn refused(&mut self, now: Timestamp) {
        if self.is_probing {
            (self.is_probing, self.is_told) = (false, false);
            self.probe_at = now + seconds(self.wait_s(now));
        }
    }
}

impl AdaptiveRate {
    /// Raises a wall, or extends it: the first probe is sent at `until`, or after a second.
    pub(super) fn stand(&mut self, until: Option<Timestamp>, is_quota: bool, now: Timestamp) {
        let probe_at = until.unwrap_or(now + seconds(1.0));
        match &mut self.wall {
            Some(wall) => wall.probe_at = wall.probe_at.max(probe_at),
            None => {
                self.wall = Some(Wall { since: now, probe_at, is_probing: false, is_quota, is_told: until.is_some() });
                self.generation = self.generation.wrapping_add(1);
            }
        }
        let why = if until.is_some() { "the receiver said Retry-After" } else { "the receiver refuses everything" };
        self.say(Reason::Held, why.to_owned(), now);
    }

    /// A probe was answered: the wall is over.
    pub(super) fn resume(&mut self, wall: &Wall, now: Timestamp) {
        let length = now.since(wall.since).as_secs_f64();
        let cycle_s = now.since(self.cycle_from).as_secs_f64();
        let goodput = self.cycle_ok as f64 / cycle_s.max(1.0);
        let is_recent_cut = self.is_recent_cut(10.0, now);
        if length >= TELLING_S {
            self.told.over(wall.since.since(self.cycle_from).as_secs_f64() < length);
        }
        let (taken, share) = if !wall.is_quota {
            (self.rate, 0.7)
        } else if length >= TELLING_S && wall.is_told && self.told.is_too_long() {
            // The pace of the last clean epoch.
            let taken = self.proven.unwrap_or(0.8 * self.rate).min(self.rate);
            (if self.told.is_doubted() { 0.8 * taken } else { taken }, 0.95)
        } else if length >= TELLING_S {
            (goodput.min(self.rate), 0.95)
        } else if is_recent_cut && self.is_cut_proven {
            // The receiver counts the requests that it refused, and those have passed: the cut was enough.
            (self.ceiling.unwrap_or(self.rate), CUT)
        } else {
            (self.rate * if is_recent_cut { 0.75 } else { 0.97 }, 0.95)
        };
        let (longest, at) = self.longest_wall;
        if wall.is_quota && (length >= longest || now.since(at).as_secs_f64() > super::MEMORY_LASTS_S) {
            self.longest_wall = (length, now);
        }
        self.told.begin(length >= TELLING_S && wall.is_told);
        self.wall = None;
        self.step = FIRST_STEP;
        self.cut_to(taken, now);
        self.doubt = None;
        self.rate = self.clamped(share * taken);
        if length >= TELLING_S {
            // What the wall's last window still took was not known.
            self.settling = 0;
        }
        self.begin_cycle(now);
        let length = InWords(seconds(length));
        self.say(Reason::Resting, format!("the receiver took nothing for {length}"), now);
    }

    pub(super) fn begin_cycle(&mut self, now: Timestamp) {
        (self.cycle_from, self.cycle_ok) = (now, 0);
        self.epoch = Epoch::new(now);
    }
}
