//! What a trial is judged by.

use std::time::Duration;

use weir_core::audit::windows;

use crate::{
    receiver::{Ending, Receiver},
    world::{HARD_LIMIT, Sent, timestamp},
};

/// The figures of one trial.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Taken requests ÷ capacity in each phase, after it has settled.
    pub goodput: Vec<f64>,
    /// The share of 429 and 503 of each phase.
    pub refused: Vec<f64>,
    /// The sends of which these are the shares.
    pub sends: Vec<f64>,
    /// The same over the whole trial.
    pub goodput_all: f64,
    pub refused_all: f64,
    pub p99_s: Vec<f64>,
    /// The time from the beginning of each phase until 90 % of the capacity is used.
    pub to_90_s: Vec<f64>,
    /// The time from the beginning of each phase until less than a tenth is refused.
    pub flooding_s: Vec<f64>,
    /// Sends in the fullest second.
    pub fullest: u64,
}

/// A phase of a trial: judged as settled from `from + settles` on.
pub fn judge(sent: &[Sent], receiver: &Receiver, phases: &[f64], settles: f64, end: f64) -> Figures {
    let mut figures = Figures::default();
    let capacity = |from: f64, to: f64| {
        let steps = ((to - from) * 10.0).ceil().max(1.0);
        (0..steps as usize).map(|i| receiver.capacity(from + (i as f64 + 0.5) / steps * (to - from))).sum::<f64>()
            / steps
    };
    let mut taken_at: Vec<f64> =
        sent.iter().filter(|sent| sent.ending == Ending::Taken).map(|sent| sent.ended_at).collect();
    taken_at.sort_by(f64::total_cmp);
    let is_refused = |sent: &&Sent| matches!(sent.ending, Ending::Refused | Ending::Failed);
    let refused_at: Vec<f64> = sent.iter().filter(|sent| is_refused(sent)).map(|sent| sent.at).collect();
    let sent_at: Vec<f64> = sent.iter().map(|sent| sent.at).collect();
    let within = |times: &[f64], from: f64, to: f64| {
        let before = |limit: f64| times.partition_point(|at| *at < limit);
        (before(to) - before(from)) as f64
    };
    let taken = |from: f64, to: f64| within(&taken_at, from, to);
    let refused = |from: f64, to: f64| within(&refused_at, from, to) / within(&sent_at, from, to).max(1.0);
    for (i, from) in phases.iter().enumerate() {
        let to = phases.get(i + 1).copied().unwrap_or(end);
        let settled = from + settles.min((to - from) / 2.0);
        figures.goodput.push(taken(settled, to) / (capacity(settled, to) * (to - settled)));
        figures.refused.push(refused(settled, to));
        figures.sends.push(within(&sent_at, settled, to));
        let mut times: Vec<f64> = sent
            .iter()
            .filter(|s| *from <= s.at && s.at < to && s.ending == Ending::Taken)
            .map(|s| s.ended_at - s.at)
            .collect();
        times.sort_by(f64::total_cmp);
        figures.p99_s.push(times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN));
        // A window in which the capacity is twenty requests at least, so that 90 % can be told.
        let span = (20.0 / capacity(*from, to)).max(2.0);
        let step = 0.25_f64.max(span / 10.0);
        let windows = || (0..).map(|i| from + f64::from(i) * step).take_while(|start| start + span <= to);
        let is_used = |start: &f64| taken(*start, start + span) >= 0.9 * capacity(*start, start + span) * span;
        figures.to_90_s.push(windows().find(is_used).map_or(f64::INFINITY, |at| at - from));
        let is_calm = |start: &f64| refused(*start, start + 1.0) <= 0.1;
        let calm = (0..).map(|i| from + f64::from(i) * 0.25).take_while(|start| start + 1.0 <= to).find(is_calm);
        figures.flooding_s.push(calm.map_or(f64::INFINITY, |at| at - from));
    }
    figures.goodput_all = taken(0.0, end) / (capacity(0.0, end) * end);
    figures.refused_all = refused(0.0, end);
    let starts: Vec<_> = sent.iter().map(|s| timestamp(s.at)).collect();
    figures.fullest = windows::worst_sliding(&starts, Duration::from_secs(1)).map_or(0, |window| window.sends);
    assert!(figures.fullest <= u64::from(HARD_LIMIT), "the hard limit was exceeded");
    figures
}

/// The median of each figure over the trials of several seeds.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
