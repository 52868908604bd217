//! Opponents that bound the requests in flight.

use std::collections::VecDeque;

use crate::{
    receiver::Ending,
    world::{Answer, MAX_IN_FLIGHT, Pacer},
};

fn rtt(answer: &Answer) -> f64 {
    answer.at - answer.sent_at
}

/// Vector's adaptive request concurrency: one more after a round trip without pressure at the limit, times 0.9 after
/// one with it; pressure is a refusal, or a mean time above the smoothed one (α 0.4) by 2.5 deviations.
#[derive(Debug, Clone)]
pub struct Arc {
    pub limit: u32,
    past: Option<(f64, f64)>,
    sum: f64,
    count: u32,
    next_update: f64,
    is_pressed: bool,
    reached: bool,
}

impl Default for Arc {
    fn default() -> Self {
        let (past, sum, count, next_update) = (None, 0.0, 0, 0.0);
        Self { limit: 1, past, sum, count, next_update, is_pressed: false, reached: false }
    }
}

impl Arc {
    fn update(&mut self, now: f64) {
        let current = (self.count > 0).then(|| self.sum / f64::from(self.count));
        match (self.past, current) {
            (None, Some(current)) => {
                self.past = Some((current, 0.0));
                self.next_update = now + current;
            }
            (Some((mean, variance)), _) if now >= self.next_update => {
                let threshold = 2.5 * variance.sqrt();
                let is_late = current.is_some_and(|current| current >= mean + threshold + 1e-6 && current > mean);
                if self.reached && !self.is_pressed && current.is_some_and(|current| current <= mean + 1e-6) {
                    self.limit = (self.limit + 1).min(200);
                } else if self.is_pressed || is_late {
                    self.limit = ((f64::from(self.limit) * 0.9) as u32).max(1);
                }
                if let Some(current) = current {
                    let change = current - mean;
                    self.past = Some((mean + 0.4 * change, 0.6 * (variance + 0.4 * change * change)));
                }
                self.next_update = now + self.past.map_or(mean, |(mean, _)| mean);
                (self.sum, self.count, self.is_pressed, self.reached) = (0.0, 0, false, false);
            }
            _ => {}
        }
    }
}

impl Pacer for Arc {
    fn next_start(&mut self, now: f64, in_flight: u32) -> Option<f64> {
        (in_flight < self.limit).then_some(now)
    }

    fn sent(&mut self, _now: f64, in_flight: u32) -> u32 {
        self.reached |= in_flight >= self.limit;
        0
    }

    fn learn(&mut self, now: f64, answers: &[Answer]) {
        for answer in answers {
            if answer.ending == Ending::Taken {
                self.sum += rtt(answer);
                self.count += 1;
            } else {
                self.is_pressed = true;
            }
            self.update(now);
        }
    }
}

/// A smoothed value that starts with the mean of its first ten.
#[derive(Debug, Clone, Default)]
struct Ewma {
    count: u32,
    value: f64,
}

impl Ewma {
    fn add(&mut self, sample: f64, age: f64) -> f64 {
        self.count += 1;
        let weight = if self.count <= 10 { 1.0 / f64::from(self.count) } else { 2.0 / (age + 1.0) };
        self.value += weight * (sample - self.value);
        self.value
    }
}

/// The correlation of two series, and the variation of the second.
fn correlation(pairs: &VecDeque<(f64, f64)>) -> (f64, f64) {
    let n = pairs.len() as f64;
    if n < 10.0 {
        return (0.0, 0.0);
    }
    let (x, y) = pairs.iter().fold((0.0, 0.0), |(x, y), pair| (x + pair.0 / n, y + pair.1 / n));
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for pair in pairs {
        xy += (pair.0 - x) * (pair.1 - y);
        xx += (pair.0 - x).powi(2);
        yy += (pair.1 - y).powi(2);
    }
    let correlation = if xx * yy > 0.0 { xy / (xx * yy).sqrt() } else { 0.0 };
    (correlation, (yy / n).sqrt() / y.max(1e-9))
}

/// The limiter of failsafe-go 0.9.8: p90 of windows of a second and 50 samples, median of five and smoothed, against a
/// smoothed baseline; the queue `⌈limit · (1 − base / recent)⌉` between 3·log10 and 6·log10; fewer when throughput or
/// times correlate with the requests in flight as under overload. Refused requests are dropped, as its users do.
#[derive(Debug, Clone)]
pub struct Failsafe {
    limit: f64,
    window: Vec<f64>,
    most_in_flight: u32,
    next_update: f64,
    recent: VecDeque<f64>,
    smoothed: Ewma,
    base: Ewma,
    throughput: VecDeque<(f64, f64)>,
    times: VecDeque<(f64, f64)>,
    is_full: bool,
}

