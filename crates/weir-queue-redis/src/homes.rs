//! Which shard has the budgets of a destination: that of its limit group, otherwise its own.
//!
//! Calls that name only a destination go where this process last saw its permits or read its group. A call that goes to a
//! shard that the destination has left finds no job there, or makes one whose run finds out.

use parking_lot::RwLock;
use weir_core::{DestinationId, IdMap, LimitGroupId};

use crate::keys::Shard;

/// The destinations that are not in their own shard: members of groups, as far as this process has seen them.
#[derive(Default)]
pub(crate) struct Homes(RwLock<IdMap<DestinationId, Shard>>);

impl Homes {
    pub(crate) fn of(&self, id: DestinationId) -> Shard {
        self.0.read().get(&id).copied().unwrap_or_else(|| Shard::of(id))
    }

    pub(crate) fn learn(&self, id: DestinationId, shard: Shard) {
        if self.of(id) == shard {
            return;
        }
        if shard == Shard::of(id) {
            self.0.write().remove(&id);
        } else {
            self.0.write().insert(id, shard);
        }
    }

    pub(crate) fn learn_group(&self, id: DestinationId, group: Option<LimitGroupId>) {
        self.learn(id, Shard::of_home(id, group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::group_job;

    #[test]
    fn a_destination_without_a_group_is_in_its_own_shard_and_takes_no_memory() {
        let homes = Homes::default();
        let (id, group) = (DestinationId::from_bytes([1; 16]), LimitGroupId::from_bytes([2; 16]));
        homes.learn_group(id, None);
        assert_eq!(homes.of(id), Shard::of(id));
        assert!(homes.0.read().is_empty());
        homes.learn_group(id, Some(group));
        assert_eq!(homes.of(id), Shard::of(group_job(group)));
        homes.learn(id, Shard::of(id));
        assert_eq!(homes.of(id), Shard::of(id));
        assert!(homes.0.read().is_empty());
    }
}
