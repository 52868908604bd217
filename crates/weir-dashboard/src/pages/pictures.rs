//! Pictures of the last half hour: what arrives at all destinations, is sent and fails, and how much waits; and the small
//! picture in each row of the overview.

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;
use weir_api_types::{OverviewHistory, OverviewMinute, RecentMinutes};
use weir_chart::{Color, Series, Shape, Spark};
use weir_core::Timestamp;

use crate::{
    client::{ApiPath, append},
    refusal::Refusal,
    units::{At, Count, in_one_unit},
    visit::{Answered, Visit},
};

const MINUTE_S: f64 = 60.0;
/// A minute that has begun less than this ago has no rate yet: the one before is the last.
const SHORTEST_S: f64 = 20.0;

/// What the fragment is of.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Whose {
    tenant: String,
}

/// A picture with its words.
pub(super) struct Picture {
    pub(super) name: &'static str,
    /// Its value now.
    pub(super) now: String,
    /// The largest value, as the scale.
    pub(super) most: String,
    pub(super) legend: &'static [(&'static str, &'static str)],
    pub(super) svg: String,
}

/// The pictures of all destinations.
pub(super) struct Pictures {
    base: String,
    tenant: String,
    pub(super) from: Option<At>,
    pub(super) to: At,
    pub(super) pictures: Vec<Picture>,
}

#[derive(Template)]
#[template(path = "overview_pictures.html")]
struct PicturesPart {
    pictures: Pictures,
}

impl Pictures {
    pub(super) async fn read(visit: &Visit, tenant: &str) -> Result<Self, Refusal> {
        let path = ApiPath::of(["overview", "history"]).with("tenant", tenant.trim());
        let history = visit.api.get::<OverviewHistory>(&path).await?;
        Ok(Self::of(visit.site.base.clone(), tenant.trim().to_owned(), &history))
    }

    fn of(base: String, tenant: String, history: &OverviewHistory) -> Self {
        let OverviewHistory { as_of, data } = history;
        let rated = match data.as_slice() {
            [rest @ .., last] if !rest.is_empty() && as_of.since(last.at).as_secs_f64() < SHORTEST_S => rest,
            all => all,
        };
        let rates = |figure: fn(&OverviewMinute) -> u64| -> Vec<f64> {
            rated.iter().map(|minute| figure(minute) as f64 / seconds_of(minute.at, *as_of)).collect()
        };
        let (arrivals, sends, failed) =
            (rates(|minute| minute.arrivals), rates(|minute| minute.sends), rates(|minute| minute.failed));
        let backlog: Vec<f64> = data.iter().map(|minute| minute.backlog as f64).collect();
        let last = |values: &[f64]| values.last().copied().unwrap_or_default();
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let ago = |at: Timestamp| match (as_of.since(at).as_secs_f64() / MINUTE_S) as u64 {
            0 => "this minute".to_owned(),
            minutes => format!("{minutes} min ago"),
        };
        let places = |minutes: &[OverviewMinute], text: &dyn Fn(usize) -> String| -> Vec<String> {
            minutes.iter().enumerate().map(|(at, minute)| format!("{}: {}", ago(minute.at), text(at))).collect()
        };
        let series = |color, shape, values: &[f64]| Series { color, shape, values: values.to_vec() };
        let [now_in, now_out] = in_one_unit([last(&arrivals), last(&sends)]);
        let [now_failed, most_failed] = in_one_unit([last(&failed), most(&failed)]);
        let [most_flow] = in_one_unit([most(&arrivals).max(most(&sends))]);
        let flow = Spark {
            series: vec![series(Color::Blue, Shape::Area, &sends), series(Color::Amber, Shape::Line, &arrivals)],
            label: format!("Arriving {now_in} and sent {now_out} now; at most {most_flow} in the last half hour"),
            places: places(rated, &|at| {
                let [arriving, sent] = in_one_unit([arrivals[at], sends[at]]);
                format!("{arriving} arrived, {sent} sent")
            }),
        };
        let failures = Spark {
            series: vec![series(Color::Red, Shape::Bars, &failed)],
            label: format!("Failed attempts: {now_failed} now; at most {most_failed} in the last half hour"),
            places: places(rated, &|at| format!("{} failed", Count(data[at].failed))),
        };
        let (now_waiting, most_waiting) = (Count(last(&backlog) as u64), Count(most(&backlog) as u64));
        let waiting = Spark {
            series: vec![series(Color::Grey, Shape::Area, &backlog)],
            label: format!("Waiting: {now_waiting} now; at most {most_waiting} in the last half hour"),
            places: places(data, &|at| format!("{} waiting", Count(data[at].backlog))),
        };
        let picture = |name, now, most, legend, spark: Spark| Picture { name, now, most, legend, svg: spark.inline() };
        let pictures = vec![
            picture(
                "Arriving and sent",
                format!("{now_in} in, {now_out} out"),
                most_flow,
                &[("amber", "arriving"), ("blue", "sent")],
                flow,
            ),
            picture("Failed attempts", now_failed, most_failed, &[], failures),
            picture("Waiting", now_waiting.to_string(), most_waiting.to_string(), &[], waiting),
        ];
        Self { base, tenant, from: data.first().map(|minute| At(minute.at)), to: At(*as_of), pictures }
    }

    /// The fragment that replaces these pictures.
    pub(super) fn fragment(&self) -> String {
        let mut link = format!("{}/fragments/overview/pictures", self.base);
        append(&mut link, "tenant", &self.tenant);
        link
    }
}

/// How long a minute has lasted.
fn seconds_of(at: Timestamp, as_of: Timestamp) -> f64 {
    as_of.since(at).as_secs_f64().clamp(SHORTEST_S, MINUTE_S)
}

/// The small picture of a row.
pub(super) fn spark(recent: &RecentMinutes, as_of: Timestamp) -> String {
    let last = recent.sends.len().saturating_sub(1);
    let begins =
        |place: usize| recent.from + std::time::Duration::from_secs(60) * u32::try_from(place).unwrap_or(u32::MAX);
    let rates = |counts: &[u64]| -> Vec<f64> {
        let rate = |(place, count): (usize, &u64)| match place {
            place if place == last => *count as f64 / seconds_of(begins(place), as_of),
            _ => *count as f64 / MINUTE_S,
        };
        counts.iter().enumerate().map(rate).collect()
    };
    let sum = |counts: &[u64]| Count(counts.iter().sum());
    let label = format!(
        "Last half hour: {} arrived, {} sent, {} failed",
        sum(&recent.arrivals),
        sum(&recent.sends),
        sum(&recent.failed)
    );
    let series = |color, shape, counts: &[u64]| Series { color, shape, values: rates(counts) };
    let series = vec![
        series(Color::Blue, Shape::Area, &recent.sends),
        series(Color::Amber, Shape::Line, &recent.arrivals),
        series(Color::Red, Shape::Bars, &recent.failed),
    ];
    Spark { series, label, places: Vec::new() }.inline()
}

/// The pictures alone, for live updates.
pub(crate) async fn fragment(visit: Visit, Query(whose): Query<Whose>) -> Answered {
    let pictures = Pictures::read(&visit, &whose.tenant).await?;
    visit.fragment(&PicturesPart { pictures })
}
