//! Tries other limits on the past: when would these deliveries have been sent?
//!
//! The real [`Limiter`] runs over recorded arrivals, and requests take as long as they did. Of the deliveries that are
//! due, the one that has been due longest goes first, as in the queue. A retry keeps its recorded delay, counted from
//! the end of the simulated attempt before it. What is not modelled: what the receiver would have done under another
//! load, and what a run of the scheduler adds, at most a few milliseconds each.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use crate::{
    Limiter, RateLimits, Timestamp,
    audit::{AuditReport, Auditor, LatencyPercentiles},
};

mod search;

pub use search::smallest_limit;

/// A simulation takes so many deliveries at most.
pub const MAX_DELIVERIES: usize = 1_000_000;
/// And so many attempts.
pub const MAX_ATTEMPTS: usize = 2_000_000;
/// The points of a series.
const POINTS: usize = 120;

/// One recorded attempt. Small, because there may be [`MAX_ATTEMPTS`] of them: 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastAttempt {
    /// From when it was due until it began.
    pub waited_ms: u32,
    pub duration_ms: u32,
    /// If another attempt follows: from the end of this one until the next was due.
    pub retried_after_ms: u32,
}

/// How a recorded delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Delivered,
    /// Its last attempt failed, and was the last.
    Failed,
    /// It waits, or expired while it waited. Its last attempt was never made: it stands for one that succeeds.
    Unsent,
}

/// When a recorded delivery was due, until when it may be sent, and how it ended: 24 bytes.
#[derive(Debug, Clone, Copy)]
struct PastDelivery {
    due_at: Timestamp,
    expires_at: Timestamp,
    first_attempt: u32,
    attempts: u16,
    fate: Fate,
}

/// What happened: deliveries and their attempts, in any order.
#[derive(Debug, Clone, Default)]
pub struct Past {
    deliveries: Vec<PastDelivery>,
    attempts: Vec<PastAttempt>,
    /// The deliveries with a cost other than 1.
    costs: Vec<(u32, u32)>,
}

/// What the recorded deliveries really did.
struct Recorded {
    latency_ms: LatencyPercentiles,
    waits: Waits,
}

impl Past {
    /// Adds a delivery that became due at the later one of its creation and its `deliver_at`. It has an attempt. The newest
    /// delivery comes first.
    pub fn push(&mut self, due_at: Timestamp, expires_at: Option<Timestamp>, fate: Fate, attempts: &[PastAttempt]) {
        self.deliveries.push(PastDelivery {
            due_at,
            expires_at: expires_at.unwrap_or(Timestamp::MAX),
            first_attempt: self.attempts.len() as u32,
            attempts: attempts.len() as u16,
            fate,
        });
        self.attempts.extend_from_slice(attempts);
    }

    /// Says what the delivery that was added last costs.
    pub fn set_cost(&mut self, cost: u32) {
        if let Some(last) = self.deliveries.len().checked_sub(1).filter(|_| cost != 1) {
            self.costs.push((last as u32, cost));
        }
    }

    fn cost_of(&self, delivery: u32) -> u32 {
        let found = self.costs.binary_search_by_key(&delivery, |(delivery, _)| *delivery);
        found.map_or(1, |index| self.costs[index].1)
    }

