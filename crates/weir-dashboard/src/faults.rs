//! What is wrong with a form, in words of the page, for each of its fields.
//!
//! The API writes for programs: it names its JSON fields, quotes them with backticks, and counts in milliseconds. A page
//! names its own fields, and shows a fault beside the field that has it (`field.html`).

use http::StatusCode;

use crate::{
    durations::ApiUnit,
    fields::Fields,
    refusal::{FieldErrorText as _, Refusal},
    units::{Count, capitalised},
};

/// A field of a form that is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The name of the field.
    pub(crate) name: String,
    pub(crate) label: String,
    /// One or more sentences.
    pub(crate) text: String,
}

/// The faults of a form.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    of_fields: Vec<Fault>,
    /// What belongs to no field of the form.
    others: Vec<String>,
}

impl Faults {
    /// The faults of a refused form. `field_of` gives the name and the label of the field that has the value at a JSON
    /// pointer.
    pub(crate) fn of(refusal: &Refusal, field_of: impl Fn(&str) -> Option<(String, String)>) -> Self {
        Self::of_typed(refusal, |_| "", field_of)
    }

    /// As [`Self::of`], for a form with durations. `typed` gives the text of a field.
    pub(crate) fn of_typed<'a>(
        refusal: &Refusal,
        typed: impl Fn(&str) -> &'a str,
        field_of: impl Fn(&str) -> Option<(String, String)>,
    ) -> Self {
        let mut faults = Self::default();
        if refusal.errors.is_empty() {
            faults.add_other(&refusal.detail);
        }
        for error in &refusal.errors {
            match field_of(&error.pointer) {
                Some((name, label)) => {
                    let unit = ApiUnit::of_name(error.pointer.rsplit('/').next().unwrap_or_default());
                    faults.add(&name, &label, of_field(&error.detail, typed(&name), unit, &|_| None));
                }
                None => faults.add_other(&error.sentence()),
            }
        }
        faults
    }

    /// Adds a sentence to those of a field.
    pub(crate) fn add(&mut self, name: &str, label: &str, text: String) {
        match self.of_fields.iter_mut().find(|fault| fault.name == name) {
            Some(fault) if !fault.text.contains(&text) => fault.text = format!("{} {text}", fault.text),
            Some(_) => {}
            None => self.of_fields.push(Fault { name: name.to_owned(), label: label.to_owned(), text }),
        }
    }

    /// Adds a fault that belongs to no field.
    pub(crate) fn add_other(&mut self, detail: &str) {
        self.others.push(sentence(detail, None, &|_| None));
    }

    /// What is wrong with a field.
    pub(crate) fn in_field(&self, name: &str) -> Option<&str> {
        self.of_fields.iter().find(|fault| fault.name == name).map(|fault| fault.text.as_str())
    }

    pub(crate) fn of_fields(&self) -> &[Fault] {
        &self.of_fields
    }

    pub(crate) fn others(&self) -> &[String] {
        &self.others
    }

    /// All faults in one line.
    pub(crate) fn text(&self) -> String {
        let of_fields = self.of_fields.iter().map(|fault| format!("{}: {}", fault.label, fault.text));
        self.others.iter().cloned().chain(of_fields).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of_fields.is_empty() && self.others.is_empty()
    }
}

/// A form that is shown again: what was typed, and what is wrong with it. The default is a form that nobody has sent.
#[derive(Default)]
pub(crate) struct Refused {
    typed: Fields,
    pub(crate) faults: Faults,
}

impl Refused {
    /// The form that the API has refused, unless nothing that is typed would help.
    pub(crate) fn by<T>(
        answer: &Result<T, Refusal>,
        typed: &Fields,
        field_of: impl Fn(&str) -> Option<(String, String)>,
    ) -> Option<Self> {
        let refusal = answer.as_ref().err().filter(|refusal| refusal.status == StatusCode::UNPROCESSABLE_ENTITY)?;
        let faults = Faults::of_typed(refusal, |name| typed.text(name), field_of);
        Some(Self { typed: typed.clone(), faults })
    }

    /// A form with one field that is wrong.
    pub(crate) fn in_field(typed: Fields, name: &str, label: &str, text: String) -> Self {
        let mut faults = Faults::default();
        faults.add(name, label, text);
        Self { typed, faults }
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.faults.is_empty()
    }

    pub(crate) fn value(&self, name: &str) -> &str {
        self.typed.raw(name)
    }
}

