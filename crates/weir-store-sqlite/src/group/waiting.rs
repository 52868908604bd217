//! What waits, gathered into groups.
//!
//! There is no timer: alone, an operation commits at once; under load the group is what arrived during the last commit.
//!
//! Events and results share their commits, because most of what a commit costs is the pages it writes, and they touch the
//! same ones. Everything else (claims, edits) goes in groups of its own, in turn with them: workers stand still while a claim
//! waits, so it does not wait for a long list of results, which is broken off when something urgent has come.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::{Group, Operation};

/// Ingests and results share a commit until they have so many rows, a few milliseconds' worth.
const MAX_BULK_ROWS: usize = 512;
/// Results written before something urgent is looked for.
const RESULTS_PER_STEP: usize = 64;

/// What has arrived and is in no group yet.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Claims, and what is as rare as edits.
    urgent: VecDeque<Operation>,
    ingests: VecDeque<Operation>,
    results: VecDeque<Operation>,
    /// The last group was urgent.
    bulk_next: bool,
    closing: bool,
}

impl Waiting {
    /// The next group, once there is something to do; `None` at the end.
    pub(crate) fn next_group(&mut self, operations: &mut mpsc::Receiver<Operation>) -> Option<Group> {
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
        let bulk = self.urgent.is_empty() || self.bulk_next && self.has_bulk();
        self.bulk_next = !bulk;
        let mut group = Group::default();
        if bulk {
            // Neither kind fills a group that both wait for.
            let ingests = if self.results.is_empty() { MAX_BULK_ROWS } else { MAX_BULK_ROWS / 2 };
            group.fill(&mut self.ingests, ingests);
            group.fill(&mut self.results, group.rows + RESULTS_PER_STEP);
        } else {
            group.fill(&mut self.urgent, usize::MAX);
        }
        Some(group)
    }

    fn has_bulk(&self) -> bool {
        !self.ingests.is_empty() || !self.results.is_empty()
    }

    /// More results for a group that is under way, unless something urgent has come or it is full.
    pub(crate) fn more_results(&mut self, group: &Group, operations: &mut mpsc::Receiver<Operation>) -> Option<Group> {
        self.gather(operations);
        if group.settles.is_empty() || self.results.is_empty() || !self.urgent.is_empty() || group.rows >= MAX_BULK_ROWS
        {
            return None;
        }
        let mut more = Group::default();
        more.fill(&mut self.results, RESULTS_PER_STEP);
        Some(more)
    }

    /// Takes in what has arrived.
    fn gather(&mut self, operations: &mut mpsc::Receiver<Operation>) {
        while let Ok(operation) = operations.try_recv() {
            self.add(operation);
        }
    }

    fn add(&mut self, operation: Operation) {
        let queue = match operation {
            Operation::Close => {
                self.closing = true;
                return;
            }
            Operation::Ingest(_) => &mut self.ingests,
            Operation::Settle(_) => &mut self.results,
            _ => &mut self.urgent,
        };
        // What comes after the end is refused: dropped, its caller learns that the store is closed.
        if !self.closing {
            queue.push_back(operation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{claiming, ingest, pending},
        *,
    };

    #[test]
    fn events_and_results_share_a_group_and_claims_go_in_turn_with_them() {
        let (sender, mut operations) = mpsc::channel(16);
        let settle = || Operation::Settle(pending(Vec::new()));
        for operation in [ingest(1), settle(), claiming(false), ingest(1), claiming(false)] {
            sender.try_send(operation).ok().unwrap();
        }
        let mut waiting = Waiting::default();
        let urgent = waiting.next_group(&mut operations).unwrap();
        assert_eq!((urgent.claims.len(), urgent.operations), (2, 2));
        sender.try_send(claiming(false)).ok().unwrap();
        let bulk = waiting.next_group(&mut operations).unwrap();
        assert_eq!((bulk.ingests.len(), bulk.settles.len(), bulk.operations), (2, 1, 3));
        sender.try_send(settle()).ok().unwrap();
        assert!(waiting.more_results(&bulk, &mut operations).is_none(), "a claim waits");
        assert_eq!(waiting.next_group(&mut operations).unwrap().claims.len(), 1);
        assert!(waiting.more_results(&bulk, &mut operations).is_some());
    }

    #[test]
    fn a_flood_of_events_leaves_room_for_results() {
        let (sender, mut operations) = mpsc::channel(16);
        for operation in [ingest(MAX_BULK_ROWS), ingest(1), Operation::Settle(pending(Vec::new()))] {
            sender.try_send(operation).ok().unwrap();
        }
        let group = Waiting::default().next_group(&mut operations).unwrap();
        assert_eq!((group.ingests.len(), group.settles.len()), (1, 1));
    }
}
