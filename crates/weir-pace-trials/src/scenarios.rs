//! The receivers of the trials.

use std::collections::VecDeque;

use crate::{
    receiver::{Gate, Receiver, Service, Steps},
    world::Course,
};

pub struct Scenario {
    pub name: &'static str,
    pub receiver: Receiver,
    pub course: Course,
    pub phases: Vec<f64>,
    /// How long after the beginning of a phase its figures count.
    pub settles: f64,
    /// Whether the times of answers depend on the pacer.
    pub judges_latency: bool,
}

pub(crate) fn bucket(depth: f64) -> Gate {
    Gate::Bucket { depth, tokens: 0.0, at: 0.0 }
}

pub(crate) fn fixed(seconds: f64) -> Gate {
    Gate::Fixed { seconds, used: (-1.0, 0) }
}

pub(crate) fn sliding(seconds: f64) -> Gate {
    Gate::Sliding { seconds, taken: VecDeque::new() }
}

pub(crate) fn counting() -> Gate {
    Gate::Counting { seconds: 1.0, period: -1.0, counts: [0; 2] }
}

pub(crate) fn stepped(first: f64, second: f64, third: f64) -> Steps {
    Steps(vec![(0.0, first), (120.0, second), (240.0, third)])
}

const THREE: [f64; 3] = [0.0, 120.0, 240.0];

pub(crate) fn in_three(name: &'static str, receiver: Receiver) -> Scenario {
    let judges_latency = matches!(receiver.service, Service::Pool { .. });
    Scenario { name, receiver, course: Course::of(360.0), phases: THREE.to_vec(), settles: 45.0, judges_latency }
}

pub(crate) fn in_one(name: &'static str, receiver: Receiver, seconds: f64) -> Scenario {
    Scenario { name, receiver, course: Course::of(seconds), phases: vec![0.0], settles: 60.0, judges_latency: false }
}

/// All receivers, each with its course.
pub fn all() -> Vec<Scenario> {
    let hundred = || Steps::always(100.0);
    let steps = || stepped(100.0, 20.0, 200.0);
    let pool_steps = || stepped(96.0, 29.0, 191.0);
    let day = || Steps((0..60).map(|i| (f64::from(i) * 10.0, 80.0 + 60.0 * (f64::from(i) * 0.21).sin())).collect());
    let mut losing =
        in_one("policer, the queue loses its state at 150 s", Receiver::new(sliding(1.0), hundred()), 300.0);
    losing.course.loses_state_at = Some(150.0);
    let minute = |name, receiver| Scenario { settles: 300.0, ..in_one(name, receiver, 1_800.0) };
    let mut retry_minute = Receiver::new(fixed(60.0), Steps::always(1.0));
    retry_minute.says_retry_after = true;
    let minutes = vec![
        minute("60 per calendar minute", Receiver::new(fixed(60.0), Steps::always(1.0))),
        minute("600 per sliding minute", Receiver::new(sliding(60.0), Steps::always(10.0))),
        minute("60 per minute, Retry-After", retry_minute),
        minute("2 per minute", Receiver::new(fixed(60.0), Steps::always(1.0 / 30.0))),
    ];
    let mut all = vec![
        in_three("policer 100/20/200 per calendar second", Receiver::new(fixed(1.0), steps())),
        in_three("policer 100/20/200 per sliding second", Receiver::new(sliding(1.0), steps())),
        in_three("bucket 100/20/200, 2 s deep", Receiver::new(bucket(2.0), steps())),
        in_one("bucket 100, 20 s deep", Receiver::new(bucket(20.0), hundred()), 300.0),
        in_three("leaky bucket 100/20/200", Receiver::new(bucket(0.0), steps())),
        in_one("policer that counts refused requests", Receiver::new(counting(), hundred()), 300.0),
        in_three("pool 96/29/191, σ 0.1", Receiver::pool(pool_steps(), 0.1, 0.1)),
        in_three("pool 96/29/191, σ 1", Receiver::pool(pool_steps(), 0.1, 1.0)),
        in_three("pool 96/29/191, bimodal", Receiver { slow_share: 0.05, ..Receiver::pool(pool_steps(), 0.05, 0.3) }),
        in_three(
            "concurrency limit 10/4/20 of 100 ms",
            Receiver { work_s: Steps::always(0.1), ..Receiver::new(Gate::Concurrency, stepped(100.0, 40.0, 200.0)) },
        ),
        in_three(
            "five times slower for everybody",
            Receiver { work_s: stepped(0.1, 0.5, 0.1), ..Receiver::pool(stepped(100.0, 100.0, 100.0), 0.1, 0.3) },
        ),
        in_one("policer, 5 % errors", Receiver { errors: 0.05, ..Receiver::new(sliding(1.0), hundred()) }, 300.0),
        in_one(
            "one kind (20 %) always refused",
            Receiver { never: 0.2, ..Receiver::new(sliding(1.0), hundred()) },
            300.0,
        ),
        in_one(
            "strangers spend half",
            Receiver { strangers: Steps::always(50.0), ..Receiver::new(sliding(1.0), hundred()) },
            300.0,
        ),
        in_one(
            "strangers come and go",
            Receiver {
                strangers: Steps(vec![(0.0, 0.0), (100.0, 60.0), (200.0, 10.0)]),
                ..Receiver::new(bucket(1.0), hundred())
            },
            300.0,
        ),
        in_one("day and night", Receiver::new(sliding(1.0), day()), 600.0),
        in_one(
            "policer, whole-second Retry-After",
            Receiver { says_retry_after: true, ..Receiver::new(fixed(1.0), hundred()) },
            300.0,
        ),
        in_one(
            "600 per calendar 10 s, RateLimit headers",
            Receiver { says_quota: true, ..Receiver::new(fixed(10.0), Steps::always(60.0)) },
            300.0,
        ),
        Scenario {
            phases: vec![0.0, 100.0, 160.0],
            ..in_one(
                "outage of a minute, then a backlog",
                Receiver { outage: Some((100.0, 160.0)), ..Receiver::pool(hundred(), 0.1, 0.3) },
                300.0,
            )
        },
        losing,
    ];
    all.extend(minutes);
    all
}
