//! The page: the targets and whether they are met, then a table for each topic.

use std::fmt::Write;

use super::{
    Topic,
    figure::{Figure, Unit},
    results::{Results, Section},
    short,
    targets::{Bound, bound_of},
};

/// The text above a topic's tables.
fn about(topic: Topic) -> &'static str {
    match topic {
        Topic::Throughput => {
            "Events from the first POST to the last arrival at one unlimited destination, posted as fast as they are answered. Each repeat has \
             a fresh engine and is compared with a ceiling measured right before it."
        }
        Topic::Latency => {
            "From the instant at which a POST was meant to be sent to the arrival at the receiver, commit included, at a steady rate. The ceiling \
             is the same client at the same rate without Weir. CPU time is from POST to record."
        }
        Topic::Destinations => {
            "CPU time for each delivery, from POST to record, of a steady 2,000/s in batches of 20, spread evenly over the destinations. Each has \
             a limit that never binds. All share one receiver; events name their destination."
        }
        Topic::Keys => {
            "CPU time for each delivery, from POST to record, of a steady 1,000/s in batches of 20 at one destination with `key_limits`. The events \
             have the keys in turn. The limits of the keys and of the destination never bind."
        }
        Topic::FanOut => {
            "Batches of 100 events for 5 s. Each destination takes events of one type of its own, and the events have all types in turn, so that no              match is remembered."
        }
        Topic::Backlog => {
            "CPU time for each delivery with this backlog: a destination limited to 2,000/s, oldest first, to which 2,000/s are posted at the \
             same time."
        }
        Topic::Idle => {
            "Destinations that have each had one event and are now idle. They belong to fifty tenants, so Weir creates them in parallel."
        }
        Topic::Statements => {
            "SQL statements and Redis commands for each delivery, including those of everything that runs beside it (claims, runs, sweeps)."
        }
        Topic::Edit => {
            "A destination with a backlog, edited alternately to 5/s and 100/s. A looser limit takes effect at the first arrival that the old limit \
             would not have allowed yet. A stricter limit takes effect at the last arrival that is closer to its predecessor than the new limit allows."
        }
        Topic::Limits => {
            "Destinations with a backlog, one for each limit, all but the last at the same time. Use is arrivals ÷ the sends that the limit allowed. \
             The fullest window of a second, wherever it begins, is that of Weir's recorded send starts; at the receiver windows are 5 ms shorter. \
             With few sends the use is a little above 1, because n sends make n − 1 intervals."
        }
        Topic::Overload => {
            "Batches offered at twice the peak rate delivered, to one unlimited destination, beside another destination that is offered twice its \
             limit of 50/s."
        }
        Topic::Viewers => {
            "The overview while every destination has a backlog. A client asks for its first page ten times a second, at fixed times. A viewer is \
             a browser with the overview: it follows the live stream and fetches the table at each snapshot. Throughput is that of batches \
             at one more destination, unlimited, in pairs on one engine."
        }
        Topic::Retention => {
            "Two processes with all roles, and 2,000,000 deliveries with their attempts and events, of a day that is older than the retention of 14 days. \
             One in 200 is a dead letter and is kept. The others are deleted while batches of 100 are posted as fast as they are answered, at one \
             unlimited destination, and counted when their events and attempts are gone too; and, in a fresh \
             database, while 500/s are posted one by one."
        }
    }
}

pub(crate) fn page(results: &Results) -> String {
    let machine = &results.machine;
    let mut page = "# Results\n\nWritten by `cargo xtask bench`; do not edit.\n\n".to_owned();
    if results.brief {
        page += "**A brief run, which only checks that everything can be measured. Do not use these figures.**\n\n";
    }
    // The head: on which machine, with which versions, and when.
    let _ = writeln!(
        page,
        "{}, {} cores shared by client, receiver, engine and servers, {:.0} GiB, {}.  ",
        machine.cpu, machine.cores, machine.memory_gib, machine.kernel
    );
    let _ = writeln!(page, "{}.  ", machine.versions.join(", "));
    // Sections may be from different runs, so the page names the first and the last time.
    if let Some((first, last)) =
        results.sections.iter().map(|s| &s.began).min().zip(results.sections.iter().map(|s| &s.began).max())
    {
        let minutes = results.sections.iter().map(|section| section.took_s).sum::<f64>() / 60.0;
        let _ = writeln!(page, "Measured from {first} to {last}, {minutes:.0} minutes in all.");
    }
    page += "\nThe *ceiling* is what a plain HTTP client and receiver reach on this machine without Weir between them. The same client \
             and receiver measure Weir. A figure that was measured several times is the median, and *range* shows the lowest and \
             the highest. *A process per role* is an API, a scheduler and two workers, and its figures are of all four together.\n";
    if results.sections.iter().any(|section| section.measured.sends.is_some()) {
        page += "\n![Sends per second against a cap that is edited while a backlog drains](results.svg)\n";
    }
    // First a summary, then the tables of each topic.
    let _ = write!(page, "\n## In short\n\n{}", short::table(results));
    page += &summary(results);
    let mut last = None;
    for section in &results.sections {
        // Sections of one topic follow each other; the heading stands above the first.
        if last != Some(section.topic) {
            let _ = write!(page, "\n## {}\n\n{}\n", section.topic.title(), about(section.topic));
        }
        last = Some(section.topic);
        page += &table(section);
    }
    page
}

