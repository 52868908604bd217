//! The permits that this process has taken, with their entries of the delivery queue, and the generations it has heard of.
//!
//! An entry stays in the delivery queue until the store has recorded what became of its permit. So the entries of a dead worker can
//! still be found. A reader that asks again, after a failure, for what it was given gets these entries once more; a permit that is in hand is passed
//! over.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use weir_core::{Timestamp, claim::ProcessId};
use weir_queue::PermitId;

use crate::keys::{SHARDS, Shard};

/// Longer than any permit lives: what is older concerns nobody.
const REMEMBERED: Duration = Duration::from_secs(600);

/// A permit that was read from the delivery queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) generation: u64,
    pub(crate) expires_at: Timestamp,
    pub(crate) entry: String,
    /// The name that this process had when it took the permit; `None` without a lease.
    pub(crate) holder: Option<ProcessId>,
}

#[derive(Default)]
struct Known {
    generations: [u64; SHARDS],
    permits: HashMap<PermitId, Taken>,
}

#[derive(Default)]
pub(crate) struct PermitRegistry(Mutex<Known>);

impl PermitRegistry {
    // A panic while the lock is held is a bug already reported; what is known is still the best there is.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Generations only ever rise; answers whether this one ends another.
    pub(crate) fn learn_generation(&self, shard: Shard, generation: u64) -> bool {
        let known = &mut self.known().generations[shard.index()];
        let ended = std::mem::replace(known, generation.max(*known));
        ended > 0 && generation > ended
    }

    /// The shard's generation, as far as is known.
    pub(crate) fn generation(&self, shard: Shard) -> u64 {
        self.known().generations[shard.index()]
    }

    /// Takes a permit in hand. `false`: it must not be used, because it is there already, or of a generation that has ended.
    pub(crate) fn take(&self, id: PermitId, taken: Taken) -> bool {
        let shard = Shard::of(id.destination_id);
        self.learn_generation(shard, taken.generation);
        let mut known = self.known();
        if taken.generation != known.generations[shard.index()] || known.permits.contains_key(&id) {
            return false;
        }
        known.permits.insert(id, taken);
        true
    }

    /// Every permit in hand.
    pub(crate) fn held(&self) -> HashSet<PermitId> {
        self.known().permits.keys().copied().collect()
    }

    /// Under which name a permit in hand was taken; `None` when it is not in hand.
    pub(crate) fn holder(&self, id: PermitId) -> Option<Option<ProcessId>> {
        self.known().permits.get(&id).map(|taken| taken.holder)
    }

    /// Of which generation a permit in hand is.
    pub(crate) fn generation_of(&self, id: PermitId) -> Option<u64> {
        self.known().permits.get(&id).map(|taken| taken.generation)
    }

    /// The permit is out of hand, used or not.
    pub(crate) fn end(&self, id: PermitId) -> Option<Taken> {
        self.known().permits.remove(&id)
    }

    /// Forgets what concerns no permit any more.
    pub(crate) fn tidy(&self, now: Timestamp) {
        self.known().permits.retain(|_, taken| taken.expires_at > now - REMEMBERED);
    }
}

#[cfg(test)]
mod tests {
    use weir_core::DestinationId;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn permit(serial: u64) -> PermitId {
        PermitId { destination_id: DestinationId::from_bytes([1; 16]), serial }
    }

    fn taken(generation: u64) -> Taken {
        Taken { generation, expires_at: NOW, entry: "1-0".to_owned(), holder: None }
    }

    #[test]
    fn a_permit_that_comes_twice_is_used_once() {
        let registry = PermitRegistry::default();
        assert!(registry.take(permit(1), taken(5)));
        assert!(!registry.take(permit(1), taken(5)));
        assert_eq!(registry.end(permit(1)), Some(taken(5)));
        assert_eq!(registry.end(permit(1)), None);
    }

    #[test]
    fn a_permit_of_an_ended_generation_is_not_taken() {
        let registry = PermitRegistry::default();
        assert!(registry.take(permit(1), taken(5)));
        assert!(registry.learn_generation(Shard::of(permit(1).destination_id), 6));
        assert!(!registry.take(permit(2), taken(5)));
        assert!(registry.take(permit(3), taken(6)));
    }

    #[test]
    fn what_concerns_no_permit_is_forgotten() {
        let registry = PermitRegistry::default();
        registry.take(permit(1), taken(5));
        registry.tidy(NOW + REMEMBERED);
        assert!(registry.held().is_empty());
    }
}
