//! Limits as numbers, as the scripts keep them.

use weir_core::{
    Period, RateLimit,
    limit::{MinInterval, Shape},
};

const NAMED_PERIODS: u32 = Period::NAMED.len() as u32;

/// Above this the code of a period is that of a limit of the window shape: this number and the seconds. A program of an
/// earlier version refuses such a limit.
const SHAPED: u32 = NAMED_PERIODS + Period::DAY.as_seconds();

/// Above this the limit is in costs. A program of an earlier version refuses it too.
const IN_COSTS: u32 = 2 * SHAPED;

/// The period of a limit in calls and jobs: its position in the tables of the scripts, counted from 1, or their length
/// and its seconds; with the shape.
pub(crate) fn period_code(limit: &RateLimit) -> u32 {
    let period = limit.period;
    match limit.is_window() {
        true if limit.is_in_costs() => return IN_COSTS + period.as_seconds(),
        true => return SHAPED + period.as_seconds(),
        false => {}
    }
    let position = Period::NAMED.iter().position(|named| *named == period);
    position.map_or(NAMED_PERIODS + period.as_seconds(), |position| position as u32 + 1)
}

/// The period of a [`period_code`].
fn period_of_code(code: u32) -> Option<Period> {
    match code.checked_sub(NAMED_PERIODS + 1) {
        Some(seconds) => Period::from_seconds(seconds + 1),
        None => Period::NAMED.get(usize::try_from(code).ok()?.checked_sub(1)?).copied(),
    }
}

/// Reads a limit in the format of `Call::limits`.
pub(super) fn read_limit([limit, period, burst, margin]: [i64; 4]) -> Option<RateLimit> {
    let code = u32::try_from(period).ok()?;
    let beyond = |base: u32| code.checked_sub(base + 1).map(|seconds| Period::from_seconds(seconds + 1));
    let limit = |period| RateLimit::with_burst(limit.try_into().ok()?, period, burst.try_into().ok()?);
    let limit = match (beyond(IN_COSTS), beyond(SHAPED)) {
        (Some(period), _) => limit(period?)?.in_costs()?,
        (None, Some(period)) => limit(period?)?.with_shape(Shape::Window)?,
        (None, None) => limit(period_of_code(code)?)?,
    };
    limit.with_margin(u32::try_from(margin / 1_000).ok()?)
}

/// Reads a minimum interval in the format of `Call::limits`.
pub(super) fn read_interval(micros: i64) -> Option<MinInterval> {
    MinInterval::from_millis(u32::try_from(micros / 1_000).ok()?)
}
