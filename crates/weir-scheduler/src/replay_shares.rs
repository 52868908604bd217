//! The destinations that have replays, and the replay credit of each.
//!
//! Each process keeps its own list and reads it from the store a few times a second. A run that does not know of a
//! replay leaves it to a later run. A run that knows of a finished replay makes one claim that finds nothing.

use std::collections::HashMap;

use parking_lot::Mutex;
use weir_core::{DestinationId, replay_share::Credit};

#[derive(Debug, Default)]
pub(crate) struct ReplayShares(Mutex<HashMap<DestinationId, Credit>>);

impl ReplayShares {
    /// The credit of a destination; `None` if it has no replays.
    pub(crate) fn credit(&self, id: DestinationId) -> Option<Credit> {
        self.0.lock().get(&id).copied()
    }

    pub(crate) fn set_credit(&self, id: DestinationId, credit: Credit) {
        if let Some(known) = self.0.lock().get_mut(&id) {
            *known = credit;
        }
    }

    /// Adds destinations with replays. Returns whether one of them is new.
    pub(crate) fn add(&self, ids: &[DestinationId]) -> bool {
        let mut credits = self.0.lock();
        let before = credits.len();
        for id in ids {
            credits.entry(*id).or_default();
        }
        credits.len() > before
    }

    /// Sets the destinations with replays. Returns those that are new.
    pub(crate) fn replace(&self, ids: &[DestinationId]) -> Vec<DestinationId> {
        let mut credits = self.0.lock();
        let new = ids.iter().filter(|id| !credits.contains_key(id)).copied().collect();
        *credits = ids.iter().map(|id| (*id, credits.get(id).copied().unwrap_or_default())).collect();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_keeps_its_credit_while_it_has_replays() {
        let [one, two] = [1, 2].map(|number| DestinationId::from_bytes([number; 16]));
        let shares = ReplayShares::default();
        assert_eq!((shares.replace(&[one]), shares.credit(two)), (vec![one], None));
        let credit = Credit::default().after(5, 0, false);
        shares.set_credit(one, credit);
        assert_eq!((shares.replace(&[one, two]), shares.credit(one)), (vec![two], Some(credit)));
        assert!(shares.replace(&[two]).is_empty());
        assert_eq!(shares.credit(one), None);
    }
}
