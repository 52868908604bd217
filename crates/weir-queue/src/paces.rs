//! The adaptive paces of destinations, as the queue knows them.

use std::{collections::HashMap, time::Duration};

use weir_core::{Destination, DestinationId, adaptive::Status};

use crate::SharedQueue;

/// How long the queue is waited for: pages and alerts go on without it.
const PATIENCE: Duration = Duration::from_millis(500);

/// The paces of those of these destinations that are adaptive. None while the queue does not answer.
pub async fn known_paces(
    queue: &SharedQueue,
    destinations: impl Iterator<Item = &Destination>,
) -> HashMap<DestinationId, Status> {
    let adaptive = destinations.filter(|destination| destination.settings.adaptive.is_some());
    let learn = |of: &Destination| queue.learn_group(of.id, of.settings.limit_group);
    let ids: Vec<DestinationId> = adaptive.inspect(|of| learn(of)).map(|destination| destination.id).collect();
    if ids.is_empty() {
        return HashMap::new();
    }
    let answer = tokio::time::timeout(PATIENCE, queue.paces(&ids)).await;
    let paces = answer.ok().and_then(Result::ok).unwrap_or_default();
    ids.into_iter().zip(paces).filter_map(|(id, pace)| Some((id, pace?))).collect()
}
