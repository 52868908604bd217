//! The claims whose permits this process has taken, until the store has recorded their attempts or released them.
//!
//! A claim expires, and it is resolved when the process that made it dies. Neither may happen while this process holds
//! it: the delivery would be sent twice. So claims that are about to expire are renewed. After a loss of the queue's data
//! all of them are, because then only this process knows which attempts it makes. Renewed claims belong to this process
//! ([`weir_store::Processes::renew_claims`]).

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use weir_core::{Clock, Timestamp, claim::Claim};
use weir_queue::{Permit, SharedQueue};
use weir_store::{StoreResult, WorkerStore};

/// How often the worker looks for claims to renew. Other processes wait five seconds after a loss of the queue's data
/// before they resolve claims without a permit.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Claims that expire sooner are renewed. An attempt ends before its claim expires, so few are: those that wait for the
/// store. Much longer than a store that is slow takes for one statement.
const RENEW_BEFORE: Duration = Duration::from_secs(30);
/// How long a renewed claim lasts: it is renewed twice a minute at most.
const LASTS_FOR: Duration = Duration::from_secs(60);
/// Claims in one statement, so that none holds its locks for long.
const PAGE: usize = 1_000;

/// The claims that a worker holds: at most one for each attempt under way or unrecorded, and for each permit that waits
/// for a place.
pub(crate) struct HeldClaims {
    store: Arc<dyn WorkerStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    held: Mutex<ClaimSet>,
}

#[derive(Default)]
struct ClaimSet(HashMap<Claim, Held>);

struct Held {
    expires_at: Timestamp,
    /// This process has renewed the claim, so it owns it.
    is_own: bool,
}

impl HeldClaims {
    pub(crate) fn new(store: Arc<dyn WorkerStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { store, queue, clock, held: Mutex::default() })
    }

    pub(crate) fn add(&self, permits: &[Permit]) {
        let mut held = self.held.lock();
        for permit in permits {
            held.add(permit.delivery.claim, permit.delivery.expires_at);
        }
    }

    /// The store has recorded the attempts of these claims, or released them.
    pub(crate) fn remove(&self, claims: impl IntoIterator<Item = Claim>) {
        let mut held = self.held.lock();
        for claim in claims {
            held.0.remove(&claim);
        }
    }

    /// Renews claims. Never returns.
    pub(crate) async fn keep(&self) {
        let mut known_losses = self.queue.losses();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let losses = self.queue.losses();
            match self.renew(losses != known_losses).await {
                Ok(()) => known_losses = losses,
                Err(error) => tracing::warn!(%error, "could not renew claims; trying again"),
            }
        }
    }

    /// Renews the claims that expire soon, and after a loss all that this process does not own.
    async fn renew(&self, after_loss: bool) -> StoreResult<()> {
        let due = self.held.lock().due(self.clock.now(), after_loss);
        for claims in due.chunks(PAGE) {
            let expires_at = self.clock.now() + LASTS_FOR;
            self.store.renew_claims(claims.to_vec(), expires_at).await?;
            self.held.lock().renewed(claims, expires_at);
        }
        Ok(())
    }
}

impl ClaimSet {
    fn add(&mut self, claim: Claim, expires_at: Timestamp) {
        self.0.insert(claim, Held { expires_at, is_own: false });
    }

    fn due(&self, now: Timestamp, after_loss: bool) -> Vec<Claim> {
        let is_due = |held: &Held| held.expires_at < now + RENEW_BEFORE || (after_loss && !held.is_own);
        self.0.iter().filter(|(_, held)| is_due(held)).map(|(&claim, _)| claim).collect()
    }

    fn renewed(&mut self, claims: &[Claim], expires_at: Timestamp) {
        for claim in claims {
            // It may have ended meanwhile.
            if let Some(held) = self.0.get_mut(claim) {
                *held = Held { expires_at: held.expires_at.max(expires_at), is_own: true };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_core::{DeliveryId, DestinationId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn claim(number: u8) -> Claim {
        let delivery_id = DeliveryId::from_bytes([number; 16]);
        Claim { delivery_id, destination_id: DestinationId::from_bytes([1; 16]), epoch: 1 }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_claim_is_renewed_before_it_expires_as_long_as_it_is_held() {
        let mut held = ClaimSet::default();
        held.add(claim(1), NOW + seconds(90));
        held.add(claim(2), NOW + seconds(180));
        assert_eq!(held.due(NOW + seconds(59), false), []);
        assert_eq!(held.due(NOW + seconds(61), false), [claim(1)]);
        held.renewed(&[claim(1)], NOW + seconds(61) + LASTS_FOR);
        assert_eq!(held.due(NOW + seconds(62), false), []);
        assert_eq!(held.due(NOW + seconds(92), false), [claim(1)]);
        held.0.remove(&claim(1));
        assert_eq!(held.due(NOW + seconds(92), false), []);
    }

    #[test]
    fn after_a_loss_every_claim_is_renewed_once() {
        let mut held = ClaimSet::default();
        held.add(claim(1), NOW + seconds(180));
        assert_eq!(held.due(NOW, true), [claim(1)]);
        held.renewed(&[claim(1)], NOW + LASTS_FOR);
        held.add(claim(2), NOW + seconds(180));
        assert_eq!(held.due(NOW, true), [claim(2)], "the first one is this process's own");
        assert_eq!(held.due(NOW + seconds(149), false), [], "a renewal shortens no claim");
    }

    #[test]
    fn a_claim_that_ended_during_its_renewal_is_not_held() {
        let mut held = ClaimSet::default();
        held.renewed(&[claim(1)], NOW);
        assert!(held.0.is_empty());
    }
}
