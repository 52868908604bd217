//! Readers of requests: bodies, queries and paths become typed values, or a problem with all errors.
//!
//! A request type is declared once, with [`fields::object`] or [`query::parameters`]. The declaration gives the type,
//! its schema in the OpenAPI document, and its reader. The reader takes the ranges and the numbers of array items from
//! the schema, so both always agree.

pub(crate) mod body;
pub(crate) mod depth;
pub(crate) mod fields;
pub(crate) mod idempotency;
pub(crate) mod if_match;
mod json;
pub(crate) mod ordered_page;
pub(crate) mod page;
pub(crate) mod query;
pub(crate) mod texts;
pub(crate) mod values;
