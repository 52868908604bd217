//! Commit batches: operations that commit together. The commit queue decides which operations form the next one.
//!
//! The operations of a batch may run in any order, because none of their callers has an answer yet.

use std::{collections::VecDeque, sync::Arc};

use weir_core::{Timestamp, claim::Claim};
use weir_store::{
    AttemptResult, ClaimRequest, Claims, MOST_DELIVERIES_OF_COMMIT, Part, Recovered, Settlement, StoreError, Turns,
    intake::IngestResult,
};

use crate::{
    edit::{Durable, Edit},
    error::Result,
    pending::Pending,
    transaction::Transaction,
};

pub(crate) type Ingest = Pending<Part, Vec<IngestResult>>;
pub(crate) type Claiming = Pending<(Vec<ClaimRequest>, Timestamp), Vec<Claims>>;
pub(crate) type Release = Pending<(Vec<Claim>, Timestamp), u64>;
pub(crate) type Settle = Pending<Vec<Arc<AttemptResult>>, Vec<Settlement>>;
pub(crate) type Recover = Pending<Recovery, Recovered>;

/// The arguments of `recover_claims`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovery {
    pub(crate) now: Timestamp,
    pub(crate) all: bool,
    pub(crate) limit: u32,
}

pub(crate) enum Operation {
    Edit(Edit),
    Ingest(Ingest),
    Settle(Settle),
    Release(Release),
    Recover(Recover),
    Claim(Claiming),
    /// Commit all earlier operations, then close the file.
    Close,
}

impl From<Edit> for Operation {
    fn from(edit: Edit) -> Self {
        Self::Edit(edit)
    }
}

/// Operations that commit together.
#[derive(Default)]
pub(crate) struct CommitBatch {
    edits: Vec<Edit>,
    pub(crate) ingests: Vec<Ingest>,
    pub(crate) settles: Vec<Settle>,
    releases: Vec<Release>,
    recoveries: Vec<Recover>,
    pub(crate) claims: Vec<Claiming>,
    pub(crate) operations: usize,
    /// The number of events, results and edits in the batch.
    pub(crate) rows: usize,
    /// The expected deliveries of the events.
    pub(crate) deliveries: usize,
}

impl CommitBatch {
    /// Adds operations until it has `rows` rows.
    pub(crate) fn fill(&mut self, queue: &mut VecDeque<Operation>, rows: usize) {
        while self.rows < rows
            && let Some(operation) = queue.pop_front()
        {
            self.add(operation);
        }
    }

    /// Adds events in the turns of their tenants until it has `rows` rows, and not more deliveries than a commit may
    /// have.
    pub(crate) fn fill_with_events(&mut self, turns: &mut Turns<Ingest>, rows: usize) {
        while self.rows < rows
            && let Some(ingest) =
                turns.pop(|more| self.ingests.is_empty() || self.deliveries + more <= MOST_DELIVERIES_OF_COMMIT)
        {
            self.add(Operation::Ingest(ingest));
        }
    }

    pub(crate) fn add(&mut self, operation: Operation) {
        self.operations += 1;
        match operation {
            Operation::Edit(edit) => {
                self.rows += 1;
                self.edits.push(edit);
            }
            Operation::Ingest(ingest) => {
                self.rows += ingest.input.events().len();
                self.deliveries += ingest.input.rows();
                self.ingests.push(ingest);
            }
            Operation::Settle(settle) => {
                self.rows += settle.input.len();
                self.settles.push(settle);
            }
            Operation::Release(release) => self.releases.push(release),
            Operation::Recover(recover) => self.recoveries.push(recover),
            Operation::Claim(claim) => self.claims.push(claim),
            Operation::Close => {}
        }
    }

    /// About how many rows it writes into the largest tables.
    pub(crate) fn written(&self) -> usize {
        self.rows.max(self.deliveries)
    }

    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Whether it has several operations, so that each can be retried alone.
    pub(crate) fn has_several(&self) -> bool {
        self.operations > 1
    }

    /// Whether the commit must reach the disk before the callers get their answers.
    pub(crate) fn is_durable(&self) -> bool {
        !self.ingests.is_empty()
            || self.edits.iter().any(|edit| edit.durable == Durable::Yes)
            || self.claims.iter().any(|claim| claim.input.0.iter().any(|request| request.durable))
    }

