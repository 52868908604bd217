//! The scheduler's side: due deliveries are claimed, released, and recovered after a crash.

use async_trait::async_trait;
use weir_core::{
    DestinationId, LimitGroupId, RateLimit, Timestamp,
    claim::{Claim, ClaimedDelivery},
    limiter::Ring,
};

use crate::StoreResult;

/// A claim of up to `limit` due deliveries of one destination, oldest due first.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    pub destination_id: DestinationId,
    /// Which of its deliveries.
    pub flow: ClaimedFlow,
    pub limit: u32,
    /// When the claim counts as abandoned. No send may start later than this minus the destination's timeout.
    pub expires_at: Timestamp,
    /// Whether the commit must be durable, together with all earlier ones. It must if a power failure that loses the
    /// claim could break a limit, because a window is longer than a restart of the machine, or the delivery order.
    pub durable: bool,
}

impl ClaimRequest {
    /// The flow whose job asks.
    pub fn flow_id(&self) -> DestinationId {
        match self.flow {
            ClaimedFlow::Key(id) => id,
            ClaimedFlow::All | ClaimedFlow::Keyless => self.destination_id,
        }
    }
}

/// Which deliveries of a destination a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClaimedFlow {
    /// All: it never had limit keys.
    #[default]
    All,
    /// Those of the flow with this id, which have one limit key.
    Key(DestinationId),
    /// Those without a limit key, which were stored before the destination had some, or after. They are looked for among
    /// the [`KEYLESS_LOOKED_AT`] waiting deliveries of the destination that are due first.
    Keyless,
}

/// How many waiting deliveries of a destination with limit keys a claim of those without one looks at. Such are few, and
/// mostly older than the others. One behind more than these waits until they have been sent.
pub const KEYLESS_LOOKED_AT: u32 = 20_000;

/// The result of one [`ClaimRequest`].
#[derive(Debug, Clone, Default)]
pub struct Claims {
    pub deliveries: Vec<ClaimedDelivery>,
    /// If there were fewer deliveries than requested: the earliest due time of the remaining ones.
    pub next_due: Option<Timestamp>,
}

/// A destination with waiting deliveries, and the earliest due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueDestination {
    pub destination_id: DestinationId,
    pub due: Timestamp,
    /// The limit group of the destination, which decides where its job is.
    pub limit_group: Option<LimitGroupId>,
}

/// A destination's last sends, from which lost cursors are recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendHistory {
    /// The latest recorded send start; for an unknown outcome the latest possible instant. For a destination that is
    /// older than the restore mark, at least that mark.
    pub last_sent_at: Option<Timestamp>,
    /// Whether there are outstanding claims, whose send starts are not recorded yet.
    pub unsettled: bool,
}

/// What a destination has sent lately, from which the ring of a lost limit of the window shape is filled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SentCounts {
    /// Numbers of buckets and the recorded sends in them, as in [`Ring::buckets`]; of an unknown outcome at the latest
    /// possible instant.
    pub buckets: Vec<(i64, u32)>,
    /// Outstanding claims: as many sends, or the sum of their costs, may not be recorded yet.
    pub claimed: u32,
    /// Until when sends may have started that a restored store does not know.
    pub restored: Option<Timestamp>,
    /// For a limit in costs the mean cost of the oldest waiting deliveries, in parts of
    /// [`COST_OF_ONE`](weir_core::limiter::COST_OF_ONE); else 0.
    pub usual_cost: u32,
}

impl SentCounts {
    /// The ring of this limit. `unrecorded`: until when sends of the outstanding claims may start.
    pub fn ring(&self, limit: RateLimit, unrecorded: Timestamp, now: Timestamp) -> Ring {
        let bucket = |at: Timestamp| (at.as_nanos() / limit.bucket().as_nanos() as i64) + 1;
        // No send is in the future, even if the clock of the process that recorded it was wrong.
        let recorded = self.buckets.iter().map(|&(number, sends)| (number.min(bucket(now)), sends));
        let restored = self.restored.map(|until| (bucket(until), limit.limit.get()));
        let mut all: Vec<_> = recorded.chain(restored).chain([(bucket(unrecorded), self.claimed)]).collect();
        all.sort_unstable();
        Ring::of(limit, all, 0)
    }
}

