//! The form of the limits: a row for each period with a name, for each other window that has a limit, and for one more
//! window; what it says, and what a preview says of it.

use serde_json::{Value, json};
use weir_api_types::{Binding, Destination, DestinationSettings, Forecast, OtherBinding, Preview, RateLimit};
use weir_core::{
    Period,
    limit::{MAX_LIMITS, Shape, Unit},
};

use super::{Head, past::Past};
use crate::{
    durations::ApiUnit,
    extend::extend,
    faults::Faults,
    fields::Fields,
    refusal::Refusal,
    units::Units as _,
    views::{BindingText, LimitText as _, apart, period_words},
};

const PERIODS: [&str; 4] = ["second", "minute", "hour", "day"];
/// The shape of a limit whose sends need not be even.
const WINDOW: &str = Shape::Window.as_str();
/// The unit of a limit in costs.
const COST: &str = Unit::Cost.as_str();
/// The row of a window that is typed.
const OTHER: &str = "other";
/// What a window may be, in words of the form.
const WINDOWS: &str = "must be a duration of 1 s to 24 h, such as 10 s";

/// A window that has a limit and no name.
fn is_unnamed(period: &str) -> bool {
    Period::parse(period).is_some_and(|period| !period.has_name())
}

/// Milliseconds as the form shows them.
fn shown(millis: u32) -> String {
    ApiUnit::Millis.shown(millis.into())
}

/// What was typed, in milliseconds.
fn millis(text: &str) -> Option<u32> {
    ApiUnit::Millis.typed(text).ok()?.try_into().ok()
}

/// What was typed, for the code of the limits.
fn digits(text: &str) -> String {
    millis(text).map(|millis| millis.to_string()).unwrap_or_default()
}

/// One row of the form: what is typed, which may be no number and no duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The text of its period, or [`OTHER`].
    pub(crate) period: String,
    /// The window of the row whose window is typed, such as `10 s`.
    pub(crate) window: Option<String>,
    pub(crate) limit: String,
    pub(crate) burst: String,
    pub(crate) margin: String,
    /// Its sends may start at any time in the window.
    pub(crate) is_window: bool,
    /// It counts costs, at any time in the window.
    pub(crate) in_costs: bool,
}

impl Row {
    /// What is chosen for how its sends count: the value of the field.
    pub(crate) fn counts(&self) -> &'static str {
        match (self.in_costs, self.is_window) {
            (true, _) => COST,
            (false, true) => WINDOW,
            (false, false) => "",
        }
    }

    /// Its period, after "in any".
    pub(crate) fn words(&self) -> String {
        period_words(&self.period)
    }

    /// The text of its period, for the API. A window that is no duration goes there as it is.
    fn period_text(&self) -> String {
        match &self.window {
            None => self.period.clone(),
            Some(typed) => {
                ApiUnit::Seconds.typed(typed).map_or_else(|_| typed.clone(), |seconds| format!("{seconds}s"))
            }
        }
    }
}

/// The values of the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Typed {
    pub(crate) rows: Vec<Row>,
    pub(crate) min_interval: String,
    pub(crate) max_in_flight: String,
}

impl Typed {
    pub(super) fn of(destination: &Destination) -> Self {
        let DestinationSettings { rate_limits, min_interval_ms, max_in_flight, .. } = &destination.settings;
        Self::of_limits(rate_limits, *min_interval_ms, Some(*max_in_flight))
    }

    pub(crate) fn of_limits(limits: &[RateLimit], min_interval_ms: Option<u32>, max_in_flight: Option<u32>) -> Self {
        let row = |period: &str| {
            let limit = limits.iter().find(|limit| limit.period == period);
            let burst = limit.map(|limit| limit.burst).filter(|burst| *burst > 1);
            let margin = limit.map(|limit| limit.margin_ms).filter(|margin| *margin > 0).map(shown);
            Row {
                period: period.to_owned(),
                window: (period == OTHER).then(String::new),
                limit: limit.map(|limit| limit.limit.to_string()).unwrap_or_default(),
                burst: burst.map(|burst| burst.to_string()).unwrap_or_default(),
                margin: margin.unwrap_or_default(),
                is_window: limit.is_some_and(|limit| limit.shape.as_deref() == Some(WINDOW) && limit.unit.is_none()),
                in_costs: limit.is_some_and(|limit| limit.unit.as_deref() == Some(COST)),
            }
        };
        let unnamed = limits.iter().map(|limit| &*limit.period).filter(|period| is_unnamed(period));
        Self {
            rows: PERIODS.into_iter().chain(unnamed).chain([OTHER]).map(row).collect(),
            min_interval: min_interval_ms.map(shown).unwrap_or_default(),
            max_in_flight: max_in_flight.map(|most| most.to_string()).unwrap_or_default(),
        }
    }

