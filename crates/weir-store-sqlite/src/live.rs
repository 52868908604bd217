//! The claims that are out, in memory, with a journal in the table `claims`.
//!
//! A claim is made and ended within milliseconds by the one engine that holds the file, and ends with it. Writing `delivering`
//! into each delivery, and its index entries out and in again, would cost the store more than ingest does. So the row keeps
//! the state it waits in, unless it is claimed as it is stored; that it is claimed is known here, and the readers lay it over
//! what they read. A crash must not
//! forget it: each group's claims are one row of the journal, written before they are answered and deleted when all of them
//! have ended. What the journal holds at the next start may have been sent, and is resolved as unknown.
//!
//! Changed by the writer alone, after the commit. While a group is under way its changes are in [`StagedClaims`], which the
//! writer reads through, and which is dropped when the group fails.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use weir_core::{DeliveryId, DeliveryState, DestinationId, IdMap, IdSet, Timestamp, claim::Claim, delivery::Delivery};
use weir_store::lane;

/// A row of the journal.
pub(crate) type BatchId = i64;
/// A place in a destination's due index.
pub(crate) type Position = (Timestamp, DeliveryId);

/// Before every delivery.
pub(crate) const FIRST: Position = (Timestamp::MIN, DeliveryId::from_bytes([0; 16]));

/// Before every delivery in the lane of replays.
pub(crate) const FIRST_OF_LANE: Position = (Timestamp::from_nanos(lane::LANE - 1), DeliveryId::from_bytes([0xff; 16]));

#[derive(Debug, Clone, Copy)]
pub(crate) struct LiveClaim {
    /// Its epoch is the row of the journal.
    pub(crate) claim: Claim,
    pub(crate) expires_at: Timestamp,
    /// Attempts counted before this one.
    pub(crate) attempts: u32,
    /// Those of them that were made before the delivery was replayed.
    pub(crate) attempts_before: u32,
    /// It was claimed out of the lane of replays.
    pub(crate) in_lane: bool,
    pub(crate) made_at: Timestamp,
    /// Claimed as it was stored: its row says `delivering` and is not in the index of what is due.
    pub(crate) at_birth: bool,
    /// It had a place in a line when it was claimed.
    pub(crate) in_line: bool,
}

impl LiveClaim {
    fn batch(&self) -> BatchId {
        self.claim.epoch
    }
}

/// The claims of one destination.
#[derive(Debug, Default)]
struct Lane {
    claimed: IdSet<DeliveryId>,
    /// Every waiting delivery up to here is claimed, so a claim begins after it and does not walk what is in flight.
    floor: Option<Position>,
    /// Likewise of the lane of replays.
    lane_floor: Option<Position>,
}

#[derive(Debug, Default)]
struct Live {
    by_delivery: IdMap<DeliveryId, LiveClaim>,
    lanes: IdMap<DestinationId, Lane>,
    /// How many claims of each row of the journal are out.
    batches: IdMap<BatchId, usize>,
}

impl Live {
    fn insert(&mut self, live: LiveClaim) {
        let Claim { delivery_id, destination_id, .. } = live.claim;
        self.by_delivery.insert(delivery_id, live);
        self.lanes.entry(destination_id).or_default().claimed.insert(delivery_id);
        *self.batches.entry(live.batch()).or_default() += 1;
    }

    fn remove(&mut self, id: DeliveryId) {
        let Some(gone) = self.by_delivery.remove(&id) else { return };
        if let Some(lane) = self.lanes.get_mut(&gone.claim.destination_id) {
            lane.claimed.remove(&id);
            if lane.claimed.is_empty() {
                // Its floor goes too: there is nothing left to skip.
                self.lanes.remove(&gone.claim.destination_id);
            }
        }
        if let Some(batch) = self.batches.get_mut(&gone.batch()) {
            *batch -= 1;
            if *batch == 0 {
                self.batches.remove(&gone.batch());
            }
        }
    }
}

/// Claims by how their rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClaimCounts {
    /// As `delivering`.
    pub(crate) at_birth: u64,
    /// As `pending`.
    pub(crate) first: u64,
    /// As `retrying`.
    pub(crate) later: u64,
}

#[derive(Debug, Default)]
pub(crate) struct LiveClaims {
    inner: RwLock<Live>,
}

