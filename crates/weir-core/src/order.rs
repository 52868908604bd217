//! Strict order per key.
//!
//! The deliveries of one destination and `ordering_key` that have not ended form a *message group*. Its head is due or
//! in flight. The other deliveries of the group are not due until the head has left the group. So one delivery of a
//! group is in flight at a time, and no claim has to skip deliveries that may not be sent yet.
//!
//! ```text
//!   ingest ──group is empty──▶ head ──ends, or is skipped──▶ out of the group; the next delivery becomes the head
//!          ──otherwise──▶ behind the head ──all before it have left──▶ head
//! ```

use std::num::NonZeroU32;

use crate::{delivery::DeliveryState, time::Timestamp};

/// The due time of a delivery that is not the head of its message group.
pub const BEHIND: Timestamp = Timestamp::MAX;

/// The order in which a destination gets its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeliveryOrder {
    /// Events may be delivered in any order.
    #[default]
    Any,
    /// Events with the same `ordering_key` are delivered one after the other, in the order in which they were stored.
    ByKey {
        /// A head with this many failed attempts lets the next delivery go first. `None`: the head blocks its message
        /// group until it ends.
        skip_after_attempts: Option<NonZeroU32>,
    },
}

impl DeliveryOrder {
    /// The order from the two values that are stored and shown: whether there is an order, and after how many attempts
    /// a head is skipped.
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

    /// Whether a head in this state, after `attempts` counted attempts, leaves its message group: because it has ended,
    /// or because it is skipped after too many failed attempts. A head that is released unsent keeps its place.
    pub fn leaves_message_group(self, state: DeliveryState, attempts: u32) -> bool {
        let is_skipped = || self.skip_after_attempts().is_some_and(|limit| attempts >= limit.get());
        state.is_terminal() || (state == DeliveryState::Retrying && is_skipped())
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
        fn an_ended_head_leaves_its_group_and_one_in_flight_does_not(order in order(), attempts in 0u32..30) {
            for state in DeliveryState::ALL {
                let leaves = order.leaves_message_group(state, attempts);
                prop_assert!(leaves || !state.is_terminal());
                prop_assert!(!leaves || !matches!(state, DeliveryState::Pending | DeliveryState::Delivering));
            }
        }

        #[test]
        fn a_head_is_skipped_from_its_last_allowed_attempt_on(skip in 1u32..20, attempts in 0u32..30) {
            let order = DeliveryOrder::new(true, NonZeroU32::new(skip));
            prop_assert_eq!(order.leaves_message_group(DeliveryState::Retrying, attempts), attempts >= skip);
        }

        #[test]
        fn without_skip_after_attempts_a_head_is_never_skipped(ordered in any::<bool>(), attempts in any::<u32>()) {
            prop_assert!(!DeliveryOrder::new(ordered, None).leaves_message_group(DeliveryState::Retrying, attempts));
        }

        #[test]
        fn an_order_is_read_back_from_its_parts(order in order()) {
            prop_assert_eq!(DeliveryOrder::new(order.is_by_key(), order.skip_after_attempts()), order);
        }
    }
}
