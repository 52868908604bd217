//! What people set for all of Weir: how a policy is replaced while others replace it too.

use serde::Serialize;
use serde_json::json;
use weir_core::activity::{Action, Activity};
use weir_store::StoreResult;

use super::activity::{Author, differences};
use crate::{
    problem::{ApiResult, Problem},
    readers::if_match::ROUNDS,
    state::ApiState,
};

/// Replaces a policy, unless it is the current one, and records what was changed. `set`: replaces the policy that it
/// expects, and returns whether it still was that one.
pub(super) async fn replace<P, Reads, Sets>(
    api: &ApiState,
    author: &Author,
    action: Action,
    policy: &P,
    read: impl Fn() -> Reads,
    set: impl Fn(P, Activity) -> Sets,
) -> ApiResult<()>
where
    P: Serialize + PartialEq,
    Reads: Future<Output = StoreResult<P>>,
    Sets: Future<Output = StoreResult<bool>>,
{
    for _ in 0..ROUNDS {
        let current = read().await?;
        if *policy == current {
            return Ok(());
        }
        let (before, after) = differences(json!(current), json!(policy));
        // The store replaces only the policy that the activity names.
        if set(current, author.does(action, api.clock.now()).changing(before, after)).await? {
            return Ok(());
        }
    }
    Err(Problem::conflict("other requests keep changing the same settings; try again"))
}
