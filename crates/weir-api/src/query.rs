//! Query parameters. Each is read once, unknown ones are refused by name, and all errors are reported at once.

use std::fmt::Display;

use axum::extract::FromRequestParts;
use http::request::Parts;
use url::form_urlencoded;
use weir_core::{Timestamp, pattern::EventPattern};

use crate::{fields::Errors, problem::Problem, settings::check_tenant};

/// The query of a request. [`Query::close`] reports the errors.
pub(crate) struct Query {
    /// In the order of the request.
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
        let index = self.parameters.iter().position(|(other, _)| other == name)?;
        let (_, value) = self.parameters.remove(index);
        if self.parameters.iter().any(|(other, _)| other == name) {
            self.parameters.retain(|(other, _)| other != name);
            self.refuse(name, "must be given only once");
            return None;
        }
        Some(value)
    }

    /// A parameter, parsed by `parse`.
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

    /// `dry_run`: whether the request should only count the affected rows.
    pub(crate) fn dry_run(&mut self) -> bool {
        let parsed = self.parse("dry_run", |text| text.parse::<bool>().map_err(|_| "must be true or false"));
        parsed.unwrap_or(false)
    }

    pub(crate) fn tenant(&mut self) -> Option<String> {
        self.parse("tenant", |text| check_tenant(text).map(|()| text.to_owned()))
    }

    /// An event type or a prefix, as in the `event_types` of destinations.
    pub(crate) fn event_pattern(&mut self, name: &str) -> Option<EventPattern> {
        self.parse(name, str::parse)
    }

    /// `from` (included) and `to` (excluded). The range is empty if `to` is not after `from`.
    pub(crate) fn range(&mut self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.time("from"), self.time("to"))
    }

    /// A time. Form decoding turns an unescaped `+` of an offset into a space, which is reversed here; a valid time
    /// contains no space.
    fn time(&mut self, name: &str) -> Option<Timestamp> {
        self.parse(name, |text| text.replace(' ', "+").parse::<Timestamp>())
    }

    /// Ends the reading and refuses the parameters that were not taken.
    pub(crate) fn close(mut self) -> Result<(), Problem> {
        for (name, _) in std::mem::take(&mut self.parameters) {
            let name = crate::fields::escape(&name);
            self.refuse(&name, "is not a known parameter");
        }
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid(self.errors.into_vec())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(query: &str) -> Vec<String> {
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
        assert_eq!(errors("tenant=a&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00+01:00"), Vec::<String>::new());
        assert_eq!(errors("from=2026-01-02T00:00:00Z&to=0001-01-01T00:00:00Z"), Vec::<String>::new());
        assert_eq!(
            errors("tenant=a&tenant=b&colour=red&from=yesterday"),
            [
                "/tenant must be given only once",
                "/from must be an RFC 3339 time such as 2026-11-21T07:30:00.000Z",
                "/colour is not a known parameter",
            ]
        );
    }
}
