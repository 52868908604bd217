//! CPU time for each delivery.

use super::{
    figure::{Figure, Unit, median},
    rig::{Cpu, Rig},
};

/// Microseconds of CPU time for each delivery: of Weir alone, and with PostgreSQL and Redis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    weir_us: f64,
    all_us: f64,
}

impl Cost {
    pub(super) fn between(before: Cpu, after: Cpu, deliveries: u64) -> Self {
        let us = |before_s: f64, after_s: f64| (after_s - before_s) * 1e6 / deliveries as f64;
        Self { weir_us: us(before.weir_s, after.weir_s), all_us: us(before.all_s, after.all_s) }
    }
}

/// The median of the cost with the servers, which the target is about.
pub(super) fn median_all(repeats: &[Cost]) -> Option<f64> {
    median(&repeats.iter().map(|cost| cost.all_us).collect::<Vec<_>>())
}

/// How many times the cost of the second number the first one has, if both were measured.
pub(super) fn compared(id: &str, what: &str, medians: &[(u64, f64)], numbers: [u64; 2]) -> Option<Figure> {
    let [most, least] = numbers.map(|number| medians.iter().find(|(of, _)| *of == number).map(|(_, cost)| cost));
    Some(Figure::new(id, what, Unit::Times, most? / least?))
}

pub(super) fn figures_of(rig: &Rig, number: u64, what: &str, repeats: &[Cost]) -> Vec<Figure> {
    let figure = |id: &str, processes: &str, of: fn(&Cost) -> f64| {
        let what = format!("{} {what}, {processes}", thousands(number));
        Figure::of(format!("{id}.{number}"), what, Unit::CpuUs, &repeats.iter().map(of).collect::<Vec<_>>())
    };
    let weir = figure("weir", "weir", |cost| cost.weir_us);
    let all = figure("all", "weir, PostgreSQL and Redis", |cost| cost.all_us);
    weir.into_iter().chain(all.filter(|_| rig.servers.is_some())).collect()
}

pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_microseconds_for_each_delivery() {
        let (before, after) = (Cpu { weir_s: 1.0, all_s: 2.0 }, Cpu { weir_s: 2.0, all_s: 4.0 });
        let cost = Cost::between(before, after, 10_000);
        assert_eq!((cost.weir_us, cost.all_us), (100.0, 200.0));
    }

    #[test]
    fn thousands_are_separated_by_commas() {
        assert_eq!([0, 999, 1_000, 1_000_000].map(thousands), ["0", "999", "1,000", "1,000,000"]);
    }
}
