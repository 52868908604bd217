//! Purges: the waiting deliveries of a destination are cancelled, step by step.
//!
//! ```text
//! behind the heads of message groups ──all read──▶ due deliveries ──all read──▶ end
//! ```
//!
//! Each step reads a part of the waiting deliveries in this order and cancels those that match. To cancel a delivery
//! behind a head makes no new head. In the opposite order a cancelled head's successor could become due before the
//! position that the purge has reached, and be missed.

use std::collections::BTreeSet;

use weir_core::{DeliveryId, DeliveryState, DestinationId, LimitKey, Timestamp, order::BEHIND, pattern::EventPattern};

use crate::{MessageGroup, rows::state_code};

/// The waiting deliveries of a destination to cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purge {
    pub destination_id: DestinationId,
    /// Only deliveries of this limit key.
    pub limit_key: Option<LimitKey>,
    pub pending: bool,
    pub retrying: bool,
    pub event_type: Option<EventPattern>,
    /// Only deliveries of events created before this instant. At the latest it is the start of the purge, so that new
    /// events stay.
    pub before: Timestamp,
    /// When the purge began.
    pub now: Timestamp,
}

impl Purge {
    /// The flow of the limit key that it asks for.
    pub fn flow_id(&self) -> Option<DestinationId> {
        Some(self.limit_key.as_ref()?.flow_id(self.destination_id))
    }

    pub fn takes(&self, state: DeliveryState) -> bool {
        match state {
            DeliveryState::Pending => self.pending,
            DeliveryState::Retrying => self.retrying,
            _ => false,
        }
    }

    /// The stored numbers of the states that it takes.
    pub fn state_codes(&self) -> Vec<i16> {
        DeliveryState::ALL.into_iter().filter(|&state| self.takes(state)).map(state_code).collect()
    }
}

/// The progress of a purge, in the order of due times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgePosition {
    pub due: Timestamp,
    pub id: DeliveryId,
}

impl PurgePosition {
    /// Before all deliveries behind heads, where a purge begins.
    pub const FIRST_BEHIND: Self = Self { due: BEHIND, id: DeliveryId::from_bytes([0; 16]) };
    /// Before all due deliveries.
    pub const FIRST_DUE: Self = Self { due: Timestamp::MIN, ..Self::FIRST_BEHIND };

    /// Whether the deliveries after it are behind heads.
    pub fn is_behind(&self) -> bool {
        self.due == BEHIND
    }
}

/// The result of one bounded transaction of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeStep {
    pub cancelled: u64,
    /// Where the next step continues; `None` at the end.
    pub next: Option<PurgePosition>,
}

/// The deliveries that a store has read for one step, all of them behind heads or all of them due.
#[derive(Debug, Default)]
pub struct PurgeScan {
    /// The last delivery that was read.
    pub last: Option<PurgePosition>,
    /// Whether as many were read as one step may read, so that more may follow.
    pub is_full: bool,
    pub cancelled: u64,
    /// The message groups whose heads were cancelled: the store advances them.
    pub freed: BTreeSet<MessageGroup>,
}

impl PurgeScan {
    /// Whether the scan from `after` found no delivery behind a head. The same step then reads the due deliveries.
    pub fn found_none_behind(&self, after: PurgePosition) -> bool {
        after.is_behind() && self.last.is_none()
    }

    /// The result of the step that ends with this scan from `after`.
    pub fn step(&self, after: PurgePosition) -> PurgeStep {
        let next = match self.last {
            Some(last) if self.is_full => Some(last),
            Some(_) if after.is_behind() => Some(PurgePosition::FIRST_DUE),
            _ => None,
        };
        PurgeStep { cancelled: self.cancelled, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_reads_the_deliveries_behind_heads_and_then_the_due_ones() {
        let next = |last: Option<PurgePosition>, is_full, after| {
            PurgeScan { last, is_full, ..PurgeScan::default() }.step(after).next
        };
        let (behind, due) = (PurgePosition::FIRST_BEHIND, PurgePosition::FIRST_DUE);
        let read = |position: PurgePosition| PurgePosition { id: DeliveryId::from_bytes([7; 16]), ..position };
        assert_eq!(next(Some(read(behind)), true, behind), Some(read(behind)));
        assert_eq!(next(Some(read(behind)), false, behind), Some(due));
        assert_eq!(next(Some(read(due)), true, due), Some(read(due)));
        assert_eq!(next(Some(read(due)), false, due), None);
        assert_eq!(next(None, false, due), None);
        assert!(PurgeScan::default().found_none_behind(behind) && !PurgeScan::default().found_none_behind(due));
    }
}
