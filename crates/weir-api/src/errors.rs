//! Collects the errors of a request, so that a client gets all of them at once.

use serde_json::Value;

use weir_api_types::FieldError;

use crate::problem::{ApiResult, Problem};

/// The most errors that a client gets at once. Nobody reads more, and a body may have an error for every few bytes.
const MAX_ERRORS: usize = 100;

/// The errors so far, at most [`MAX_ERRORS`], each with the JSON pointer of its value.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<FieldError>);

impl Errors {
    pub(crate) fn add(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        if self.0.len() < MAX_ERRORS {
            self.0.push(FieldError { pointer: pointer.into(), detail: detail.into() });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the value at `pointer` has an error.
    pub(crate) fn has(&self, pointer: &str) -> bool {
        self.0.iter().any(|error| error.pointer == pointer)
    }

    /// Sorts the errors by the order of these fields of the body, which are Rust's names. Errors elsewhere come last.
    pub(crate) fn sort_by_field(&mut self, fields: &[&str]) {
        let place = |error: &FieldError| {
            let field = error.pointer.split('/').nth(1).unwrap_or_default();
            fields.iter().position(|name| name.trim_start_matches("r#") == field).unwrap_or(fields.len())
        };
        self.0.sort_by_key(place);
    }

    pub(crate) fn into_vec(self) -> Vec<FieldError> {
        self.0
    }

    /// The value that was read, or the problem with all errors.
    pub(crate) fn or<T>(self, read: Option<T>) -> ApiResult<T> {
        match read {
            Some(value) if self.is_empty() => Ok(value),
            _ => Err(Problem::invalid(self.0)),
        }
    }
}

/// Escapes a name for a JSON pointer (RFC 6901, section 3).
pub(crate) fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The name of a JSON value's type, with its article: `a string`.
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
