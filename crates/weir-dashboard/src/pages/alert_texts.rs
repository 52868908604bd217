//! What alerts say in words, those that are true now and those of the history. The texts of an alert and of the one that ends
//! it say the same things.

use weir_api_types::{AlertBacklog, AlertData, AlertLimitKeys};
use weir_core::{alert::AlertType, destination::DEFAULT_TENANT};

use crate::units::{Units as _, capitalised};

/// A type of alerts.
pub(super) struct Kind {
    pub(super) alert_type: AlertType,
    /// In plain words.
    pub(super) name: &'static str,
    pub(super) tone: &'static str,
    /// When it is sent.
    pub(super) when: &'static str,
}

const fn kind(alert_type: AlertType, name: &'static str, tone: &'static str, when: &'static str) -> Kind {
    Kind { alert_type, name, tone, when }
}

pub(super) const KINDS: [Kind; 18] = [
    kind(AlertType::BacklogHigh, "Backlog high", "warn", "It is above a threshold, or drains too late"),
    kind(
        AlertType::BacklogCleared,
        "Backlog cleared",
        "good",
        "It is below 80 % of each threshold again, and drains in time",
    ),
    kind(AlertType::BreakerOpened, "Breaker opened", "bad", "The receiver fails"),
    kind(AlertType::BreakerClosed, "Breaker closed", "good", "The receiver answers again, or somebody has closed it"),
    kind(AlertType::Paused, "Paused by Weir", "warn", "For example after a 410 Gone"),
    kind(AlertType::Refused, "Refused within the limit", "warn", "The receiver refuses sends that keep the limit"),
    kind(AlertType::Admitted, "No more refusals", "good", "None for five minutes, or since an edit"),
    kind(AlertType::Refusing, "Refuses many sends", "warn", "More than a tenth of at least 20 sends in five minutes"),
    kind(AlertType::Accepting, "Accepts again", "good", "Less than 8 % was answered with 429 for ten minutes"),
    kind(AlertType::Stalled, "Stalled", "bad", "Deliveries are due, the limits allow them, and none is sent"),
    kind(AlertType::Recovered, "Sends again", "good", "The stall has ended"),
    kind(
        AlertType::InstallationStalled,
        "Weir does not send",
        "bad",
        "A fault of Weir itself stalls destinations; one alert for all of them",
    ),
    kind(
        AlertType::InstallationRecovered,
        "Weir sends again",
        "good",
        "No destination is stalled by that fault any more",
    ),
    kind(
        AlertType::RateLowered,
        "Pace lowered",
        "warn",
        "The adaptive pace is less than half of what it was within the hour; at most one in ten minutes",
    ),
    kind(AlertType::RateRestored, "Pace restored", "good", "It is at 80 % of what it was again, or no longer adaptive"),
    kind(
        AlertType::GroupBehind,
        "Limit group behind",
        "warn",
        "The backlogs of its members are above a threshold, drain too late, or never; in place of their own alerts",
    ),
    kind(
        AlertType::GroupCaughtUp,
        "Limit group caught up",
        "good",
        "Below 80 % of each threshold, and drained in time for ten minutes",
    ),
    kind(AlertType::Dead, "Dead letters", "bad", "At most one alert a minute for each destination"),
];

pub(super) fn kind_of(event_type: &str) -> Option<&'static Kind> {
    let alert_type = AlertType::named(event_type)?;
    KINDS.iter().find(|kind| kind.alert_type == alert_type)
}

/// A tenant that a page must name.
pub(super) fn other_than_default(tenant: &str) -> Option<&str> {
    (tenant != DEFAULT_TENANT && !tenant.is_empty()).then_some(tenant)
}

