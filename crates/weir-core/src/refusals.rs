//! Refusals within the limit: a receiver refuses sends although every window by Weir's clock held its limit.
//!
//! The cause decides which setting helps, and the recent sends show the cause:
//!
//! | cause | what the sends show | what helps |
//! |---|---|---|
//! | `spacing` | refused are those that came sooner than W / R after the send before; the others are admitted | `min_interval_ms` of the destination |
//! | `lower_limit` | before a refusal, the receiver had admitted far fewer sends in a window than the limit allows | a lower limit |
//! | `jitter` | before a refusal, it had admitted about as many as the limit allows, in hardly more than a window | `margin_ms` of the limit |
//!
//! The last one is a receiver that counts exactly, behind a network that delays one request more than the next.

use std::time::Duration;

use crate::{
    limit::{Period, RateLimit, RateLimits},
    time::Timestamp,
};

/// The fewest refusals that are diagnosed: one or two may have a cause of their own, such as another client with the same
/// quota.
pub const FEWEST: usize = 3;
/// The smallest share of refused sends that is diagnosed: with the setting that helps, fewer are refused.
const SMALLEST_SHARE: f64 = 0.005;
/// A receiver that admits fewer sends than this share of the limit has a lower limit. With one that counts exactly, a
/// refused send may leave the count before the next refusal a little short.
const FULL: f64 = 0.8;
/// A larger share of refused sends is not jitter: most sends keep their distance. With one send in a window, every send
/// that overtakes the delay of the last one is refused, which is nearly half of them.
const LARGEST_JITTER_SHARE: f64 = 0.25;
const LARGEST_JITTER_SHARE_OF_ONE: f64 = 0.45;
/// The share of sends after a short gap that a receiver with spacing refuses at least, and how many times the share after
/// a long gap that is. The network moves some gaps to the other side.
const SHORT_GAPS_REFUSED: f64 = 0.4;
const AGAINST_LONG_GAPS: f64 = 4.0;
/// How much longer than a window the receiver may see the limit's sends: the usual differences of delays in a network.
const NETWORK: Duration = Duration::from_millis(100);
/// The part of the window that is a margin, and the factor by which an interval is longer than an even spacing.
const MARGIN: f64 = 0.05;
const INTERVAL_MARGIN: f64 = 1.02;
/// The largest values of the two settings, in milliseconds.
const MAX_MARGIN_MS: u32 = 10_000;
const MAX_INTERVAL_MS: u32 = 60_000;

/// A send, as far as refusals depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgedSend {
    pub at: Timestamp,
    /// The receiver answered that it takes no more now.
    pub is_refused: bool,
}

/// Why a receiver refuses sends that are within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Cause {
    Jitter,
    Spacing,
    LowerLimit,
}

impl Cause {
    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The setting that helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The `margin_ms` of the limit of this period.
    Margin { period: Period, margin_ms: u32 },
    /// The `min_interval_ms` of the destination.
    Interval { min_interval_ms: u32 },
    /// The limit that the receiver was seen to admit.
    Limit { limit: u32, period: Period },
}

/// Refusals within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusals {
    pub cause: Cause,
    pub remedy: Remedy,
    /// The sends that were looked at, and how many of them were refused.
    pub sends: u32,
    pub refused: u32,
}

impl Remedy {
    /// The name of the setting, its value, and the period of the limit that it belongs to.
    pub const fn parts(self) -> (&'static str, u32, Option<Period>) {
        match self {
            Self::Margin { period, margin_ms } => ("margin_ms", margin_ms, Some(period)),
            Self::Interval { min_interval_ms } => ("min_interval_ms", min_interval_ms, None),
            Self::Limit { limit, period } => ("limit", limit, Some(period)),
        }
    }
}

impl Refusals {
    /// The setting that helps, in words.
    pub fn advice(&self) -> String {
        match self.remedy {
            Remedy::Margin { period, margin_ms } => {
                format!("set \"margin_ms\": {margin_ms} on the limit per {period}")
            }
            Remedy::Interval { min_interval_ms } => {
                format!("set \"min_interval_ms\": {min_interval_ms} on the destination")
            }
            Remedy::Limit { limit, period } => format!("set a limit of {limit} per {period}"),
        }
    }

    /// What was seen and what helps, in one sentence.
    pub fn sentence(&self) -> String {
        let cause = match self.cause {
            Cause::Jitter => "it counts exactly, and delays of the network bring sends closer together",
            Cause::Spacing => "it wants a least time between two sends",
            Cause::LowerLimit => "it admits fewer sends than the limit",
        };
        let (refused, sends, advice) = (self.refused, self.sends, self.advice());
        format!(
            "the receiver refused {refused} of the last {sends} sends although they kept the limit: {cause}; {advice}"
        )
    }
}

