//! What the recorded sends say of each bucket: the fullest window of each limit, and the errors.

use std::ops::Range;

use weir_api_types as types;
use weir_core::{DestinationId, Period, RateLimits, Timestamp, audit::windows::fullest_by_bucket, limit::Unit};
use weir_store::{HOUR, LimitChange, SendRecord, SendsRequest, TrafficHistory};

use super::Buckets;
use crate::{problem::ApiResult, resources::failures::counted, state::ApiState};

/// The most sends that are read for one answer: half a second of work, and 1.6 MB. The windows and the errors of a longer
/// range are left out.
const MAX_SENDS: usize = 200_000;
/// The sends of one page.
const PAGE: u32 = 5_000;

/// For each bucket, the fullest window of each limit.
#[derive(Debug, Default)]
pub(super) struct Fullest {
    windows: Vec<OfLimit>,
    /// The periods with limits whose windows are not computed.
    pub(super) left_out: Vec<Period>,
}

/// A limit, by what tells it from the others of its destination.
type Limit = (Period, Unit);

/// The windows of one limit: by bucket, the sends or the costs of the fullest window, and the bound if it is in force.
#[derive(Debug)]
struct OfLimit {
    limit: Limit,
    fullest: Vec<u64>,
    bounds: Vec<Option<u64>>,
}

/// The recorded sends of an interval, earliest first.
#[derive(Debug)]
pub(super) struct Sends {
    starts: Vec<Timestamp>,
    /// Before each send, what all earlier ones cost together; and what all cost.
    costs: Vec<u64>,
    /// Those that failed, with the error.
    failed: Vec<(Timestamp, String)>,
}

impl Default for Sends {
    fn default() -> Self {
        Self { starts: Vec::new(), costs: vec![0], failed: Vec::new() }
    }
}

impl Sends {
    /// The fullest windows of a limit that end in each bucket.
    fn fullest(&self, (period, unit): Limit, buckets: Buckets) -> Vec<u64> {
        let window = period.window();
        // From the first window of this period on: a longer one has earlier sends.
        let first = self.starts.partition_point(|at| *at < buckets.from.before(window));
        let held = |sends: Range<usize>| match unit {
            Unit::Request => sends.len() as u64,
            Unit::Cost => self.costs[first + sends.end] - self.costs[first + sends.start],
        };
        fullest_by_bucket(&self.starts[first..], held, window, buckets.from, buckets.step, buckets.count())
    }

    fn add(&mut self, send: &SendRecord) {
        let at = send.position.sent_at;
        self.starts.push(at);
        self.costs.push(self.costs.last().copied().unwrap_or_default() + u64::from(send.cost));
        if let Some(kind) = send.error_kind {
            let status = send.status_code.filter(|_| !send.is_unknown);
            self.failed.push((at, status.map_or_else(|| kind.to_string(), |status| status.to_string())));
        }
    }
}

/// How the attempts of each bucket failed. `None`: there are too many sends to read.
#[derive(Debug)]
pub(super) struct Errors(Option<Vec<Vec<types::ErrorCount>>>);

impl Errors {
    /// `sends`: those that were read for the windows.
    pub(super) async fn of(
        api: &ApiState,
        id: DestinationId,
        buckets: Buckets,
        sends: Option<Sends>,
        history: &TrafficHistory,
    ) -> ApiResult<Self> {
        if history.buckets.iter().all(|(_, traffic)| traffic.failed == 0) {
            return Ok(Self(Some(Vec::new())));
        }
        let in_range: u64 = history.buckets.iter().map(|(_, traffic)| traffic.sends).sum();
        let sends = match sends {
            Some(sends) => Some(sends),
            None if in_range <= MAX_SENDS as u64 => self::sends(api, id, buckets.from, buckets.to).await?,
            None => None,
        };
        let Some(sends) = sends else { return Ok(Self(None)) };
        let mut errors = vec![Vec::new(); buckets.count()];
        for (at, error) in sends.failed {
            if buckets.from <= at && at < buckets.to {
                errors[buckets.index_of(at)].push(error);
            }
        }
        for (at, traffic) in &history.buckets {
            // An attempt without a connection is no send.
            let unsent = (traffic.delivered + traffic.failed).saturating_sub(traffic.sends);
            let unsent = usize::try_from(unsent).unwrap_or(usize::MAX).min(MAX_SENDS);
            errors[buckets.index_of(*at)].extend(std::iter::repeat_n("connect".to_owned(), unsent));
        }
        Ok(Self(Some(errors.into_iter().map(counted).collect())))
    }

