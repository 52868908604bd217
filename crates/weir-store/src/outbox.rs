//! The scheduler's side: what is due, claimed for sending, given back, or left behind by the dead.

use async_trait::async_trait;
use weir_core::{
    DestinationId, Timestamp,
    claim::{Claim, ClaimedDelivery},
};

use crate::StoreResult;

/// A claim of up to `limit` due deliveries of one destination, oldest due first.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    pub destination_id: DestinationId,
    pub limit: u32,
    /// When the claim counts as abandoned. No send may start after it minus the destination's timeout.
    pub expires_at: Timestamp,
    /// Whether losing this claim to a power failure could break a limit, because a window is longer than a restart of the machine
    /// takes, or turn an order round. The commit is then durable, and so is every one before it.
    pub durable: bool,
}

/// What one [`ClaimRequest`] brought.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    pub deliveries: Vec<ClaimedDelivery>,
    /// When fewer came than were asked for: the earliest due time of what remains.
    pub next_due: Option<Timestamp>,
}

/// A destination with waiting deliveries, and when the first of them is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueDestination {
    pub destination_id: DestinationId,
    pub due: Timestamp,
}

/// What the store knows of a destination's last sends, for cursors that were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendHistory {
    /// The latest recorded send start; for unknown outcomes the latest instant it can have been. For a destination that is
    /// older than the mark of a restore, not before that mark.
    pub last_sent_at: Option<Timestamp>,
    /// Whether claims are out whose send starts are not recorded yet.
    pub unsettled: bool,
}

/// How many claims a recovery resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Resolved as unknown and due again at once.
    pub retried: u64,
    /// Resolved as unknown with attempts exhausted: `dead`.
    pub dead: u64,
    /// Resolved as unknown, of a deleted destination: `cancelled`.
    pub cancelled: u64,
    /// Resolved as unknown, with a newer event of the same coalesce key: `superseded`.
    pub superseded: u64,
}

#[async_trait]
pub trait Outbox {
    /// Claims due deliveries (`next_attempt_at ≤ now`, states pending and retrying) of several destinations in one
    /// transaction: `delivering`, with a new epoch. A delivery is in one claim at a time. Answers in the order of the
    /// requests. The claim survives the death of the process before anything is sent on it. One whose `expires_at` has passed
    /// becomes `expired` and takes its place in the claim, so that what a claim costs stays bounded: a claim that comes short
    /// for that answers `now` as the next due time.
    async fn claim(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>>;

    /// Gives claims back unsent: `pending` or `retrying` as before, due as before, the attempt not counted. Claims lost
    /// meanwhile are passed over. Deliveries of a deleted destination become `cancelled`, those with a newer one of their
    /// coalesce key `superseded`. Answers how many went back.
    async fn release(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<u64>;

    /// Destinations that are neither paused nor deleted and have deliveries due before `before`, at most `limit`,
    /// beginning after `after` in the order of ids (`None` for the first). What the sweep wakes.
    async fn due_destinations(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>>;

    /// Resolves claims that expired before `now`, or every claim when `all` (at start, when no other process can hold
    /// one): an attempt of unknown outcome is recorded and counted, and the delivery is due again, `dead` if that was its
    /// last attempt, `cancelled` if its destination is deleted, or `superseded` by a newer one of its coalesce key. At most `limit` in one call.
    async fn recover_claims(&self, now: Timestamp, all: bool, limit: u32) -> StoreResult<Recovered>;

    /// Moves waiting deliveries whose `expires_at` has passed to `expired`, whatever keeps their destinations from sending,
    /// those first whose time ended first. At most `limit` in one call; answers how many.
    async fn expire_deliveries(&self, now: Timestamp, limit: u32) -> StoreResult<u64>;

    /// The last sends of these destinations, in the same order.
    async fn send_history(&self, ids: &[DestinationId]) -> StoreResult<Vec<SendHistory>>;

    /// Marks the store as restored from a backup: until `sends_until` sends may have started that it knows nothing of. The mark
    /// takes part in the history of every destination that was there by then, until later sends overtake it.
    async fn mark_restored(&self, sends_until: Timestamp) -> StoreResult<()>;

    /// Prepares the store for the time to come, such as the partitions of the next days. The sweep calls it each time; it
    /// costs nothing when there is nothing to do.
    async fn maintain(&self, _now: Timestamp) -> StoreResult<()> {
        Ok(())
    }
}
