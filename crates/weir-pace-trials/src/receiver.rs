//! Receivers: what limits them, how long they take, and what they say. Each is built from parts.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use crate::rng::Rng;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Taken,
    /// 429.
    Refused,
    /// 503, or no answer within [`TIMEOUT_S`].
    Failed,
    /// 500: not taken, and no sign of load.
    Broken,
}

/// What the receiver does with a request.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    pub at: f64,
    pub ending: Ending,
    /// Seconds of a `Retry-After`.
    pub retry_after: Option<f64>,
    /// Remaining requests and the end of the window, of a `RateLimit` header.
    pub quota: Option<(u32, f64)>,
}

/// What answers requests.
pub trait Server {
    /// A request that leaves at `sent`; calls come in the order of time.
    fn take(&mut self, sent: f64, rng: &mut Rng) -> Reply;
    /// What may be sent per second without a refusal for want of capacity.
    fn offered(&self, t: f64) -> f64;
}

pub const TIMEOUT_S: f64 = 10.0;
/// One way through the network.
const NETWORK_S: f64 = 0.01;

/// A value that changes at given times; between them it stays. The first begins at zero.
#[derive(Debug, Clone)]
pub struct Steps(pub Vec<(f64, f64)>);

impl Steps {
    pub fn always(value: f64) -> Self {
        Self(vec![(0.0, value)])
    }

    pub fn at(&self, t: f64) -> f64 {
        self.0.iter().rev().find(|(from, _)| *from <= t).map_or(self.0[0].1, |(_, value)| *value)
    }
}

/// What decides whether a request is taken.
#[derive(Debug, Clone)]
pub enum Gate {
    Open,
    /// So many in each calendar window of so many seconds; the number is `rate · seconds`.
    Fixed {
        seconds: f64,
        used: (f64, u32),
    },
    /// So many in any window that ends now.
    Sliding {
        seconds: f64,
        taken: VecDeque<f64>,
    },
    /// As HAProxy's `http_req_rate`: the requests of this period and a part of the last one, refused ones too.
    Counting {
        seconds: f64,
        period: f64,
        counts: [u32; 2],
    },
    /// A token bucket of `depth` seconds of the rate (at least one token). A depth of 0 is a leaky bucket without room.
    Bucket {
        depth: f64,
        tokens: f64,
        at: f64,
    },
    /// At most so many at one time; the rate is this number divided by the time of an answer.
    Concurrency,
    /// As `Sliding`, and who is refused is refused everything for so many seconds more.
    Banning {
        seconds: f64,
        ban_s: f64,
        banned_until: f64,
        taken: VecDeque<f64>,
    },
}

/// Takes one of `most` in the window that ends now.
fn slides(taken: &mut VecDeque<f64>, seconds: f64, most: f64, t: f64) -> bool {
    while taken.front().is_some_and(|at| *at <= t - seconds) {
        taken.pop_front();
    }
    let is_taken = (taken.len() as f64) < most;
    if is_taken {
        taken.push_back(t);
    }
    is_taken
}

/// What a request waits for.
#[derive(Debug, Clone)]
pub enum Service {
    /// Nothing: any number at one time.
    Free,
    /// Nobody, but all share: with more at one time than `rate · mean time`, each takes longer in proportion.
    Shared,
    /// Workers with a queue; their number is `rate · mean time`.
    Pool { free_at: BinaryHeap<Reverse<Ordered>>, workers: usize, queue: usize },
}

/// A time in a heap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ordered(pub f64);

impl Eq for Ordered {}
impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Debug, Clone)]
pub struct Receiver {
    pub gate: Gate,
    pub service: Service,
    /// Requests per second that it takes.
    pub rate: Steps,
    /// The mean time of the work, and the spread of its logarithm.
    pub work_s: Steps,
    pub sigma: f64,
    /// The share of requests that take twenty times as long.
    pub slow_share: f64,
    /// Others' requests per second at the same gate.
    pub strangers: Steps,
    pub stranger_at: f64,
    /// The share of requests that fail for no reason, and of those that are always refused.
    pub errors: f64,
    pub never: f64,
    /// How the gate refuses, and how requests fail for no reason.
    pub refuses_with: Ending,
    pub errs_with: Ending,
    /// The errors begin at this time.
    pub errs_from: f64,
    pub says_retry_after: bool,
    /// What `Retry-After` says in place of the time until the gate takes one again.
    pub retry_after_s: Option<f64>,
    pub says_quota: bool,
    /// Answers 503 to everything between these times.
    pub outage: Option<(f64, f64)>,
    pub in_service: BinaryHeap<Reverse<Ordered>>,
}

