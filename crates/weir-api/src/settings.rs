//! The settings of a destination: read from JSON and validated field by field, with all errors reported at once.
//!
//! A PATCH is a JSON merge patch (RFC 7396) on the view of the destination. The result is read like a new destination.
//! So one set of rules applies to both, and an edit cannot produce settings that a creation would refuse.

mod alerts;
mod breaker;
mod order;
mod rates;
mod signing;

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};
use url::Url;
use weir_core::{
    address::AddressPolicy,
    destination::{
        DEFAULT_MAX_IN_FLIGHT, DEFAULT_TENANT, DEFAULT_TIMEOUT_MS, MAX_IN_FLIGHT, Settings, TIMEOUT_MS,
        is_reserved_header,
    },
    pattern::EventPattern,
};

use crate::{
    fields::{self, Errors, Object},
    problem::{FieldError, Problem},
};

/// The mask that is shown instead of a header's value. A patch with the mask keeps the value.
pub(crate) const HEADER_MASK: &str = "***";
/// Fields of a destination that are shown but cannot be set.
pub(crate) const READ_ONLY: [&str; 9] = [
    "id",
    "created_at",
    "updated_at",
    "paused_reason",
    "held_until",
    "held_reason",
    "breaker_state",
    "breaker_reason",
    "next_probe_at",
];

const MAX_URL_LEN: usize = 2_048;
const MAX_NAME_CHARS: usize = 200;
const MAX_TENANT_LEN: usize = 128;
const MAX_PATTERNS: usize = 100;
const MAX_HEADERS: usize = 32;
const MAX_HEADER_VALUE_LEN: usize = 4_096;
const HEADER_TWICE: &str = "is given twice: header names are not case-sensitive";

pub(crate) use alerts::policy as alert_policy;
pub(crate) use signing::rotation;

/// The settings of a new destination.
pub(crate) fn read(body: Value, addresses: &AddressPolicy) -> Result<Settings, Problem> {
    SettingsReader { addresses, current: None, origin_changes: false }.settings(body)
}

/// The settings of an edited destination: `patch` merged into `shown`, the view of `current`.
pub(crate) fn merge(
    current: &Settings,
    mut shown: Value,
    patch: Value,
    addresses: &AddressPolicy,
) -> Result<Settings, Problem> {
    let origin_changes = changes_origin(&current.url, &patch);
    if origin_changes && let Value::Object(shown) = &mut shown {
        shown.remove("headers");
    }
    let merged = apply_patch(shown, patch).map_err(Problem::invalid)?;
    SettingsReader { addresses, current: Some(current), origin_changes }.settings(merged)
}

/// Whether a patch changes the origin of the URL. The values of headers are write-only, so a client that edits the URL
/// must not be able to send them to a receiver of its own. An invalid URL is refused later.
fn changes_origin(current: &Url, patch: &Value) -> bool {
    let url = patch.get("url").and_then(Value::as_str).and_then(|url| url.parse::<Url>().ok());
    url.is_some_and(|url| url.origin() != current.origin())
}

