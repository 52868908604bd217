//! The adaptive pace of a destination: drawn below its limit, each change with its reason, and the switch.

use askama::Template;
use http::Method;
use serde_json::{Value, json};
use weir_api_types::{AdaptiveRate, Destination, History, RateChange, RateHistory};
use weir_chart::{Axis, Chart, Color, Content, Element, Key, Panel, Plot, Point, Stroke, stairs};
use weir_core::Period;

use super::{
    charts::HistoryText as _,
    proof::{Range, history_path},
};
use crate::{
    client::{ApiPath, Call},
    extend::extend,
    fields::Fields,
    path_id::PathId,
    units::Units as _,
    visit::{Answered, Visit, local_path},
};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 190.0;
/// The most changes in the list.
const LISTED: usize = 12;
/// A limit that is this many times higher than everything else is not drawn: the pace would be a flat line.
const FAR: f64 = 4.0;

extend! {
    pub(crate) trait PaceText for AdaptiveRate {
        /// What the pace does, and why: `Lowered: 12 of 340 answers were 429`.
        fn sentence(&self) -> String {
            let does = match &*self.reason {
                "starting" => "It doubles until the receiver refuses",
                "growing" => "It rises",
                "resting" => "It waits below what the receiver refused",
                "throttled" => "It was lowered",
                "latency" => "Answers are late, so sends wait for answers",
                "advertised" => "The receiver announced what it takes",
                "held" => "The receiver takes nothing now",
                "at_limit" => "The limit holds it",
                "idle" => "It has not been needed",
                _ => "It has found itself",
            };
            if self.detail.is_empty() { does.to_owned() } else { format!("{does}: {}", self.detail) }
        }
    }
    pub(crate) trait RateChangeText for RateChange {
        /// `Lowered to 18/s: 12 of 340 answers were 429`.
        fn sentence(&self) -> String {
            let verb = if self.is_lowered() { "Lowered" } else { "Raised" };
            let change = format!("{verb} to {}", self.to_per_s.per_s());
            if self.detail.is_empty() { change } else { format!("{change}: {}", self.detail) }
        }

        fn is_lowered(&self) -> bool {
            self.to_per_s < self.from_per_s
        }
    }
}

#[derive(Template)]
#[template(path = "destination_pace.html")]
struct PacePart {
    /// With the base.
    path: String,
    destination: Destination,
    history: History,
    rate: RateHistory,
}

impl PacePart {
    fn is_adaptive(&self) -> bool {
        self.destination.settings.adaptive.is_some()
    }

    fn listed(&self) -> &[RateChange] {
        &self.rate.data[..self.rate.data.len().min(LISTED)]
    }

    /// The lowest of the limits and of the bound of the pace, per second.
    fn cap(&self) -> Option<f64> {
        let settings = &self.destination.settings;
        let per_s = |period: &str| Some(Period::parse(period)?.window().as_secs_f64());
        let limits = settings.rate_limits.iter().filter_map(|of| Some(f64::from(of.limit) / per_s(&of.period)?));
        let interval = settings.min_interval_ms.map(|ms| 1_000.0 / f64::from(ms));
        let bound = settings.adaptive.as_ref().and_then(|adaptive| adaptive.max_per_s);
        limits.chain(interval).chain(bound).min_by(f64::total_cmp)
    }

    /// `None`: there is no pace yet.
    fn chart(&self) -> Option<String> {
        let present = self.rate.adaptive_rate.as_ref()?.per_s;
        let (from, to) = (self.history.from.as_millis() as f64, self.history.to.as_millis() as f64);
        // Newest first: each change ends the step before it.
        let mut steps = Vec::new();
        let (mut until, mut pace) = (to, present);
        for change in &self.rate.data {
            let at = (change.at.as_millis() as f64).clamp(from, to);
            steps.push((at, until, Some(pace)));
            (until, pace) = (at, change.from_per_s);
        }
        steps.push((from, until, Some(pace)));
        steps.reverse();
        let step_ms = self.history.step_ms();
        let sends = stairs(self.history.data.iter().map(|bucket| {
            let at = bucket.at.as_millis() as f64;
            (at, at + step_ms as f64, Some(bucket.sends as f64 * 1_000.0 / step_ms as f64))
        }));
        let paces = stairs(steps);
        let tallest = |lines: &[Vec<Point>]| lines.iter().flatten().map(|(_, value)| *value).fold(0.0, f64::max);
        let tallest = tallest(&sends).max(tallest(&paces)).max(0.01);
        let cap = self.cap();
        let drawn = cap.filter(|cap| *cap <= FAR * tallest);
        let mut elements: Vec<Element> = sends.into_iter().map(|line| Element::Area(Color::Blue, line)).collect();
        elements.extend(drawn.map(|cap| Element::Line(Color::Red, Stroke::Dashed, vec![(from, cap), (to, cap)])));
        elements.extend(paces.into_iter().map(|line| Element::Line(Color::Green, Stroke::Solid, line)));
        // Without labels, which would cover each other: the list has the rates.
        let cuts = self.rate.data.iter().filter(|change| change.is_lowered());
        elements.extend(cuts.map(|change| Element::Mark(Color::Amber, change.at.as_millis() as f64, String::new())));
        let key = |name: &'static str, color, stroke| Key { name: name.into(), color, stroke };
        let mut legend = vec![key("sent", Color::Blue, None), key("pace", Color::Green, Some(Stroke::Solid))];
        legend.extend(drawn.map(|_| key("limit", Color::Red, Some(Stroke::Dashed))));
        // At the left: at the right is the legend.
        let title = cap.filter(|_| drawn.is_none()).map(|cap| format!("The limit of {} is far above", cap.per_s()));
        let plot = Plot {
            x: Axis::times(self.history.from.as_millis(), self.history.to.as_millis()).named_by_days(),
            y: Axis::linear(tallest.max(drawn.unwrap_or(0.0)) * 1.1, 4, |rate| rate.per_s().to_string()),
            elements,
        };
        let (title, note) = (title.unwrap_or_default(), String::new());
        let panel = Panel { height: HEIGHT, title, note, legend, content: Content::Plot(plot) };
        Some(Chart::of(WIDTH, panel).inline())
    }
}

/// The pace of the last minutes and its changes, or what it would be.
pub(crate) async fn recent(visit: Visit, PathId(id): PathId) -> Answered {
    let history_path = history_path(&id, &Range::default());
    let ((destination, _), history): (_, History) =
        tokio::try_join!(super::read(&visit, &id), visit.api.get(&history_path))?;
    let path = ApiPath::of(["destinations", &id, "rate"]).with("from", &history.from.to_string()).with("limit", "200");
    let rate = visit.api.get(&path).await?;
    let path = format!("{}/destinations/{id}", visit.site.base);
    visit.fragment(&PacePart { path, destination, history, rate })
}

/// Turns the adaptive pace on or off. Its bounds are in the form of the settings.
pub(crate) async fn switch(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let is_on = fields.text("adaptive") == "on";
    let adaptive = if is_on { json!({}) } else { Value::Null };
    let edit = Call::new(Method::PATCH, &ApiPath::of(["destinations", &id])).json(&json!({ "adaptive": adaptive }))?;
    let text = match is_on {
        true => "The pace is adaptive now: from 10/s it doubles until the receiver refuses. Every limit stays exact.",
        false => "The pace is no longer adaptive: only the limits bound it.",
    };
    visit.after(local_path(fields.raw("next")), visit.api.send(&edit).await, |_| text.to_owned())
}
