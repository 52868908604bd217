//! The summary of a run for the terminal.

use std::fmt::{self, Write};

use crate::judge::{
    GroupJudgement, Judgement,
    caps::LimitJudgement,
    shared::{SharedJudgement, Shares},
};

/// The verdict with its figures, a line for each limit and group, and every breach.
pub(super) fn of(scenario: &str, judgement: &Judgement) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_run(&mut out, scenario, judgement);
    out
}

fn write_run(out: &mut String, scenario: &str, judgement: &Judgement) -> fmt::Result {
    let verdict = if judgement.is_passed() { "passed" } else { "FAILED" };
    let Judgement { events, arrivals, lost, duplicates, explained, .. } = judgement;
    let drained = judgement.drained_after_s.map_or("not drained".to_owned(), |s| format!("drained after {s:.1} s"));
    writeln!(
        out,
        "  {verdict}  {scenario}: {events} events, {arrivals} arrivals, {lost} lost, {duplicates} doubled ({explained} explained), \
         {drained}"
    )?;
    for group in &judgement.groups {
        write_limits(out, &group.title(), &group.limits)?;
        write_limits(out, &group.title_of_keys(), &group.key_limits)?;
        write_speed(out, group)?;
    }
    for group in &judgement.limit_groups {
        write_limits(out, &group.title(), &group.limits)?;
        let SharedJudgement { calls, too_late, without_slot, .. } = group;
        if calls + too_late + without_slot > 0 {
            let title = group.title();
            writeln!(
                out,
                "          {title:<16} {calls} calls of callers, {too_late} came too late, {without_slot} had no slot in time"
            )?;
        }
        if let Some(shares) = group.shares {
            let (title, Shares { fairness, farthest }) = (group.title(), shares);
            writeln!(out, "          {title:<16} fairness {fairness:.4}  farthest from its share {farthest:.3}")?;
        }
    }
    if judgement.streams_done_s.len() > 1 {
        for (number, done) in judgement.streams_done_s.iter().enumerate() {
            let done = done.map_or("not all arrived".to_owned(), |s| format!("all arrived within {s:.2} s"));
            writeln!(out, "          publish {:<8} {done}", number + 1)?;
        }
    }
    judgement.breaches.iter().try_for_each(|breach| writeln!(out, "  breach: {breach}"))
}

fn write_limits(out: &mut String, title: &str, limits: &[LimitJudgement]) -> fmt::Result {
    for limit in limits {
        let bound = limit.bound.map_or("none".to_owned(), |bound| bound.to_string());
        let used = limit.utilisation.map_or("–".to_owned(), |used| format!("{used:.3}"));
        let excused =
            if limit.excused > 0 { format!("  ({} excused by stalls)", limit.excused) } else { String::new() };
        let possible = match limit.recorded_possible {
            0 => String::new(),
            count => format!("  ({count} possible with sends of unknown outcome)"),
        };
        let (at_receiver, recorded) = (limit.worst_sliding, limit.recorded_worst_sliding.unwrap_or(0));
        writeln!(
            out,
            "          {:<16} {bound:>6} a {:<6}  fullest window {at_receiver:>5}, recorded {recorded:>5}  used {used}{excused}{possible}",
            title, limit.period,
        )?;
    }
    Ok(())
}

fn write_speed(out: &mut String, group: &GroupJudgement) -> fmt::Result {
    let name = group.title();
    if let Some(overload) = group.overload {
        writeln!(
            out,
            "          {name:<16} offered {:.0} a second, sent {:.0} a second, {:.3} of the {:.0} a second that the machine can take",
            overload.offered_per_s,
            overload.sent_per_s,
            overload.share(),
            overload.capacity_per_s
        )?;
    }
    if let Some(latency) = group.latency_ms {
        let fair = group.fairness.map_or(String::new(), |index| format!("  fairness {index:.3}"));
        writeln!(
            out,
            "          {name:<16} p50 {:.1} ms  p99 {:.1} ms  p99.9 {:.1} ms  max {:.1} ms{fair}",
            latency.p50, latency.p99, latency.p99_9, latency.max
        )?;
    }
    Ok(())
}
