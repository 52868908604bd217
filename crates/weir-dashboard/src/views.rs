//! Answers of the API that several pages show: only the fields that they show.

use serde::Deserialize;

use crate::{
    names::label,
    units::{At, Count, PerSecond, Seconds, Share},
};

/// A page of a list.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct List<T> {
    pub(crate) data: Vec<T>,
    pub(crate) next_cursor: Option<String>,
}

/// A limit of a destination: `10/s`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct RateLimit {
    pub(crate) limit: Count,
    pub(crate) period: String,
    #[serde(default)]
    pub(crate) burst: Option<u32>,
    #[serde(default)]
    pub(crate) margin_ms: Option<u32>,
}

impl RateLimit {
    /// `10/s`, `600/min`, `10/s burst 5`, `10/s + 50 ms`.
    pub(crate) fn short(&self) -> String {
        let unit = match self.period.as_str() {
            "second" => "s",
            "minute" => "min",
            "hour" => "h",
            "day" => "d",
            other => other,
        };
        let burst = self.burst.filter(|burst| *burst > 1).map(|burst| format!(" burst {burst}"));
        let margin = self.margin_ms.filter(|margin| *margin > 0).map(|margin| format!(" + {margin} ms"));
        format!("{}/{unit}{}{}", self.limit, burst.unwrap_or_default(), margin.unwrap_or_default())
    }
}

/// A minimum interval: `100 ms apart`.
pub(crate) fn apart(millis: u32) -> String {
    format!("{millis} ms apart")
}

/// What keeps the destination from sending faster.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Binding {
    Limit(RateLimit),
    /// `min_interval` or `max_in_flight`
    Other(String),
}

impl Binding {
    pub(crate) fn short(&self) -> String {
        match self {
            Self::Limit(limit) => limit.short(),
            Self::Other(name) if name == "min_interval" => "its minimum interval".to_owned(),
            Self::Other(name) => name.clone(),
        }
    }

    pub(crate) fn is_limit_of(&self, period: &str) -> bool {
        matches!(self, Self::Limit(limit) if limit.period == period)
    }

    pub(crate) fn is_min_interval(&self) -> bool {
        matches!(self, Self::Other(name) if name == "min_interval")
    }
}

/// A row of the overview, and the state of one destination.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct OverviewRow {
    pub(crate) destination: DestinationState,
    pub(crate) pending: Count,
    pub(crate) retrying: Count,
    pub(crate) delivering: Count,
    pub(crate) dead: Count,
    pub(crate) backlog: Count,
    pub(crate) oldest_age_s: Option<Seconds>,
    pub(crate) configured_per_s: Option<PerSecond>,
    pub(crate) effective_per_s: Option<PerSecond>,
    pub(crate) achieved_per_s: PerSecond,
    pub(crate) arrivals_per_s: PerSecond,
    /// Of the binding limit.
    #[serde(rename = "use")]
    pub(crate) usage: Option<Share>,
    pub(crate) binding: Option<Binding>,
    pub(crate) drain_eta_s: Option<Seconds>,
    pub(crate) drains: Option<bool>,
    /// Why it does not send faster.
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) refused_within_limit: Option<Refused>,
}

/// Refusals of sends that keep the limit.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Refused {
    /// What was seen, why, and the setting that helps.
    pub(crate) text: String,
}

/// What the overview shows of a destination.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DestinationState {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) tenant: String,
    pub(crate) rate_limits: Vec<RateLimit>,
    #[serde(default)]
    pub(crate) min_interval_ms: Option<u32>,
}

impl DestinationState {
    /// Its minimum interval.
    pub(crate) fn apart(&self) -> Option<String> {
        self.min_interval_ms.map(apart)
    }

    pub(crate) fn label(&self) -> &str {
        label(&self.name, &self.url)
    }

    /// Whether its label is its name.
    pub(crate) fn is_named(&self) -> bool {
        self.label() == self.name
    }
}

/// When a backlog has drained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Drain {
    /// Nothing waits.
    Empty,
    In(Seconds),
    /// More arrives than may be sent.
    Never,
    /// Nothing is sent at present.
    Stopped,
}

impl OverviewRow {
    pub(crate) fn drain(&self) -> Drain {
        match (self.backlog, self.drain_eta_s, self.drains) {
            (Count(0), _, _) => Drain::Empty,
            (_, Some(eta), _) => Drain::In(eta),
            (_, None, Some(false)) => Drain::Never,
            (_, None, _) => Drain::Stopped,
        }
    }

    /// The reason in words, for tooltips.
    pub(crate) fn reason_text(&self) -> &str {
        if let (Some("refused_within_limit"), Some(refused)) = (self.reason.as_deref(), &self.refused_within_limit) {
            return &refused.text;
        }
        match self.reason.as_deref() {
            Some("limit") => "It sends as fast as its limit allows",
            Some("slow") => "The receiver answers slowly, so max_in_flight is reached before the limit",
            Some("held") => "The receiver asked to wait (Retry-After or a quota)",
            Some("breaker") => "The breaker is open: the receiver fails",
            Some("paused") => "It is paused",
            Some("ordered") => "Deliveries wait for an earlier one of the same key",
            _ => "",
        }
    }

    /// The colour of the reason: `limit` is as it should be.
    pub(crate) fn reason_tone(&self) -> &'static str {
        match self.reason.as_deref() {
            Some("breaker") => "bad",
            Some("held" | "paused" | "slow" | "refused_within_limit") => "warn",
            _ => "calm",
        }
    }

    /// The colour of the bar.
    pub(crate) fn usage_tone(&self) -> &'static str {
        match self.usage {
            Some(Share(usage)) if usage >= 0.9 => "full",
            _ => "part",
        }
    }
}

/// What keeps a due delivery from being sent.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WaitsFor {
    reason: String,
    until: Option<At>,
}

impl WaitsFor {
    /// After the sentence that something was accepted.
    pub(crate) fn sentence(&self) -> String {
        let until = self.until.map(|until| format!(" until {} UTC", until.plain())).unwrap_or_default();
        match &*self.reason {
            "hold" => {
                format!("It waits for the end of the hold{until}; “Release” on the page of the destination ends it.")
            }
            "breaker" => format!("It waits for the breaker{until}."),
            _ => "It waits: the destination is paused.".to_owned(),
        }
    }
}

/// What was accepted, and what it waits for.
#[derive(Debug, Deserialize)]
pub(crate) struct Accepted {
    pub(crate) id: String,
    #[serde(default)]
    waits_for: Option<WaitsFor>,
}

impl Accepted {
    /// `done`, and what it waits for; `unless_waiting` if it waits for nothing.
    pub(crate) fn text(&self, done: &str, unless_waiting: &str) -> String {
        match &self.waits_for {
            Some(waits_for) => format!("{done} {}", waits_for.sentence()),
            None => format!("{done} {unless_waiting}").trim_end().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_written_as_people_say_it() {
        let limit = |limit, period: &str, burst, margin_ms| RateLimit {
            limit: Count(limit),
            period: period.to_owned(),
            burst,
            margin_ms,
        };
        let shown = [
            limit(10, "second", Some(1), Some(0)),
            limit(1_200, "minute", None, Some(50)),
            limit(5, "day", Some(3), None),
        ];
        assert_eq!(shown.map(|limit| limit.short()), ["10/s", "1,200/min + 50 ms", "5/d burst 3"]);
    }
}