    pub(crate) fn run(&mut self, transaction: &mut Transaction<'_, '_>) -> Result<()> {
        for edit in &mut self.edits {
            edit.run(transaction)?;
        }
        transaction.ingest(&mut self.ingests)?;
        transaction.settle(&mut self.settles)?;
        transaction.release(&mut self.releases)?;
        for recovery in &mut self.recoveries {
            recovery.answer = Some(transaction.recover(recovery.input)?);
        }
        transaction.claim(&mut self.claims)
    }

    /// Adds results that were written in the same transaction.
    pub(crate) fn join(&mut self, more: Self) {
        self.operations += more.operations;
        self.rows += more.rows;
        self.settles.extend(more.settles);
    }

    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        self.edits.into_iter().for_each(|edit| edit.finish(failure));
        self.ingests.into_iter().for_each(|ingest| ingest.finish(failure));
        self.settles.into_iter().for_each(|settle| settle.finish(failure));
        self.releases.into_iter().for_each(|release| release.finish(failure));
        self.recoveries.into_iter().for_each(|recovery| recovery.finish(failure));
        self.claims.into_iter().for_each(|claim| claim.finish(failure));
    }

    /// Each operation in a batch of its own.
    pub(crate) fn split(self) -> Vec<Self> {
        let edits = self.edits.into_iter().map(Operation::Edit);
        let operations = edits
            .chain(self.ingests.into_iter().map(Operation::Ingest))
            .chain(self.settles.into_iter().map(Operation::Settle))
            .chain(self.releases.into_iter().map(Operation::Release))
            .chain(self.recoveries.into_iter().map(Operation::Recover))
            .chain(self.claims.into_iter().map(Operation::Claim));
        let alone = |operation| {
            let mut batch = Self::default();
            batch.add(operation);
            batch
        };
        operations.map(alone).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use weir_core::{
        DestinationId, EventId,
        event::{DeliveryOptions, Event, EventBody},
    };

    use weir_store::{DestinationLimits, Matches, NewEvent, conformance::request};

    use super::*;

    pub(crate) fn pending<I, O>(input: I) -> Pending<I, O> {
        Pending::new(input).0
    }

    pub(crate) fn claiming(durable: bool) -> Operation {
        let request = ClaimRequest { durable, ..request(1, 1) };
        Operation::Claim(pending((vec![request], Timestamp::MIN)))
    }

    fn durable(operations: impl IntoIterator<Item = Operation>) -> bool {
        let mut batch = CommitBatch::default();
        operations.into_iter().for_each(|operation| batch.add(operation));
        batch.is_durable()
    }

    #[test]
    fn acknowledged_operations_are_durable_and_recoverable_ones_are_not() {
        let settle = || Operation::Settle(pending(Vec::new()));
        let release = || Operation::Release(pending((Vec::new(), Timestamp::MIN)));
        assert!(!durable([claiming(false), settle(), release()]));
        assert!(durable([settle(), claiming(true)]));
        assert!(durable([claiming(false), ingest(1)]));
        let edit = |durable| Operation::Edit(Edit::new(durable, pending(|_: &mut Transaction<'_, '_>| Ok(()))));
        assert!(durable([edit(Durable::Yes), settle()]));
        assert!(!durable([edit(Durable::No)]));
    }

    pub(crate) fn ingest(events: usize) -> Operation {
        ingest_of("default", events, 1)
    }

    /// Events of a tenant with this many destinations each.
    pub(crate) fn ingest_of(tenant: &str, events: usize, destinations: usize) -> Operation {
        let event = |number: usize| Event {
            id: EventId::new(Timestamp::MIN, number as u128),
            tenant: tenant.to_owned(),
            event_type: "a".to_owned(),
            created_at: Timestamp::MIN,
            idempotency_key: None,
            options: DeliveryOptions::default(),
            body: EventBody::stored(Bytes::new(), 0),
            filtered: 0,
        };
        let new = |number: usize| NewEvent::new(event(number), None, 0);
        let events = (0..events).map(new).collect();
        let ids: Arc<[DestinationId]> = vec![DestinationId::from_bytes([0; 16]); destinations].into();
        let matches = |_: &NewEvent| Matches { ids: Arc::clone(&ids), ..Matches::default() };
        Operation::Ingest(pending(Part::of(&events, 0, DestinationLimits::default(), matches)))
    }
}