/// Applies a merge patch (RFC 7396) with the rules of settings that replace each other: a schedule removes the backoff,
/// and the other way round; another signature style removes the headers of the old style; and `ordered: false` removes
/// `skip_after_attempts`. For the breaker, its `pause_after_s` and the thresholds in `alerts`, `null` means disabled,
/// not the default.
fn apply_patch(mut shown: Value, patch: Value) -> Result<Value, Vec<FieldError>> {
    let mut errors = Errors::default();
    let Value::Object(mut patch) = patch else {
        errors.add("", format!("must be an object, not {}", fields::type_name(&patch)));
        return Err(errors.into_vec());
    };
    if patch.get("secret").is_some_and(Value::is_null) {
        errors.add("/secret", "must not be null: omit it to keep the secret, or give a new one");
    }
    if let Some(Value::Object(headers)) = patch.get_mut("headers") {
        // The view has names in lower case, and the merge must match them.
        for (name, value) in std::mem::take(headers) {
            let name = name.to_ascii_lowercase();
            if headers.insert(name.clone(), value).is_some() {
                errors.add(format!("/headers/{}", fields::escape(&name)), HEADER_TWICE);
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors.into_vec());
    }
    // A schedule and a backoff replace each other.
    if let (Some(Value::Object(shown)), Some(Value::Object(retry))) = (shown.get_mut("retry"), patch.get("retry")) {
        let has_value = |field: &str| retry.get(field).is_some_and(|value| !value.is_null());
        if has_value("schedule_ms") {
            shown.retain(|field, _| !["base_ms", "cap_ms"].contains(&field.as_str()));
        } else if has_value("base_ms") || has_value("cap_ms") {
            shown.remove("schedule_ms");
        }
    }
    // A new signature style does not keep the headers of the old style.
    if let (Some(Value::Object(signature)), Some(current)) = (patch.get("signature"), shown.get("signature"))
        && signature.get("style").is_some_and(|style| !style.is_null() && *style != current["style"])
        && let Value::Object(shown) = &mut shown
    {
        shown.remove("signature");
    }
    // `skip_after_attempts` is only valid with `ordered: true`.
    if patch.get("ordered").is_some_and(|ordered| *ordered != Value::Bool(true))
        && let Value::Object(shown) = &mut shown
    {
        shown.remove("skip_after_attempts");
    }
    // The merge removes `null` members, so disabled settings are restored as `null` after it.
    let no_breaker = patch.get("breaker").is_some_and(Value::is_null);
    let no_pause = patch.get("breaker").and_then(|breaker| breaker.get("pause_after_s")).is_some_and(Value::is_null);
    let no_alerts: Vec<String> = match patch.get("alerts") {
        Some(Value::Object(alerts)) => {
            alerts.iter().filter(|(_, value)| value.is_null()).map(|(name, _)| name.clone()).collect()
        }
        _ => Vec::new(),
    };
    merge_value(&mut shown, Value::Object(patch));
    if no_breaker {
        shown["breaker"] = Value::Null;
    } else if no_pause {
        shown["breaker"]["pause_after_s"] = Value::Null;
    }
    for threshold in no_alerts {
        shown["alerts"][threshold] = Value::Null;
    }
    Ok(shown)
}

fn merge_value(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                match value {
                    Value::Null => drop(target.remove(&name)),
                    value => merge_value(target.entry(name).or_insert(Value::Object(Map::new())), value),
                }
            }
        }
        (target, patch) => *target = patch,
    }
}

struct SettingsReader<'a> {
    addresses: &'a AddressPolicy,
    /// The settings before the edit; `None` for a new destination.
    current: Option<&'a Settings>,
    /// Whether the edit changes the origin of the URL. Then header values are not kept.
    origin_changes: bool,
}

