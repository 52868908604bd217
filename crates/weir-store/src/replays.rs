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
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp, activity::Activity};

use crate::{ClaimRequest, Claims, Created, Creation, DeliveryFilter, Page, PageRequest, StoreResult};

/// The states that can be replayed: those in which the receiver may have missed the event.
pub const REPLAYABLE: [DeliveryState; 4] =
    [DeliveryState::Failed, DeliveryState::Dead, DeliveryState::Cancelled, DeliveryState::Delivered];

/// The deliveries that a replay sends again: those in one of these states when the replay began. Deliveries of deleted
/// destinations, expired ones, and those of another open replay are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayFilter {
    /// Some of [`REPLAYABLE`], without duplicates.
    pub states: Vec<DeliveryState>,
    /// Must have no `states`; its order does not matter.
    pub deliveries: DeliveryFilter,
}

impl ReplayFilter {
    /// The only tenant, if it is limited to one.
    pub fn only_tenant(&self) -> Option<&str> {
        self.deliveries.tenants.only()
    }
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

    /// Whether a replay that ends in this phase waits also for its deliveries that are live by now: those retried by
    /// hand, and heads of message groups. After a cancellation these are still sent.
    pub fn waits_for_live(self) -> bool {
        self == Self::Completed
    }
}

/// The deliveries of a replay, counted by result. Deliveries that are live by now are counted too. When a cancelled
/// replay ends, it does not wait for these ([`ReplayPhase::waits_for_live`]), so those that end later are not counted
/// as ended.
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

    /// The deliveries that have not ended. For a cancelled replay: those that had not ended when the replay ended.
    pub fn remaining(self) -> u64 {
        self.total.saturating_sub(self.ended())
    }

    /// Adds deliveries in this state.
    fn count(&mut self, state: DeliveryState, deliveries: u64) {
        use DeliveryState::{Cancelled, Dead, Delivered, Expired, Failed, Superseded};
        match state {
            Delivered => self.delivered += deliveries,
            Failed | Dead => self.failed += deliveries,
            Cancelled | Superseded | Expired => self.cancelled += deliveries,
            DeliveryState::Pending | DeliveryState::Delivering | DeliveryState::Retrying => {}
        }
    }
}

/// Adds numbers of deliveries by state.
impl Extend<(DeliveryState, u64)> for ReplayFigures {
    fn extend<T: IntoIterator<Item = (DeliveryState, u64)>>(&mut self, counted: T) {
        counted.into_iter().for_each(|(state, deliveries)| self.count(state, deliveries));
    }
}

impl FromIterator<(DeliveryState, u64)> for ReplayFigures {
    fn from_iter<T: IntoIterator<Item = (DeliveryState, u64)>>(counted: T) -> Self {
        let mut figures = Self::default();
        figures.extend(counted);
        figures
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

/// A replay with steps left, as a step reads it.
#[derive(Debug, Clone)]
pub struct OpenReplay {
    pub id: ReplayId,
    pub phase: ReplayPhase,
    pub filter: ReplayFilter,
    pub created_at: Timestamp,
    pub position: ReplayPosition,
    /// The number of deliveries moved so far.
    pub moved: u64,
}

/// The progress of a replay that moves deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayPosition {
    /// The index of the current state in the filter.
    pub state: usize,
    /// The last delivery read in that state.
    pub after: [u8; 16],
}

impl ReplayPosition {
    /// The position after a step that read deliveries up to `last`. A full step continues after its last delivery;
    /// otherwise the next state begins.
    pub fn next(self, last: Option<[u8; 16]>, is_full: bool) -> Self {
        match last {
            Some(after) if is_full => Self { after, ..self },
            _ => Self { state: self.state + 1, ..Self::default() },
        }
    }
}

/// What the next step of a replay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayTask {
    /// Read the next deliveries in this state, move those that the replay takes, and save the position.
    Move(DeliveryState),
    /// Enter [`ReplayPhase::Moved`]: the deliveries in every state were read.
    MarkMoved,
    /// Put back the deliveries that wait for the replay. Claimed ones end by themselves; a later step puts back those
    /// that wait again. When none waits, the step does [`Self::End`] with [`ReplayPhase::Cancelled`].
    PutBack,
    /// Once no delivery of the replay waits or is in flight: store this phase and the final figures, and forget the
    /// destinations. See [`ReplayPhase::waits_for_live`] for live deliveries.
    End(ReplayPhase),
}

