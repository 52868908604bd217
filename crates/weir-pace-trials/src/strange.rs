//! A third set of receivers, written down before the algorithm was tried on them.

use std::collections::VecDeque;

use crate::{
    receiver::{Ending, Gate, Receiver, Service, Steps},
    rng::Rng,
    scenarios::{Scenario, bucket, fixed, in_one, in_three, sliding, stepped},
    world::Course,
};

/// A share of 100/s that others take: it changes by at most a tenth every five seconds, and stays within 20 to 80 %.
fn walking(seed: u64, seconds: u32) -> Steps {
    let (mut rng, mut share) = (Rng::new(seed), 0.5);
    let step = |at: u32| {
        share = (share + 0.2 * (rng.unit() - 0.5)).clamp(0.2, 0.8);
        (f64::from(at), 100.0 * share)
    };
    Steps((0..seconds).step_by(5).map(step).collect())
}

/// From 100 to 30 and back to 100 in ten minutes.
fn day_and_night() -> Steps {
    let at = |i: u32| (f64::from(i) * 5.0, 65.0 + 35.0 * (f64::from(i) / 120.0 * std::f64::consts::TAU).cos());
    Steps((0..120).map(at).collect())
}

/// All receivers, each with its course.
pub fn all() -> Vec<Scenario> {
    let of = Steps::always;
    let policer = |per_s: f64| Receiver::new(sliding(1.0), of(per_s));
    let erring = |errors, errs_with, receiver| Receiver { errors, errs_with, ..receiver };
    let unlimited = || Receiver::new(Gate::Open, of(100.0));
    let below_100 = |name, receiver| Scenario {
        course: Course { hard_limit: 100, ..Course::of(300.0) },
        ..in_one(name, receiver, 300.0)
    };
    let minutes = |name, receiver| Scenario { settles: 300.0, ..in_one(name, receiver, 1_800.0) };
    let mute = |seconds, receiver| Receiver { says_retry_after: true, retry_after_s: Some(seconds), ..receiver };
    let banning = Gate::Banning { seconds: 1.0, ban_s: 5.0, banned_until: 0.0, taken: VecDeque::new() };
    vec![
        in_one("bucket 20, 5 deep", Receiver::new(bucket(0.25), of(20.0)), 300.0),
        in_one("bucket 20, 100 deep", Receiver::new(bucket(5.0), of(20.0)), 300.0),
        minutes("300 per sliding minute", Receiver::new(sliding(60.0), of(5.0))),
        in_three(
            "concurrency limit 3 of 50, 400 and 100 ms",
            // What it takes falls with the time of its answers.
            Receiver {
                work_s: stepped(0.05, 0.4, 0.1),
                sigma: 0.3,
                ..Receiver::new(Gate::Concurrency, stepped(60.0, 7.5, 30.0))
            },
        ),
        in_three(
            "concurrency limit 5/2/10 of 100 ms",
            Receiver { work_s: of(0.1), ..Receiver::new(Gate::Concurrency, stepped(50.0, 20.0, 100.0)) },
        ),
        in_one("from 100 to 30 and back in ten minutes", Receiver::new(sliding(1.0), day_and_night()), 600.0),
        in_one("policer 40, 5 % of 500", erring(0.05, Ending::Broken, policer(40.0)), 300.0),
        in_one("policer 40, 5 % of 503", erring(0.05, Ending::Failed, policer(40.0)), 300.0),
        below_100("no limit, 5 % of 500", erring(0.05, Ending::Broken, unlimited())),
        below_100("no limit, 5 % of 503", erring(0.05, Ending::Failed, unlimited())),
        in_one("strangers walk between 20 and 80 %", Receiver { strangers: walking(11, 600), ..policer(100.0) }, 600.0),
        in_one(
            "strangers walk between 20 and 80 % of a bucket",
            Receiver { strangers: walking(12, 600), ..Receiver::new(bucket(1.0), of(100.0)) },
            600.0,
        ),
        in_one("policer 30, a refusal bans for 5 s", Receiver::new(banning, of(30.0)), 600.0),
        Scenario {
            judges_latency: true,
            ..in_three(
                "answers take longer with the load, no errors",
                Receiver {
                    service: Service::Shared,
                    work_s: of(0.1),
                    sigma: 0.3,
                    ..Receiver::new(Gate::Open, stepped(80.0, 30.0, 120.0))
                },
            )
        },
        in_one("policer 40, Retry-After of 20 s", mute(20.0, Receiver::new(fixed(1.0), of(40.0))), 600.0),
        minutes("120 per minute, Retry-After of 1 s", mute(1.0, Receiver::new(fixed(60.0), of(2.0)))),
        Scenario {
            course: Course { late_s: 0.005, ..Course::of(360.0) },
            ..in_three(
                "leaky bucket 50/10/100, sends 5 ms late",
                Receiver::new(bucket(0.0), stepped(50.0, 10.0, 100.0)),
            )
        },
    ]
}