impl Receiver {
    pub fn new(gate: Gate, rate: Steps) -> Self {
        Self {
            gate,
            service: Service::Free,
            rate,
            work_s: Steps::always(0.05),
            sigma: 0.1,
            slow_share: 0.0,
            strangers: Steps::always(0.0),
            stranger_at: 0.0,
            errors: 0.0,
            never: 0.0,
            refuses_with: Ending::Refused,
            errs_with: Ending::Failed,
            errs_from: 0.0,
            says_retry_after: false,
            retry_after_s: None,
            says_quota: false,
            outage: None,
            in_service: BinaryHeap::new(),
        }
    }

    pub fn pool(rate: Steps, work_s: f64, sigma: f64) -> Self {
        let service = Service::Pool { free_at: BinaryHeap::new(), workers: 0, queue: 100_000 };
        Self { service, work_s: Steps::always(work_s), sigma, ..Self::new(Gate::Open, rate) }
    }

    /// What it takes per second from us at `t`.
    pub fn capacity(&self, t: f64) -> f64 {
        if self.outage.is_some_and(|(from, to)| from <= t && t < to) {
            return 0.0;
        }
        let errors = if t < self.errs_from { 0.0 } else { self.errors };
        (self.rate.at(t) - self.strangers.at(t)) * (1.0 - errors) * (1.0 - self.never)
    }

    /// Requests of others come in at random and spend what the gate has.
    fn let_strangers_in(&mut self, t: f64, rng: &mut Rng) {
        let rate = self.strangers.at(t);
        if rate <= 0.0 {
            self.stranger_at = t;
            return;
        }
        while self.stranger_at < t {
            let at = self.stranger_at;
            self.admits(at);
            self.stranger_at += rng.exponential(1.0 / rate);
        }
    }

    fn admits(&mut self, t: f64) -> bool {
        let rate = self.rate.at(t);
        match &mut self.gate {
            Gate::Open => true,
            Gate::Fixed { seconds, used } => {
                let window = (t / *seconds).floor();
                if window > used.0 {
                    *used = (window, 0);
                }
                let is_taken = f64::from(used.1) < (rate * *seconds).round();
                used.1 += u32::from(is_taken);
                is_taken
            }
            Gate::Sliding { seconds, taken } => slides(taken, *seconds, (rate * *seconds).round(), t),
            Gate::Banning { seconds, ban_s, banned_until, taken } => {
                let is_taken = t >= *banned_until && slides(taken, *seconds, (rate * *seconds).round(), t);
                if !is_taken && t >= *banned_until {
                    *banned_until = t + *ban_s;
                }
                is_taken
            }
            Gate::Counting { seconds, period, counts } => {
                let now = t / *seconds;
                if now.floor() > *period {
                    let last = if now.floor() == *period + 1.0 { counts[0] } else { 0 };
                    (*period, *counts) = (now.floor(), [0, last]);
                }
                counts[0] += 1;
                f64::from(counts[0]) + f64::from(counts[1]) * (1.0 - now.fract()) <= (rate * *seconds).round()
            }
            Gate::Bucket { depth, tokens, at } => {
                *tokens = (*tokens + (t - *at) * rate).min((*depth * rate).max(1.0));
                *at = t;
                let is_taken = *tokens >= 1.0 - 1e-9;
                *tokens -= f64::from(u8::from(is_taken));
                is_taken
            }
            Gate::Concurrency => (self.in_service_at(t) as f64) < (rate * self.work_s.at(t)).round(),
        }
    }

