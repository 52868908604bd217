//! The editor of limits: the form with one row per period, its preview while typing, saving, and the way back.
//!
//! ```text
//!   typing ──▶ preview (POST /v1/destinations/{id}/preview)
//!   save ────▶ PATCH with If-Match ──▶ the page, with a button that restores the limits before
//!                    └─ 412 ──▶ the page with both values and the new version: save again, or leave it
//! ```

use askama::Template;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Destination, Head, now};
use crate::{
    client::{ApiPath, Call, append},
    fields::Fields,
    flash::Flash,
    path_id::PathId,
    refusal::{FieldError, Refusal},
    units::{At, Count, PerSecond, Seconds},
    views::{Binding, RateLimit, apart},
    visit::{Answered, Visit},
};

const PERIODS: [&str; 4] = ["second", "minute", "hour", "day"];

/// One row of the form: what is typed, which may be no number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) period: &'static str,
    pub(crate) limit: String,
    pub(crate) burst: String,
    pub(crate) margin: String,
}

/// The values of the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Typed {
    pub(crate) rows: Vec<Row>,
    pub(crate) min_interval: String,
    pub(crate) max_in_flight: String,
}

impl Typed {
    fn of(destination: &Destination) -> Self {
        let limits = &destination.rate_limits;
        let row = |period: &'static str| {
            let limit = limits.iter().find(|limit| limit.period == period);
            let burst = limit.and_then(|limit| limit.burst).filter(|burst| *burst > 1);
            let margin = limit.and_then(|limit| limit.margin_ms).filter(|margin| *margin > 0);
            Row {
                period,
                limit: limit.map(|limit| limit.limit.0.to_string()).unwrap_or_default(),
                burst: burst.map(|burst| burst.to_string()).unwrap_or_default(),
                margin: margin.map(|margin| margin.to_string()).unwrap_or_default(),
            }
        };
        Self {
            rows: PERIODS.map(row).into(),
            min_interval: destination.min_interval_ms.map(|millis| millis.to_string()).unwrap_or_default(),
            max_in_flight: destination.max_in_flight.0.to_string(),
        }
    }

    fn read(fields: &Fields) -> Self {
        let row = |period: &'static str| Row {
            period,
            limit: fields.text(&format!("limit_{period}")).to_owned(),
            burst: fields.text(&format!("burst_{period}")).to_owned(),
            margin: fields.text(&format!("margin_{period}")).to_owned(),
        };
        Self {
            rows: PERIODS.map(row).into(),
            min_interval: fields.text("min_interval_ms").to_owned(),
            max_in_flight: fields.text("max_in_flight").to_owned(),
        }
    }

    /// As the API takes them. A text that is no number goes to the API as it is, so that the API's error names it.
    fn body(&self) -> Value {
        let number = |text: &str| text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number));
        let limit = |row: &Row| {
            let mut limit = json!({"period": row.period, "limit": number(&row.limit)});
            for (name, text) in [("burst", &row.burst), ("margin_ms", &row.margin)] {
                if !text.is_empty() {
                    limit[name] = number(text);
                }
            }
            limit
        };
        let limits: Vec<Value> = self.rows.iter().filter(|row| !row.limit.is_empty()).map(limit).collect();
        let min_interval_ms = if self.min_interval.is_empty() { Value::Null } else { number(&self.min_interval) };
        let mut body = json!({ "rate_limits": limits, "min_interval_ms": min_interval_ms });
        if !self.max_in_flight.is_empty() {
            body["max_in_flight"] = number(&self.max_in_flight);
        }
        body
    }

    /// A refusal in the words of the form. For the API, `rate_limits/0` is the first row that is filled.
    fn explained(&self, refusal: Refusal) -> Refusal {
        if refusal.errors.is_empty() {
            return refusal;
        }
        let filled: Vec<&Row> = self.rows.iter().filter(|row| !row.limit.is_empty()).collect();
        let sentence = |error: &FieldError| {
            let mut parts = error.pointer.split('/').skip(1);
            let (name, index, part) = (parts.next(), parts.next(), parts.next());
            let row = index.and_then(|index| filled.get(index.parse::<usize>().ok()?));
            match (name, row, part) {
                (Some("rate_limits"), Some(row), Some("burst")) => {
                    format!("the burst in any {} {}", row.period, error.detail)
                }
                (Some("rate_limits"), Some(row), Some("margin_ms")) => {
                    format!("the margin in any {} {}", row.period, error.detail)
                }
                (Some("rate_limits"), Some(row), _) => format!("the limit in any {} {}", row.period, error.detail),
                (Some("min_interval_ms"), ..) => format!("the time between two sends {}", error.detail),
                (Some("max_in_flight"), ..) => format!("the number in flight {}", error.detail),
                _ => error.sentence(),
            }
        };
        let detail = refusal.errors.iter().map(sentence).collect::<Vec<_>>().join("; ");
        Refusal { detail, errors: Vec::new(), ..refusal }
    }

    /// `10/s, 600/min, 100 ms apart; 64 in flight`
    pub(super) fn text(&self) -> String {
        let limit = |row: &Row| {
            let limit = RateLimit {
                limit: Count(row.limit.parse().ok()?),
                period: row.period.to_owned(),
                burst: row.burst.parse().ok(),
                margin_ms: row.margin.parse().ok(),
            };
            Some(limit.short())
        };
        let min_interval = self.min_interval.parse().ok().map(apart);
        let limits: Vec<String> = self.rows.iter().filter_map(limit).chain(min_interval).collect();
        let limits = if limits.is_empty() { "unlimited".to_owned() } else { limits.join(", ") };
        if self.max_in_flight.is_empty() { limits } else { format!("{limits}; {} in flight", self.max_in_flight) }
    }

    /// For the URL of the page after a save: `10-1-50.600--.--.--.100.64`.
    fn code(&self) -> String {
        let rows = self.rows.iter().map(|row| format!("{}-{}-{}", row.limit, row.burst, row.margin));
        rows.chain([self.min_interval.clone(), self.max_in_flight.clone()]).collect::<Vec<_>>().join(".")
    }

    /// `None`: the text is no code.
    fn decode(code: &str) -> Option<Self> {
        let parts: Vec<&str> = code.split('.').collect();
        let (rows, &[min_interval, max_in_flight]) = parts.split_last_chunk::<2>()?;
        let is_number = |text: &str| text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
        let row = |(period, part): (&'static str, &&str)| {
            let numbers: Vec<&str> = part.split('-').filter(|number| is_number(number)).collect();
            let [limit, burst, margin] = numbers[..] else { return None };
            Some(Row { period, limit: limit.to_owned(), burst: burst.to_owned(), margin: margin.to_owned() })
        };
        if rows.len() != PERIODS.len() || ![min_interval, max_in_flight].into_iter().all(is_number) {
            return None;
        }
        let rows = PERIODS.into_iter().zip(rows).map(row).collect::<Option<_>>()?;
        Some(Self { rows, min_interval: min_interval.to_owned(), max_in_flight: max_in_flight.to_owned() })
    }
}

