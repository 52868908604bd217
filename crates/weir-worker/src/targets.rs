//! What to send to: each destination, compiled once per version of its settings.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::{Destination, DestinationId};
use weir_queue::Permit;
use weir_store::{SharedStore, StoreError};

use crate::outbound::Target;

/// Forget compiled targets when there are more than this.
const MAX_CACHED: usize = 50_000;

/// A destination and its compiled request parts.
pub(crate) struct DestinationTarget {
    pub(crate) destination: Arc<Destination>,
    pub(crate) target: Target,
}

impl DestinationTarget {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.destination.settings.timeout_ms.into())
    }
}

/// Compiled targets, by destination.
pub(crate) struct Targets {
    store: SharedStore,
    compiled: HashMap<DestinationId, Arc<DestinationTarget>>,
}

impl Targets {
    pub(crate) fn new(store: SharedStore) -> Self {
        Self { store, compiled: HashMap::new() }
    }

    /// The targets of these permits as their destinations are now, in the same order; `None` for a deleted one.
    pub(crate) async fn resolve(
        &mut self,
        permits: &[Permit],
    ) -> Result<Vec<Option<Arc<DestinationTarget>>>, StoreError> {
        let mut ids: Vec<_> = permits.iter().map(|permit| permit.id.destination_id).collect();
        ids.sort_unstable();
        ids.dedup();
        if self.compiled.len() > MAX_CACHED {
            self.compiled.clear();
        }
        for (id, destination) in ids.iter().zip(self.store.destinations(&ids).await?) {
            self.refresh(*id, destination);
        }
        Ok(permits.iter().map(|permit| self.compiled.get(&permit.id.destination_id).cloned()).collect())
    }

    fn refresh(&mut self, id: DestinationId, destination: Option<Arc<Destination>>) {
        let Some(destination) = destination else {
            self.compiled.remove(&id);
            return;
        };
        let current =
            self.compiled.get(&id).is_some_and(|compiled| compiled.destination.updated_at == destination.updated_at);
        if !current {
            let target = Target::new(&destination.settings.url, &destination.settings.headers);
            self.compiled.insert(id, Arc::new(DestinationTarget { destination, target }));
        }
    }
}
