//! Deliveries claimed ahead of their room.
//!
//! A claim takes the store longer than a fast destination takes to answer. Were it made when room has come, the room would stand
//! empty for as long. So while only room is short, more is claimed than may be published, beside the runs; each of them begins
//! with that, at once, without the store.
//!
//! A process makes one such claim of a destination at a time. Another process that runs the job meanwhile may be after the same
//! deliveries; it gets fewer, may find nothing and stop the job. Therefore a claim ends with a wake.
//!
//! The next run may be another process's, or never come. What is not taken within [`KEPT`] goes back to the store.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;
use weir_core::{DestinationId, Timestamp, claim::ClaimedDelivery, plan::InHand};

/// How long deliveries are kept for the next run.
const KEPT: Duration = Duration::from_millis(250);
/// Runs that follow each other this closely are of a destination that answers quickly.
const BRISK: Duration = Duration::from_millis(50);
/// How many are kept for all destinations together: they are in memory with their bodies.
const MOST_KEPT: usize = 4_096;

#[derive(Debug, Default)]
struct Hand {
    deliveries: VecDeque<ClaimedDelivery>,
    last_run: Timestamp,
    /// More is being claimed.
    claiming: bool,
}

#[derive(Debug, Default)]
struct Hands {
    of: HashMap<DestinationId, Hand>,
    kept: usize,
    closed: bool,
}

/// What this process has claimed ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    hands: Mutex<Hands>,
    kept: Notify,
    claimed: Notify,
}

/// A claim that is being made. When this is dropped it is over, and what it brought has been kept or given back.
pub(crate) struct Claiming {
    ahead: Arc<Ahead>,
    id: DestinationId,
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if let Some(hand) = self.ahead.hands().of.get_mut(&self.id) {
            hand.claiming = false;
        }
        self.ahead.claimed.notify_waiters();
    }
}

impl Ahead {
    // A panic while the lock is held is a bug already reported; the hands are whole between two calls.
    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run begins: the oldest of what is in hand, `most` at most.
    pub(crate) fn take(&self, id: DestinationId, most: u32, now: Timestamp) -> (Vec<ClaimedDelivery>, InHand) {
        let mut hands = self.hands();
        if hands.closed {
            return (Vec::new(), InHand::default());
        }
        let has_room = hands.kept < MOST_KEPT;
        let hand = hands.of.entry(id).or_default();
        let brisk = has_room && now < hand.last_run + BRISK;
        hand.last_run = now;
        let count = hand.deliveries.len().min(most as usize);
        let taken: Vec<_> = hand.deliveries.drain(..count).collect();
        let in_hand =
            InHand { taken: count as u32, left: hand.deliveries.len() as u32, brisk, claiming: hand.claiming };
        hands.kept -= count;
        self.kept.notify_one();
        (taken, in_hand)
    }

    /// Begins a claim, unless there is one already or no runs follow.
    pub(crate) fn begin_claim(self: &Arc<Self>, id: DestinationId) -> Option<Claiming> {
        let mut hands = self.hands();
        let begins = !hands.closed && !std::mem::replace(&mut hands.of.entry(id).or_default().claiming, true);
        begins.then(|| Claiming { ahead: self.clone(), id })
    }

    /// Returns once no claim is being made.
    pub(crate) async fn claims_ended(&self) {
        loop {
            let claimed = self.claimed.notified();
            tokio::pin!(claimed);
            claimed.as_mut().enable();
            if !self.hands().of.values().any(|hand| hand.claiming) {
                return;
            }
            claimed.await;
        }
    }

    /// Keeps deliveries for a later run. Answers those back for which there is none.
    pub(crate) fn keep(&self, id: DestinationId, deliveries: Vec<ClaimedDelivery>) -> Vec<ClaimedDelivery> {
        let mut hands = self.hands();
        if hands.closed {
            return deliveries;
        }
        self.kept.notify_one();
        hands.kept += deliveries.len();
        hands.of.entry(id).or_default().deliveries.extend(deliveries);
        Vec::new()
    }

    /// Everything of a destination, whose runs have stopped.
    pub(crate) fn drop_all(&self, id: DestinationId) -> Vec<ClaimedDelivery> {
        let mut hands = self.hands();
        let deliveries = hands.of.get_mut(&id).map(|hand| std::mem::take(&mut hand.deliveries)).unwrap_or_default();
        hands.kept -= deliveries.len();
        deliveries.into()
    }

    /// What has not been taken for too long. Waits while nothing is in hand.
    pub(crate) async fn expired(&self, now: impl Fn() -> Timestamp) -> Vec<ClaimedDelivery> {
        loop {
            if self.hands().of.is_empty() {
                self.kept.notified().await;
                continue;
            }
            tokio::time::sleep(KEPT / 2).await;
            let before = now() - KEPT;
            let mut hands = self.hands();
            let old = hands.of.extract_if(|_, hand| hand.last_run < before && !hand.claiming);
            let expired: Vec<_> = old.flat_map(|(_, hand)| hand.deliveries).collect();
            hands.kept -= expired.len();
            if !expired.is_empty() {
                return expired;
            }
        }
    }

    /// No runs follow. Answers everything.
    pub(crate) fn close(&self) -> Vec<ClaimedDelivery> {
        let mut hands = self.hands();
        hands.closed = true;
        hands.kept = 0;
        hands.of.values_mut().flat_map(|hand| std::mem::take(&mut hand.deliveries)).collect()
    }
}
