//! The destination's own headers, as they are set. Their values are write-only.

use http::HeaderValue;
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, RefOr, Schema,
        schema::{SchemaType, Type},
    },
};

use weir_core::destination::USER_AGENT;
pub(crate) use weir_core::egress::MASK;

use super::signature::header_name;
use crate::{
    errors::{Errors, escape, type_name},
    readers::fields::Read,
};

const MAX_HEADERS: usize = 32;
const MAX_VALUE_LEN: usize = 4_096;
/// The refusal of a header that is given in two spellings.
pub(crate) const TWICE: &str = "is given twice: header names are not case-sensitive";

/// Header names and values. A value may be the [`MASK`].
#[derive(Default)]
pub(crate) struct Headers(pub(crate) Vec<Header>);

/// One header of a request.
pub(crate) struct Header {
    /// In lower case.
    pub(crate) name: String,
    pub(crate) value: String,
    /// The JSON pointer to the value.
    pub(crate) pointer: String,
}

impl Read for Headers {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Object(members) = value else {
            errors.add(at, format!("must be an object of names and values, not {}", type_name(&value)));
            return None;
        };
        // A null member of a patch removes a header.
        if members.values().filter(|value| !value.is_null()).count() > MAX_HEADERS {
            errors.add(at, format!("must contain at most {MAX_HEADERS} headers"));
        }
        let mut headers: Vec<Header> = Vec::with_capacity(members.len());
        for (given, value) in members {
            let pointer = format!("{at}/{}", escape(&given));
            match header(&given, value) {
                // The names are in lower case here, so two spellings of one name are found.
                Ok(Some((name, _))) if headers.iter().any(|other| other.name == name) => {
                    errors.add(format!("{at}/{}", escape(&name)), TWICE);
                }
                Ok(Some((name, value))) => headers.push(Header { name, value, pointer }),
                // A null value means that the header is absent.
                Ok(None) => {}
                Err(detail) => errors.add(pointer, detail),
            }
        }
        Some(Self(headers))
    }
}

/// The name and the value of a header. `None` if the value is null: null means the default, an absent header.
fn header(name: &str, value: Value) -> Result<Option<(String, String)>, String> {
    let name = header_name(name, USER_AGENT)?;
    match value {
        Value::Null => Ok(None),
        Value::String(value) if value.len() > MAX_VALUE_LEN => {
            Err(format!("must be at most {MAX_VALUE_LEN} bytes long"))
        }
        Value::String(value) if value.is_ascii() && HeaderValue::from_str(&value).is_ok() => Ok(Some((name, value))),
        Value::String(_) => Err("must contain only printable ASCII characters".to_owned()),
        other => Err(format!("must be a string, not {}", type_name(&other))),
    }
}

impl ToSchema for Headers {}

impl PartialSchema for Headers {
    fn schema() -> RefOr<Schema> {
        described(Type::Object.into(), r"^(?!\*\*\*$)[\t -~]*$")
    }
}

/// The headers of a PATCH, whose values may be the [`MASK`].
pub(super) fn patch_schema() -> RefOr<Schema> {
    described(SchemaType::from_iter([Type::Object, Type::Null]), r"^[\t -~]*$")
}

fn described(kind: SchemaType, value_pattern: &str) -> RefOr<Schema> {
    let name = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"));
    let value = ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .pattern(Some(value_pattern))
        .max_length(Some(MAX_VALUE_LEN));
    let headers = ObjectBuilder::new()
        .schema_type(kind)
        .property_names(Some(name.build()))
        .additional_properties(Some(Schema::Object(value.build())))
        .max_properties(Some(MAX_HEADERS));
    RefOr::T(Schema::Object(headers.build()))
}

#[cfg(test)]
mod tests {
    use utoipa::openapi::schema::AdditionalProperties;

    use super::*;
    use crate::readers::texts::tests::assert_pattern_is;

    #[test]
    fn every_name_and_value_that_a_pattern_describes_is_accepted() {
        for schema in [Headers::schema(), patch_schema()] {
            let RefOr::T(Schema::Object(headers)) = schema else { panic!("no object") };
            let name = RefOr::T(*headers.property_names.unwrap());
            assert_pattern_is(|name| header(name, Value::Null) == Ok(None), name);
            let Some(AdditionalProperties::RefOr(value)) = headers.additional_properties.map(|values| *values) else {
                panic!("no schema of values")
            };
            assert_pattern_is(|value| header("x-a", value.into()).is_ok(), value);
        }
    }
}
