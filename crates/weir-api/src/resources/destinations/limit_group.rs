//! Whether a destination may join or leave a limit group.

use weir_core::{Destination, LimitGroupId, Timestamp, access::Role, limit_group::MAX_MEMBERS};
use weir_store::MAX_LEFT_HOMES;

use crate::{
    auth::Caller,
    problem::{ApiResult, Problem, ProblemKind},
    state::ApiState,
};

/// A group of all tenants, and who is in it, is a matter of those who run Weir.
pub(crate) fn check_may_change_group(caller: &Caller, tenant: Option<&str>) -> ApiResult<()> {
    if let Some(tenant) = tenant {
        return caller.check_sees(tenant);
    }
    let refused = |why: &str| {
        Problem::new(ProblemKind::Forbidden, format!("to change a limit group of all tenants, or who is in it, {why}"))
    };
    caller.check_role(Role::Admin).map_err(|problem| refused(problem.detail()))?;
    caller.sees_all().then_some(()).ok_or_else(|| refused("this needs a key that is not bound to tenants"))
}

/// Refuses one more move of a destination that has left many groups and is not run meanwhile.
pub(super) fn check_may_leave(
    current: &Destination,
    (from, to): (Option<LimitGroupId>, Option<LimitGroupId>),
) -> ApiResult<()> {
    let is_known = current.left_homes.contains(&from.into());
    if from == to || is_known || current.left_homes.len() < MAX_LEFT_HOMES {
        return Ok(());
    }
    Err(Problem::conflict(format!(
        "the destination has left {MAX_LEFT_HOMES} limit groups since it was sent to: resume it, or wait until something is sent"
    )))
}

/// Refuses a destination that may not join or leave a group. The store compares again, in the transaction of the change.
pub(super) async fn check_may_move(
    api: &ApiState,
    caller: &Caller,
    (from, to): (Option<LimitGroupId>, Option<LimitGroupId>),
    tenant: &str,
) -> ApiResult<()> {
    if from == to {
        return Ok(());
    }
    let refused = |detail: String| Err(Problem::invalid_field("/limit_group", detail));
    let ids: Vec<LimitGroupId> = from.into_iter().chain(to).collect();
    let groups = api.store.limit_groups(&ids).await?;
    for group in groups.iter().flatten() {
        // Whoever takes a destination out of a group of all tenants sends beside its budget.
        if group.tenant.is_none() {
            check_may_change_group(caller, None)?;
        }
    }
    let Some(id) = to else { return Ok(()) };
    let Some(group) = groups.into_iter().flatten().find(|group| group.id == id) else {
        return refused(format!("there is no limit group {id}"));
    };
    match &group.tenant {
        Some(of) if !caller.sees(of) => return refused(format!("there is no limit group {id}")),
        Some(of) if of != tenant => {
            return refused(format!("is a group of the tenant `{of}`: name one of `{tenant}`, or one for all tenants"));
        }
        _ => {}
    }
    let members = api.store.memberships(id, Timestamp::MAX).await?.len();
    if members >= MAX_MEMBERS {
        return Err(Problem::conflict(format!("the limit group has {MAX_MEMBERS} members, which is the maximum")));
    }
    Ok(())
}
