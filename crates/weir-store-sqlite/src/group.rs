//! What commits together: the operations that wait, gathered into groups.
//!
//! There is no timer: alone, an operation commits at once; under load the group is what arrived during the last commit.
//!
//! Events and results share their commits, because most of what a commit costs is the pages it writes, and they touch the
//! same ones. Everything else (claims, edits) goes in groups of its own, in turn with them: workers stand still while a claim
//! waits, so it does not wait for a long list of results, which is broken off when something urgent has come. Events wait for a
//! disk that has much to do, and share the next commit. After a flood of them they rest a while, if what was stored waits for its
//! delivery anyway: taken in as fast as it comes, twice what can be delivered took a seventh of their speed from deliveries.
//!
//! Order inside a group is free, since its callers all still wait.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use weir_core::{Timestamp, claim::Claim};
use weir_store::{
    AttemptResult, ClaimRequest, Claims, NewEvent, Recovered, Settlement, StoreError, StoreResult, intake::Outcome,
};

use crate::{disk::Disk, edits::Edit, error::Result, writer::Transaction};

/// Ingests and results share a commit until they have so many rows, a few milliseconds' worth.
const MAX_BULK_ROWS: usize = 512;
/// With more rows than this on their way to the disk, events wait for it, and share the next commit. Where they are fewer, there is
/// time for a commit of each.
const MAX_UNSYNCED_ROWS: usize = 8;
/// So many events together come from a flood. Intake rests after them for so many times as long as their group took: at 1 as much is
/// delivered as without the flood, at one half nine tenths.
const FLOOD: usize = 128;
const RESTS: f32 = 1.0;
/// A group may take long for other reasons.
const LONGEST_REST: Duration = Duration::from_millis(100);
/// Results written before something urgent is looked for.
const RESULTS_PER_STEP: usize = 64;

/// One operation and the caller who waits for it.
pub(crate) struct Pending<I, O> {
    pub(crate) input: I,
    pub(crate) answer: Option<O>,
    pub(crate) reply: oneshot::Sender<StoreResult<O>>,
}

impl<I, O> Pending<I, O> {
    /// Sends the answer found, or why there is none. A caller who has left is passed over.
    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        let unanswered = || StoreError::Failed("the operation was not answered".to_owned());
        let answer = match failure {
            Some(error) => Err(error.clone()),
            None => self.answer.ok_or_else(unanswered),
        };
        let _ = self.reply.send(answer);
    }
}

pub(crate) type Ingest = Pending<Vec<NewEvent>, Vec<Outcome>>;
pub(crate) type Claiming = Pending<(Vec<ClaimRequest>, Timestamp), Vec<Claims>>;
pub(crate) type Release = Pending<(Vec<Claim>, Timestamp), u64>;
pub(crate) type Settle = Pending<Vec<AttemptResult>, Vec<Settlement>>;
pub(crate) type Recover = Pending<Recovery, Recovered>;

