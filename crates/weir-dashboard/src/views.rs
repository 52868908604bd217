//! What several pages show of the API's answers.

use std::time::Duration;

use weir_api_types::{
    Binding, BindingLimit, BriefDestination, Destination, DestinationOverview, HELD_BY_GROUP, ListCount, OtherBinding,
    Override, OverviewRow, RateLimit, WaitsFor,
};
use weir_core::{Period, stall::Fault};

use crate::{
    durations::Millis,
    extend::extend,
    names::label,
    units::{Age, At, Seconds, Units as _, capitalised, in_one_unit},
};

extend! {
    pub(crate) trait LimitText for RateLimit {
        /// `10/s`, `600/min`, `600/min window`, `1,000 points/min`, `10/s burst 5`, `10/s + 50 ms`.
        fn short(&self) -> String {
            let unit = unit(&self.period);
            let burst = (self.burst > 1).then(|| format!(" burst {}", self.burst));
            let shape = self.shape.as_deref().filter(|_| self.unit.is_none()).map(|shape| format!(" {shape}"));
            let points = if self.unit.is_some() { " points" } else { "" };
            let margin = (self.margin_ms > 0).then(|| format!(" + {}", Millis(self.margin_ms.into())));
            let more: String = [shape, burst, margin].into_iter().flatten().collect();
            format!("{}{points}/{unit}{more}", self.limit.count())
        }
    }
}

/// A period, after a slash: `s`, `min`, `10s`, `15min`.
pub(crate) fn unit(period: &str) -> String {
    let short = match period {
        "second" => "s",
        "minute" => "min",
        "hour" => "h",
        "day" => "d",
        other => return Period::parse(other).map_or_else(|| other.to_owned(), window),
    };
    short.to_owned()
}

