//! The document in the form that generators of code, linters and people expect.
//!
//! The derived schemas are right, but say less than they could: words are strings with a pattern, a field that is always
//! there but may be null is optional, and a list repeats the schema of its rows. Each step here adds what a generator
//! needs for useful types. The fuzzer compares the result with real answers.

use serde_json::{Map, Value, json};

/// Fields of answers whose value is one of a few words, by schema and field, with the schema of the words.
const WORDS: [(&str, &str, &str); 25] = [
    ("Activity", "actor_kind", "ActorKind"),
    ("AdaptiveRate", "reason", "RateReason"),
    ("ApiKey", "role", "Role"),
    ("Attempt", "outcome", "AttemptOutcome"),
    ("BriefDestination", "breaker_state", "BreakerState"),
    ("Delivery", "state", "DeliveryState"),
    ("DeliveryGroup", "state", "UndeliveredState"),
    ("Destination", "breaker_state", "BreakerState"),
    ("DestinationHealth", "window", "HealthWindow"),
    ("History", "step", "HistoryStep"),
    ("Me", "role", "Role"),
    ("RateChange", "reason", "RateReason"),
    ("RefusedWithinLimit", "cause", "RefusalCause"),
    ("RefusedWithinLimit", "period", "Period"),
    ("RefusedWithinLimit", "setting", "RefusalSetting"),
    ("Replay", "state", "ReplayState"),
    ("Replay", "states", "ReplayableState"),
    ("Signature", "algorithm", "SignatureAlgorithm"),
    ("Signature", "encoding", "SignatureEncoding"),
    ("Signature", "key", "SignatureKey"),
    ("Signature", "timestamp_format", "TimestampFormat"),
    ("SignatureFormat", "algorithm", "SignatureAlgorithm"),
    ("SignatureFormat", "encoding", "SignatureEncoding"),
    ("SignatureFormat", "key", "SignatureKey"),
    ("SignatureFormat", "timestamp_format", "TimestampFormat"),
];

/// The words that no request uses, by the name of their schema.
const NEW_WORDS: [(&str, &[&str]); 9] = [
    ("ActorKind", &["key", "setting", "anonymous", "system"]),
    ("AttemptOutcome", &["delivered", "retryable", "rejected", "unknown"]),
    ("BreakerState", &["closed", "open", "half_open"]),
    (
        "DeliveryState",
        &["pending", "delivering", "retrying", "delivered", "failed", "dead", "cancelled", "superseded", "expired"],
    ),
    (
        "RateReason",
        &["starting", "growing", "resting", "throttled", "latency", "advertised", "held", "at_limit", "idle"],
    ),
    ("RefusalCause", &["jitter", "spacing", "lower_limit"]),
    ("RefusalSetting", &["margin_ms", "min_interval_ms", "limit"]),
    ("ReplayState", &["running", "completed", "cancelled"]),
    ("UndeliveredState", &["dead", "failed"]),
];

/// Fields that may be null, and may also be absent from an answer, by schema. `*` stands for every field that may be
/// null.
const MAY_BE_ABSENT: [(&str, &str); 9] = [
    ("AlertData", "*"),
    ("AlertThresholds", "*"),
    ("Body", "source"),
    ("DeliveryList", "count"),
    ("OverviewRow", "recent"),
    ("RateLimit", "window_s"),
    ("Retry", "*"),
    ("Signature", "*"),
    ("StreamChange", "*"),
];

const SCHEMAS: &str = "#/components/schemas/";

pub(super) fn simplify(document: &mut Value) {
    let Some(schemas) = schemas_of(document) else { return };
    for (name, words) in NEW_WORDS {
        schemas.insert(name.to_owned(), json!({"type": "string", "enum": words}));
    }
    let names: Vec<String> = schemas.keys().cloned().collect();
    for (name, schema) in schemas.iter_mut() {
        words_of_pattern(schema);
        rows_by_name(name, &names, schema);
        parts(schema).into_iter().for_each(|part| refer_to_words(name, part));
    }
    let answers = reached_from_answers(document);
    for (name, schema) in schemas_of(document).into_iter().flatten() {
        if answers.contains(name) {
            parts(schema).into_iter().for_each(|part| require_nullable(name, part));
        }
    }
}

fn schemas_of(document: &mut Value) -> Option<&mut Map<String, Value>> {
    document.pointer_mut("/components/schemas").and_then(Value::as_object_mut)
}

/// The schemas that an answer has and no request has.
fn reached_from_answers(document: &Value) -> Vec<String> {
    let (mut answers, mut requests) = (Vec::new(), Vec::new());
    let items = document["paths"].as_object().into_iter().flatten();
    for (_, operation) in items.flat_map(|(_, item)| item.as_object().into_iter().flatten()) {
        reach(&operation["responses"], document, &mut answers);
        reach(&operation["requestBody"], document, &mut requests);
    }
    // The answer of `/v1/stream` is a text, so nothing refers to what it contains.
    reach(&reference("Snapshot"), document, &mut answers);
    answers.retain(|name| !requests.contains(name));
    answers
}

/// Adds the schemas to which the value refers, and those to which these refer.
fn reach(value: &Value, document: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            let name = members.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix(SCHEMAS));
            if let Some(name) = name.filter(|name| !found.iter().any(|known| known == name)) {
                found.push(name.to_owned());
                reach(&document["components"]["schemas"][name], document, found);
            }
            members.values().for_each(|member| reach(member, document, found));
        }
        Value::Array(items) => items.iter().for_each(|item| reach(item, document, found)),
        _ => {}
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{SCHEMAS}{name}")})
}

