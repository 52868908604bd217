//! What workers report of the answers that they saw: sums only, so reports of several workers add up exactly.

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// How an answer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver took the request, or refused it for a reason that is not load.
    Ok,
    /// 429.
    Throttled,
    /// 502, 503, 504, a timeout, or no connection.
    Failed,
}

/// The answers that one worker saw since its last report, all to permits of one [generation](Sample::generation).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// The generation of the pace when the slots were granted. Answers to permits from before a cut say nothing about
    /// the pace after it.
    pub generation: u32,
    pub ok: u32,
    /// Throttled and failed ones.
    pub bad: u32,
    pub throttled: u32,
    /// Of the ok answers: the sum of their times in seconds, of the logarithms of these, and of the squared logarithms.
    /// The logarithms are what a log-normal time is steady in.
    pub sum_s: f64,
    pub sum_ln: f64,
    pub sum_ln2: f64,
    /// The sum of the requests in flight when the slots of ok answers were granted, and the least number for a bad one.
    pub ok_in_flight: u64,
    pub bad_in_flight: u64,
    pub least_bad_in_flight: u32,
    /// Until when a `Retry-After` holds the destination.
    pub held_until: Option<Timestamp>,
    /// What the newest `RateLimit` header leaves.
    pub quota: Option<Quota>,
}

/// The receiver takes `remaining` further requests until `reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub remaining: u32,
    pub reset: Timestamp,
}

impl Sample {
    /// Counts one answer that took `seconds`, to a slot that was granted as the n-th request in flight.
    pub fn add(&mut self, verdict: Verdict, seconds: f64, in_flight: u32) {
        match verdict {
            Verdict::Ok => {
                let ln = seconds.max(1e-4).ln();
                self.ok += 1;
                self.sum_s += seconds;
                self.sum_ln += ln;
                self.sum_ln2 += ln * ln;
                self.ok_in_flight += u64::from(in_flight);
            }
            Verdict::Throttled | Verdict::Failed => {
                let least = if self.bad == 0 { in_flight } else { self.least_bad_in_flight.min(in_flight) };
                self.bad += 1;
                self.throttled += u32::from(verdict == Verdict::Throttled);
                self.bad_in_flight += u64::from(in_flight);
                self.least_bad_in_flight = least;
            }
        }
    }

    /// Adds the answers of another sample.
    pub(super) fn merge(&mut self, other: &Self) {
        self.least_bad_in_flight = match (self.bad, other.bad) {
            (_, 0) => self.least_bad_in_flight,
            (0, _) => other.least_bad_in_flight,
            _ => self.least_bad_in_flight.min(other.least_bad_in_flight),
        };
        self.ok += other.ok;
        self.bad += other.bad;
        self.throttled += other.throttled;
        self.sum_s += other.sum_s;
        self.sum_ln += other.sum_ln;
        self.sum_ln2 += other.sum_ln2;
        self.ok_in_flight += other.ok_in_flight;
        self.bad_in_flight += other.bad_in_flight;
    }

    pub(super) fn answers(&self) -> u32 {
        self.ok + self.bad
    }

    /// The mean time of the ok answers.
    pub(super) fn mean_s(&self) -> f64 {
        self.sum_s / f64::from(self.ok.max(1))
    }

    pub(super) fn mean_ln(&self) -> f64 {
        self.sum_ln / f64::from(self.ok.max(1))
    }

    /// The standard deviation of the logarithms of the times: 1 when times vary by a factor of e.
    pub(super) fn spread(&self) -> f64 {
        let mean = self.mean_ln();
        (self.sum_ln2 / f64::from(self.ok.max(1)) - mean * mean).max(0.0).sqrt()
    }

    /// Whether the refused requests are those that found more others in flight: then the receiver limits its
    /// concurrency and not its rate.
    pub(super) fn refuses_by_concurrency(&self) -> bool {
        let mean = |sum: u64, of: u32| sum as f64 / f64::from(of.max(1));
        let (ok, bad) = (mean(self.ok_in_flight, self.ok), mean(self.bad_in_flight, self.bad));
        self.ok >= 3 && self.bad >= 3 && bad >= ok + (0.1 * ok).max(1.0)
    }
}
