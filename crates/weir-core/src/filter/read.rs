//! Reads a filter from its JSON, and finds all its faults.

use std::{cmp::Ordering, collections::BTreeSet};

use serde_json::{Map, Value};

use super::{Expression, Operator, Scalar, Test, decimal::Decimal};

/// The longest filter, as compact JSON.
pub const MAX_BYTES: usize = 4 * 1024;
/// The most conditions, each operator counted, and `and`, `or` and `not`.
const MAX_NODES: usize = 64;
/// How deep `and`, `or` and `not` may be nested.
const MAX_DEPTH: usize = 8;
/// The longest text, and the longest pointer.
const MAX_TEXT: usize = 1024;
/// The most values of `in`.
const MAX_VALUES: usize = 100;
/// The most names of a pointer: each may cost one pass over the data of an event.
pub const MAX_NAMES: usize = 16;

const OPERATORS: &str = "`eq`, `in`, `exists`, `prefix`, `gt`, `gte`, `lt` or `lte`";

/// What is wrong with a filter, and where: a JSON pointer into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub pointer: String,
    pub detail: String,
}

pub(super) fn filter(json: &Value) -> Result<Expression, Vec<Fault>> {
    let mut reader = Reader::default();
    let length = json.to_string().len();
    if length > MAX_BYTES {
        let detail = format!("must be at most {MAX_BYTES} bytes long, not {length}: use several destinations");
        return Err(vec![Fault { pointer: String::new(), detail }]);
    }
    let read = reader.expression(json, "", 0);
    if reader.nodes > MAX_NODES {
        let detail = format!("must have at most {MAX_NODES} conditions, not {}", reader.nodes);
        reader.faults.push(Fault { pointer: String::new(), detail });
    }
    match read {
        Some(read) if reader.faults.is_empty() => Ok(read),
        _ => Err(reader.faults),
    }
}

#[derive(Default)]
struct Reader {
    faults: Vec<Fault>,
    nodes: usize,
}

impl Reader {
    fn fault<T>(&mut self, pointer: &str, detail: impl Into<String>) -> Option<T> {
        self.faults.push(Fault { pointer: pointer.to_owned(), detail: detail.into() });
        None
    }

    /// An object whose members must all hold.
    fn expression(&mut self, json: &Value, at: &str, depth: usize) -> Option<Expression> {
        if depth > MAX_DEPTH {
            return self.fault(at, format!("must not be nested deeper than {MAX_DEPTH} times"));
        }
        let Some(members) = members(json) else {
            return self
                .fault(at, "must be an object with at least one condition, such as `{\"/amount\": {\"gte\": 100}}`");
        };
        let mut parts = Vec::with_capacity(members.len());
        for (name, value) in members {
            let at = format!("{at}/{}", escaped(name));
            parts.extend(match name.as_str() {
                "and" => self.list(value, &at, depth).map(Expression::All),
                "or" => self.list(value, &at, depth).map(Expression::Any),
                "not" => {
                    self.nodes += 1;
                    self.expression(value, &at, depth + 1).map(|part| Expression::Not(Box::new(part)))
                }
                pointer => self.condition(pointer, value, at),
            });
        }
        Some(Expression::All(parts))
    }

    fn list(&mut self, json: &Value, at: &str, depth: usize) -> Option<Vec<Expression>> {
        self.nodes += 1;
        let Some(items) = json.as_array().filter(|items| !items.is_empty()) else {
            return self.fault(at, "must be an array of at least one filter");
        };
        let items = items.iter().enumerate();
        Some(items.filter_map(|(index, item)| self.expression(item, &format!("{at}/{index}"), depth + 1)).collect())
    }

    fn condition(&mut self, pointer: &str, json: &Value, at: String) -> Option<Expression> {
        let Some(names) = names(pointer) else {
            return self.fault(
                &at,
                "must be `and`, `or`, `not` or a JSON pointer into `data`, such as `/customer/id` (`~1` is a `/` in a \
                 name, `~0` a `~`)",
            );
        };
        if pointer.len() > MAX_TEXT || names.len() > MAX_NAMES {
            let detail = format!("must be a pointer of at most {MAX_NAMES} names and {MAX_TEXT} bytes");
            return self.fault(&at, detail);
        }
        let test = match json {
            Value::Object(_) => self.operators(json, &at)?,
            value => {
                self.nodes += 1;
                Test::Is(vec![Operator::In([self.scalar(value, &at)?].into())])
            }
        };
        Some(Expression::At(names, test, at))
    }

