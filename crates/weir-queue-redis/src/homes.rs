//! Which shard has the budgets of a destination: that of its limit group, otherwise its own.
//!
//! The flows of limit keys, and the budget that they share, are where their destination is. So are all of them in its own shard
//! while it has no group.
//!
//! Calls that name only a destination go where this process last saw its permits or read its group. A call that goes to a
//! shard that the destination has left finds no job there, or makes one whose run finds out.

use parking_lot::RwLock;
use weir_core::{DestinationId, IdMap, LimitGroupId, limit_key::is_of_key};

use crate::keys::Shard;

/// The most flows that are remembered: about 10 MB. Above this number all are forgotten, and one whose home is not known costs
/// one more run, in the shard that its destination has left.
const MOST_FLOWS: usize = 262_144;

/// The destinations that are not in their own shard: members of groups, as far as this process has seen them.
#[derive(Default)]
pub(crate) struct Homes {
    destinations: RwLock<IdMap<DestinationId, Shard>>,
    /// Those of limit keys.
    flows: RwLock<IdMap<DestinationId, Shard>>,
}

impl Homes {
    pub(crate) fn of(&self, id: DestinationId) -> Shard {
        self.like(id).read().get(&id).copied().unwrap_or_else(|| Shard::of(id))
    }

    fn like(&self, id: DestinationId) -> &RwLock<IdMap<DestinationId, Shard>> {
        if is_of_key(id) { &self.flows } else { &self.destinations }
    }

    pub(crate) fn learn(&self, id: DestinationId, shard: Shard) {
        if self.of(id) == shard {
            return;
        }
        let mut homes = self.like(id).write();
        if shard == Shard::of(id) {
            homes.remove(&id);
        } else {
            if is_of_key(id) && homes.len() >= MOST_FLOWS {
                homes.clear();
            }
            homes.insert(id, shard);
        }
    }

    pub(crate) fn learn_group(&self, id: DestinationId, group: Option<LimitGroupId>) {
        self.learn(id, Shard::of_home(id, group));
    }
}

#[cfg(test)]
mod tests {
    use weir_core::LimitKey;

    use super::*;
    use crate::keys::group_job;

    #[test]
    fn a_destination_without_a_group_is_in_its_own_shard_and_takes_no_memory() {
        let homes = Homes::default();
        let (id, group) = (DestinationId::from_bytes([1; 16]), LimitGroupId::from_bytes([2; 16]));
        homes.learn_group(id, None);
        assert_eq!(homes.of(id), Shard::of(id));
        assert!(homes.destinations.read().is_empty());
        homes.learn_group(id, Some(group));
        assert_eq!(homes.of(id), Shard::of(group_job(group)));
        homes.learn(id, Shard::of(id));
        assert_eq!(homes.of(id), Shard::of(id));
        assert!(homes.destinations.read().is_empty());
    }

    #[test]
    fn the_homes_of_flows_are_bounded() {
        let homes = Homes::default();
        let destination = DestinationId::from_bytes([1; 16]);
        let flow = |number: usize| LimitKey::new(&number.to_string()).flow_id(destination);
        let group = LimitGroupId::from_bytes([2; 16]);
        for number in 0..=MOST_FLOWS {
            homes.learn_group(flow(number), Some(group));
        }
        assert_eq!(homes.of(flow(MOST_FLOWS)), Shard::of(group_job(group)));
        assert_eq!(homes.flows.read().len(), 1);
    }
}
