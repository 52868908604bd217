//! The history of a limit group: the traffic of its members in each bucket of a range, and the limits in force. A member's
//! traffic counts only while the member is in the group.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{DestinationId, Timestamp};
use weir_store::Membership;

use super::find;
use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{
        body::PathId,
        query::{Query, RangeParameters},
        texts::LimitGroupIdText,
    },
    resources::history::{Buckets, MAX_BUCKETS, StepParameters, changes_in},
    state::Api,
};

/// The most buckets of all members that one answer reads: a second of work, and 20 MB.
const MOST_READ: u128 = 200_000;

/// Whether a member was in the group at the beginning of a bucket, or joined in it.
fn counts(stays: &[Membership], buckets: Buckets, at: Timestamp) -> bool {
    stays.iter().any(|stay| stay.joined_at < at + buckets.step && stay.left_at.is_none_or(|left| at < left))
}

/// Show a limit group's history
///
/// What arrived at all members together, what was sent and how it ended, and the limits in force, those of overrides too.
/// A member counts in the buckets in which it was in the group. Ranges and steps are those of a destination's history; with
/// many members a bucket is longer, as the `step` of the answer says.
#[utoipa::path(
    get, path = "/v1/limit-groups/{id}/history", operation_id = "show_limit_group_history", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`"), RangeParameters, StepParameters),
    responses((status = 200, description = "The history", body = types::LimitGroupHistory))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(LimitGroupIdText(id)): PathId<LimitGroupIdText>,
    Query((range, StepParameters { step })): Query<(RangeParameters, StepParameters)>,
) -> ApiResult<Json<types::LimitGroupHistory>> {
    find(&api, &caller, id).await?;
    let (from, to) = range.times();
    let (step, now) = (step.map_or(0, |step| step.0), api.clock.now());
    // A member that left before the range counts in no bucket. The final range depends on the number of members, so the
    // members are read for the longest one.
    let oldest = Buckets::covering(from, to, step, MAX_BUCKETS, now)?.from;
    let mut members: BTreeMap<DestinationId, Vec<Membership>> = BTreeMap::new();
    for stay in api.store.memberships(id, oldest).await? {
        members.entry(stay.destination_id).or_default().push(stay);
    }
    let most = (MOST_READ / (members.len() as u128).max(1)).clamp(1, MAX_BUCKETS);
    let buckets = Buckets::covering(from, to, step, most, now)?;
    let mut data: Vec<_> = buckets
        .starts()
        .map(|at| types::LimitGroupHistoryBucket { at, sends: 0, delivered: 0, failed: 0, arrivals: 0 })
        .collect();
    let ids: Vec<DestinationId> = members.keys().copied().collect();
    for (member, recorded) in api.store.traffic_of(&ids, buckets.from, buckets.step).await? {
        let Some(stays) = members.get(&member) else { continue };
        for (at, traffic) in recorded.into_iter().filter(|&(at, _)| at < buckets.to && counts(stays, buckets, at)) {
            let sum = &mut data[buckets.index_of(at)];
            sum.sends += traffic.sends;
            sum.delivered += traffic.delivered;
            sum.failed += traffic.failed;
            sum.arrivals += traffic.arrivals;
        }
    }
    let changes = api.store.limit_group_changes(id).await?;
    Ok(Json(types::LimitGroupHistory {
        step: buckets.name.to_owned(),
        from: buckets.from,
        to: buckets.to,
        data,
        limit_changes: changes_in(&changes, buckets),
    }))
}
