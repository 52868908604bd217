//! The receivers that `weir-load-tests adaptive --real` plays on sockets, with the figures that are wanted of each.
//!
//! They are those of [`scenarios`](crate::scenarios) at half of the rates and in four minutes, because all are played at
//! once. The same receivers are played in virtual time too, so a difference shows what the simulation leaves out.

use crate::{
    judge::Figures,
    opponents::ALL,
    receiver::{Gate, Receiver, Service, Steps},
    scenarios::{Scenario, bucket, counting, fixed, sliding},
    table,
    world::Course,
};

/// When the capacity falls, when it rises, and when the queue loses its state.
pub const FALLS_S: f64 = 60.0;
pub const RISES_S: f64 = 120.0;
pub const LOSES_S: f64 = 240.0;
pub const END_S: f64 = 275.0;
/// So long after the beginning of a phase its figures count.
const SETTLES_S: f64 = 45.0;

/// The figures that are wanted in the phases that are judged. An infinite time is not judged.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub goodput: f64,
    pub refused: f64,
    /// Until 90 % of the capacity is used, at the beginning, after a fall and after a rise.
    pub to_90_s: [f64; 3],
    /// Until less than a tenth is refused.
    pub flooding_s: f64,
    pub p99_s: f64,
}

/// A receiver with its course.
pub struct Class {
    pub scenario: Scenario,
    pub wanted: Wanted,
    /// The phases before this one are shown only: a window of a minute is known after two of them.
    pub judged_from: usize,
}

/// How late requests leave for the receiver that minds. With tokio's timer it was up to 2 ms: a leaky bucket without room
/// was then used to 0.8, on sockets and here.
const LATE_S: f64 = 0.0003;

const ANY: f64 = f64::INFINITY;
const STEPPED: [f64; 3] = [5.0, ANY, 45.0];

impl Class {
    fn new(name: &'static str, receiver: Receiver, phases: &[f64], goodput: f64, refused: f64) -> Self {
        let judges_latency = matches!(receiver.service, Service::Pool { .. });
        let course = Course { hard_limit: 150, ..Course::of(LOSES_S) };
        let scenario = Scenario { name, receiver, course, phases: phases.to_vec(), settles: SETTLES_S, judges_latency };
        let wanted = Wanted { goodput, refused, to_90_s: [ANY; 3], flooding_s: ANY, p99_s: ANY };
        Self { scenario, wanted, judged_from: 0 }
    }

    /// The capacity falls and rises.
    fn stepped(name: &'static str, receiver: Receiver, goodput: f64, refused: f64) -> Self {
        Self::new(name, receiver, &[0.0, FALLS_S, RISES_S], goodput, refused)
    }

    fn steady(name: &'static str, receiver: Receiver, goodput: f64, refused: f64) -> Self {
        Self::new(name, receiver, &[0.0], goodput, refused)
    }

    /// Judged after two minutes.
    fn by_the_minute(name: &'static str, gate: Gate, per_s: f64) -> Self {
        let new = Self::new(name, Receiver::new(gate, Steps::always(per_s)), &[0.0, RISES_S], 0.8, 0.005);
        Self { scenario: Scenario { settles: 0.0, ..new.scenario }, judged_from: 1, ..new }
    }

    fn within(mut self, to_90_s: [f64; 3], flooding_s: f64, p99_s: f64) -> Self {
        self.wanted = Wanted { to_90_s, flooding_s, p99_s, ..self.wanted };
        self
    }

    /// The median of some seeds in virtual time.
    pub fn in_virtual_time(&self, seeds: u64) -> Figures {
        let played = table::play(&self.scenario, ALL[0], seeds);
        let of = |of: fn(&Figures) -> &[f64]| table::medians(&played, of);
        Figures {
            goodput: of(|f| &f.goodput),
            refused: of(|f| &f.refused),
            sends: of(|f| &f.sends),
            p99_s: of(|f| &f.p99_s),
            to_90_s: of(|f| &f.to_90_s),
            flooding_s: of(|f| &f.flooding_s),
            ..Figures::default()
        }
    }

    /// What is missed, in words.
    pub fn missed(&self, figures: &Figures) -> Vec<String> {
        let Wanted { goodput, refused, to_90_s, flooding_s, p99_s } = self.wanted;
        let mut missed = Vec::new();
        for (phase, from) in self.scenario.phases.iter().enumerate().skip(self.judged_from) {
            let mut miss = |is_missed: bool, what: String| {
                if is_missed {
                    missed.push(format!("from {from:.0} s: {what}"));
                }
            };
            let seen = figures.goodput[phase];
            miss(seen.is_nan() || seen < goodput, format!("goodput {seen:.2}, wanted {goodput}"));
            // One refusal is no share.
            let (seen, sends) = (figures.refused[phase], figures.sends[phase]);
            let most = (refused * sends).ceil();
            miss(
                seen * sends > most + 0.5,
                format!("{:.0} of {sends:.0} refused, at most {most:.0} wanted", seen * sends),
            );
            let (seen, most) = (figures.to_90_s[phase], to_90_s[phase]);
            miss(seen > most, format!("90 % after {seen:.1} s, wanted {most:.0} s"));
            let seen = figures.flooding_s[phase];
            miss(seen > flooding_s, format!("flooding for {seen:.1} s, wanted {flooding_s:.0} s"));
            let seen = figures.p99_s[phase];
            miss(seen > p99_s, format!("p99 of an answer {seen:.2} s, wanted {p99_s} s"));
        }
        missed
    }
}

