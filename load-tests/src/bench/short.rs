//! The most important figures, with the set-ups side by side, as the README shows them.

use std::fmt::Write;

use super::{
    SetUp, Topic,
    figure::{Figure, Unit},
    results::Results,
};

/// Which of several figures with the same prefix is shown.
#[derive(Clone, Copy)]
enum Pick {
    First,
    Least,
    Most,
}

struct Row {
    what: &'static str,
    topic: Topic,
    /// The first of these ids that has a figure.
    ids: &'static [&'static str],
    pick: Pick,
}

const fn row(what: &'static str, topic: Topic, ids: &'static [&'static str], pick: Pick) -> Row {
    Row { what, topic, ids, pick }
}

const ROWS: [Row; 16] = [
    row("single posts, delivered (of the ceiling)", Topic::Throughput, &["single"], Pick::First),
    row("batches of 100, delivered (of the ceiling)", Topic::Throughput, &["batch"], Pick::First),
    row("POST to arrival at 500/s, p50", Topic::Latency, &["p50.500"], Pick::First),
    row("POST to arrival at 500/s, p99", Topic::Latency, &["p99.500"], Pick::First),
    row("CPU for each delivery at 500/s", Topic::Latency, &["all.500", "weir.500"], Pick::First),
    row(
        "CPU for each delivery, 10,000 active destinations",
        Topic::Destinations,
        &["all.10000", "weir.10000"],
        Pick::First,
    ),
    row("CPU for each delivery, 10,000 busy limit keys against one", Topic::Keys, &["many_against_one"], Pick::First),
    row("CPU for each delivery, 1,000,000 waiting", Topic::Backlog, &["all.1000000", "weir.1000000"], Pick::First),
    row("100,000 idle destinations, CPU in 10 s", Topic::Idle, &["cpu_all", "cpu"], Pick::First),
    row("100,000 idle destinations, resident memory", Topic::Idle, &["memory"], Pick::First),
    row("rate edit to its effect at the receiver, the worst", Topic::Edit, &["worst."], Pick::Most),
    row("use of a limit while a backlog waits, the least of 1/s to 2,000/s", Topic::Limits, &["used."], Pick::Least),
    row("sends above a limit, in any window", Topic::Limits, &["above"], Pick::First),
    row(
        "overview of 10,000 destinations, 1,000,000 waiting, ten clients, p99",
        Topic::Viewers,
        &["p99.10"],
        Pick::First,
    ),
    row("throughput with ten viewers ÷ without", Topic::Viewers, &["share"], Pick::First),
    row("retention ÷ accepted at the same time, two processes", Topic::Retention, &["against_accepted"], Pick::First),
];

pub(super) fn table(results: &Results) -> String {
    let mut text = "| |".to_owned();
    SetUp::ALL.iter().for_each(|set_up| text += &format!(" {} |", set_up.title()));
    text += &format!("\n|---{}|\n", "|---".repeat(SetUp::ALL.len()));
    for row in &ROWS {
        let cells = SetUp::ALL.map(|set_up| pick(results, set_up, row).map_or("–".to_owned(), write));
        let _ = writeln!(text, "| {} | {} |", row.what, cells.join(" | "));
    }
    text
}

fn pick<'a>(results: &'a Results, set_up: SetUp, row: &Row) -> Option<&'a Figure> {
    let section = results.sections.iter().find(|section| (section.topic, section.set_up) == (row.topic, set_up))?;
    let figures = |id: &'static str| {
        let is_it = move |of: &str| if id.ends_with('.') { of.starts_with(id) } else { of == id };
        section.measured.figures.iter().filter(move |figure| is_it(&figure.id))
    };
    row.ids.iter().find_map(|id| {
        let mut figures = figures(id);
        match row.pick {
            Pick::First => figures.next(),
            Pick::Least => figures.min_by(|a, b| a.value.total_cmp(&b.value)),
            Pick::Most => figures.max_by(|a, b| a.value.total_cmp(&b.value)),
        }
    })
}

/// A rate is shown with its share of the ceiling.
fn write(figure: &Figure) -> String {
    let value = figure.unit.write(figure.value);
    match figure.ceiling {
        Some(ceiling) if figure.unit == Unit::PerSecond => format!("{value} ({:.0} %)", ceiling.ratio * 100.0),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::results::{Measured, Section},
        *,
    };

    fn results(topic: Topic, figures: Vec<Figure>) -> Results {
        let mut results = Results::default();
        results.put(Section {
            topic,
            set_up: SetUp::Scaled,
            began: String::new(),
            took_s: 1.0,
            ceiling: None,
            measured: Measured::of(figures),
            failure: None,
        });
        results
    }

    #[test]
    fn a_rate_is_shown_with_its_share_of_the_ceiling() {
        let single = Figure::new("single", "", Unit::PerSecond, 5_000.0).beside(&[5_000.0], &[20_000.0]);
        let table = table(&results(Topic::Throughput, vec![single]));
        assert!(table.contains("| single posts, delivered (of the ceiling) | – | 5000/s (25 %) | – |"), "{table}");
    }

    #[test]
    fn the_worst_of_several_figures_is_shown() {
        let used = |id: &str, value| Figure::new(id, "", Unit::Share, value);
        let table =
            table(&results(Topic::Limits, vec![used("used.1", 1.02), used("used.10", 0.989), used("used.50", 0.99)]));
        assert!(table.contains("| – | 0.9890 | – |"), "{table}");
    }

    #[test]
    fn the_cost_with_the_servers_is_preferred() {
        let cost = |id: &str, value| Figure::new(id, "", Unit::CpuUs, value);
        let table = table(&results(Topic::Backlog, vec![cost("weir.1000000", 90.0), cost("all.1000000", 270.0)]));
        assert!(table.contains("| – | 270 µs | – |"), "{table}");
    }
}
