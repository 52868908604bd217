//! The fields of the form of a destination's settings, group by group.

use weir_core::{
    body::BodyFormat,
    signing::{Algorithm, CUSTOM, Encoding, KeyForm, STANDARD, TimestampFormat},
};

use self::Kind::{Choice, Duration, Durations, LimitGroup, Lines, Number, Text, Tick, Wide};

/// How a field is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// A text that needs the whole row.
    Wide,
    Number,
    /// In the unit that its name ends with.
    Duration,
    /// Several of them, with commas between them.
    Durations,
    Lines,
    Tick,
    Choice(&'static [&'static str]),
    /// A limit group, by its name.
    LimitGroup,
}

pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) kind: Kind,
    pub(crate) hint: &'static str,
}

pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) fields: &'static [Field],
}

/// The field with this name.
pub(crate) fn named(name: &str) -> Option<&'static Field> {
    GROUPS.iter().flat_map(|group| group.fields).find(|field| field.name == name)
}

/// The field that has the value at a JSON pointer into the body of the API.
pub(crate) fn at(pointer: &str) -> Option<&'static Field> {
    let parts: Vec<&str> = pointer.split('/').skip(1).collect();
    let name = match parts.as_slice() {
        ["signature"] => "style",
        ["signature", "header"] => "signature_header",
        ["body"] | ["body", "format"] => "body_format",
        ["alerts"] => "own_alerts",
        ["adaptive", "min_per_s"] => "pace_min",
        ["adaptive", "max_per_s"] => "pace_max",
        ["adaptive", "latency"] => "late_answers",
        // The form has no secret of its own: another style asks for one that fits.
        ["secret"] => "new_secret",
        // Rules about all certificates, such as that they need https.
        ["tls"] => "ca",
        ["retry" | "breaker" | "signature" | "body" | "alerts" | "tls", name, ..] | [name, ..] => *name,
        [] => return None,
    };
    named(name)
}

const fn field(name: &'static str, label: &'static str, kind: Kind, hint: &'static str) -> Field {
    Field { name, label, kind, hint }
}

/// The names of all styles; a test compares them with those of the domain.
const STYLES: [&str; 19] = [
    STANDARD,
    "timestamped",
    "prefixed",
    "stripe",
    "github",
    "slack",
    "zoom",
    "shopify",
    "zendesk",
    "square",
    "razorpay",
    "linear",
    "lemon-squeezy",
    "pagerduty",
    "paddle",
    "discord",
    "svix",
    "twitch",
    CUSTOM,
];

const BODY_FORMATS: [&str; 4] = [
    BodyFormat::Envelope.as_str(),
    BodyFormat::Data.as_str(),
    BodyFormat::Cloudevents.as_str(),
    BodyFormat::CloudeventsBinary.as_str(),
];

/// The group that the certificates are shown in.
pub(crate) const WAY_OUT: &str = "Way out";

