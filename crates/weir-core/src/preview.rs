//! What limits do to a backlog: how fast it is sent, which bound decides, and when it is empty.
//!
//! Under a backlog each limit spaces slots by T = (W + J) / R, so the n-th slot from now starts at
//! `offset + n · T` or later, where the tokens of a burst make the offset smaller. `max_in_flight` spaces sends in the
//! same way, by the recent answer time divided by `max_in_flight`. The n-th send starts where the strictest of these
//! bounds allows, as in [`Limiter::start_after`]. All arithmetic follows from these straight lines, so its cost does not
//! depend on the backlog. A limit of the window shape goes in steps: its line is the one below them, and the start of a
//! given send is that of its step. Of a limit in costs a send takes the usual cost.

use std::time::Duration;

pub use crate::limit::Bound;
use crate::{
    limiter::{Limiter, LimiterParts, Ring},
    time::Timestamp,
};

/// How many requests a destination answers at one time, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers {
    pub max_in_flight: u32,
    /// The average time from a send to its answer.
    pub time: Duration,
}

/// How a destination would send a backlog from now on.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    now: Timestamp,
    /// The earliest start of any send, in seconds from now: a hold, or the spacing after the last send.
    begins_in_s: f64,
    /// The bounds of the rate; empty if none is known.
    paces: Vec<Pace>,
    /// Limits of the window shape: the n-th send starts when slots of the window are free again. Their paces are the
    /// lines below these steps. With how much of it a send takes.
    rings: Vec<(Ring, f64)>,
    /// From this time on, in seconds from now, sends start as this forecast of that instant says: an override ends.
    later: Option<(f64, Box<Self>)>,
}

/// One bound: the n-th send, counted from 1, starts at `offset_s + n · spacing_s` from now or later.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pace {
    bound: Bound,
    offset_s: f64,
    spacing_s: f64,
}

/// The expiries of the deliveries at both ends of a backlog, which is sent from the oldest to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiries {
    pub oldest: Timestamp,
    pub newest: Timestamp,
}

/// The forecast of when a backlog becomes empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// The last delivery is sent after this time.
    After(Duration),
    /// As many deliveries arrive as are sent, or more.
    Never,
    /// No bound of the rate is known.
    Unknown,
}

impl Drain {
    pub fn after(self) -> Option<Duration> {
        match self {
            Self::After(time) => Some(time),
            Self::Never | Self::Unknown => None,
        }
    }

    /// Whether the backlog becomes empty; `None` if unknown.
    pub fn is_expected(self) -> Option<bool> {
        match self {
            Self::After(_) => Some(true),
            Self::Never => Some(false),
            Self::Unknown => None,
        }
    }
}

impl Forecast {
    /// The forecast from the position of the cursors. `answers`: if it is known how long the destination takes.
    pub fn new(limiter: &Limiter, answers: Option<Answers>, now: Timestamp) -> Self {
        let begin = limiter.next_start(now);
        let begins_in_s = seconds(now, begin);
        let parts = LimiterParts::from(limiter);
        let mut paces: Vec<Pace> = parts
            .cursors
            .into_iter()
            .map(|cursor| {
                let cursor = cursor.at(begin);
                let spacing_s = cursor.limit.spacing().as_secs_f64() * limiter.usually_taken(&cursor.limit);
                let tokens = cursor.limit.burst.get();
                let spent = f64::from(cursor.spent) - f64::from(tokens);
                let offset_s = seconds(now, cursor.since) + spent * spacing_s;
                Pace { bound: Bound::Limit(cursor.limit), offset_s, spacing_s }
            })
            .collect();
        let with_share = |ring: Ring| {
            let taken = limiter.usually_taken(&ring.limit);
            (ring, taken)
        };
        let rings: Vec<(Ring, f64)> = parts.rings.into_iter().map(with_share).collect();
        for (ring, taken) in &rings {
            // The slots that are free may all start at once.
            let free = f64::from(ring.slots_before(begin + Duration::from_nanos(1))) / taken;
            let spacing_s = ring.limit.spacing().as_secs_f64() * taken;
            paces.push(Pace { bound: Bound::Limit(ring.limit), offset_s: begins_in_s - free * spacing_s, spacing_s });
        }
        if let (Some(interval), Some(spacing)) = (parts.min_interval, limiter.interval_spacing()) {
            let spacing_s = spacing.as_secs_f64();
            // The first send is not spaced: `begins_in_s` says when it starts.
            paces.push(Pace { bound: Bound::MinInterval(interval), offset_s: begins_in_s - spacing_s, spacing_s });
        }
        if let Some(Answers { max_in_flight, time }) = answers.filter(|answers| !answers.time.is_zero()) {
            let spacing_s = time.as_secs_f64() / f64::from(max_in_flight.max(1));
            // Under a backlog all places are taken, so the next send waits for an answer.
            paces.push(Pace { bound: Bound::MaxInFlight, offset_s: begins_in_s, spacing_s });
        }
        Self { now, begins_in_s, paces, rings, later: None }
    }

    /// The same until an instant, and from then on `later`, which is a forecast of that instant.
    pub fn until(self, at: Timestamp, later: Self) -> Self {
        Self { later: Some((seconds(self.now, at), Box::new(later))), ..self }
    }

    /// How many sends start within this time.
    fn sent_by(&self, time_s: f64) -> f64 {
        let of = |pace: &Pace| ((time_s - pace.offset_s) / pace.spacing_s).floor();
        let sent = self.paces.iter().map(of).fold(f64::INFINITY, f64::min).max(0.0);
        if time_s <= self.begins_in_s { 0.0 } else { sent }
    }

