//! The audit of a limit group: the sends of all members, merged by their times, while they were in the group, and the calls
//! of reservations.

use std::{cmp::Reverse, collections::BinaryHeap, collections::VecDeque, time::Duration};

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{
    LimitGroupId, ReservationId, Timestamp,
    audit::{AuditReport, Auditor},
    reservation::Reservation,
};
use weir_store::{Membership, SendRecord, SendsRequest};

use super::find;
use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{
        body::PathId,
        query::{Query, RangeParameters},
        texts::LimitGroupIdText,
    },
    resources::audit::{DEFAULT_RANGE, in_time, judge_send},
    state::{Api, ApiState},
};

/// The number of sends that are in memory at one time, of all members together.
const SENDS: usize = 20_000;
/// The least number of sends that are read at one time of one member.
const LEAST_PAGE: usize = 50;
/// The number of reservations that are in memory at one time.
const CALLS: u32 = 5_000;
/// What a member got from its own limits before it joined may start until then.
const EDIT_ACTS: Duration = Duration::from_millis(100);

/// Audit a limit group's limits
///
/// The sends of all members, each while it was in the group: exact for every sliding window inside the range, as the audit
/// of a destination. A destination that joins counts 100 ms later. A reservation counts as a call at the end of its slot,
/// unless it was given back: Weir does not see when the call started.
#[utoipa::path(
    get, path = "/v1/limit-groups/{id}/audit", operation_id = "show_limit_group_audit", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`"), RangeParameters),
    responses((status = 200, description = "The audit", body = types::Audit))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(LimitGroupIdText(id)): PathId<LimitGroupIdText>,
    Query(range): Query<RangeParameters>,
) -> ApiResult<Json<AuditReport>> {
    find(&api, &caller, id).await?;
    let (from, to) = range.times();
    let from = from.unwrap_or_else(|| to.unwrap_or_else(|| api.clock.now()).before(DEFAULT_RANGE).max(Timestamp::MIN));
    in_time("the audit", judge(&api, id, from, to.unwrap_or(Timestamp::MAX))).await.map(Json)
}

/// The sends of one member, in the order of their times.
struct Sends {
    request: SendsRequest,
    read: VecDeque<SendRecord>,
    is_last: bool,
}

impl Sends {
    fn of(member: &Membership, (from, to): (Timestamp, Timestamp), page: usize) -> Self {
        // Who was created in the group has sent nothing before.
        let from = from.max(member.joined_at + EDIT_ACTS);
        let to = to.min(member.left_at.unwrap_or(Timestamp::MAX));
        let request = SendsRequest { destination_id: member.destination_id, from, to, after: None, limit: page as u32 };
        Self { request, read: VecDeque::new(), is_last: from >= to }
    }

    /// When the next one started; `None` at the end.
    async fn next_at(&mut self, api: &ApiState) -> ApiResult<Option<Timestamp>> {
        if self.read.is_empty() && !self.is_last {
            let page = api.store.sends(self.request).await?;
            self.is_last = page.len() < self.request.limit as usize;
            self.request.after = page.last().map(|record| record.position);
            self.read = page.into();
            tokio::task::yield_now().await;
        }
        Ok(self.read.front().map(|record| record.position.sent_at))
    }
}

/// The calls of callers outside Weir, in the order of the ends of their slots.
struct Calls {
    group: LimitGroupId,
    after: (Timestamp, ReservationId),
    to: Timestamp,
    read: VecDeque<Reservation>,
    is_last: bool,
}

impl Calls {
    fn of(group: LimitGroupId, (from, to): (Timestamp, Timestamp)) -> Self {
        // No id is below this one.
        let after = (from, ReservationId::from_bytes([0; 16]));
        Self { group, after, to, read: VecDeque::new(), is_last: false }
    }

    async fn next_at(&mut self, api: &ApiState) -> ApiResult<Option<Timestamp>> {
        if self.read.is_empty() && !self.is_last {
            let page = api.store.reserved_after(self.group, self.after, self.to, CALLS).await?;
            self.is_last = page.len() < CALLS as usize;
            self.after = page.last().map_or(self.after, |last| (last.ends_at, last.id));
            self.read = page.into();
            tokio::task::yield_now().await;
        }
        Ok(self.read.front().map(|call| call.ends_at))
    }
}

async fn judge(api: &ApiState, id: LimitGroupId, from: Timestamp, to: Timestamp) -> ApiResult<AuditReport> {
    let changes = api.store.limit_group_changes(id).await?;
    let mut auditor = Auditor::new(changes.into_iter().map(|change| (change.at, change.limits)).collect(), from, to);
    let memberships = api.store.memberships(id, from).await?;
    let page = (SENDS / memberships.len().max(1)).max(LEAST_PAGE);
    let mut members: Vec<Sends> = memberships.iter().map(|member| Sends::of(member, (from, to), page)).collect();
    let mut calls = Calls::of(id, (from, to));
    let mut order = BinaryHeap::new();
    for (index, member) in members.iter_mut().enumerate() {
        order.extend(member.next_at(api).await?.map(|at| Reverse((at, index))));
    }
    // The calls are behind the last member.
    order.extend(calls.next_at(api).await?.map(|at| Reverse((at, members.len()))));
    while let Some(Reverse((_, index))) = order.pop() {
        let next = match members.get_mut(index) {
            Some(member) => {
                if let Some(record) = member.read.pop_front() {
                    judge_send(&mut auditor, &record);
                }
                member.next_at(api).await?
            }
            None => {
                if let Some(call) = calls.read.pop_front() {
                    auditor.reserved_call(call.cost, call.ends_at);
                }
                calls.next_at(api).await?
            }
        };
        order.extend(next.map(|at| Reverse((at, index))));
    }
    Ok(auditor.report())
}
