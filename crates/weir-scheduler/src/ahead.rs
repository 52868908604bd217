//! Deliveries claimed ahead of their room.
//!
//! A claim takes the store longer than a fast destination takes to answer. Were it made when room has come, the room would stand
//! empty for as long. So while only room is short, a run claims more than it may publish, and the next run begins with that:
//! at once, without the store. Claims are made under the lease of the job only, so two are never after the same deliveries.
//!
//! The next run may be another process's, or never come. What is not taken within [`KEPT`] goes back to the store.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
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
        let left = hand.deliveries.len() as u32;
        hands.kept -= count;
        self.kept.notify_one();
        (taken, InHand { taken: count as u32, left, brisk })
    }

    /// Keeps deliveries for a later run. Answers those back for which there is none.
    pub(crate) fn keep(&self, id: DestinationId, deliveries: Vec<ClaimedDelivery>) -> Vec<ClaimedDelivery> {
        let mut hands = self.hands();
        if hands.closed {
            return deliveries;
        }
        hands.kept += deliveries.len();
        hands.of.entry(id).or_default().deliveries.extend(deliveries);
        Vec::new()
    }

    /// Everything of a destination, whose runs have stopped.
    pub(crate) fn drop_all(&self, id: DestinationId) -> Vec<ClaimedDelivery> {
        let mut hands = self.hands();
        let hand = hands.of.remove(&id).unwrap_or_default();
        hands.kept -= hand.deliveries.len();
        hand.deliveries.into()
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
            let old = hands.of.extract_if(|_, hand| hand.last_run < before);
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
        hands.of.drain().flat_map(|(_, hand)| hand.deliveries).collect()
    }
}