impl Default for Failsafe {
    fn default() -> Self {
        Self {
            limit: 20.0,
            window: Vec::new(),
            most_in_flight: 0,
            next_update: 0.0,
            recent: VecDeque::new(),
            smoothed: Ewma::default(),
            base: Ewma::default(),
            throughput: VecDeque::new(),
            times: VecDeque::new(),
            is_full: false,
        }
    }
}

impl Failsafe {
    fn update(&mut self) {
        self.window.sort_by(f64::total_cmp);
        let p90 = self.window[self.window.len() * 9 / 10];
        let keep = |series: &mut VecDeque<(f64, f64)>, pair| {
            series.push_back(pair);
            if series.len() > 50 {
                series.pop_front();
            }
        };
        self.recent.push_back(p90);
        if self.recent.len() > 5 {
            self.recent.pop_front();
        }
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let recent = self.smoothed.add(sorted[sorted.len() / 2], 5.0);
        let base = self.base.add(recent, 10.0);
        let queue = (self.limit * (1.0 - base / recent)).ceil();
        let in_flight = f64::from(self.most_in_flight);
        keep(&mut self.throughput, (in_flight, in_flight / recent));
        keep(&mut self.times, (in_flight, recent));
        let ((by_throughput, variation), (by_time, _)) = (correlation(&self.throughput), correlation(&self.times));
        let log = |factor: f64| (factor * self.limit.log10()).max(factor).floor();
        let is_overload = by_throughput < 0.0 || by_time > 0.5 && (by_throughput < 0.3 || variation < 0.2);
        if queue > log(6.0) || self.is_full && is_overload {
            self.limit -= log(1.0);
        } else if queue < log(3.0) {
            self.limit += log(1.0);
        }
        self.limit = self.limit.min(5.0 * in_flight).clamp(1.0, 200.0);
    }
}

impl Pacer for Failsafe {
    fn next_start(&mut self, now: f64, in_flight: u32) -> Option<f64> {
        self.is_full = f64::from(in_flight) >= self.limit.floor();
        (!self.is_full).then_some(now)
    }

    fn sent(&mut self, _now: f64, _in_flight: u32) -> u32 {
        0
    }

    fn learn(&mut self, now: f64, answers: &[Answer]) {
        for answer in answers.iter().filter(|answer| answer.ending == Ending::Taken) {
            self.window.push(rtt(answer));
            self.most_in_flight = self.most_in_flight.max(answer.in_flight);
        }
        if now >= self.next_update && self.window.len() >= 50 {
            self.update();
            let least = self.window.first().copied().unwrap_or(0.0);
            self.next_update = now + (2.0 * least).clamp(1.0, 30.0);
            self.window.clear();
            self.most_in_flight = 0;
        }
    }
}

/// Netflix' gradient2: the limit times the ratio of a long mean of the times to a short one, at least a half, with a
/// tolerance of 1.5, plus room of the limit's root, smoothed by 0.2. A refusal counts as any other sample there.
#[derive(Debug, Clone)]
pub struct Gradient2 {
    limit: f64,
    long: Ewma,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self { limit: 20.0, long: Ewma::default() }
    }
}

impl Pacer for Gradient2 {
    fn next_start(&mut self, now: f64, in_flight: u32) -> Option<f64> {
        (f64::from(in_flight) < self.limit.floor()).then_some(now)
    }

    fn sent(&mut self, _now: f64, _in_flight: u32) -> u32 {
        0
    }

    fn learn(&mut self, _now: f64, answers: &[Answer]) {
        for answer in answers {
            let short = rtt(answer);
            let mut long = self.long.add(short, 600.0);
            if long / short > 2.0 {
                self.long.value *= 0.95;
                long = self.long.value;
            }
            if f64::from(answer.in_flight) < self.limit / 2.0 {
                continue;
            }
            let gradient = (1.5 * long / short).clamp(0.5, 1.0);
            let wanted = self.limit * gradient + self.limit.sqrt().max(4.0);
            self.limit = (0.8 * self.limit + 0.2 * wanted).clamp(1.0, f64::from(MAX_IN_FLIGHT));
        }
    }
}
