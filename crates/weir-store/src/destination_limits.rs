//! How many destinations a tenant may have, and how many of them one event may go to.

use std::sync::Arc;

use parking_lot::RwLock;

/// The default of both limits. The deliveries of one event are stored in one commit, which then takes less than a
/// second.
pub const DEFAULT_MOST_DESTINATIONS: usize = 10_000;

/// The most destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DestinationLimits {
    pub of_tenant: usize,
    /// An event that would go to more is refused.
    pub of_event: usize,
}

impl Default for DestinationLimits {
    fn default() -> Self {
        Self { of_tenant: DEFAULT_MOST_DESTINATIONS, of_event: DEFAULT_MOST_DESTINATIONS }
    }
}

/// A store's limits, which are set after the store is opened. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SharedDestinationLimits(Arc<RwLock<DestinationLimits>>);

impl SharedDestinationLimits {
    pub fn set(&self, limits: DestinationLimits) {
        *self.0.write() = limits;
    }

    pub fn get(&self) -> DestinationLimits {
        *self.0.read()
    }
}
