//! Receivers that the algorithm was not made with: other parameters, other kinds, and two kinds at once.

use crate::{
    receiver::{Ending, Gate, Receiver, Steps},
    rng::Rng,
    scenarios::{Scenario, bucket, fixed, in_one, in_three, sliding, stepped},
    world::Course,
};

/// A value that changes at random every so many seconds.
fn random(seed: u64, every_s: f64, (least, most): (f64, f64)) -> Steps {
    let mut rng = Rng::new(seed);
    Steps((0..30).map(|i| (f64::from(i) * every_s, least + (most - least) * rng.unit())).collect())
}

fn banning(seconds: f64) -> Gate {
    Gate::Banning { seconds, ban_s: 2.0, banned_until: 0.0, taken: std::collections::VecDeque::new() }
}

/// All receivers, each with its course.
pub fn all() -> Vec<Scenario> {
    let of = |per_s| Steps::always(per_s);
    let policer = |per_s: f64| Receiver::new(sliding(1.0), of(per_s));
    let erring = |errors, receiver| Receiver { errors, ..receiver };
    let day = Steps((0..120).map(|i| (f64::from(i) * 5.0, 45.0 + 35.0 * (f64::from(i) * 0.0524).sin())).collect());
    let mut all = vec![
        in_one(
            "concurrency limit 3 of 80 ms, 503",
            Receiver {
                work_s: of(0.08),
                refuses_with: Ending::Failed,
                ..Receiver::new(Gate::Concurrency, of(3.0 / 0.08))
            },
            300.0,
        ),
        in_one(
            "concurrency limit 8 of 300 ms, σ 0.6",
            Receiver { work_s: of(0.3), sigma: 0.6, ..Receiver::new(Gate::Concurrency, of(8.0 / 0.3)) },
            300.0,
        ),
        in_one("250 per calendar 10 s", Receiver::new(fixed(10.0), of(25.0)), 600.0),
        in_one("bucket 40, 5 deep", Receiver::new(bucket(0.125), of(40.0)), 300.0),
        in_three("bucket 30/12/60, 10 deep", Receiver::new(bucket(0.2), stepped(30.0, 12.0, 60.0))),
        in_three(
            "bucket 70/15/120, 50 deep, 503",
            Receiver { refuses_with: Ending::Failed, ..Receiver::new(bucket(0.5), stepped(70.0, 15.0, 120.0)) },
        ),
        in_three(
            "policer 60/30/45, 503",
            Receiver { refuses_with: Ending::Failed, ..Receiver::new(fixed(1.0), stepped(60.0, 30.0, 45.0)) },
        ),
        in_one("day and night, 10 to 80", Receiver::new(bucket(1.0), day), 600.0),
        in_one("policer 50, 2 % errors", erring(0.02, policer(50.0)), 300.0),
        in_one("policer 20, 2 % errors", erring(0.02, policer(20.0)), 300.0),
        in_one("policer 15, 3 % errors", erring(0.03, policer(15.0)), 300.0),
        in_one("policer 30, 5 % errors", erring(0.05, policer(30.0)), 300.0),
        in_one("policer 10, 5 % errors", erring(0.05, policer(10.0)), 300.0),
        in_one("policer 200, 5 % errors", erring(0.05, policer(200.0)), 300.0),
        in_one("bucket 50, 20 deep, 8 % errors", erring(0.08, Receiver::new(bucket(0.4), of(50.0))), 300.0),
        in_one(
            "policer 50, 5 % errors with 500",
            Receiver { errs_with: Ending::Broken, ..erring(0.05, policer(50.0)) },
            300.0,
        ),
        in_one(
            "policer 50, 5 % errors with 429",
            Receiver { errs_with: Ending::Refused, ..erring(0.05, policer(50.0)) },
            300.0,
        ),
        in_one("pool 50, 5 % errors", erring(0.05, Receiver::pool(of(50.0), 0.1, 0.5)), 300.0),
        in_three("policer 50/15/80, 5 % errors", erring(0.05, Receiver::new(sliding(1.0), stepped(50.0, 15.0, 80.0)))),
        Scenario {
            phases: vec![0.0, 100.0],
            settles: 30.0,
            ..in_one(
                "policer 50, 5 % errors from 100 s on",
                Receiver { errs_from: 100.0, ..erring(0.05, policer(50.0)) },
                300.0,
            )
        },
        in_one(
            "strangers take 30 to 70 %",
            Receiver { strangers: random(7, 20.0, (18.0, 42.0)), ..policer(60.0) },
            300.0,
        ),
        in_one(
            "strangers take 30 to 70 % of a bucket",
            Receiver { strangers: random(8, 15.0, (18.0, 42.0)), ..Receiver::new(bucket(1.0), of(60.0)) },
            300.0,
        ),
        Scenario {
            course: Course { hard_limit: 100, ..Course::of(300.0) },
            ..in_one(
                "no limit, times with a heavy tail",
                Receiver { work_s: of(0.15), sigma: 1.5, slow_share: 0.01, ..Receiver::new(Gate::Open, of(100.0)) },
                300.0,
            )
        },
        in_one("policer 50, a refusal bans for 2 s", Receiver::new(banning(1.0), of(50.0)), 300.0),
        in_one("300 per sliding 10 s, a refusal bans for 2 s", Receiver::new(banning(10.0), of(30.0)), 600.0),
    ];
    all.push(in_one("policer 3", policer(3.0), 600.0));
    all
}