/// The cause of the refusals among these sends of one destination, earliest first. `None`: there are too few, or the
/// sends did not keep the limits, as after an edit.
pub fn diagnose(limits: &RateLimits, sends: &[JudgedSend]) -> Option<Refusals> {
    let refused = sends.iter().filter(|send| send.is_refused).count();
    if refused < FEWEST || (refused as f64) < SMALLEST_SHARE * sends.len() as f64 {
        return None;
    }
    if !limits.as_slice().iter().all(|limit| is_kept(limit, sends)) {
        return None;
    }
    let share = refused as f64 / sends.len() as f64;
    // Under a backlog the strictest limit makes the spacing of the sends.
    let strictest = limits.as_slice().iter().min_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let (cause, remedy) = match strictest {
        Some(limit) => match interval_that_helps(limit, sends) {
            Some(min_interval_ms) => (Cause::Spacing, Remedy::Interval { min_interval_ms }),
            None => of_counts(limit, share, sends)?,
        },
        None => lower_limit(None, sends)?,
    };
    Some(Refusals { cause, remedy, sends: sends.len() as u32, refused: refused as u32 })
}

/// Whether no window holds more sends than the limit allows.
fn is_kept(limit: &RateLimit, sends: &[JudgedSend]) -> bool {
    let bound = usize::try_from(limit.bound()).unwrap_or(usize::MAX);
    let pairs = sends.iter().zip(sends.iter().skip(bound));
    pairs.into_iter().all(|(first, next)| next.at.since(first.at) >= limit.period.window())
}

/// The least time between two sends that the receiver wants, if the gap before a send decides whether it is refused.
fn interval_that_helps(limit: &RateLimit, sends: &[JudgedSend]) -> Option<u32> {
    let even = limit.period.window() / limit.limit.get();
    let (mut short, mut long) = ((0_u32, 0_u32), (0_u32, 0_u32));
    for pair in sends.windows(2) {
        let [before, send] = pair else { continue };
        let (all, refused) = if send.at.since(before.at) < even { &mut short } else { &mut long };
        *all += 1;
        *refused += u32::from(send.is_refused);
    }
    let share = |(all, refused): (u32, u32)| f64::from(refused) / f64::from(all.max(1));
    let is_decisive = short.1 as usize >= FEWEST && share(short) >= SHORT_GAPS_REFUSED;
    let ms = (even.as_secs_f64() * 1_000.0 * INTERVAL_MARGIN).ceil();
    (is_decisive && share(short) >= AGAINST_LONG_GAPS * share(long) && ms <= f64::from(MAX_INTERVAL_MS))
        .then_some(ms as u32)
}

/// Jitter or a lower limit, by what the receiver had admitted before it refused.
fn of_counts(limit: &RateLimit, share: f64, sends: &[JudgedSend]) -> Option<(Cause, Remedy)> {
    let full = FULL * f64::from(limit.limit.get());
    let admitted = admitted_before_refusals(limit.period.window() + NETWORK, sends);
    let largest_share = if limit.limit.get() == 1 { LARGEST_JITTER_SHARE_OF_ONE } else { LARGEST_JITTER_SHARE };
    if f64::from(admitted) >= full && share < largest_share {
        let period = limit.period;
        let margin_ms = (period.window().as_secs_f64() * 1_000.0 * MARGIN) as u32;
        return Some((Cause::Jitter, Remedy::Margin { period, margin_ms: margin_ms.min(MAX_MARGIN_MS) }));
    }
    lower_limit(Some(limit), sends)
}

/// What the receiver was seen to admit, in the shortest window in which that is anything.
fn lower_limit(configured: Option<&RateLimit>, sends: &[JudgedSend]) -> Option<(Cause, Remedy)> {
    let shortest = configured.map_or(Period::SECOND, |limit| limit.period);
    let longer = Period::NAMED.into_iter().filter(|period| *period > shortest);
    let seen = std::iter::once(shortest).chain(longer).find_map(|period| {
        let admitted = admitted_before_refusals(period.window(), sends);
        // Where the limit is not reached even so, it is what to go below.
        let most = match configured {
            Some(limit) if limit.period == period => limit.limit.get().saturating_sub(1).max(1),
            _ => u32::MAX,
        };
        (admitted > 0).then_some(Remedy::Limit { limit: admitted.min(most), period })
    });
    Some((Cause::LowerLimit, seen?))
}

/// How many sends the receiver had admitted within `window` before a refusal: the median over the refusals that have a
/// whole window before them.
fn admitted_before_refusals(window: Duration, sends: &[JudgedSend]) -> u32 {
    let Some(first) = sends.first() else { return 0 };
    let (mut begin, mut admitted, mut counts) = (0, 0_u32, Vec::new());
    for send in sends {
        // Forget what was admitted before the window.
        while send.at.since(sends[begin].at) >= window && sends[begin].at < send.at {
            admitted -= u32::from(!sends[begin].is_refused);
            begin += 1;
        }
        if !send.is_refused {
            admitted += 1;
        } else if send.at.since(first.at) >= window {
            counts.push(admitted);
        }
    }
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
