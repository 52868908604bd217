//! What the receivers have seen, and what is wanted of it.

use std::time::Duration;

use weir_core::{Period, RateLimit, RateLimits, Timestamp};
use weir_pace_trials::{
    judge::{self, Figures},
    real::{Class, LOSES_S},
    receiver::Ending,
    world::Sent,
};

use super::play::{LIVE_UNTIL_S, NEIGHBOUR_PER_S, Run};
use crate::{
    figures::Percentiles,
    judge::caps,
    recording::{Arrival, Recording},
};

/// What a neighbour must use of its limit, from the time on at which everybody has started.
const USED: f64 = 0.97;
const NEIGHBOUR_FROM_S: f64 = 30.0;
/// As in the scenarios of neighbours.
const NEIGHBOUR_P99_MS: f64 = 500.0;

/// A receiver and what it has seen.
pub(super) struct Row<'a> {
    pub(super) class: &'a Class,
    pub(super) figures: Figures,
    /// Arrivals and recorded sends above the hard limit in any window.
    pub(super) above: u64,
    pub(super) missed: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pub(super) used: f64,
    pub(super) p99_ms: f64,
    pub(super) above: u64,
    pub(super) missed: Vec<String>,
}

pub(super) struct Verdict<'a> {
    pub(super) rows: Vec<Row<'a>>,
    pub(super) neighbours: Neighbours,
    /// What was judged wrongly on purpose, and whether that was found.
    pub(super) controls: Vec<(&'static str, bool)>,
}

impl Verdict<'_> {
    pub(super) fn is_met(&self) -> bool {
        self.rows.iter().all(|row| row.missed.is_empty())
            && self.neighbours.missed.is_empty()
            && self.controls.iter().all(|(_, is_found)| *is_found)
    }
}

pub(super) fn judge(run: &Run) -> Verdict<'_> {
    let rows: Vec<Row<'_>> = run.classes.iter().enumerate().map(|(number, class)| row(run, number, class)).collect();
    let neighbours = neighbours(run);
    let controls = vec![
        ("a receiver that is said to take a fifth more than it does", is_wrong_capacity_found(run)),
        ("a limit that is said to be a tenth lower than it is", is_wrong_limit_found(run)),
    ];
    Verdict { rows, neighbours, controls }
}

fn row<'a>(run: &Run, number: usize, class: &'a Class) -> Row<'a> {
    let figures = figures(run, number, class);
    let (above, breaches) = above(&run.recording, number);
    let missed = class.missed(&figures).into_iter().chain(breaches).collect();
    Row { class, figures, above, missed }
}

fn figures(run: &Run, number: usize, class: &Class) -> Figures {
    let of_trial = |arrival: &Arrival| {
        // Without an answer the connection was cut, because the process was killed.
        let answered = arrival.answered?;
        let ending = match answered.status {
            200 => Ending::Taken,
            429 => Ending::Refused,
            500 => Ending::Broken,
            _ => Ending::Failed,
        };
        let at = |time: Timestamp| time.since(run.began).as_secs_f64();
        Some(Sent { at: at(arrival.at), ended_at: at(answered.at), ending, in_flight: 0 })
    };
    let sent: Vec<Sent> = run.recording.at(number as u32).iter().filter_map(of_trial).collect();
    let scenario = &class.scenario;
    judge::judge(&sent, &scenario.receiver, &scenario.phases, scenario.settles, scenario.course.seconds)
}

/// The arrivals and the recorded sends above the limits of a destination, in any window.
fn above(recording: &Recording, group: usize) -> (u64, Vec<String>) {
    let mut breaches = Vec::new();
    let judged = caps::judge(recording, group, &mut breaches);
    (judged.iter().map(|limit| limit.violations + limit.recorded_violations).sum(), breaches)
}

