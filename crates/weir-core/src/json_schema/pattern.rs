//! Regular expressions in linear time: the work is at most the length of the text times the size of the expression.

use regex_lite::{Regex, RegexBuilder};

/// The sizes of a compiled expression, in bytes, and what a character costs: about one step for each of its states.
const SIZES: [(usize, u64); 4] = [(1 << 10, 1), (1 << 12, 4), (1 << 14, 16), (1 << 16, 64)];
/// The longest expression.
const MAX_LENGTH: usize = 1_024;

#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// The steps for each character of a text.
    cost: u64,
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("must be at most {MAX_LENGTH} bytes long"));
        }
        let mut refusal = String::new();
        for (size, cost) in SIZES {
            match RegexBuilder::new(text).size_limit(size).nest_limit(50).build() {
                Ok(regex) => return Ok(Self { regex, cost }),
                Err(error) => refusal = error.to_string(),
            }
        }
        Err(format!("must be a regular expression without look-around, references and `\\p`: {refusal}"))
    }

    pub(super) fn cost(&self, text: &str) -> u64 {
        (text.len() as u64 + 1).saturating_mul(self.cost)
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    pub(super) fn as_str(&self) -> &str {
        self.regex.as_str()
    }
}
