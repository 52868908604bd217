//! What a member of a limit group may send of its rate.

use weir_core::{Destination, shares::Share};

use crate::{problem::ApiResult, state::ApiState};

/// The share of a member of a limit group, from the sample that has all members.
pub(crate) async fn share_of(api: &ApiState, destination: &Destination) -> ApiResult<Option<Share>> {
    if destination.settings.limit_group.is_none() {
        return Ok(None);
    }
    Ok(api.live.sample().await?.row(destination.id).and_then(|row| row.figures.share))
}