/// A window without a name, in the largest unit that it is a whole number of.
fn window(period: Period) -> String {
    match period.window().as_secs() {
        seconds if seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        seconds if seconds.is_multiple_of(60) => format!("{}min", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// A period, after "in any": `second`, `90 s`.
pub(crate) fn period_words(period: &str) -> String {
    match Period::parse(period).and_then(Period::unnamed_seconds) {
        Some(seconds) => Millis(u64::from(seconds) * 1_000).to_string(),
        None => period.to_owned(),
    }
}

/// A minimum interval: `100 ms apart`.
pub(crate) fn apart(millis: u32) -> String {
    format!("{} apart", Millis(millis.into()))
}

extend! {
    pub(crate) trait BindingText for Binding {
        fn short(&self) -> String {
            match self {
                Self::Limit(limit) => limit.with_value(limit.limit),
                Self::Other(OtherBinding::MinInterval) => "its minimum interval".to_owned(),
                Self::Other(OtherBinding::MaxInFlight) => "the number in flight".to_owned(),
                Self::Other(OtherBinding::Group) => "its share of its limit group".to_owned(),
                Self::Other(OtherBinding::Key) => "the limits of its limit keys".to_owned(),
                Self::Other(OtherBinding::Adaptive) => "its adaptive pace".to_owned(),
            }
        }

        fn is_limit_of(&self, period: &str) -> bool {
            matches!(self, Self::Limit(limit) if limit.period == period)
        }

        fn is_min_interval(&self) -> bool {
            matches!(self, Self::Other(OtherBinding::MinInterval))
        }
    }
}

extend! {
    pub(crate) trait BindingLimitText for BindingLimit {
        /// The limit with this number in place of its own: `10/s`, `1,000 points/min`.
        fn with_value(&self, value: u32) -> String {
            let points = if self.unit.is_some() { " points" } else { "" };
            format!("{}{points}/{}", value.count(), unit(&self.period))
        }
    }
}

extend! {
    pub(crate) trait OverrideText for Override {
        /// `50/s, 128 in flight until 2026-11-27 18:00:00 UTC: launch day`; a hold has no limits.
        fn sentence(&self) -> String {
            format!("{} until {} UTC: {}", self.limits(), self.until.time().plain(), self.reason).trim_start().to_owned()
        }

        /// `50/s, 128 in flight`
        fn limits(&self) -> String {
            let limits = self.rate_limits.as_ref().map(|limits| match limits.as_slice() {
                [] => "no limit".to_owned(),
                limits => limits.iter().map(|limit| limit.short()).collect::<Vec<_>>().join(", "),
            });
            let in_flight = self.max_in_flight.map(|most| format!("{} in flight", most.count()));
            limits.into_iter().chain(in_flight).collect::<Vec<_>>().join(", ")
        }
    }
}

extend! {
    pub(crate) trait BriefText for BriefDestination {
        /// Its minimum interval.
        fn apart(&self) -> Option<String> {
            self.min_interval_ms.map(apart)
        }

        fn label(&self) -> &str {
            label(&self.name, &self.url)
        }

        /// Whether its label is its name.
        fn is_named(&self) -> bool {
            self.label() == self.name
        }
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

impl Drain {
    /// From the fields of the API: that of a destination, of a limit group, or of one of its members.
    pub(crate) fn of(backlog: u64, drain_eta_s: Option<f64>, drains: Option<bool>) -> Self {
        match (backlog, drain_eta_s, drains) {
            (0, _, _) => Self::Empty,
            (_, Some(eta), _) => Self::In(eta.seconds()),
            (_, None, Some(false)) => Self::Never,
            (_, None, _) => Self::Stopped,
        }
    }
}

/// `limit`, `refused`, `queue away`
pub(crate) fn short_reason(reason: &str) -> String {
    if reason == "refused_within_limit" { "refused".to_owned() } else { reason.replace('_', " ") }
}

/// Why a backlog is not sent faster, in words.
pub(crate) fn reason_in_words(reason: &str) -> &str {
    match reason {
        "limit" => "It sends as fast as its limit allows",
        "group" => "It sends its share of its limit group",
        "key" => "What waits is of limit keys whose own limits allow no more, or that are paused",
        "adaptive" => "It sends at its adaptive pace",
        "refused_within_limit" => "The receiver refuses sends that keep the limit",
        "failing" => "Its attempts fail: none of the last minute succeeded, and what waits is sent again later",
        "slow" => "The receiver answers slowly, so all places in flight are taken before the limit is reached",
        "held" => {
            "It is held: the receiver asked to wait (Retry-After or a quota), or somebody holds it or its limit group"
        }
        "breaker" => "The breaker is open: the receiver fails",
        "paused" => "It is paused",
        "ordered" => "Deliveries wait for an earlier one of the same key",
        reason => Fault::named(reason).map_or("", Fault::sentence),
    }
}

extend! {
    pub(crate) trait DestinationText for Destination {
        fn label(&self) -> &str {
            label(&self.settings.name, &self.settings.url)
        }
    }
}

extend! {
    pub(crate) trait DestinationOverviewText for DestinationOverview {
        /// How long the oldest delivery has waited. The page counts on.
        fn oldest(&self) -> Option<Age> {
            let age = self.row.oldest_age_s?;
            Some(At(self.as_of.before(Duration::from_secs_f64(age.max(0.0)))).age(age.seconds()))
        }
    }
}

extend! {
    pub(crate) trait RowText for OverviewRow {
        fn drain(&self) -> Drain {
            Drain::of(self.backlog, self.drain_eta_s, self.drains)
        }

        /// Why its backlog is not sent faster, or why nothing would be sent.
        fn why(&self) -> Option<&str> {
            self.reason.as_deref().or_else(|| self.destination.paused.then_some("paused"))
        }

        /// The reason as a table shows it: one or two words.
        fn short_why(&self) -> Option<String> {
            self.why().map(short_reason)
        }

        /// The reason in words, for tooltips.
        fn reason_text(&self) -> &str {
            match (self.why(), &self.refused_within_limit, &self.adaptive_rate) {
                (Some("refused_within_limit"), Some(refused), _) => &refused.text,
                (Some("adaptive"), _, Some(pace)) => &pace.detail,
                (reason, ..) => reason.map_or("", reason_in_words),
            }
        }

        /// How bad it is. What needs a person now is red: its receiver fails, or its backlog grows without end. What
        /// people or the receiver have asked for is amber, and what only waits for its turn has no colour.
        fn severity(&self) -> &'static str {
            match self.why() {
                _ if self.drain() == Drain::Never || self.destination.breaker_state != "closed" => "bad",
                Some("failing") => "bad",
                Some("held" | "paused" | "slow" | "refused_within_limit") => "warn",
                _ => "",
            }
        }

        /// The colour of a backlog that is not sent.
        fn stopped_tone(&self) -> &'static str {
            if self.severity() == "bad" { "bad" } else { "warn" }
        }

        /// Arrivals and sends, in one unit.
        fn rates(&self) -> [String; 2] {
            in_one_unit([self.arrivals_per_s, self.achieved_per_s])
        }

        /// The colour of the reason: `limit` is as it should be, unless the backlog never drains.
        fn reason_tone(&self) -> &'static str {
            match self.why() {
                _ if self.severity() == "bad" => "bad",
                Some("breaker") => "bad",
                Some(reason) if Fault::named(reason).is_some() => "bad",
                Some("held" | "paused" | "slow" | "refused_within_limit") => "warn",
                _ => "calm",
            }
        }

        /// The colour of the bar.
        fn utilisation_tone(&self) -> &'static str {
            match self.utilisation {
                Some(share) if share >= 0.9 => "full",
                _ => "part",
            }
        }
    }
}

extend! {
    pub(crate) trait WaitsForText for WaitsFor {
        /// After the sentence that something was accepted; empty if it is sent at once.
        fn sentence(&self) -> String {
            let until = self.until.map(|until| format!(" until {} UTC", until.time().plain())).unwrap_or_default();
            match &*self.reason {
                "hold" if self.is_of_group() => format!("It waits for the end of the hold of its limit group{until}."),
                "hold" => {
                    format!("It waits for the end of the hold{until}; “Release” on the page of the destination ends it.")
                }
                "breaker" => format!("It waits for the breaker{until}."),
                "order" => "It waits for an earlier delivery with the same ordering key.".to_owned(),
                "due" => format!("It waits for its time{until}."),
                "turn" => match &self.ahead {
                    Some(ahead) if ahead.value > 0 => ahead.are_sent_first(),
                    _ => String::new(),
                },
                _ => format!("It waits: {}.", self.paused()),
            }
        }

        /// Why a delivery waits; the page adds the times.
        fn text(&self) -> String {
            let because = self.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
            match &*self.reason {
                "hold" if self.is_of_group() => "The limit group of the destination is held.".to_owned(),
                "hold" => format!("The destination is held{because}."),
                "breaker" => format!("The breaker is open{because}."),
                "order" => "An earlier delivery with the same ordering key has not ended.".to_owned(),
                "due" => "The delay before this attempt has not ended.".to_owned(),
                "key" => "Its limit key is paused. It is sent once somebody resumes the key.".to_owned(),
                "turn" => match &self.ahead {
                    Some(ahead) if ahead.value > 0 => ahead.are_sent_first(),
                    Some(_) => "It is the next one.".to_owned(),
                    None => "It waits for its turn.".to_owned(),
                },
                _ => format!("{}. It is sent once somebody resumes it.", capitalised(&self.paused())),
            }
        }

        /// Why a delivery waits, in a table.
        fn short(&self) -> String {
            match &*self.reason {
                "pause" => match &self.by {
                    Some(by) => format!("paused by {by}"),
                    None => "paused".to_owned(),
                },
                "hold" => "held".to_owned(),
                "breaker" => "breaker open".to_owned(),
                "order" => "behind its ordering key".to_owned(),
                "key" => "limit key paused".to_owned(),
                "turn" => match &self.ahead {
                    Some(ahead) if ahead.value > 0 => format!("{} ahead", ahead.short()),
                    Some(_) => "next".to_owned(),
                    None => "in its turn".to_owned(),
                },
                _ => String::new(),
            }
        }

        /// Whether its limit group is held, and not the destination itself.
        fn is_of_group(&self) -> bool {
            self.detail.as_deref() == Some(HELD_BY_GROUP)
        }

        /// That the destination is paused, by whom or why.
        fn paused(&self) -> String {
            match (&self.by, &self.detail) {
                (Some(by), _) => format!("the destination is paused by {by}"),
                (None, Some(detail)) => format!("the destination is paused, because {detail}"),
                (None, None) => "the destination is paused".to_owned(),
            }
        }
    }
}

extend! {
    pub(crate) trait ListCountText for ListCount {
        /// `1,240`, or `10,000+` if there may be more.
        fn short(&self) -> String {
            format!("{}{}", self.value.count(), if self.capped { "+" } else { "" })
        }

        fn are_sent_first(&self) -> String {
            let is_one = self.value == 1 && !self.capped;
            let (noun, verb) = if is_one { ("delivery", "is") } else { ("deliveries", "are") };
            format!("{} {noun} {verb} sent before it.", self.short())
        }
    }
}

/// What was done, and what the delivery or replay waits for; `unless_waiting` if it waits for nothing.
pub(crate) fn accepted(waits_for: Option<&WaitsFor>, done: &str, unless_waiting: &str) -> String {
    let waits = waits_for.map(|waits_for| waits_for.sentence()).filter(|sentence| !sentence.is_empty());
    format!("{done} {}", waits.as_deref().unwrap_or(unless_waiting)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_written_as_people_say_it() {
        let limit = |limit, period: &str, burst, margin_ms| RateLimit {
            limit,
            period: period.to_owned(),
            window_s: None,
            burst,
            margin_ms,
            shape: None,
            unit: None,
        };
        let window = RateLimit { shape: Some("window".to_owned()), ..limit(300, "minute", 1, 0) };
        assert_eq!(window.short(), "300/min window");
        let shown = [limit(10, "second", 1, 0), limit(1_200, "minute", 1, 50), limit(5, "day", 3, 0)];
        assert_eq!(shown.map(|limit| limit.short()), ["10/s", "1,200/min + 50 ms", "5/d burst 3"]);
        let shown = [limit(30, "10s", 1, 0), limit(190, "900s", 1, 0), limit(5, "7200s", 1, 0)];
        assert_eq!(shown.map(|limit| limit.short()), ["30/10s", "190/15min", "5/2h"]);
        let points = BindingLimit { limit: 100, period: "minute".to_owned(), unit: Some("cost".to_owned()) };
        assert_eq!(Binding::Limit(points).short(), "100 points/min");
    }

    #[test]
    fn a_wait_is_told_in_words_that_say_who_and_how_many() {
        let waits = |reason: &str, by: Option<&str>, ahead: Option<(u64, bool)>| WaitsFor {
            reason: reason.to_owned(),
            until: None,
            detail: None,
            by: by.map(str::to_owned),
            since: None,
            ahead: ahead.map(|(value, capped)| ListCount { value, capped }),
        };
        let paused = waits("pause", Some("olga"), None);
        assert_eq!(paused.short(), "paused by olga");
        assert_eq!(paused.text(), "The destination is paused by olga. It is sent once somebody resumes it.");
        let of_key = waits("key", None, None);
        assert_eq!(of_key.text(), "Its limit key is paused. It is sent once somebody resumes the key.");
        let of_group = WaitsFor { detail: Some(HELD_BY_GROUP.to_owned()), ..waits("hold", None, None) };
        assert_eq!(of_group.text(), "The limit group of the destination is held.");
        let turn = |value, capped| waits("turn", None, Some((value, capped)));
        let shown = [turn(0, false), turn(1, false), turn(1_240, false), turn(10_000, true)];
        assert_eq!(shown.each_ref().map(WaitsForText::short), ["next", "1 ahead", "1,240 ahead", "10,000+ ahead"]);
        assert_eq!(shown[1].text(), "1 delivery is sent before it.");
        assert_eq!(shown[3].text(), "10,000+ deliveries are sent before it.");
        assert_eq!(accepted(Some(&shown[0]), "It is due now.", "It is sent."), "It is due now. It is sent.");
    }
}
