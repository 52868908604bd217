//! What an edit has changed, for the activity log. Pure.
//!
//! The values are those that the API shows. Secrets and the values of headers are masked: only that they changed is
//! recorded.

use serde_json::{Map, Value, json};
use weir_api_types::TlsCertificate;
use weir_core::{
    Destination, Timestamp,
    activity::{Action, MASK},
    temporary::Temporary,
};

use crate::{
    problem::{self, ApiResult},
    resources::destinations::{
        egress::certificates_view,
        view::{hold_view, override_view, settings_value},
    },
};

/// State that Weir sets and an edit can end. These fields do not decide which action an edit is.
const DERIVED: [&str; 6] = ["paused_reason", "breaker_state", "held_until", "held_reason", "override", "hold"];
/// Objects of which only the members that differ are shown.
const PARTS: [&str; 2] = ["key_limits", "overrides"];
const SECRETS: [&str; 2] = ["secret", "previous_secret"];

/// The values of a destination before and after a change. Equal values are left out.
pub(crate) fn destination_changes(
    before: Option<&Destination>,
    after: Option<&Destination>,
) -> ApiResult<(Option<Value>, Option<Value>)> {
    // What is over by then was over before, too.
    let now = after.or(before).map_or(Timestamp::MIN, |destination| destination.updated_at);
    let [mut old, mut new] = [before, after].map(|destination| destination.map(|of| values(of, now)));
    let (mut old, mut new) = (old.take().transpose()?, new.take().transpose()?);
    if let (Some(before), Some(after), Some(old), Some(new)) = (before, after, &mut old, &mut new) {
        keep_changed_secrets(before, after, old, new);
        keep_changed_headers(before, after, old, new);
        keep_differences(old, new);
    }
    Ok((old.map(Value::Object), new.map(Value::Object)))
}

/// The action of an edit, derived from the fields that it changed.
pub(crate) fn destination_action(before: Option<&Value>, after: Option<&Value>) -> Action {
    let fields = [before, after].into_iter().flatten().filter_map(Value::as_object).flat_map(Map::keys);
    let fields: Vec<&str> = fields.map(String::as_str).filter(|field| !DERIVED.contains(field)).collect();
    if fields.iter().all(|field| SECRETS.contains(field)) {
        return Action::SecretRotated;
    }
    match after.map(|after| &after["paused"]) {
        Some(Value::Bool(true)) if fields.iter().all(|field| *field == "paused") => Action::DestinationPaused,
        Some(Value::Bool(false)) if fields.iter().all(|field| *field == "paused") => Action::DestinationResumed,
        _ => Action::DestinationEdited,
    }
}

/// The fields of two JSON objects that differ.
pub(crate) fn differences(before: Value, after: Value) -> (Option<Value>, Option<Value>) {
    match (before, after) {
        (Value::Object(mut before), Value::Object(mut after)) => {
            keep_differences(&mut before, &mut after);
            (Some(Value::Object(before)), Some(Value::Object(after)))
        }
        (before, after) => (Some(before), Some(after)),
    }
}

fn keep_differences(before: &mut Map<String, Value>, after: &mut Map<String, Value>) {
    before.retain(|name, value| {
        let is_same = after.get(name) == Some(value) && !is_masked_change(value);
        if is_same {
            after.remove(name);
        } else if let (true, Value::Object(old), Some(Value::Object(new))) =
            (PARTS.contains(&name.as_str()), value, after.get_mut(name))
        {
            // An override of one key among a thousand is an edit of one.
            keep_differences(old, new);
        }
        !is_same
    });
}

/// Whether the value is a mask. Masked fields are present only if they have changed, so equal masks stand for different
/// values.
fn is_masked_change(value: &Value) -> bool {
    let is_mask = |value: &Value| value == MASK;
    is_mask(value) || value.as_object().is_some_and(|fields| !fields.is_empty() && fields.values().all(is_mask))
}