    pub(super) fn are_left_out(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn in_bucket(&self, index: usize) -> Vec<types::ErrorCount> {
        self.0.as_ref().and_then(|errors| errors.get(index)).cloned().unwrap_or_default()
    }
}

impl Fullest {
    /// The limit, the sends or costs, and the bound of each window of a bucket.
    pub(super) fn in_bucket(&self, index: usize) -> impl Iterator<Item = (Limit, u64, u64)> {
        self.windows.iter().filter_map(move |of| Some((of.limit, of.fullest[index], of.bounds[index]?)))
    }
}

/// The windows, with the sends that were read for them.
pub(super) async fn fullest(
    api: &ApiState,
    id: DestinationId,
    buckets: Buckets,
    changes: &[LimitChange],
    history: &TrafficHistory,
) -> ApiResult<(Fullest, Option<Sends>)> {
    let bounds = |limit| buckets.starts().map(|at| bound_in(changes, limit, at, at + buckets.step)).collect();
    let periods = |unit| RateLimits::periods(changes.iter().map(|change| &change.limits), unit);
    let of_unit = |unit| periods(unit).into_iter().map(move |period| (period, unit));
    let mut limited: Vec<(Limit, Vec<Option<u64>>)> =
        of_unit(Unit::Request).chain(of_unit(Unit::Cost)).map(|limit| (limit, bounds(limit))).collect();
    limited.sort_by_key(|((period, _), _)| *period);
    limited.retain(|(_, bounds)| bounds.iter().any(Option::is_some));
    // Periods with too many sends are left out. A longer window begins earlier, so it can have too many sends although
    // a shorter one has few enough.
    let mut result = Fullest::default();
    let mut from = buckets.to;
    let mut computed = Vec::new();
    for (limit, bounds) in limited {
        let (period, _) = limit;
        let begin = buckets.from.before(period.window()).max(Timestamp::MIN);
        if recorded_since(api, id, begin, buckets.to).await? > MAX_SENDS as u64 {
            result.left_out.push(period);
        } else {
            from = from.min(begin);
            computed.push((limit, bounds));
        }
    }
    if computed.is_empty() {
        return Ok((result, None));
    }
    let in_range: u64 = history.buckets.iter().map(|(_, traffic)| traffic.sends).sum();
    let sends = sends(api, id, from, buckets.to).await?;
    // Retention may have deleted attempts whose traffic is still recorded. Then there are fewer sends than the traffic
    // counts, and no window can be computed.
    let is_complete = |sends: &Sends| sends.starts.iter().filter(|at| **at >= buckets.from).count() as u64 >= in_range;
    let Some(read) = sends.filter(is_complete) else {
        result.left_out.extend(computed.into_iter().map(|((period, _), _)| period));
        result.left_out.dedup();
        return Ok((result, None));
    };
    for (limit, bounds) in computed {
        result.windows.push(OfLimit { limit, fullest: read.fullest(limit, buckets), bounds });
    }
    result.left_out.dedup();
    Ok((result, Some(read)))
}

/// The recorded sends of an interval, which is widened to whole hours.
async fn recorded_since(api: &ApiState, id: DestinationId, from: Timestamp, to: Timestamp) -> ApiResult<u64> {
    let recorded = api.store.traffic(id, from.floor(HOUR), to, HOUR).await?;
    Ok(recorded.buckets.iter().map(|(_, traffic)| traffic.sends).sum())
}

/// The sends of an interval; `None` if there are too many. The check by recorded traffic misses sends from before traffic
/// was recorded, so the sends are counted here too.
async fn sends(api: &ApiState, id: DestinationId, from: Timestamp, to: Timestamp) -> ApiResult<Option<Sends>> {
    let mut sends = Sends::default();
    let mut request = SendsRequest { destination_id: id, from, to, after: None, limit: PAGE };
    loop {
        let page = api.store.sends(request).await?;
        page.iter().for_each(|record| sends.add(record));
        if sends.starts.len() > MAX_SENDS {
            return Ok(None);
        }
        if page.len() < PAGE as usize {
            return Ok(Some(sends));
        }
        request.after = page.last().map(|record| record.position);
    }
}

/// The bound of the windows of a limit that end in `[begin, end)`: the bound of the largest limit in force in such a
/// window. `None` if no limit is in force in the interval, or if a part of such a window has no limit.
fn bound_in(changes: &[LimitChange], (period, unit): Limit, begin: Timestamp, end: Timestamp) -> Option<u64> {
    let bound = |change: &LimitChange| {
        let mut limits = change.limits.as_slice().iter();
        limits.find(|limit| (limit.period, limit.unit()) == (period, unit)).map(weir_core::RateLimit::bound)
    };
    let in_force = |from: Timestamp| {
        let first = changes.partition_point(|change| change.at <= from).saturating_sub(1);
        changes[first..].iter().take_while(move |change| change.at < end)
    };
    in_force(begin).any(|change| bound(change).is_some()).then_some(())?;
    in_force(begin.before(period.window())).map(bound).try_fold(0, |most, bound| Some(most.max(bound?)))
}

#[cfg(test)]
mod tests {
    use weir_core::{RateLimit, RateLimits};

    use super::*;

    fn change(at_s: i64, per_minute: Option<u32>) -> LimitChange {
        let limits = per_minute.map(|limit| RateLimit::new(limit, Period::MINUTE).unwrap());
        LimitChange { at: Timestamp::from_secs(at_s), limits: RateLimits::new(limits.into_iter().collect()).unwrap() }
    }

    #[test]
    fn a_window_across_an_edit_is_held_to_the_larger_limit() {
        let bound = |changes: &[LimitChange], at_s: i64| {
            bound_in(
                changes,
                (Period::MINUTE, Unit::Request),
                Timestamp::from_secs(at_s),
                Timestamp::from_secs(at_s + 10),
            )
        };
        let lowered = [change(0, Some(60)), change(1_000, Some(6))];
        assert_eq!([900, 990, 1_000, 1_050, 1_070].map(|at| bound(&lowered, at)), [60, 60, 60, 60, 6].map(Some));
        let removed = [change(0, Some(60)), change(1_000, None), change(2_000, Some(5))];
        assert_eq!([990, 1_000, 2_000, 2_070].map(|at| bound(&removed, at)), [Some(60), None, None, Some(5)]);
        assert_eq!(bound_in(&lowered, (Period::HOUR, Unit::Request), Timestamp::MIN, Timestamp::MAX), None);
    }
}
