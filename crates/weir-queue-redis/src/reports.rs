//! Reports on their way to Redis: starts that nobody waits for, and endings.
//!
//! They gather for each shard and go in batches. A start waits a while for its ending, and goes with it if that comes soon: to a
//! destination that answers quickly a permit costs one report. What is counted as queued may thus be in flight for [`YOUNG`];
//! that errs on the safe side. A batch that failed stays first in line and goes again: a report made twice changes nothing.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::{Mutex as Turn, Notify},
    time::Instant,
};
use weir_core::DestinationId;
use weir_queue::PermitId;

use crate::{
    core::Core,
    hands::Report,
    keys::{SHARDS, Shard},
    scripts::{Call, Operation},
    trunk::CallError,
};

/// Reports in one call.
const BATCH: usize = 500;
/// How long a start waits for its ending.
const YOUNG: Duration = Duration::from_millis(10);
/// How often starts that have waited go.
const GATHER: Duration = Duration::from_millis(5);
/// How long to wait after Redis failed.
const RETRY: Duration = Duration::from_millis(100);
/// Reports kept for a shard while Redis is away. What is dropped beyond that leaves permits that expire by themselves.
const MOST_KEPT: usize = 50_000;

/// What a report says of its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Started,
    /// Started a moment before, which was not reported.
    StartedAndEnded,
    Ended,
}

#[derive(Debug, Clone)]
struct Outgoing {
    course: Course,
    report: Report,
}

/// The reports of a shard.
#[derive(Default)]
struct Line {
    /// Starts that wait for their endings.
    young: HashMap<PermitId, (Instant, Report)>,
    /// What goes next, in order.
    waiting: VecDeque<Outgoing>,
    /// How many have arrived.
    arrived: u64,
}

impl Line {
    fn add(&mut self, report: Report) {
        if self.young.len() + self.waiting.len() >= MOST_KEPT {
            return;
        }
        if report.started {
            self.young.insert(report.id, (Instant::now(), report));
            return;
        }
        let outgoing = match self.young.remove(&report.id) {
            Some((_, started)) => {
                let report = Report { entry: started.entry.or(report.entry), ..report };
                Outgoing { course: Course::StartedAndEnded, report }
            }
            None => Outgoing { course: Course::Ended, report },
        };
        self.waiting.push_back(outgoing);
    }

    /// What `arrived` will be when all that waits now has arrived.
    fn end(&self) -> u64 {
        self.arrived + self.waiting.len() as u64
    }

    /// Sends the starts off that came by then.
    fn grow_up(&mut self, by: Instant) {
        let old = self.young.extract_if(|_, (since, _)| *since <= by);
        self.waiting.extend(old.map(|(_, (_, report))| Outgoing { course: Course::Started, report }));
    }
}

#[derive(Default)]
pub(crate) struct Reports {
    lines: Mutex<[Line; SHARDS]>,
    /// Who holds it sends the shard's reports.
    turns: [Turn<()>; SHARDS],
    added: Notify,
}

