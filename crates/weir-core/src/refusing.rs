//! A receiver that answers many sends with 429, with a limit or without.
//!
//! Counters of five minutes say so, and what helps: in the stretches of ten seconds in which the receiver refused, the
//! rest is what it takes.

use std::time::Duration;

use crate::{
    Period, RateLimits,
    adaptive::{self, Observation},
};

/// The time whose sends are counted.
pub const COUNTED: Duration = Duration::from_secs(300);
/// Fewer sends say nothing about a share: one refusal of three is no tenth.
const FEWEST: u64 = 20;
/// More than this share is too much.
const MUCH: f64 = 0.1;
/// What was much is over below this share, so that a receiver that stays near a tenth raises one alert.
const OVER_BELOW: f64 = 0.08;
/// At lower rates a whole number per second would be much less than what the receiver takes.
const PER_SECOND_FROM: f64 = 10.0;

/// What a receiver has answered in the last [`COUNTED`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Refusing {
    pub sends: u64,
    /// Those that were answered with 429.
    pub refused: u64,
    /// Nearly what it took while it refused ([`Observation::per_s`]). `None`: too little was sent to say.
    pub takes_per_s: Option<f64>,
}

impl Refusing {
    /// `seen`: the stretches in which all that failed was refused.
    pub fn new(sends: u64, refused: u64, seen: Option<Observation>) -> Self {
        let takes_per_s = seen.and_then(|seen| seen.per_s).filter(|per_s| *per_s > 0.0);
        Self { sends, refused, takes_per_s }
    }

    /// Whether more than a tenth was refused.
    pub fn is_much(&self) -> bool {
        self.sends >= FEWEST && self.share() > MUCH
    }

    /// Whether what was much still is.
    pub fn is_still_much(&self) -> bool {
        self.share() >= OVER_BELOW
    }

    fn share(&self) -> f64 {
        self.refused as f64 / self.sends.max(1) as f64
    }

    /// A limit that the receiver takes, below the present limits.
    fn lower_limit(&self, limits: &RateLimits) -> Option<(u32, Period)> {
        let per_s = self.takes_per_s.filter(|per_s| limits.per_second().is_none_or(|limit| *per_s < limit))?;
        let (limit, period) =
            if per_s >= PER_SECOND_FROM { (per_s, Period::SECOND) } else { (per_s * 60.0, Period::MINUTE) };
        (limit >= 1.0).then_some((limit as u32, period))
    }

    /// What was seen and what helps.
    pub fn sentence(&self, limits: &RateLimits, adaptive: Option<adaptive::Settings>) -> String {
        let Self { sends, refused, .. } = self;
        let seen = format!("the receiver answered {refused} of the {sends} sends of five minutes with 429");
        if let Some(adaptive) = adaptive {
            let slowest = adaptive::in_words(adaptive.min_per_s);
            return format!(
                "{seen}: the adaptive pace keeps to what it takes, so other clients may use up its quota, or the slowest pace, {slowest}, is more than it takes"
            );
        }
        let limit = match self.lower_limit(limits) {
            Some((limit, period)) => format!("set a limit of {limit} per {period}, which is about what it takes"),
            None if limits.is_unlimited() => "set a limit".to_owned(),
            None => "lower the limit".to_owned(),
        };
        format!("{seen}; turn on the adaptive pace, or {limit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RateLimit, adaptive::Stretch};

    fn limited(limits: &[(u32, Period)]) -> RateLimits {
        RateLimits::new(limits.iter().map(|&(limit, period)| RateLimit::new(limit, period).unwrap()).collect()).unwrap()
    }

    #[test]
    fn more_than_a_tenth_of_at_least_twenty_is_much_until_it_is_well_below() {
        let is_much = |sends, refused| Refusing::new(sends, refused, None).is_much();
        let cases = [(3, 1), (19, 19), (20, 2), (20, 3), (1_000, 100), (1_000, 101)];
        assert_eq!(cases.map(|(sends, refused)| is_much(sends, refused)), [false, false, false, true, false, true]);
        let is_still = |sends, refused| Refusing::new(sends, refused, None).is_still_much();
        assert_eq!([(100, 8), (100, 7), (0, 0)].map(|(sends, refused)| is_still(sends, refused)), [true, false, false]);
    }

    #[test]
    fn the_advice_is_a_limit_that_the_receiver_takes_or_an_adaptive_pace() {
        let says = |taken: u64, limits: &[(u32, Period)], is_adaptive: bool| {
            let stretches = std::iter::repeat_n(Stretch { attempted: 600, taken }, 3);
            let refusing = Refusing::new(1_800, 1_800 - 3 * taken, Observation::of(stretches, true));
            refusing.sentence(&limited(limits), is_adaptive.then(adaptive::Settings::default))
        };
        let seen = "the receiver answered 1500 of the 1800 sends of five minutes with 429";
        let fast = says(100, &[], false);
        assert_eq!(
            fast,
            format!(
                "{seen}; turn on the adaptive pace, or set a limit of 582 per minute, which is about what it takes"
            )
        );
        assert!(says(200, &[(60, Period::SECOND)], false).contains("a limit of 19 per second"));
        // It takes what the limit allows, or nothing at all.
        assert!(says(200, &[(10, Period::SECOND)], false).ends_with("or lower the limit"));
        assert!(says(0, &[], false).ends_with("or set a limit"));
        let adaptive = says(100, &[], true);
        assert!(adaptive.starts_with(&format!("{seen}: the adaptive pace")), "{adaptive}");
        assert!(adaptive.ends_with("or the slowest pace, 1 per minute, is more than it takes"), "{adaptive}");
    }
}