    fn in_service_at(&mut self, t: f64) -> usize {
        while self.in_service.peek().is_some_and(|Reverse(Ordered(until))| *until <= t) {
            self.in_service.pop();
        }
        self.in_service.len()
    }

    /// How long until the gate takes one again.
    fn wait_s(&self, t: f64) -> f64 {
        match &self.gate {
            Gate::Fixed { seconds, .. } | Gate::Counting { seconds, .. } => seconds - t % seconds,
            Gate::Sliding { seconds, taken } => taken.front().map_or(0.0, |first| first + seconds - t),
            Gate::Bucket { tokens, .. } => (1.0 - tokens) / self.rate.at(t),
            Gate::Banning { banned_until, .. } => banned_until - t,
            Gate::Open | Gate::Concurrency => 1.0,
        }
    }

    fn quota(&self, t: f64) -> Option<(u32, f64)> {
        let Gate::Fixed { seconds, used } = &self.gate else { return None };
        let left = (self.rate.at(t) * seconds).round() as u32;
        Some((left.saturating_sub(used.1), (used.0 + 1.0) * seconds))
    }
}

impl Server for Receiver {
    fn offered(&self, t: f64) -> f64 {
        let is_out = self.outage.is_some_and(|(from, to)| from <= t && t < to);
        if is_out { 0.0 } else { (self.rate.at(t) - self.strangers.at(t)) / (1.0 - self.never) }
    }

    fn take(&mut self, sent: f64, rng: &mut Rng) -> Reply {
        let t = sent + NETWORK_S;
        self.let_strangers_in(t, rng);
        let quick = |ending| Reply { at: t + 0.002 + NETWORK_S, ending, retry_after: None, quota: None };
        if self.outage.is_some_and(|(from, to)| from <= t && t < to) {
            return quick(Ending::Failed);
        }
        if self.never > 0.0 && rng.chance(self.never) {
            return quick(Ending::Refused);
        }
        let quota = |this: &Self| if this.says_quota { this.quota(t) } else { None };
        if !self.admits(t) {
            let retry_after =
                self.says_retry_after.then(|| self.retry_after_s.unwrap_or(self.wait_s(t)).ceil().max(1.0));
            return Reply { retry_after, quota: quota(self), ..quick(self.refuses_with) };
        }
        if self.errors > 0.0 && t >= self.errs_from && rng.chance(self.errors) {
            return quick(self.errs_with);
        }
        let slow = if rng.chance(self.slow_share) { 20.0 } else { 1.0 };
        let mean = self.work_s.at(t);
        let work = slow * if self.sigma > 0.0 { rng.log_normal(mean, self.sigma) } else { mean };
        let mean = mean * (1.0 + 19.0 * self.slow_share);
        let is_shared = matches!(self.service, Service::Shared);
        let others = if is_shared { self.in_service_at(t) as f64 } else { 0.0 };
        let until = match &mut self.service {
            Service::Free => t + work,
            Service::Shared => t + work * ((others + 1.0) / (self.rate.at(t) * mean)).max(1.0),
            Service::Pool { free_at, workers, queue } => {
                let wanted = ((self.rate.at(t) * mean).round() as usize).max(1);
                while *workers < wanted {
                    free_at.push(Reverse(Ordered(t)));
                    *workers += 1;
                }
                while *workers > wanted && free_at.pop().is_some() {
                    *workers -= 1;
                }
                if free_at.len() > *queue {
                    return quick(Ending::Failed);
                }
                let from = free_at.pop().map_or(t, |Reverse(Ordered(at))| at.max(t));
                free_at.push(Reverse(Ordered(from + work)));
                from + work
            }
        };
        if is_shared || matches!(self.gate, Gate::Concurrency) {
            self.in_service.push(Reverse(Ordered(until)));
        }
        let at = until + NETWORK_S;
        if at - sent > TIMEOUT_S {
            return Reply { at: sent + TIMEOUT_S, ending: Ending::Failed, retry_after: None, quota: None };
        }
        Reply { at, ending: Ending::Taken, retry_after: None, quota: quota(self) }
    }
}
