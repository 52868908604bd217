//! Compiles a schema from its JSON, and finds all its faults.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Number, Value};

use super::{Fault, Keyword, Members, Pattern, Rule, Side, Size, Sub, canonical};

/// The longest schema, as compact JSON.
pub const MAX_BYTES: usize = 64 * 1024;
/// The most patterns, which take the most memory.
const MAX_PATTERNS: usize = 64;
/// The faults that are told.
const MAX_FAULTS: usize = 20;

const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "integer", "string"];
/// The dialects that mean the same for the keywords that are known here.
const DIALECTS: [&str; 3] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
];
/// Keywords that say something to people and tools, and nothing about what is valid. `then` and `else` are read with
/// `if`, and the counts of `contains` with it.
const WITHOUT_EFFECT: [&str; 19] = [
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
    "contentEncoding",
    "contentMediaType",
    "then",
    "else",
    "minContains",
    "maxContains",
    "discriminator",
    "externalDocs",
];

pub(super) fn rules(json: &Value) -> Result<Vec<Rule>, Vec<Fault>> {
    let length = json.to_string().len();
    if length > MAX_BYTES {
        let detail = format!("must be at most {MAX_BYTES} bytes long, not {length}");
        return Err(vec![Fault { pointer: String::new(), detail }]);
    }
    let mut reader = Reader {
        root: json,
        places: Vec::new(),
        by_address: HashMap::new(),
        queue: Vec::new(),
        patterns: 0,
        faults: Vec::new(),
    };
    reader.sub(None, String::new(), json);
    let mut rules = Vec::new();
    // Schemas that refer to each other are read one after the other, without recursion.
    let mut next = 0;
    while let Some((sub, json)) = reader.queue.get(next).copied() {
        next += 1;
        debug_assert_eq!(sub, rules.len());
        let rule = reader.rule(sub, json);
        rules.push(rule);
    }
    if reader.patterns > MAX_PATTERNS {
        let detail = format!("must have at most {MAX_PATTERNS} patterns, not {}", reader.patterns);
        reader.faults.push(Fault { pointer: String::new(), detail });
    }
    reader.faults.truncate(MAX_FAULTS);
    if reader.faults.is_empty() { Ok(rules) } else { Err(reader.faults) }
}

struct Reader<'j> {
    root: &'j Value,
    /// Where each subschema stands: the one that it is in, and its name there.
    places: Vec<(Option<Sub>, String)>,
    /// A value that two references lead to is read once.
    by_address: HashMap<*const Value, Sub>,
    /// In the order of their numbers.
    queue: Vec<(Sub, &'j Value)>,
    patterns: usize,
    faults: Vec<Fault>,
}

impl<'j> Reader<'j> {
    fn sub(&mut self, within: Option<Sub>, name: String, json: &'j Value) -> Sub {
        let next = self.queue.len();
        let sub = *self.by_address.entry(std::ptr::from_ref(json)).or_insert(next);
        if sub == next {
            self.places.push((within, name));
            self.queue.push((sub, json));
        }
        sub
    }

    fn pointer(&self, sub: Sub, name: &str) -> String {
        let mut names = vec![name];
        let mut at = Some(sub);
        while let Some(sub) = at {
            let (within, name) = &self.places[sub];
            names.push(name);
            at = *within;
        }
        names.into_iter().rev().collect()
    }