/// The editor on the page.
pub(crate) struct Editor {
    pub(crate) typed: Typed,
    /// The version that a save replaces.
    pub(crate) etag: String,
    /// What the API refused.
    pub(crate) error: Option<String>,
    /// Another change came first: the limits now.
    pub(crate) changed_to: Option<String>,
    /// The limits before the last save.
    pub(crate) was: Option<Typed>,
    pub(crate) preview: Option<Preview>,
}

impl Editor {
    pub(super) fn of(head: &Head) -> Self {
        let typed = Typed::of(&head.destination);
        let etag = head.etag.clone();
        Self { typed, etag, error: None, changed_to: None, was: None, preview: None }
    }

    /// What was typed, with the version of the destination now.
    pub(super) fn on(self, head: &Head, preview: Option<Preview>) -> Self {
        let now = Typed::of(&head.destination).text();
        let changed_to = self.changed_to.as_ref().map(|_| now);
        Self { etag: head.etag.clone(), changed_to, preview, ..self }
    }

    /// Offers to restore the limits of `code`, unless they are in force.
    pub(super) fn reverting_to(self, code: &str) -> Self {
        let was = Typed::decode(code).filter(|was| *was != self.typed);
        Self { was, ..self }
    }

    pub(crate) fn text(&self) -> String {
        self.typed.text()
    }
}

/// The answer of `POST /v1/destinations/{id}/preview`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Preview {
    #[serde(flatten)]
    pub(super) after: Outlook,
    pub(super) now: Outlook,
}

/// What limits do to a backlog.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Outlook {
    pub(super) effective_per_s: Option<PerSecond>,
    pub(super) binding: Option<Binding>,
    #[serde(default)]
    pub(super) margins_cost_per_s: Option<PerSecond>,
    #[serde(default)]
    pub(super) min_interval_costs_per_s: Option<PerSecond>,
    pub(super) drain_eta_s: Option<Seconds>,
    pub(super) drains: Option<bool>,
    pub(super) would_expire: bool,
    pub(super) first_expiry_at: Option<At>,
}

impl Outlook {
    pub(super) fn rate(&self) -> String {
        self.effective_per_s.map_or_else(|| "unlimited".to_owned(), |rate| rate.to_string())
    }

    pub(super) fn bound_by(&self) -> String {
        self.binding.as_ref().map_or_else(|| "nothing".to_owned(), Binding::short)
    }

    /// Whether the receiver answers too slowly for the limits.
    pub(super) fn is_slow(&self) -> bool {
        matches!(&self.binding, Some(Binding::Other(name)) if name == "max_in_flight")
    }

