//! The history of a destination: what happened in each bucket of a range, and the fullest window of each limit.
//!
//! Sends and backlogs come from the recorded traffic ([`weir_store::TrafficLog`]), so their cost depends only on the
//! number of buckets. The fullest windows are exact at every step, because they come from the recorded send starts.

mod view;
mod windows;

use std::time::Duration;

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{DestinationId, Timestamp};
use weir_store::{HISTOGRAM_MINUTES_KEPT, HOUR, Latencies, MINUTE, TRAFFIC_BUCKET, TRAFFIC_KEPT};

pub(crate) use self::view::changes_in;
use self::windows::Errors;
use super::destinations;
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem},
    readers::{
        body::PathId,
        query::{Query, RangeParameters, parameters},
        texts::{DestinationIdText, text},
    },
    state::{Api, ApiState},
};

/// The range of a history without `from`.
const DEFAULT_RANGE: Duration = Duration::from_secs(15 * 60);
/// The most buckets of one answer: more than a chart has pixels.
pub(crate) const MAX_BUCKETS: u128 = 1_500;

/// The lengths of buckets, with how long buckets of this length are kept.
static STEPS: [(&str, Duration, Duration); 3] =
    [("10s", TRAFFIC_BUCKET, TRAFFIC_KEPT[0]), ("1m", MINUTE, TRAFFIC_KEPT[1]), ("1h", HOUR, TRAFFIC_KEPT[2])];

text! {
    /// The length of a bucket.
    #[schema(as = HistoryStep, value_type = String, pattern = "^(10s|1m|1h)$", example = "10s")]
    pub(crate) struct StepText(usize);
    parse = |text| STEPS.iter().position(|(name, ..)| *name == text).ok_or_else(|| {
        "must be `10s`, `1m` or `1h`".to_owned()
    });
}

parameters! {
    /// The length of the buckets.
    pub(crate) struct StepParameters {
        /// The least length of a bucket. Buckets of `10s` are kept for two hours, of `1m` for a day, and of `1h` for a year.
        /// A range that is too long or too old for them has longer buckets, as the `step` of the answer says.
        #[param(default = "10s")]
        pub(crate) step: Option<StepText>,
    }
}

/// The buckets of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buckets {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) step: Duration,
    /// The name of the step.
    pub(crate) name: &'static str,
}

impl Buckets {
    /// The whole buckets that cover a range: the shortest ones that are at least as long as `step`, are still kept, and
    /// are at most so many.
    pub(crate) fn covering(
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        step: usize,
        most: u128,
        now: Timestamp,
    ) -> ApiResult<Self> {
        let (longest, steps) = STEPS[step..].split_last().unwrap_or((&STEPS[STEPS.len() - 1], &[]));
        let fitting = steps.iter().find_map(|step| Self::of_step(from, to, step, most, now).ok());
        fitting.map_or_else(|| Self::of_step(from, to, longest, most, now), Ok)
    }

    fn of_step(
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        &(name, step, kept): &(&'static str, Duration, Duration),
        most: u128,
        now: Timestamp,
    ) -> ApiResult<Self> {
        // Nothing is recorded of the future.
        let to = ceil(to.unwrap_or(now).min(now), step);
        let from = from.unwrap_or_else(|| to.before(DEFAULT_RANGE)).max(Timestamp::MIN).floor(step);
        let this = Self { from, to: to.max(from), step, name };
        if this.count() > most as usize {
            let days = step.as_secs() * most as u64 / 86_400;
            let detail = format!("must be later: a history has at most {most} buckets, which are {days} days");
            return Err(Problem::invalid_field("/from", detail));
        }
        if from < now.before(kept).floor(step) {
            let detail = format!("must be later: the history is kept for {} days", kept.as_secs() / 86_400);
            return Err(Problem::invalid_field("/from", detail));
        }
        Ok(this)
    }

    fn count(&self) -> usize {
        usize::try_from(self.to.since(self.from).as_nanos() / self.step.as_nanos()).unwrap_or(usize::MAX)
    }

    /// The beginnings of the buckets.
    pub(crate) fn starts(self) -> impl Iterator<Item = Timestamp> {
        (0..self.count() as u32).map(move |index| self.from + self.step * index)
    }

    /// The bucket that contains an instant of the range.
    pub(crate) fn index_of(&self, at: Timestamp) -> usize {
        (at.since(self.from).as_nanos() / self.step.as_nanos()) as usize
    }
}

fn ceil(at: Timestamp, step: Duration) -> Timestamp {
    let floor = at.floor(step);
    if floor == at { at } else { floor + step }
}

/// Show a destination's history
///
/// What arrived and what was sent, how it ended, how long the receiver took to answer, and the fullest windows.
/// Every bucket of the range is present, 1,500 at most: a longer range has longer buckets. The range is widened to whole
/// buckets and ends now at the latest. Without `from`, it begins 15 minutes before `to`. An attempt counts in the bucket
/// in which it started, once its result is
/// recorded.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/history", operation_id = "show_history", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), RangeParameters, StepParameters),
    responses((status = 200, description = "The history", body = types::History))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    Query((range, StepParameters { step })): Query<(RangeParameters, StepParameters)>,
) -> ApiResult<Json<types::History>> {
    destinations::find(&api, &caller, id).await?;
    let (from, to) = range.times();
    let step = step.map_or(0, |step| step.0);
    let buckets = Buckets::covering(from, to, step, MAX_BUCKETS, api.clock.now())?;
    Ok(Json(read(&api, id, buckets, api.clock.now()).await?))
}

