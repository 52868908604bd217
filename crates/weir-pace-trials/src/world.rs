//! Virtual time: a backlog, two workers whose reports come late, one receiver, the hard limit, and a pacer.

use std::{cmp::Reverse, collections::BinaryHeap};

use weir_core::{Limiter, Period, RateLimit, RateLimits, Timestamp};

use crate::{
    receiver::{Ending, Ordered, Reply, Server},
    rng::Rng,
};

/// Beyond this no pacer may go; the trial's hard limit.
pub const HARD_LIMIT: u32 = 1_000;
pub const MAX_IN_FLIGHT: u32 = 400;
const WORKERS: usize = 2;
/// A worker reports the answers of so much time at once.
const REPORT_S: f64 = 0.25;
/// Engine time when the trial begins.
pub const EPOCH_S: i64 = 1_800_000_000;

/// An answer as the queue learns of it.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub sent_at: f64,
    pub at: f64,
    /// What the pacer said at the send.
    pub stamp: u32,
    /// How many were in flight with it.
    pub in_flight: u32,
    pub ending: Ending,
    pub retry_after: Option<f64>,
    pub quota: Option<(u32, f64)>,
}

/// What decides when a send may start.
pub trait Pacer {
    /// The earliest start of the next send. `None`: not before an answer or a report comes.
    fn next_start(&mut self, now: f64, in_flight: u32) -> Option<f64>;
    /// A send starts; the stamp comes back with its answer.
    fn sent(&mut self, now: f64, in_flight: u32) -> u32;
    /// What one worker has seen since its last report.
    fn learn(&mut self, now: f64, answers: &[Answer]);
    /// The state is lost.
    fn lose(&mut self, _now: f64) {}
    /// Knows the receiver: only the oracle does.
    fn peek(&mut self, _server: &dyn Server, _now: f64) {}
}

/// What happened to one request.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    pub at: f64,
    pub ended_at: f64,
    pub ending: Ending,
    pub in_flight: u32,
}

enum Event {
    /// A request leaves, to a slot that was granted with this stamp as the n-th request in flight.
    Leave(u32, u32),
    Answered(Answer, usize),
    Report(usize),
    Wake,
    Lose,
}

struct Queued(f64, u64, Event);

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (Ordered(self.0), self.1).cmp(&(Ordered(other.0), other.1))
    }
}

/// How a trial goes, apart from its receiver.
#[derive(Debug, Clone)]
pub struct Course {
    pub seconds: f64,
    /// Deliveries per second that become due. `None`: a backlog without end.
    pub arrivals: Option<f64>,
    pub loses_state_at: Option<f64>,
    pub max_in_flight: u32,
    pub report_s: f64,
    /// A request leaves up to so much later than its slot begins: what a timer and a busy machine add.
    pub late_s: f64,
    /// Requests in any second.
    pub hard_limit: u32,
    /// Stop after so many sends.
    pub most: usize,
}

impl Course {
    pub fn of(seconds: f64) -> Self {
        let (arrivals, loses_state_at) = (None, None);
        Self {
            seconds,
            arrivals,
            loses_state_at,
            max_in_flight: MAX_IN_FLIGHT,
            report_s: REPORT_S,
            late_s: 0.0,
            hard_limit: HARD_LIMIT,
            most: usize::MAX,
        }
    }
}

pub fn timestamp(t: f64) -> Timestamp {
    Timestamp::from_nanos(EPOCH_S * 1_000_000_000 + (t * 1e9) as i64)
}

pub fn trial_seconds(at: Timestamp) -> f64 {
    (at.as_nanos() - EPOCH_S * 1_000_000_000) as f64 / 1e9
}

/// Plays the trial and returns every request in the order of its start.
pub fn play(receiver: &mut dyn Server, pacer: &mut dyn Pacer, course: &Course, seed: u64) -> Vec<Sent> {
    let mut rng = Rng::new(seed);
    let limit = RateLimit::new(course.hard_limit, Period::SECOND).into_iter().collect();
    let mut limiter = Limiter::new(&RateLimits::new(limit).unwrap_or_default());
    let mut events = BinaryHeap::new();
    let mut serial = 0_u64;
    let mut push = |events: &mut BinaryHeap<Reverse<Queued>>, at: f64, event| {
        serial += 1;
        events.push(Reverse(Queued(at, serial, event)));
    };
    let mut reports: [Vec<Answer>; WORKERS] = Default::default();
    for worker in 0..WORKERS {
        push(&mut events, course.report_s * rng.unit(), Event::Report(worker));
    }
    if let Some(at) = course.loses_state_at {
        push(&mut events, at, Event::Lose);
    }
    push(&mut events, 0.0, Event::Wake);
    let (mut in_flight, mut granted, mut sent) = (0_u32, 0, Vec::<Sent>::new());
    let mut next_wake = f64::INFINITY;
    let leave = |receiver: &mut dyn Server, rng: &mut Rng, now, (stamp, in_flight), sent: &mut Vec<Sent>| {
        let Reply { at, ending, retry_after, quota } = receiver.take(now, rng);
        let answer = Answer { sent_at: now, at, stamp, in_flight, ending, retry_after, quota };
        let worker = sent.len() % WORKERS;
        sent.push(Sent { at: now, ended_at: at, ending, in_flight });
        (at, Event::Answered(answer, worker))
    };
    while let Some(Reverse(Queued(now, _, event))) = events.pop() {
        if now > course.seconds {
            break;
        }
        match event {
            Event::Leave(stamp, in_flight) => {
                let (at, event) = leave(receiver, &mut rng, now, (stamp, in_flight), &mut sent);
                push(&mut events, at, event);
            }
            Event::Answered(answer, worker) => {
                in_flight -= 1;
                // The queue holds a destination at the settle, as it does without an adaptive rate.
                if let Some(wait) = answer.retry_after {
                    limiter.hold(timestamp(now + wait));
                }
                reports[worker].push(answer);
                if course.report_s == 0.0 {
                    pacer.learn(now, &std::mem::take(&mut reports[worker]));
                }
            }
            Event::Report(worker) => {
                pacer.peek(receiver, now);
                pacer.learn(now, &std::mem::take(&mut reports[worker]));
                push(&mut events, now + course.report_s.max(0.05), Event::Report(worker));
            }
            Event::Wake => next_wake = f64::INFINITY,
            Event::Lose => pacer.lose(now),
        }
        // Send all that may start now, and wake when the next one may.
        while granted < course.most {
            let Some(paced) = pacer.next_start(now, in_flight) else { break };
            if in_flight >= course.max_in_flight {
                break;
            }
            let due = course.arrivals.map_or(0.0, |rate| granted as f64 / rate);
            let start = trial_seconds(limiter.next_start(timestamp(now))).max(paced).max(due).max(now);
            if start > now + 1e-6 {
                if start < next_wake - 1e-7 {
                    push(&mut events, start, Event::Wake);
                    next_wake = start;
                }
                break;
            }
            limiter.take(timestamp(now));
            in_flight += 1;
            granted += 1;
            let stamp = pacer.sent(now, in_flight);
            // The trials without lateness draw no number for it.
            let (at, event) = if course.late_s > 0.0 {
                (now + course.late_s * rng.unit(), Event::Leave(stamp, in_flight))
            } else {
                leave(receiver, &mut rng, now, (stamp, in_flight), &mut sent)
            };
            push(&mut events, at, event);
        }
    }
    sent
}
