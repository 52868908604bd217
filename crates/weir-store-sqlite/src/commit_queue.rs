//! The queue of waiting operations, which forms the commit batches.
//!
//! The events of tenants, and of the clients of a tenant, take turns, and the deliveries of one commit are bounded: a
//! tenant whose events have thousands of destinations does not keep the others waiting.
//!
//! There is no timer. A single operation commits at once; under load a batch has the operations that arrived during the
//! last commit.
//!
//! Events and results share their commits, because most of the cost of a commit is the pages it writes, and they write
//! the same pages. Other operations (claims, edits) are urgent, because workers are idle while a claim waits. They have
//! batches of their own, alternating with the shared ones. A long list of results is interrupted when an urgent
//! operation arrives.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use weir_store::Turns;

use crate::commit_batch::{CommitBatch, Ingest, Operation};

/// The most rows of ingests and results in one commit: a few milliseconds of work.
const MAX_BULK_ROWS: usize = 512;
/// Results written between two checks for urgent operations.
const RESULTS_PER_STEP: usize = 64;

/// The operations that have arrived and are in no batch yet.
#[derive(Default)]
pub(crate) struct CommitQueue {
    /// Claims, and rare operations such as edits.
    urgent: VecDeque<Operation>,
    ingests: Turns<Ingest>,
    results: VecDeque<Operation>,
    /// Whether the last batch was urgent, so that events and results are next.
    bulk_next: bool,
    closing: bool,
}

impl CommitQueue {
    /// Waits for the next batch. `None` when the store closes.
    pub(crate) fn next_batch(&mut self, operations: &mut mpsc::Receiver<Operation>) -> Option<CommitBatch> {
        // Wait for an operation. A store that closes still commits what arrived before the close.
        self.gather(operations);
        while self.urgent.is_empty() && !self.has_bulk() {
            if self.closing {
                return None;
            }
            match operations.blocking_recv() {
                Some(operation) => self.add(operation),
                None => self.closing = true,
            }
            self.gather(operations);
        }
        // Urgent batches and batches of events and results alternate, so that neither kind starves the other.
        let bulk = self.urgent.is_empty() || self.bulk_next && self.has_bulk();
        self.bulk_next = !bulk;
        let mut batch = CommitBatch::default();
        if bulk {
            // When ingests and results both wait, neither fills the batch alone.
            let ingests = if self.results.is_empty() { MAX_BULK_ROWS } else { MAX_BULK_ROWS / 2 };
            batch.fill_with_events(&mut self.ingests, ingests);
            batch.fill(&mut self.results, batch.rows + RESULTS_PER_STEP);
        } else {
            // One batch takes all urgent operations, because workers are idle while a claim waits.
            batch.fill(&mut self.urgent, usize::MAX);
        }
        Some(batch)
    }

    fn has_bulk(&self) -> bool {
        !self.ingests.is_empty() || !self.results.is_empty()
    }

    /// More results for a running batch. `None` when an urgent operation waits or the batch is full.
    pub(crate) fn more_results(
        &mut self,
        batch: &CommitBatch,
        operations: &mut mpsc::Receiver<Operation>,
    ) -> Option<CommitBatch> {
        self.gather(operations);
        if batch.settles.is_empty() || self.results.is_empty() || !self.urgent.is_empty() || batch.rows >= MAX_BULK_ROWS
        {
            return None;
        }
        let mut more = CommitBatch::default();
        more.fill(&mut self.results, RESULTS_PER_STEP);
        Some(more)
    }

    /// Takes the operations that have arrived.
    fn gather(&mut self, operations: &mut mpsc::Receiver<Operation>) {
        while let Ok(operation) = operations.try_recv() {
            self.add(operation);
        }
    }

    fn add(&mut self, operation: Operation) {
        match operation {
            Operation::Close => self.closing = true,
            // An operation after `Close` is dropped, which tells its caller that the store is closed.
            _ if self.closing => {}
            Operation::Ingest(ingest) => {
                let rows = ingest.input.rows();
                self.ingests.push(ingest, |ingest| ingest.input.turn(), rows);
            }
            Operation::Settle(_) => self.results.push_back(operation),
            _ => self.urgent.push_back(operation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit_batch::tests::{claiming, ingest, ingest_of, pending};

    #[test]
    fn events_and_results_share_a_batch_and_alternate_with_claims() {
        let (sender, mut operations) = mpsc::channel(16);
        let settle = || Operation::Settle(pending(Vec::new()));
        for operation in [ingest(1), settle(), claiming(false), ingest(1), claiming(false)] {
            sender.try_send(operation).ok().unwrap();
        }
        let mut queue = CommitQueue::default();
        let urgent = queue.next_batch(&mut operations).unwrap();
        assert_eq!((urgent.claims.len(), urgent.operations), (2, 2));
        sender.try_send(claiming(false)).ok().unwrap();
        let bulk = queue.next_batch(&mut operations).unwrap();
        assert_eq!((bulk.ingests.len(), bulk.settles.len(), bulk.operations), (2, 1, 3));
        sender.try_send(settle()).ok().unwrap();
        assert!(queue.more_results(&bulk, &mut operations).is_none(), "a claim waits");
        assert_eq!(queue.next_batch(&mut operations).unwrap().claims.len(), 1);
        assert!(queue.more_results(&bulk, &mut operations).is_some());
    }

    #[test]
    fn an_event_of_another_tenant_waits_for_one_large_commit_at_most() {
        let (sender, mut operations) = mpsc::channel(64);
        for _ in 0..20 {
            sender.try_send(ingest_of("acme", 4, 2_048)).ok().unwrap();
        }
        let mut queue = CommitQueue::default();
        assert_eq!(queue.next_batch(&mut operations).unwrap().deliveries, 8_192);
        sender.try_send(ingest_of("globex", 1, 1)).ok().unwrap();
        assert_eq!(queue.next_batch(&mut operations).unwrap().deliveries, 1);
        assert_eq!(queue.next_batch(&mut operations).unwrap().deliveries, 8_192);
    }

    #[test]
    fn a_flood_of_events_leaves_room_for_results() {
        let (sender, mut operations) = mpsc::channel(16);
        for operation in [ingest(MAX_BULK_ROWS), ingest(1), Operation::Settle(pending(Vec::new()))] {
            sender.try_send(operation).ok().unwrap();
        }
        let batch = CommitQueue::default().next_batch(&mut operations).unwrap();
        assert_eq!((batch.ingests.len(), batch.settles.len()), (1, 1));
    }
}
