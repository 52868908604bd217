//! The tab *Proof*: that the limits held. Each bucket of the chart shows the largest sliding window that ends in it, so
//! the chart is exact at every zoom; the verdict is the audit's, from every recorded send.

use std::fmt::Write as _;

use askama::Template;
use axum::{extract::Query, response::IntoResponse};
use http::{StatusCode, header};
use serde::Deserialize;
use weir_api_types::{Audit, Destination, History, HistoryBucket, LimitAudit, MinIntervalAudit, RateLimit};
use weir_core::{Timestamp, access::Role};

use super::{
    Head, Tab,
    charts::{BucketText as _, HistoryText as _},
};
use crate::{
    client::{ApiPath, append},
    delivery_filter::instant,
    extend::extend,
    frame::{Frame, Me, Section},
    path_id::PathId,
    range::Picker,
    refusal::Refusal,
    units::{Count, Share, Units as _},
    views::{DestinationText as _, LimitText, apart},
    visit::{Answered, Visit},
};

/// The range, which is in the URL.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Range {
    from: String,
    to: String,
    step: String,
}

impl Range {
    /// Why there is no such range, for the reader of the form.
    fn problem(&self, refusal: &Refusal) -> String {
        let is_time = |value: &&&String| value.trim().is_empty() || instant(value).parse::<Timestamp>().is_ok();
        match [&self.from, &self.to].iter().find(|value| !is_time(value)) {
            Some(wrong) => format!("“{wrong}” is no time. Write it like 2026-11-26 12:50:00, in UTC."),
            None => refusal.sentence(),
        }
    }
}

extend! {
    pub(crate) trait IntervalText for MinIntervalAudit {
        fn apart(&self) -> String {
            apart(self.min_interval_ms)
        }

        /// The shortest gap between two sends.
        fn least(&self) -> String {
            self.least_gap_ms.map_or_else(|| "–".to_owned(), |gap| format!("{gap:.1} ms"))
        }
    }
}

extend! {
    pub(crate) trait JudgedText for LimitAudit {
        /// The share that was used. The first send of a backlog takes no time, so the mean of a short one is above 1.
        fn used(&self) -> Option<Share> {
            self.utilisation.map(|used| used.min(1.0).share())
        }

        fn short(&self) -> String {
            let Self { limit, burst, .. } = *self;
            let (period, unit) = (self.period.clone(), self.unit.clone());
            RateLimit { limit, period, window_s: None, burst, margin_ms: 0, shape: None, unit }.short()
        }
    }
}

extend! {
    pub(crate) trait AuditText for Audit {
        fn violations(&self) -> Count {
            let gaps: u64 = self.min_intervals.iter().map(|interval| interval.violations).sum();
            Count(gaps + self.rate_limits.iter().map(|limit| limit.violations).sum::<u64>())
        }

        fn has_limits(&self) -> bool {
            !self.rate_limits.is_empty() || !self.min_intervals.is_empty()
        }
    }
}

extend! {
    trait CsvText for History {
        /// The same data for a spreadsheet.
        fn csv(&self) -> String {
            let limits = self.limits();
            let mut csv = String::from("at,sends,delivered,failed,arrivals,backlog");
            // Writing to a `String` cannot fail.
            for limit in &limits {
                let _ = write!(csv, ",largest_window_{limit},limit_{limit}");
            }
            csv.push('\n');
            let cell = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
            for bucket in &self.data {
                let HistoryBucket { at, sends, delivered, failed, arrivals, backlog, .. } = bucket;
                let _ = write!(csv, "{at},{sends},{delivered},{failed},{arrivals},{backlog}");
                for limit in &limits {
                    let window = bucket.window(*limit);
                    let limit = window.map(|window| window.limit);
                    let _ = write!(csv, ",{},{}", cell(window.map(|window| window.sends)), cell(limit));
                }
                csv.push('\n');
            }
            csv
        }
    }
}

/// The proof of a range. Without one, the page says why the range is none.
struct Shown {
    history: History,
    /// `None`: the audit of the range would take too long.
    audit: Option<Audit>,
    /// The path of the tab with the base, up to the query.
    path: String,
}

#[derive(Template)]
#[template(path = "destination_proof.html")]
struct ProofPage {
    frame: Frame,
    head: Head,
    /// The range that was asked for.
    typed: Range,
    shown: Result<Shown, String>,
    /// With the base, up to the query.
    path: String,
    range: Picker,
}

impl Shown {
    fn svg(&self) -> String {
        self.history.chart("").inline()
    }