/// The schema itself, or the parts from which it is composed.
fn parts(schema: &mut Value) -> Vec<&mut Map<String, Value>> {
    let Value::Object(members) = schema else { return Vec::new() };
    if members.contains_key("properties") {
        return vec![members];
    }
    let composed = members.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten();
    composed.filter_map(Value::as_object_mut).filter(|part| part.contains_key("properties")).collect()
}

/// A pattern that is a choice of words becomes an enumeration.
fn words_of_pattern(schema: &mut Value) {
    let pattern = schema["pattern"].as_str().and_then(|pattern| pattern.strip_prefix("^(")?.strip_suffix(")$"));
    let Some(words) = pattern.map(|words| words.split('|').map(str::to_owned).collect::<Vec<_>>()) else { return };
    let is_word = |word: &String| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if words.len() > 1
        && words.iter().all(is_word)
        && let Value::Object(members) = schema
    {
        members.remove("pattern");
        members.insert("enum".to_owned(), json!(words));
    }
}

/// The rows of a list refer to their schema by its name.
fn rows_by_name(name: &str, names: &[String], schema: &mut Value) {
    let row = name.strip_prefix("List_").filter(|row| names.iter().any(|name| name == row));
    if let (Some(row), Some(items)) = (row, schema.pointer_mut("/properties/data/items")) {
        *items = reference(row);
    }
}

fn refer_to_words(name: &str, part: &mut Map<String, Value>) {
    let Some(properties) = part.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (_, field, words) in WORDS.iter().filter(|(schema, ..)| *schema == name) {
        let Some(property) = properties.get_mut(*field) else { continue };
        if property["type"] == "array" {
            property["items"] = reference(words);
            continue;
        }
        let mut words = reference(words);
        if property["type"].is_array() {
            words = json!({"oneOf": [words, {"type": "null"}]});
        }
        if let Some(description) = property.get("description") {
            words["description"] = description.clone();
        }
        *property = words;
    }
}

/// An answer has every field, also one that is null.
fn require_nullable(name: &str, part: &mut Map<String, Value>) {
    let may_be_absent =
        |field: &str| MAY_BE_ABSENT.iter().any(|(schema, own)| *schema == name && (*own == "*" || *own == field));
    let properties = part.get("properties").and_then(Value::as_object).into_iter().flatten();
    let always = properties.filter(|(field, property)| is_nullable(property) && !may_be_absent(field));
    let mut required: Vec<Value> = always.map(|(field, _)| json!(field)).collect();
    required.extend(part.get("required").and_then(Value::as_array).into_iter().flatten().cloned());
    required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    required.dedup();
    if !required.is_empty() {
        part.insert("required".to_owned(), required.into());
    }
}

fn is_nullable(property: &Value) -> bool {
    let types = property["type"].as_array().into_iter().flatten();
    let choices = property["oneOf"].as_array().into_iter().flatten().map(|choice| &choice["type"]);
    types.chain(choices).any(|kind| kind == "null")
}

#[cfg(test)]
mod tests {
    use weir_core::{DeliveryState, breaker::BreakerState, delivery::AttemptOutcome};

    use super::*;

    #[test]
    fn the_words_of_answers_are_those_of_the_domain() {
        let words = |name: &str| NEW_WORDS.iter().find(|(own, _)| *own == name).unwrap().1.to_vec();
        assert_eq!(words("DeliveryState"), DeliveryState::ALL.map(<&str>::from));
        assert_eq!(words("AttemptOutcome"), AttemptOutcome::ALL.map(<&str>::from));
        let breaker = [BreakerState::Closed, BreakerState::Open, BreakerState::HalfOpen];
        assert_eq!(words("BreakerState"), breaker.map(<&str>::from));
    }

    #[test]
    fn answers_have_their_null_fields_and_requests_may_leave_them_out() {
        let nullable = json!({"type": ["string", "null"]});
        let mut document = json!({
            "paths": {"/a": {"post": {
                "requestBody": reference("Asked"), "responses": {"200": reference("List_Answer")},
            }}},
            "components": {"schemas": {
                "Asked": {"properties": {"a": nullable}},
                "Answer": {"allOf": [reference("Part"), {"properties": {"b": nullable}, "required": ["a"]}]},
                "Part": {"properties": {"c": {"oneOf": [reference("Word"), {"type": "null"}]}}},
                "List_Answer": {"properties": {"data": {"type": "array", "items": {"type": "object"}}}},
                "Word": {"type": "string", "pattern": "^(one|two-2)$"},
                "Form": {"type": "string", "pattern": "^(one|t.o)$"},
            }},
        });
        simplify(&mut document);
        let schemas = &document["components"]["schemas"];
        assert_eq!(schemas["List_Answer"]["properties"]["data"]["items"], reference("Answer"));
        assert!(schemas["Asked"]["required"].is_null());
        assert_eq!(schemas["Answer"]["allOf"][1]["required"], json!(["a", "b"]));
        assert_eq!(schemas["Part"]["required"], json!(["c"]));
        assert_eq!(schemas["Word"], json!({"type": "string", "enum": ["one", "two-2"]}));
        assert_eq!(schemas["Form"]["pattern"], "^(one|t.o)$");
    }
}
