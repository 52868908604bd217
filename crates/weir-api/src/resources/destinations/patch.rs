//! Edits of a destination: a JSON merge patch (RFC 7396) on its view.

use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{Ref, RefOr, Schema},
};
use weir_core::{body::BodyFormat, signing};

use super::{
    headers::{self, TWICE},
    request::DestinationRequest,
};
use crate::{
    errors::{Errors, escape, type_name},
    readers::{
        fields::{Read, object_schema},
        texts::SecretText,
    },
};

/// A JSON merge patch: only the given fields change, and `null` restores the default. It is merged into the settings,
/// and the result is read as a [`DestinationRequest`]; so its schema follows from that of the request.
pub(crate) struct DestinationPatch(pub(super) Value);

/// Descriptions of the fields whose meaning in a patch differs from that in a new destination.
const PATCH_NOTES: [(&str, &str); 20] = [
    ("limit_group", "`null` leaves the group. Takes effect within 100 ms and does not reset the windows."),
    ("weight", "Takes effect with the next sends."),
    (
        "key_limits",
        "Merged member by member, also the overrides: a `null` member of `overrides` removes one. Arrays are replaced as a \
         whole; `\"key_limits\": null` removes all. Limits take effect within 100 ms and reset no window; another `key` \
         applies to the events from then on.",
    ),
    ("url", "Must not be null. A URL with another origin removes the headers that this patch does not set."),
    ("event_types", "Replaces the whole array."),
    ("filter", "Replaces the whole filter; `null` removes it. Applies to the events that come from then on."),
    ("rate_limits", "Replaces the whole array. Takes effect within 100 ms and does not reset the windows."),
    ("min_interval_ms", "`null` removes it. Takes effect within 100 ms, and counts from the last send."),
    (
        "adaptive",
        "Merged member by member, and `{}` turns it on; `null` turns it off. Takes effect within 100 ms; no limit changes.",
    ),
    ("retry", "Merged member by member. `schedule_ms` replaces `base_ms` and `cap_ms`, and the other way round."),
    (
        "breaker",
        "Merged member by member; `null` disables the breaker. A change of the breaker or the URL, or `paused: false`, \
         closes an open breaker.",
    ),
    (
        "alerts",
        "Merged member by member; a `null` member disables its threshold. `\"alerts\": null` restores the thresholds of \
         all destinations.",
    ),
    (
        "ordered",
        "`false` releases the deliveries that wait for an earlier one, within seconds, and removes \
         `skip_after_attempts`. `true` orders the events that are stored from then on.",
    ),
    ("skip_after_attempts", "Sent together with `ordered: true`."),
    (
        "secret",
        "Replaces the secret at once and ends a rotation that is in progress. Needs the role `admin`. Null only together \
         with a `style` in `signature`: generates a secret that fits the style. Without it, an edit of the style keeps \
         the secret, and is refused if the secret does not fit.",
    ),
    (
        "signature",
        "Merged member by member; a new style starts with its defaults, and `\"style\": null` is the standard style.",
    ),
    ("body", "Merged member by member; a new format starts with its defaults."),
    ("proxy", "The password `***` is kept for the same proxy and user. Takes effect within a second."),
    (
        "tls",
        "Merged member by member; the key `***` is kept. A `client_certificate` of null removes the key too. Takes effect \
         within a second.",
    ),
    ("paused", "Takes effect within 100 ms."),
];

impl DestinationPatch {
    /// Applies the patch to `shown`, the view of the settings.
    pub(super) fn merge_into(self, mut shown: Value) -> Value {
        drop_replaced(&mut shown, &self.0);
        weir_api_types::merge(&mut shown, self.0);
        shown
    }
}

