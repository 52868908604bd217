//! The form of the `data` of an event type: a bounded subset of JSON Schema 2020-12.
//!
//! ```
//! use serde_json::json;
//! use weir_core::json_schema::JsonSchema;
//!
//! let schema = json!({"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}});
//! let schema = JsonSchema::parse(&schema).expect("a schema");
//! assert!(schema.check(&json!({"id": 7}), 9).is_ok());
//! let faults = schema.check(&json!({"id": "7"}), 11).expect_err("a text");
//! assert_eq!(faults[0].pointer, "/id");
//! ```
//!
//! - A schema is compiled once. A keyword that is not known is refused then, so a mistyped one is never ignored.
//! - `$ref` leads to a place in the same schema. Nothing is ever fetched.
//! - **The work of a check is bounded**: each step is paid for from a budget that grows with the size of the data
//!   ([`FREE_STEPS`]), because references and alternatives can multiply. Data that needs more is refused. So is what nests
//!   deeper than `MAX_DEPTH`, which bounds the stack. Patterns take linear time.
//!
//! `docs/guides/event-types.md` has the table of keywords and bounds.

mod check;
mod pattern;
mod read;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use serde_json::{Number, Value};

pub use self::read::MAX_BYTES;
use self::{check::Check, pattern::Pattern};
pub use crate::filter::Fault;

/// The steps that each check has. One more is added for each byte of the data.
pub const FREE_STEPS: u64 = 10_000;
/// How deep a check may nest: each level of the data takes one for `properties` or `items`, one for `$ref`, and so on.
const MAX_DEPTH: u32 = 256;
/// The faults that are told.
const MAX_FAULTS: usize = 10;

/// A compiled schema.
#[derive(Debug)]
pub struct JsonSchema {
    /// Each schema and subschema, by its number. The first is the whole.
    rules: Vec<Rule>,
}

/// The keywords of a schema, which must all hold.
type Rule = Vec<Keyword>;
/// The number of a subschema.
type Sub = usize;

#[derive(Debug)]
enum Keyword {
    /// `false`
    Never,
    /// The names of types.
    Type(Vec<&'static str>),
    /// `enum` and `const`: values in a form that is equal for equal values, and as people read them.
    OneOf(HashSet<String>, String),
    /// The data, a number, must be on this side of the limit.
    Number(Side, Number),
    MultipleOf(Number),
    Least(Size, u64),
    Most(Size, u64),
    Pattern(Pattern),
    Unique,
    Prefix(Vec<Sub>),
    /// The elements from this one on.
    Items(usize, Sub),
    Contains {
        sub: Sub,
        least: u64,
        most: Option<u64>,
    },
    Required(Vec<String>),
    /// Members that must be there if another is.
    Dependent(Vec<(String, Vec<String>)>),
    DependentSchemas(Vec<(String, Sub)>),
    Members(Members),
    Names(Sub),
    All(Vec<Sub>),
    Any(Vec<Sub>),
    One(Vec<Sub>),
    Not(Sub),
    If {
        condition: Sub,
        then: Option<Sub>,
        otherwise: Option<Sub>,
    },
    Ref(Sub),
}

/// What the values of an object must be.
#[derive(Debug, Default)]
struct Members {
    by_name: HashMap<String, Sub>,
    by_pattern: Vec<(Pattern, Sub)>,
    /// Of all others.
    others: Option<Sub>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    AtLeast,
    AtMost,
    Above,
    Below,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Characters,
    Elements,
    Members,
}

impl JsonSchema {
    /// Compiles a schema, or says what is wrong with it and where.
    pub fn parse(json: &Value) -> Result<Self, Vec<Fault>> {
        let schema = Self { rules: read::rules(json)? };
        // Schemas that refer to themselves without going deeper into the data would never end, whatever the data is.
        match Check::new(&schema.rules, u64::MAX).is_endless() {
            true => Err(vec![Fault { pointer: String::new(), detail: "refers to itself without an end".to_owned() }]),
            false => Ok(schema),
        }
    }

    /// Says what is wrong with `data`, whose text has so many bytes.
    pub fn check(&self, data: &Value, bytes: usize) -> Result<(), Vec<Fault>> {
        Check::new(&self.rules, FREE_STEPS.saturating_add(bytes as u64)).faults(data)
    }
}

/// A text form that is the same for values that are equal in JSON Schema: `1` and `1.0` are.
fn canonical(value: &Value, into: &mut String) {
    match value {
        Value::Number(number) => into.push_str(&canonical_number(number)),
        Value::Array(elements) => {
            into.push('[');
            for element in elements {
                canonical(element, into);
                into.push(',');
            }
            into.push(']');
        }
        Value::Object(members) => {
            into.push('{');
            // `serde_json` keeps the members in the order of their names.
            for (name, value) in members {
                into.push_str(&Value::from(name.as_str()).to_string());
                into.push(':');
                canonical(value, into);
                into.push(',');
            }
            into.push('}');
        }
        scalar => into.push_str(&scalar.to_string()),
    }
}

/// Floats below this have no fraction that is lost.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn canonical_number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 && float.abs() < EXACT => {
            (float as i64).to_string()
        }
        _ => number.to_string(),
    }
}
