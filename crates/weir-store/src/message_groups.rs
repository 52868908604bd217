//! Message groups: deliveries in the order of their key, and the repairs that the sweep makes.
//!
//! [`weir_core::order`] defines message groups, and [`crate::intake`] says how deliveries join and leave them. When a
//! head ends, [`crate::Results`] and [`crate::Outbox`] make the
//! next delivery the head, in the same commit or right after it. The sweep calls the functions here for the groups that
//! a crash or an edit left.

use std::collections::BTreeSet;

use async_trait::async_trait;
use weir_core::{DestinationId, Timestamp, order::BEHIND};

use crate::StoreResult;

/// A destination and an ordering key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageGroup {
    pub destination_id: DestinationId,
    pub ordering_key: String,
}

/// The message groups to repair, among those that one call has read.
#[derive(Debug, Default)]
pub struct HeadlessGroups {
    pub headless: BTreeSet<MessageGroup>,
    /// Where the next call continues.
    pub next: Option<MessageGroup>,
}

impl HeadlessGroups {
    /// Selects the groups without a head among `found`: at most `limit` message groups in their order, each with the
    /// due time of its first delivery.
    pub fn of(found: Vec<(MessageGroup, Timestamp)>, limit: u32) -> Self {
        let next =
            found.last().filter(|_| found.len() == limit as usize).map(|(message_group, _)| message_group.clone());
        let headless = found.into_iter().filter(|(_, due)| *due == BEHIND).map(|(message_group, _)| message_group);
        Self { headless: headless.collect(), next }
    }
}

/// The result of one repair of some message groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageGroupsRepaired {
    /// The number of message groups without a head that have got one.
    pub advanced: u64,
    /// The last group that was checked: the next call continues after it. `None` at the end.
    pub next: Option<MessageGroup>,
}

#[async_trait]
pub trait MessageGroups: Send + Sync {
    /// Checks at most `limit` message groups after a given one, in their order, and gives each group without a head a
    /// new head. A process may have died between the end of one delivery and the start of the next.
    async fn repair_message_groups(
        &self,
        after: Option<MessageGroup>,
        limit: u32,
    ) -> StoreResult<MessageGroupsRepaired>;

    /// Removes at most `limit` deliveries from their message groups if their destinations are no longer ordered;
    /// deliveries behind a head become due. Returns how many.
    async fn dissolve_message_groups(&self, limit: u32) -> StoreResult<u64>;
}