/// The limit keys that wait for limits of their own: a sentence, or nothing.
fn limit_keys(AlertLimitKeys { named, more }: &AlertLimitKeys) -> String {
    let quoted: Vec<_> = named.iter().map(|key| format!("“{key}”")).collect();
    let (names, is_one) = (quoted.join(", "), quoted.len() == 1 && *more == 0);
    match (quoted.is_empty(), more) {
        (true, _) => String::new(),
        (_, 0) if is_one => format!(" The limit key {names} waits for its own limit."),
        (_, 0) => format!(" The limit keys {names} wait for limits of their own."),
        (_, more) => format!(" The limit keys {names} and {} more wait for limits of their own.", more.count()),
    }
}

/// What the alert of this type says, in a sentence.
pub(super) fn text(event_type: &str, data: &AlertData) -> String {
    let waiting = data.backlog.unwrap_or_default().waiting;
    let reason = data.reason.as_deref().unwrap_or_default();
    match AlertType::named(event_type) {
        Some(AlertType::BacklogHigh) => {
            backlog(data, false) + &data.limit_keys.as_ref().map(limit_keys).unwrap_or_default()
        }
        Some(AlertType::BacklogCleared) if waiting == 0 => "Nothing waits any more.".to_owned(),
        Some(AlertType::BacklogCleared) => backlog(data, true),
        Some(AlertType::GroupBehind) => group(data),
        Some(AlertType::GroupCaughtUp) if waiting == 0 => "It holds no member back any more.".to_owned(),
        Some(AlertType::GroupCaughtUp) => backlog(data, true),
        Some(AlertType::BreakerClosed) => "The breaker is closed: sends go on.".to_owned(),
        Some(AlertType::Admitted) => "The receiver admits what keeps the limit.".to_owned(),
        Some(AlertType::Accepting) => "The receiver accepts nearly all sends.".to_owned(),
        Some(AlertType::Recovered) => "Weir sends to it again.".to_owned(),
        Some(AlertType::InstallationRecovered) => "Weir sends to all destinations again.".to_owned(),
        Some(AlertType::RateLowered) => {
            let [now, before] = [data.per_s, data.usual_per_s].map(|rate| rate.unwrap_or_default().per_s());
            format!("The pace was lowered from {before} to {now}: {reason}.")
        }
        Some(AlertType::RateRestored) => match data.per_s {
            Some(per_s) => format!("The pace is {} again.", per_s.per_s()),
            None => "The pace is no longer adaptive.".to_owned(),
        },
        Some(AlertType::Dead) => match (data.new.unwrap_or_default(), data.dead_letters.unwrap_or_default()) {
            (new, all) if new == all => format!("{}.", counted(new, "dead letter", "dead letters")),
            (new, all) => format!("{}, {} in all.", counted(new, "new dead letter", "new dead letters"), all.count()),
        },
        _ if reason.is_empty() => String::new(),
        _ => format!("{}.", capitalised(reason)),
    }
}

/// What a limit group holds back.
fn group(data: &AlertData) -> String {
    let members = counted(data.members.unwrap_or_default(), "member waits", "members wait");
    let [arrivals, sends] = [data.arrivals_per_s, data.sends_per_s].map(|rate| rate.unwrap_or_default().per_s());
    let more = match data.never_drains {
        Some(true) => format!(" More arrives than it may send: {arrivals} against {sends} in the last minute."),
        _ => String::new(),
    };
    format!("{members} for it. {}{more}", backlog(data, false))
}

