//! "What would yesterday have been like?": the limits in the editor, tried on recorded deliveries.

use std::time::Duration;

use serde_json::{Value, json};
use weir_api_types::Simulation;
use weir_chart::{Color, Series, Shape, Spark};
use weir_core::Timestamp;

use crate::{
    fields::Fields,
    units::{Seconds, Units as _},
    views::LimitText as _,
};

/// A choice of the form: its value, its name, and the value for the API.
type Choice = (&'static str, &'static str, u32);

const RANGES: [Choice; 4] = [
    ("1h", "the last hour", 3_600),
    ("6h", "the last 6 hours", 21_600),
    ("24h", "the last 24 hours", 86_400),
    ("7d", "the last 7 days", 604_800),
];
const TRAFFIC: [Choice; 4] =
    [("1", "as it was", 1), ("2", "twice", 2), ("5", "five times", 5), ("10", "ten times", 10)];
const WITHIN: [Choice; 4] = [
    ("5s", "5 seconds", 5_000),
    ("1m", "a minute", 60_000),
    ("10m", "10 minutes", 600_000),
    ("1h", "an hour", 3_600_000),
];

/// What is asked, and the answer.
pub(crate) struct Past {
    range: Choice,
    traffic: Choice,
    within: Choice,
    pub(crate) tried: Option<Tried>,
}

impl Default for Past {
    fn default() -> Self {
        Self::read(&Fields::parse(b""))
    }
}

impl Past {
    pub(super) fn read(fields: &Fields) -> Self {
        let chosen = |name: &str, choices: [Choice; 4], default: usize| {
            choices.into_iter().find(|choice| choice.0 == fields.text(name)).unwrap_or(choices[default])
        };
        Self {
            range: chosen("past", RANGES, 2),
            traffic: chosen("traffic", TRAFFIC, 0),
            within: chosen("within", WITHIN, 1),
            tried: None,
        }
    }

    /// What is asked of the API beside the limits.
    pub(super) fn ask(&self, body: &mut Value, now: Timestamp) {
        body["from"] = json!(now.before(Duration::from_secs(self.range.2.into())));
        body["scale"] = json!(self.traffic.2);
        body["target"] = json!({"latency_p99_ms": self.within.2});
    }

    /// With the answer for these limits.
    pub(super) fn answered(&self, simulation: Simulation, limits: String) -> Tried {
        Tried { simulation, limits, range: self.range.1, within: self.within }
    }

    /// The fields of the form: name, label, choices, and the value that is chosen.
    pub(crate) fn fields(&self) -> [(&'static str, &'static str, [Choice; 4], &'static str); 3] {
        [
            ("past", "Deliveries of", RANGES, self.range.0),
            ("traffic", "Traffic", TRAFFIC, self.traffic.0),
            ("within", "99 of 100 within", WITHIN, self.within.0),
        ]
    }
}

/// What the limits would have done.
pub(crate) struct Tried {
    pub(super) simulation: Simulation,
    /// What was tried: `20/s; 64 in flight`.
    pub(super) limits: String,
    range: &'static str,
    pub(super) within: Choice,
}

impl Tried {
    /// The answer in a sentence.
    pub(super) fn sentence(&self) -> String {
        let Simulation { deliveries, verdict, backlog_end, latency_ms, .. } = &self.simulation;
        let (limits, range) = (&self.limits, self.range);
        if *deliveries == 0 {
            return format!("Nothing was due in {range}.");
        }
        let deliveries = deliveries.count();
        let waiting = backlog_end.count();
        match (&**verdict, latency_ms.p99) {
            ("grows", _) => {
                format!("With {limits}, the backlog of {range} would have grown: {waiting} would wait now.")
            }
            (_, Some(p99)) if *backlog_end == 0 => format!(
                "With {limits}, all {deliveries} deliveries of {range} would have been sent, 99 of 100 answered within {}.",
                Seconds(p99 / 1_000.0)
            ),
            _ => format!(
                "With {limits}, the {deliveries} deliveries of {range} would have drained: {waiting} would wait now."
            ),
        }
    }

    /// The smallest limit that is enough.
    pub(super) fn smallest(&self) -> Option<String> {
        self.simulation.smallest_limit.as_ref().map(|limit| limit.short())
    }

    /// When the last delivery would be sent, if some would still wait at the end.
    pub(super) fn late_end(&self) -> Option<Timestamp> {
        self.simulation.drained_at.filter(|_| self.simulation.backlog_end > 0)
    }

    pub(super) fn is_bad(&self) -> bool {
        self.simulation.verdict == "grows" || self.simulation.would_expire > 0
    }

    /// The figures beside each other: what they are, as recorded, and with the limits.
    pub(super) fn figures(&self) -> [(&'static str, String, String); 4] {
        let Simulation { latency_ms, recorded_latency_ms, series, backlog_max, backlog_end, .. } = &self.simulation;
        let time = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), |ms| Seconds(ms / 1_000.0).to_string());
        let recorded = series.iter().map(|point| point.recorded_backlog);
        let last = series.last().map_or(0, |point| point.recorded_backlog);
        [
            ("Half answered within", time(recorded_latency_ms.p50), time(latency_ms.p50)),
            ("99 of 100 within", time(recorded_latency_ms.p99), time(latency_ms.p99)),
            ("Most waiting", recorded.max().unwrap_or(0).count().to_string(), backlog_max.count.count().to_string()),
            ("Waiting at the end", last.count().to_string(), backlog_end.count().to_string()),
        ]
    }

    /// The backlogs, recorded and simulated.
    pub(super) fn picture(&self) -> Spark {
        let points = &self.simulation.series;
        let values =
            |figure: fn(&weir_api_types::SimulationPoint) -> u64| points.iter().map(|at| figure(at) as f64).collect();
        let place = |point: &weir_api_types::SimulationPoint| {
            let clock = point.at.to_string().replace('T', " ");
            let (recorded, tried) = (point.recorded_backlog.count(), point.backlog.count());
            format!("{} UTC: {recorded} waited, {tried} would wait", clock.get(5..16).unwrap_or(&clock))
        };
        Spark {
            series: vec![
                Series { color: Color::Grey, shape: Shape::Area, values: values(|point| point.recorded_backlog) },
                Series { color: Color::Blue, shape: Shape::Line, values: values(|point| point.backlog) },
            ],
            label: format!("Waiting deliveries, as recorded and with {}", self.limits),
            places: points.iter().map(place).collect(),
        }
    }

    pub(super) fn most(&self) -> String {
        (self.picture().most() as u64).count().to_string()
    }
}
