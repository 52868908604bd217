//! The charts of a destination: the fullest windows below their limit, arrivals and sends, how attempts ended, how long the
//! receiver took to answer, and the backlog. All panels have the same time axis; the values of a bucket are shown at the
//! pointer.

use std::collections::BTreeSet;

use weir_api_types::{ErrorCount, History, HistoryBucket, HistoryLatency, LimitChange, MaxWindow};
use weir_chart::{Axis, Chart, Color, Content, Element, Key, Panel, Plot, Point, Stroke, Values, stairs};
use weir_core::{Period, Timestamp};

use crate::{
    extend::extend,
    units::{Seconds, Units as _, capitalised},
    views::{LimitText, period_words},
};

const WIDTH: f64 = 960.0;
const TALL: f64 = 210.0;
const SHORT: f64 = 150.0;
/// The most stretches with values at the pointer: each is about two pixels wide. Longer ranges have several buckets in one.
const STRETCHES: usize = 400;
/// The errors that have a colour of their own; the others are drawn together.
const ERROR_COLORS: [Color; 3] = [Color::Red, Color::Amber, Color::Blue];

/// A limit whose windows are drawn, by what tells it from the others of its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pages) struct Of {
    period: Period,
    in_costs: bool,
}

impl Of {
    fn new(period: &str, unit: Option<&str>) -> Option<Self> {
        Some(Self { period: Period::parse(period)?, in_costs: unit.is_some() })
    }

    /// `any minute`, and what its windows hold if they hold no sends.
    fn words(self) -> [String; 2] {
        let points = if self.in_costs { " points" } else { "" };
        [format!("any {}", period_words(&self.period.to_string())), points.to_owned()]
    }

    /// `minute`, `minute, points`
    pub(in crate::pages) fn shortly(self) -> String {
        format!("{}{}", self.period, if self.in_costs { ", points" } else { "" })
    }
}

/// In the names of columns of a file: `minute`, `cost_minute`.
impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.in_costs { "cost_" } else { "" }, self.period)
    }
}

extend! {
    pub(in crate::pages) trait BucketText for HistoryBucket {
        fn window(&self, of: Of) -> Option<&MaxWindow> {
            self.max_window.iter().find(|window| Of::new(&window.period, window.unit.as_deref()) == Some(of))
        }
    }
}