/// What the API says is wrong with a field, in the words of the form. The API does not know durations as people write them.
pub(crate) fn of_field<'a>(
    detail: &str,
    typed: &str,
    unit: Option<ApiUnit>,
    label_of: &dyn Fn(&str) -> Option<&'a str>,
) -> String {
    match unit.map(|unit| unit.typed(typed)) {
        Some(Err(wrong)) if !typed.is_empty() => sentence(wrong, None, label_of),
        _ => sentence(detail, unit, label_of),
    }
}

/// A detail of the API as a sentence of a page. `label_of` gives the label of a field of the API on this page; with a
/// `unit`, its numbers are durations.
pub(crate) fn sentence<'a>(detail: &str, unit: Option<ApiUnit>, label_of: &dyn Fn(&str) -> Option<&'a str>) -> String {
    if detail.starts_with("must be an absolute URL") {
        return "Must be a whole URL, such as https://example.com/hooks.".to_owned();
    }
    let detail = match unit {
        // `must be a whole number from 100 to 120000` speaks of milliseconds.
        Some(_) => detail.replace("must be a whole number", "must be"),
        None => detail.to_owned(),
    };
    let mut text = String::new();
    // Between backticks are what the API takes literally and names of its fields.
    for (place, part) in detail.split('`').enumerate() {
        let label = if place % 2 == 1 { label_of(part.split(':').next().unwrap_or(part)) } else { None };
        match label {
            Some(label) => text.extend(["“", label, "”"]),
            None if place % 2 == 1 => text.push_str(part),
            None => text.push_str(&with_units(part, unit)),
        }
    }
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{}{end}", capitalised(&text))
}

/// Numbers with commas, or as durations.
fn with_units(text: &str, unit: Option<ApiUnit>) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let (digits, after) = from.split_at(from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len()));
        shown.push_str(before);
        // A part of an address or of a decimal number is none.
        let is_part = before.ends_with(|c: char| c.is_alphanumeric() || "./:-_".contains(c))
            || after.starts_with(|c: char| c.is_alphanumeric() || "/:-_".contains(c))
            || (after.starts_with('.') && after[1..].starts_with(|c: char| c.is_ascii_digit()));
        match (digits.parse(), unit) {
            (Ok(number), Some(unit)) if !is_part => shown.push_str(&unit.shown(number)),
            (Ok(number), None) if !is_part && digits.len() > 5 => shown.push_str(&Count(number).to_string()),
            _ => shown.push_str(digits),
        }
        rest = after;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_detail_of_the_api_is_said_in_words_of_the_page() {
        let labels = |name: &str| match name {
            "ordered" => Some("Strict order"),
            "base_ms" => Some("First delay at most"),
            _ => None,
        };
        for (detail, unit, expected) in [
            ("must be a whole number from 1 to 1000000", None, "Must be a whole number from 1 to 1,000,000."),
            ("must be a whole number from 100 to 120000", Some(ApiUnit::Millis), "Must be from 100 ms to 2 min."),
            (
                "must be at least `base_ms`, which is 10000",
                Some(ApiUnit::Millis),
                "Must be at least “First delay at most”, which is 10 s.",
            ),
            ("needs `ordered: true`: set it too", None, "Needs “Strict order”: set it too."),
            (
                "must be an absolute URL: relative URL without a base",
                None,
                "Must be a whole URL, such as https://example.com/hooks.",
            ),
            (
                "10.0.0.1 is refused (private); to permit it, start Weir with `--allow-networks 10.0.0.0/8`",
                None,
                "10.0.0.1 is refused (private); to permit it, start Weir with --allow-networks 10.0.0.0/8.",
            ),
            ("names port 65000, which is not allowed", None, "Names port 65000, which is not allowed."),
        ] {
            assert_eq!(sentence(detail, unit, &labels), expected);
        }
    }

    #[test]
    fn a_fault_is_found_by_its_field_and_others_are_kept() {
        let errors = json!([
            {"pointer": "/name", "detail": "is wrong"}, {"pointer": "/name", "detail": "is long"}, {"pointer": "/x", "detail": "is unknown"},
        ]);
        let body = json!({"type": "/docs", "title": "t", "status": 422, "detail": "d", "errors": errors}).to_string();
        let refusal = Refusal::of_answer(StatusCode::UNPROCESSABLE_ENTITY, &HeaderMap::new(), body.as_bytes());
        let faults =
            Faults::of(&refusal, |pointer| (pointer == "/name").then(|| ("name".to_owned(), "Its name".to_owned())));
        assert_eq!(faults.in_field("name"), Some("Is wrong. Is long."));
        assert_eq!((faults.in_field("url"), faults.others()), (None, &["X is unknown.".to_owned()][..]));
        assert_eq!(faults.of_fields().iter().map(|fault| &*fault.label).collect::<Vec<_>>(), ["Its name"]);
    }
}
