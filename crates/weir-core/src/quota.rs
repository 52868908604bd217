//! Quota headers: how much of its quota a receiver says Weir has left.
//!
//! Three families of headers are supported:
//! - `RateLimit: "hourly";r=0;t=42` with `RateLimit-Policy: "hourly";q=100;w=3600`
//!   (draft-ietf-httpapi-ratelimit-headers-10), and `RateLimit: limit=100, remaining=0, reset=42` of its earlier
//!   versions;
//! - `RateLimit-Remaining` and `RateLimit-Reset` of the first versions, in seconds;
//! - `X-RateLimit-Remaining` and `X-RateLimit-Reset`, which no specification defines: seconds, or the Unix time in
//!   seconds or milliseconds.
//!
//! A header that cannot be parsed is ignored, because these headers are only advice.

use std::time::Duration;

use crate::time::Timestamp;

/// The smallest reset value that is taken as a Unix time in seconds (the year 2001). Smaller values are seconds from
/// now.
const FIRST_UNIX_SECONDS: u64 = 1_000_000_000;
/// The smallest reset value that is taken as a Unix time in milliseconds.
const FIRST_UNIX_MILLIS: u64 = 100_000_000_000;

/// How long the quota stays used up, according to the headers of an answer that arrived at `wall`. `None` when some
/// quota is left, or the headers do not say. `header` returns the first value of a header by its name in lower case.
pub fn used_up_for<'h>(header: impl Fn(&'static str) -> Option<&'h str>, wall: Timestamp) -> Option<Duration> {
    let policy = header("ratelimit-policy");
    let by_items = header("ratelimit").and_then(|limits| of_items(limits, policy));
    let pairs = [
        ("ratelimit-remaining", "ratelimit-reset"),
        ("x-ratelimit-remaining", "x-ratelimit-reset"),
        ("x-rate-limit-remaining", "x-rate-limit-reset"),
    ];
    // A pair counts only when nothing remains and the reset is known.
    let by_pairs = pairs.into_iter().filter_map(|(remaining, reset)| {
        (integer(header(remaining)?)? == 0).then_some(())?;
        Some(until_reset(integer(header(reset)?)?, wall))
    });
    // Of several limits that are used up, the one with the longest wait.
    by_items.into_iter().chain(by_pairs).max().filter(|delay| !delay.is_zero())
}

/// The longest of the limits that are used up.
fn of_items(limits: &str, policy: Option<&str>) -> Option<Duration> {
    let earlier = |name| parameter(limits, name);
    if let (Some(0), Some(reset)) = (earlier("remaining"), earlier("reset")) {
        return Some(Duration::from_secs(reset));
    }
    let used_up = split(limits, ',').filter(|item| parameter(item, "r") == Some(0));
    let reset = |item: &str| parameter(item, "t").or_else(|| window_of(name(item), policy?));
    used_up.filter_map(reset).max().map(Duration::from_secs)
}

/// The length of the window of the policy with this name.
fn window_of(limit: &str, policy: &str) -> Option<u64> {
    split(policy, ',').find(|item| name(item) == limit).and_then(|item| parameter(item, "w"))
}

fn name(item: &str) -> &str {
    split(item, ';').next().unwrap_or_default()
}

/// A parameter of an item, or a member of a dictionary: `name=value` between semicolons or commas.
fn parameter(text: &str, name: &str) -> Option<u64> {
    let parts = split(text, ';').flat_map(|part| split(part, ','));
    parts
        .filter_map(|part| part.split_once('='))
        .find(|(known, _)| known.trim() == name)
        .and_then(|(_, value)| integer(value))
}

/// Splits text at a character outside of quotes.
fn split(text: &str, by: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |char| {
        quoted ^= char == '"';
        char == by && !quoted
    })
    .map(str::trim)
}

fn integer(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn until_reset(reset: u64, wall: Timestamp) -> Duration {
    match reset {
        0..FIRST_UNIX_SECONDS => Duration::from_secs(reset),
        FIRST_UNIX_SECONDS..FIRST_UNIX_MILLIS => Timestamp::MIN.after(Duration::from_secs(reset)).since(wall),
        FIRST_UNIX_MILLIS.. => Timestamp::MIN.after(Duration::from_millis(reset)).since(wall),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn seconds(headers: &[(&'static str, &str)]) -> Option<u64> {
        let header = |name: &'static str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        used_up_for(header, WALL).map(|delay| delay.as_secs())
    }

    #[test]
    fn every_family_of_headers_is_parsed() {
        assert_eq!(seconds(&[("ratelimit", r#""hourly";r=0;t=42"#)]), Some(42));
        assert_eq!(seconds(&[("ratelimit", "limit=100, remaining=0, reset=42")]), Some(42));
        assert_eq!(seconds(&[("ratelimit-remaining", "0"), ("ratelimit-reset", "7")]), Some(7));
        assert_eq!(seconds(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "7")]), Some(7));
        assert_eq!(seconds(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000009")]), Some(9));
        assert_eq!(seconds(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000009000")]), Some(9));
    }

    #[test]
    fn the_longest_of_several_used_up_limits_counts() {
        let limits = r#""a;,b";r=0;t=5, "minutely";r=3;t=50, "daily" ; r=0; t=20"#;
        assert_eq!(seconds(&[("ratelimit", limits)]), Some(20));
        assert_eq!(
            seconds(&[("ratelimit", limits), ("ratelimit-remaining", "0"), ("ratelimit-reset", "30")]),
            Some(30)
        );
    }

    #[test]
    fn without_a_reset_time_the_window_of_the_policy_counts() {
        let policy = ("ratelimit-policy", r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
        assert_eq!(seconds(&[("ratelimit", r#""burst";r=0"#), policy]), Some(60));
        assert_eq!(seconds(&[("ratelimit", r#""burst";r=0"#)]), None);
    }

    #[test]
    fn a_quota_that_is_left_or_reset_or_malformed_causes_no_delay() {
        for headers in [
            &[][..],
            &[("ratelimit", r#""hourly";r=1;t=42"#)],
            &[("ratelimit", "many")],
            &[("ratelimit", r#""open;r=0;t=9"#)],
            &[("ratelimit-remaining", "0")],
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "soon")],
            &[("x-ratelimit-remaining", "-1"), ("x-ratelimit-reset", "5")],
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1799999999")],
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")],
        ] {
            assert_eq!(seconds(headers), None, "{headers:?}");
        }
    }
}