    /// What the margins and the minimum interval take from the rate; empty if they take nothing.
    pub(super) fn cost(&self) -> String {
        let costs = [("margins", self.margins_cost_per_s), ("the minimum interval", self.min_interval_costs_per_s)];
        let cost = |(name, cost): (&str, Option<PerSecond>)| {
            let PerSecond(per_second) = cost.filter(|PerSecond(per_second)| *per_second > 0.0)?;
            Some(format!("{name} {}", PerSecond(per_second)))
        };
        costs.into_iter().filter_map(cost).collect::<Vec<_>>().join(", ")
    }

    /// Whether deliveries expire before they are sent.
    pub(super) fn expires(&self) -> &'static str {
        if self.would_expire { "yes" } else { "no" }
    }

    pub(super) fn drain(&self) -> String {
        match (self.drain_eta_s, self.drains) {
            (Some(Seconds(eta)), _) if eta <= 0.0 => "nothing waits".to_owned(),
            (Some(eta), _) => eta.to_string(),
            (None, Some(false)) => "never".to_owned(),
            (None, _) => "–".to_owned(),
        }
    }
}

#[derive(Template)]
#[template(path = "destination_preview.html")]
struct PreviewPart {
    preview: Preview,
}

/// What the limits in the form would do: a part of the page for the script, or the page with it.
pub(crate) async fn preview(visit: Visit, PathId(id): PathId, headers: HeaderMap, fields: Fields) -> Answered {
    let typed = Typed::read(&fields);
    let answer = visit.api.post::<Preview>(&ApiPath::of(["destinations", &id, "preview"]), &typed.body()).await;
    if headers.contains_key("hx-request") {
        return visit.fragment(&PreviewPart { preview: answer.map_err(|refusal| typed.explained(refusal))? });
    }
    let (preview, error) = match answer {
        Ok(preview) => (Some(preview), None),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            (None, Some(typed.explained(refusal).sentence()))
        }
        Err(refusal) => return Err(refusal),
    };
    let status = if error.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let editor = Editor { typed, etag: String::new(), error, changed_to: None, was: None, preview: None };
    now::page(&visit, &id, &now::View::default(), status, Some((editor, preview))).await
}

pub(crate) async fn save(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let typed = Typed::read(&fields);
    let path = ApiPath::of(["destinations", &id]);
    let (before, _) = super::read(&visit, &id).await?;
    let before = Typed::of(&before);
    let edit = Call::new(Method::PATCH, &path).json(&typed.body())?.if_match(fields.text("etag"))?;
    match visit.api.send(&edit).await {
        Ok(_) => {
            let text = format!("Limits saved: {} → {}. In effect within 100 ms.", before.text(), typed.text());
            let mut to = format!("/destinations/{id}");
            append(&mut to, "was", &before.code());
            visit.redirect(&to, Some(Flash::done(text)))
        }
        Err(refusal) => refused(&visit, &id, typed, refusal).await,
    }
}

/// The page with what was typed, and why it was not saved.
async fn refused(visit: &Visit, id: &str, typed: Typed, refusal: Refusal) -> Answered {
    let refusal = typed.explained(refusal);
    let editor = Editor { typed, etag: String::new(), error: None, changed_to: None, was: None, preview: None };
    let editor = match refusal.status {
        StatusCode::PRECONDITION_FAILED => Editor { changed_to: Some(String::new()), ..editor },
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT => Editor { error: Some(refusal.sentence()), ..editor },
        _ => return Err(refusal),
    };
    now::page(visit, id, &now::View::default(), refusal.status, Some((editor, None))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Typed {
        Typed::read(&Fields::parse(text.as_bytes()))
    }

    #[test]
    fn only_filled_rows_are_limits() {
        let typed = fields("limit_second=10&burst_second=5&limit_minute=&limit_hour=x&margin_hour=y&max_in_flight=64");
        let limits = json!([
            {"period": "second", "limit": 10, "burst": 5}, {"period": "hour", "limit": "x", "margin_ms": "y"},
        ]);
        assert_eq!(typed.body(), json!({"rate_limits": limits, "min_interval_ms": null, "max_in_flight": 64}));
        assert_eq!(fields("").body(), json!({"rate_limits": [], "min_interval_ms": null}));
        assert_eq!((typed.text(), fields("").text()), ("10/s burst 5; 64 in flight".into(), "unlimited".into()));
        let spaced = fields("limit_second=10&margin_second=50&min_interval_ms=100");
        assert_eq!(spaced.text(), "10/s + 50 ms, 100 ms apart");
        assert_eq!(spaced.body()["min_interval_ms"], json!(100));
    }

    #[test]
    fn limits_survive_the_url_of_the_page() {
        let typed =
            fields("limit_second=10&burst_second=5&limit_day=9&margin_day=70&min_interval_ms=8&max_in_flight=64");
        assert_eq!(Typed::decode(&typed.code()), Some(typed));
        for code in
            ["", "1", "10-1-.--.--.--.", "10-1-.--.--.--..x", "<b>-1-.--.--.--..1", "1-1.-.-.-.1.2", "1-.--.--.--..1"]
        {
            assert_eq!(Typed::decode(code), None, "{code}");
        }
    }
}
