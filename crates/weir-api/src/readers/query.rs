//! Query parameters. Each is read once, unknown ones are refused by name, and all errors are reported at once.

use axum::extract::FromRequestParts;
use http::request::Parts;
use url::form_urlencoded;
use utoipa::{
    IntoParams,
    openapi::{
        RefOr, Schema,
        path::{Parameter, ParameterIn},
    },
};
use weir_core::Timestamp;

use super::{
    fields::schema_of,
    texts::{Text, TimeText},
    values::{outside, range},
};
use crate::{
    errors::{Errors, escape},
    problem::Problem,
};

/// The parameters of a request. Every handler takes them, because unknown parameters are refused on every route; a
/// handler without parameters takes a `Query<()>`.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: Parameters, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        read(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

fn read<T: Parameters>(query: &str) -> Result<T, Problem> {
    let mut pairs =
        Pairs { pairs: form_urlencoded::parse(query.as_bytes()).into_owned().collect(), errors: Errors::default() };
    let read = T::read(&mut pairs);
    pairs.close().or(Some(read))
}

/// Some parameters of a route. A tuple has the parameters of all its members.
pub(crate) trait Parameters {
    fn read(pairs: &mut Pairs) -> Self;
}

impl Parameters for () {
    fn read(_: &mut Pairs) -> Self {}
}

impl<A: Parameters, B: Parameters> Parameters for (A, B) {
    fn read(pairs: &mut Pairs) -> Self {
        (A::read(pairs), B::read(pairs))
    }
}

impl<A: Parameters, B: Parameters, C: Parameters, D: Parameters> Parameters for (A, B, C, D) {
    fn read(pairs: &mut Pairs) -> Self {
        (A::read(pairs), B::read(pairs), C::read(pairs), D::read(pairs))
    }
}

impl<A: Parameters, B: Parameters, C: Parameters> Parameters for (A, B, C) {
    fn read(pairs: &mut Pairs) -> Self {
        (A::read(pairs), B::read(pairs), C::read(pairs))
    }
}

/// Declares parameters: a struct with their schemas and their reader. Every field is an `Option`.
macro_rules! parameters {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $kind:ty,)*
        }
    ) => {
        #[derive(utoipa::IntoParams)]
        $(#[$meta])*
        #[into_params(parameter_in = Query)]
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $kind,)*
        }

        impl $crate::readers::query::Parameters for $name {
            fn read(pairs: &mut $crate::readers::query::Pairs) -> Self {
                static DESCRIBED: std::sync::LazyLock<Vec<utoipa::openapi::path::Parameter>> =
                    std::sync::LazyLock::new($crate::readers::query::described::<$name>);
                Self { $($field: pairs.take(stringify!($field), &DESCRIBED),)* }
            }
        }
    };
}
pub(crate) use parameters;

/// The parameters as the document describes them.
pub(crate) fn described<T: IntoParams>() -> Vec<Parameter> {
    T::into_params(|| Some(ParameterIn::Query))
}

/// The value of a parameter. `schema` has the range of a number.
pub(crate) trait FromParameter: Sized {
    fn parse(text: &str, schema: &Schema) -> Result<Self, String>;
}

impl<T: Text> FromParameter for T {
    fn parse(text: &str, _: &Schema) -> Result<Self, String> {
        T::parse_parameter(text)
    }
}

impl FromParameter for bool {
    fn parse(text: &str, _: &Schema) -> Result<Self, String> {
        text.parse().map_err(|_| "must be true or false".to_owned())
    }
}

impl FromParameter for u32 {
    fn parse(text: &str, schema: &Schema) -> Result<Self, String> {
        let range = range(schema);
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| outside(&range))
    }
}

/// The names and values of a query, in the order of the request, that were not read so far.
pub(crate) struct Pairs {
    pairs: Vec<(String, String)>,
    errors: Errors,
}

impl Pairs {
    /// A parameter. `None` if it is absent or invalid.
    pub(crate) fn take<T: FromParameter>(&mut self, name: &str, described: &[Parameter]) -> Option<T> {
        let name = name.trim_start_matches("r#");
        let index = self.pairs.iter().position(|(other, _)| other == name)?;
        let (_, text) = self.pairs.remove(index);
        if self.pairs.iter().any(|(other, _)| other == name) {
            self.pairs.retain(|(other, _)| other != name);
            self.refuse(name, "must be given only once");
            return None;
        }
        let schema: Option<&RefOr<Schema>> =
            described.iter().find(|parameter| parameter.name == name).and_then(|parameter| parameter.schema.as_ref());
        T::parse(&text, schema_of(schema)).map_err(|detail| self.refuse(name, detail)).ok()
    }

    /// Refuses a parameter, also one that was taken.
    pub(crate) fn refuse(&mut self, name: &str, detail: impl Into<String>) {
        self.errors.add(format!("/{}", escape(name)), detail);
    }

    /// Ends the reading and refuses the parameters that were not taken.
    fn close(mut self) -> Errors {
        for (name, _) in std::mem::take(&mut self.pairs) {
            self.refuse(&name, "is not a known parameter: check its spelling, or leave it out");
        }
        self.errors
    }
}

parameters! {
    /// A time range. It is empty if `to` is not after `from`.
    pub(crate) struct RangeParameters {
        /// At or after this instant (RFC 3339).
        from: Option<TimeText>,
        /// Before this instant (RFC 3339). The range is empty if `to` is not after `from`.
        to: Option<TimeText>,
    }
}

impl RangeParameters {
    /// `from` (included) and `to` (excluded).
    pub(crate) fn times(self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.from.map(|from| from.0), self.to.map(|to| to.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::texts::TenantText;

    parameters! {
        #[expect(dead_code, reason = "only their errors are tested")]
        struct TenantParameters {
            tenant: Option<TenantText>,
            #[param(minimum = 1, maximum = 200)]
            limit: Option<u32>,
        }
    }

    fn errors(query: &str) -> Vec<String> {
        match read::<(TenantParameters, RangeParameters)>(query) {
            Ok(_) => Vec::new(),
            Err(problem) => {
                problem.errors().iter().map(|error| format!("{} {}", error.pointer, error.detail)).collect()
            }
        }
    }

    #[test]
    fn unknown_repeated_and_malformed_parameters_are_refused_by_name() {
        assert_eq!(errors("tenant=a&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00+01:00"), Vec::<String>::new());
        assert_eq!(errors("from=2026-01-02T00:00:00Z&to=0001-01-01T00:00:00Z&limit=200"), Vec::<String>::new());
        assert_eq!(
            errors("tenant=a&tenant=b&colour=red&from=yesterday&limit=0"),
            [
                "/tenant must be given only once",
                "/limit must be a whole number from 1 to 200",
                "/from must be an RFC 3339 time such as 2026-11-21T07:30:00.000Z",
                "/colour is not a known parameter: check its spelling, or leave it out",
            ]
        );
    }
}