extend! {
    pub(in crate::pages) trait HistoryText for History {
        fn step_ms(&self) -> i64 {
            match self.step.as_str() {
                "1h" => 3_600_000,
                "1m" => 60_000,
                _ => 10_000,
            }
        }

        /// An axis of what was counted in each step.
        fn counts(&self, highest: u64) -> Axis {
            Axis::counts(highest).named(match self.step.as_str() {
                "1h" => "per hour",
                "1m" => "per minute",
                _ => "per 10 s",
            })
        }

        /// The limits that were in force in the range, the shortest period first.
        fn limits(&self) -> BTreeSet<Of> {
            let windows = self.data.iter().flat_map(|bucket| &bucket.max_window);
            windows.filter_map(|window| Of::new(&window.period, window.unit.as_deref())).collect()
        }

        /// The chart of the range, with the windows of the limit that binds.
        fn chart(&self, title: &str) -> Chart {
            let binding = self.binding();
            self.chart_of(title, binding, true)
        }

        /// The chart with the windows of every limit.
        fn whole_chart(&self, title: &str) -> Chart {
            self.chart_of(title, self.limits(), true)
        }

        /// The windows of the limits that do not bind. `None`: there is no such limit.
        fn other_limits(&self) -> Option<Chart> {
            let binding = self.binding();
            let others: Vec<_> = self.limits().into_iter().filter(|limit| Some(*limit) != binding).collect();
            (!others.is_empty()).then(|| self.chart_of("", others, false))
        }

        /// The limit that binds: of those in requests the one that allows the lowest rate at the end of the range, or one
        /// in costs whose windows were fuller.
        fn binding(&self) -> Option<Of> {
            let last = |of: Of| self.data.iter().rev().find_map(|bucket| Some(bucket.window(of)?.limit));
            let per_s = |of: Of| Some(last(of)? as f64 / of.period.window().as_secs_f64());
            let used = |of: Of| -> f64 {
                let windows = self.data.iter().filter_map(|bucket| bucket.window(of));
                windows.map(|window| window.sends as f64 / window.limit.max(1) as f64).sum()
            };
            let (in_costs, in_requests): (Vec<Of>, Vec<Of>) = self.limits().into_iter().partition(|of| of.in_costs);
            let rates = in_requests.into_iter().filter_map(|of| Some((per_s(of)?, of)));
            let slowest = rates.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, of)| of);
            let fullest = in_costs.into_iter().max_by(|a, b| used(*a).total_cmp(&used(*b)));
            match (slowest, fullest) {
                (Some(slowest), Some(fullest)) if used(slowest) >= used(fullest) => Some(slowest),
                (slowest, fullest) => fullest.or(slowest),
            }
        }

        fn chart_of(&self, title: &str, windows: impl IntoIterator<Item = Of>, has_all: bool) -> Chart {
            // The legend is the same for all limits in requests, so it is shown once.
            let mut panels: Vec<Panel> =
                windows.into_iter().enumerate().map(|(nth, of)| self.windows(of, has_all && nth == 0)).collect();
            if has_all {
                panels.push(self.traffic());
                panels.push(self.outcomes());
                panels.extend(self.answer_times());
                panels.extend(self.errors());
                panels.push(self.backlog());
            }
            self.assembled(title, panels, self.stretches())
        }

        /// The chart of what the members of a limit group got and sent, of which nobody knows windows and backlog.
        fn traffic_chart(&self) -> Chart {
            let mut stretches = self.stretches();
            // Without the last line, which is the backlog.
            stretches.iter_mut().for_each(|(_, lines)| lines.truncate(lines.len().saturating_sub(1)));
            self.assembled("", vec![self.traffic(), self.outcomes()], stretches)
        }

        fn assembled(&self, title: &str, panels: Vec<Panel>, stretches: Vec<((f64, f64), Vec<String>)>) -> Chart {
            let mut panels = panels;
            // All panels have the same axis of times; the last one names it.
            if let Some(Panel { content: Content::Plot(plot), .. }) = panels.last_mut() {
                plot.x = self.time_axis().named_by_days();
            }
            let values = Values { x: self.time_axis(), stretches };
            Chart { width: WIDTH, title: title.to_owned(), legend: Vec::new(), panels, values: Some(values) }
        }

        /// The buckets as steps.
        fn steps(&self, value: &dyn Fn(&HistoryBucket) -> Option<u64>) -> Vec<Vec<Point>> {
            let step = self.step_ms() as f64;
            stairs(self.data.iter().map(|bucket| {
                let at = bucket.at.as_millis() as f64;
                (at, at + step, value(bucket).map(|value| value as f64))
            }))
        }

        fn windows(&self, of: Of, has_legend: bool) -> Panel {
            let sends = |bucket: &HistoryBucket| bucket.window(of).map(|window| window.sends);
            let cap = |bucket: &HistoryBucket| Some(bucket.window(of)?.limit);
            let highest = self.data.iter().flat_map(|bucket| [sends(bucket), cap(bucket)]).flatten().max().unwrap_or(0);
            let mut elements = areas(Color::Blue, self.steps(&sends));
            elements.extend(lines(Color::Red, Stroke::Dashed, self.steps(&cap)));
            elements.extend(self.edits(Some(of)));
            let [largest, limit] =
                if of.in_costs { ["largest window, in points", "limit, in points"] } else { ["largest window", "limit"] };
            let legend = vec![area(largest, Color::Blue), line(limit, Color::Red, Stroke::Dashed)];
            let legend = if has_legend || of.in_costs { legend } else { Vec::new() };
            let [any, _] = of.words();
            let y = Axis::counts(highest.max(1)).named(if of.in_costs { "points" } else { "sends" });
            self.panel(TALL, &capitalised(&any), legend, y, elements)
        }

        fn traffic(&self) -> Panel {
            let highest = self.highest(&|bucket| bucket.sends.max(bucket.arrivals));
            let mut elements = areas(Color::Blue, self.steps(&|bucket| Some(bucket.sends)));
            elements.extend(lines(Color::Grey, Stroke::Solid, self.steps(&|bucket| Some(bucket.arrivals))));
            elements.extend(self.edits(None));
            let legend = vec![area("sent", Color::Blue), line("arrived", Color::Grey, Stroke::Solid)];
            self.panel(SHORT, "Arrivals and sends", legend, self.counts(highest), elements)
        }

        fn outcomes(&self) -> Panel {
            let highest = self.highest(&|bucket| bucket.delivered.max(bucket.failed));
            let mut elements = areas(Color::Green, self.steps(&|bucket| Some(bucket.delivered)));
            elements.extend(lines(Color::Red, Stroke::Solid, self.steps(&|bucket| Some(bucket.failed))));
            let legend = vec![area("succeeded", Color::Green), line("failed", Color::Red, Stroke::Solid)];
            self.panel(SHORT, "Attempts", legend, self.counts(highest), elements)
        }

        /// `None`: nothing was sent, or it is too long ago.
        fn answer_times(&self) -> Option<Panel> {
            let slowest = self.latencies.iter().map(|latency| latency.p95).fold(0.0, f64::max);
            if slowest <= 0.0 {
                return None;
            }
            let steps = |value: fn(&HistoryLatency) -> f64| {
                let (from, to) = (self.from.as_millis() as f64, self.to.as_millis() as f64);
                stairs(self.latencies.iter().map(move |latency| {
                    let at = latency.at.as_millis() as f64;
                    let until = at + f64::from(latency.step_s) * 1_000.0;
                    (at.max(from), until.min(to), Some(value(latency)))
                }))
            };
            let mut elements = lines(Color::Amber, Stroke::Solid, steps(|latency| latency.p95));
            elements.extend(lines(Color::Blue, Stroke::Solid, steps(|latency| latency.p50)));
            let legend = vec![line("p50", Color::Blue, Stroke::Solid), line("p95", Color::Amber, Stroke::Solid)];
            // Answer times are whole milliseconds, and so are the labels.
            let y = Axis::linear((slowest * 1.1).max(4.0), 4, |ms| Seconds(ms / 1_000.0).to_string());
            Some(self.panel(SHORT, "The receiver answers in", legend, y, elements))
        }

        /// How attempts failed: each error as a part of a bar. `None`: none failed, or the errors are left out.
        fn errors(&self) -> Option<Panel> {
            let kinds = self.kinds_of_errors();
            if kinds.is_empty() {
                return None;
            }
            let named = &kinds[..kinds.len().min(ERROR_COLORS.len())];
            let count = |bucket: &HistoryBucket, named: &str| {
                bucket.errors.iter().find(|of| of.error == named).map_or(0, |of| of.count)
            };
            let all = |bucket: &HistoryBucket| bucket.errors.iter().map(|of| of.count).sum::<u64>();
            let step = self.step_ms() as f64;
            // The highest bar first: each lower one covers the part below it.
            let mut elements = Vec::new();
            for bucket in &self.data {
                let at = bucket.at.as_millis() as f64;
                let mut height = all(bucket);
                let mut bar = |color, height: u64| {
                    if height > 0 {
                        elements.push(Element::Bar(color, (at, at + step), height as f64));
                    }
                };
                if kinds.len() > named.len() {
                    bar(Color::Grey, height);
                    height = named.iter().map(|of| count(bucket, of)).sum();
                }
                for (nth, of) in named.iter().enumerate().rev() {
                    bar(ERROR_COLORS[nth], height);
                    height = height.saturating_sub(count(bucket, of));
                }
            }
            let mut legend: Vec<Key> =
                named.iter().zip(ERROR_COLORS).map(|(of, color)| area(of.clone(), color)).collect();
            if kinds.len() > named.len() {
                legend.push(area("others", Color::Grey));
            }
            let highest = self.data.iter().map(all).max().unwrap_or(0);
            Some(self.panel(SHORT, "Errors", legend, self.counts(highest.max(1)), elements))
        }

        /// The errors of the range, the most frequent first.
        fn kinds_of_errors(&self) -> Vec<String> {
            let mut kinds: Vec<ErrorCount> = Vec::new();
            for of in self.data.iter().flat_map(|bucket| &bucket.errors) {
                match kinds.iter_mut().find(|known| known.error == of.error) {
                    Some(known) => known.count += of.count,
                    None => kinds.push(of.clone()),
                }
            }
            kinds.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.error.cmp(&b.error)));
            kinds.into_iter().map(|of| of.error).collect()
        }

        fn backlog(&self) -> Panel {
            let highest = self.highest(&|bucket| bucket.backlog);
            let mut elements = areas(Color::Grey, self.steps(&|bucket| Some(bucket.backlog)));
            elements.extend(self.edits(None));
            self.panel(SHORT, "Backlog", Vec::new(), Axis::counts(highest).named("waiting"), elements)
        }

        fn highest(&self, value: &dyn Fn(&HistoryBucket) -> u64) -> u64 {
            self.data.iter().map(value).max().unwrap_or(0).max(1)
        }

        fn panel(&self, height: f64, title: &str, legend: Vec<Key>, y: Axis, elements: Vec<Element>) -> Panel {
            let content = Content::Plot(Plot { x: self.time_axis(), y, elements });
            Panel { height, title: title.to_owned(), note: String::new(), legend, content }
        }

        /// The edits of the limits in the range; with a limit, labelled by its new value if it has another one.
        fn edits(&self, of: Option<Of>) -> Vec<Element> {
            let inside = self.limit_changes.iter().filter(|change| self.from < change.at && change.at < self.to);
            let before = |at: Timestamp| {
                let bucket =
                    self.data.iter().rev().find(|bucket| bucket.at.as_millis() + self.step_ms() <= at.as_millis());
                bucket.and_then(|bucket| Some(bucket.window(of?)?.limit))
            };
            let label = |change: &LimitChange| {
                let Some(of) = of else { return String::new() };
                let mut limits = change.rate_limits.iter();
                let limit = limits.find(|limit| Of::new(&limit.period, limit.unit.as_deref()) == Some(of));
                if limit.map(|limit| u64::from(limit.limit)) == before(change.at) {
                    return String::new();
                }
                limit.map_or_else(|| "no limit".to_owned(), LimitText::short)
            };
            inside.map(|change| Element::Mark(Color::Amber, change.at.as_millis() as f64, label(change))).collect()
        }

        fn time_axis(&self) -> Axis {
            Axis::times(self.from.as_millis(), self.to.as_millis())
        }

        /// What the pointer shows, by stretches of one or more buckets.
        fn stretches(&self) -> Vec<((f64, f64), Vec<String>)> {
            let many = self.data.len().div_ceil(STRETCHES).max(1);
            let stretch = |buckets: &[HistoryBucket]| {
                let from = buckets.first()?.at;
                let until = Timestamp::from_millis(buckets.last()?.at.as_millis() + self.step_ms());
                let lines = self.values(buckets, from, until);
                Some(((from.as_millis() as f64, until.as_millis() as f64), lines))
            };
            self.data.chunks(many).filter_map(stretch).collect()
        }

        fn values(&self, buckets: &[HistoryBucket], from: Timestamp, until: Timestamp) -> Vec<String> {
            let shown = |at: Timestamp| at.to_string().get(..19).unwrap_or_default().replace('T', " ");
            let is_one_day = shown(self.from).get(..10) == shown(self.to).get(..10);
            let clock = |at: Timestamp| shown(at).get(if is_one_day { 11 } else { 5 }..).unwrap_or_default().to_owned();
            let sum = |value: fn(&HistoryBucket) -> u64| buckets.iter().map(value).sum::<u64>().count();
            let mut lines = vec![format!("{} to {} UTC", clock(from), clock(until))];
            for of in self.limits() {
                let fullest = buckets.iter().filter_map(|bucket| bucket.window(of)).max_by_key(|window| window.sends);
                let [any, points] = of.words();
                lines.extend(fullest.map(|of| format!("{any}: {} of {}{points}", of.sends.count(), of.limit.count())));
            }
            lines.push(format!("arrived {}, sent {}", sum(|bucket| bucket.arrivals), sum(|bucket| bucket.sends)));
            lines.push(format!("succeeded {}, failed {}", sum(|bucket| bucket.delivered), sum(|bucket| bucket.failed)));
            let latency = self.latencies.iter().rev().find(|latency| latency.at <= from);
            let latency = latency.filter(|latency| from.since(latency.at).as_secs() < latency.step_s.into());
            lines.extend(latency.map(|latency| {
                let [p50, p95] = [latency.p50, latency.p95].map(|ms| Seconds(ms / 1_000.0));
                format!("answered in {p50} (p50), {p95} (p95)")
            }));
            let errors = |kind: String| {
                let of_kind = buckets.iter().flat_map(|bucket| &bucket.errors).filter(|of| of.error == kind);
                let count = of_kind.map(|of| of.count).sum::<u64>();
                (count > 0).then(|| format!("{kind} × {}", count.count()))
            };
            let errors: Vec<String> = self.kinds_of_errors().into_iter().filter_map(errors).collect();
            if !errors.is_empty() {
                lines.push(errors.join(", "));
            }
            lines.extend(buckets.last().map(|bucket| format!("waiting {}", bucket.backlog.count())));
            lines
        }
    }
}

fn area(name: impl Into<std::borrow::Cow<'static, str>>, color: Color) -> Key {
    Key { name: name.into(), color, stroke: None }
}

fn line(name: &'static str, color: Color, stroke: Stroke) -> Key {
    Key { name: name.into(), color, stroke: Some(stroke) }
}

fn areas(color: Color, parts: Vec<Vec<Point>>) -> Vec<Element> {
    parts.into_iter().map(|part| Element::Area(color, part)).collect()
}

fn lines(color: Color, stroke: Stroke, parts: Vec<Vec<Point>>) -> Vec<Element> {
    parts.into_iter().map(|part| Element::Line(color, stroke, part)).collect()
}
