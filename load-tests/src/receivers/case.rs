//! The cases: a receiver, a limit, the network in front of it, the setting of the destination, and the figures that are
//! wanted.

use std::{fmt, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};

/// The nominal limit of the receiver, which the destination has too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) count: u32,
    pub(super) period: Period,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Period {
    Second,
    Minute,
}

impl Limit {
    pub(super) const fn per_second(count: u32) -> Self {
        Self { count, period: Period::Second }
    }

    pub(super) const fn per_minute(count: u32) -> Self {
        Self { count, period: Period::Minute }
    }

    pub(super) fn window(self) -> Duration {
        match self.period {
            Period::Second => Duration::from_secs(1),
            Period::Minute => Duration::from_secs(60),
        }
    }

    /// The time between two requests at exactly this limit.
    pub(super) fn spacing(self) -> Duration {
        self.window() / self.count
    }

    pub(super) fn per_s(self) -> f64 {
        f64::from(self.count) / self.window().as_secs_f64()
    }

    fn as_json(self, margin_ms: Option<u32>) -> Value {
        let period = match self.period {
            Period::Second => "second",
            Period::Minute => "minute",
        };
        match margin_ms {
            None => json!({"limit": self.count, "period": period}),
            Some(margin_ms) => json!({"limit": self.count, "period": period, "margin_ms": margin_ms}),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.period {
            Period::Second => write!(f, "{}/s", self.count),
            Period::Minute => write!(f, "{}/min", self.count),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Kind {
    Nginx,
    NginxBurst,
    Gcra,
    Haproxy,
    Slowapi,
    MovingWindow,
    ExpressRateLimit,
    RateLimiterFlexible,
    FlaskLimiter,
    Traefik,
    Pool,
}

impl Kind {
    pub(super) const ALL: [Self; 11] = [
        Self::Nginx,
        Self::NginxBurst,
        Self::Gcra,
        Self::Haproxy,
        Self::Slowapi,
        Self::MovingWindow,
        Self::ExpressRateLimit,
        Self::RateLimiterFlexible,
        Self::FlaskLimiter,
        Self::Traefik,
        Self::Pool,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Nginx => "nginx `limit_req` without `burst`",
            Self::NginxBurst => "nginx `limit_req` with `burst=5`",
            Self::Gcra => "GCRA with a burst of 1 (redis-cell, bottleneck)",
            Self::Haproxy => "HAProxy `http_req_rate`",
            Self::Slowapi => "slowapi, moving window",
            Self::MovingWindow => "exact moving window",
            Self::ExpressRateLimit => "express-rate-limit",
            Self::RateLimiterFlexible => "rate-limiter-flexible",
            Self::FlaskLimiter => "Flask-Limiter with headers",
            Self::Traefik => "Traefik `rateLimit` with a burst of 1",
            Self::Pool => "a pool of five workers with a queue",
        }
    }

    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::NginxBurst => "nginx-burst",
            Self::Gcra => "gcra",
            Self::Haproxy => "haproxy",
            Self::Slowapi => "slowapi",
            Self::MovingWindow => "moving-window",
            Self::ExpressRateLimit => "express-rate-limit",
            Self::RateLimiterFlexible => "rate-limiter-flexible",
            Self::FlaskLimiter => "flask-limiter",
            Self::Traefik => "traefik",
            Self::Pool => "pool",
        }
    }

    pub(super) fn counts(self) -> &'static str {
        match self {
            Self::Nginx | Self::Gcra => "the time since the last accepted request",
            Self::NginxBurst => "a leaky bucket",
            Self::Haproxy => "two fixed windows, averaged; refused requests count too",
            Self::Slowapi | Self::MovingWindow => "every accepted request of the last window",
            Self::ExpressRateLimit => "a fixed window; announces its quota",
            Self::RateLimiterFlexible => "a window from the first request; announces its quota",
            Self::FlaskLimiter => "a fixed window of the clock; announces its quota",
            Self::Traefik => "a token bucket that delays by up to half a spacing",
            Self::Pool => "nothing: it answers later",
        }
    }
}

/// What the destination has beside the receiver's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    Default,
    MinInterval {
        ms: u32,
    },
    Margin {
        ms: u32,
    },
    /// No limit at all: the receiver's answers alone say when to send.
    Unlimited,
    /// No limit, and a pace that finds the one of the receiver.
    Adaptive,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the limit"),
            Self::MinInterval { ms } => write!(f, "`min_interval_ms: {ms}`"),
            Self::Margin { ms } => write!(f, "`margin_ms: {ms}`"),
            Self::Unlimited => f.write_str("no limit"),
            Self::Adaptive => f.write_str("`adaptive`"),
        }
    }
}

/// The figures that are wanted. `None` shows a figure without judging it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Wanted {
    /// The largest share of the sends that may be refused.
    pub(super) refused_max: Option<f64>,
    /// The smallest share of the limit that must be used.
    pub(super) used_min: Option<f64>,
    /// Every event arrives and no delivery is dead.
    pub(super) all_delivered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) limit: Limit,
    /// The longest delay of a request on its way to the receiver. Zero: the loopback alone.
    pub(super) jitter: Duration,
    pub(super) setting: Setting,
    pub(super) wanted: Wanted,
}

/// The jitter of the cases behind a network.
const JITTER: Duration = Duration::from_millis(50);

/// A receiver refuses no more than one of 500 requests.
const REFUSED: Option<f64> = Some(0.002);

const LIMITS: [Limit; 4] = [Limit::per_second(2), Limit::per_second(10), Limit::per_second(100), Limit::per_minute(60)];

impl Case {
    pub(super) fn is_fast(&self) -> bool {
        self.limit.per_s() > 50.0
    }