/// The settings as the API shows them, what Weir itself adds, and masks for secrets.
fn values(destination: &Destination, now: Timestamp) -> ApiResult<Map<String, Value>> {
    let Value::Object(mut values) = settings_value(&destination.settings)? else {
        return Err(problem::internal("the settings of a destination are no object", &destination.id));
    };
    let headers = destination.settings.headers.iter().map(|(name, _)| (name.clone(), MASK.into()));
    values.insert("headers".to_owned(), Value::Object(headers.collect()));
    values.insert("secret".to_owned(), MASK.into());
    // Certificates in words, and of the secrets of the way out only that they are there.
    let (password, key) = destination.settings.egress.secrets();
    let tls = certificates_view(&destination.settings.egress.tls, destination.updated_at);
    values.insert("tls".to_owned(), tls.iter().map(TlsCertificate::in_words).collect());
    values.insert(
        "proxy".to_owned(),
        json!(destination.settings.egress.proxy.masked().map(|it| it.replace("***", MASK))),
    );
    values.insert("proxy_password".to_owned(), json!(password.map(|_| MASK)));
    values.insert("client_key".to_owned(), json!(key.map(|_| MASK)));
    let previous = destination.settings.signing.previous.as_ref().map(|_| MASK);
    values.insert("previous_secret".to_owned(), json!(previous));
    values.insert("paused_reason".to_owned(), json!(destination.paused_reason));
    let Temporary { overridden, hold } = destination.temporary.at(now);
    values.insert("override".to_owned(), json!(overridden.as_ref().map(override_view)));
    values.insert("hold".to_owned(), json!(hold.as_ref().map(hold_view)));
    values.insert("held_until".to_owned(), json!(destination.held_until));
    values.insert("held_reason".to_owned(), json!(destination.held_reason));
    let is_open = destination.breaker.reason().is_some();
    values.insert("breaker_state".to_owned(), if is_open { "open" } else { "closed" }.into());
    Ok(values)
}

fn keep_changed_secrets(
    before: &Destination,
    after: &Destination,
    old: &mut Map<String, Value>,
    new: &mut Map<String, Value>,
) {
    let (before, after) = (&before.settings, &after.settings);
    let ((old_password, old_key), (new_password, new_key)) = (before.egress.secrets(), after.egress.secrets());
    for (name, is_same) in [
        ("secret", before.signing.secret == after.signing.secret),
        ("previous_secret", before.signing.previous == after.signing.previous),
        ("proxy_password", old_password == new_password),
        ("client_key", old_key == new_key),
    ] {
        if is_same {
            old.remove(name);
            new.remove(name);
        }
    }
}