/// The measures of a backlog that were above their thresholds, and are no more if it has cleared.
fn backlog(data: &AlertData, has_cleared: bool) -> String {
    let AlertBacklog { waiting: count, oldest_age_s, drain_eta_s } = data.backlog.unwrap_or_default();
    let thresholds = data.thresholds.unwrap_or_default();
    let reasons = data.reasons.as_deref().unwrap_or_default();
    let has = |reason: &str| reasons.iter().any(|given| given == reason);
    let depth = thresholds.backlog_depth.map(|depth| threshold(u64::from(depth).count()));
    // An alert of an earlier version names no measures.
    let is_below = depth.is_some() || reasons.is_empty();
    let mut text = match has_cleared {
        true if is_below => format!("Only {} now", waiting(count)),
        true => format!("{} now", capitalised(&waiting(count))),
        false => capitalised(&waiting(count)),
    };
    text.push_str(&depth.unwrap_or_default());
    if has("oldest_age_s") {
        text.push_str(&format!(", the oldest for {}", (oldest_age_s as f64).seconds()));
        text.push_str(&thresholds.oldest_age_s.map(|age| threshold(f64::from(age).seconds())).unwrap_or_default());
    }
    text.push('.');
    // Of one that never drains, the text of the group says why.
    if has("drain_beyond_ttl") && data.never_drains != Some(true) {
        text.push_str(match has_cleared {
            true => " The backlog drains before any of it expires",
            false => " Some expire before the backlog drains",
        });
        text.push_str(&drain_eta_s.map_or_else(String::new, |eta| format!(" (in {})", (eta as f64).seconds())));
        text.push('.');
    }
    text
}

/// The threshold of a measure.
fn threshold(in_words: impl std::fmt::Display) -> String {
    format!(" (the threshold is {in_words})")
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", count.count(), if count == 1 { one } else { many })
}

