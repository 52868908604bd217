//! Query parameters: each read once, all mistakes told at once, unknown ones refused by name.

use std::fmt::Display;

use axum::extract::FromRequestParts;
use http::request::Parts;
use url::form_urlencoded;
use weir_core::{Timestamp, pattern::EventPattern};

use crate::{fields::Errors, problem::Problem, settings::check_tenant};

/// The query of a request. [`Query::close`] says whether all of it was understood.
pub(crate) struct Query {
    /// In the order they came.
    parameters: Vec<(String, String)>,
    errors: Errors,
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::new(parts.uri.query().unwrap_or_default()))
    }
}

impl Query {
    fn new(query: &str) -> Self {
        let parameters = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self { parameters, errors: Errors::default() }
    }

    fn refuse(&mut self, name: &str, detail: impl Display) {
        self.errors.add(format!("/{name}"), detail.to_string());
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let index = self.parameters.iter().position(|(given, _)| given == name)?;
        let (_, value) = self.parameters.remove(index);
        if self.parameters.iter().any(|(given, _)| given == name) {
            self.parameters.retain(|(given, _)| given != name);
            self.refuse(name, "must be given once");
            return None;
        }
        Some(value)
    }

    /// A parameter as `parse` understands it.
    pub(crate) fn parse<T, E: Display>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        let text = self.take(name)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(name, error);
                None
            }
        }
    }

    /// Whether a request is only to count what it would do.
    pub(crate) fn dry_run(&mut self) -> bool {
        let parsed = self.parse("dry_run", |text| text.parse::<bool>().map_err(|_| "must be true or false"));
        parsed.unwrap_or(false)
    }

    pub(crate) fn tenant(&mut self) -> Option<String> {
        self.parse("tenant", |text| check_tenant(text).map(|()| text.to_owned()))
    }

    /// An event type, or a prefix of some, as destinations name them.
    pub(crate) fn event_pattern(&mut self, name: &str) -> Option<EventPattern> {
        self.parse(name, str::parse)
    }

    /// `from` (included) and `to` (excluded).
    pub(crate) fn range(&mut self) -> (Option<Timestamp>, Option<Timestamp>) {
        let (from, to) = (self.time("from"), self.time("to"));
        if let (Some(from), Some(to)) = (from, to)
            && from > to
        {
            self.refuse("to", "must not be before `from`");
        }
        (from, to)
    }

    /// A `+` that was not escaped has become a space by now; no time has one where an offset begins.
    fn time(&mut self, name: &str) -> Option<Timestamp> {
        self.parse(name, |text| text.replace(' ', "+").parse::<Timestamp>())
    }

    /// Ends the reading: what nobody took is not known here.
    pub(crate) fn close(mut self) -> Result<(), Problem> {
        for (name, _) in std::mem::take(&mut self.parameters) {
            let name = crate::fields::escape(&name);
            self.refuse(&name, "is not known here");
        }
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid(self.errors.into_vec())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(query: &str) -> Vec<String> {
        let mut query = Query::new(query);
        query.tenant();
        query.range();
        match query.close() {
            Ok(()) => Vec::new(),
            Err(problem) => {
                problem.errors().iter().map(|error| format!("{} {}", error.pointer, error.detail)).collect()
            }
        }
    }

    #[test]
    fn unknown_repeated_and_malformed_parameters_are_refused_by_name() {
        assert_eq!(mistakes("tenant=a&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00+01:00"), Vec::<String>::new());
        assert_eq!(
            mistakes("tenant=a&tenant=b&colour=red&from=yesterday"),
            [
                "/tenant must be given once",
                "/from must be an RFC 3339 time such as 2026-11-21T07:30:00.000Z",
                "/colour is not known here",
            ]
        );
        assert_eq!(mistakes("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z"), ["/to must not be before `from`"]);
    }
}
