//! Deliveries claimed ahead of their room.
//!
//! A claim takes the store longer than a fast destination takes to answer. Were it made when room has come, the room would stand
//! empty for as long. So while only room is short, more is claimed than may be published, beside the runs; each of them begins
//! with that, at once, without the store.
//!
//! New deliveries join them where they can, by the express: while only room is short and the store holds nothing that would have to
//! go first ([`Feed`]), they are stored as claimed and kept here. In a flood that saves each delivery its entry in the index of
//! what is due, and a claim. Those of a slow destination do not join: they had better wait in the store.
//!
//! A process makes one such claim of a destination at a time. Another process that runs the job meanwhile may be after the same
//! deliveries; it gets fewer, may find nothing and stop the job. Therefore a claim ends with a wake.
//!
//! The next run may be another process's, or never come. What is not taken within [`KEPT`] goes back to the store.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;
use weir_core::{
    DestinationId, IdMap, IdSet, Timestamp,
    claim::{ClaimedBody, ClaimedDelivery},
    plan::InHand,
};

use crate::feed::Feed;

/// How long deliveries are kept for the next run.
const KEPT: Duration = Duration::from_millis(250);
/// Runs that follow each other this closely are of a destination that answers quickly.
const BRISK: Duration = Duration::from_millis(50);
/// How many are kept for all destinations together: they are in memory with their bodies.
const MOST_KEPT: usize = 4_096;
/// A larger body of a new delivery is read from the store again when its turn has come.
const LARGEST_BODY: usize = 16 * 1024;
/// No new delivery joins those that have waited for this long: it is their destination that is slow.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Hand {
    deliveries: VecDeque<ClaimedDelivery>,
    last_run: Timestamp,
    /// More is being claimed.
    claiming: bool,
    /// New deliveries that are being stored.
    reserved: usize,
    feed: Feed,
}

impl Hand {
    /// Whether those that wait go on at a good pace. They expire in the order in which they came.
    fn moves_on(&self, expires_at: Timestamp) -> bool {
        self.deliveries.front().is_none_or(|first| expires_at < first.expires_at + LONGEST_WAIT)
    }
}

#[derive(Debug, Default)]
struct Hands {
    of: IdMap<DestinationId, Hand>,
    kept: usize,
    reserved: usize,
    /// To be woken, because new deliveries have joined.
    fed: IdSet<DestinationId>,
    closed: bool,
}

/// What this process has claimed ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    hands: Mutex<Hands>,
    kept: Notify,
    claimed: Notify,
    fed: Notify,
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
        let unlooked = hand.feed.is_unlooked(now);
        hand.last_run = now;
        let count = hand.deliveries.len().min(most as usize);
        let taken: Vec<_> = hand.deliveries.drain(..count).collect();
        let in_hand = InHand {
            taken: count as u32,
            left: hand.deliveries.len() as u32,
            brisk,
            claiming: hand.claiming,
            unlooked,
        };
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

    /// A claim that began then found less in the store than it was to bring, or not.
    pub(crate) fn looked(&self, id: DestinationId, at: Timestamp, is_short: bool) {
        match self.hands().of.get_mut(&id) {
            Some(hand) if is_short => hand.feed.found_dry(at),
            Some(hand) => hand.feed.found_more(at),
            None => {}
        }
    }

    /// Keeps room for a new delivery, for which only room for its permit is wanting. `no_backlog`: the queue knows that nothing
    /// waits in the store. `false`: it has to wait there.
    pub(crate) fn reserve(&self, id: DestinationId, expires_at: Timestamp, no_backlog: bool, now: Timestamp) -> bool {
        let mut hands = self.hands();
        let hands = &mut *hands;
        let has_room = !hands.closed && hands.kept + hands.reserved < MOST_KEPT;
        let hand = if no_backlog {
            hands.of.entry(id).or_insert_with(|| Hand { last_run: now, ..Hand::default() })
        } else {
            let Some(hand) = hands.of.get_mut(&id) else { return false };
            hand
        };
        if no_backlog {
            hand.feed.no_backlog(now);
        }
        let joins = has_room && hand.feed.is_dry(now) && hand.moves_on(expires_at);
        if joins {
            hand.reserved += 1;
            hands.reserved += 1;
        } else {
            hand.feed.overflows(now);
        }
        joins
    }

    /// Gives up room that was kept, if any was.
    pub(crate) fn unreserve(&self, id: DestinationId) -> bool {
        let mut hands = self.hands();
        let Some(hand) = hands.of.get_mut(&id).filter(|hand| hand.reserved > 0) else { return false };
        hand.reserved -= 1;
        hands.reserved -= 1;
        true
    }

    /// New deliveries are stored: keeps as many as room was kept for. Those of a destination are as good as each other, so the last
    /// of them stay and the others are answered, to be sent at once.
    pub(crate) fn feed(&self, deliveries: Vec<ClaimedDelivery>) -> Vec<ClaimedDelivery> {
        let mut hands = self.hands();
        if hands.reserved == 0 || hands.closed {
            return deliveries;
        }
        let hands = &mut *hands;
        let (mut staying, mut leaving) = (Vec::new(), Vec::new());
        for delivery in deliveries.into_iter().rev() {
            match hands.of.get_mut(&delivery.claim.destination_id).filter(|hand| hand.reserved > 0) {
                Some(hand) => {
                    hand.reserved -= 1;
                    staying.push(delivery);
                }
                None => leaving.push(delivery),
            }
        }
        hands.reserved -= staying.len();
        hands.kept += staying.len();
        for mut delivery in staying.into_iter().rev() {
            if matches!(&delivery.body, ClaimedBody::Inline(body) if body.bytes().len() > LARGEST_BODY) {
                delivery.body = ClaimedBody::InStore;
            }
            let id = delivery.claim.destination_id;
            hands.fed.insert(id);
            hands.of.entry(id).or_default().deliveries.push_back(delivery);
        }
        self.kept.notify_one();
        self.fed.notify_one();
        leaving.reverse();
        leaving
    }

    /// Waits until destinations have got new deliveries, for which their jobs are to run.
    pub(crate) async fn fed(&self) -> Vec<DestinationId> {
        loop {
            let fed: Vec<_> = self.hands().fed.drain().collect();
            if !fed.is_empty() {
                return fed;
            }
            self.fed.notified().await;
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
            let old = hands.of.extract_if(|_, hand| hand.last_run < before && !hand.claiming && hand.reserved == 0);
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
