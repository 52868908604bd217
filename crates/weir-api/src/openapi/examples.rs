//! A request and an answer for each operation, for people who read the document and for programs that imitate the server.
//!
//! Requests are in `examples.json`, by the name of their schema. An answer has every field of its schema, so that it
//! stays complete when a field is added: its values are those of `examples.json`, or else follow from the schema. The
//! linter of the tests compares each example with its schema, and the fuzzer sends the requests.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

static VALUES: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());

const TIME: &str = "2026-11-21T07:30:00.000Z";
/// Schemas nest less deeply. A schema that contained itself would end here.
const MAX_DEPTH: usize = 12;

pub(super) fn add(document: &mut Value) {
    let examples = Examples(document.clone());
    let items = document["paths"].as_object_mut().into_iter().flatten();
    for (_, operation) in items.flat_map(|(_, item)| item.as_object_mut().into_iter().flatten()) {
        for (kind, content) in operation.get_mut("requestBody").into_iter().flat_map(contents) {
            examples.give(content, kind, true);
        }
        let responses = operation.get_mut("responses").and_then(Value::as_object_mut).into_iter().flatten();
        for (kind, content) in responses.flat_map(|(_, response)| contents(response)) {
            examples.give(content, kind, false);
        }
    }
}

fn contents(owner: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    owner.get_mut("content").and_then(Value::as_object_mut).into_iter().flatten()
}

/// The schemas of the document.
struct Examples(Value);

impl Examples {
    fn give(&self, content: &mut Value, kind: &str, is_request: bool) {
        let schema = content["schema"].clone();
        content["example"] = match kind {
            "application/json" | "application/problem+json" if is_request => self.request(&schema),
            "application/json" | "application/problem+json" => self.answer(&schema, 0),
            "text/event-stream" => json!("event: snapshot\ndata: {\"destinations\": []}\n\n"),
            "text/plain" => json!("# TYPE weir_events_ingested_total counter\nweir_events_ingested_total 120\n"),
            _ => json!("<!doctype html>"),
        };
    }

    fn named(&self, schema: &Value) -> Option<(String, &Value)> {
        let name = schema["$ref"].as_str()?.rsplit('/').next()?;
        Some((name.to_owned(), &self.0["components"]["schemas"][name]))
    }

    /// The example of a request, or else its required fields.
    fn request(&self, schema: &Value) -> Value {
        let choices = schema["oneOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
        let named = choices.iter().find_map(|choice| self.named(choice));
        let Some((name, schema)) = named else { return self.answer(schema, 0) };
        if let Some(example) = VALUES["requests"].get(&name) {
            return example.clone();
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut all = self.answer(schema, 0);
        if let Value::Object(fields) = &mut all {
            fields.retain(|field, _| required.contains(&field.as_str()));
        }
        all
    }

    /// A value of the schema, with all its fields.
    fn answer(&self, schema: &Value, depth: usize) -> Value {
        let mut values = Map::new();
        self.of_schema(schema, &mut values, depth)
    }

    /// A value of the schema. `values` has the values of fields, by the names of the schemas around it.
    fn of_schema(&self, schema: &Value, values: &mut Map<String, Value>, depth: usize) -> Value {
        if depth > MAX_DEPTH {
            return Value::Null;
        }
        if let Some((name, target)) = self.named(schema) {
            // The values of the outer schema count, because it is more special.
            let of_name = VALUES["answers"][&name].as_object().cloned().unwrap_or_default();
            for (field, value) in of_name {
                values.entry(field).or_insert(value);
            }
            return self.of_schema(target, values, depth + 1);
        }
        if let Some(example) = schema.get("example") {
            return example.clone();
        }
        if let Some(parts) = schema["allOf"].as_array() {
            let mut whole = Map::new();
            for part in parts {
                if let Value::Object(fields) = self.of_schema(part, values, depth + 1) {
                    whole.extend(fields);
                }
            }
            return whole.into();
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            if choices.iter().any(|choice| choice["type"] == "null") {
                return Value::Null;
            }
            return choices.first().map_or(Value::Null, |first| self.answer(first, depth + 1));
        }
        self.plain(schema, values, depth)
    }

    fn plain(&self, schema: &Value, values: &Map<String, Value>, depth: usize) -> Value {
        if let Some(first) = schema["enum"].get(0) {
            return first.clone();
        }
        match schema["type"].as_str() {
            Some("object") => {
                let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
                let properties = schema["properties"].as_object().into_iter().flatten();
                let of_field = |(field, property): (&String, &Value)| {
                    let value = values.get(field).cloned().unwrap_or_else(|| self.answer(property, depth + 1));
                    // A field that may be absent is absent rather than null.
                    let is_shown = !value.is_null() || required.iter().any(|name| name == field);
                    is_shown.then(|| (field.clone(), value))
                };
                properties.filter_map(of_field).collect::<Map<_, _>>().into()
            }
            Some("array") => json!([self.answer(&schema["items"], depth + 1)]),
            Some("string") => match schema["format"].as_str() {
                Some("date-time") => json!(TIME),
                Some("uri") => json!("https://example.com/hooks"),
                _ => json!("text"),
            },
            Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or_else(|| json!(0)),
            Some("boolean") => json!(false),
            _ => Value::Null,
        }
    }
}