impl Reports {
    // A panic while the lock is held is a bug already reported; the lines are whole between two calls.
    fn lines(&self) -> MutexGuard<'_, [Line; SHARDS]> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, report: Report) {
        self.lines()[Shard::of(report.id.destination_id).index()].add(report);
        self.added.notify_one();
    }

    /// A permit that was issued straight to this process and never was in hand goes back unused.
    pub(crate) fn add_unused(&self, id: PermitId, generation: u64) {
        self.add(Report { id, started: false, generation, entry: None });
    }

    /// The first in line, unless all up to `end` have arrived. They stay there until they have: whoever sends them may be
    /// cancelled.
    fn next_batch(&self, shard: Shard, end: u64) -> Vec<Outgoing> {
        let lines = self.lines();
        let line = &lines[shard.index()];
        if line.arrived >= end {
            return Vec::new();
        }
        line.waiting.iter().take(BATCH).cloned().collect()
    }

    fn arrived(&self, shard: Shard, count: usize) {
        let mut lines = self.lines();
        let line = &mut lines[shard.index()];
        line.waiting.drain(..count);
        line.arrived += count as u64;
    }

    /// Every shard of which something is to be reported, now or when its starts have waited.
    fn shards_waiting(&self, by: Instant) -> Vec<Shard> {
        let mut lines = self.lines();
        lines.iter_mut().for_each(|line| line.grow_up(by));
        Shard::all().filter(|shard| !lines[shard.index()].waiting.is_empty()).collect()
    }

    fn has_young(&self) -> bool {
        self.lines().iter().any(|line| !line.young.is_empty())
    }

    /// Returns once what had been added for the shard is in Redis.
    pub(crate) async fn flush(&self, core: &Core, shard: Shard) -> Result<(), CallError> {
        self.lines()[shard.index()].grow_up(Instant::now());
        self.send(core, shard).await
    }

    pub(crate) async fn flush_all(&self, core: &Core, shards: &[Shard]) -> Result<(), CallError> {
        join_all(shards.iter().map(|&shard| self.flush(core, shard))).await.into_iter().collect()
    }

    /// Returns once the endings that had been added for the shards are in Redis.
    pub(crate) async fn send_all(&self, core: &Core, shards: &[Shard]) -> Result<(), CallError> {
        join_all(shards.iter().map(|&shard| self.send(core, shard))).await.into_iter().collect()
    }

    async fn send(&self, core: &Core, shard: Shard) -> Result<(), CallError> {
        let end = self.lines()[shard.index()].end();
        // Whoever has the turn takes along what the others came for: they find it gone, and need no call.
        let _turn = self.turns[shard.index()].lock().await;
        loop {
            let batch = self.next_batch(shard, end);
            if batch.is_empty() {
                return Ok(());
            }
            let mut call = core.new_call(shard, Operation::Report);
            Digest::of_all(&batch).iter().for_each(|digest| digest.write(&mut call));
            core.call(call).await?;
            self.arrived(shard, batch.len());
        }
    }

    /// Sends what no call takes along, for ever.
    pub(crate) async fn run(&self, core: &Core) {
        loop {
            if !self.has_young() {
                self.added.notified().await;
            }
            tokio::time::sleep(GATHER).await;
            while self.send_all(core, &self.shards_waiting(Instant::now() - YOUNG)).await.is_err() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// What a batch says of the permits of one destination, for the script to move together.
struct Digest<'r> {
    destination_id: DestinationId,
    generation: u64,
    started: Vec<u64>,
    started_and_ended: Vec<u64>,
    ended: Vec<u64>,
    entries: Vec<&'r str>,
}

impl<'r> Digest<'r> {
    /// One for each destination and generation.
    fn of_all(batch: &'r [Outgoing]) -> Vec<Self> {
        let mut places = HashMap::new();
        let mut digests: Vec<Self> = Vec::new();
        for Outgoing { course, report } in batch {
            let PermitId { destination_id, serial } = report.id;
            let place = *places.entry((destination_id, report.generation)).or_insert_with(|| {
                digests.push(Self::new(destination_id, report.generation));
                digests.len() - 1
            });
            let digest = &mut digests[place];
            match course {
                Course::Started => digest.started.push(serial),
                Course::StartedAndEnded => digest.started_and_ended.push(serial),
                Course::Ended => digest.ended.push(serial),
            }
            digest.entries.extend(report.entry.as_deref());
        }
        digests
    }

    fn new(destination_id: DestinationId, generation: u64) -> Self {
        let (started, started_and_ended, ended) = (Vec::new(), Vec::new(), Vec::new());
        Self { destination_id, generation, started, started_and_ended, ended, entries: Vec::new() }
    }

    fn write(&self, call: &mut Call) {
        call.destination(self.destination_id).arg(self.generation);
        for permits in [&self.started, &self.started_and_ended, &self.ended] {
            call.arg(permits.len()).arg(permits);
        }
        call.arg(self.entries.len()).arg(&self.entries);
    }
}