    pub(crate) fn read(fields: &Fields) -> Self {
        let row = |period: &str| Row {
            period: period.to_owned(),
            window: (period == OTHER).then(|| fields.text("window_other").to_owned()),
            limit: fields.text(&format!("limit_{period}")).to_owned(),
            burst: fields.text(&format!("burst_{period}")).to_owned(),
            margin: fields.text(&format!("margin_{period}")).to_owned(),
            is_window: fields.text(&format!("shape_{period}")) == WINDOW,
            in_costs: fields.text(&format!("shape_{period}")) == COST,
        };
        let names = fields.names().filter_map(|name| name.strip_prefix("limit_"));
        let unnamed = names.filter(|period| is_unnamed(period)).take(MAX_LIMITS);
        Self {
            rows: PERIODS.into_iter().chain(unnamed).chain([OTHER]).map(row).collect(),
            min_interval: fields.text("min_interval_ms").to_owned(),
            max_in_flight: fields.text("max_in_flight").to_owned(),
        }
    }

    /// As the API takes them. A text that is no number and no duration goes to the API as it is, so that the API's error names it.
    pub(crate) fn body(&self) -> Value {
        let number = |text: &str| text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number));
        let duration = |text: &str| millis(text).map_or_else(|| json!(text), |millis| json!(millis));
        let limit = |row: &Row| {
            let mut limit = json!({"period": row.period_text(), "limit": number(&row.limit)});
            if !row.burst.is_empty() {
                limit["burst"] = number(&row.burst);
            }
            if !row.margin.is_empty() {
                limit["margin_ms"] = duration(&row.margin);
            }
            match row.counts() {
                COST => limit["unit"] = json!(COST),
                WINDOW => limit["shape"] = json!(WINDOW),
                _ => {}
            }
            limit
        };
        let limits: Vec<Value> = self.rows.iter().filter(|row| !row.limit.is_empty()).map(limit).collect();
        let min_interval_ms = if self.min_interval.is_empty() { Value::Null } else { duration(&self.min_interval) };
        let mut body = json!({ "rate_limits": limits, "min_interval_ms": min_interval_ms });
        if !self.max_in_flight.is_empty() {
            body["max_in_flight"] = number(&self.max_in_flight);
        }
        body
    }

    /// What the API refused, beside the fields that have it. For the API, `rate_limits/0` is the first row that is filled.
    pub(crate) fn faults(&self, refusal: &Refusal) -> Faults {
        self.faults_beside(refusal, &[])
    }

    /// As [`Self::faults`], for a form that has other fields beside the limits: their names and labels.
    pub(crate) fn faults_beside(&self, refusal: &Refusal, others: &[(&str, &str)]) -> Faults {
        let mut refusal = refusal.clone();
        for error in refusal.errors.iter_mut().filter(|error| error.pointer.ends_with("/period")) {
            error.detail = WINDOWS.to_owned();
        }
        let filled: Vec<&Row> = self.rows.iter().filter(|row| !row.limit.is_empty()).collect();
        let field_of = |pointer: &str| {
            let mut parts = pointer.split('/').skip(1);
            let (name, index, part) = (parts.next()?, parts.next(), parts.next());
            let row = index.and_then(|index| filled.get(index.parse::<usize>().ok()?));
            match (name, row, part) {
                ("rate_limits", Some(Row { period, .. }), Some("burst")) => {
                    Some((format!("burst_{period}"), format!("Burst in any {period}")))
                }
                ("rate_limits", Some(Row { window: Some(_), .. }), Some("period")) => {
                    Some(("window_other".to_owned(), "Another window".to_owned()))
                }
                ("rate_limits", Some(Row { period, .. }), Some("margin_ms")) => {
                    Some((format!("margin_{period}"), format!("Margin in any {period}")))
                }
                ("rate_limits", Some(Row { period, .. }), _) => {
                    Some((format!("limit_{period}"), format!("Limit in any {period}")))
                }
                ("min_interval_ms", ..) => Some((name.to_owned(), "Between two sends".to_owned())),
                ("max_in_flight", ..) => Some((name.to_owned(), "In flight".to_owned())),
                _ => {
                    let other = others.iter().find(|(other, _)| *other == name);
                    other.map(|(name, label)| ((*name).to_owned(), (*label).to_owned()))
                }
            }
        };
        let typed = |name: &str| {
            let margin = self.rows.iter().find(|row| name.strip_prefix("margin_") == Some(&row.period));
            margin.map_or(&*self.min_interval, |row| &row.margin)
        };
        Faults::of_typed(&refusal, typed, field_of)
    }

    /// `10/s, 600/min, 100 ms apart; 64 in flight`
    pub(super) fn text(&self) -> String {
        let limit = |row: &Row| {
            let limit = RateLimit {
                limit: row.limit.parse().ok()?,
                period: row.period_text(),
                window_s: None,
                burst: row.burst.parse().unwrap_or(1),
                margin_ms: millis(&row.margin).unwrap_or(0),
                shape: row.is_window.then(|| WINDOW.to_owned()),
                unit: row.in_costs.then(|| COST.to_owned()),
            };
            Some(limit.short())
        };
        let min_interval = millis(&self.min_interval).map(apart);
        let limits: Vec<String> = self.rows.iter().filter_map(limit).chain(min_interval).collect();
        let limits = if limits.is_empty() { "unlimited".to_owned() } else { limits.join(", ") };
        if self.max_in_flight.is_empty() { limits } else { format!("{limits}; {} in flight", self.max_in_flight) }
    }

    /// For the URL of the page after a save: `10-1-50.600--.--.--.190---10.100.64`. The fourth number of a row is its
    /// window in seconds. A burst of 0 stands for the window shape, which has none, and one of 00 for
    /// costs.
    pub(super) fn code(&self) -> String {
        let burst = |row: &Row| match row.counts() {
            COST => "00".to_owned(),
            WINDOW => "0".to_owned(),
            _ => row.burst.clone(),
        };
        let named = |row: &Row| format!("{}-{}-{}", row.limit, burst(row), digits(&row.margin));
        let row = |row: &Row| match Period::parse(&row.period_text()) {
            _ if PERIODS.contains(&&*row.period) => Some(named(row)),
            Some(period) if !row.limit.is_empty() => Some(format!("{}-{}", named(row), period.as_seconds())),
            _ => None,
        };
        let rows = self.rows.iter().filter_map(row);
        rows.chain([digits(&self.min_interval), self.max_in_flight.clone()]).collect::<Vec<_>>().join(".")
    }

    /// `None`: the text is no code.
    pub(super) fn decode(code: &str) -> Option<Self> {
        let parts: Vec<&str> = code.split('.').collect();
        let (rows, &[min_interval, max_in_flight]) = parts.split_last_chunk::<2>()?;
        let is_number = |text: &str| text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
        let duration = |digits: &str| digits.parse().map(shown).unwrap_or_default();
        let row = |(index, part): (usize, &&str)| {
            let numbers: Vec<&str> = part.split('-').filter(|number| is_number(number)).collect();
            let (period, [limit, burst, margin]) = match (PERIODS.get(index), &numbers[..]) {
                (Some(period), &[limit, burst, margin]) => ((*period).to_owned(), [limit, burst, margin]),
                (None, &[limit, burst, margin, seconds]) => {
                    (Period::from_seconds(seconds.parse().ok()?)?.to_string(), [limit, burst, margin])
                }
                _ => return None,
            };
            let (is_window, in_costs) = (burst == "0", burst == "00");
            let burst = if is_window || in_costs { String::new() } else { burst.to_owned() };
            let (limit, margin) = (limit.to_owned(), duration(margin));
            Some(Row { period, window: None, limit, burst, margin, is_window, in_costs })
        };
        let is_length = (PERIODS.len()..=PERIODS.len() + MAX_LIMITS).contains(&rows.len());
        if !is_length || ![min_interval, max_in_flight].into_iter().all(is_number) {
            return None;
        }
        let mut rows: Vec<Row> = rows.iter().enumerate().map(row).collect::<Option<_>>()?;
        let [limit, burst, margin] = [const { String::new() }; 3];
        rows.push(Row {
            period: OTHER.to_owned(),
            window: Some(String::new()),
            limit,
            burst,
            margin,
            is_window: false,
            in_costs: false,
        });
        Some(Self { rows, min_interval: duration(min_interval), max_in_flight: max_in_flight.to_owned() })
    }
}