    /// The charts of the limits that do not bind.
    fn other_limits(&self) -> Option<String> {
        self.history.other_limits().map(|chart| chart.inline())
    }

    /// The link to exactly this range, whose data never changes once it is over.
    fn permalink(&self, kind: &str) -> String {
        let mut link = format!("{}{kind}", self.path);
        append(&mut link, "from", &self.history.from.to_string());
        append(&mut link, "to", &self.history.to.to_string());
        append(&mut link, "step", &self.history.step);
        link
    }

    /// Rows of the table, newest first, as the chart has them.
    fn buckets(&self) -> impl Iterator<Item = &HistoryBucket> {
        self.history.data.iter().rev()
    }
}

pub(super) fn history_path(id: &str, range: &Range) -> ApiPath {
    let path = ApiPath::of(["destinations", id, "history"]);
    path.with("from", &instant(&range.from)).with("to", &instant(&range.to)).with("step", &range.step)
}

async fn read(visit: &Visit, id: &str, range: &Range) -> Result<(Me, (Destination, String), History), Refusal> {
    let path = history_path(id, range);
    tokio::try_join!(visit.me(), super::read(visit, id), visit.api.get(&path))
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId, Query(range): Query<Range>) -> Answered {
    let (me, (destination, etag)) = tokio::try_join!(visit.me(), super::read(&visit, &id))?;
    let (base, can_operate) = (visit.site.base.clone(), me.role.includes(Role::Operate));
    let path = format!("{base}/destinations/{}/proof", destination.id);
    let shown = match proof(&visit, &id, &range, &path).await {
        Ok(shown) => Ok(shown),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => Err(range.problem(&refusal)),
        Err(refusal) => return Err(refusal),
    };
    let status = if shown.is_ok() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    // Without a range the last minutes are shown.
    let begin = match &shown {
        Ok(Shown { history, .. }) if range.from.is_empty() => history.from.to_string(),
        _ => range.from.clone(),
    };
    let picker = Picker::of(&visit.site, &begin, &range.to).of_some_time();
    let frame = visit.frame(me, Section::None, format!("Proof of {}", destination.label()));
    let head = Head { base, destination, etag, tab: Tab::Proof, can_operate };
    visit.page_with(status, &ProofPage { frame, head, typed: range, shown, path, range: picker })
}

async fn proof(visit: &Visit, id: &str, range: &Range, path: &str) -> Result<Shown, Refusal> {
    let history: History = visit.api.get(&history_path(id, range)).await?;
    let audit = ApiPath::of(["destinations", id, "audit"]);
    let audit = audit.with("from", &history.from.to_string()).with("to", &history.to.to_string());
    let audit = match visit.api.get::<Audit>(&audit).await {
        Ok(audit) => Some(audit),
        // The range is too long for an audit; the chart is exact too.
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => None,
        Err(refusal) => return Err(refusal),
    };
    Ok(Shown { history, audit, path: path.to_owned() })
}

#[derive(Template)]
#[template(path = "destination_chart.html")]
struct ChartPart {
    history: History,
    /// With the base.
    proof: String,
}

impl ChartPart {
    fn other_limits(&self) -> Option<String> {
        self.history.other_limits().map(|chart| chart.inline())
    }
}

/// The chart of the last minutes, for the first tab: an edit and its effect.
pub(crate) async fn recent(visit: Visit, PathId(id): PathId) -> Answered {
    let history = visit.api.get(&history_path(&id, &Range::default())).await?;
    let proof = format!("{}/destinations/{id}/proof", visit.site.base);
    visit.fragment(&ChartPart { history, proof })
}

/// The chart as a file.
pub(crate) async fn svg(visit: Visit, PathId(id): PathId, Query(range): Query<Range>) -> Answered {
    let (_, (destination, _), history) = read(&visit, &id, &range).await?;
    let svg = history.whole_chart(destination.label()).to_file();
    let name = format!("attachment; filename=\"{}-proof.svg\"", destination.id);
    Ok(([(header::CONTENT_TYPE, "image/svg+xml".to_owned()), (header::CONTENT_DISPOSITION, name)], svg).into_response())
}

/// The data of the chart as a file.
pub(crate) async fn csv(visit: Visit, PathId(id): PathId, Query(range): Query<Range>) -> Answered {
    let history: History = visit.api.get(&history_path(&id, &range)).await?;
    let name = format!("attachment; filename=\"{id}-proof.csv\"");
    let csv_type = "text/csv; charset=utf-8".to_owned();
    Ok(([(header::CONTENT_TYPE, csv_type), (header::CONTENT_DISPOSITION, name)], history.csv()).into_response())
}
