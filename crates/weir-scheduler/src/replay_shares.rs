//! Which destinations have a lane of replays, and what each lane has not had of its share.
//!
//! Known to this process only and asked for anew a few times a second: a run that does not know of a lane leaves it to a later one, and
//! one that knows of a lane that is empty has looked in vain.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use weir_core::{DestinationId, replay_share::Credit};

#[derive(Debug, Default)]
pub(crate) struct ReplayShares(Mutex<HashMap<DestinationId, Credit>>);

impl ReplayShares {
    // No code path panics while it holds the lock; a poisoned one is as good as ever.
    fn credits(&self) -> MutexGuard<'_, HashMap<DestinationId, Credit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The credit of a destination's lane; `None` when it has none.
    pub(crate) fn credit(&self, id: DestinationId) -> Option<Credit> {
        self.credits().get(&id).copied()
    }

    pub(crate) fn set_credit(&self, id: DestinationId, credit: Credit) {
        if let Some(known) = self.credits().get_mut(&id) {
            *known = credit;
        }
    }

    /// There are lanes here, too.
    pub(crate) fn add(&self, ids: &[DestinationId]) {
        let mut credits = self.credits();
        for id in ids {
            credits.entry(*id).or_default();
        }
    }

    /// There are lanes here and nowhere else. Answers those that were not known.
    pub(crate) fn replace(&self, ids: &[DestinationId]) -> Vec<DestinationId> {
        let mut credits = self.credits();
        let new = ids.iter().filter(|id| !credits.contains_key(id)).copied().collect();
        *credits = ids.iter().map(|id| (*id, credits.get(id).copied().unwrap_or_default())).collect();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_its_credit_while_it_is_known() {
        let [one, two] = [1, 2].map(|number| DestinationId::from_bytes([number; 16]));
        let lanes = ReplayShares::default();
        assert_eq!((lanes.replace(&[one]), lanes.credit(two)), (vec![one], None));
        let credit = Credit::default().after(5, 0, false);
        lanes.set_credit(one, credit);
        assert_eq!((lanes.replace(&[one, two]), lanes.credit(one)), (vec![two], Some(credit)));
        assert!(lanes.replace(&[two]).is_empty());
        assert_eq!(lanes.credit(one), None);
    }
}