impl OpenReplay {
    pub fn task(&self) -> ReplayTask {
        match self.phase {
            ReplayPhase::Moving => match self.filter.states.get(self.position.state) {
                Some(&state) => ReplayTask::Move(state),
                None => ReplayTask::MarkMoved,
            },
            ReplayPhase::Cancelling => ReplayTask::PutBack,
            _ => ReplayTask::End(ReplayPhase::Completed),
        }
    }
}

/// The result of one step of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayStep {
    /// The number of deliveries moved into the replay backlog or put back.
    pub moved: u64,
    /// The destinations to wake.
    pub wake: Vec<DestinationId>,
    /// The flows with limit keys among the moved deliveries, to wake too: as many as a step moves at most.
    pub flows: Vec<DestinationId>,
    /// Whether the next step can run at once.
    pub more: bool,
}

impl ReplayStep {
    /// A step after which the next one can run at once.
    pub fn of(moved: u64, wake: Vec<DestinationId>) -> Self {
        Self { moved, wake, flows: Vec::new(), more: true }
    }

    pub fn with_flows(self, flows: Vec<DestinationId>) -> Self {
        Self { flows, ..self }
    }
}

#[async_trait]
pub trait Replays: Send + Sync {
    /// The number of deliveries that a replay would send again if it began at `now`.
    async fn count_replay(&self, filter: &ReplayFilter, now: Timestamp) -> StoreResult<u64>;

    /// Stores a new replay. `total` is the count from [`Self::count_replay`], shown until all deliveries are moved.
    async fn create_replay(&self, replay: NewReplay, total: u64, creation: Creation) -> StoreResult<Created<()>>;

    async fn replay(&self, id: ReplayId) -> StoreResult<Option<Replay>>;

    async fn list_replays(&self, page: PageRequest) -> StoreResult<Page<Replay>>;

    /// Begins to cancel an open replay: no more deliveries are moved, and the following steps put its waiting
    /// deliveries back. Deliveries in flight end by themselves. Returns the phase after the call; `None` if there is no
    /// such replay. Only a call that changes the phase is an activity.
    async fn cancel_replay(&self, id: ReplayId, now: Timestamp, activity: Activity)
    -> StoreResult<Option<ReplayPhase>>;
}

/// The work on replays that goes on in the background.
#[async_trait]
pub trait ReplaySteps: Send + Sync {
    /// The replays with steps left, oldest first.
    async fn open_replays(&self) -> StoreResult<Vec<ReplayId>>;

    /// Takes the next step of a replay in one short transaction. Does nothing while another process takes it.
    async fn step_replay(&self, id: ReplayId, now: Timestamp) -> StoreResult<ReplayStep>;

    /// The destinations that may have waiting deliveries of a replay.
    async fn replay_destinations(&self) -> StoreResult<Vec<DestinationId>>;

    /// Claims deliveries of replays, as [`crate::Outbox::claim`] claims live deliveries.
    async fn claim_replays(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_moves_each_state_of_its_filter_and_then_waits_for_the_end() {
        let states = vec![DeliveryState::Dead, DeliveryState::Failed];
        let filter = ReplayFilter { states, deliveries: DeliveryFilter::default() };
        let mut open = OpenReplay {
            id: ReplayId::from_bytes([1; 16]),
            phase: ReplayPhase::Moving,
            filter,
            created_at: Timestamp::MIN,
            position: ReplayPosition::default(),
            moved: 0,
        };
        assert_eq!(open.task(), ReplayTask::Move(DeliveryState::Dead));
        open.position = open.position.next(Some([7; 16]), true);
        assert_eq!((open.task(), open.position.after), (ReplayTask::Move(DeliveryState::Dead), [7; 16]));
        open.position = open.position.next(Some([9; 16]), false);
        assert_eq!((open.task(), open.position.after), (ReplayTask::Move(DeliveryState::Failed), [0; 16]));
        open.position = open.position.next(None, false);
        assert_eq!(open.task(), ReplayTask::MarkMoved);
        open.phase = ReplayPhase::Moved;
        assert_eq!(open.task(), ReplayTask::End(ReplayPhase::Completed));
        open.phase = ReplayPhase::Cancelling;
        assert_eq!(open.task(), ReplayTask::PutBack);
    }
}