/// The editor on the page.
pub(crate) struct Editor {
    pub(crate) typed: Typed,
    /// The version that a save replaces.
    pub(crate) etag: String,
    /// What the API refused.
    pub(crate) faults: Faults,
    /// Another change came first: the limits now.
    pub(crate) changed_to: Option<String>,
    /// The limits before the last save.
    pub(crate) was: Option<Typed>,
    pub(crate) preview: Option<Preview>,
    /// What was tried on the past.
    pub(crate) past: Past,
}

impl Editor {
    pub(super) fn of(head: &Head) -> Self {
        Self { etag: head.etag.clone(), ..Self::typed(Typed::of(&head.destination), Faults::default()) }
    }

    /// What was typed, before the destination is read.
    pub(super) fn typed(typed: Typed, faults: Faults) -> Self {
        let past = Past::default();
        Self { typed, etag: String::new(), faults, changed_to: None, was: None, preview: None, past }
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

extend! {
    pub(crate) trait ForecastText for Forecast {
        fn rate(&self) -> String {
            self.effective_per_s.map_or_else(|| "unlimited".to_owned(), |rate| rate.per_s().to_string())
        }

        fn bound_by(&self) -> String {
            self.binding.as_ref().map_or_else(|| "nothing".to_owned(), BindingText::short)
        }

        /// Whether the receiver answers too slowly for the limits.
        fn is_slow(&self) -> bool {
            self.binding == Some(Binding::Other(OtherBinding::MaxInFlight))
        }

        /// What the margins and the minimum interval take from the rate; empty if they take nothing.
        fn cost(&self) -> String {
            let costs = [("margins", self.margins_cost_per_s), ("the minimum interval", self.min_interval_costs_per_s)];
            let cost = |(name, cost): (&str, Option<f64>)| {
                let per_second = cost.filter(|per_second| *per_second > 0.0)?;
                Some(format!("{name} {}", per_second.per_s()))
            };
            costs.into_iter().filter_map(cost).collect::<Vec<_>>().join(", ")
        }

        /// Whether deliveries expire before they are sent.
        fn expires(&self) -> &'static str {
            if self.would_expire { "yes" } else { "no" }
        }

        fn drain(&self) -> String {
            match (self.drain_eta_s, self.drains) {
                (Some(eta), _) if eta <= 0.0 => "nothing waits".to_owned(),
                (Some(eta), _) => eta.seconds().to_string(),
                (None, Some(false)) => "never".to_owned(),
                (None, _) => "unknown".to_owned(),
            }
        }
    }
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
        let spaced = fields("limit_second=10&margin_second=50+ms&min_interval_ms=0.1+s");
        assert_eq!(spaced.text(), "10/s + 50 ms, 100 ms apart");
        assert_eq!(spaced.body()["min_interval_ms"], json!(100));
    }