impl LiveClaims {
    pub(crate) fn new(claims: Vec<LiveClaim>) -> Self {
        let this = Self::default();
        let mut live = this.inner.write().unwrap_or_else(PoisonError::into_inner);
        claims.into_iter().for_each(|claim| live.insert(claim));
        drop(live);
        this
    }

    // No code path panics while it holds the lock; a poisoned one is as good as ever.
    fn read(&self) -> RwLockReadGuard<'_, Live> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a claimed delivery as what it is.
    pub(crate) fn overlay(&self, mut delivery: Delivery) -> Delivery {
        if delivery.state.is_waiting()
            && let Some(live) = self.read().by_delivery.get(&delivery.id)
        {
            delivery.state = DeliveryState::Delivering;
            delivery.next_attempt_at = None;
            delivery.updated_at = delivery.updated_at.max(live.made_at);
        }
        delivery
    }

    /// How many claims are out, of one destination or of all.
    pub(crate) fn count(&self, of: Option<DestinationId>) -> usize {
        let live = self.read();
        match of {
            Some(id) => live.lanes.get(&id).map_or(0, |lane| lane.claimed.len()),
            None => live.by_delivery.len(),
        }
    }

    /// The claimed deliveries of one destination, or of all.
    pub(crate) fn ids(&self, of: Option<DestinationId>) -> Vec<DeliveryId> {
        let live = self.read();
        match of {
            Some(id) => live.lanes.get(&id).map(|lane| lane.claimed.iter().copied().collect()).unwrap_or_default(),
            None => live.by_delivery.keys().copied().collect(),
        }
    }

    /// How many deliveries of a destination are claimed.
    pub(crate) fn counts(&self, id: DestinationId) -> ClaimCounts {
        let live = self.read();
        let mut counts = ClaimCounts::default();
        let claimed = live.lanes.get(&id).into_iter().flat_map(|lane| &lane.claimed);
        for claim in claimed.filter_map(|id| live.by_delivery.get(id)) {
            let count = match claim {
                LiveClaim { at_birth: true, .. } => &mut counts.at_birth,
                LiveClaim { attempts, attempts_before, .. } if attempts == attempts_before => &mut counts.first,
                _ => &mut counts.later,
            };
            *count += 1;
        }
        counts
    }

    pub(crate) fn is_claimed(&self, id: DeliveryId) -> bool {
        self.read().by_delivery.contains_key(&id)
    }
}

/// What a group makes of its claims' batches.
pub(crate) struct Journal {
    /// Batches none of whose claims is left.
    pub(crate) over: Vec<BatchId>,
    /// Batches some of whose claims were given back unsent, with what is left of them. Others may keep what has ended: a
    /// delivery whose attempt was counted is told by the count.
    pub(crate) rewritten: Vec<(BatchId, Vec<LiveClaim>)>,
}

/// Claims as the transaction under way sees them.
pub(crate) struct StagedClaims<'a> {
    claims: &'a LiveClaims,
    made: IdMap<DeliveryId, LiveClaim>,
    /// Whether it was given back unsent.
    ended: IdMap<DeliveryId, bool>,
    /// Of what is live, and of the lane.
    floors: IdMap<(DestinationId, bool), Option<Position>>,
}

impl<'a> StagedClaims<'a> {
    pub(crate) fn new(claims: &'a LiveClaims) -> Self {
        Self { claims, made: IdMap::default(), ended: IdMap::default(), floors: IdMap::default() }
    }

    pub(crate) fn is_claimed(&self, id: DeliveryId) -> bool {
        self.made.contains_key(&id) || (!self.ended.contains_key(&id) && self.claims.is_claimed(id))
    }

    /// What is known of a claim, if it is still held.
    pub(crate) fn held(&self, claim: Claim) -> Option<LiveClaim> {
        if self.ended.contains_key(&claim.delivery_id) {
            return None;
        }
        self.claims.read().by_delivery.get(&claim.delivery_id).filter(|live| live.claim == claim).copied()
    }

    /// The claimed deliveries of one destination, without those this transaction makes.
    pub(crate) fn of(&self, destination_id: DestinationId) -> Vec<DeliveryId> {
        self.claims.ids(Some(destination_id)).into_iter().filter(|id| !self.ended.contains_key(id)).collect()
    }

    /// At most `limit` claims that expired before `now`; of any age when `all`.
    pub(crate) fn abandoned(&self, now: Timestamp, all: bool, limit: usize) -> Vec<LiveClaim> {
        let live = self.claims.read();
        let abandoned =
            |claim: &&LiveClaim| (all || claim.expires_at < now) && !self.ended.contains_key(&claim.claim.delivery_id);
        live.by_delivery.values().filter(abandoned).take(limit).copied().collect()
    }

