//! What workers report of the answers that they saw: sums only, so reports of several workers add up exactly.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    outcome::{Failure, Refusal, SendResult},
};

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

impl Verdict {
    /// `None`: nothing was sent because the address is not allowed, which says nothing about the receiver.
    pub fn of(result: &SendResult) -> Option<Self> {
        match result {
            SendResult::Failure(Failure::Forbidden) => None,
            SendResult::Failure(_) | SendResult::Answer { status: 502 | 504, .. } => Some(Self::Failed),
            _ if result.refusal() == Some(Refusal::TooMany) => Some(Self::Throttled),
            SendResult::Answer { status: 503, .. } => Some(Self::Failed),
            SendResult::Answer { .. } => Some(Self::Ok),
        }
    }
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
    /// The sum of the squares of these numbers, for their variance.
    #[serde(default)]
    pub ok_in_flight2: u64,
    pub bad_in_flight: u64,
    pub least_bad_in_flight: u32,
    /// Until when a `Retry-After` holds the destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Timestamp>,
    /// What the newest `RateLimit` header leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
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
                self.ok_in_flight2 += u64::from(in_flight) * u64::from(in_flight);
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

    /// The report of one answer that ended at `now`, to a slot that was granted by `generation` as the n-th request in
    /// flight. `held_until`: the hold that the answer asks for.
    pub fn of(
        result: &SendResult,
        took: Duration,
        held_until: Option<Timestamp>,
        (generation, in_flight): (u32, u32),
        now: Timestamp,
    ) -> Option<Self> {
        let left = match result {
            SendResult::Answer { hints, .. } => hints.left,
            SendResult::Failure(_) => None,
        };
        let quota = left.map(|(remaining, time)| Quota { remaining, reset: now + time });
        let verdict = Verdict::of(result)?;
        // A quota that is used up is announced with the last request that is taken: that is no refusal.
        let held_until = held_until.filter(|_| verdict != Verdict::Ok);
        let mut sample = Self { generation, held_until, quota, ..Self::default() };
        sample.add(verdict, took.as_secs_f64(), in_flight);
        Some(sample)
    }

    /// Whether the pace may have to fall at once.
    pub fn is_urgent(&self) -> bool {
        self.bad > 0
    }

    /// Adds what another worker or a later answer reports.
    pub fn merge(&mut self, other: &Self) {
        self.least_bad_in_flight = match (self.bad, other.bad) {
            (_, 0) => self.least_bad_in_flight,
            (0, _) => other.least_bad_in_flight,
            _ => self.least_bad_in_flight.min(other.least_bad_in_flight),
        };
        self.held_until = self.held_until.max(other.held_until);
        self.quota = other.quota.or(self.quota);
        self.ok += other.ok;
        self.bad += other.bad;
        self.throttled += other.throttled;
        self.sum_s += other.sum_s;
        self.sum_ln += other.sum_ln;
        self.sum_ln2 += other.sum_ln2;
        self.ok_in_flight += other.ok_in_flight;
        self.ok_in_flight2 += other.ok_in_flight2;
        self.bad_in_flight += other.bad_in_flight;
    }

    pub(super) fn answers(&self) -> u32 {
        self.ok + self.bad
    }

    /// Only what was taken and what was answered 429.
    pub(super) fn without_failures(&self) -> Self {
        // The sum has no parts, so each refused request has found the mean.
        let bad_in_flight = self.bad_in_flight * u64::from(self.throttled) / u64::from(self.bad.max(1));
        Self { bad: self.throttled, bad_in_flight, ..*self }
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