/// Removes the shown settings that the patch replaces: a schedule removes the backoff, and the other way round; another
/// signature style removes the members of the old style, another format of the body those of the old format; no client
/// certificate removes its key; a filter replaces the old one; and `ordered: false` removes `skip_after_attempts`.
fn drop_replaced(shown: &mut Value, patch: &Value) {
    let Value::Object(shown) = shown else { return };
    if let (Some(Value::Object(shown)), Some(Value::Object(retry))) = (shown.get_mut("retry"), patch.get("retry")) {
        let has_value = |field: &str| retry.get(field).is_some_and(|value| !value.is_null());
        if has_value("schedule_ms") {
            shown.retain(|field, _| !["base_ms", "cap_ms"].contains(&field.as_str()));
        } else if has_value("base_ms") || has_value("cap_ms") {
            shown.remove("schedule_ms");
        }
    }
    // `null` restores the default.
    let defaults = [("signature", "style", signing::STANDARD), ("body", "format", BodyFormat::Envelope.as_str())];
    for (object, kind_field, default) in defaults {
        if let (Some(Value::Object(patched)), Some(current)) = (patch.get(object), shown.get(object)) {
            let given = patched.get(kind_field).map(|kind| kind.as_str().unwrap_or(default));
            if given.is_some_and(|kind| current[kind_field] != kind) {
                shown.remove(object);
            }
        }
    }
    if let (Some(Value::Object(shown)), Some(Value::Object(tls))) = (shown.get_mut("tls"), patch.get("tls"))
        && tls.get("client_certificate").is_some_and(Value::is_null)
    {
        shown.remove("client_key");
    }
    if patch.get("filter").is_some() {
        shown.remove("filter");
    }
    if patch.get("ordered").is_some_and(|ordered| *ordered != Value::Bool(true)) {
        shown.remove("skip_after_attempts");
    }
}

impl Read for DestinationPatch {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Object(mut patch) = value else {
            errors.add(at, format!("must be an object, not {}", type_name(&value)));
            return None;
        };
        let has_style = patch.get("signature").is_some_and(|signature| signature["style"].is_string());
        if patch.get("secret").is_some_and(Value::is_null) && !has_style {
            errors.add("/secret", "must not be null without a `style`: omit it to keep the secret, or give a new one");
        }
        if let Some(Value::Object(headers)) = patch.get_mut("headers") {
            // The view has names in lower case, and the merge must match them.
            for (name, value) in std::mem::take(headers) {
                let name = name.to_ascii_lowercase();
                if headers.insert(name.clone(), value).is_some() {
                    errors.add(format!("/headers/{}", escape(&name)), TWICE);
                }
            }
        }
        Some(Self(Value::Object(patch)))
    }
}

impl ToSchema for DestinationPatch {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        DestinationRequest::schemas(schemas);
    }
}

impl PartialSchema for DestinationPatch {
    fn schema() -> RefOr<Schema> {
        let mut patch = object_schema::<DestinationRequest>();
        patch.required.clear();
        patch.description =
            Some("A JSON merge patch: only the given fields change, and `null` restores the default.".to_owned());
        for property in patch.properties.values_mut() {
            forget_default(property);
        }
        let mut headers = headers::patch_schema();
        describe(&mut headers, "Merged header by header; `null` removes a header, `***` keeps its value.");
        patch.properties.insert("headers".to_owned(), headers);
        // Unlike in a new destination, the secret must not be null.
        let secret = Ref::from_schema_name(SecretText::name());
        patch.properties.insert("secret".to_owned(), RefOr::Ref(secret));
        for (name, note) in PATCH_NOTES {
            if let Some(property) = patch.properties.get_mut(name) {
                describe(property, note);
            }
        }
        RefOr::T(Schema::Object(patch))
    }
}

fn describe(property: &mut RefOr<Schema>, description: &str) {
    let description = description.to_owned();
    match property {
        RefOr::Ref(reference) => reference.description = description,
        RefOr::T(Schema::Object(schema)) => schema.description = Some(description),
        RefOr::T(Schema::Array(schema)) => schema.description = Some(description),
        // A nullable reference is a `oneOf`; the description belongs to the reference in it.
        RefOr::T(Schema::OneOf(schema)) => {
            if let Some(RefOr::Ref(reference)) = schema.items.first_mut() {
                reference.description = description;
            }
        }
        RefOr::T(_) => {}
    }
}

/// An absent field of a patch keeps its value.
fn forget_default(property: &mut RefOr<Schema>) {
    match property {
        RefOr::T(Schema::Object(schema)) => schema.default = None,
        RefOr::T(Schema::Array(schema)) => schema.default = None,
        RefOr::T(Schema::OneOf(schema)) => schema.default = None,
        RefOr::Ref(_) | RefOr::T(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_note_is_about_a_field() {
        let request = object_schema::<DestinationRequest>();
        for (name, _) in PATCH_NOTES {
            assert!(request.properties.contains_key(name), "{name}");
        }
    }

    #[test]
    fn a_patch_keeps_its_null_members_for_the_reader() {
        let mut shown = json!({"name": "a", "retry": {"base_ms": 5}, "breaker": null});
        weir_api_types::merge(
            &mut shown,
            json!({"name": null, "retry": {"base_ms": null}, "breaker": {"open_ms": 7}, "colour": null}),
        );
        assert_eq!(shown, json!({"name": null, "retry": {"base_ms": null}, "breaker": {"open_ms": 7}, "colour": null}));
    }
}
