//! The figures of a run, as JSON and as a table.

use serde::Serialize;

use crate::figures::Percentiles;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) cores: usize,
    /// The bare client to the bare receiver.
    pub(crate) ceiling_per_s: f64,
    pub(crate) single: Throughput,
    pub(crate) batch: Throughput,
    pub(crate) latency: Latency,
    pub(crate) idle: Idle,
    pub(crate) backlog: Backlog,
}

/// Events from the first POST to the last arrival.
#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    pub(crate) events: u64,
    /// Accepted and stored, while they were posted.
    pub(crate) accepted_per_s: f64,
    /// Arrived, from the first POST to the last arrival.
    pub(crate) arrived_per_s: f64,
    pub(crate) of_ceiling: f64,
}

/// From the instant a POST was meant to be sent to the arrival at the receiver.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) offered_per_s: u32,
    pub(crate) events: u32,
    #[serde(flatten)]
    pub(crate) percentiles: Percentiles,
}

#[derive(Debug, Serialize)]
pub(crate) struct Idle {
    pub(crate) destinations: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    pub(crate) rss_mib: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Backlog {
    pub(crate) deliveries: u64,
    pub(crate) rss_before_mib: f64,
    pub(crate) rss_mib: f64,
    /// Claimed, sent and arrived once the destination was resumed.
    pub(crate) drained_per_s: f64,
    pub(crate) of_ceiling: f64,
}

impl Report {
    /// One figure a line, with its share of the ceiling where that means something.
    pub(crate) fn table(&self) -> String {
        let latency = &self.latency.percentiles;
        let share = |of_ceiling: f64| format!("{:.1} %", of_ceiling * 100.0);
        let rows = [
            ("ceiling: bare client to bare receiver".to_owned(), per_s(self.ceiling_per_s), share(1.0)),
            ("end to end, single posts".to_owned(), per_s(self.single.arrived_per_s), share(self.single.of_ceiling)),
            ("end to end, batches of 100".to_owned(), per_s(self.batch.arrived_per_s), share(self.batch.of_ceiling)),
            (format!("latency at {}/s, p50", self.latency.offered_per_s), ms(latency.p50_ms), String::new()),
            (format!("latency at {}/s, p99", self.latency.offered_per_s), ms(latency.p99_ms), String::new()),
            (format!("latency at {}/s, max", self.latency.offered_per_s), ms(latency.max_ms), String::new()),
            (
                format!("{} idle destinations, CPU over {:.0} s", self.idle.destinations, self.idle.seconds),
                format!("{:.2} s", self.idle.cpu_s),
                String::new(),
            ),
            (format!("{} idle destinations, memory", self.idle.destinations), mib(self.idle.rss_mib), String::new()),
            (format!("backlog of {}, memory", self.backlog.deliveries), mib(self.backlog.rss_mib), String::new()),
            ("memory before the backlog".to_owned(), mib(self.backlog.rss_before_mib), String::new()),
            (
                format!("backlog of {}, drained", self.backlog.deliveries),
                per_s(self.backlog.drained_per_s),
                share(self.backlog.of_ceiling),
            ),
        ];
        let width = rows.iter().map(|(what, ..)| what.chars().count()).max().unwrap_or(0);
        let head = format!("{:<width$}  {:>14}  {:>10}\n{}", "", "", "of ceiling", "─".repeat(width + 28));
        let lines = rows
            .iter()
            .map(|(what, figure, share)| format!("{what:<width$}  {figure:>14}  {share:>10}").trim_end().to_owned());
        std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
    }
}

fn per_s(rate: f64) -> String {
    format!("{rate:.0}/s")
}

fn ms(duration: f64) -> String {
    format!("{duration:.2} ms")
}

fn mib(size: f64) -> String {
    format!("{size:.1} MiB")
}
