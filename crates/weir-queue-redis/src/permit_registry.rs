//! The permits that this process holds, with their entries of the delivery queue, and the known generations.
//!
//! An entry stays in the delivery queue until the store has recorded the end of its permit. So the entries of a dead
//! worker can still be found. After a failure a reader asks again for its own entries; permits that the process already
//! holds are skipped.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use weir_core::{Timestamp, claim::ProcessId};
use weir_queue::PermitId;

use crate::keys::{SHARDS, Shard};

/// Older permits are dropped. A permit is in use for three minutes at most: a minute until its send starts, and two
/// minutes, the longest timeout.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// A permit that was read from the delivery queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldPermit {
    /// The shard that issued it. Its destination may have left this shard since.
    pub(crate) shard: Shard,
    pub(crate) generation: u64,
    pub(crate) expires_at: Timestamp,
    pub(crate) entry: String,
    /// The process id under which the permit was taken; `None` for a process that has never registered.
    pub(crate) holder: Option<ProcessId>,
    /// The start of the slot that it got last, by the clock of Redis in microseconds; 0 before the first.
    pub(crate) slot_start: i64,
}

#[derive(Default)]
struct State {
    generations: [u64; SHARDS],
    /// When this process learned of the latest generation of a shard.
    learned_at: Option<Instant>,
    /// How many times permits were lost, or may have been lost.
    losses: u64,
    permits: HashMap<PermitId, HeldPermit>,
}

#[derive(Default)]
pub(crate) struct PermitRegistry(Mutex<State>);

impl PermitRegistry {
    /// Learns a generation; generations only rise. Returns whether it ends an earlier one.
    pub(crate) fn learn_generation(&self, shard: Shard, generation: u64) -> bool {
        let mut state = self.0.lock();
        let ended = state.generations[shard.index()];
        if generation <= ended {
            return false;
        }
        state.generations[shard.index()] = generation;
        state.learned_at = Some(Instant::now());
        let is_loss = ended > 0;
        state.losses += u64::from(is_loss);
        is_loss
    }

    /// Whether this process knows the generations of all shards for so long.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        self.0.lock().learned_at.is_some_and(|at| at.elapsed() >= age)
    }

    /// Redis does not answer, so a loss would not be noticed.
    pub(crate) fn doubt(&self) {
        self.0.lock().losses += 1;
    }

    pub(crate) fn losses(&self) -> u64 {
        self.0.lock().losses
    }

    /// The latest known generation of the shard.
    pub(crate) fn generation(&self, shard: Shard) -> u64 {
        self.0.lock().generations[shard.index()]
    }

    /// Adds a permit. `false`: it must not be used, because the process holds it already or its generation has ended.
    pub(crate) fn register(&self, id: PermitId, permit: HeldPermit) -> bool {
        let mut state = self.0.lock();
        if permit.generation != state.generations[permit.shard.index()] || state.permits.contains_key(&id) {
            return false;
        }
        state.permits.insert(id, permit);
        true
    }

    /// All permits that the process holds.
    pub(crate) fn held(&self) -> HashSet<PermitId> {
        self.0.lock().permits.keys().copied().collect()
    }

    /// The process id under which a held permit was taken; the outer `None` when the permit is not held.
    pub(crate) fn holder(&self, id: PermitId) -> Option<Option<ProcessId>> {
        self.0.lock().permits.get(&id).map(|held| held.holder)
    }

    /// The shard and the generation of a held permit.
    pub(crate) fn issued_by(&self, id: PermitId) -> Option<(Shard, u64)> {
        self.0.lock().permits.get(&id).map(|held| (held.shard, held.generation))
    }

    /// Remembers the slot of a held permit.
    pub(crate) fn set_slot(&self, id: PermitId, start: i64) {
        if let Some(held) = self.0.lock().permits.get_mut(&id) {
            held.slot_start = start;
        }
    }

    /// The start of the slot that a permit got last; 0 for none.
    pub(crate) fn slot_start(&self, id: PermitId) -> i64 {
        self.0.lock().permits.get(&id).map_or(0, |held| held.slot_start)
    }

    /// Removes a permit, used or not.
    pub(crate) fn remove(&self, id: PermitId) -> Option<HeldPermit> {
        self.0.lock().permits.remove(&id)
    }

    /// Drops permits that expired long ago.
    pub(crate) fn tidy(&self, now: Timestamp) {
        self.0.lock().permits.retain(|_, held| held.expires_at > now - KEPT_FOR);
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

    fn shard() -> Shard {
        Shard::of(permit(1).destination_id)
    }

    fn held(generation: u64) -> HeldPermit {
        HeldPermit { shard: shard(), generation, expires_at: NOW, entry: "1-0".to_owned(), holder: None, slot_start: 0 }
    }

    #[test]
    fn a_permit_that_is_read_twice_is_registered_once() {
        let registry = PermitRegistry::default();
        registry.learn_generation(shard(), 5);
        assert!(registry.register(permit(1), held(5)));
        assert!(!registry.register(permit(1), held(5)));
        assert_eq!(registry.remove(permit(1)), Some(held(5)));
        assert_eq!(registry.remove(permit(1)), None);
    }

    #[test]
    fn a_permit_of_an_ended_generation_is_not_taken() {
        let registry = PermitRegistry::default();
        registry.learn_generation(shard(), 5);
        assert!(registry.register(permit(1), held(5)));
        assert!(registry.learn_generation(shard(), 6));
        assert!(!registry.register(permit(2), held(5)));
        assert!(registry.register(permit(3), held(6)));
        assert!(!registry.register(permit(4), held(u64::MAX)), "an entry can hold any number");
        assert!(registry.register(permit(5), held(6)));
    }

    #[test]
    fn old_permits_are_forgotten() {
        let registry = PermitRegistry::default();
        registry.learn_generation(shard(), 5);
        assert!(registry.register(permit(1), held(5)));
        registry.tidy(NOW + KEPT_FOR);
        assert!(registry.held().is_empty());
    }
}