/// All receivers, in the order of the table.
pub fn all() -> Vec<Class> {
    let steps = |first, second, third| Steps(vec![(0.0, first), (FALLS_S, second), (RISES_S, third)]);
    let stepped = || steps(50.0, 10.0, 100.0);
    // Whole workers: five, two and ten, of 0.1 s each, or of 0.0975 s with the slow answers.
    let pools = |work_s: f64| steps(5.0 / work_s, 2.0 / work_s, 10.0 / work_s);
    let fifty = || Steps::always(50.0);
    let policer = || Receiver::new(sliding(1.0), fifty());
    let mut bound =
        Class::steady("a hard limit below what is taken", Receiver::new(Gate::Open, Steps::always(30.0)), 0.97, 0.0);
    bound.scenario.course.hard_limit = 30;
    let mut leaky = Class::stepped("leaky bucket 50/10/100", Receiver::new(bucket(0.0), stepped()), 0.9, 0.025)
        .within([ANY; 3], 5.0, ANY);
    leaky.scenario.course.late_s = LATE_S;
    let mut losing = Class::new("policer, the queue loses its state", policer(), &[0.0, LOSES_S], 0.9, 0.015).within(
        [5.0, 45.0, ANY],
        5.0,
        ANY,
    );
    losing.scenario.course.loses_state_at = Some(LOSES_S);
    losing.scenario.course.seconds = END_S;
    let mut retry_minute = Class::by_the_minute("60 per minute, Retry-After", fixed(60.0), 1.0);
    retry_minute.scenario.receiver.says_retry_after = true;
    vec![
        Class::stepped("policer 50/10/100 per calendar second", Receiver::new(fixed(1.0), stepped()), 0.9, 0.015)
            .within(STEPPED, 5.0, ANY),
        Class::stepped("policer 50/10/100 per sliding second", Receiver::new(sliding(1.0), stepped()), 0.9, 0.015)
            .within(STEPPED, 5.0, ANY),
        Class::stepped("bucket 50/10/100, 2 s deep", Receiver::new(bucket(2.0), stepped()), 0.95, 0.03)
            .within(STEPPED, 5.0, ANY),
        leaky,
        Class::steady("policer that counts refused requests", Receiver::new(counting(), fifty()), 0.8, 0.02),
        Class::stepped("pool of 5/2/10 workers, σ 0.1", Receiver::pool(pools(0.1), 0.1, 0.1), 0.9, 0.001)
            .within(STEPPED, 5.0, 1.1),
        Class::stepped("pool of 5/2/10 workers, noise of σ 1", Receiver::pool(pools(0.1), 0.1, 1.0), 0.9, 0.001)
            .within(STEPPED, 5.0, 1.8),
        Class::stepped(
            "pool of 5/2/10 workers, bimodal",
            Receiver { slow_share: 0.05, ..Receiver::pool(pools(0.0975), 0.05, 0.3) },
            0.9,
            0.001,
        )
        .within(STEPPED, 5.0, 1.8),
        Class::stepped(
            "concurrency limit 5/2/10 of 100 ms",
            Receiver { work_s: Steps::always(0.1), ..Receiver::new(Gate::Concurrency, steps(50.0, 20.0, 100.0)) },
            0.7,
            0.015,
        ),
        Class::stepped(
            "five times slower for everybody",
            Receiver { work_s: steps(0.1, 0.5, 0.1), ..Receiver::pool(fifty(), 0.1, 0.3) },
            0.95,
            0.001,
        )
        .within(STEPPED, 5.0, ANY),
        Class::steady("policer, 5 % errors", Receiver { errors: 0.05, ..policer() }, 0.8, 0.3),
        Class::steady("one kind (20 %) always refused", Receiver { never: 0.2, ..policer() }, 0.85, 0.3),
        Class::steady("strangers spend half", Receiver { strangers: Steps::always(25.0), ..policer() }, 0.6, 0.02),
        Class::steady(
            "policer, whole-second Retry-After",
            Receiver { says_retry_after: true, ..Receiver::new(fixed(1.0), fifty()) },
            0.8,
            0.01,
        ),
        Class::steady(
            "300 per calendar 10 s, RateLimit headers",
            Receiver { says_quota: true, ..Receiver::new(fixed(10.0), Steps::always(30.0)) },
            0.93,
            0.001,
        ),
        Class::by_the_minute("60 per calendar minute", fixed(60.0), 1.0),
        Class::by_the_minute("300 per sliding minute", sliding(60.0), 5.0),
        retry_minute,
        bound,
        losing,
    ]
}
