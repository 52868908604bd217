//! Which event types a destination takes: an exact type, a prefix (`video.*`), or everything (`*`).

use std::{fmt, str::FromStr};

use crate::event::valid_type;

/// The prefix of the types of Weir's own operational events. Only a pattern with this prefix matches them.
const OPERATIONAL_PREFIX: &str = "weir.";

/// A pattern over event types.
///
/// ```
/// use weir_core::pattern::EventPattern;
///
/// let videos: EventPattern = "video.*".parse().expect("a prefix");
/// assert!(videos.matches("video.clip.cut") && !videos.matches("video"));
/// assert!(!EventPattern::Any.matches("weir.backlog.high"), "alerts need a pattern of their own");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EventPattern {
    /// `*`: every type except the operational ones.
    Any,
    /// `video.created`
    Exact(String),
    /// `video.*`, stored with its dot: matches `video.created` and `video.clip.cut`, but not `video`.
    Prefix(String),
}

impl EventPattern {
    /// Every pattern that matches an event type: as many as the type has parts, and one more.
    pub fn that_match(event_type: &str) -> impl Iterator<Item = Self> {
        let prefixes = event_type.match_indices('.').map(|(at, _)| Self::Prefix(event_type[..=at].to_owned()));
        [Self::Any, Self::Exact(event_type.to_owned())]
            .into_iter()
            .chain(prefixes)
            .filter(move |pattern| pattern.matches(event_type))
    }

    /// Whether the pattern names Weir's own operational events.
    pub fn is_operational(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Exact(name) | Self::Prefix(name) => name.starts_with(OPERATIONAL_PREFIX),
        }
    }

    pub fn matches(&self, event_type: &str) -> bool {
        match self {
            Self::Any => !event_type.starts_with(OPERATIONAL_PREFIX),
            Self::Exact(exact) => exact == event_type,
            Self::Prefix(prefix) => event_type.len() > prefix.len() && event_type.starts_with(prefix.as_str()),
        }
    }
}

/// The text is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an event type (`video.created`), a prefix (`video.*`) or `*`")]
pub struct InvalidPattern;

impl FromStr for EventPattern {
    type Err = InvalidPattern;
    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        match text.strip_suffix(".*") {
            _ if text == "*" => Ok(Self::Any),
            Some(prefix) if valid_type(prefix) => Ok(Self::Prefix(format!("{prefix}."))),
            None if valid_type(text) => Ok(Self::Exact(text.to_owned())),
            _ => Err(InvalidPattern),
        }
    }
}

impl fmt::Display for EventPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(exact) => f.write_str(exact),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_one_type_a_prefix_or_every_type() {
        let table = [
            ("*", "video.created", true),
            ("*", "weir.backlog.high", false),
            ("weir.*", "weir.backlog.high", true),
            ("video.created", "video.created", true),
            ("video.created", "video.created.twice", false),
            ("video.*", "video.created", true),
            ("video.*", "video.clip.cut", true),
            ("video.*", "video", false),
            ("video.*", "videos.created", false),
        ];
        for (pattern, event_type, expected) in table {
            let parsed: EventPattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(event_type), expected, "{pattern} on {event_type}");
            assert_eq!(parsed.to_string(), pattern);
        }
    }

    #[test]
    fn the_patterns_that_match_a_type_are_known() {
        let of =
            |event_type| EventPattern::that_match(event_type).map(|pattern| pattern.to_string()).collect::<Vec<_>>();
        assert_eq!(of("video"), ["*", "video"]);
        assert_eq!(of("video.clip.cut"), ["*", "video.clip.cut", "video.*", "video.clip.*"]);
        assert_eq!(of("weir.backlog.high"), ["weir.backlog.high", "weir.*", "weir.backlog.*"]);
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for text in ["", "**", ".*", "video.*.x", "vid*", "a b"] {
            assert_eq!(text.parse::<EventPattern>(), Err(InvalidPattern), "{text}");
        }
    }
}
