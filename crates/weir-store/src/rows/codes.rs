//! Values as the tables have them: a state, an outcome, a failure and a phase as a number, limits as JSON. The numbers
//! and the JSON are part of the schema.

use serde_json::{Value, json};
use weir_core::{
    DeliveryState, Period, RateLimit, RateLimits, delivery::AttemptOutcome, limit::Shape, outcome::Failure,
};

use crate::ReplayPhase;

/// The number of a state: its index in [`DeliveryState::ALL`].
pub const fn state_code(state: DeliveryState) -> i16 {
    state as i16
}

pub(super) fn state(code: i64) -> Option<DeliveryState> {
    at(&DeliveryState::ALL, code)
}

/// The number of an outcome: its index in [`AttemptOutcome::ALL`].
pub const fn outcome_code(outcome: AttemptOutcome) -> i16 {
    outcome as i16
}

pub(super) fn outcome(code: i64) -> Option<AttemptOutcome> {
    at(&AttemptOutcome::ALL, code)
}

/// The number of a failure: its index in [`Failure::ALL`].
pub const fn failure_code(failure: Failure) -> i16 {
    failure as i16
}

pub(super) fn failure(code: i64) -> Option<Failure> {
    at(&Failure::ALL, code)
}

/// The number of a phase: its index in [`ReplayPhase::ALL`].
pub const fn phase_code(phase: ReplayPhase) -> i16 {
    phase as i16
}

pub(super) fn phase(code: i64) -> Option<ReplayPhase> {
    at(&ReplayPhase::ALL, code)
}

fn at<T: Copy>(all: &[T], code: i64) -> Option<T> {
    all.get(usize::try_from(code).ok()?).copied()
}

/// In front of the period of a limit of the window shape. A program of an earlier version refuses such a period: it would
/// space the sends evenly, and not know what others have sent in the window.
const WINDOW: &str = "window ";

/// The member of a JSON object that has the limits of a destination with a limit group, or with homes that may still grant.
/// A program of an earlier version refuses an object: it would send beside the group.
const GROUPED: &str = "grouped";

/// The limits of a destination, as [`limits_json`] or under [`GROUPED`].
pub(super) fn destination_limits_json(limits: &RateLimits, is_grouped: bool) -> String {
    let json = limits_json(limits);
    if is_grouped { format!("{{\"{GROUPED}\":{json}}}") } else { json }
}

/// The limits of [`destination_limits_json`].
pub(super) fn destination_limits(text: &str) -> Option<RateLimits> {
    match text.starts_with('{') {
        true => limits(&serde_json::from_str::<Value>(text).ok()?[GROUPED].to_string()),
        false => limits(text),
    }
}

/// The limits of periods as a JSON array of `{"limit", "period", "burst"}`, with `"margin_ms"` unless it is 0.
pub fn limits_json(limits: &RateLimits) -> String {
    let limit = |limit: &RateLimit| {
        let shape = if limit.is_window() { WINDOW } else { "" };
        let mut json =
            json!({"limit": limit.limit, "period": format!("{shape}{}", limit.period), "burst": limit.burst});
        if limit.margin_ms() > 0 {
            json["margin_ms"] = limit.margin_ms().into();
        }
        json
    };
    Value::Array(limits.as_slice().iter().map(limit).collect()).to_string()
}

/// The column of a minimum interval.
pub fn interval_code(limits: &RateLimits) -> Option<i64> {
    limits.min_interval().map(|interval| interval.as_millis().into())
}

/// The limits of [`limits_json`]; `None` for a text that no store has written.
pub(super) fn limits(text: &str) -> Option<RateLimits> {
    let values: Vec<Value> = serde_json::from_str(text).ok()?;
    let limit = |value: &Value| {
        let number = |name: &str| value[name].as_u64().and_then(|number| u32::try_from(number).ok());
        let margin_ms = if value["margin_ms"].is_null() { 0 } else { number("margin_ms")? };
        let text = value["period"].as_str()?;
        let (shape, period) = match text.strip_prefix(WINDOW) {
            Some(period) => (Shape::Window, period),
            None => (Shape::Even, text),
        };
        RateLimit::with_burst(number("limit")?, Period::parse(period)?, number("burst")?)?
            .with_shape(shape)?
            .with_margin(margin_ms)
    };
    RateLimits::new(values.iter().map(limit).collect::<Option<_>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_states_and_outcomes_are_those_in_the_schema() {
        assert_eq!(DeliveryState::ALL.map(state_code), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(state_code(DeliveryState::Delivering), 1);
        assert_eq!(state_code(DeliveryState::Retrying), 2);
        assert_eq!(state_code(DeliveryState::Cancelled), 6);
        assert_eq!(state_code(DeliveryState::Superseded), 7);
        assert_eq!(state_code(DeliveryState::Expired), 8);
        assert_eq!(AttemptOutcome::ALL.map(outcome_code), [0, 1, 2, 3]);
        assert_eq!(outcome_code(AttemptOutcome::Unknown), 3);
        assert_eq!(Failure::ALL.map(failure_code), [0, 1, 2, 3, 4, 5]);
        assert_eq!((failure_code(Failure::Dns), failure_code(Failure::Forbidden)), (0, 5));
        assert_eq!(ReplayPhase::ALL.map(phase_code), [0, 1, 2, 3, 4]);
        assert_eq!(phase_code(ReplayPhase::Cancelled), 4);
    }

    #[test]
    fn values_are_read_back() {
        assert_eq!(DeliveryState::ALL.map(|one| state(state_code(one).into())), DeliveryState::ALL.map(Some));
        assert_eq!(AttemptOutcome::ALL.map(|one| outcome(outcome_code(one).into())), AttemptOutcome::ALL.map(Some));
        assert_eq!(Failure::ALL.map(|one| failure(failure_code(one).into())), Failure::ALL.map(Some));
        assert_eq!(ReplayPhase::ALL.map(|one| phase(phase_code(one).into())), ReplayPhase::ALL.map(Some));
        assert_eq!((state(-1), state(9), phase(5)), (None, None, None));
    }

    #[test]
    fn limits_are_read_back() {
        let second = RateLimit::with_burst(10, Period::SECOND, 3).unwrap();
        let day = RateLimit::new(1_000_000, Period::DAY).unwrap().with_margin(50).unwrap();
        let window = RateLimits::new(vec![day.as_window(), second.as_window()]).unwrap();
        for all in [RateLimits::UNLIMITED, RateLimits::new(vec![day, second]).unwrap(), window] {
            assert_eq!(limits(&limits_json(&all)), Some(all));
        }
        assert_eq!(limits(r#"[{"limit": 0, "period": "second", "burst": 1}]"#), None);
        assert_eq!(limits(r#"[{"limit": 1, "period": "second", "burst": 1, "margin_ms": 10001}]"#), None);
        let second = RateLimits::new(vec![second]).unwrap();
        assert!(!limits_json(&second).contains("margin_ms"), "as an earlier version writes it");
    }
}
