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
use weir_store::{HOUR, Latencies, MINUTE, TRAFFIC_BUCKET, TRAFFIC_KEPT};

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
const MAX_BUCKETS: u128 = 1_500;

/// The lengths of buckets, with how long buckets of this length are kept.
const STEPS: [(&str, Duration, Duration); 3] =
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
        /// The length of a bucket: `10s` for the last day, `1m` for the last 14 days, `1h` for the last year.
        #[param(default = "10s")]
        step: Option<StepText>,
    }
}

/// The buckets of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Buckets {
    from: Timestamp,
    to: Timestamp,
    step: Duration,
}

impl Buckets {
    /// The whole buckets that cover a range.
    fn covering(from: Option<Timestamp>, to: Option<Timestamp>, step: usize, now: Timestamp) -> ApiResult<Self> {
        let (name, step, kept) = STEPS[step];
        // Nothing is recorded of the future.
        let to = ceil(to.unwrap_or(now).min(now), step);
        let from = from.unwrap_or_else(|| to.before(DEFAULT_RANGE)).max(Timestamp::MIN).floor(step);
        let this = Self { from, to: to.max(from), step };
        if this.count() > MAX_BUCKETS as usize {
            let detail = format!("must be later: the range has more than {MAX_BUCKETS} buckets of {name}");
            return Err(Problem::invalid_field("/from", detail));
        }
        if from < now.before(kept).floor(HOUR) {
            let kept = match kept.as_secs() / 86_400 {
                1 => "a day".to_owned(),
                days => format!("{days} days"),
            };
            let detail = format!("must be longer: buckets of {name} are kept for {kept}, and `from` is earlier");
            return Err(Problem::invalid_field("/step", detail));
        }
        Ok(this)
    }

    fn count(&self) -> usize {
        usize::try_from(self.to.since(self.from).as_nanos() / self.step.as_nanos()).unwrap_or(usize::MAX)
    }

    /// The beginnings of the buckets.
    fn starts(self) -> impl Iterator<Item = Timestamp> {
        (0..self.count() as u32).map(move |index| self.from + self.step * index)
    }

    /// The bucket that contains an instant of the range.
    fn index_of(&self, at: Timestamp) -> usize {
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
/// Every bucket of the range is present. The range is widened to whole buckets and ends now at the latest. Without
/// `from`, it begins 15 minutes before `to`. An attempt counts in the bucket in which it started, once its result is
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
    let buckets = Buckets::covering(from, to, step, api.clock.now())?;
    Ok(Json(read(&api, id, buckets, STEPS[step].0, api.clock.now()).await?))
}

async fn read(
    api: &ApiState,
    id: DestinationId,
    buckets: Buckets,
    step: &'static str,
    now: Timestamp,
) -> ApiResult<types::History> {
    let history = api.store.traffic(id, buckets.from, buckets.to, buckets.step).await?;
    let changes = api.store.limit_changes(id).await?;
    let (fullest, sends) = windows::fullest(api, id, buckets, &changes, &history).await?;
    let errors = Errors::of(api, id, buckets, sends, &history).await?;
    let latencies = latencies(api, id, buckets, now).await?;
    Ok(view::view(step, buckets, &history, (fullest, &errors), latencies, &changes))
}

/// The answer times by the minute, or by the hour in long ranges and where minutes are added up to hours.
async fn latencies(
    api: &ApiState,
    id: DestinationId,
    buckets: Buckets,
    now: Timestamp,
) -> ApiResult<Vec<types::HistoryLatency>> {
    let is_recent = buckets.from >= now.before(TRAFFIC_KEPT[0]);
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
        Buckets::covering(from_s.map(Timestamp::from_secs), to_s.map(Timestamp::from_secs), step, NOW)
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
    fn too_many_buckets_and_buckets_that_are_not_kept_are_refused() {
        let refused = |from_s: i64, step| {
            let problem = covering(Some(from_s), None, step).unwrap_err();
            problem.errors()[0].pointer.clone()
        };
        let now = 1_800_000_000;
        assert_eq!(refused(now - 15_001, 0), "/from");
        assert_eq!(covering(Some(now - 14_990), None, 0).unwrap().count(), 1_500);
        let old = |from_s: i64, to_s: i64, step| covering(Some(from_s), Some(to_s), step);
        assert_eq!(old(now - 2 * 86_400, now - 2 * 86_400 + 60, 0).unwrap_err().errors()[0].pointer, "/step");
        assert!(old(now - 2 * 86_400, now - 2 * 86_400 + 60, 1).is_ok());
    }

    #[test]
    fn every_step_that_the_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<StepText>();
    }
}
