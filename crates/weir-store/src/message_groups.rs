//! Lines: what waits in the order of its key, and what puts a line right that no ending will.
//!
//! See [`weir_core::order`] for what a line is. Whatever ends its head lets the next come forward: [`crate::Results`] and
//! [`crate::Outbox`] do so by themselves, in the same commit or right after it. What is here is for the sweep.

use async_trait::async_trait;
use weir_core::DestinationId;

use crate::StoreResult;

/// A destination and an ordering key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageGroup {
    pub destination_id: DestinationId,
    pub ordering_key: String,
}

/// What one look at some lines did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageGroupsRepaired {
    /// Lines that had lost their head and have one again.
    pub advanced: u64,
    /// Where the next look goes on; `None` at the end.
    pub next: Option<MessageGroup>,
}

#[async_trait]
pub trait MessageGroups {
    /// Looks at some lines after a place, in their order, and lets the next of those come forward that have no head: a process
    /// may have died between the end of one and the start of the next. At most `limit` in one call.
    async fn repair_message_groups(
        &self,
        after: Option<MessageGroup>,
        limit: u32,
    ) -> StoreResult<MessageGroupsRepaired>;

    /// Lets deliveries go without order whose destinations are not ordered any more: what was behind is due. At most `limit` in
    /// one call; answers how many.
    async fn dissolve_message_groups(&self, limit: u32) -> StoreResult<u64>;
}
