//! What the API refused in the form of the settings, in the words of the form.

use weir_api_types::FieldError;

use super::settings_form::{Field, GROUPS};
use crate::refusal::{FieldErrorText as _, Refusal};

/// The refusal of a form.
pub(crate) struct Refused {
    /// For the reader, in one sentence.
    pub(crate) sentence: String,
    wrong: Vec<&'static str>,
}

impl Refused {
    pub(super) fn of(refusal: &Refusal) -> Self {
        let wrong = refusal.errors.iter().filter_map(|error| field_of(&error.pointer)).map(|field| field.name);
        let sentence = match refusal.errors.as_slice() {
            [] => refusal.detail.clone(),
            errors => errors.iter().map(sentence).collect::<Vec<_>>().join("; "),
        };
        Self { sentence, wrong: wrong.collect() }
    }

    /// Whether the value of the field was refused.
    pub(super) fn is_of(&self, field: &Field) -> bool {
        self.wrong.contains(&field.name)
    }
}

/// `/timeout_ms must be …` as `“Timeout of an attempt, in ms” must be …`.
fn sentence(error: &FieldError) -> String {
    let Some(field) = field_of(&error.pointer) else { return error.sentence() };
    // The place within a field of several lines: the name of a header, or the number of a type.
    let place = match error.pointer.rsplit('/').next() {
        Some(last) if field.name == "headers" && last != field.name => format!(", {last},"),
        Some(last) => last.parse::<usize>().map_or_else(|_| String::new(), |index| format!(", number {},", index + 1)),
        None => String::new(),
    };
    format!("“{}”{place} {}", field.label, error.detail)
}

/// The field that has the value at a JSON pointer into the body of the API.
fn field_of(pointer: &str) -> Option<&'static Field> {
    let parts: Vec<&str> = pointer.split('/').skip(1).collect();
    let name = match parts.as_slice() {
        ["signature"] => "style",
        ["signature", "header"] => "signature_header",
        ["body"] | ["body", "format"] => "body_format",
        ["alerts"] => "own_alerts",
        ["retry" | "breaker" | "signature" | "body" | "alerts", name, ..] | [name, ..] => *name,
        [] => return None,
    };
    GROUPS.iter().flat_map(|group| group.fields).find(|field| field.name == name)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use serde_json::json;

    use super::*;

    fn refused(errors: &[(&str, &str)]) -> Refused {
        let errors = errors.iter().map(|(pointer, detail)| json!({"pointer": pointer, "detail": detail}));
        let (kind, errors) = ("/docs#problem-invalid", errors.collect::<Vec<_>>());
        let body =
            json!({"type": kind, "title": "Invalid", "status": 422, "detail": "d", "errors": errors}).to_string();
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Refused::of(&Refusal::of_answer(status, &HeaderMap::new(), body.as_bytes()))
    }

    #[test]
    fn a_refused_value_is_named_as_the_form_names_it() {
        for (pointer, expected) in [
            ("/timeout_ms", "“Timeout of an attempt, in ms” is wrong"),
            ("/retry/schedule_ms/1", "“Fixed delays, in ms”, number 2, is wrong"),
            ("/event_types/0", "“Event types”, number 1, is wrong"),
            ("/headers/x-a", "“Sent with every request”, x-a, is wrong"),
            ("/signature/header", "“Signature header” is wrong"),
            ("/signature", "“Style” is wrong"),
            ("/signature/signed", "“Signed text” is wrong"),
            ("/body/format", "“Form” is wrong"),
            ("/body/content_type", "“Content type” is wrong"),
            ("/alerts/dead_letters", "“Dead letters” is wrong"),
            ("/unknown", "unknown is wrong"),
            ("", "is wrong"),
        ] {
            assert_eq!(refused(&[(pointer, "is wrong")]).sentence, expected, "{pointer}");
        }
        assert_eq!(refused(&[]).sentence, "d");
    }

    #[test]
    fn every_refused_field_is_marked() {
        let refused = refused(&[("/url", "a"), ("/breaker/open_ms", "b")]);
        let fields = GROUPS.iter().flat_map(|group| group.fields);
        let marked: Vec<_> = fields.filter(|field| refused.is_of(field)).map(|field| field.name).collect();
        assert_eq!(marked, ["url", "open_ms"]);
        assert_eq!(refused.sentence, "“URL” a; “First probe after, in ms” b");
    }
}
