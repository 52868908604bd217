//! Quota headers: which quotas are used up, and until when.
//!
//! - `RateLimit: "hourly";r=0;t=42` with `RateLimit-Policy: "hourly";q=100;w=3600`
//!   (draft-ietf-httpapi-ratelimit-headers-10), and `RateLimit: limit=100, remaining=0, reset=42` of its earlier
//!   versions;
//! - a header with `remaining` in its name, and the headers with `reset`, `limit` and others at that place:
//!   `RateLimit-Remaining` and `RateLimit-Reset` of the first versions of the draft, `X-RateLimit-Remaining`,
//!   `X-Rate-Limit-Remaining`, `X-RateLimit-Remaining-Requests` and more, which no specification defines.
//!
//! Several lines of one header are one list. Each used-up quota is a hint of its own.

use std::time::Duration;

use super::{
    Kind, Line, Malformed, UsedUp, Wait, shown,
    times::{self, ServerClock, Unit},
};

/// The most used-up quotas of one answer; receivers have one to four.
const MAX_QUOTAS: usize = 16;
/// The longest wait for a quota without a reset time. After it a send shows whether some quota is left.
const LONGEST_GUESS: Duration = Duration::from_secs(60);
/// The headers that hold whole quotas, not one property of a quota.
const WHOLE: [&str; 2] = ["ratelimit", "x-ratelimit"];
/// `Zendesk-RateLimit-Tickets-Index: total=100; remaining=0; resets=41`.
const WHOLE_PREFIX: &str = "zendesk-ratelimit-";
const REMAINING: &str = "remaining";
/// What stands in the name of a header instead of `remaining`, the most exact one first.
const RESETS: [&str; 5] = ["reset-after", "reset-ms", "reset", "resets", "reset-in"];
const LIMITS: [&str; 3] = ["limit", "max", "total"];
const WINDOWS: [&str; 5] = ["interval-ms", "interval-milliseconds", "interval-seconds", "window", "period"];
/// The windows that names of headers contain as a word: `X-RateLimit-Remaining-Minute`.
const NAMED_WINDOWS: [(&str, u64); 6] =
    [("second", 1), ("secondly", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400), ("daily", 86_400)];

/// What an answer says of quotas, as in [`super::Hints`].
#[derive(Default)]
pub(super) struct Quotas {
    pub(super) used_up: Vec<UsedUp>,
    pub(super) left: Option<(u32, Duration)>,
    /// Those of quotas of which it does not say what remains.
    pub(super) resets: Vec<Wait>,
}

pub(super) fn read(lines: &[Line<'_>], clock: &ServerClock, malformed: &mut Malformed) -> Quotas {
    let lines: Vec<&Line<'_>> = lines.iter().filter(|line| line.kind == Kind::Quota).collect();
    if lines.is_empty() {
        return Quotas::default();
    }
    let policies = policies(&lines, malformed);
    let mut reader = Reader { lines, policies, clock, malformed, found: Vec::new(), left: None };
    let resets = reader.read_resets();
    reader.read_wholes();
    reader.read_pairs();
    Quotas { used_up: reader.found, left: reader.left, resets }
}

/// A policy: how much quota there is per window.
struct Policy<'h> {
    name: &'h str,
    quota: Option<u64>,
    window: Option<Duration>,
}

fn policies<'h>(lines: &[&Line<'h>], malformed: &mut Malformed) -> Vec<Policy<'h>> {
    let mut policies = Vec::new();
    for line in lines.iter().filter(|line| line.name.ends_with("-policy")) {
        for item in split(line.value, ',').filter(|item| !item.is_empty()).take(MAX_QUOTAS) {
            match policy(item) {
                Some(policy) if policies.len() < MAX_QUOTAS => policies.push(policy),
                Some(_) => {}
                None => malformed.note(line.name, line.value),
            }
        }
    }
    policies
}

/// `"hourly";q=100;w=3600`, or `100;w=3600` of earlier versions.
fn policy(item: &str) -> Option<Policy<'_>> {
    let name = name(item);
    let quota = ["q", "limit"].into_iter().find_map(|key| parameter(item, key)).or(Some(name)).and_then(quota);
    let window = ["w", "window"].into_iter().find_map(|key| parameter(item, key)).and_then(seconds);
    (quota.is_some() || window.is_some()).then_some(Policy { name, quota, window })
}

struct Reader<'h, 'm> {
    lines: Vec<&'h Line<'h>>,
    policies: Vec<Policy<'h>>,
    clock: &'h ServerClock,
    malformed: &'m mut Malformed,
    found: Vec<UsedUp>,
    left: Option<(u32, Duration)>,
}

