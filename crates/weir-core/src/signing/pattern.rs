//! Texts with placeholders, such as `v0:{timestamp}:{body}`: what is signed, and how the signature is written.

use std::fmt;

/// The longest pattern, in bytes: the longest known one takes 40.
pub const MAX_PATTERN: usize = 200;

/// What a request puts in the place of a placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    /// `webhook-id`.
    Id,
    /// The time of the attempt.
    Timestamp,
    /// The URL of the destination.
    Url,
    Body,
    /// The encoded signature.
    Signature,
}

impl Placeholder {
    /// What may be signed.
    pub(super) const SIGNED: [Self; 4] = [Self::Id, Self::Timestamp, Self::Url, Self::Body];
    /// What may stand in the header of the signature.
    pub(super) const SHOWN: [Self; 3] = [Self::Id, Self::Timestamp, Self::Signature];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Id => "{id}",
            Self::Timestamp => "{timestamp}",
            Self::Url => "{url}",
            Self::Body => "{body}",
            Self::Signature => "{signature}",
        }
    }
}

/// A text with placeholders.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Piece>);

#[derive(Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Placeholder(Placeholder),
}

impl Pattern {
    /// Parses a pattern with these placeholders; the error says what the pattern must be.
    pub(super) fn parse(text: &str, allowed: &[Placeholder]) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!("must be at most {MAX_PATTERN} bytes long"));
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(['{', '}']) {
            let (before, place) = rest.split_at(start);
            let known = allowed.iter().find_map(|known| Some((*known, place.strip_prefix(known.as_str())?)));
            let Some((known, after)) = known else {
                let names: Vec<_> = allowed.iter().map(|known| format!("`{}`", known.as_str())).collect();
                return Err(format!("must have no braces except those of the placeholders {}", names.join(", ")));
            };
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Placeholder(known));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    pub(super) const fn empty() -> Self {
        Self(Vec::new())
    }

    /// How often a placeholder stands in the pattern.
    pub(super) fn count(&self, place: Placeholder) -> usize {
        self.0.iter().filter(|piece| matches!(piece, Piece::Placeholder(own) if *own == place)).count()
    }

    pub(super) fn has(&self, place: Placeholder) -> bool {
        self.count(place) > 0
    }

    /// Whether two placeholders stand side by side, so that nobody can tell where one value ends.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.0.windows(2).any(|pair| matches!(pair, [Piece::Placeholder(_), Piece::Placeholder(_)]))
    }

    /// Feeds the text, part after part, with the values of the placeholders.
    pub(super) fn feed<'v>(&'v self, value: impl Fn(Placeholder) -> &'v [u8], mut to: impl FnMut(&'v [u8])) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => to(text.as_bytes()),
                Piece::Placeholder(place) => to(value(*place)),
            }
        }
    }

    /// Appends the text with the values of the placeholders.
    pub(super) fn write<'v>(&self, value: impl Fn(Placeholder) -> &'v str, to: &mut String) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => to.push_str(text),
                Piece::Placeholder(place) => to.push_str(value(*place)),
            }
        }
    }

    /// The values of the placeholders in a text that this pattern describes.
    pub(super) fn read<'t>(&self, text: &'t str) -> Option<Vec<(Placeholder, &'t str)>> {
        let mut values = Vec::new();
        let mut rest = text;
        let mut open = None;
        for piece in &self.0 {
            match piece {
                Piece::Placeholder(place) => open = Some(*place),
                Piece::Text(literal) => match open.take() {
                    // A value ends where the text after it begins.
                    Some(place) => {
                        let (value, after) = rest.split_once(literal.as_str())?;
                        values.push((place, value));
                        rest = after;
                    }
                    None => rest = rest.strip_prefix(literal.as_str())?,
                },
            }
        }
        match open {
            Some(place) => values.push((place, rest)),
            None if rest.is_empty() => {}
            None => return None,
        }
        Some(values)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(text),
            Piece::Placeholder(place) => f.write_str(place.as_str()),
        })
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Pattern, String> {
        let all = [&Placeholder::SIGNED[..], &[Placeholder::Signature]].concat();
        Pattern::parse(text, &all)
    }

    #[test]
    fn a_pattern_is_written_and_read_back() {
        let pattern = parse("t={timestamp};h1={signature}!").unwrap();
        assert_eq!(pattern.to_string(), "t={timestamp};h1={signature}!");
        let value = |place| if place == Placeholder::Signature { "00ff" } else { "17" };
        let mut text = String::new();
        pattern.write(value, &mut text);
        assert_eq!(text, "t=17;h1=00ff!");
        let read = pattern.read(&text).unwrap();
        assert_eq!(read, [(Placeholder::Timestamp, "17"), (Placeholder::Signature, "00ff")]);
        for other in ["", "t=17", "t=17;h1=00ff", "x=17;h1=00ff!", "t=17;h1=00ff!?"] {
            assert_eq!(pattern.read(other), None, "{other}");
        }
    }

    #[test]
    fn unknown_placeholders_and_single_braces_are_refused() {
        for bad in ["{", "}", "{}", "{bod}", "{{body}}", "{body", "a}b", "{Body}"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse(&"x".repeat(MAX_PATTERN + 1)).is_err());
        assert!(Pattern::parse("{signature}", &Placeholder::SIGNED).is_err());
        assert!(parse("{id}{body}").unwrap().is_ambiguous() && !parse("{id}.{body}").unwrap().is_ambiguous());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(pattern in "(\\{id\\}|\\{signature\\}|[a-z=,é])*", text in "[a-z=,é]*") {
            if let Ok(pattern) = parse(&pattern) {
                prop_assert_eq!(pattern.to_string().len() <= MAX_PATTERN, true);
                let _ = pattern.read(&text);
            }
        }
    }
}
