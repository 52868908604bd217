//! What several pages show of the API's answers.

use std::time::Duration;

use weir_api_types::{
    Binding, BriefDestination, Destination, DestinationOverview, OtherBinding, OverviewRow, RateLimit, WaitsFor,
};

use crate::{
    extend::extend,
    names::label,
    units::{Age, At, Seconds, Units as _, in_one_unit},
};

extend! {
    pub(crate) trait LimitText for RateLimit {
        /// `10/s`, `600/min`, `10/s burst 5`, `10/s + 50 ms`.
        fn short(&self) -> String {
            let unit = unit(&self.period);
            let burst = (self.burst > 1).then(|| format!(" burst {}", self.burst));
            let margin = (self.margin_ms > 0).then(|| format!(" + {} ms", self.margin_ms));
            format!("{}/{unit}{}{}", self.limit.count(), burst.unwrap_or_default(), margin.unwrap_or_default())
        }
    }
}

fn unit(period: &str) -> &str {
    match period {
        "second" => "s",
        "minute" => "min",
        "hour" => "h",
        "day" => "d",
        other => other,
    }
}

/// A minimum interval: `100 ms apart`.
pub(crate) fn apart(millis: u32) -> String {
    format!("{millis} ms apart")
}

extend! {
    pub(crate) trait BindingText for Binding {
        fn short(&self) -> String {
            match self {
                Self::Limit(limit) => format!("{}/{}", limit.limit.count(), unit(&limit.period)),
                Self::Other(OtherBinding::MinInterval) => "its minimum interval".to_owned(),
                Self::Other(OtherBinding::MaxInFlight) => "max_in_flight".to_owned(),
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
            match (self.backlog, self.drain_eta_s, self.drains) {
                (0, _, _) => Drain::Empty,
                (_, Some(eta), _) => Drain::In(eta.seconds()),
                (_, None, Some(false)) => Drain::Never,
                (_, None, _) => Drain::Stopped,
            }
        }

        /// The reason in words, for tooltips.
        fn reason_text(&self) -> &str {
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

        /// How bad it is. What needs a person now is red: its receiver fails, or its backlog grows without end. What
        /// people or the receiver have asked for is amber, and what only waits for its turn has no colour.
        fn severity(&self) -> &'static str {
            match self.reason.as_deref() {
                _ if self.drain() == Drain::Never || self.destination.breaker_state != "closed" => "bad",
                Some("held" | "paused" | "slow" | "refused_within_limit") => "warn",
                _ => "",
            }
        }

        /// Arrivals and sends, in one unit.
        fn rates(&self) -> [String; 2] {
            in_one_unit([self.arrivals_per_s, self.achieved_per_s])
        }

        /// The colour of the reason: `limit` is as it should be, unless the backlog never drains.
        fn reason_tone(&self) -> &'static str {
            match self.reason.as_deref() {
                _ if self.severity() == "bad" => "bad",
                Some("breaker") => "bad",
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
        /// After the sentence that something was accepted.
        fn sentence(&self) -> String {
            let until = self.until.map(|until| format!(" until {} UTC", until.time().plain())).unwrap_or_default();
            match &*self.reason {
                "hold" => {
                    format!("It waits for the end of the hold{until}; “Release” on the page of the destination ends it.")
                }
                "breaker" => format!("It waits for the breaker{until}."),
                _ => "It waits: the destination is paused.".to_owned(),
            }
        }
    }
}

/// What was done, and what the delivery or replay waits for; `unless_waiting` if it waits for nothing.
pub(crate) fn accepted(waits_for: Option<&WaitsFor>, done: &str, unless_waiting: &str) -> String {
    match waits_for {
        Some(waits_for) => format!("{done} {}", waits_for.sentence()),
        None => format!("{done} {unless_waiting}").trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_written_as_people_say_it() {
        let limit =
            |limit, period: &str, burst, margin_ms| RateLimit { limit, period: period.to_owned(), burst, margin_ms };
        let shown = [limit(10, "second", 1, 0), limit(1_200, "minute", 1, 50), limit(5, "day", 3, 0)];
        assert_eq!(shown.map(|limit| limit.short()), ["10/s", "1,200/min + 50 ms", "5/d burst 3"]);
    }
}