    fn operators(&mut self, json: &Value, at: &str) -> Option<Test> {
        let Some(members) = members(json) else {
            return self.fault(at, format!("must be a value, or an object with {OPERATORS}"));
        };
        self.nodes += members.len();
        if let Some(exists) = members.get("exists") {
            return match exists {
                Value::Bool(exists) if members.len() == 1 => Some(Test::Exists(*exists)),
                Value::Bool(_) => self.fault(at, "must not have other operators beside `exists`: leave it out"),
                _ => self.fault(&format!("{at}/exists"), "must be true or false"),
            };
        }
        let read =
            members.iter().filter_map(|(name, value)| self.operator(name, value, &format!("{at}/{}", escaped(name))));
        Some(Test::Is(read.collect()))
    }

    fn operator(&mut self, name: &str, json: &Value, at: &str) -> Option<Operator> {
        match name {
            "eq" => Some(Operator::In([self.scalar(json, at)?].into())),
            "in" => self.values(json, at).map(Operator::In),
            "prefix" => match self.scalar(json, at)? {
                Scalar::Text(prefix) => Some(Operator::Prefix(prefix)),
                _ => self.fault(at, "must be a text"),
            },
            "gt" => self.compare(&[Ordering::Greater], json, at),
            "gte" => self.compare(&[Ordering::Greater, Ordering::Equal], json, at),
            "lt" => self.compare(&[Ordering::Less], json, at),
            "lte" => self.compare(&[Ordering::Less, Ordering::Equal], json, at),
            "ne" => self.fault(at, "is not an operator: write `{\"not\": {…}}` around the condition"),
            _ => self.fault(at, format!("is not an operator: use {OPERATORS}")),
        }
    }

    fn compare(&mut self, orderings: &'static [Ordering], json: &Value, at: &str) -> Option<Operator> {
        match self.scalar(json, at)? {
            Scalar::Number(limit) => Some(Operator::Compare(orderings, limit)),
            _ => self.fault(at, "must be a number"),
        }
    }

    fn values(&mut self, json: &Value, at: &str) -> Option<BTreeSet<Scalar>> {
        let Some(values) = json.as_array().filter(|values| (1..=MAX_VALUES).contains(&values.len())) else {
            return self.fault(at, format!("must be an array of 1 to {MAX_VALUES} values"));
        };
        let values = values.iter().enumerate();
        Some(values.filter_map(|(index, value)| self.scalar(value, &format!("{at}/{index}"))).collect())
    }

    fn scalar(&mut self, json: &Value, at: &str) -> Option<Scalar> {
        match json {
            Value::Null => Some(Scalar::Null),
            Value::Bool(value) => Some(Scalar::Bool(*value)),
            Value::String(text) if text.len() > MAX_TEXT => {
                self.fault(at, format!("must be at most {MAX_TEXT} bytes long"))
            }
            Value::String(text) => Some(Scalar::Text(text.clone())),
            // The API reads such a number without all its digits.
            Value::Number(number)
                if number.is_f64() && number.as_f64().is_none_or(|float| float.abs() >= 2_f64.powi(53)) =>
            {
                self.fault(at, "must be an integer of 64 bits, or a number below 2^53")
            }
            Value::Number(number) => Decimal::parse(&number.to_string()).map(Scalar::Number),
            Value::Array(_) => self.fault(at, "must be a single value: use `in` for several"),
            Value::Object(_) => self.fault(at, "must be a single value: use a pointer into the object"),
        }
    }
}

fn members(json: &Value) -> Option<&Map<String, Value>> {
    json.as_object().filter(|members| !members.is_empty())
}

/// The names of a JSON pointer. `None` if it is not one.
pub(super) fn names(pointer: &str) -> Option<Vec<String>> {
    if pointer.is_empty() {
        return Some(Vec::new());
    }
    let names = pointer.strip_prefix('/')?.split('/');
    names.map(|name| is_escaped(name).then(|| name.replace("~1", "/").replace("~0", "~"))).collect()
}

/// Whether every `~` is followed by `0` or `1`.
fn is_escaped(name: &str) -> bool {
    name.split('~').skip(1).all(|after| after.starts_with(['0', '1']))
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
