//! Which events a destination takes by their `data`: a small JSON expression.
//!
//! ```
//! use weir_core::filter::{Data, Filter};
//!
//! let filter = Filter::parse(&serde_json::json!({
//!     "/customer/tier": {"in": ["gold", "silver"]},
//!     "or": [{"/amount": {"gte": 100}}, {"/urgent": true}],
//! }))
//! .expect("a filter");
//! assert!(filter.matches(&Data::new(r#"{"customer": {"tier": "gold"}, "amount": 100.0}"#)));
//! ```
//!
//! - The members of an object must all hold. A name is a JSON pointer (RFC 6901) into `data`, or `and`, `or`, `not`.
//! - A pointer has a value that must be equal, or an object of operators that must all hold. At an array they must hold
//!   for one of its first [`MAX_ELEMENTS`] elements.
//! - A condition that does not fit the type of the value, or whose value is missing, does not hold. There are no errors
//!   when an event comes.
//!
//! Everything has a bound, because a filter is evaluated for every event. `docs/guides/filters.md` has the table.

mod data;
mod decimal;
mod read;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, collections::BTreeSet};

use serde_json::Value;
use sha2::{Digest, Sha256};

pub use self::{
    data::Data,
    read::{Fault, MAX_BYTES, MAX_NAMES},
};
use self::{data::Node, decimal::Decimal};

/// The most elements of an array that are compared. With it an event costs at most some hundred comparisons for each
/// condition, whatever its data is.
pub const MAX_ELEMENTS: usize = 100;

/// An expression on the `data` of events. Shared as `Arc<Filter>`.
#[derive(Debug, Clone)]
pub struct Filter {
    json: Value,
    fingerprint: Fingerprint,
    root: Expression,
}

/// Identifies a filter by its text, so that equal filters of several destinations are evaluated once for an event.
pub type Fingerprint = [u8; 16];

#[derive(Debug, Clone)]
enum Expression {
    All(Vec<Expression>),
    Any(Vec<Expression>),
    Not(Box<Expression>),
    /// The pointer as its names, the conditions on the value there, and their place in the filter.
    At(Vec<String>, Test, String),
}

#[derive(Debug, Clone)]
enum Test {
    Exists(bool),
    /// All must hold for the value, or all for one element of an array.
    Is(Vec<Operator>),
}

#[derive(Debug, Clone)]
enum Operator {
    In(BTreeSet<Scalar>),
    Prefix(String),
    /// The number is one of these orderings to the value.
    Compare(&'static [Ordering], Decimal),
}

/// A value without parts. Numbers are equal by their value, however they are written; texts by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Scalar {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
}

/// One condition of a filter, and whether it holds for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tested {
    /// Where it stands in the filter, as a JSON pointer.
    pub pointer: String,
    pub holds: bool,
}

impl Filter {
    /// Reads a filter, or says what is wrong with it and where.
    pub fn parse(json: &Value) -> Result<Self, Vec<Fault>> {
        let root = read::filter(json)?;
        let mut fingerprint = Fingerprint::default();
        let digest = Sha256::digest(json.to_string());
        fingerprint.copy_from_slice(&digest[..16]);
        Ok(Self { json: json.clone(), fingerprint, root })
    }

    /// A filter as it is stored.
    pub fn from_stored(text: &str) -> Option<Self> {
        Self::parse(&serde_json::from_str(text).ok()?).ok()
    }

    pub fn json(&self) -> &Value {
        &self.json
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub fn matches(&self, data: &Data<'_>) -> bool {
        self.root.holds(data.root())
    }

    /// Every condition of the filter by itself, in the order of the filter, so that a person sees which one decides.
    pub fn explain(&self, data: &Data<'_>) -> Vec<Tested> {
        let mut tested = Vec::new();
        self.root.explain(data.root(), &mut tested);
        tested
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Eq for Filter {}

impl Expression {
    fn holds(&self, data: &Node<'_>) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(data)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(data)),
            Self::Not(part) => !part.holds(data),
            Self::At(names, test, _) => test.holds(data.at(names)),
        }
    }

    fn explain(&self, data: &Node<'_>, tested: &mut Vec<Tested>) {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.explain(data, tested)),
            Self::Not(part) => part.explain(data, tested),
            Self::At(_, _, pointer) => tested.push(Tested { pointer: pointer.clone(), holds: self.holds(data) }),
        }
    }
}

impl Test {
    fn holds(&self, value: Option<&Node<'_>>) -> bool {
        let Some(value) = value else { return matches!(self, Self::Exists(false)) };
        let Self::Is(operators) = self else { return matches!(self, Self::Exists(true)) };
        let all = |value: &Node<'_>| {
            value.scalar().is_some_and(|scalar| operators.iter().all(|operator| operator.holds(scalar)))
        };
        match value.elements() {
            Some(elements) => elements.iter().take(MAX_ELEMENTS).any(all),
            None => all(value),
        }
    }
}

impl Operator {
    fn holds(&self, value: &Scalar) -> bool {
        match (self, value) {
            (Self::In(values), _) => values.contains(value),
            (Self::Prefix(prefix), Scalar::Text(text)) => text.starts_with(prefix.as_str()),
            (Self::Compare(orderings, limit), Scalar::Number(number)) => orderings.contains(&number.cmp(limit)),
            _ => false,
        }
    }
}
