//! What people set for a while in place of the settings: an override of limits, and a hold. Both have a reason and an end,
//! which takes effect by itself: whoever reads them later knows that they are over. Bound to nothing, so that whatever
//! has limits can have them.

use std::{ops::RangeInclusive, time::Duration};

use crate::{limit::RateLimits, time::Timestamp};

/// How long an override or a hold may last. What is to hold for longer is a setting.
pub const LASTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 60 * 60);

/// Limits that hold until an instant in place of those of the settings. At least one of them is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// In place of the limits of periods. The minimum interval of the settings stays: it is a property of the receiver.
    pub limits: Option<RateLimits>,
    pub max_in_flight: Option<u32>,
    pub until: Timestamp,
    pub reason: String,
}

/// A pause with an end: no send starts before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub until: Timestamp,
    pub reason: String,
}

/// The override and the hold of one budget. Those that are over may still be here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Temporary {
    pub overridden: Option<Override>,
    pub hold: Option<Hold>,
}

impl Temporary {
    pub fn is_none(&self) -> bool {
        self.overridden.is_none() && self.hold.is_none()
    }

    /// The override, unless it is over.
    pub fn override_at(&self, now: Timestamp) -> Option<&Override> {
        self.overridden.as_ref().filter(|overridden| now < overridden.until)
    }

    /// The hold, unless it is over.
    pub fn hold_at(&self, now: Timestamp) -> Option<&Hold> {
        self.hold.as_ref().filter(|hold| now < hold.until)
    }

    /// Without those that are over.
    pub fn at(&self, now: Timestamp) -> Self {
        Self { overridden: self.override_at(now).cloned(), hold: self.hold_at(now).cloned() }
    }

    /// The version of what is in force at `now` after an edit at `updated_at`. It rises with each edit and with the end of an
    /// override: by less than two edits are apart, so that each edit has a later version than all ends before it.
    pub fn version(&self, updated_at: Timestamp, now: Timestamp) -> Timestamp {
        let is_over = self.overridden.as_ref().is_some_and(|overridden| overridden.until <= now);
        updated_at + if is_over { Duration::from_micros(1) } else { Duration::ZERO }
    }

    /// The limits in force above these ones of the settings.
    pub fn limits(&self, below: &RateLimits, now: Timestamp) -> RateLimits {
        let limits = self.override_at(now).and_then(|overridden| overridden.limits.clone());
        limits.map_or_else(|| below.clone(), |limits| limits.with_min_interval(below.min_interval()))
    }

    /// The `max_in_flight` in force above this one of the settings.
    pub fn max_in_flight(&self, below: u32, now: Timestamp) -> u32 {
        self.override_at(now).and_then(|overridden| overridden.max_in_flight).unwrap_or(below)
    }

    /// The limits in force from `now` on: at once and, where an override ends, from its end.
    pub fn limits_from(&self, below: &RateLimits, now: Timestamp) -> Vec<(Timestamp, RateLimits)> {
        let end = self.override_at(now).map(|overridden| overridden.until);
        let mut steps: Vec<_> = [Some(now), end].into_iter().flatten().map(|at| (at, self.limits(below, at))).collect();
        steps.dedup_by(|later, earlier| later.1 == earlier.1);
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{MinInterval, Period, RateLimit};

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn per_second(limit: u32) -> RateLimits {
        RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect()).unwrap()
    }

    fn raised(limits: Option<RateLimits>) -> Temporary {
        let until = NOW + Duration::from_secs(60);
        let overridden = Override { limits, max_in_flight: Some(128), until, reason: "launch day".to_owned() };
        Temporary { overridden: Some(overridden), hold: None }
    }

    #[test]
    fn an_override_holds_until_its_end_and_then_the_settings_do() {
        let of = raised(Some(per_second(50)));
        let end = NOW + Duration::from_secs(60);
        let last = end - Duration::from_nanos(1);
        assert_eq!([NOW, last, end].map(|at| of.limits(&per_second(10), at)), [50, 50, 10].map(per_second));
        assert_eq!([NOW, last, end].map(|at| of.max_in_flight(64, at)), [128, 128, 64]);
        assert_eq!(of.limits_from(&per_second(10), NOW), [(NOW, per_second(50)), (end, per_second(10))]);
        assert_eq!(of.limits_from(&per_second(50), NOW), [(NOW, per_second(50))]);
        assert!(of.at(end).is_none());
    }

    #[test]
    fn what_an_override_does_not_set_stays_with_the_settings() {
        let spaced = per_second(10).with_min_interval(MinInterval::from_millis(5));
        assert_eq!(raised(None).limits(&spaced, NOW), spaced);
        let interval = raised(Some(per_second(50))).limits(&spaced, NOW).min_interval();
        assert_eq!(interval, MinInterval::from_millis(5));
    }
}