fn neighbours(run: &Run) -> Neighbours {
    let (busy, live) = (run.classes.len(), run.classes.len() + 1);
    let seconds = |arrival: &Arrival| arrival.at.since(run.began).as_secs_f64();
    let judged = |arrival: &&Arrival| (NEIGHBOUR_FROM_S..LOSES_S).contains(&seconds(arrival));
    let count = run.recording.at(busy as u32).iter().filter(judged).count();
    let used = count as f64 / (f64::from(NEIGHBOUR_PER_S) * (LOSES_S - NEIGHBOUR_FROM_S));
    let took = |arrival: &Arrival| Some(arrival.at.since(*run.meant.get(arrival.event as usize)?));
    let arrived: Vec<&Arrival> = run.recording.at(live as u32).iter().collect();
    let late: Vec<Duration> =
        arrived.iter().filter(|arrival| seconds(arrival) < LIVE_UNTIL_S).filter_map(|arrival| took(arrival)).collect();
    let p99_ms = Percentiles::of(late).map_or(f64::INFINITY, |late| late.p99_ms);
    let ((above_busy, mut missed), (above_live, others)) = (above(&run.recording, busy), above(&run.recording, live));
    missed.extend(others);
    if used < USED {
        missed.push(format!("{used:.3} of the limit used, wanted {USED}"));
    }
    if p99_ms > NEIGHBOUR_P99_MS {
        missed.push(format!("p99 of {p99_ms:.0} ms from the post to the arrival, wanted {NEIGHBOUR_P99_MS:.0} ms"));
    }
    Neighbours { used, p99_ms, above: above_busy + above_live, missed }
}

fn is_wrong_capacity_found(run: &Run) -> bool {
    let mut class = weir_pace_trials::real::all().swap_remove(0);
    for (_, rate) in &mut class.scenario.receiver.rate.0 {
        *rate *= 1.2;
    }
    !class.missed(&figures(run, 0, &class)).is_empty()
}

fn is_wrong_limit_found(run: &Run) -> bool {
    let mut recording = run.recording.clone();
    let busy = run.classes.len();
    let lower: Vec<_> = RateLimit::new(NEIGHBOUR_PER_S * 9 / 10, Period::SECOND).into_iter().collect();
    for change in &mut recording.destinations[busy].limits {
        change.limits = RateLimits::new(lower.clone()).unwrap_or_default();
    }
    above(&recording, busy).0 > 0
}

#[cfg(test)]
mod tests {
    use weir_pace_trials::real;

    use super::*;
    use crate::recording::{Answered, Destination, Group, LimitChange};

    fn at(second: f64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + (second * 1_000.0).round() as i64)
    }

    /// The first receiver with 0.95 of its capacity, and neighbours with so many requests a second.
    fn run(neighbours_per_s: u32) -> Run {
        let classes: Vec<Class> = real::all().into_iter().take(1).collect();
        let mut recording = Recording::default();
        let limits = [classes[0].scenario.course.hard_limit, NEIGHBOUR_PER_S, NEIGHBOUR_PER_S];
        for (number, limit) in limits.into_iter().enumerate() {
            let limits = RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect()).unwrap();
            let change = LimitChange { sent: at(-1.0), answered: at(-1.0), limits };
            recording.destinations.push(Destination::alone(number, change));
            let expect = crate::scenario::Expect { delivered: false, ..Default::default() };
            recording.groups.push(Group { name: limit.to_string(), expect, pauses: Vec::new(), coalesces: false });
        }
        let mut arrivals = Vec::new();
        let mut send = |destination, rate: &dyn Fn(f64) -> f64| {
            let mut second = 0.0;
            for event in 0.. {
                if second >= LOSES_S {
                    break;
                }
                let answered = Some(Answered { status: 200, at: at(second) });
                let (limit_key, id, stalled) = (None, None, Duration::ZERO);
                let at = at(second);
                arrivals.push(Arrival { destination, event, limit_key, id, at, stalled, answered });
                second += 1.0 / rate(second);
            }
        };
        send(0, &|second| 0.95 * classes[0].scenario.receiver.capacity(second));
        send(1, &|_| f64::from(neighbours_per_s));
        send(2, &|_| 25.0);
        recording.sort_in(arrivals);
        let meant = (0..6_000).map(|number| at(f64::from(number) / 25.0)).collect();
        Run { classes, recording, began: at(0.0), meant }
    }

    #[test]
    fn what_is_judged_wrongly_on_purpose_is_found() {
        let run = run(50);
        let verdict = judge(&run);
        assert_eq!((&verdict.rows[0].missed, &verdict.neighbours.missed), (&Vec::new(), &Vec::new()));
        assert!(verdict.is_met() && verdict.controls.iter().all(|(_, is_found)| *is_found));
    }

    #[test]
    fn a_neighbour_above_its_limit_or_far_below_it_is_found() {
        let above = run(60);
        let neighbours = judge(&above).neighbours;
        assert!(neighbours.above > 0 && neighbours.missed[0].contains("above the limit"), "{neighbours:?}");
        let below = run(45);
        let verdict = judge(&below);
        assert!(verdict.neighbours.missed[0].contains("0.900 of the limit used"), "{:?}", verdict.neighbours);
        // The limit that is said to be lower is the rate itself: the judge cannot find it, and says so.
        assert!(!verdict.is_met());
    }
}
