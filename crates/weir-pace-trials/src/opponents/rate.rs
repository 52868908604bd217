//! Opponents that pace by rate: they learn from refusals alone.

use crate::{
    receiver::{Ending, Server},
    world::{Answer, Pacer},
};

const LEAST_PER_S: f64 = 0.02;

fn is_bad(answer: &Answer) -> bool {
    answer.ending != Ending::Taken
}

/// A pace and where its next send may start.
#[derive(Debug, Clone)]
struct Cursor {
    rate: f64,
    next: f64,
}

impl Cursor {
    fn new(rate: f64) -> Self {
        Self { rate, next: 0.0 }
    }

    fn sent(&mut self, now: f64) {
        self.next = now + 1.0 / self.rate.max(LEAST_PER_S);
    }
}

/// Additive increase by one a second, half after a refusal, once a second (Chiu and Jain 1989).
#[derive(Debug, Clone)]
pub struct Aimd {
    cursor: Cursor,
    changed_at: f64,
    is_refused: bool,
}

impl Default for Aimd {
    fn default() -> Self {
        Self { cursor: Cursor::new(10.0), changed_at: 0.0, is_refused: false }
    }
}

impl Pacer for Aimd {
    fn next_start(&mut self, _now: f64, _in_flight: u32) -> Option<f64> {
        Some(self.cursor.next)
    }

    fn sent(&mut self, now: f64, _in_flight: u32) -> u32 {
        self.cursor.sent(now);
        0
    }

    fn learn(&mut self, now: f64, answers: &[Answer]) {
        self.is_refused |= answers.iter().any(|answer| is_bad(answer) && answer.sent_at > self.changed_at);
        if now - self.changed_at < 1.0 {
            return;
        }
        let rate = self.cursor.rate;
        self.cursor.rate = if self.is_refused { (rate / 2.0).max(LEAST_PER_S) } else { rate + 1.0 };
        (self.changed_at, self.is_refused) = (now, false);
    }
}

/// A client's token bucket that adapts its refill to 429s (after Farkiani et al., arXiv 2510.04516): faster while
/// requests are taken, slower in proportion to the share that is refused; a refused request waits, which empties the
/// bucket. The constants are ours, because those of the paper depend on its traces.
#[derive(Debug, Clone)]
pub struct Atb {
    cursor: Cursor,
    from: f64,
    taken: u32,
    refused: u32,
    cut_at: f64,
}

impl Default for Atb {
    fn default() -> Self {
        Self { cursor: Cursor::new(10.0), from: 0.0, taken: 0, refused: 0, cut_at: f64::MIN }
    }
}

impl Pacer for Atb {
    fn next_start(&mut self, _now: f64, _in_flight: u32) -> Option<f64> {
        Some(self.cursor.next)
    }

    fn sent(&mut self, now: f64, _in_flight: u32) -> u32 {
        self.cursor.sent(now);
        0
    }

    fn learn(&mut self, now: f64, answers: &[Answer]) {
        for answer in answers.iter().filter(|answer| answer.sent_at > self.cut_at) {
            *(if is_bad(answer) { &mut self.refused } else { &mut self.taken }) += 1;
        }
        if now - self.from < 1.0 || self.taken + self.refused < 4 {
            return;
        }
        let share = f64::from(self.refused) / f64::from(self.taken + self.refused);
        let rate = self.cursor.rate;
        self.cursor.rate = if self.refused == 0 { rate * 1.05 } else { rate * (1.0 - share).max(0.5) * 0.85 };
        self.cursor.rate = self.cursor.rate.max(LEAST_PER_S);
        if self.refused > 0 {
            self.cut_at = now;
            self.cursor.next = self.cursor.next.max(now + 1.0 / self.cursor.rate);
        }
        (self.from, self.taken, self.refused) = (now, 0, 0);
    }
}

/// The adaptive mode of the AWS SDKs: CUBIC on the rate, β 0.7 and scale 0.4, the measured rate smoothed by 0.8 in halves
/// of a second, at most twice the measured rate; no limit before the first throttle.
#[derive(Debug, Clone)]
pub struct Cubic {
    cursor: Cursor,
    is_enabled: bool,
    measured: f64,
    bucket: f64,
    requests: u32,
    last_max: f64,
    window_s: f64,
    throttled_at: f64,
}

impl Default for Cubic {
    fn default() -> Self {
        let (measured, bucket, requests, last_max) = (0.0, 0.0, 0, 0.0);
        let (window_s, throttled_at) = (0.0, 0.0);
        let cursor = Cursor::new(f64::INFINITY);
        Self { cursor, is_enabled: false, measured, bucket, requests, last_max, window_s, throttled_at }
    }
}

impl Pacer for Cubic {
    fn next_start(&mut self, _now: f64, _in_flight: u32) -> Option<f64> {
        Some(self.cursor.next)
    }

    fn sent(&mut self, now: f64, _in_flight: u32) -> u32 {
        self.cursor.sent(now);
        0
    }

    fn learn(&mut self, _now: f64, answers: &[Answer]) {
        for answer in answers {
            self.requests += 1;
            let bucket = (answer.at * 2.0).floor() / 2.0;
            if bucket > self.bucket {
                let rate = f64::from(self.requests) / (bucket - self.bucket);
                self.measured = rate * 0.8 + self.measured * 0.2;
                (self.requests, self.bucket) = (0, bucket);
            }
            let calculated = if is_bad(answer) {
                let rate = if self.is_enabled { self.measured.min(self.cursor.rate) } else { self.measured };
                self.last_max = rate;
                self.window_s = (rate * 0.3 / 0.4).cbrt();
                self.throttled_at = answer.at;
                self.is_enabled = true;
                rate * 0.7
            } else {
                self.window_s = (self.last_max * 0.3 / 0.4).cbrt();
                let t = answer.at - self.throttled_at - self.window_s;
                0.4 * t * t * t + self.last_max
            };
            if self.is_enabled {
                self.cursor.rate = calculated.min(2.0 * self.measured).max(0.5);
            }
        }
    }
}

/// Knows what the receiver takes and sends just that.
#[derive(Debug, Clone)]
pub struct Oracle {
    cursor: Cursor,
    share: f64,
}

impl Default for Oracle {
    fn default() -> Self {
        Self::at(0.99)
    }
}

impl Oracle {
    /// Sends this share of what the receiver offers.
    pub fn at(share: f64) -> Self {
        Self { cursor: Cursor::new(10.0), share }
    }
}

impl Pacer for Oracle {
    fn next_start(&mut self, _now: f64, _in_flight: u32) -> Option<f64> {
        Some(self.cursor.next)
    }

    fn sent(&mut self, now: f64, _in_flight: u32) -> u32 {
        self.cursor.sent(now);
        0
    }

    fn learn(&mut self, _now: f64, _answers: &[Answer]) {}

    fn peek(&mut self, server: &dyn Server, now: f64) {
        self.cursor.rate = (self.share * server.offered(now)).max(LEAST_PER_S);
        self.cursor.next = self.cursor.next.min(now + 1.0 / self.cursor.rate);
    }
}
