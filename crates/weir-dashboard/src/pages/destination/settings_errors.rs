//! What the API refused in the form of the settings, in the words of the form.

use weir_api_types::FieldError;

use super::{
    settings_fields::{Field, Kind, at, named},
    settings_form::delays,
};
use crate::{
    durations::ApiUnit,
    faults::{Faults, of_field},
    fields::Fields,
    refusal::{FieldErrorText as _, Refusal},
};

/// The faults of a form that was refused.
pub(super) fn faults_of(refusal: &Refusal, typed: &Fields) -> Faults {
    let mut faults = Faults::default();
    if refusal.errors.is_empty() {
        faults.add_other(&refusal.detail);
    }
    for error in &refusal.errors {
        match at(&error.pointer) {
            Some(field) => faults.add(field.name, field.label, fault(field, error, typed)),
            None => faults.add_other(&error.sentence()),
        }
    }
    faults
}

/// `/timeout_ms must be a whole number from 100 to 120000` as `Must be from 100 ms to 2 min.`
fn fault(field: &Field, error: &FieldError, typed: &Fields) -> String {
    let unit = ApiUnit::of_name(field.name);
    let last = error.pointer.rsplit('/').next().unwrap_or_default();
    // A filter is JSON, and the place in it is a pointer.
    let index: Option<usize> = last.parse().ok().filter(|_| field.name != "filter");
    let text = match (field.kind, index) {
        (Kind::Durations, Some(index)) => delays(typed.text(field.name)).nth(index).unwrap_or_default(),
        _ => typed.text(field.name),
    };
    let labels = |name: &str| named(name).map(|field| field.label);
    let said = of_field(&error.detail, text, unit, &labels);
    // The place within a field of several lines: the name of a header, or the number of a type.
    match index {
        Some(index) => format!("Number {}: {said}", index + 1),
        None if field.name == "filter" && last != field.name => {
            format!("At {}: {said}", error.pointer.strip_prefix("/filter").unwrap_or_default())
        }
        None if field.name == "headers" && last != field.name => format!("{last}: {said}"),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use serde_json::json;

    use super::*;

    fn refused(errors: &[(&str, &str)], typed: &str) -> Faults {
        let errors = errors.iter().map(|(pointer, detail)| json!({"pointer": pointer, "detail": detail}));
        let (kind, errors) = ("/docs#problem-invalid", errors.collect::<Vec<_>>());
        let body =
            json!({"type": kind, "title": "Invalid", "status": 422, "detail": "d", "errors": errors}).to_string();
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let refusal = Refusal::of_answer(status, &HeaderMap::new(), body.as_bytes());
        faults_of(&refusal, &Fields::parse(typed.as_bytes()))
    }

    #[test]
    fn a_refused_value_is_a_fault_of_its_field() {
        for (pointer, field, expected) in [
            ("/timeout_ms", "timeout_ms", "Is wrong."),
            ("/retry/schedule_ms/1", "schedule_ms", "Number 2: Is wrong."),
            ("/event_types/0", "event_types", "Number 1: Is wrong."),
            ("/headers/x-a", "headers", "x-a: Is wrong."),
            ("/filter", "filter", "Is wrong."),
            ("/filter/or/0", "filter", "At /or/0: Is wrong."),
            ("/signature/header", "signature_header", "Is wrong."),
            ("/signature", "style", "Is wrong."),
            ("/signature/signed", "signed", "Is wrong."),
            ("/body/format", "body_format", "Is wrong."),
            ("/body/content_type", "content_type", "Is wrong."),
            ("/alerts/dead_letters", "dead_letters", "Is wrong."),
            ("/secret", "new_secret", "Is wrong."),
        ] {
            assert_eq!(refused(&[(pointer, "is wrong")], "").in_field(field), Some(expected), "{pointer}");
        }
        let others = |pointer: &str| refused(&[(pointer, "is wrong")], "").others().to_vec();
        assert_eq!(
            (others("/unknown"), others("")),
            (vec!["Unknown is wrong.".to_owned()], vec!["Is wrong.".to_owned()])
        );
        assert_eq!(refused(&[], "").others(), ["D."]);
    }

    #[test]
    fn a_fault_of_a_duration_speaks_of_durations() {
        let of_timeout = |typed: &str| {
            let faults = refused(&[("/timeout_ms", "must be a whole number from 100 to 120000")], typed);
            faults.in_field("timeout_ms").unwrap().to_owned()
        };
        assert_eq!(of_timeout("timeout_ms=1+h"), "Must be from 100 ms to 2 min.");
        assert_eq!(of_timeout("timeout_ms=15"), "Needs a unit, such as 500 ms, 15 s or 72 h.");
        assert_eq!(of_timeout("timeout_ms="), "Must be from 100 ms to 2 min.");
        let delays =
            refused(&[("/retry/schedule_ms/1", "must be a whole number from 0 to 9")], "schedule_ms=1+s,+soon");
        assert_eq!(delays.in_field("schedule_ms"), Some("Number 2: Must be a duration, such as 500 ms, 15 s or 72 h."));
        let order = refused(&[("/skip_after_attempts", "needs `ordered: true`: set it too")], "");
        let expected = "Needs “Strict order for events with the same ordering_key”: set it too.";
        assert_eq!(order.in_field("skip_after_attempts"), Some(expected));
    }
}