    /// The same with a pace that no cursor keeps: an adaptive one, or the share of a limit group. It is another spacing
    /// of sends.
    pub fn paced(mut self, bound: Bound, per_s: Option<f64>) -> Self {
        if let Some(per_s) = per_s.filter(|per_s| *per_s > 0.0) {
            self.paces.push(Pace { bound, offset_s: self.begins_in_s, spacing_s: 1.0 / per_s });
        }
        self
    }

    /// The sustained rate; `None` if nothing is known to bound it.
    pub fn per_second(&self) -> Option<f64> {
        self.strictest().map(|pace| 1.0 / pace.spacing_s)
    }

    /// What bounds the sustained rate.
    pub fn bound(&self) -> Option<Bound> {
        self.strictest().map(|pace| pace.bound)
    }

    fn strictest(&self) -> Option<&Pace> {
        self.paces.iter().max_by(|a, b| a.spacing_s.total_cmp(&b.spacing_s))
    }

    /// When the n-th send from now starts, counted from 1. Like [`Limiter::start_after`], an estimate when several
    /// limits bind in turn.
    pub fn start_of(&self, n: u64) -> Timestamp {
        self.now + duration(self.start_of_s(n as f64))
    }

    fn start_of_s(&self, n: f64) -> f64 {
        if let Some((end_s, later)) = &self.later {
            let before = self.sent_by(*end_s);
            if n > before {
                return end_s + later.start_of_s(n - before);
            }
        }
        let freed = |(ring, taken): &(Ring, f64)| seconds(self.now, ring.earliest((n * taken) as u64 - 1, self.now));
        let freed = self.rings.iter().filter(|_| n >= 1.0).map(freed).fold(self.begins_in_s, f64::max);
        self.paces.iter().map(|pace| pace.offset_s + n * pace.spacing_s).fold(freed, f64::max)
    }

    /// The time until `waiting` deliveries are sent, together with the deliveries that arrive meanwhile at this rate.
    ///
    /// That is the smallest n with n ≥ waiting + inflow · start(n). The start is the largest of several lines, so each
    /// line gives a smallest n, or a largest one if it is slower than the inflow: then only a burst may drain.
    pub fn drain(&self, waiting: u64, inflow_per_s: f64) -> Drain {
        let drain = self.drain_at_first(waiting, inflow_per_s);
        match &self.later {
            Some((end_s, later))
                if drain != Drain::Unknown && drain.after().is_none_or(|after| after.as_secs_f64() > *end_s) =>
            {
                let left = waiting as f64 + inflow_per_s * end_s - self.sent_by(*end_s);
                match later.drain(left.max(0.0).ceil() as u64, inflow_per_s) {
                    Drain::After(after) => Drain::After(duration(*end_s) + after),
                    drain => drain,
                }
            }
            _ => drain,
        }
    }

    fn drain_at_first(&self, waiting: u64, inflow_per_s: f64) -> Drain {
        if waiting == 0 {
            return Drain::After(Duration::ZERO);
        }
        if self.paces.is_empty() {
            return Drain::Unknown;
        }
        let waiting = waiting as f64;
        let (mut least, mut most) = (waiting + inflow_per_s * self.begins_in_s, f64::INFINITY);
        for Pace { offset_s, spacing_s, .. } in &self.paces {
            let backlog = waiting + inflow_per_s * offset_s;
            let share = inflow_per_s * spacing_s;
            if share < 1.0 {
                least = least.max(backlog / (1.0 - share));
            } else if backlog > 0.0 {
                return Drain::Never;
            } else {
                most = most.min(backlog / (1.0 - share));
            }
        }
        let sent = least.ceil();
        if sent > most { Drain::Never } else { Drain::After(duration(self.start_of_s(sent))) }
    }

    /// The first instant at which one of `waiting` deliveries expires before it is sent; `None` if all are sent in time.
    /// Between both ends the expiries are taken to rise evenly, as with deliveries that came at an even rate and may
    /// wait equally long.
    pub fn first_expiry(&self, waiting: u64, expiries: Expiries) -> Option<Timestamp> {
        let (oldest_s, newest_s) = (seconds(self.now, expiries.oldest), seconds(self.now, expiries.newest));
        let last = waiting.checked_sub(1)? as f64;
        let expiry_s = |n: u64| oldest_s + (newest_s - oldest_s) * ((n - 1) as f64 / last.max(1.0));
        let is_late = |n: u64| self.start_of_s(n as f64) >= expiry_s(n);
        if is_late(1) {
            return Some(expiries.oldest);
        }
        // Starts never get closer together, so if both ends are in time, then so is everything between them.
        if !is_late(waiting) {
            return None;
        }
        let (mut in_time, mut late) = (1, waiting);
        while late - in_time > 1 {
            let middle = in_time + (late - in_time) / 2;
            *(if is_late(middle) { &mut late } else { &mut in_time }) = middle;
        }
        Some(self.now + duration(expiry_s(late)))
    }
}

/// The rate of new deliveries that a forecast expects: the lower one of the rates in two successive spans of time.
/// Deliveries that all arrived at once raise only one of the two rates. They are in the backlog already and do not
/// count as inflow.
pub fn steady_inflow(older_per_s: f64, newer_per_s: f64) -> f64 {
    older_per_s.min(newer_per_s)
}

/// From `from` to `to` in seconds; negative if `to` is earlier.
fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.since(from).as_secs_f64() - from.since(to).as_secs_f64()
}

/// Seconds as a duration; the longest one if there are too many.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
