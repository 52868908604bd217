//! The time of a slot under one, two and three budgets, in this process: it needs no engine.
//!
//! The budgets of a flow are those of its key, its destination and its group.

use std::{hint::black_box, time::Duration};

use anyhow::{Context, ensure};
use weir_core::{Limiter, Period, RateLimit, RateLimits, Timestamp, budget};

use super::{
    figure::{Figure, Unit, median},
    results::Measured,
};
use crate::clock::now;

const BUDGETS: [usize; 3] = [1, 2, 3];
const REPEATS: usize = 9;
const TAKES: u32 = 200_000;
const TAKES_BRIEF: u32 = 2_000;
/// Takes come at the rate of the tightest budget, so all are granted.
const EVERY: Duration = Duration::from_millis(1);
const LIMITS_PER_S: [u32; 3] = [1_000, 2_000, 5_000];

pub(super) fn measure(brief: bool) -> anyhow::Result<Measured> {
    let takes = if brief { TAKES_BRIEF } else { TAKES };
    let mut measured = BUDGETS.map(|_| Vec::new());
    // In turn, so that a slow moment of the machine is in the figures of all.
    for _ in 0..REPEATS {
        for (budgets, ns) in BUDGETS.into_iter().zip(&mut measured) {
            ns.push(ns_of_a_take(budgets, takes)?);
        }
    }
    let mut figures = Vec::new();
    for (budgets, ns) in BUDGETS.into_iter().zip(&measured) {
        let what = format!("nanoseconds of a slot under {budgets} of key, destination and group");
        figures.extend(Figure::of(format!("take.{budgets}"), what, Unit::Count, ns));
    }
    let [one, _, three] = measured.map(|ns| median(&ns));
    let times = three.zip(one).map(|(three, one)| three / one).context("nothing was measured")?;
    figures.push(Figure::new("three_against_one", "three budgets against one", Unit::Times, times));
    Ok(Measured::of(figures))
}

fn ns_of_a_take(budgets: usize, takes: u32) -> anyhow::Result<f64> {
    let limiter = |limit: u32| {
        let limits = RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect());
        limits.map(|limits| Limiter::new(&limits)).context("not a limit")
    };
    let mut limiters = LIMITS_PER_S.into_iter().map(limiter).collect::<anyhow::Result<Vec<_>>>()?;
    let mut all: Vec<&mut Limiter> = limiters.iter_mut().collect();
    let began = Timestamp::from_secs(1_800_000_000);
    let mut granted = 0;
    let started = now();
    for take in 0..takes {
        let at = began + EVERY * take;
        granted += u32::from(black_box(budget::take(&mut all[..budgets], 1, at, at)).is_ok());
    }
    let took = now().duration_since(started);
    ensure!(granted == takes, "{granted} of {takes} slots were granted");
    Ok(took.as_nanos() as f64 / f64::from(takes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_take_is_granted_and_each_number_of_budgets_has_a_figure() {
        let measured = measure(true).unwrap();
        let ids: Vec<_> = measured.figures.iter().map(|figure| figure.id.as_str()).collect();
        assert_eq!(ids, ["take.1", "take.2", "take.3", "three_against_one"]);
    }
}
