//! Checks data by the rules of a schema, step by step from a budget.

use std::{cmp::Ordering, collections::HashSet};

use serde_json::{Map, Number, Value};

use super::{Fault, Keyword, MAX_DEPTH, MAX_FAULTS, Members, Rule, Side, Size, Sub, canonical};

/// Why a check was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Work,
    Depth,
}

impl Stop {
    fn detail(self) -> String {
        match self {
            Self::Work => {
                "needs more work to be checked than its size allows: make the schema of its type simpler".into()
            }
            Self::Depth => format!("leads deeper than {MAX_DEPTH} levels into the schema of its type"),
        }
    }
}

type Holds = Result<bool, Stop>;

pub(super) struct Check<'s> {
    rules: &'s [Rule],
    steps: u64,
    depth: u32,
    /// Above 0 faults are not told: alternatives are tried.
    tries: u32,
    at: String,
    faults: Vec<Fault>,
}

impl<'s> Check<'s> {
    pub(super) fn new(rules: &'s [Rule], steps: u64) -> Self {
        Self { rules, steps, depth: 0, tries: 0, at: String::new(), faults: Vec::new() }
    }

    pub(super) fn faults(mut self, data: &Value) -> Result<(), Vec<Fault>> {
        match self.holds(0, data) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.faults),
            Err(stop) => Err(vec![Fault { pointer: String::new(), detail: stop.detail() }]),
        }
    }

    /// Whether a subschema refers to itself at the same place of the data, so that the check would not end.
    pub(super) fn is_endless(&self) -> bool {
        // A depth-first search without recursion: 1 is on the path, 2 is done.
        let mut seen = vec![0_u8; self.rules.len()];
        for start in 0..self.rules.len() {
            let mut path = vec![(start, self.beside(start))];
            if seen[start] == 0 {
                seen[start] = 1;
            } else {
                continue;
            }
            while let Some((sub, next)) = path.last_mut() {
                match next.pop() {
                    Some(next) if seen[next] == 1 => return true,
                    Some(next) if seen[next] == 0 => {
                        seen[next] = 1;
                        path.push((next, self.beside(next)));
                    }
                    Some(_) => {}
                    None => {
                        seen[*sub] = 2;
                        path.pop();
                    }
                }
            }
        }
        false
    }

    /// The subschemas that look at the same value.
    fn beside(&self, sub: Sub) -> Vec<Sub> {
        let of = |keyword: &Keyword| match keyword {
            Keyword::All(subs) | Keyword::Any(subs) | Keyword::One(subs) => subs.clone(),
            Keyword::Not(sub) | Keyword::Ref(sub) => vec![*sub],
            Keyword::DependentSchemas(subs) => subs.iter().map(|(_, sub)| *sub).collect(),
            Keyword::If { condition, then, otherwise } => {
                [Some(*condition), *then, *otherwise].into_iter().flatten().collect()
            }
            _ => Vec::new(),
        };
        self.rules[sub].iter().flat_map(of).collect()
    }

    fn spend(&mut self, steps: u64) -> Result<(), Stop> {
        self.steps = self.steps.checked_sub(steps).ok_or(Stop::Work)?;
        Ok(())
    }

    fn holds(&mut self, sub: Sub, data: &Value) -> Holds {
        if self.depth == MAX_DEPTH {
            return Err(Stop::Depth);
        }
        self.depth += 1;
        let rules = self.rules;
        let mut holds = true;
        for keyword in &rules[sub] {
            self.spend(1)?;
            holds &= self.keyword(keyword, data)?;
            if !holds && (self.tries > 0 || self.faults.len() >= MAX_FAULTS) {
                break;
            }
        }
        self.depth -= 1;
        Ok(holds)
    }

    /// Whether a subschema holds. Its faults are not reported.
    fn tried(&mut self, sub: Sub, data: &Value) -> Holds {
        self.tries += 1;
        let holds = self.holds(sub, data);
        self.tries -= 1;
        holds
    }

    fn told(&mut self, holds: bool, detail: impl FnOnce() -> String) -> Holds {
        if !holds && self.tries == 0 && self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { pointer: self.at.clone(), detail: detail() });
        }
        Ok(holds)
    }

    /// A subschema at a part of the data.
    fn within(&mut self, name: &str, sub: Sub, data: &Value) -> Holds {
        let length = self.at.len();
        if self.tries == 0 {
            self.at.push('/');
            self.at.push_str(&name.replace('~', "~0").replace('/', "~1"));
        }
        let holds = self.holds(sub, data);
        self.at.truncate(length);
        holds
    }

    fn keyword(&mut self, keyword: &'s Keyword, data: &Value) -> Holds {
        match (keyword, data) {
            (Keyword::Never, _) => self.told(false, || "must not be there".to_owned()),
            (Keyword::Type(names), _) => {
                let is_one = names.iter().any(|name| is_of_type(data, name));
                self.told(is_one, || format!("must be {}, not {}", names.join(" or "), type_of(data)))
            }
            (Keyword::OneOf(values, shown), _) => {
                let text = self.canonical(data)?;
                self.told(values.contains(&text), || format!("must be {shown}"))
            }
            (Keyword::Number(side, limit), Value::Number(number)) => {
                let holds = side.holds(compare(number, limit));
                self.told(holds, || format!("must be {} {limit}", side.as_str()))
            }
            (Keyword::MultipleOf(unit), Value::Number(number)) => {
                self.told(is_multiple(number, unit), || format!("must be a multiple of {unit}"))
            }
            (Keyword::Least(size, limit), _) => {
                let Some(count) = self.count(*size, data)? else { return Ok(true) };
                self.told(count >= *limit, || format!("must have at least {limit} {}", size.as_str()))
            }
            (Keyword::Most(size, limit), _) => {
                let Some(count) = self.count(*size, data)? else { return Ok(true) };
                self.told(count <= *limit, || format!("must have at most {limit} {}", size.as_str()))
            }
            (Keyword::Pattern(pattern), Value::String(text)) => {
                self.spend(pattern.cost(text))?;
                self.told(pattern.matches(text), || format!("must match `{}`", pattern.as_str()))
            }
            (Keyword::Ref(sub), _) => self.holds(*sub, data),
            (Keyword::All(subs), _) => self.every(subs.iter().copied(), |this, sub| this.holds(sub, data)),
            (Keyword::Any(subs), _) => {
                for sub in subs {
                    if self.tried(*sub, data)? {
                        return Ok(true);
                    }
                }
                self.told(false, || format!("must fit one of the {} schemas of `anyOf`, and fits none", subs.len()))
            }
            (Keyword::One(subs), _) => {
                let mut fitting = 0;
                for sub in subs {
                    fitting += u32::from(self.tried(*sub, data)?);
                    if fitting > 1 {
                        break;
                    }
                }
                let found = if fitting == 0 { "none" } else { "several" };
                self.told(fitting == 1, || {
                    format!("must fit exactly one of the {} schemas of `oneOf`, and fits {found}", subs.len())
                })
            }
            (Keyword::Not(sub), _) => {
                let holds = !self.tried(*sub, data)?;
                self.told(holds, || "must not fit the schema of `not`".to_owned())
            }
            (Keyword::If { condition, then, otherwise }, _) => {
                let branch = if self.tried(*condition, data)? { then } else { otherwise };
                branch.map_or(Ok(true), |branch| self.holds(branch, data))
            }
            (Keyword::DependentSchemas(subs), Value::Object(members)) => {
                let due = subs.iter().filter(|(name, _)| members.contains_key(name));
                self.every(due, |this, (_, sub)| this.holds(*sub, data))
            }
            (_, Value::Array(elements)) => self.of_array(keyword, elements),
            (_, Value::Object(members)) => self.of_object(keyword, members),
            // A keyword says nothing about data of other types.
            _ => Ok(true),
        }
    }

    /// Checks every item, so that all faults are reported. While alternatives are tried, the first fault decides.
    fn every<T>(&mut self, items: impl Iterator<Item = T>, mut holds: impl FnMut(&mut Self, T) -> Holds) -> Holds {
        let mut all = true;
        for item in items {
            self.spend(1)?;
            all &= holds(self, item)?;
            if !all && (self.tries > 0 || self.faults.len() >= MAX_FAULTS) {
                break;
            }
        }
        Ok(all)
    }

    fn of_array(&mut self, keyword: &'s Keyword, elements: &[Value]) -> Holds {
        match keyword {
            Keyword::Prefix(subs) => self
                .every(subs.iter().zip(elements).enumerate(), |this, (index, (sub, element))| {
                    this.within(&index.to_string(), *sub, element)
                }),
            Keyword::Items(from, sub) => self
                .every(elements.iter().enumerate().skip(*from), |this, (index, element)| {
                    this.within(&index.to_string(), *sub, element)
                }),
            Keyword::Contains { sub, least, most } => {
                let mut fitting = 0_u64;
                for element in elements {
                    self.spend(1)?;
                    fitting += u64::from(self.tried(*sub, element)?);
                }
                let holds = fitting >= *least && most.is_none_or(|most| fitting <= most);
                self.told(holds, || format!("{fitting} of its elements fit the schema of `contains`"))
            }
            Keyword::Unique => {
                let mut seen = HashSet::new();
                for element in elements {
                    // A copy in a set.
                    self.spend(5)?;
                    let text = self.canonical(element)?;
                    if !seen.insert(text) {
                        return self.told(false, || "must not have an element twice".to_owned());
                    }
                }
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    fn of_object(&mut self, keyword: &'s Keyword, members: &Map<String, Value>) -> Holds {
        match keyword {
            Keyword::Required(names) => self.requires(names, members),
            Keyword::Dependent(of) => {
                let due = of.iter().filter(|(name, _)| members.contains_key(name));
                self.every(due, |this, (_, names)| this.requires(names, members))
            }
            Keyword::Names(sub) => self.every(members.keys(), |this, name| {
                this.spend(name.len() as u64 / 8)?;
                let holds = this.tried(*sub, &Value::from(name.as_str()))?;
                this.told(holds, || format!("must not have a member `{name}`: see `propertyNames`"))
            }),
            Keyword::Members(of) => self.every(members.iter(), |this, (name, value)| this.member(of, name, value)),
            _ => Ok(true),
        }
    }

    fn requires(&mut self, names: &[String], members: &Map<String, Value>) -> Holds {
        self.every(names.iter(), |this, name| {
            this.told(members.contains_key(name), || format!("must have a member `{name}`"))
        })
    }

    fn member(&mut self, of: &'s Members, name: &str, value: &Value) -> Holds {
        // Its place in the data is written down.
        self.spend(1)?;
        let mut holds = true;
        let mut is_named = false;
        if let Some(sub) = of.by_name.get(name) {
            is_named = true;
            holds &= self.within(name, *sub, value)?;
        }
        for (pattern, sub) in &of.by_pattern {
            self.spend(pattern.cost(name))?;
            if pattern.matches(name) {
                is_named = true;
                holds &= self.within(name, *sub, value)?;
            }
        }
        match of.others {
            Some(sub) if !is_named => Ok(self.within(name, sub, value)? && holds),
            _ => Ok(holds),
        }
    }

    fn count(&mut self, size: Size, data: &Value) -> Result<Option<u64>, Stop> {
        let count = match (size, data) {
            (Size::Characters, Value::String(text)) => {
                self.spend(text.len() as u64 / 16)?;
                text.chars().count()
            }
            (Size::Elements, Value::Array(elements)) => elements.len(),
            (Size::Members, Value::Object(members)) => members.len(),
            _ => return Ok(None),
        };
        Ok(Some(count as u64))
    }

    fn canonical(&mut self, data: &Value) -> Result<String, Stop> {
        self.spend_on(data)?;
        let mut text = String::new();
        canonical(data, &mut text);
        Ok(text)
    }

    /// Pays for one pass over data.
    fn spend_on(&mut self, data: &Value) -> Result<(), Stop> {
        self.spend(1)?;
        match data {
            Value::String(text) => self.spend(text.len() as u64 / 8),
            Value::Array(elements) => elements.iter().try_for_each(|element| self.spend_on(element)),
            Value::Object(members) => members.iter().try_for_each(|(name, value)| {
                self.spend(name.len() as u64 / 8)?;
                self.spend_on(value)
            }),
            _ => Ok(()),
        }
    }
}

impl Side {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::AtLeast => ordering.is_ge(),
            Self::AtMost => ordering.is_le(),
            Self::Above => ordering.is_gt(),
            Self::Below => ordering.is_lt(),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::AtLeast => "at least",
            Self::AtMost => "at most",
            Self::Above => "more than",
            Self::Below => "less than",
        }
    }
}

impl Size {
    fn as_str(self) -> &'static str {
        match self {
            Self::Characters => "characters",
            Self::Elements => "elements",
            Self::Members => "members",
        }
    }
}

/// Whole numbers are compared exactly, others as floats.
fn compare(a: &Number, b: &Number) -> Ordering {
    match (a.as_i128(), b.as_i128()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
    }
}

fn is_multiple(number: &Number, unit: &Number) -> bool {
    if let (Some(number), Some(unit)) = (number.as_i128(), unit.as_i128()) {
        return number % unit == 0;
    }
    let (number, unit) = (number.as_f64().unwrap_or_default(), unit.as_f64().unwrap_or(1.0));
    let times = number / unit;
    // 0.3 is no exact multiple of 0.1 in binary, and people mean that it is one.
    (times - times.round()).abs() <= 1e-9 * times.abs().max(1.0)
}

fn is_of_type(data: &Value, name: &str) -> bool {
    match data {
        Value::Number(number) => {
            let is_whole = || number.as_i128().is_some() || number.as_f64().is_some_and(|float| float.fract() == 0.0);
            name == "number" || name == "integer" && is_whole()
        }
        other => type_of(other) == name,
    }
}

fn type_of(data: &Value) -> &'static str {
    match data {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