    fn fault<T>(&mut self, sub: Sub, name: &str, detail: impl Into<String>) -> Option<T> {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { pointer: self.pointer(sub, name), detail: detail.into() });
        }
        None
    }

    fn rule(&mut self, sub: Sub, json: &'j Value) -> Rule {
        match json {
            Value::Bool(true) => Vec::new(),
            Value::Bool(false) => vec![Keyword::Never],
            Value::Object(members) => {
                let mut rule: Rule = Vec::new();
                for (name, value) in members {
                    rule.extend(self.keyword(sub, members, name, value));
                }
                rule.extend(self.members(sub, members));
                rule
            }
            _ => {
                let _: Option<Rule> = self.fault(sub, "", "must be an object, true or false");
                Vec::new()
            }
        }
    }

    fn keyword(&mut self, sub: Sub, all: &'j Map<String, Value>, name: &str, value: &'j Value) -> Option<Keyword> {
        let at = format!("/{}", escaped(name));
        match name {
            "$schema" => {
                let is_known = value.as_str().is_some_and(|text| DIALECTS.contains(&text.trim_end_matches('#')));
                if is_known { None } else { self.fault(sub, &at, format!("must be `{}`", DIALECTS[0])) }
            }
            "$defs" | "definitions" => {
                for (name, value) in self.object(sub, &at, value)? {
                    self.sub(Some(sub), format!("{at}/{}", escaped(name)), value);
                }
                None
            }
            "$ref" => self.reference(sub, &at, value),
            "type" => self.types(sub, &at, value),
            "const" => Some(one_of(std::slice::from_ref(value))),
            "enum" => match value.as_array().filter(|values| !values.is_empty()) {
                Some(values) => Some(one_of(values)),
                None => self.fault(sub, &at, "must be an array of at least one value"),
            },
            "minimum" => self.number(sub, &at, value).map(|limit| Keyword::Number(Side::AtLeast, limit)),
            "maximum" => self.number(sub, &at, value).map(|limit| Keyword::Number(Side::AtMost, limit)),
            "exclusiveMinimum" => self.number(sub, &at, value).map(|limit| Keyword::Number(Side::Above, limit)),
            "exclusiveMaximum" => self.number(sub, &at, value).map(|limit| Keyword::Number(Side::Below, limit)),
            "multipleOf" => match self.number(sub, &at, value)? {
                unit if unit.as_f64().is_some_and(|unit| unit > 0.0) => Some(Keyword::MultipleOf(unit)),
                _ => self.fault(sub, &at, "must be more than 0"),
            },
            "minLength" => self.count(sub, &at, value).map(|limit| Keyword::Least(Size::Characters, limit)),
            "maxLength" => self.count(sub, &at, value).map(|limit| Keyword::Most(Size::Characters, limit)),
            "minItems" => self.count(sub, &at, value).map(|limit| Keyword::Least(Size::Elements, limit)),
            "maxItems" => self.count(sub, &at, value).map(|limit| Keyword::Most(Size::Elements, limit)),
            "minProperties" => self.count(sub, &at, value).map(|limit| Keyword::Least(Size::Members, limit)),
            "maxProperties" => self.count(sub, &at, value).map(|limit| Keyword::Most(Size::Members, limit)),
            "pattern" => match value.as_str() {
                Some(text) => self.pattern(sub, &at, text).map(Keyword::Pattern),
                None => self.fault(sub, &at, "must be a text"),
            },
            "uniqueItems" => match value {
                Value::Bool(is_unique) => is_unique.then_some(Keyword::Unique),
                _ => self.fault(sub, &at, "must be true or false"),
            },
            "prefixItems" => self.subs(sub, &at, value).map(Keyword::Prefix),
            "items" if value.is_array() => self.fault(sub, &at, "must be one schema: write `prefixItems` for a list"),
            "items" => {
                let from = all.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                Some(Keyword::Items(from, self.sub(Some(sub), at, value)))
            }
            "contains" => {
                let mut bound = |name: &str| match all.get(name) {
                    Some(value) => self.count(sub, &format!("/{name}"), value),
                    None => None,
                };
                let (least, most) = (bound("minContains").unwrap_or(1), bound("maxContains"));
                Some(Keyword::Contains { sub: self.sub(Some(sub), at, value), least, most })
            }
            "required" => self.names(sub, &at, value).map(Keyword::Required),
            "dependentRequired" | "dependentSchemas" => self.dependent(sub, &at, name, value),
            "propertyNames" => Some(Keyword::Names(self.sub(Some(sub), at, value))),
            "allOf" => self.subs(sub, &at, value).map(Keyword::All),
            "anyOf" => self.subs(sub, &at, value).map(Keyword::Any),
            "oneOf" => self.subs(sub, &at, value).map(Keyword::One),
            "not" => Some(Keyword::Not(self.sub(Some(sub), at, value))),
            "if" => {
                let mut branch = |name: &str| Some(self.sub(Some(sub), format!("/{name}"), all.get(name)?));
                let (then, otherwise) = (branch("then"), branch("else"));
                Some(Keyword::If { condition: self.sub(Some(sub), at, value), then, otherwise })
            }
            // Read together, by `members`.
            "properties" | "patternProperties" | "additionalProperties" => None,
            name if WITHOUT_EFFECT.contains(&name) || name.starts_with("x-") => None,
            _ => self.fault(sub, &at, "is not a keyword that is known here: see the guide to event types"),
        }
    }

    /// `dependentRequired` or `dependentSchemas`.
    fn dependent(&mut self, sub: Sub, at: &str, keyword: &str, value: &'j Value) -> Option<Keyword> {
        let (mut required, mut schemas) = (Vec::new(), Vec::new());
        for (name, value) in self.object(sub, at, value)? {
            let at = format!("{at}/{}", escaped(name));
            match keyword {
                "dependentRequired" => required.push((name.clone(), self.names(sub, &at, value)?)),
                _ => schemas.push((name.clone(), self.sub(Some(sub), at, value))),
            }
        }
        Some(if required.is_empty() { Keyword::DependentSchemas(schemas) } else { Keyword::Dependent(required) })
    }

    /// What the values of an object must be, if anything is said of them.
    fn members(&mut self, sub: Sub, all: &'j Map<String, Value>) -> Option<Keyword> {
        let mut members = Members::default();
        if let Some(value) = all.get("properties") {
            for (name, value) in self.object(sub, "/properties", value)? {
                let at = format!("/properties/{}", escaped(name));
                members.by_name.insert(name.clone(), self.sub(Some(sub), at, value));
            }
        }
        if let Some(value) = all.get("patternProperties") {
            for (text, value) in self.object(sub, "/patternProperties", value)? {
                let at = format!("/patternProperties/{}", escaped(text));
                let pattern = self.pattern(sub, &at, text)?;
                members.by_pattern.push((pattern, self.sub(Some(sub), at, value)));
            }
        }
        members.others =
            all.get("additionalProperties").map(|value| self.sub(Some(sub), "/additionalProperties".into(), value));
        let is_empty = members.by_name.is_empty() && members.by_pattern.is_empty() && members.others.is_none();
        (!is_empty).then_some(Keyword::Members(members))
    }

    fn reference(&mut self, sub: Sub, at: &str, value: &Value) -> Option<Keyword> {
        let Some(pointer) = value.as_str().and_then(|text| text.strip_prefix('#')) else {
            return self.fault(
                sub,
                at,
                "must be a place in this schema, such as `#/$defs/address`: nothing is fetched",
            );
        };
        match self.root.pointer(pointer) {
            Some(target) => Some(Keyword::Ref(self.sub(None, pointer.to_owned(), target))),
            None => self.fault(sub, at, format!("there is nothing at `#{pointer}`")),
        }
    }

    fn types(&mut self, sub: Sub, at: &str, value: &Value) -> Option<Keyword> {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let known = |value: &Value| TYPES.into_iter().find(|known| value.as_str() == Some(known));
        match values.iter().map(known).collect::<Option<Vec<_>>>() {
            Some(names) if !names.is_empty() => Some(Keyword::Type(names)),
            _ => self.fault(sub, at, format!("must be one or several of {}", TYPES.join(", "))),
        }
    }

    fn object(&mut self, sub: Sub, at: &str, value: &'j Value) -> Option<&'j Map<String, Value>> {
        match value {
            Value::Object(members) => Some(members),
            _ => self.fault(sub, at, "must be an object"),
        }
    }

    fn subs(&mut self, sub: Sub, at: &str, value: &'j Value) -> Option<Vec<Sub>> {
        let Some(values) = value.as_array().filter(|values| !values.is_empty()) else {
            return self.fault(sub, at, "must be an array of at least one schema");
        };
        let values = values.iter().enumerate();
        Some(values.map(|(index, value)| self.sub(Some(sub), format!("{at}/{index}"), value)).collect())
    }

    fn names(&mut self, sub: Sub, at: &str, value: &Value) -> Option<Vec<String>> {
        let names = value.as_array().map(|names| names.iter().map(|name| name.as_str().map(str::to_owned)));
        match names.and_then(Iterator::collect) {
            Some(names) => Some(names),
            None => self.fault(sub, at, "must be an array of names"),
        }
    }

    fn number(&mut self, sub: Sub, at: &str, value: &Value) -> Option<Number> {
        match value {
            Value::Number(number) => Some(number.clone()),
            _ => self.fault(sub, at, "must be a number"),
        }
    }

    fn count(&mut self, sub: Sub, at: &str, value: &Value) -> Option<u64> {
        match value.as_u64() {
            Some(count) => Some(count),
            None => self.fault(sub, at, "must be a whole number from 0"),
        }
    }

    fn pattern(&mut self, sub: Sub, at: &str, text: &str) -> Option<Pattern> {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return None;
        }
        match Pattern::parse(text) {
            Ok(pattern) => Some(pattern),
            Err(detail) => self.fault(sub, at, detail),
        }
    }
}

fn one_of(values: &[Value]) -> Keyword {
    let forms: HashSet<String> = values
        .iter()
        .map(|value| {
            let mut text = String::new();
            canonical(value, &mut text);
            text
        })
        .collect();
    let short = |value: &Value| value.to_string().chars().take(60).collect::<String>();
    let mut shown: Vec<String> = values.iter().take(5).map(|value| format!("`{}`", short(value))).collect();
    if values.len() > shown.len() {
        shown.push(format!("{} others", values.len() - shown.len()));
    }
    Keyword::OneOf(forms, shown.join(" or "))
}

/// A name in a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
