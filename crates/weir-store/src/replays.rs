//! Replays: what has ended, sent again in a lane of its own.
//!
//! ```text
//! moving ──all moved──▶ moved ──nothing waits──▶ completed
//!    └────────┬───────────┘
//!           cancel ──▶ cancelling ──nothing waits──▶ cancelled
//! ```
//!
//! A replay goes on in steps, each one bounded transaction that also writes down where it has got to. Whoever takes the next
//! step goes on from there, so it may end anywhere, with its process or without.

use async_trait::async_trait;
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp};

use crate::{ClaimRequest, Claims, DeliveryFilter, Page, PageRequest, StoreResult};

/// The states that can be replayed: those that say that somebody may have missed the event.
pub const REPLAYABLE: [DeliveryState; 4] =
    [DeliveryState::Failed, DeliveryState::Dead, DeliveryState::Cancelled, DeliveryState::Delivered];

/// Which deliveries a replay sends again: what was in one of these states when it began. Those of deleted destinations, those
/// whose time to live is over, and those that another replay has in hand are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayFilter {
    /// Some of [`REPLAYABLE`], each once.
    pub states: Vec<DeliveryState>,
    /// Without a state of its own.
    pub deliveries: DeliveryFilter,
}

/// A replay to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewReplay {
    pub id: ReplayId,
    pub filter: ReplayFilter,
    pub created_at: Timestamp,
}

/// Where a replay stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayPhase {
    /// What it sends again is being moved into the lane.
    Moving,
    /// All of it is in the lane, or has ended.
    Moved,
    Completed,
    /// What waits in the lane goes back to where it came from.
    Cancelling,
    Cancelled,
}

impl ReplayPhase {
    /// Every phase. A store keeps the place in this list.
    pub const ALL: [Self; 5] = [Self::Moving, Self::Moved, Self::Completed, Self::Cancelling, Self::Cancelled];

    /// Whether there are steps to take.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Moving | Self::Moved | Self::Cancelling)
    }
}

/// What became of the deliveries of a replay.
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
    /// Those that have ended.
    pub fn ended(self) -> u64 {
        self.delivered + self.failed + self.cancelled
    }

    /// Those that have not; of a cancelled replay, those it left as they were.
    pub fn remaining(self) -> u64 {
        self.total.saturating_sub(self.ended())
    }

    /// Counts deliveries in this state.
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

/// A replay as it is shown.
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

/// What one step of a replay did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayStep {
    /// Moved into the lane, or back out of it.
    pub moved: u64,
    /// The destinations to wake.
    pub wake: Vec<DestinationId>,
    /// Whether the next step has something to do at once.
    pub more: bool,
}

#[async_trait]
pub trait Replays {
    /// How many deliveries a replay would send again if it began at `now`.
    async fn count_replay(&self, filter: &ReplayFilter, now: Timestamp) -> StoreResult<u64>;

    /// Stores a replay that begins, with that count as its `total` until all is moved.
    async fn create_replay(&self, replay: NewReplay, total: u64) -> StoreResult<()>;

    async fn replay(&self, id: ReplayId) -> StoreResult<Option<Replay>>;

    async fn list_replays(&self, page: PageRequest) -> StoreResult<Page<Replay>>;

    /// Begins to cancel a replay that is under way: nothing more is moved, and what waits in the lane is put back by the steps
    /// that follow. What is under way ends by itself. `None` when there is none; else the phase it is in by now.
    async fn cancel_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<Option<ReplayPhase>>;

    /// The replays that have steps to take, oldest first.
    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>>;

    /// Takes the next step of a replay: one short transaction. Does nothing while somebody else takes it.
    async fn step_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<ReplayStep>;

    /// The destinations that may have something in the lane.
    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>>;

    /// Claims of the lane as [`crate::Outbox::claim`] does of what is live.
    async fn claim_replays(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>>;
}
