//! Reads a JSON object field by field and collects all errors, each with its JSON pointer.
//!
//! Serde stops at the first error, but a client should get all errors at once. An absent field and `null` both mean the
//! default.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use serde_json::{Map, Value};

use crate::problem::FieldError;

/// The errors so far.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<FieldError>);

impl Errors {
    pub(crate) fn add(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.0.push(FieldError { pointer: pointer.into(), detail: detail.into() });
    }

    pub(crate) fn into_vec(self) -> Vec<FieldError> {
        self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        self.0.extend(errors);
    }
}

/// An object that is being read. Every field is taken once; the fields that remain at [`Object::close`] are unknown.
pub(crate) struct Object<'e> {
    fields: Map<String, Value>,
    pointer: String,
    errors: &'e mut Errors,
}

impl<'e> Object<'e> {
    /// Starts to read `value`, which is at `pointer` (empty for the whole body).
    pub(crate) fn open(value: Value, pointer: impl Into<String>, errors: &'e mut Errors) -> Option<Self> {
        let pointer = pointer.into();
        match value {
            Value::Object(fields) => Some(Self { fields, pointer, errors }),
            other => {
                errors.add(pointer, format!("must be an object, not {}", type_name(&other)));
                None
            }
        }
    }

    pub(crate) fn pointer_to(&self, name: &str) -> String {
        format!("{}/{}", self.pointer, escape(name))
    }

    pub(crate) fn refuse(&mut self, name: &str, detail: impl Into<String>) {
        let pointer = self.pointer_to(name);
        self.errors.add(pointer, detail);
    }

    pub(crate) fn errors(&mut self) -> &mut Errors {
        self.errors
    }

    /// Whether the field exists, `null` or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// Whether the field exists and is not `null`.
    pub(crate) fn has_value(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes the field if it is `null`, for fields to which `null` and an absent field differ.
    pub(crate) fn take_null(&mut self, name: &str) -> bool {
        let is_null = self.has(name) && !self.has_value(name);
        if is_null {
            self.fields.remove(name);
        }
        is_null
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// A field that must exist and not be `null`.
    pub(crate) fn required_string(&mut self, name: &str) -> Option<String> {
        if !self.has_value(name) {
            self.fields.remove(name);
            self.refuse(name, "is required");
            return None;
        }
        self.string(name)
    }

    pub(crate) fn string(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) => Some(text),
            other => {
                self.refuse(name, format!("must be a string, not {}", type_name(&other)));
                None
            }
        }
    }

    /// A string that is parsed into another type.
    pub(crate) fn parsed<T: FromStr<Err: Display>>(&mut self, name: &str) -> Option<T> {
        match self.string(name)?.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(name, error.to_string());
                None
            }
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Option<bool> {
        match self.take(name)? {
            Value::Bool(value) => Some(value),
            other => {
                self.refuse(name, format!("must be true or false, not {}", type_name(&other)));
                None
            }
        }
    }

    pub(crate) fn array(&mut self, name: &str) -> Option<Vec<Value>> {
        match self.take(name)? {
            Value::Array(values) => Some(values),
            other => {
                self.refuse(name, format!("must be an array, not {}", type_name(&other)));
                None
            }
        }
    }

    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let value = self.take(name)?;
        let integer = integer(&value, &range);
        if integer.is_none() {
            self.refuse(name, outside(&range));
        }
        integer
    }

    /// Ends the reading and refuses the fields that were not taken, as unknown or as `read_only`.
    pub(crate) fn close(mut self, read_only: &[&str]) {
        for name in std::mem::take(&mut self.fields).keys() {
            let detail = if read_only.contains(&name.as_str()) { "is read-only" } else { "is not a known field" };
            self.refuse(name, detail);
        }
    }
}

/// The value as a whole number, if it is one and in the range. JSON makes no difference between `7` and `7.0`.
pub(crate) fn integer(value: &Value, range: &RangeInclusive<u32>) -> Option<u32> {
    let number =
        value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number that fits")]
    let number = number as u32;
    range.contains(&number).then_some(number)
}

/// The error for a number outside the range.
pub(crate) fn outside(range: &RangeInclusive<u32>) -> String {
    format!("must be a whole number from {} to {}", range.start(), range.end())
}

/// The type of a JSON value, with its article.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Escapes a name for a JSON pointer (RFC 6901, section 3).
pub(crate) fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_number_may_have_a_fraction_of_zero() {
        for (value, expected) in [
            (json!(36_587), Some(36_587)),
            (json!(36_587.0), Some(36_587)),
            (json!(0.0), None),
            (json!(-1), None),
            (json!(40_000.5), None),
            (json!(4_294_967_296_u64), None),
            (json!("7"), None),
        ] {
            assert_eq!(integer(&value, &(1..=u32::MAX)), expected, "{value}");
        }
    }

    #[test]
    fn every_error_has_its_pointer() {
        let mut errors = Errors::default();
        let body =
            json!({"text": 1, "flag": "x", "list": {}, "number": 7, "whole": 1.5, "a/b": 0, "id": "x", "gone": null});
        let mut object = Object::open(body, "/inner", &mut errors).unwrap();
        assert_eq!(object.string("text"), None);
        assert_eq!(object.boolean("flag"), None);
        assert_eq!(object.array("list"), None);
        assert_eq!(object.integer("number", 1..=5), None);
        assert_eq!(object.integer("whole", 1..=5), None);
        assert_eq!(object.string("gone"), None);
        assert_eq!(object.required_string("missing"), None);
        object.close(&["id"]);
        let found: Vec<_> =
            errors.into_vec().into_iter().map(|error| format!("{} {}", error.pointer, error.detail)).collect();
        assert_eq!(
            found,
            [
                "/inner/text must be a string, not a number",
                "/inner/flag must be true or false, not a string",
                "/inner/list must be an array, not an object",
                "/inner/number must be a whole number from 1 to 5",
                "/inner/whole must be a whole number from 1 to 5",
                "/inner/missing is required",
                "/inner/a~1b is not a known field",
                "/inner/id is read-only",
            ]
        );
    }
}