fn waiting(count: u64) -> String {
    counted(count, "delivery waits", "deliveries wait")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn text(event_type: &str, data: Value) -> String {
        super::text(event_type, &serde_json::from_value(data).unwrap())
    }

    #[test]
    fn a_high_backlog_says_which_measures_are_above_their_thresholds() {
        let high = |reasons: &[&str], waiting: u64, eta: Value| {
            let backlog = json!({"waiting": waiting, "oldest_age_s": 185, "drain_eta_s": eta});
            text("weir.backlog.high", json!({"name": "Acme", "reasons": reasons, "backlog": backlog}))
        };
        assert_eq!(high(&["backlog_depth"], 1_234, json!(60)), "1,234 deliveries wait.");
        assert_eq!(high(&["oldest_age_s"], 1, Value::Null), "1 delivery waits, the oldest for 3 min 5 s.");
        assert_eq!(
            high(&["backlog_depth", "drain_beyond_ttl"], 9, json!(7_200)),
            "9 deliveries wait. Some expire before the backlog drains (in 2 h)."
        );
        let of_keys = |named: &[&str], more: u64| {
            let backlog = json!({"waiting": 9, "oldest_age_s": 30});
            let limit_keys = json!({"named": named, "more": more});
            text(
                "weir.backlog.high",
                json!({"reasons": ["oldest_age_s"], "backlog": backlog, "limit_keys": limit_keys}),
            )
            .split_off("9 deliveries wait, the oldest for 30 s.".len())
        };
        assert_eq!(of_keys(&["a"], 0), " The limit key “a” waits for its own limit.");
        assert_eq!(of_keys(&["a", "b"], 0), " The limit keys “a”, “b” wait for limits of their own.");
        assert_eq!(
            of_keys(&["a", "b", "c"], 7),
            " The limit keys “a”, “b”, “c” and 7 more wait for limits of their own."
        );
    }

    #[test]
    fn the_texts_of_a_backlog_that_is_high_and_has_cleared_say_the_same_things() {
        let of = |event_type: &str, reasons: &[&str], thresholds: Value, figures: (u64, u64, Value)| {
            let (waiting, age, eta) = figures;
            let backlog = json!({"waiting": waiting, "oldest_age_s": age, "drain_eta_s": eta});
            text(event_type, json!({"reasons": reasons, "thresholds": thresholds, "backlog": backlog}))
        };
        let (high, cleared) = ("weir.backlog.high", "weir.backlog.cleared");
        let both = &["backlog_depth", "oldest_age_s"][..];
        let limits = || json!({"backlog_depth": 1_000, "oldest_age_s": 60});
        assert_eq!(
            of(high, both, limits(), (1_234, 185, Value::Null)),
            "1,234 deliveries wait (the threshold is 1,000), the oldest for 3 min 5 s (the threshold is 1 min)."
        );
        assert_eq!(
            of(cleared, both, limits(), (700, 30, Value::Null)),
            "Only 700 deliveries wait now (the threshold is 1,000), the oldest for 30 s (the threshold is 1 min)."
        );
        let late = &["drain_beyond_ttl"][..];
        assert_eq!(
            of(high, late, json!({}), (9_000, 5, json!(7_200))),
            "9,000 deliveries wait. Some expire before the backlog drains (in 2 h)."
        );
        assert_eq!(
            of(cleared, late, json!({}), (8_000, 5, json!(300))),
            "8,000 deliveries wait now. The backlog drains before any of it expires (in 5 min)."
        );
        // The threshold was removed: the backlog is no smaller.
        assert_eq!(of(cleared, &["backlog_depth"], json!({}), (5_000, 5, Value::Null)), "5,000 deliveries wait now.");
    }

    #[test]
    fn each_alert_says_what_happened() {
        let backlog = |waiting: u64| json!({"backlog": {"waiting": waiting, "oldest_age_s": 0, "drain_eta_s": null}});
        for (event_type, data, expected) in [
            ("weir.backlog.cleared", backlog(0), "Nothing waits any more."),
            ("weir.backlog.cleared", backlog(3), "Only 3 deliveries wait now."),
            ("weir.breaker.opened", json!({"reason": "10 failures in a row"}), "10 failures in a row."),
            ("weir.breaker.closed", json!({}), "The breaker is closed: sends go on."),
            ("weir.destination.paused", json!({"reason": "the endpoint is gone"}), "The endpoint is gone."),
            ("weir.destination.refused", json!({"reason": "it refuses; set a limit"}), "It refuses; set a limit."),
            ("weir.destination.admitted", json!({}), "The receiver admits what keeps the limit."),
            ("weir.destination.refusing", json!({"reason": "it answered 429"}), "It answered 429."),
            ("weir.destination.accepting", json!({}), "The receiver accepts nearly all sends."),
            ("weir.destination.stalled", json!({"reason": "no worker runs"}), "No worker runs."),
            ("weir.destination.recovered", json!({}), "Weir sends to it again."),
            (
                "weir.installation.stalled",
                json!({"reason": "no worker runs; 3 destinations wait"}),
                "No worker runs; 3 destinations wait.",
            ),
            ("weir.installation.recovered", json!({}), "Weir sends to all destinations again."),
            (
                "weir.rate.lowered",
                json!({"per_s": 18.0, "usual_per_s": 100.0, "reason": "12 of 340 answers were 429"}),
                "The pace was lowered from 100/s to 18/s: 12 of 340 answers were 429.",
            ),
            ("weir.rate.restored", json!({"per_s": 90.0}), "The pace is 90/s again."),
            ("weir.rate.restored", json!({}), "The pace is no longer adaptive."),
            (
                "weir.limit_group.behind",
                json!({"members": 2, "reasons": ["drain_beyond_ttl"], "never_drains": true, "arrivals_per_s": 12.0,
                    "sends_per_s": 10.0, "backlog": {"waiting": 9, "oldest_age_s": 600}}),
                "2 members wait for it. 9 deliveries wait. More arrives than it may send: 12/s against 10/s in the last \
                 minute.",
            ),
            ("weir.limit_group.caught_up", backlog(0), "It holds no member back any more."),
            ("weir.limit_group.caught_up", backlog(3), "Only 3 deliveries wait now."),
            ("weir.delivery.dead", json!({"new": 1, "dead_letters": 1}), "1 dead letter."),
            ("weir.delivery.dead", json!({"new": 3, "dead_letters": 10}), "3 new dead letters, 10 in all."),
            ("weir.other", json!({}), ""),
        ] {
            assert_eq!(text(event_type, data), expected, "{event_type}");
        }
    }
}
