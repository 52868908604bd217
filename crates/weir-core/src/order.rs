//! Strict order per key.
//!
//! The deliveries of one destination and `ordering_key` that have not ended form a *line*. Its head is due or under way; what is
//! behind it is not due at all, until the head has left. So one is in flight at a time, and no claim walks past what may
//! not be sent yet.
//!
//! ```text
//!   ingest ──line is empty──▶ head ──ends, or is skipped──▶ out of the line; the next becomes the head
//!          ──otherwise──▶ behind ──the one before has left──▶ head
//! ```

use std::num::NonZeroU32;

use crate::{delivery::DeliveryState, time::Timestamp};

/// When a delivery is due that is behind another in its line.
pub const BEHIND: Timestamp = Timestamp::MAX;

/// In which order a destination gets its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeliveryOrder {
    /// In none that is promised.
    #[default]
    Any,
    /// Those of one `ordering_key` one after the other, as they were stored.
    ByKey {
        /// A head that has failed so often lets the next go first; `None`: never, it blocks its key until it ends.
        skip_after_attempts: Option<NonZeroU32>,
    },
}

impl DeliveryOrder {
    /// From how it is stored and shown: whether there is an order, and when it is given up for a delivery.
    pub fn new(ordered: bool, skip_after_attempts: Option<NonZeroU32>) -> Self {
        if ordered { Self::ByKey { skip_after_attempts } } else { Self::Any }
    }

    pub fn is_by_key(self) -> bool {
        self != Self::Any
    }

    pub fn skip_after_attempts(self) -> Option<NonZeroU32> {
        match self {
            Self::Any => None,
            Self::ByKey { skip_after_attempts } => skip_after_attempts,
        }
    }

    /// Whether the head of a line leaves it, now that it is in this state after so many counted attempts: because it has ended, or
    /// because it has failed too often to keep the others waiting. One given back unsent keeps its place.
    pub fn leaves_line(self, state: DeliveryState, attempts: u32) -> bool {
        let too_often = || self.skip_after_attempts().is_some_and(|most| attempts >= most.get());
        state.is_terminal() || (state == DeliveryState::Retrying && too_often())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order() -> impl Strategy<Value = DeliveryOrder> {
        (any::<bool>(), proptest::option::of(1u32..20))
            .prop_map(|(ordered, skip)| DeliveryOrder::new(ordered, skip.and_then(NonZeroU32::new)))
    }

    proptest! {
        #[test]
        fn what_has_ended_leaves_its_line_and_what_is_under_way_does_not(order in order(), attempts in 0u32..30) {
            for state in DeliveryState::ALL {
                let leaves = order.leaves_line(state, attempts);
                prop_assert!(leaves || !state.is_terminal());
                prop_assert!(!leaves || !matches!(state, DeliveryState::Pending | DeliveryState::Delivering));
            }
        }

        #[test]
        fn a_head_is_skipped_from_its_last_allowed_attempt_on(skip in 1u32..20, attempts in 0u32..30) {
            let order = DeliveryOrder::new(true, NonZeroU32::new(skip));
            prop_assert_eq!(order.leaves_line(DeliveryState::Retrying, attempts), attempts >= skip);
        }

        #[test]
        fn without_a_number_a_head_is_never_skipped(ordered in any::<bool>(), attempts in any::<u32>()) {
            prop_assert!(!DeliveryOrder::new(ordered, None).leaves_line(DeliveryState::Retrying, attempts));
        }

        #[test]
        fn an_order_is_read_back_from_its_parts(order in order()) {
            prop_assert_eq!(DeliveryOrder::new(order.is_by_key(), order.skip_after_attempts()), order);
        }
    }
}
