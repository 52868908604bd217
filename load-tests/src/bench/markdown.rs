//! The page: what is asked and whether it is met, then a table for each topic.

use std::fmt::Write;

use super::{
    Topic,
    figure::{Figure, Unit},
    results::{Results, Section},
    short,
    targets::{Asked, asked},
};

/// What stands above a topic's tables.
fn about(topic: Topic) -> &'static str {
    match topic {
        Topic::Throughput => {
            "Events from the first POST to the last arrival, one unlimited destination, as fast as they are answered. Each repeat is a \
             fresh engine, with its ceiling measured right before it; ratios are those of neighbours."
        }
        Topic::Latency => {
            "From the instant a POST was meant to be sent to the arrival at the receiver, commit included, at a steady rate. The ceiling is \
             the same client, at the same rate, straight to the receiver. CPU time is from POST to record."
        }
        Topic::Destinations => {
            "CPU time for each delivery, from POST to record, of a steady 2,000/s in batches of 20, spread evenly over so many destinations. \
             Each has a limit that never binds. All share one receiver; events name their destination."
        }
        Topic::Backlog => {
            "CPU time for each delivery while so many wait before it: a destination limited to 2,000/s, oldest first, to which 2,000/s are \
             posted meanwhile."
        }
        Topic::Idle => {
            "Destinations that have each had one event and now have nothing to do. Their tenants are fifty, so that making them goes side by side."
        }
        Topic::Statements => {
            "What one delivery costs the servers, everything that runs beside it included (claims, runs, sweeps)."
        }
        Topic::Edit => {
            "A destination with a backlog, edited to and fro between 5/s and 100/s. A looser limit shows at the first arrival that the old one \
             would not have allowed yet; a stricter one has come into force at the last arrival that is closer than the new one allows."
        }
        Topic::Limits => {
            "Destinations with a backlog, one for each limit, all but the last at the same time. Use is arrivals ÷ what the limit allowed; \
             the fullest window of a second, wherever it begins, is that of Weir's recorded send starts, and the receiver's less 5 ms. \
             A handful of sends shows a use a little above 1: n sends make n − 1 intervals."
        }
        Topic::Overload => {
            "Batches offered at twice the rate that was delivered at most, to one unlimited destination, beside another that is \
             offered twice its limit of 50/s."
        }
    }
}

pub(crate) fn page(results: &Results) -> String {
    let machine = &results.machine;
    let mut page = "# Results\n\nWritten by `cargo xtask bench`; do not edit.\n\n".to_owned();
    if results.brief {
        page += "**A brief run, which shows that everything can be measured. These are no figures to go by.**\n\n";
    }
    let _ = writeln!(
        page,
        "{}, {} cores shared by client, receiver, engine and servers, {:.0} GiB, {}.  ",
        machine.cpu, machine.cores, machine.memory_gib, machine.kernel
    );
    let _ = writeln!(page, "{}.  ", machine.versions.join(", "));
    if let Some((first, last)) =
        results.sections.iter().map(|s| &s.began).min().zip(results.sections.iter().map(|s| &s.began).max())
    {
        let minutes = results.sections.iter().map(|section| section.took_s).sum::<f64>() / 60.0;
        let _ = writeln!(page, "Measured from {first} to {last}, {minutes:.0} minutes in all.");
    }
    page += "\nThe *ceiling* is what a plain HTTP client and receiver reach on this machine without Weir between them. The same client \
             and receiver measure Weir. A figure that was measured several times is the median, and *range* shows the least and \
             the most. *A process per role* is an API, a scheduler and two workers, and its figures are of all four together.\n";
    if results.sections.iter().any(|section| section.measured.sends.is_some()) {
        page += "\n![Sends per second against a cap that is edited while a backlog drains](results.svg)\n";
    }
    let _ = write!(page, "\n## In short\n\n{}", short::table(results));
    page += &summary(results);
    let mut last = None;
    for section in &results.sections {
        if last != Some(section.topic) {
            let _ = write!(page, "\n## {}\n\n{}\n", section.topic.title(), about(section.topic));
        }
        last = Some(section.topic);
        page += &table(section);
    }
    page
}

/// Every figure of which something is asked.
fn summary(results: &Results) -> String {
    let mut text = "\n## What is asked\n\n| | set-up | asked | figure | |\n|---|---|---|---|---|\n".to_owned();
    let mut count = (0, 0);
    for section in &results.sections {
        let title = section.topic.title();
        for figure in &section.measured.figures {
            let Some(asked) = asked(section.topic, section.set_up, &figure.id) else { continue };
            let (shown, verdict) = (shown(asked, figure), verdict(asked, figure));
            let (what, set_up, asked_for) = (&figure.what, section.set_up.title(), asked.write(figure));
            let _ = writeln!(text, "| {title}: {what} | {set_up} | {asked_for} | {shown} | {verdict} |");
            count.0 += u32::from(asked.is_met_by(figure));
            count.1 += 1;
        }
        if section.failure.is_some() {
            let _ = writeln!(text, "| {title} | {} | | | **not measured** |", section.set_up.title());
        }
    }
    let _ = write!(text, "\n{} of {} are met.\n", count.0, count.1);
    text
}

/// What is compared with what is asked: the ratio or the figure.
fn shown(asked: Asked, figure: &Figure) -> String {
    match (asked, figure.ceiling) {
        (Asked::OfCeilingAtLeast(_), Some(ceiling)) => format!("{:.1} %", ceiling.ratio * 100.0),
        _ => figure.unit.write(figure.value),
    }
}

fn verdict(asked: Asked, figure: &Figure) -> &'static str {
    if asked.is_met_by(figure) { "met" } else { "**not met**" }
}

fn table(section: &Section) -> String {
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
    if let Some(failure) = &section.failure {
        let _ = writeln!(text, "Not measured: {}", cell(failure));
        return text;
    }
    if !section.measured.figures.is_empty() {
        text += "| | figure | range | ceiling | of ceiling | asked | | |\n|---|---|---|---|---|---|---|---|\n";
    }
    for figure in &section.measured.figures {
        let write = |value| figure.unit.write(value);
        let range = figure.range.map_or(String::new(), |(least, most)| format!("{} – {}", write(least), write(most)));
        let ceiling = figure.ceiling.map_or(String::new(), |ceiling| write(ceiling.value));
        let ratio = figure.ceiling.map_or(String::new(), |ceiling| match figure.unit {
            Unit::PerSecond => format!("{:.1} %", ceiling.ratio * 100.0),
            _ => format!("{:.1} ×", ceiling.ratio),
        });
        let asked = asked(section.topic, section.set_up, &figure.id);
        let (bound, verdict) = asked.map_or((String::new(), ""), |asked| (asked.write(figure), verdict(asked, figure)));
        let (what, value, remark) = (cell(&figure.what), write(figure.value), cell(&figure.remark));
        let _ = writeln!(text, "| {what} | {value} | {range} | {ceiling} | {ratio} | {bound} | {verdict} | {remark} |");
    }
    for remark in &section.measured.remarks {
        let _ = write!(text, "\n{remark}\n");
    }
    text
}

/// On one line, and without what would end the cell.
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
    fn what_is_asked_stands_beside_what_is() {
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
    fn what_was_missed_and_what_was_not_measured_is_said() {
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
