//! What waits, gathered into groups.
//!
//! There is no timer: alone, an operation commits at once; under load the group is what arrived during the last commit.
//!
//! Events and results share their commits, because most of what a commit costs is the pages it writes, and they touch the
//! same ones. Everything else (claims, edits) goes in groups of its own, in turn with them: workers stand still while a claim
//! waits, so it does not wait for a long list of results, which is broken off when something urgent has come. Events wait for a
//! disk that has much to do, and share the next commit. After a flood of them they rest a while, if what was stored waits for its
//! delivery anyway: taken in as fast as it comes, twice what can be delivered took a seventh of their speed from deliveries.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Instant, timeout},
};

use weir_store::Station;

use super::{Flood, Group, Operation};
use crate::disk::Disk;

/// Ingests and results share a commit until they have so many rows, a few milliseconds' worth.
const MAX_BULK_ROWS: usize = 512;
/// With more rows than this on their way to the disk, events wait for it, and share the next commit. Where they are fewer, there is
/// time for a commit of each.
const MAX_UNSYNCED_ROWS: usize = 8;
/// After a flood of events intake rests for so many times as long as their group took: at 1 deliveries kept 0.94 of their speed or more,
/// at one half 0.91.
const RESTS: f32 = 1.0;
/// While the express is pressed it rests for up to so many times as long, and looks this often.
const RESTS_PRESSED: f32 = 8.0;
const PRESSED_LOOK: Duration = Duration::from_millis(1);
/// A group may take long for other reasons.
const LONGEST_REST: Duration = Duration::from_millis(100);
/// Results written before something urgent is looked for.
const RESULTS_PER_STEP: usize = 64;

/// Events wait until then, and for longer while their express is pressed.
struct Rest {
    until: Instant,
    at_most: Instant,
    events: usize,
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
    resting: Option<Rest>,
    closing: bool,
}