    pub fn len(&self) -> usize {
        self.deliveries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    /// Whether a simulation takes no more than this, if each delivery counts `scale` times.
    pub fn is_full(&self, scale: f64) -> bool {
        let scale = scale.max(1.0);
        self.len() as f64 * scale >= MAX_DELIVERIES as f64 || self.attempts.len() as f64 * scale >= MAX_ATTEMPTS as f64
    }

    /// The duration of the attempts that were never made.
    pub fn assume_duration(&mut self, duration_ms: u32) {
        for delivery in self.deliveries.iter().filter(|delivery| delivery.fate == Fate::Unsent) {
            let beyond = delivery.first_attempt as usize + usize::from(delivery.attempts);
            if let Some(last) = self.attempts[..beyond].last_mut() {
                last.duration_ms = duration_ms;
            }
        }
    }

    fn attempts_of(&self, delivery: &PastDelivery) -> &[PastAttempt] {
        &self.attempts[delivery.first_attempt as usize..][..delivery.attempts.into()]
    }

    fn recorded(&self) -> Recorded {
        let mut auditor = Auditor::new(Vec::new(), Timestamp::MIN, Timestamp::MAX);
        let mut waits = Waits::default();
        for delivery in &self.deliveries {
            let mut at = delivery.due_at;
            for attempt in self.attempts_of(delivery) {
                waits.due.push(at);
                at = at + ms(attempt.waited_ms);
                waits.gone.push(at);
                at = at + ms(attempt.duration_ms) + ms(attempt.retried_after_ms);
            }
            if delivery.fate == Fate::Delivered {
                auditor.delivered(at.since(delivery.due_at));
            }
        }
        Recorded { latency_ms: auditor.report().delivery_latency_ms, waits: waits.sorted() }
    }
}

fn ms(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

/// When attempts became due, and when they were sent or given up.
#[derive(Default)]
struct Waits {
    due: Vec<Timestamp>,
    gone: Vec<Timestamp>,
}

impl Waits {
    fn sorted(mut self) -> Self {
        self.due.sort_unstable();
        self.gone.sort_unstable();
        self
    }

    fn backlog(&self, at: Timestamp) -> u64 {
        before(&self.due, at).saturating_sub(before(&self.gone, at))
    }
}

/// How many of the sorted times are not after this one.
fn before(times: &[Timestamp], at: Timestamp) -> u64 {
    times.partition_point(|time| *time <= at) as u64
}

/// What is tried.
#[derive(Debug, Clone)]
pub struct Trial {
    pub limits: RateLimits,
    pub max_in_flight: u32,
    /// How many times the traffic; deliveries are repeated or left out evenly.
    pub scale: f64,
    /// Whether attempts fail again. Otherwise each delivery is sent once, and takes as long as its last attempt.
    pub repeats_failures: bool,
    /// Nothing is sent before, also if it was due before.
    pub from: Timestamp,
    pub to: Timestamp,
}

/// Whether the limit is enough for the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// The backlog is empty at the end, or becomes smaller.
    Drains,
    /// The backlog grows until the end.
    Grows,
}

/// One step of a series: it covers the time from the point before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub at: Timestamp,
    pub due: u64,
    pub sent: u64,
    /// Deliveries that are due at `at` and have not been sent.
    pub backlog: u64,
    /// The same as it was recorded.
    pub recorded_backlog: u64,
}

/// What would have happened.
#[derive(Debug, Clone)]
pub struct Simulated {
    pub deliveries: u64,
    pub would_expire: u64,
    /// The largest backlog, and when it was reached first.
    pub backlog_max: (Timestamp, u64),
    /// At the end of the range.
    pub backlog_end: u64,
    /// When the last delivery was sent; `None` if none was, or beyond the end of time.
    pub drained_at: Option<Timestamp>,
    pub verdict: Verdict,
    pub series: Vec<Point>,
    /// What the audit says about the simulated sends: latencies, windows, and the use of each limit.
    pub audit: AuditReport,
    /// What the deliveries really took, from when they were due to the end of the last answer.
    pub recorded_latency_ms: LatencyPercentiles,
}

/// What is known of a run while it goes.
trait Observer {
    fn due(&mut self, _at: Timestamp) {}
    fn sent(&mut self, _at: Timestamp, _cost: u32) {}
    fn expired(&mut self, _at: Timestamp) {}
    /// Returns whether the run is to go on.
    fn delivered(&mut self, _latency: Duration) -> bool {
        true
    }
}

/// A delivery on its way: which one, its next attempt, and when it became due for this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due_at: Timestamp,
    serial: u64,
    delivery: u32,
    attempt: u32,
}

/// The deliveries in the order in which they become due. The past is read backwards, so of those that became due at one
/// instant the last one was first.
fn in_order(past: &Past) -> Vec<u32> {
    let mut order: Vec<u32> = (0..past.deliveries.len() as u32).rev().collect();
    order.sort_by_key(|index| past.deliveries[*index as usize].due_at);
    order
}

