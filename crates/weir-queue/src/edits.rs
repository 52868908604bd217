//! What the queue is told of edited and deleted destinations, so that an edit also binds the permits that are out.

use std::sync::Arc;

use weir_core::{Destination, DestinationId, LimitGroup, Timestamp};

use crate::{Queue, QueueResult, Terms, TermsChange};

/// Edits and deletions of destinations, for one announcement.
#[derive(Debug, Default)]
pub struct Edits {
    /// The destinations with limit keys, as the groups of their flows.
    budgets: Vec<Arc<LimitGroup>>,
    terms: Vec<TermsChange>,
}

impl Edits {
    /// The edit of one destination.
    pub fn of(destination: &Destination, now: Timestamp) -> Self {
        let mut edits = Self::default();
        edits.add(destination, now);
        edits
    }

    /// The deletion of one destination, as it was before.
    pub fn of_deleted(destination: &Destination, deleted_at: Timestamp) -> Self {
        let mut edits = Self::default();
        edits.add_deleted(destination.id, deleted_at, Some(destination));
        edits
    }

    pub fn add(&mut self, destination: &Destination, now: Timestamp) {
        if destination.keyed_at.is_some() {
            self.budgets.push(Arc::new(destination.as_group()));
        }
        self.terms.push(TermsChange { destination_id: destination.id, terms: Terms::of(destination, now) });
    }

    /// `before`: the destination before its deletion, if it is known.
    pub fn add_deleted(&mut self, destination_id: DestinationId, deleted_at: Timestamp, before: Option<&Destination>) {
        if before.is_none_or(|of| of.keyed_at.is_some()) {
            let member_of = before.and_then(|of| of.settings.limit_group);
            self.budgets.push(Arc::new(Destination::deleted_as_group(destination_id, deleted_at, member_of)));
        }
        let (group, outer) = before.map_or((None, None), |of| (of.shared_budget(), of.outer_group()));
        self.terms.push(TermsChange { destination_id, terms: Terms { group, outer, ..Terms::deleted(deleted_at) } });
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Tells the queue. The budgets of limit keys come first: from then on no flow gets a slot under older terms.
    pub async fn announce(&self, queue: &dyn Queue) -> QueueResult<()> {
        if !self.budgets.is_empty() {
            queue.edited_groups(&self.budgets).await?;
        }
        if self.is_empty() { Ok(()) } else { queue.edited(&self.terms).await }
    }
}