    #[test]
    fn a_window_without_a_name_is_typed_once_and_then_has_a_row() {
        let typed = fields("limit_second=10&limit_other=190&window_other=10+s&limit_20s=9&limit_x=5");
        let limits =
            [("second", 10), ("20s", 9), ("10s", 190)].map(|(period, limit)| json!({"period": period, "limit": limit}));
        assert_eq!(typed.body()["rate_limits"], json!(limits));
        assert_eq!(typed.text(), "10/s, 9/20s, 190/10s");
        assert_eq!(typed.code(), "10--.--.--.--.9---20.190---10..");
        let decoded = Typed::decode(&typed.code()).unwrap();
        assert_eq!(decoded.text(), typed.text());
        assert_eq!(fields("limit_other=5&window_other=ten").body()["rate_limits"][0]["period"], "ten");
    }

    #[test]
    fn a_limit_that_need_not_be_even_is_chosen_in_its_row() {
        let typed = fields("limit_second=10&limit_minute=300&shape_minute=window&limit_other=");
        let limits = json!([
            {"period": "second", "limit": 10}, {"period": "minute", "limit": 300, "shape": "window"},
        ]);
        assert_eq!((&typed.body()["rate_limits"], &*typed.text()), (&limits, "10/s, 300/min window"));
        assert_eq!(Typed::decode(&typed.code()).unwrap().text(), typed.text());
    }

    #[test]
    fn a_limit_that_counts_costs_is_chosen_in_its_row() {
        let typed = fields("limit_second=10&limit_minute=1000&shape_minute=cost&limit_other=");
        let limits = json!([
            {"period": "second", "limit": 10}, {"period": "minute", "limit": 1_000, "unit": "cost"},
        ]);
        assert_eq!((&typed.body()["rate_limits"], &*typed.text()), (&limits, "10/s, 1,000 points/min"));
        assert_eq!(Typed::decode(&typed.code()).unwrap().body(), typed.body());
    }

    #[test]
    fn limits_survive_the_url_of_the_page() {
        let typed = fields(
            "limit_second=10&burst_second=5&limit_day=9&margin_day=1+s+70+ms&min_interval_ms=8+ms&max_in_flight=64",
        );
        assert_eq!(Typed::decode(&typed.code()), Some(typed));
        for code in
            ["", "1", "10-1-.--.--.--.", "10-1-.--.--.--..x", "<b>-1-.--.--.--..1", "1-1.-.-.-.1.2", "1-.--.--.--..1"]
        {
            assert_eq!(Typed::decode(code), None, "{code}");
        }
    }
}