impl<'h> Reader<'h, '_> {
    /// Notes resets that are no times, also while some quota is left. Returns those without a header of what remains.
    fn read_resets(&mut self) -> Vec<Wait> {
        let mut alone = Vec::new();
        for line in self.lines.iter().filter(|line| line.name.contains("reset")) {
            let unit = Unit::of_name(line.name);
            let mut names = RESETS.iter().map(|reset| line.name.replacen(reset, REMAINING, 1));
            let is_alone = !names.any(|name| name != line.name && self.line(&name).is_some());
            for item in times::items(line.value) {
                match times::wait(item, unit, self.clock) {
                    Some((delay, rounding)) if is_alone && alone.len() < MAX_QUOTAS => {
                        alone.push(Wait { delay, rounding, header: shown(line.name, line.value) });
                    }
                    Some(_) => {}
                    None => self.malformed.note(line.name, line.value),
                }
            }
        }
        alone
    }

    fn read_wholes(&mut self) {
        let lines = self.lines.clone();
        for line in lines {
            if !WHOLE.contains(&line.name) && !line.name.starts_with(WHOLE_PREFIX) {
                continue;
            }
            // One quota as a dictionary, or a list of quotas.
            let is_dictionary = parameter(line.value, REMAINING).is_some();
            let items: Vec<&str> =
                if is_dictionary { vec![line.value] } else { split(line.value, ',').take(MAX_QUOTAS).collect() };
            for item in items.into_iter().filter(|item| !item.is_empty()) {
                self.read_item(line, item);
            }
        }
    }

    fn read_item(&mut self, line: &Line<'_>, item: &str) {
        let first = |keys: &[&str]| keys.iter().find_map(|key| parameter(item, key));
        let Some(remaining) = first(&["r", REMAINING]).and_then(times::number) else {
            // A number alone is a limit.
            if times::number(item).is_none() {
                self.malformed.note(line.name, line.value);
            }
            return;
        };
        let reset = first(&["t", "reset", "resets"]).and_then(|value| times::wait(value, Unit::Seconds, self.clock));
        if remaining > 0.0 {
            let per_s = |(left, time): (u32, Duration)| f64::from(left) / time.as_secs_f64().max(1.0);
            let left = reset.map(|(delay, _)| (remaining as u32, delay)).filter(|(_, delay)| !delay.is_zero());
            self.left = self.left.into_iter().chain(left).min_by(|a, b| per_s(*a).total_cmp(&per_s(*b)));
            return;
        }
        let limit = first(&["q", "limit", "total"]).and_then(quota);
        let window = first(&["w"]).and_then(seconds);
        let policy = self.policy(Some(name(item)), limit);
        let quota = limit.or(policy.and_then(|policy| policy.quota));
        let window = window.or(policy.and_then(|policy| policy.window));
        self.add(reset, quota, window, shown(line.name, line.value));
    }

    /// Every header with `remaining` in its name, with those that belong to it.
    fn read_pairs(&mut self) {
        let lines = self.lines.clone();
        let mut names: Vec<&str> = Vec::new();
        for line in &lines {
            if line.name.contains(REMAINING) && !names.contains(&line.name) {
                names.push(line.name);
                self.read_pair(line);
            }
        }
    }

    fn read_pair(&mut self, line: &Line<'_>) {
        // What remains of each quota. Several lines, or a list, are several quotas.
        let mut remaining = Vec::new();
        for item in self.items(line.name) {
            match times::number(name(item)) {
                Some(number) => remaining.push(number),
                None => self.malformed.note(line.name, line.value),
            }
        }
        if remaining.iter().all(|number| *number > 0.0) {
            return;
        }
        // The resets: one for each quota, or else the longest counts.
        let resets = RESETS.into_iter().find_map(|reset| {
            let name = line.name.replacen(REMAINING, reset, 1);
            let unit = Unit::of_name(&name);
            let waits: Vec<_> = self.items(&name).filter_map(|item| times::wait(item, unit, self.clock)).collect();
            let header = self.lines.iter().find(|line| line.name == name)?;
            (!waits.is_empty()).then_some((waits, shown(header.name, header.value)))
        });
        let (limit, window) = self.limit_and_window(line.name);
        let policy = self.policy(None, limit);
        let quota = limit.or(policy.and_then(|policy| policy.quota));
        let window = window.or(policy.and_then(|policy| policy.window));
        let Some((waits, header)) = resets else {
            return self.add(None, quota, window, shown(line.name, line.value));
        };
        let by_quota = waits.iter().zip(&remaining).filter(|(_, number)| **number <= 0.0).map(|(wait, _)| *wait);
        let longest = if waits.len() == remaining.len() { by_quota.max() } else { waits.iter().copied().max() };
        self.add(longest, quota, window, header);
    }

    /// The quota per window, and the window, of the quota with this header of what remains.
    fn limit_and_window(&mut self, remaining: &str) -> (Option<u64>, Option<Duration>) {
        let of_property = |property: &str| remaining.replacen(REMAINING, property, 1);
        let names = LIMITS.map(of_property).into_iter();
        let names = names.chain([remaining.replacen("-remaining", "", 1)]);
        let header = names.filter(|name| !WHOLE.contains(&name.as_str())).find_map(|name| self.line(&name));
        let mut limit = (None, None);
        if let Some(header) = header {
            // `10`, `10;w=1`, `10, 10;w=1, 1000;w=3600`, or the window itself: `1m`.
            let first = split(header.value, ',').next().unwrap_or_default();
            let number = quota(name(first));
            let policies = split(header.value, ',').filter_map(policy).collect::<Vec<_>>();
            let same = policies.iter().find(|policy| policy.quota == number && policy.window.is_some());
            let duration = number.is_none().then(|| times::duration(first)).flatten();
            limit = (number, same.and_then(|policy| policy.window).or(duration));
            if number.is_none() && duration.is_none() {
                self.malformed.note(header.name, header.value);
            }
        }
        let by_header = || {
            WINDOWS.map(of_property).into_iter().find_map(|name| {
                let value = self.line(&name)?.value;
                let milliseconds = Unit::of_name(&name) == Unit::Milliseconds;
                let number = times::number(value).map(|number| if milliseconds { number / 1e3 } else { number });
                number.and_then(|number| Duration::try_from_secs_f64(number).ok()).or_else(|| times::duration(value))
            })
        };
        let by_word = || {
            let named = NAMED_WINDOWS.into_iter().find(|(word, _)| remaining.split('-').any(|part| part == *word))?;
            Some(Duration::from_secs(named.1))
        };
        (limit.0, limit.1.or_else(by_header).or_else(by_word))
    }

    /// The policy with this name, or with this quota; the only one if there is no other.
    fn policy(&self, name: Option<&str>, limit: Option<u64>) -> Option<&Policy<'h>> {
        let by_name = || self.policies.iter().find(|policy| name.is_some_and(|name| policy.name == name));
        let by_quota = || self.policies.iter().find(|policy| limit.is_some() && policy.quota == limit);
        let only = || self.policies.first().filter(|_| self.policies.len() == 1 && limit.is_none() && name.is_none());
        by_name().or_else(by_quota).or_else(only)
    }

    fn line(&self, name: &str) -> Option<&'h Line<'h>> {
        self.lines.iter().find(|line| line.name == name).copied()
    }

    /// The items of all lines with this name.
    fn items(&self, name: &str) -> impl Iterator<Item = &'h str> + use<'h> {
        let values: Vec<&'h str> = self.lines.iter().filter(|line| line.name == name).map(|line| line.value).collect();
        values.into_iter().flat_map(times::items).take(MAX_QUOTAS)
    }

    fn add(
        &mut self,
        reset: Option<(Duration, Duration)>,
        quota: Option<u64>,
        window: Option<Duration>,
        header: String,
    ) {
        let guess = window.map(|window| (window.min(LONGEST_GUESS), window));
        let Some((delay, rounding)) = reset.or(guess) else { return };
        // A quota whose reset has passed is no longer used up.
        if !delay.is_zero() && self.found.len() < MAX_QUOTAS {
            let wait = Wait { delay, rounding, header };
            self.found.push(UsedUp { wait, quota, window, is_guess: reset.is_none() });
        }
    }
}

/// The part of an item before its parameters.
fn name(item: &str) -> &str {
    split(item, ';').next().unwrap_or_default()
}

/// A parameter of an item, or a member of a dictionary: `name=value` between semicolons or commas.
fn parameter<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let parts = split(text, ';').flat_map(|part| split(part, ','));
    let mut pairs = parts.filter_map(|part| part.split_once('='));
    pairs.find(|(known, _)| known.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
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

fn quota(text: &str) -> Option<u64> {
    // The conversion saturates.
    times::number(text).filter(|number| *number >= 0.0).map(|number| number as u64)
}

fn seconds(text: &str) -> Option<Duration> {
    let number = times::number(text).filter(|number| *number > 0.0);
    number.and_then(|number| Duration::try_from_secs_f64(number).ok()).or_else(|| times::duration(text))
}