    pub(crate) fn make(&mut self, live: LiveClaim) {
        self.made.insert(live.claim.delivery_id, live);
    }

    pub(crate) fn made(&self) -> impl Iterator<Item = &LiveClaim> {
        self.made.values()
    }

    /// The claim's attempt is counted.
    pub(crate) fn settle(&mut self, claim: Claim) {
        self.ended.insert(claim.delivery_id, false);
    }

    /// The claim is given back unsent; its delivery waits as before.
    pub(crate) fn release(&mut self, claim: Claim) {
        self.ended.insert(claim.delivery_id, true);
        self.floors.insert((claim.destination_id, false), None);
        self.floors.insert((claim.destination_id, true), None);
    }

    /// After which place a claim begins.
    pub(crate) fn floor(&self, id: DestinationId, in_lane: bool) -> Position {
        let floor_of = |lane: &Lane| if in_lane { lane.lane_floor } else { lane.floor };
        let known = || self.claims.read().lanes.get(&id).and_then(floor_of);
        let first = if in_lane { FIRST_OF_LANE } else { FIRST };
        self.floors.get(&(id, in_lane)).copied().unwrap_or_else(known).unwrap_or(first)
    }

    /// How many rows a claim may find claimed already.
    pub(crate) fn count(&self, id: DestinationId) -> usize {
        self.claims.count(Some(id)) + self.made.len()
    }

    /// As many claims as there are, of all destinations.
    pub(crate) fn count_all(&self) -> usize {
        self.claims.count(None) + self.made.len()
    }

    pub(crate) fn raise_floor(&mut self, id: DestinationId, to: Position) {
        self.floors.insert((id, lane::is_in_lane(to.0)), Some(to));
    }

    /// A delivery waits since now, due at `due`: claims begin before it.
    pub(crate) fn lower_floor(&mut self, id: DestinationId, due: Timestamp) {
        let in_lane = lane::is_in_lane(due);
        let floor = self.floor(id, in_lane);
        if floor != FIRST && floor != FIRST_OF_LANE && due <= floor.0 {
            let below = (Timestamp::from_nanos(due.as_nanos().saturating_sub(1)), DeliveryId::from_bytes([0xff; 16]));
            self.floors.insert((id, in_lane), Some(below));
        }
    }

    /// What becomes of the journal, for the claims that have ended.
    pub(crate) fn journal(&self) -> Journal {
        let mut journal = Journal { over: Vec::new(), rewritten: Vec::new() };
        if self.ended.is_empty() {
            return journal;
        }
        let live = self.claims.read();
        let mut touched: IdMap<BatchId, (usize, bool)> = IdMap::default();
        for (id, released) in &self.ended {
            let Some(claim) = live.by_delivery.get(id) else { continue };
            let (ended, rewrite) = touched.entry(claim.batch()).or_default();
            *ended += 1;
            *rewrite |= released;
        }
        let mut rewritten: IdMap<BatchId, Vec<LiveClaim>> = IdMap::default();
        for (batch, (ended, rewrite)) in touched {
            if live.batches.get(&batch) == Some(&ended) {
                journal.over.push(batch);
            } else if rewrite {
                rewritten.insert(batch, Vec::new());
            }
        }
        // Rare, so that a walk over all claims costs less than a list of each row's.
        if !rewritten.is_empty() {
            for live in live.by_delivery.values().filter(|live| !self.ended.contains_key(&live.claim.delivery_id)) {
                if let Some(left) = rewritten.get_mut(&live.batch()) {
                    left.push(*live);
                }
            }
            journal.rewritten = rewritten.into_iter().collect();
        }
        journal
    }

    /// The transaction has committed.
    pub(crate) fn commit(self) {
        if self.made.is_empty() && self.ended.is_empty() && self.floors.is_empty() {
            return;
        }
        let mut live = self.claims.inner.write().unwrap_or_else(PoisonError::into_inner);
        self.ended.keys().for_each(|&id| live.remove(id));
        self.made.into_values().for_each(|claim| live.insert(claim));
        for ((id, in_lane), floor) in self.floors {
            if let Some(lane) = live.lanes.get_mut(&id) {
                *(if in_lane { &mut lane.lane_floor } else { &mut lane.floor }) = floor;
            }
        }
    }
}
