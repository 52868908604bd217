//! The adaptive paces of destinations, as the queue knows them.

use std::{collections::HashMap, time::Duration};

use weir_core::{
    Destination, DestinationId,
    adaptive::{AdaptiveRate, Status},
};
use weir_queue::SharedQueue;

use crate::{problem::ApiResult, state::ApiState};

/// How long the queue is waited for: pages show the other figures without it.
const PATIENCE: Duration = Duration::from_millis(500);

/// The paces of those of these destinations that are adaptive. None while the queue does not answer.
pub(crate) async fn known_paces(
    queue: &SharedQueue,
    destinations: impl Iterator<Item = &Destination>,
) -> HashMap<DestinationId, Status> {
    let adaptive = destinations.filter(|destination| destination.settings.adaptive.is_some());
    let ids: Vec<DestinationId> = adaptive.map(|destination| destination.id).collect();
    if ids.is_empty() {
        return HashMap::new();
    }
    let answer = tokio::time::timeout(PATIENCE, queue.paces(&ids)).await;
    let paces = answer.ok().and_then(Result::ok).unwrap_or_default();
    ids.into_iter().zip(paces).filter_map(|(id, pace)| Some((id, pace?))).collect()
}

/// The pace of a destination, or else its last copy. `None`: it is not adaptive, or has not sent yet.
pub(crate) async fn pace_of(api: &ApiState, destination: &Destination) -> ApiResult<Option<Status>> {
    if destination.settings.adaptive.is_none() {
        return Ok(None);
    }
    let known = known_paces(&api.queue, std::iter::once(destination)).await.remove(&destination.id);
    if known.is_some() {
        return Ok(known);
    }
    let copy = api.store.paces(&[destination.id]).await?.pop().flatten();
    // A copy of another version may not be readable.
    Ok(copy.and_then(|copy| Some(serde_json::from_str::<AdaptiveRate>(&copy.json).ok()?.status(copy.saved_at))))
}