/// The form, group by group.
pub(crate) const GROUPS: [Group; 9] = [
    Group {
        title: "General",
        fields: &[
            field("name", "Name", Wide, ""),
            field("url", "URL", Wide, "A new origin removes the headers below, unless you type their values again"),
            field(
                "limit_group",
                "Limit group",
                LimitGroup,
                "The name of the group whose limits it shares, beside its own; empty: none",
            ),
            field("weight", "Weight in the group", Number, "Its part of the group's rate, beside the other members"),
            field("timeout_ms", "Timeout of an attempt", Duration, "Such as 15 s or 500 ms"),
            field("event_types", "Event types", Lines, "One a line: video.created, video.* or *"),
            field(
                "filter",
                "Filter",
                Lines,
                "Empty: every event. JSON on the data, such as {\"/amount\": {\"gte\": 100}}",
            ),
            field("ordered", "Strict order for events with the same ordering_key", Tick, ""),
            field(
                "skip_after_attempts",
                "Skip a failing delivery after this many attempts",
                Number,
                "Only with strict order; empty: never",
            ),
        ],
    },
    Group {
        title: "Adaptive pace",
        fields: &[
            field(
                "adaptive",
                "Find the pace by what the receiver takes",
                Tick,
                "Slower when it refuses, faster when it does not; the limits stay exact",
            ),
            field("pace_min", "Never slower than", Text, "Sends a second; 0.0167 is one a minute"),
            field("pace_max", "Never faster than", Text, "Sends a second; empty: up to the limits"),
            field("late_answers", "Late answers bound it too", Tick, "By fewer requests in flight"),
        ],
    },
    Group {
        title: "Retries",
        fields: &[
            field("max_attempts", "Most attempts", Number, ""),
            field("max_age_s", "Longest age", Duration, "Such as 72 h"),
            field("base_ms", "First delay at most", Duration, "Doubles with each attempt"),
            field("cap_ms", "Longest delay", Duration, ""),
            field(
                "schedule_ms",
                "Fixed delays",
                Durations,
                "Such as 1 s, 1 min, 1 h. They replace the two delays above",
            ),
            field(
                "refusals_count",
                "Refusals count as attempts",
                Tick,
                "429, or a used-up quota. Otherwise only the age of a delivery bounds how often it is refused",
            ),
        ],
    },
    Group {
        title: "Breaker",
        fields: &[
            field("breaker", "Stop sending to a failing receiver", Tick, ""),
            field(
                "failure_ratio",
                "Opens above this share of failures",
                Text,
                "Share of the attempts of a minute, 0 to 1",
            ),
            field("min_attempts", "Fewest attempts for this share", Number, ""),
            field("consecutive", "Opens after this many failures in a row", Number, ""),
            field("open_ms", "First probe after", Duration, ""),
            field("open_max_ms", "Longest time between probes", Duration, ""),
            field("pause_after_s", "Pause after failing this long", Duration, "Empty: never"),
        ],
    },
    Group {
        title: "Headers",
        fields: &[field(
            "headers",
            "Sent with every request",
            Lines,
            "One a line, as name: value. The value *** stays as it is",
        )],
    },
    Group {
        title: "Signature",
        fields: &[
            field("style", "Style", Choice(&STYLES), ""),
            field("signature_header", "Signature header", Text, "Empty: that of the style. Not with standard"),
            field("timestamp_header", "Timestamp header", Text, "Only where the style has one, as prefixed and slack"),
            field("id_header", "Id header", Text, "Only where the style has one, as svix and custom"),
            field("signed", "Signed text", Wide, "Custom: such as {timestamp}.{body}; also {id} and {url}"),
            field("value", "Header value", Wide, "Custom: such as t={timestamp},v1={signature}"),
            field("separator", "Separator of two signatures", Text, "Custom; empty: the header holds one"),
            field("encoding", "Encoding", Choice(Encoding::ALL), "Custom"),
            field("algorithm", "Algorithm", Choice(Algorithm::ALL), "Custom"),
            field("key", "Key", Choice(KeyForm::ALL), "Custom: the secret as a text, or what it encodes"),
            field("timestamp_format", "Time format", Choice(TimestampFormat::ALL), "Custom"),
            field(
                "new_secret",
                "Replace the secret by a new one that fits the style",
                Tick,
                "At once; without it the secret stays, if it fits. Needs the role admin",
            ),
        ],
    },
    Group {
        title: "Body",
        fields: &[
            field("body_format", "Form", Choice(&BODY_FORMATS), ""),
            field("content_type", "Content type", Text, "Empty: that of the form"),
            field("source", "Source of CloudEvents", Text, "Empty: /weir/ and the tenant"),
        ],
    },
    Group {
        title: WAY_OUT,
        fields: &[
            field(
                "proxy",
                "Proxy",
                Wide,
                "Empty: as the installation does; direct; or http://user:password@host:port. The password *** stays. Needs the role admin",
            ),
            field(
                "ca",
                "Private authority (PEM)",
                Lines,
                "Trusted for this destination instead of the public authorities",
            ),
            field(
                "client_certificate",
                "Client certificate (PEM)",
                Lines,
                "For receivers that want one (mTLS), followed by those between it and their authority",
            ),
            field("client_key", "Key of the client certificate (PEM)", Lines, "The value *** stays as it is"),
        ],
    },
    Group {
        title: "Alerts",
        fields: &[
            field("own_alerts", "Own thresholds", Tick, "Otherwise those of all destinations apply. Empty: no alert"),
            field("backlog_depth", "Waiting deliveries", Number, ""),
            field("oldest_age_s", "Age of the oldest", Duration, "Such as 15 min"),
            field("dead_letters", "Dead letters", Number, ""),
            field("drain_beyond_ttl", "The backlog drains after deliveries expire", Tick, ""),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_offers_every_style_of_the_domain() {
        let mut names: Vec<_> = weir_core::signing::style_names().collect();
        let mut offered = STYLES.to_vec();
        names.sort_unstable();
        offered.sort_unstable();
        assert_eq!(offered, names);
    }
}