/// Every figure that has a target.
fn summary(results: &Results) -> String {
    let mut text = "\n## Targets\n\n| | set-up | target | figure | |\n|---|---|---|---|---|\n".to_owned();
    let mut count = (0, 0);
    for section in &results.sections {
        let title = section.topic.title();
        for figure in &section.measured.figures {
            let Some(bound) = bound_of(section.topic, section.set_up, &figure.id) else { continue };
            let (shown, verdict) = (shown(bound, figure), verdict(bound, figure));
            let (what, set_up, target) = (&figure.what, section.set_up.title(), bound.write(figure));
            let _ = writeln!(text, "| {title}: {what} | {set_up} | {target} | {shown} | {verdict} |");
            count.0 += u32::from(bound.is_met_by(figure));
            count.1 += 1;
        }
        if section.failure.is_some() {
            let _ = writeln!(text, "| {title} | {} | | | **not measured** |", section.set_up.title());
        }
    }
    let _ = write!(text, "\n{} of {} are met.\n", count.0, count.1);
    text
}

/// The value that is compared with the target: the ratio or the figure.
fn shown(bound: Bound, figure: &Figure) -> String {
    match (bound, figure.ceiling) {
        (Bound::OfCeilingAtLeast(_), Some(ceiling)) => format!("{:.1} %", ceiling.ratio * 100.0),
        _ => figure.unit.write(figure.value),
    }
}

fn verdict(bound: Bound, figure: &Figure) -> &'static str {
    if bound.is_met_by(figure) { "met" } else { "**not met**" }
}

fn table(section: &Section) -> String {
    // The head: the set-up, the time, and the ceiling of this run.
    let mut text = format!("\n**{}**, {}, {:.0} s", section.set_up.title(), section.began, section.took_s);
    if let Some(ceiling) = section.ceiling {
        let _ = write!(
            text,
            "; ceiling {}, {} of CPU an exchange",
            Unit::PerSecond.write(ceiling.per_s),
            Unit::CpuUs.write(ceiling.cpu_us)
        );
    }
    text += "\n\n";
    // A failed topic shows the reason instead of a table.
    if let Some(failure) = &section.failure {
        let _ = writeln!(text, "Not measured: {}", cell(failure));
        return text;
    }
    if !section.measured.figures.is_empty() {
        text += "| | figure | range | ceiling | of ceiling | target | | |\n|---|---|---|---|---|---|---|---|\n";
    }
    for figure in &section.measured.figures {
        let write = |value| figure.unit.write(value);
        let range = figure.range.map_or(String::new(), |(least, most)| format!("{} – {}", write(least), write(most)));
        let ceiling = figure.ceiling.map_or(String::new(), |ceiling| write(ceiling.value));
        // A rate is a share of the ceiling, and a time a multiple of it.
        let ratio = figure.ceiling.map_or(String::new(), |ceiling| match figure.unit {
            Unit::PerSecond => format!("{:.1} %", ceiling.ratio * 100.0),
            _ => format!("{:.1} ×", ceiling.ratio),
        });
        let bound = bound_of(section.topic, section.set_up, &figure.id);
        let (target, verdict) =
            bound.map_or((String::new(), ""), |bound| (bound.write(figure), verdict(bound, figure)));
        let (what, value, remark) = (cell(&figure.what), write(figure.value), cell(&figure.remark));
        let _ =
            writeln!(text, "| {what} | {value} | {range} | {ceiling} | {ratio} | {target} | {verdict} | {remark} |");
    }
    for remark in &section.measured.remarks {
        let _ = write!(text, "\n{remark}\n");
    }
    text
}

/// The text on one line, with `|` escaped.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SetUp, results::Measured},
        *,
    };

    fn section(topic: Topic, measured: Measured, failure: Option<&str>) -> Section {
        let began = "2026-11-22T06:00:00.000Z".to_owned();
        let (set_up, failure) = (SetUp::Embedded, failure.map(str::to_owned));
        Section { topic, set_up, began, took_s: 12.0, ceiling: None, measured, failure }
    }

    #[test]
    fn targets_are_shown_beside_their_figures() {
        let repeats = [4_000.0, 5_000.0, 3_000.0];
        let single =
            Figure::of("single", "single posts", Unit::PerSecond, &repeats).unwrap().beside(&repeats, &[20_000.0; 3]);
        let batch = Figure::new("batch", "batches", Unit::PerSecond, 9_000.0).beside(&[9_000.0], &[20_000.0]);
        let mut results = Results::default();
        results.put(section(Topic::Throughput, Measured::of([single, batch]).remark("As it is."), None));
        let page = page(&results);
        for line in [
            "| Throughput: single posts | Embedded (SQLite) | ≥ 13 % | 20.0 % | met |",
            "| Throughput: batches | Embedded (SQLite) | ≥ 25 % | 45.0 % | met |",
            "2 of 2 are met.",
            "| single posts | 4000/s | 3000/s – 5000/s | 20000/s | 20.0 % | ≥ 13 % | met |  |",
            "\nAs it is.\n",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn missed_targets_and_failed_topics_are_shown() {
        let late = Figure::new("worst.up", "5/s to 100/s", Unit::Ms, 140.0);
        let mut results = Results::default();
        results.put(section(Topic::Edit, Measured::of([late]), None));
        results.put(section(Topic::Overload, Measured::default(), Some("1 | 2\nnever arrived")));
        let page = page(&results);
        for line in [
            "≤ 100.00 ms | 140.00 ms | **not met** |",
            "0 of 1 are met.",
            "Not measured: 1 \\| 2 never arrived",
            "| **not measured** |",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
