//! Commit groups: operations that commit together. [`queue`] decides which operations form the next group.
//!
//! The operations of a group may run in any order, because none of their callers has an answer yet.

mod queue;

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::oneshot;
use weir_core::{Timestamp, claim::Claim};
use weir_store::{
    AttemptResult, ClaimRequest, Claims, MOST_DELIVERIES_OF_COMMIT, Part, Recovered, Settlement, StoreError,
    StoreResult, Turns, intake::IngestResult,
};

pub(crate) use queue::CommitQueue;

use crate::{edits::Edit, error::Result, writer::Transaction};

/// One operation and the channel to its caller.
pub(crate) struct Pending<I, O> {
    pub(crate) input: I,
    pub(crate) answer: Option<O>,
    pub(crate) reply: oneshot::Sender<StoreResult<O>>,
}

impl<I, O> Pending<I, O> {
    /// Sends the answer, or the reason for its absence. Ignores callers that no longer wait.
    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        let unanswered = || StoreError::Failed("the operation was not answered".to_owned());
        let answer = match failure {
            Some(error) => Err(error.clone()),
            None => self.answer.ok_or_else(unanswered),
        };
        let _ = self.reply.send(answer);
    }
}

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
    Edit(Box<Edit>),
    Ingest(Ingest),
    Settle(Settle),
    Release(Release),
    Recover(Recover),
    Claim(Claiming),
    /// Commit all earlier operations, then close the file.
    Close,
}

/// Operations that commit together.
#[derive(Default)]
pub(crate) struct Group {
    edits: Vec<Edit>,
    ingests: Vec<Ingest>,
    settles: Vec<Settle>,
    releases: Vec<Release>,
    recoveries: Vec<Recover>,
    claims: Vec<Claiming>,
    operations: usize,
    /// The number of events, results and edits in the group.
    rows: usize,
    /// The expected deliveries of the events.
    deliveries: usize,
}

impl Group {
    /// Adds operations until it has `rows` rows.
    fn fill(&mut self, queue: &mut VecDeque<Operation>, rows: usize) {
        while self.rows < rows
            && let Some(operation) = queue.pop_front()
        {
            self.add(operation);
        }
    }

    /// Adds events in the turns of their tenants until it has `rows` rows, and not more deliveries than a commit may
    /// have.
    fn fill_with_events(&mut self, turns: &mut Turns<Ingest>, rows: usize) {
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
                self.edits.push(*edit);
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
            || self.edits.iter().any(Edit::durable)
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

    /// Each operation in a group of its own.
    pub(crate) fn split(self) -> Vec<Self> {
        let edits = self.edits.into_iter().map(Edit::operation);
        let operations = edits
            .chain(self.ingests.into_iter().map(Operation::Ingest))
            .chain(self.settles.into_iter().map(Operation::Settle))
            .chain(self.releases.into_iter().map(Operation::Release))
            .chain(self.recoveries.into_iter().map(Operation::Recover))
            .chain(self.claims.into_iter().map(Operation::Claim));
        let alone = |operation| {
            let mut group = Self::default();
            group.add(operation);
            group
        };
        operations.map(alone).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use weir_core::{
        DestinationId, EventId,
        event::{DeliveryOptions, Event, EventBody},
    };

    use weir_store::{
        DestinationLimits, NewEvent,
        conformance::{activity, deletion},
    };

    use super::*;

    pub(super) fn pending<I, O>(input: I) -> Pending<I, O> {
        Pending { input, answer: None, reply: oneshot::channel().0 }
    }

    pub(super) fn claiming(durable: bool) -> Operation {
        let destination_id = DestinationId::new(Timestamp::MIN, 1);
        let request = ClaimRequest { destination_id, limit: 1, expires_at: Timestamp::MAX, durable };
        Operation::Claim(pending((vec![request], Timestamp::MIN)))
    }

    fn durable(operations: impl IntoIterator<Item = Operation>) -> bool {
        let mut group = Group::default();
        operations.into_iter().for_each(|operation| group.add(operation));
        group.is_durable()
    }

    #[test]
    fn acknowledged_operations_are_durable_and_recoverable_ones_are_not() {
        let settle = || Operation::Settle(pending(Vec::new()));
        let release = || Operation::Release(pending((Vec::new(), Timestamp::MIN)));
        assert!(!durable([claiming(false), settle(), release()]));
        assert!(durable([settle(), claiming(true)]));
        assert!(durable([claiming(false), ingest(1)]));
        let delete = Edit::Delete(pending((deletion(1, Duration::ZERO), activity())));
        assert!(durable([delete.operation(), settle()]));
        assert!(!durable([Edit::Check(pending(())).operation()]));
    }

    pub(super) fn ingest(events: usize) -> Operation {
        ingest_of("default", events, 1)
    }

    /// Events of a tenant with this many destinations each.
    pub(super) fn ingest_of(tenant: &str, events: usize, destinations: usize) -> Operation {
        let new = |number: usize| NewEvent {
            event: Event {
                id: EventId::new(Timestamp::MIN, number as u128),
                tenant: tenant.to_owned(),
                event_type: "a".to_owned(),
                created_at: Timestamp::MIN,
                idempotency_key: None,
                options: DeliveryOptions::default(),
                body: EventBody::stored(Bytes::new(), 0),
            },
            destinations: None,
            random: 0,
        };
        let events = (0..events).map(new).collect();
        Operation::Ingest(pending(Part::of(&events, 0, DestinationLimits::default(), |_| destinations)))
    }
}