async fn read(api: &ApiState, id: DestinationId, buckets: Buckets, now: Timestamp) -> ApiResult<types::History> {
    let history = api.store.traffic(id, buckets.from, buckets.to, buckets.step).await?;
    let changes = api.store.limit_changes(id).await?;
    let (fullest, sends) = windows::fullest(api, id, buckets, &changes, &history).await?;
    let errors = Errors::of(api, id, buckets, sends, &history).await?;
    let latencies = latencies(api, id, buckets, now).await?;
    Ok(view::view(buckets.name, buckets, &history, (fullest, &errors), latencies, &changes))
}

/// The answer times by the minute, or by the hour in long ranges and where minutes are added up to hours.
async fn latencies(
    api: &ApiState,
    id: DestinationId,
    buckets: Buckets,
    now: Timestamp,
) -> ApiResult<Vec<types::HistoryLatency>> {
    let is_recent = buckets.from >= now.before(HISTOGRAM_MINUTES_KEPT);
    let step = if is_recent && buckets.step <= MINUTE { MINUTE } else { HOUR };
    let found = api.store.latencies(id, buckets.from.floor(step), buckets.to, step).await?;
    let view = |(at, latencies): (Timestamp, Latencies)| {
        let percentile = |share| Some((latencies.percentile(share)? * 10.0).round() / 10.0);
        Some(types::HistoryLatency { at, step_s: step.as_secs() as u32, p50: percentile(0.5)?, p95: percentile(0.95)? })
    };
    Ok(found.into_iter().filter_map(view).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::texts::tests::assert_pattern_is_accepted;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_005);

    fn covering(from_s: Option<i64>, to_s: Option<i64>, step: usize) -> ApiResult<Buckets> {
        Buckets::covering(from_s.map(Timestamp::from_secs), to_s.map(Timestamp::from_secs), step, MAX_BUCKETS, NOW)
    }

    #[test]
    fn a_range_is_widened_to_whole_buckets_and_ends_now() {
        let of = |from_s, to_s, step| {
            let buckets = covering(from_s, to_s, step).unwrap();
            (buckets.from.as_secs(), buckets.to.as_secs(), buckets.count())
        };
        let now = 1_800_000_000;
        assert_eq!(of(None, None, 0), (now - 890, now + 10, 90));
        assert_eq!(of(Some(now - 35), Some(now - 11), 0), (now - 40, now - 10, 3));
        assert_eq!(of(Some(now - 35), Some(now + 999), 1), (now - 60, now + 60, 2));
        assert_eq!(of(Some(now + 100), None, 0), (now + 100, now + 100, 0), "in the future nothing happened");
    }

    #[test]
    fn a_range_that_is_too_long_or_too_old_for_its_step_has_longer_buckets() {
        let (now, day) = (1_800_000_000, 86_400);
        let of = |from_s, to_s, step| {
            let buckets = covering(Some(from_s), to_s, step).unwrap();
            (buckets.name, buckets.count())
        };
        assert_eq!(of(now - 7_190, None, 0), ("10s", 720));
        assert_eq!(of(now - 7_260, None, 0), ("1m", 122));
        assert_eq!(of(now - 7 * day, None, 0), ("1h", 169));
        assert_eq!(of(now - day, Some(now - day + 60), 0), ("1m", 1), "ten seconds are kept for two hours");
        assert_eq!(of(now - 20 * day, Some(now - 20 * day + 60), 0), ("1h", 1));
        assert_eq!(of(now - 60, None, 2), ("1h", 2), "never shorter than asked for");
        for from_s in [now - 63 * day, now - 366 * day] {
            assert_eq!(covering(Some(from_s), None, 0).unwrap_err().errors()[0].pointer, "/from");
        }
        let of_a_year_ago = covering(Some(now - 400 * day), Some(now - 399 * day), 0).unwrap_err();
        assert_eq!(of_a_year_ago.errors()[0].detail, "must be later: the history is kept for 365 days");
    }

    #[test]
    fn every_step_that_the_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<StepText>();
    }
}