impl Waiting {
    /// The next group, once there is something to do; `None` at the end.
    pub(crate) fn next_group(
        &mut self,
        operations: &mut mpsc::Receiver<Operation>,
        disk: &Disk,
        station: &Station,
    ) -> Option<Group> {
        let with_ingests = loop {
            self.gather(operations);
            let rest = self.rest(station);
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
    pub(crate) fn flooded(&mut self, flood: Flood, took: Duration) {
        let rest_of = |times: f32| Instant::now() + took.mul_f32(times).min(LONGEST_REST);
        let until = rest_of(if flood.waits { RESTS } else { 0.0 });
        self.resting = Some(Rest { until, at_most: rest_of(RESTS_PRESSED), events: flood.events });
    }

    /// How long to rest before the next look.
    fn rest(&self, station: &Station) -> Option<Duration> {
        let Rest { until, at_most, events } = *self.resting.as_ref()?;
        let now = Instant::now();
        if now < until {
            Some(until - now)
        } else {
            (now < at_most && station.is_pressed(events)).then(|| PRESSED_LOOK.min(at_most - now))
        }
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
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use weir_core::{Destination, DestinationId, Timestamp, claim::ClaimedDelivery};
    use weir_store::Express;

    use super::{
        super::tests::{claiming, ingest, pending},
        *,
    };

    #[tokio::test]
    async fn events_and_results_share_a_group_and_claims_go_in_turn_with_them() {
        let (sender, mut operations) = mpsc::channel(16);
        let settle = || Operation::Settle(pending(Vec::new()));
        for operation in [ingest(1), settle(), claiming(false), ingest(1), claiming(false)] {
            sender.try_send(operation).ok().unwrap();
        }
        let disk = Disk::spawn(Box::new(|| Ok(())), sender.downgrade());
        let mut waiting = Waiting::default();
        let urgent = waiting.next_group(&mut operations, &disk, &Station::default()).unwrap();
        assert_eq!((urgent.claims.len(), urgent.operations), (2, 2));
        sender.try_send(claiming(false)).ok().unwrap();
        let bulk = waiting.next_group(&mut operations, &disk, &Station::default()).unwrap();
        assert_eq!((bulk.ingests.len(), bulk.settles.len(), bulk.operations), (2, 1, 3));
        sender.try_send(settle()).ok().unwrap();
        assert!(waiting.more_results(&bulk, &mut operations).is_none(), "a claim waits");
        assert_eq!(waiting.next_group(&mut operations, &disk, &Station::default()).unwrap().claims.len(), 1);
        assert!(waiting.more_results(&bulk, &mut operations).is_some());
    }

    #[tokio::test]
    async fn after_a_flood_events_wait_and_results_do_not() {
        let (sender, mut operations) = mpsc::channel(16);
        sender.try_send(ingest(1)).ok().unwrap();
        sender.try_send(Operation::Settle(pending(Vec::new()))).ok().unwrap();
        let disk = Disk::spawn(Box::new(|| Ok(())), sender.downgrade());
        let mut waiting = Waiting::default();
        let began = Instant::now();
        waiting.flooded(Flood { events: 1, waits: true }, LONGEST_REST);
        let results = waiting.next_group(&mut operations, &disk, &Station::default()).unwrap();
        assert_eq!((results.ingests.len(), results.settles.len()), (0, 1));
        let events = tokio::task::spawn_blocking(move || {
            waiting.next_group(&mut operations, &disk, &Station::default()).unwrap()
        });
        assert_eq!(events.await.unwrap().ingests.len(), 1);
        assert!(began.elapsed() >= LONGEST_REST);
    }

    /// Full until it is told otherwise.
    struct PressedExpress(AtomicBool);

    impl Express for PressedExpress {
        fn reserve(&self, _: &Destination) -> Option<Timestamp> {
            None
        }

        fn cancel(&self, _: DestinationId) {}

        fn admit(&self, _: Vec<ClaimedDelivery>) {}

        fn is_pressed(&self, _: usize) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn events_wait_for_room_in_their_express_but_not_for_ever() {
        let (sender, mut operations) = mpsc::channel(16);
        sender.try_send(ingest(1)).ok().unwrap();
        sender.try_send(Operation::Settle(pending(Vec::new()))).ok().unwrap();
        let disk = Disk::spawn(Box::new(|| Ok(())), sender.downgrade());
        let (station, express) = (Station::default(), Arc::new(PressedExpress(AtomicBool::new(true))));
        station.connect(express.clone());
        let mut waiting = Waiting::default();
        let flood = Flood { events: 1, waits: false };
        waiting.flooded(flood, Duration::from_secs(1));
        let results = waiting.next_group(&mut operations, &disk, &station).unwrap();
        assert_eq!((results.ingests.len(), results.settles.len()), (0, 1), "nothing else waits");
        express.0.store(false, Ordering::SeqCst);
        waiting.flooded(flood, Duration::from_secs(1));
        assert_eq!(waiting.next_group(&mut operations, &disk, &station).unwrap().ingests.len(), 1);

        express.0.store(true, Ordering::SeqCst);
        sender.try_send(ingest(1)).ok().unwrap();
        let began = Instant::now();
        waiting.flooded(flood, Duration::from_secs(1));
        let next = move || waiting.next_group(&mut operations, &disk, &station).unwrap();
        assert_eq!(tokio::task::spawn_blocking(next).await.unwrap().ingests.len(), 1);
        assert!(began.elapsed() >= LONGEST_REST);
    }

    #[tokio::test]
    async fn a_flood_of_events_leaves_room_for_results() {
        let (sender, mut operations) = mpsc::channel(16);
        for operation in [ingest(MAX_BULK_ROWS), ingest(1), Operation::Settle(pending(Vec::new()))] {
            sender.try_send(operation).ok().unwrap();
        }
        let disk = Disk::spawn(Box::new(|| Ok(())), sender.downgrade());
        let group = Waiting::default().next_group(&mut operations, &disk, &Station::default()).unwrap();
        assert_eq!((group.ingests.len(), group.settles.len()), (1, 1));
    }
}
