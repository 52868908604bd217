//! The `data` of an event, read only where a filter looks.
//!
//! A tree of 1 MiB of JSON takes many times its memory. Here a value is split into its parts when a pointer first leads
//! into it, and the text of the other values is only skipped. So an event costs at most one pass over its text for each
//! level that the pointers reach, which [`super::read`] bounds. Nothing here recurses, so nesting has no limit.

use std::{borrow::Cow, cell::OnceCell, collections::HashMap};

use super::{
    Scalar,
    decimal::Decimal,
    read::{MAX_NAMES, names},
};

/// The `data` of one event. The parts that were read are kept for the next filter.
#[derive(Debug)]
pub struct Data<'d>(Node<'d>);

impl<'d> Data<'d> {
    /// `json` must be one JSON value, as the API has checked it. For any other text the result of a filter has no meaning.
    pub fn new(json: &'d str) -> Self {
        Self(Node::new(json))
    }

    pub(super) fn root(&self) -> &Node<'d> {
        &self.0
    }

    /// The text, number or boolean at a JSON pointer, as text. `None` if there is anything else or nothing, or if the text is
    /// no pointer or has more than [`MAX_NAMES`].
    pub fn scalar_at(&self, pointer: &str) -> Option<Cow<'d, str>> {
        let names = names(pointer).filter(|names| names.len() <= MAX_NAMES)?;
        let json = self.root().at(&names)?.json;
        match json.as_bytes().first()? {
            b'"' => unquoted(json),
            b't' | b'f' => Some(json.into()),
            // However it is written: 1.50 is 1.5.
            b'-' | b'0'..=b'9' => Some(serde_json::from_str::<serde_json::Number>(json).ok()?.to_string().into()),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Node<'d> {
    json: &'d str,
    parts: OnceCell<Parts<'d>>,
}

#[derive(Debug)]
enum Parts<'d> {
    Object(HashMap<Cow<'d, str>, Node<'d>>),
    Array(Vec<Node<'d>>),
    Scalar(Scalar),
    /// A text that is not Unicode (half of a surrogate pair), or a number with an exponent out of range.
    Unreadable,
}

impl<'d> Node<'d> {
    fn new(json: &'d str) -> Self {
        Self { json: json.trim_matches([' ', '\t', '\n', '\r']), parts: OnceCell::new() }
    }

    /// The value at a pointer, which is given as its names.
    pub(super) fn at(&self, names: &[String]) -> Option<&Self> {
        names.iter().try_fold(self, |node, name| match node.parts() {
            Parts::Object(members) => members.get(name.as_str()),
            // RFC 6901: no leading zeros, no sign.
            Parts::Array(_) if name.len() > 1 && name.starts_with('0') => None,
            Parts::Array(elements) if name.bytes().all(|byte| byte.is_ascii_digit()) => {
                elements.get(name.parse::<usize>().ok()?)
            }
            _ => None,
        })
    }

    pub(super) fn elements(&self) -> Option<&[Self]> {
        // An object is not split for this.
        match self.json.starts_with('[').then(|| self.parts())? {
            Parts::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The value, unless it is an object, an array, or unreadable.
    pub(super) fn scalar(&self) -> Option<&Scalar> {
        match (!self.json.starts_with(['{', '['])).then(|| self.parts())? {
            Parts::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    fn parts(&self) -> &Parts<'d> {
        self.parts.get_or_init(|| match self.json.as_bytes().first() {
            Some(b'{') => Parts::Object(members(self.json)),
            Some(b'[') => Parts::Array(parts(self.json).map(Self::new).collect()),
            _ => scalar(self.json).map_or(Parts::Unreadable, Parts::Scalar),
        })
    }
}

/// The members of an object. Of a name that stands twice the last one counts, as for nearly every reader of JSON.
fn members(json: &str) -> HashMap<Cow<'_, str>, Node<'_>> {
    fn member(text: &str) -> Option<(Cow<'_, str>, Node<'_>)> {
        let (name, value) = text.trim_start().split_at_checked(end_of_text(text.trim_start().as_bytes()))?;
        Some((unquoted(name)?, Node::new(value.trim_start().strip_prefix(':')?)))
    }
    parts(json).filter_map(member).collect()
}

fn scalar(json: &str) -> Option<Scalar> {
    Some(match json {
        "null" => Scalar::Null,
        "true" => Scalar::Bool(true),
        "false" => Scalar::Bool(false),
        text if text.starts_with('"') => Scalar::Text(unquoted(text)?.into_owned()),
        number => Scalar::Number(Decimal::parse(number)?),
    })
}

/// The text of a JSON string.
fn unquoted(json: &str) -> Option<Cow<'_, str>> {
    if json.contains('\\') {
        return serde_json::from_str(json).ok().map(Cow::Owned);
    }
    json.strip_prefix('"')?.strip_suffix('"').map(Cow::Borrowed)
}

/// The texts between the commas of an array or an object.
fn parts(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json.get(1..json.len().saturating_sub(1)).unwrap_or_default();
    std::iter::from_fn(move || {
        if rest.trim_start().is_empty() {
            return None;
        }
        let end = end_of_part(rest.as_bytes());
        let part = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        Some(part)
    })
}

/// Where the first part ends: at the next comma that is not inside a value. All that is looked for is ASCII, so the
/// end is between two characters.
fn end_of_part(json: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_u32);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at += end_of_text(&json[at..]);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    json.len()
}

/// The length of the JSON string with which `json` begins.
fn end_of_text(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}