impl SettingsReader<'_> {
    fn settings(&self, body: Value) -> Result<Settings, Problem> {
        let mut errors = Errors::default();
        let settings = Object::open(body, "", &mut errors).and_then(|body| self.fields(body));
        match settings {
            Some(settings) if errors.is_empty() => Ok(settings),
            _ => Err(Problem::invalid(errors.into_vec())),
        }
    }

    /// Reads every field, even after an error. `None` if the URL or the signing settings are invalid, which have no
    /// default.
    fn fields(&self, mut body: Object<'_>) -> Option<Settings> {
        let url = self.url(&mut body);
        let name = name(&mut body);
        let tenant = tenant(&mut body);
        let event_types = event_types(&mut body);
        let rate_limits = rates::rate_limits(&mut body);
        let max_in_flight = body.integer("max_in_flight", 1..=MAX_IN_FLIGHT).unwrap_or(DEFAULT_MAX_IN_FLIGHT);
        let timeout_ms = body.integer("timeout_ms", TIMEOUT_MS).unwrap_or(DEFAULT_TIMEOUT_MS);
        let retry = rates::retry(&mut body);
        let breaker = breaker::breaker(&mut body);
        let alerts = alerts::overrides(&mut body);
        let order = order::order(&mut body);
        let headers = self.headers(&mut body);
        let signing = signing::signing(&mut body, self.current.map(|current| &current.signing), &headers);
        let paused = body.boolean("paused").unwrap_or(false);
        body.close(&READ_ONLY);
        Some(Settings {
            url: url?,
            name,
            tenant,
            event_types,
            rate_limits,
            max_in_flight,
            timeout_ms,
            retry,
            breaker,
            alerts,
            order,
            headers,
            signing: signing?,
            paused,
        })
    }

    fn url(&self, body: &mut Object<'_>) -> Option<Url> {
        let text = body.required_string("url")?;
        if text.len() > MAX_URL_LEN {
            body.refuse("url", format!("must be at most {MAX_URL_LEN} bytes long"));
            return None;
        }
        let url = match text.parse::<Url>() {
            Ok(url) => url,
            Err(error) => {
                body.refuse("url", format!("must be an absolute URL: {error}"));
                return None;
            }
        };
        // An unchanged URL is not checked again: a destination must stay editable if its address is no longer allowed.
        if self.current.is_some_and(|current| current.url == url) {
            return Some(url);
        }
        if url.fragment().is_some() {
            body.refuse("url", "must not have a fragment: HTTP does not send it");
            return None;
        }
        match self.addresses.check_url(&url) {
            Ok(()) => Some(url),
            Err(refusal) => {
                body.refuse("url", refusal.to_string());
                None
            }
        }
    }

    fn headers(&self, body: &mut Object<'_>) -> Vec<(String, String)> {
        let Some(value) = body.take("headers") else {
            return Vec::new();
        };
        let pointer = body.pointer_to("headers");
        let errors = body.errors();
        let Value::Object(members) = value else {
            errors.add(pointer, format!("must be an object of names and values, not {}", fields::type_name(&value)));
            return Vec::new();
        };
        if members.len() > MAX_HEADERS {
            errors.add(&pointer, format!("must contain at most {MAX_HEADERS} headers"));
        }
        let mut headers: Vec<(String, String)> = Vec::with_capacity(members.len());
        for (name, value) in members {
            // Null means the default: the header is absent.
            if value.is_null() {
                continue;
            }
            match self.header(&name, &value) {
                Ok((name, _)) if headers.iter().any(|(other, _)| *other == name) => {
                    errors.add(format!("{pointer}/{}", fields::escape(&name)), HEADER_TWICE);
                }
                Ok(header) => headers.push(header),
                Err(detail) => errors.add(format!("{pointer}/{}", fields::escape(&name)), detail),
            }
        }
        headers
    }

    fn header(&self, name: &str, value: &Value) -> Result<(String, String), String> {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is not a header name".to_owned())?;
        let name = name.as_str();
        if is_reserved_header(name) {
            return Err("is reserved: Weir or HTTP sets this header".to_owned());
        }
        let Value::String(value) = value else {
            return Err(format!("must be a string, not {}", fields::type_name(value)));
        };
        if value == HEADER_MASK && self.origin_changes {
            return Err("must be the value, not `***`: values are not kept when the URL gets another origin".to_owned());
        }
        if value == HEADER_MASK {
            let known = self.current.and_then(|current| current.headers.iter().find(|(known, _)| known == name));
            return known
                .cloned()
                .ok_or_else(|| "must be the value, not `***`: the destination has no such header".to_owned());
        }
        if value.len() > MAX_HEADER_VALUE_LEN {
            return Err(format!("must be at most {MAX_HEADER_VALUE_LEN} bytes long"));
        }
        if !value.is_ascii() || HeaderValue::from_str(value).is_err() {
            return Err("must contain only printable ASCII characters".to_owned());
        }
        Ok((name.to_owned(), value.clone()))
    }
}

fn name(body: &mut Object<'_>) -> String {
    let name = body.string("name").unwrap_or_default();
    if name.chars().count() > MAX_NAME_CHARS {
        body.refuse("name", format!("must be at most {MAX_NAME_CHARS} characters long"));
    } else if name.chars().any(char::is_control) {
        body.refuse("name", "must not contain control characters");
    }
    name
}

fn tenant(body: &mut Object<'_>) -> String {
    let tenant = body.string("tenant").unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    if let Err(detail) = check_tenant(&tenant) {
        body.refuse("tenant", detail);
    }
    tenant
}

/// Checks that `text` is a valid name of a tenant.
pub(crate) fn check_tenant(text: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if (1..=MAX_TENANT_LEN).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(());
    }
    Err("must be 1 to 128 letters, digits, `_`, `-`, `.` or `:`")
}

fn event_types(body: &mut Object<'_>) -> Vec<EventPattern> {
    let Some(values) = body.array("event_types") else {
        return vec![EventPattern::Any];
    };
    if !(1..=MAX_PATTERNS).contains(&values.len()) {
        body.refuse("event_types", format!("must contain 1 to {MAX_PATTERNS} patterns"));
    }
    let pointer = body.pointer_to("event_types");
    let mut patterns: Vec<EventPattern> = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        match value.as_str().unwrap_or_default().parse::<EventPattern>() {
            Ok(pattern) if patterns.contains(&pattern) => {}
            Ok(pattern) => patterns.push(pattern),
            Err(error) => body.errors().add(format!("{pointer}/{index}"), error.to_string()),
        }
    }
    patterns
}