    /// The settings of the destination.
    pub(super) fn settings(&self) -> Value {
        let mut settings = json!({"rate_limits": [self.limit.as_json(None)]});
        match self.setting {
            Setting::Default => {}
            Setting::MinInterval { ms } => settings["min_interval_ms"] = json!(ms),
            Setting::Margin { ms } => settings["rate_limits"] = json!([self.limit.as_json(Some(ms))]),
            Setting::Unlimited => {
                settings["rate_limits"] = json!([]);
                // With the default delays a delivery would need hours to use its attempts up.
                settings["retry"] = json!({"max_attempts": 16, "base_ms": 100, "cap_ms": 1_000});
            }
            Setting::Adaptive => (settings["rate_limits"], settings["adaptive"]) = (json!([]), json!({})),
        }
        settings
    }

    /// Every case, in the order of the table.
    pub(super) fn all() -> Vec<Self> {
        Kind::ALL.into_iter().flat_map(Self::of).collect()
    }

    fn of(kind: Kind) -> Vec<Self> {
        let direct = |limit, setting, wanted| Self { kind, limit, jitter: Duration::ZERO, setting, wanted };
        let far = |limit, setting, wanted| Self { kind, limit, jitter: JITTER, setting, wanted };
        let as_it_is = |wanted: Wanted| LIMITS.map(|limit| direct(limit, Setting::Default, wanted)).to_vec();
        let wanted = |used: f64| Wanted { refused_max: REFUSED, used_min: Some(used), all_delivered: false };
        // A margin of 50 ms and a slot of 10 ms leave 94 % of a limit a second.
        let behind_a_network = || {
            let with = Setting::Margin { ms: JITTER.as_millis() as u32 };
            let settings = [(Setting::Default, Wanted::default()), (with, wanted(0.9))];
            settings
                .into_iter()
                .flat_map(|(setting, wanted)| LIMITS[..3].iter().map(move |&limit| far(limit, setting, wanted)))
        };
        // The start counts too: the pace doubles each second from ten, and meets the limit of the receiver at least once.
        let found = Wanted { refused_max: Some(0.05), used_min: Some(0.7), all_delivered: false };
        let adaptive = |wanted| LIMITS[1..3].iter().map(move |&limit| direct(limit, Setting::Adaptive, wanted));
        match kind {
            // The spacing of the receiver itself: Weir keeps it from the end of one slot to the start of the next, so most
            // gaps are longer by a slot.
            Kind::Nginx | Kind::Gcra => {
                let intervals =
                    [(LIMITS[0], 500, 0.93), (LIMITS[1], 100, 0.93), (LIMITS[2], 10, 0.85), (LIMITS[3], 1_000, 0.93)];
                let spaced =
                    intervals.map(|(limit, ms, used)| direct(limit, Setting::MinInterval { ms }, wanted(used)));
                as_it_is(Wanted::default()).into_iter().chain(spaced).chain(adaptive(Wanted::default())).collect()
            }
            Kind::NginxBurst => as_it_is(wanted(0.97)).into_iter().chain(adaptive(found)).collect(),
            // A refusal or two of a machine that is busy cost nothing, so only the use is judged without a network.
            Kind::Haproxy | Kind::Slowapi => {
                let used = Wanted { used_min: Some(0.95), ..Wanted::default() };
                // HAProxy counts refused requests too, so the use of an adaptive pace is only shown.
                as_it_is(used).into_iter().chain(behind_a_network()).chain(adaptive(Wanted::default())).collect()
            }
            Kind::MovingWindow => behind_a_network().chain(adaptive(found)).collect(),
            Kind::Pool => vec![direct(LIMITS[2], Setting::Adaptive, found)],
            Kind::ExpressRateLimit => {
                let all_delivered = Wanted { all_delivered: true, ..Wanted::default() };
                let unlimited = direct(LIMITS[0], Setting::Unlimited, all_delivered);
                as_it_is(wanted(0.97)).into_iter().chain([unlimited]).collect()
            }
            Kind::RateLimiterFlexible | Kind::FlaskLimiter => as_it_is(wanted(0.97)),
            // A refusal costs little when its hint is read, so only the use is judged.
            Kind::Traefik => as_it_is(Wanted { used_min: Some(0.95), ..Wanted::default() }),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, {}", self.kind.name(), self.limit, self.setting)?;
        if !self.jitter.is_zero() {
            write!(f, ", {} ms of jitter", self.jitter.as_millis())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_receiver_has_cases_and_no_case_is_there_twice() {
        let all: Vec<_> = Case::all().iter().map(Case::to_string).collect();
        let mut unique = all.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len());
        assert!(Kind::ALL.iter().all(|kind| all.iter().any(|case| case.starts_with(&format!("{} at", kind.name())))));
    }

    /// The names and shapes of the settings are those of the API.
    #[test]
    fn a_setting_stands_where_the_api_takes_it() {
        let of = |setting| Case { setting, ..Case::of(Kind::Gcra)[0] }.settings();
        assert_eq!(of(Setting::Default), json!({"rate_limits": [{"limit": 2, "period": "second"}]}));
        assert_eq!(of(Setting::MinInterval { ms: 500 })["min_interval_ms"], 500);
        assert_eq!(of(Setting::Margin { ms: 50 })["rate_limits"][0]["margin_ms"], 50);
        assert_eq!(of(Setting::Unlimited)["rate_limits"], json!([]));
        assert_eq!(of(Setting::Adaptive), json!({"rate_limits": [], "adaptive": {}}));
    }

    #[test]
    fn the_interval_is_the_spacing_of_the_receiver() {
        for case in Case::all() {
            if let Setting::MinInterval { ms } = case.setting {
                assert_eq!(Duration::from_millis(ms.into()), case.limit.spacing(), "{case}");
            }
        }
    }
}
