//! Hints: what the headers of an answer say about when to send again.
//!
//! Two kinds of headers are read, in every form that receivers are known to send (`hints/cases.rs` is the table of
//! them, with sources):
//! - `Retry-After` and its relatives: how long to wait after a refusal;
//! - quotas (`RateLimit`, `X-RateLimit-Remaining` and others): how much of its quota Weir has left, and when it gets
//!   more. Only a quota that is used up is a hint.
//!
//! These headers are only advice: one that cannot be parsed is ignored, and noted so that the owner of the destination
//! learns of it.

mod quota;
mod times;

use std::time::Duration;

use self::times::{ServerClock, Unit};
use crate::time::Timestamp;

/// The most bytes of a header that are shown. Every known form is shorter.
pub const MAX_HEADER_TEXT: usize = 200;
/// The most header lines that are read as hints: a receiver with four quotas of four lines each, twice.
const MAX_LINES: usize = 32;

/// The hints of one answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// `Retry-After` and its relatives, in the order of the headers.
    pub retry_after: Vec<Wait>,
    /// The quotas that are used up.
    pub used_up: Vec<UsedUp>,
    /// How many further requests a `RateLimit` header leaves, and for how long: the scarcest of several.
    pub left: Option<(u32, Duration)>,
    /// Resets of quotas of which the receiver does not say what remains. They tell when to come back after a refusal.
    pub resets: Vec<Wait>,
    /// The headers that were ignored because they could not be parsed, as one line.
    pub malformed: Option<String>,
}

/// A wait that a header asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The wait from now on. Zero if the named instant has passed.
    pub delay: Duration,
    /// How much shorter the wait may be in truth. Receivers round up: of a value in whole seconds it is a second.
    pub rounding: Duration,
    /// The header, such as `retry-after: 120`: one line of at most [`MAX_HEADER_TEXT`] bytes.
    pub header: String,
}

impl Wait {
    /// The shortest wait that the value may stand for.
    pub fn at_least(&self) -> Duration {
        self.delay.saturating_sub(self.rounding)
    }
}

/// A quota that is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedUp {
    /// The time until some quota is left.
    pub wait: Wait,
    /// The quota per window. `None`: the receiver does not say.
    pub quota: Option<u64>,
    /// `None`: the receiver does not say.
    pub window: Option<Duration>,
    /// The receiver does not say when some quota is left: [`Self::wait`] is derived from the window.
    pub is_guess: bool,
}

impl Hints {
    /// Reads the headers of an answer that arrived at `wall`. Names are in lower case.
    pub fn read<'h>(headers: impl IntoIterator<Item = (&'h str, &'h [u8])>, wall: Timestamp) -> Self {
        let mut lines = Vec::new();
        let mut date = None;
        let mut malformed = Malformed::default();
        for (name, value) in headers {
            let kind = Kind::of(name);
            if kind.is_none() && name != "date" {
                continue;
            }
            match (std::str::from_utf8(value), kind) {
                (Ok(value), None) => date = date.or_else(|| times::date(value)),
                (Ok(value), Some(kind)) if lines.len() < MAX_LINES => lines.push(Line { kind, name, value }),
                (Err(_), Some(_)) => malformed.note(name, &String::from_utf8_lossy(value)),
                _ => {}
            }
        }
        let clock = ServerClock { wall, date };
        let retry_after = retry_after(&lines, &clock, &mut malformed);
        let quota::Quotas { used_up, left, resets } = quota::read(&lines, &clock, &mut malformed);
        Self { retry_after, used_up, left, resets, malformed: malformed.0 }
    }
}

/// A header line that may hold a hint.
struct Line<'h> {
    kind: Kind,
    name: &'h str,
    value: &'h str,
}

/// What a header says, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// How long to wait.
    RetryAfter(Unit),
    /// Something about a quota.
    Quota,
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        if name.contains("retry-after") || name.ends_with("retry-in") {
            Some(Self::RetryAfter(Unit::of_name(name)))
        } else if name.contains("ratelimit") || name.contains("rate-limit") {
            Some(Self::Quota)
        } else {
            None
        }
    }
}

/// Each line may be a list.
fn retry_after(lines: &[Line<'_>], clock: &ServerClock, malformed: &mut Malformed) -> Vec<Wait> {
    let mut waits = Vec::new();
    for &Line { kind, name, value } in lines {
        let Kind::RetryAfter(unit) = kind else { continue };
        for item in times::items(value) {
            match times::wait(item, unit, clock) {
                Some((delay, rounding)) if waits.len() < MAX_LINES => {
                    waits.push(Wait { delay, rounding, header: shown(name, value) });
                }
                Some(_) => {}
                None => malformed.note(name, value),
            }
        }
    }
    waits
}

/// The text of the headers that could not be parsed.
#[derive(Default)]
struct Malformed(Option<String>);

impl Malformed {
    fn note(&mut self, name: &str, value: &str) {
        let header = shown(name, value);
        let text = match self.0.take() {
            None => header,
            // A list notes its header once for each item.
            Some(known) if known.contains(&header) => known,
            Some(known) => format!("{known}, {header}"),
        };
        self.0 = Some(cut(text));
    }
}

/// A header as one line of bounded length.
fn shown(name: &str, value: &str) -> String {
    let mut text = format!("{name}: ");
    text.extend(value.trim().chars().take(MAX_HEADER_TEXT).map(|c| if c.is_control() { ' ' } else { c }));
    cut(text)
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_HEADER_TEXT));
    text
}

#[cfg(test)]
mod cases;
