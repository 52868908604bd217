//! Whose job it is: that of a destination, or of one of its limit keys.

use parking_lot::Mutex;
use weir_core::{DestinationId, IdMap, limit_key::is_of_key};
use weir_store::{FlowKey, RunStore, StoreResult};

/// The most flows that are remembered. Above this number all are forgotten. One takes up to 250 bytes, so these take 16 MB
/// at most.
const MOST_KNOWN: usize = 65_536;

/// Which destination and which limit key flows have. What a flow is never changes.
#[derive(Default)]
pub(crate) struct KnownFlows(Mutex<IdMap<DestinationId, FlowKey>>);

impl KnownFlows {
    /// Those of the ids that are flows with a limit key. A flow is missing if it has no delivery any more.
    pub(crate) async fn find(
        &self,
        store: &dyn RunStore,
        ids: impl Iterator<Item = DestinationId>,
    ) -> StoreResult<IdMap<DestinationId, FlowKey>> {
        let (mut found, mut unknown) = (IdMap::default(), Vec::new());
        {
            let known = self.0.lock();
            for id in ids.filter(|id| is_of_key(*id)) {
                match known.get(&id) {
                    Some(flow) => drop(found.insert(id, flow.clone())),
                    None => unknown.push(id),
                }
            }
        }
        if unknown.is_empty() {
            return Ok(found);
        }
        let read = store.flow_keys(&unknown).await?;
        let read = unknown.into_iter().zip(read).filter_map(|(id, flow)| Some((id, flow?)));
        let mut known = self.0.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        for (id, flow) in read {
            known.insert(id, flow.clone());
            found.insert(id, flow);
        }
        Ok(found)
    }
}