/// The number of claims that a recovery resolved, all as unknown outcomes, by the new state of their deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// `retrying`, due at once.
    pub retried: u64,
    /// `dead`, because no attempts were left.
    pub dead: u64,
    /// `cancelled`, because the destination is deleted.
    pub cancelled: u64,
    /// `superseded` by a newer event with the same coalesce key.
    pub superseded: u64,
}

impl Recovered {
    /// A recovery resolves the claims that expire at this instant or before it: those that expired before `now`, or
    /// with `all` also a claim that never expires.
    pub fn latest_expiry(now: Timestamp, all: bool) -> Timestamp {
        if all { Timestamp::MAX } else { Timestamp::from_nanos(now.as_nanos().saturating_sub(1)) }
    }
}

#[async_trait]
pub trait Outbox: Send + Sync {
    /// Claims due live deliveries (`next_attempt_at ≤ now`, states pending and retrying) of several destinations in one
    /// transaction: they become `delivering`, with a new epoch. A delivery is in one claim at a time. Returns the
    /// claims in the order of the requests. The claim is committed before anything is sent on it, so it survives the
    /// death of the process.
    ///
    /// A delivery whose `expires_at` has passed becomes `expired`. It counts against the limit, so that the cost of a
    /// claim stays bounded; the claim then returns `now` as the next due time.
    async fn claim(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>>;

    /// Releases claims that were not sent. The deliveries return to `pending` or `retrying` with their previous due
    /// time, and no attempt is counted. Claims lost meanwhile are ignored. Deliveries of a deleted destination become
    /// `cancelled`, replaced ones `superseded` ([`crate::intake`]). Returns the number of released claims.
    async fn release(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<u64>;

    /// The destinations that the sweep wakes: neither paused nor deleted, with deliveries due before `before`. At most
    /// `limit`, in the order of ids, starting after `after` (`None` for the beginning).
    async fn due_destinations(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>>;

    /// Resolves at most `limit` claims that expired before `now`, or with `all` any claims (at start, when no other
    /// process can have one). An attempt of unknown outcome is recorded and counted. The delivery is due again, or
    /// `dead` if that was its last attempt, `cancelled` if its destination is deleted, or `superseded` if it is
    /// replaced ([`crate::intake`]).
    async fn recover_claims(&self, now: Timestamp, all: bool, limit: u32) -> StoreResult<Recovered>;

    /// Moves at most `limit` waiting deliveries whose `expires_at` has passed to `expired`, also at paused and held
    /// destinations, in the order of their expiry. Returns how many.
    async fn expire_deliveries(&self, now: Timestamp, limit: u32) -> StoreResult<u64>;

    /// The last sends of these destinations, in the same order.
    async fn send_history(&self, ids: &[DestinationId]) -> StoreResult<Vec<SendHistory>>;

    /// What these destinations together have sent after `since`, in buckets of this limit, in its unit. Of each destination in
    /// one statement, so that a send is recorded or its claim is outstanding.
    async fn sent_counts(&self, ids: &[DestinationId], since: Timestamp, limit: RateLimit) -> StoreResult<SentCounts>;

    /// Marks the store as restored from a backup: sends that it did not record may have started until `sends_until`.
    /// The mark is the lower bound of `last_sent_at` for every destination that existed then.
    async fn mark_restored(&self, sends_until: Timestamp) -> StoreResult<()>;

    /// Prepares the store for the future, for example with the partitions of the next days. Each sweep calls it; it
    /// costs nothing when there is nothing to do.
    async fn maintain(&self, _now: Timestamp) -> StoreResult<()> {
        Ok(())
    }
}
