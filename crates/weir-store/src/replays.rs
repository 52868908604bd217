//! Replays: ended deliveries are sent again, within the replay share of their destination.
//!
//! ```text
//! moving ──all moved──▶ moved ──none waiting──▶ completed
//!    └────────┬───────────┘
//!           cancel ──▶ cancelling ──none waiting──▶ cancelled
//! ```
//!
//! A replay runs in steps. Each step is one bounded transaction that also stores the progress, so that any process can
//! take the next step after a crash.

use async_trait::async_trait;
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp};

use crate::{ClaimRequest, Claims, DeliveryFilter, Page, PageRequest, StoreResult};

/// The states that can be replayed: those in which the receiver may have missed the event.
pub const REPLAYABLE: [DeliveryState; 4] =
    [DeliveryState::Failed, DeliveryState::Dead, DeliveryState::Cancelled, DeliveryState::Delivered];

/// The deliveries that a replay sends again: those in one of these states when the replay began. Deliveries of deleted
/// destinations, expired ones, and those of another open replay are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayFilter {
    /// Some of [`REPLAYABLE`], without duplicates.
    pub states: Vec<DeliveryState>,
    /// Must have no `state`.
    pub deliveries: DeliveryFilter,
}

/// A replay to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewReplay {
    pub id: ReplayId,
    pub filter: ReplayFilter,
    pub created_at: Timestamp,
}

/// The phase of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayPhase {
    /// Its deliveries are being moved into the replay backlog.
    Moving,
    /// All its deliveries are in the replay backlog, or have ended.
    Moved,
    Completed,
    /// Its waiting deliveries return to their previous states.
    Cancelling,
    Cancelled,
}

impl ReplayPhase {
    /// Every phase. A store keeps the index in this list.
    pub const ALL: [Self; 5] = [Self::Moving, Self::Moved, Self::Completed, Self::Cancelling, Self::Cancelled];

    /// Whether it has steps left.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Moving | Self::Moved | Self::Cancelling)
    }
}

/// The deliveries of a replay, counted by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayFigures {
    pub total: u64,
    pub delivered: u64,
    /// `failed` or `dead` again.
    pub failed: u64,
    /// Ended unsent: cancelled, superseded or expired.
    pub cancelled: u64,
}

impl ReplayFigures {
    /// The deliveries that have ended.
    pub fn ended(self) -> u64 {
        self.delivered + self.failed + self.cancelled
    }

    /// The deliveries that have not ended; for a cancelled replay, those that it did not send.
    pub fn remaining(self) -> u64 {
        self.total.saturating_sub(self.ended())
    }

    /// Adds deliveries in this state.
    pub fn count(&mut self, state: DeliveryState, deliveries: u64) {
        use DeliveryState::{Cancelled, Dead, Delivered, Expired, Failed, Superseded};
        match state {
            Delivered => self.delivered += deliveries,
            Failed | Dead => self.failed += deliveries,
            Cancelled | Superseded | Expired => self.cancelled += deliveries,
            DeliveryState::Pending | DeliveryState::Delivering | DeliveryState::Retrying => {}
        }
    }
}

/// A replay as the API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    pub id: ReplayId,
    pub filter: ReplayFilter,
    pub phase: ReplayPhase,
    pub figures: ReplayFigures,
    pub created_at: Timestamp,
    /// When it was completed or cancelled.
    pub ended_at: Option<Timestamp>,
}

/// The result of one step of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayStep {
    /// The number of deliveries moved into the replay backlog or put back.
    pub moved: u64,
    /// The destinations to wake.
    pub wake: Vec<DestinationId>,
    /// Whether the next step can run at once.
    pub more: bool,
}

#[async_trait]
pub trait Replays {
    /// The number of deliveries that a replay would send again if it began at `now`.
    async fn count_replay(&self, filter: &ReplayFilter, now: Timestamp) -> StoreResult<u64>;

    /// Stores a new replay. `total` is the count from [`Self::count_replay`], shown until all deliveries are moved.
    async fn create_replay(&self, replay: NewReplay, total: u64) -> StoreResult<()>;

    async fn replay(&self, id: ReplayId) -> StoreResult<Option<Replay>>;

    async fn list_replays(&self, page: PageRequest) -> StoreResult<Page<Replay>>;

    /// Begins to cancel an open replay: no more deliveries are moved, and the following steps put its waiting
    /// deliveries back. Deliveries in flight end by themselves. Returns the phase after the call; `None` if there is no
    /// such replay.
    async fn cancel_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<Option<ReplayPhase>>;

    /// The replays with steps left, oldest first.
    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>>;

    /// Takes the next step of a replay in one short transaction. Does nothing while another process takes it.
    async fn step_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<ReplayStep>;

    /// The destinations that may have waiting deliveries of a replay.
    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>>;

    /// Claims deliveries of replays, as [`crate::Outbox::claim`] claims live deliveries.
    async fn claim_replays(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>>;
}