/// Plays the past once.
fn run(past: &Past, order: &[u32], trial: &Trial, limits: &RateLimits, observer: &mut impl Observer) {
    let mut limiter = Limiter::new(limits);
    limiter.hold(trial.from);
    let most = trial.max_in_flight.max(1) as usize;
    let mut answers: BinaryHeap<Reverse<(Timestamp, Waiting)>> = BinaryHeap::new();
    let mut retries: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
    let (mut owed, mut serial) = (0.0, 0);
    let mut arrivals = order.iter().flat_map(|&delivery| {
        owed += trial.scale;
        let copies = owed as u32;
        owed -= f64::from(copies);
        std::iter::repeat_n(delivery, copies as usize)
    });
    let attempts_of = |delivery: u32| {
        let all = past.attempts_of(&past.deliveries[delivery as usize]);
        if trial.repeats_failures { all } else { &all[all.len().saturating_sub(1)..] }
    };
    let mut arrive = |serial: &mut u64| {
        let delivery = arrivals.next()?;
        *serial += 1;
        Some(Waiting { due_at: past.deliveries[delivery as usize].due_at, serial: *serial, delivery, attempt: 0 })
    };
    let mut arrival = arrive(&mut serial);
    loop {
        let retry = retries.peek().map(|Reverse(retry)| *retry);
        let next = [arrival, retry].into_iter().flatten().min();
        // What is answered before the next send may start can become due before it.
        let start = next.map(|next| limiter.next_start_of(past.cost_of(next.delivery), next.due_at));
        let is_full = answers.len() >= most;
        let answered = answers.peek().is_some_and(|Reverse((at, _))| is_full || start.is_none_or(|start| *at <= start));
        if answered && let Some(Reverse((at, done))) = answers.pop() {
            let attempts = attempts_of(done.delivery);
            let PastDelivery { due_at, fate, .. } = past.deliveries[done.delivery as usize];
            let attempt = done.attempt + 1;
            if (attempt as usize) < attempts.len() {
                let delay = ms(attempts[done.attempt as usize].retried_after_ms);
                retries.push(Reverse(Waiting { due_at: at + delay, attempt, ..done }));
            } else if (fate != Fate::Failed || !trial.repeats_failures) && !observer.delivered(at.since(due_at)) {
                return;
            }
            if is_full {
                // The place is free only now.
                limiter.hold(at);
            }
            continue;
        }
        let (Some(next), Some(start)) = (next, start) else { return };
        if Some(next) == retry {
            retries.pop();
        } else {
            arrival = arrive(&mut serial);
        }
        observer.due(next.due_at);
        let (expires_at, cost) = (past.deliveries[next.delivery as usize].expires_at, past.cost_of(next.delivery));
        if limits.too_low_for(cost).is_some() {
            observer.expired(next.due_at);
            continue;
        }
        if expires_at <= start && expires_at < Timestamp::MAX {
            observer.expired(expires_at.max(next.due_at));
            continue;
        }
        let start = limiter.take_of(cost, start).start;
        observer.sent(start, cost);
        let duration = attempts_of(next.delivery).get(next.attempt as usize).map_or(0, |attempt| attempt.duration_ms);
        answers.push(Reverse((start + ms(duration), next)));
    }
}

/// Collects what a report needs.
struct Recorder {
    auditor: Auditor,
    waits: Waits,
    sent: Vec<Timestamp>,
    expired: u64,
}

impl Observer for Recorder {
    fn due(&mut self, at: Timestamp) {
        self.waits.due.push(at);
    }

    fn sent(&mut self, at: Timestamp, cost: u32) {
        self.auditor.send_of(cost, at);
        self.sent.push(at);
        self.waits.gone.push(at);
    }

    fn expired(&mut self, at: Timestamp) {
        self.expired += 1;
        self.waits.gone.push(at);
    }

    fn delivered(&mut self, latency: Duration) -> bool {
        self.auditor.delivered(latency);
        true
    }
}

/// Plays the past under the limits of the trial.
pub fn simulate(past: &Past, trial: &Trial) -> Simulated {
    let auditor = Auditor::new(vec![(Timestamp::MIN, trial.limits.clone())], trial.from, Timestamp::MAX);
    let mut seen = Recorder { auditor, waits: Waits::default(), sent: Vec::new(), expired: 0 };
    run(past, &in_order(past), trial, &trial.limits, &mut seen);
    let Recorder { auditor, waits, sent, expired } = seen;
    let (waits, recorded) = (waits.sorted(), past.recorded());
    // The backlog is largest at an instant at which something becomes due.
    let (mut left, mut backlog_max) = (0, (trial.from, 0));
    for (i, at) in waits.due.iter().enumerate() {
        while waits.gone.get(left).is_some_and(|gone| gone < at) {
            left += 1;
        }
        let waiting = (i + 1 - left) as u64;
        if waiting > backlog_max.1 {
            backlog_max = (*at, waiting);
        }
    }
    let step = trial.to.since(trial.from) / POINTS as u32;
    let series: Vec<Point> = (1..=POINTS as u32)
        .map(|i| {
            let (from, at) = (trial.from + step * (i - 1), trial.from + step * i);
            let within = |times: &[Timestamp]| before(times, at) - before(times, from);
            Point {
                at,
                due: within(&waits.due),
                sent: within(&sent),
                backlog: waits.backlog(at),
                recorded_backlog: recorded.waits.backlog(at),
            }
        })
        .collect();
    let mean = |points: &[Point]| points.iter().map(|point| point.backlog).sum::<u64>() as f64 / points.len() as f64;
    let backlog_end = waits.backlog(trial.to);
    let (third, last) = series[POINTS / 2..].split_at(POINTS / 4);
    let grows = backlog_end > 1 && mean(last) > 1.02 * mean(third) + 1.0;
    Simulated {
        deliveries: (past.len() as f64 * trial.scale) as u64,
        would_expire: expired,
        backlog_max,
        backlog_end,
        drained_at: sent.last().copied().filter(|at| *at < Timestamp::MAX),
        verdict: if grows { Verdict::Grows } else { Verdict::Drains },
        series,
        audit: auditor.report(),
        recorded_latency_ms: recorded.latency_ms,
    }
}

#[cfg(test)]
mod tests;
