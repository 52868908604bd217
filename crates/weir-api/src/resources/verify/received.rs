//! A request as it was received: its headers and its body.

use std::time::Duration;

use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, schema::Type},
};
use weir_core::signing::{Placeholder, Received, SignatureStyle};

use crate::{
    errors::{Errors, escape, type_name},
    readers::fields::Read,
};

/// The most headers of a request to verify. Weir sends fewer; a list that is copied from a browser has a few more.
const MAX_HEADERS: usize = 100;

/// The most parts of a signature header, between its separators: Weir sends three at most. Each may cost a MAC of the
/// whole body, so a longer header would cost seconds.
pub(super) const MAX_SIGNATURE_PARTS: usize = 64;
/// The tolerance if the client names none: longer than the age of any request, so the age is shown and not judged.
pub(super) const ANY_AGE: Duration = Duration::from_secs(u64::MAX);

/// Names, in lower case, and values.
pub(crate) struct ReceivedHeaders(pub(super) Vec<(String, String)>);

impl ReceivedHeaders {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.trim())
    }
}

impl Read for ReceivedHeaders {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Object(members) = value else {
            errors.add(at, format!("must be an object of names and values, not {}", type_name(&value)));
            return None;
        };
        if members.len() > MAX_HEADERS {
            errors.add(at, format!("must contain at most {MAX_HEADERS} headers"));
        }
        let mut headers = Vec::with_capacity(members.len());
        for (name, value) in members {
            match value {
                Value::String(value) => headers.push((name.to_ascii_lowercase(), value)),
                other => {
                    errors
                        .add(format!("{at}/{}", escape(&name)), format!("must be a string, not {}", type_name(&other)));
                }
            }
        }
        Some(Self(headers))
    }
}

impl ToSchema for ReceivedHeaders {}

impl PartialSchema for ReceivedHeaders {
    fn schema() -> RefOr<Schema> {
        let value = ObjectBuilder::new().schema_type(Type::String);
        let headers = ObjectBuilder::new()
            .schema_type(Type::Object)
            .additional_properties(Some(Schema::Object(value.build())))
            .max_properties(Some(MAX_HEADERS));
        RefOr::T(Schema::Object(headers.build()))
    }
}

/// What was received, and where.
#[derive(Clone, Copy)]
pub(super) struct Request<'r> {
    pub(super) headers: &'r ReceivedHeaders,
    pub(super) url: &'r str,
    pub(super) body: &'r [u8],
}

impl<'r> Request<'r> {
    /// As it is verified in this style.
    pub(super) fn received(&self, style: &'r SignatureStyle) -> Received<'r> {
        Received {
            id: style.id_header().and_then(|name| self.headers.get(name)),
            timestamp: style.timestamp_header().and_then(|name| self.headers.get(name)),
            signature: self.headers.get(&style.format().header).unwrap_or_default(),
            url: self.url,
            body: self.body,
        }
    }
}

/// The headers without which a request in this style cannot be verified.
pub(super) fn needed_headers(style: &SignatureStyle) -> Vec<&str> {
    let format = style.format();
    let id = style.id_header().filter(|_| format.signs(Placeholder::Id));
    let time = style.timestamp_header().filter(|_| format.signs(Placeholder::Timestamp));
    id.into_iter().chain(time).chain([format.header.as_str()]).collect()
}
