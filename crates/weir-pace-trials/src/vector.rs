//! The scenarios that Vector's limiter brings (`tests/data/adaptive-concurrency`), with their bounds for the mean number
//! of requests in flight. They say whether our ARC behaves like the original, and how the others do beside it. Two of
//! the twelve fix the concurrency, so no limiter plays there.

use std::collections::VecDeque;

use crate::{
    receiver::{Ending, Reply, Server, TIMEOUT_S},
    rng::Rng,
    world::{self, Course, Pacer},
};

/// Vector's receiver: a delay that grows with the requests in flight, and limits above which it defers or drops.
#[derive(Debug, Clone)]
struct Link {
    delay_s: f64,
    /// The mean of an exponential part of the delay, relative to it.
    jitter: f64,
    /// How much each further request in flight adds, relative to the delay, and the number above which it multiplies.
    scale: f64,
    knee: Option<(i32, f64)>,
    most_in_flight: usize,
    /// Requests in the last second, refused ones included.
    most_per_s: usize,
    drops: bool,
    ends: Vec<f64>,
    recent: VecDeque<f64>,
}

impl Link {
    fn new(delay_s: f64) -> Self {
        let (most_in_flight, most_per_s) = (usize::MAX, usize::MAX);
        let (ends, recent) = (Vec::new(), VecDeque::new());
        Self { delay_s, jitter: 0.0, scale: 0.0, knee: None, most_in_flight, most_per_s, drops: false, ends, recent }
    }
}

impl Server for Link {
    fn take(&mut self, sent: f64, rng: &mut Rng) -> Reply {
        self.ends.retain(|end| *end > sent);
        while self.recent.front().is_some_and(|at| *at <= sent - 1.0) {
            self.recent.pop_front();
        }
        self.recent.push_back(sent);
        let level = self.ends.len() as i32 + 1;
        let is_refused = self.ends.len() >= self.most_in_flight || self.recent.len() > self.most_per_s;
        if is_refused && self.drops {
            return Reply { at: sent + TIMEOUT_S / 10.0, ending: Ending::Failed, retry_after: None, quota: None };
        }
        let crowded = f64::from(level - 1) * self.scale
            + self.knee.map_or(0.0, |(from, base)| base.powi((level - from).max(0)) - 1.0);
        let factor = if is_refused { 1.0 } else { 1.0 + crowded } + self.jitter * rng.exponential(1.0);
        let delay_s = self.delay_s * factor;
        let at = sent + delay_s.min(TIMEOUT_S);
        self.ends.push(at);
        let ending = match is_refused {
            true => Ending::Refused,
            false if delay_s > TIMEOUT_S => Ending::Failed,
            false => Ending::Taken,
        };
        Reply { at, ending, retry_after: None, quota: None }
    }

    fn offered(&self, _t: f64) -> f64 {
        f64::from(world::HARD_LIMIT)
    }
}

/// One scenario, and the bounds of the mean number of requests in flight.
pub struct Played {
    pub name: &'static str,
    pub bounds: (f64, f64),
    pub in_flight: f64,
    pub seconds: f64,
    pub refused: f64,
}

/// Plays all of them; reports come at once, as in Vector's process.
pub fn play(new: fn() -> Box<dyn Pacer>) -> Vec<Played> {
    let link = |delay_s| Link::new(delay_s);
    let scenarios = [
        ("constant link", link(0.1), 500, None, (15.0, 16.0)),
        ("defers above 5 in flight", Link { most_in_flight: 5, ..link(0.1) }, 500, None, (2.4, 5.0)),
        ("defers above 100/s", Link { most_per_s: 100, ..link(0.1) }, 1_000, None, (6.0, 9.0)),
        ("drops above 5 in flight", Link { most_in_flight: 5, drops: true, ..link(0.1) }, 500, None, (1.8, 4.0)),
        ("jittery link", Link { jitter: 0.1, ..link(0.1) }, 1_000, None, (8.0, 20.0)),
        ("a knee at 10", Link { knee: Some((10, 1.1)), ..link(0.1) }, 1_000, None, (9.0, 11.0)),
        ("slower with each request", Link { scale: 1.0, ..link(0.1) }, 200, None, (1.5, 5.0)),
        ("40/s offered", link(0.1), 500, Some(40.0), (4.0, 4.5)),
        ("10/s offered", link(0.05), 100, Some(10.0), (0.5, 0.55)),
        ("20/s offered", link(0.05), 100, Some(20.0), (1.0, 1.2)),
    ];
    scenarios
        .into_iter()
        .map(|(name, mut link, most, arrivals, bounds)| {
            let course = Course { arrivals, report_s: 0.0, most, ..Course::of(600.0) };
            let sent = world::play(&mut link, new().as_mut(), &course, 1);
            // A dropped request is in flight at the sender, and not at the receiver.
            let held = sent.iter().filter(|sent| sent.ending != Ending::Failed);
            let busy_s: f64 = held.map(|sent| sent.ended_at - sent.at).sum();
            let seconds = sent.iter().map(|sent| sent.ended_at).fold(0.0, f64::max);
            let refused = sent.iter().filter(|sent| sent.ending != Ending::Taken).count() as f64 / sent.len() as f64;
            Played { name, bounds, in_flight: busy_s / seconds, seconds, refused }
        })
        .collect()
}