/// What `recover_claims` asks for.
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
    /// What committed is on disk: nothing to do, but perhaps something that waited for it.
    Synced,
    /// Commit what came before, then close the file.
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
    /// Of its ingests and results.
    rows: usize,
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

    pub(crate) fn add(&mut self, operation: Operation) {
        self.operations += 1;
        match operation {
            Operation::Edit(edit) => self.edits.push(*edit),
            Operation::Ingest(ingest) => {
                self.rows += ingest.input.len();
                self.ingests.push(ingest);
            }
            Operation::Settle(settle) => {
                self.rows += settle.input.len();
                self.settles.push(settle);
            }
            Operation::Release(release) => self.releases.push(release),
            Operation::Recover(recover) => self.recoveries.push(recover),
            Operation::Claim(claim) => self.claims.push(claim),
            Operation::Synced | Operation::Close => {}
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether it is a flood of events that slows the recording of results, and most of whose deliveries wait anyway: all but those
    /// that are `sent` at once.
    pub(crate) fn is_flood(&self, sent: usize) -> bool {
        let events: usize = self.ingests.iter().map(|ingest| ingest.input.len()).sum();
        !self.settles.is_empty() && events >= FLOOD && sent < events / 2
    }

    /// Whether nobody is left to be answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.edits.is_empty()
            && self.ingests.is_empty()
            && self.settles.is_empty()
            && self.releases.is_empty()
            && self.recoveries.is_empty()
            && self.claims.is_empty()
    }

    /// Whether several operations are in it, so that each may be tried alone.
    pub(crate) fn is_shared(&self) -> bool {
        self.operations > 1
    }

    /// Whether the commit must reach the disk before it is answered.
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

    /// Takes in results that were written in the same transaction.
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

    /// Takes out what may be lost with the power, whatever commits before it.
    pub(crate) fn take_fleeting(&mut self) -> Self {
        let taken = Self {
            settles: std::mem::take(&mut self.settles),
            releases: std::mem::take(&mut self.releases),
            recoveries: std::mem::take(&mut self.recoveries),
            ..Self::default()
        };
        self.rows = self.ingests.iter().map(|ingest| ingest.input.len()).sum();
        taken
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

/// What has arrived and is in no group yet.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Claims, and what is as rare as edits.
    urgent: VecDeque<Operation>,
    ingests: VecDeque<Operation>,
    results: VecDeque<Operation>,
    /// The last group was urgent.
    bulk_next: bool,
    /// Events wait until then.
    resting: Option<Instant>,
    closing: bool,
}

impl Waiting {
    /// The next group, once there is something to do; `None` at the end.
    pub(crate) fn next_group(&mut self, operations: &mut mpsc::Receiver<Operation>, disk: &Disk) -> Option<Group> {
        let with_ingests = loop {
            self.gather(operations);
            let rest = self.rest();
            let with_ingests = self.closing || disk.rows() <= MAX_UNSYNCED_ROWS && rest.is_none();
            if !self.urgent.is_empty() || !self.results.is_empty() || with_ingests && !self.ingests.is_empty() {
                break with_ingests;
            }
            if self.closing {
                return None;
            }
            if self.ingests.is_empty() || disk.call_me() || rest.is_some() {
                match rest.filter(|_| !self.ingests.is_empty()) {
                    None => self.arrived(operations.blocking_recv()),
                    Some(rest) => {
                        if let Ok(arrived) = Handle::current().block_on(timeout(rest, operations.recv())) {
                            self.arrived(arrived);
                        }
                    }
                }
            }
        };
        let has_bulk = !self.results.is_empty() || with_ingests && !self.ingests.is_empty();
        let bulk = self.urgent.is_empty() || self.bulk_next && has_bulk;
        self.bulk_next = !bulk;
        let mut group = Group::default();
        if bulk {
            // Neither kind fills a group that both wait for.
            let ingests = if self.results.is_empty() { MAX_BULK_ROWS } else { MAX_BULK_ROWS / 2 };
            if with_ingests {
                group.fill(&mut self.ingests, ingests);
            }
            group.fill(&mut self.results, group.rows + RESULTS_PER_STEP);
        } else {
            group.fill(&mut self.urgent, usize::MAX);
        }
        Some(group)
    }

    /// A flood of events took so long.
    pub(crate) fn flooded(&mut self, took: Duration) {
        self.resting = Some(Instant::now() + took.mul_f32(RESTS).min(LONGEST_REST));
    }

    /// What is left of the rest.
    fn rest(&mut self) -> Option<Duration> {
        let left = self.resting?.duration_since(Instant::now());
        self.resting.take_if(|_| left.is_zero());
        Some(left).filter(|left| !left.is_zero())
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

    fn arrived(&mut self, operation: Option<Operation>) {
        match operation {
            Some(operation) => self.add(operation),
            None => self.closing = true,
        }
    }

    fn add(&mut self, operation: Operation) {
        let queue = match operation {
            Operation::Synced => return,
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
    use bytes::Bytes;
    use weir_core::{
        DestinationId, EventId,
        event::{Event, EventBody, Terms},
    };

    use super::*;

    fn pending<I, O>(input: I) -> Pending<I, O> {
        Pending { input, answer: None, reply: oneshot::channel().0 }
    }

    fn claiming(durable: bool) -> Operation {
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
    fn what_was_acknowledged_is_synced_to_disk_and_what_can_be_recovered_is_not() {
        let settle = || Operation::Settle(pending(Vec::new()));
        let release = || Operation::Release(pending((Vec::new(), Timestamp::MIN)));
        assert!(!durable([claiming(false), settle(), release()]));
        assert!(durable([settle(), claiming(true)]));
        assert!(durable([claiming(false), Operation::Ingest(pending(Vec::new()))]));
        let delete = Edit::Delete(pending((DestinationId::new(Timestamp::MIN, 1), Timestamp::MIN)));
        assert!(durable([delete.operation(), settle()]));
        assert!(!durable([Edit::Check(pending(())).operation()]));
    }

    fn ingest(events: usize) -> Operation {
        let new = |number: usize| NewEvent {
            event: Event {
                id: EventId::new(Timestamp::MIN, number as u128),
                tenant: "default".to_owned(),
                event_type: "a".to_owned(),
                created_at: Timestamp::MIN,
                idempotency_key: None,
                terms: Terms::default(),
                body: EventBody::stored(Bytes::new(), 0),
            },
            destinations: None,
            random: 0,
        };
        Operation::Ingest(pending((0..events).map(new).collect()))
    }

    #[tokio::test]
    async fn events_and_results_share_a_group_and_claims_go_in_turn_with_them() {
        let (sender, mut operations) = mpsc::channel(16);
        let settle = || Operation::Settle(pending(Vec::new()));
        for operation in [ingest(1), settle(), claiming(false), ingest(1), claiming(false)] {
            sender.try_send(operation).ok().unwrap();
        }
        let disk = Disk::spawn(Box::new(|| Ok(())), sender.downgrade());
        let mut waiting = Waiting::default();
        let urgent = waiting.next_group(&mut operations, &disk).unwrap();
        assert_eq!((urgent.claims.len(), urgent.operations), (2, 2));
        sender.try_send(claiming(false)).ok().unwrap();
        let bulk = waiting.next_group(&mut operations, &disk).unwrap();
        assert_eq!((bulk.ingests.len(), bulk.settles.len(), bulk.operations), (2, 1, 3));
        sender.try_send(settle()).ok().unwrap();
        assert!(waiting.more_results(&bulk, &mut operations).is_none(), "a claim waits");
        assert_eq!(waiting.next_group(&mut operations, &disk).unwrap().claims.len(), 1);
        assert!(waiting.more_results(&bulk, &mut operations).is_some());
    }

    #[test]
    fn a_flood_is_many_events_beside_results_whose_deliveries_wait() {
        let group = |events: usize, results: bool| {
            let mut group = Group::default();
            group.add(ingest(events));
            if results {
                group.add(Operation::Settle(pending(Vec::new())));
            }
            group
        };
        assert!(group(FLOOD, true).is_flood(0));
        assert!(!group(FLOOD, true).is_flood(FLOOD), "all are sent at once");
        assert!(!group(FLOOD - 1, true).is_flood(0), "a few");
        assert!(!group(FLOOD, false).is_flood(0), "nothing is being delivered");
    }

    #[tokio::test]
    async fn after_a_flood_events_wait_and_results_do_not() {
        let (sender, mut operations) = mpsc::channel(16);
        sender.try_send(ingest(1)).ok().unwrap();
        sender.try_send(Operation::Settle(pending(Vec::new()))).ok().unwrap();
        let disk = Disk::spawn(Box::new(|| Ok(())), sender.downgrade());
        let mut waiting = Waiting::default();
        let began = Instant::now();
        waiting.flooded(LONGEST_REST);
        let results = waiting.next_group(&mut operations, &disk).unwrap();
        assert_eq!((results.ingests.len(), results.settles.len()), (0, 1));
        let events = tokio::task::spawn_blocking(move || waiting.next_group(&mut operations, &disk).unwrap());
        assert_eq!(events.await.unwrap().ingests.len(), 1);
        assert!(began.elapsed() >= LONGEST_REST);
    }

    #[tokio::test]
    async fn a_flood_of_events_leaves_room_for_results() {
        let (sender, mut operations) = mpsc::channel(16);
        for operation in [ingest(MAX_BULK_ROWS), ingest(1), Operation::Settle(pending(Vec::new()))] {
            sender.try_send(operation).ok().unwrap();
        }
        let disk = Disk::spawn(Box::new(|| Ok(())), sender.downgrade());
        let group = Waiting::default().next_group(&mut operations, &disk).unwrap();
        assert_eq!((group.ingests.len(), group.settles.len()), (1, 1));
    }
}