/// Keeps the headers that were added, removed, or got another value.
fn keep_changed_headers(
    before: &Destination,
    after: &Destination,
    old: &mut Map<String, Value>,
    new: &mut Map<String, Value>,
) {
    let (before, after) = (&before.settings.headers, &after.settings.headers);
    for (values, own, others) in [(old, before, after), (new, after, before)] {
        if before == after {
            values.remove("headers");
        } else if let Some(Value::Object(headers)) = values.get_mut("headers") {
            headers.retain(|name, _| own.iter().any(|header| header.0 == *name && !others.contains(header)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use weir_core::{
        DestinationId, LimitKey, RateLimits, Timestamp,
        destination::Settings,
        limit_key::{KeyLimits, KeyOverride},
        signing::{KeyKind, Secret, Signing},
    };

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn destination() -> Destination {
        let signing = Signing::new(Secret::from_random(KeyKind::Shared, [7; 32]));
        let settings = Settings {
            name: "billing".to_owned(),
            tenant: "acme".to_owned(),
            breaker: None,
            headers: vec![("x-key".to_owned(), "hidden-1".to_owned()), ("x-same".to_owned(), "hidden-2".to_owned())],
            ..Settings::new("https://example.com/".parse().unwrap(), signing)
        };
        Destination::new(DestinationId::from_bytes([1; 16]), settings, NOW)
    }

    /// The action, and the values before and after an edit.
    fn edited(edit: impl Fn(&mut Settings)) -> (Action, Value, Value) {
        let (before, mut after) = (destination(), destination());
        edit(&mut after.settings);
        let (before, after) = destination_changes(Some(&before), Some(&after)).unwrap();
        (destination_action(before.as_ref(), after.as_ref()), before.unwrap(), after.unwrap())
    }

    #[test]
    fn only_what_changed_is_shown() {
        assert_eq!(
            edited(|settings| settings.max_in_flight = 5),
            (Action::DestinationEdited, json!({"max_in_flight": 64}), json!({"max_in_flight": 5}))
        );
        assert_eq!(
            edited(|settings| settings.paused = true),
            (Action::DestinationPaused, json!({"paused": false}), json!({"paused": true}))
        );
        let both = edited(|settings| (settings.paused, settings.name) = (true, "other".to_owned()));
        assert_eq!(both.0, Action::DestinationEdited);
    }

    #[test]
    fn of_limit_keys_only_the_overrides_that_changed_are_shown() {
        let keys = |overrides: &[(&str, bool)]| {
            let special = |&(key, paused): &(&str, bool)| {
                (LimitKey::new(key), KeyOverride { weight: Some(2), paused, ..KeyOverride::default() })
            };
            Some(Arc::new(KeyLimits {
                pointer: "/customer".to_owned(),
                rate_limits: RateLimits::default(),
                max_in_flight: None,
                weight: 1,
                overrides: overrides.iter().map(special).collect(),
            }))
        };
        let (mut before, mut after) = (destination(), destination());
        before.settings.key_limits = keys(&[("a", false), ("b", false), ("c", false)]);
        after.settings.key_limits = keys(&[("a", false), ("b", true)]);
        let (before, after) = destination_changes(Some(&before), Some(&after)).unwrap();
        assert_eq!(destination_action(before.as_ref(), after.as_ref()), Action::DestinationEdited);
        let special = |paused: bool| json!({"rate_limits": null, "max_in_flight": null, "weight": 2, "paused": paused});
        let overrides = json!({"b": special(false), "c": special(false)});
        assert_eq!(before.unwrap()["key_limits"], json!({"overrides": overrides}));
        assert_eq!(after.unwrap()["key_limits"], json!({"overrides": {"b": special(true)}}));
    }

    #[test]
    fn a_paused_destination_is_resumed_with_the_reason_of_its_pause() {
        let (mut before, after) = (destination(), destination());
        (before.settings.paused, before.paused_reason) = (true, Some("gone".to_owned()));
        let (before, after) = destination_changes(Some(&before), Some(&after)).unwrap();
        assert_eq!(destination_action(before.as_ref(), after.as_ref()), Action::DestinationResumed);
        assert_eq!(before, Some(json!({"paused": true, "paused_reason": "gone"})));
        assert_eq!(after, Some(json!({"paused": false, "paused_reason": null})));
    }

    #[test]
    fn a_changed_secret_is_masked() {
        let other = Secret::from_random(KeyKind::Shared, [8; 32]);
        let until = Some(NOW + Duration::from_secs(60));
        assert_eq!(
            edited(|settings| settings.signing = settings.signing.rotated(other.clone(), until)),
            (
                Action::SecretRotated,
                json!({"secret": MASK, "previous_secret": null}),
                json!({"secret": MASK, "previous_secret": MASK})
            )
        );
    }

    #[test]
    fn only_changed_headers_are_shown_and_their_values_are_masked() {
        let edit = |settings: &mut Settings| settings.headers[0].1 = "hidden-3".to_owned();
        let masked = json!({"headers": {"x-key": MASK}});
        assert_eq!(edited(edit), (Action::DestinationEdited, masked.clone(), masked.clone()));
        let removed = edited(|settings| drop(settings.headers.remove(0)));
        assert_eq!(removed, (Action::DestinationEdited, masked, json!({"headers": {}})));
    }

    #[test]
    fn an_edit_of_a_secret_of_the_way_out_is_shown_without_it() {
        let password = |password: &str| format!("http://u:{password}@proxy.example").parse().unwrap();
        let mut before = destination();
        before.settings.egress.proxy = password("hidden-4");
        let mut after = before.clone();
        after.settings.egress.proxy = password("hidden-5");
        let (before, after) = destination_changes(Some(&before), Some(&after)).unwrap();
        let masked = Some(json!({"proxy_password": MASK}));
        assert_eq!((&before, &after), (&masked, &masked));
        assert_eq!(destination_action(before.as_ref(), after.as_ref()), Action::DestinationEdited);
        let added = edited(|settings| settings.egress.proxy = password("hidden-6"));
        let shown = json!({"proxy": format!("http://u:{MASK}@proxy.example"), "proxy_password": MASK});
        assert_eq!((added.0, added.2), (Action::DestinationEdited, shown));
    }

    #[test]
    fn a_new_destination_shows_all_its_values_and_none_of_its_secrets() {
        let (before, after) = destination_changes(None, Some(&destination())).unwrap();
        let after = after.unwrap();
        assert_eq!((before, &after["secret"], &after["headers"]["x-same"]), (None, &json!(MASK), &json!(MASK)));
        let text = after.to_string();
        assert!(!text.contains("hidden") && !text.contains("whsec_") && !text.contains("***"), "{text}");
        assert_eq!(destination_changes(Some(&destination()), None).unwrap(), (Some(after), None));
    }
}
