//! A slot of a limit group that a caller outside Weir takes, for a call of its own.

use std::time::Duration;

use crate::{
    id::{LimitGroupId, ReservationId},
    time::Timestamp,
};

/// How long a slot is wide for a caller that says nothing.
pub const DEFAULT_WIDTH: Duration = Duration::from_millis(250);
/// No slot is wider: nothing that was granted before a loss of the queue's data may start later than three seconds after
/// it.
pub const WIDEST: Duration = Duration::from_millis(2_500);
/// The longest time that a caller may wait for its slot.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A slot that was reserved. Its caller starts its call in `starts_at..ends_at`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub id: ReservationId,
    pub group: LimitGroupId,
    /// How many units it takes of each limit in costs.
    pub cost: u32,
    pub created_at: Timestamp,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    /// Given back before `starts_at`: no call was started, and the windows of the group do not count it.
    pub cancelled_at: Option<Timestamp>,
}
