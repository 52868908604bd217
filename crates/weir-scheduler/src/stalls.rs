//! The watch over stalls: destinations that may send and do not.
//!
//! Every pass compares what is owed with what has begun, for all destinations ([`weir_core::stall`]): the counters and the
//! traffic of the store say which destinations wait and have sent nothing of late, the store says since when their
//! deliveries have been due, and the queue from when their limits allow a start.
//!
//! Schedulers and APIs run it, each for itself. So it lives when the workers die, when Redis is away, and when either
//! role is gone. It depends on no agent that it watches: it reads, and does not run jobs, send, or wait for permits. If
//! even the store is away, it goes on with what it knew.
//!
//! A pass costs a few statements, whatever the number of destinations. Only those for which nothing was recorded of late
//! are looked at one by one, at most [`LOOKS`] in a pass. The pause after a pass is at least [`PAUSES`] times its duration.

mod facts;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use metrics::gauge;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use weir_core::{
    Clock, DeliveryState, Destination, DestinationId, Timestamp,
    claim::ProcessId,
    limit_key::budget_as_destination,
    stall::{FULL_USE, Fault, Late, SHOWN_AFTER, STALLED_AFTER, Sight, StallReport, Track},
};
use weir_queue::{QueueProgress, SharedQueue};
use weir_store::{DEAD_AFTER, ProcessBeat, RunningProcess, StoreError, StoreResult, TRAFFIC_BUCKET, WatchStore};

use self::facts::{MEASURED, Read, Recorded, owes, unused};

/// The least time between two passes: a stall is to be known within a few seconds of the time at which it is one.
const INTERVAL: Duration = Duration::from_secs(2);
/// The longest time between two passes.
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a pass is this many times its duration, so that passes take at most a twentieth of a connection.
const PAUSES: u32 = 20;
/// Destinations that are looked at in one pass: the queue is asked about them, in calls of 200 that take a millisecond.
const LOOKS: usize = 1_000;
/// Destinations with due deliveries that are read in one statement.
const PAGE: u32 = 1_000;
/// A destination for which something was recorded in this time is not looked at.
const LATELY: Duration = Duration::from_secs(3);
/// How long the servers may take to answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(8);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
/// A store that takes longer for its check is slow: the budget of its round trip is 50 ms, and a commit takes a few
/// milliseconds.
const SLOW: Duration = Duration::from_millis(250);
/// If so many destinations wait for permits to be used, and nothing has begun anywhere, the receivers are not the cause.
const STANDSTILL: usize = 3;
/// A destination that has no permit at so many looks in a row, and sends no more often than the sweep repairs jobs, is
/// stalled: something loses its work again and again. With slow answers and little room it has permits at most looks.
const EMPTY_LOOKS: u32 = 4;
/// A destination that has room at so many looks in a row, and sends less than it may, falls behind. Between an answer and the
/// next send a receiver that answers slowly has room, too.
const ROOM_LOOKS: u32 = 4;
/// The names of stalled destinations in one line of the log.
const NAMED: usize = 5;

/// Watches over stalls.
pub struct StallWatch {
    store: Arc<dyn WatchStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    report: watch::Sender<Arc<StallReport>>,
    /// When the watch began.
    began: Timestamp,
    /// When the last pass read the store.
    read_at: Timestamp,
    /// Since when the store takes no writes, and why.
    unwritable: Option<(Timestamp, &'static str)>,
    /// How long the store took for the last check.
    round_trip: Duration,
    /// The destinations that owe something.
    watched: HashMap<DestinationId, Watched>,
    /// At how many looks in a row a destination sent less than it may, and had room. At most [`LOOKS`] of them.
    with_room: HashMap<DestinationId, u32>,
    /// The beats of the processes, and when each was seen to change.
    beats: HashMap<ProcessId, (i64, Timestamp)>,
    /// The stalled destinations of the last line of the log.
    logged: BTreeSet<DestinationId>,
}

/// A destination that owes something.
#[derive(Debug, Clone, Copy)]
struct Watched {
    /// Numbers that change when an attempt is recorded, and when they were seen to change.
    recorded: Recorded,
    moved_at: Timestamp,
    /// The last look; [`Timestamp::MIN`] before the first one.
    looked_at: Timestamp,
    /// `None` before the first look, and while nothing is owed.
    track: Option<Track>,
    late: Option<Late>,
    /// At how many looks in a row it sent less than it may, and had no permit.
    empty_looks: u32,
    /// The limits allow no start before. Not looked at until then, unless this version of the destination was edited.
    not_before: Option<(Timestamp, Timestamp)>,
}

impl StallWatch {
    /// A watch, and its reports.
    pub fn new(
        store: Arc<dyn WatchStore>,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
    ) -> (Self, watch::Receiver<Arc<StallReport>>) {
        let (report, reports) = watch::channel(Arc::default());
        let began = clock.now();
        let (watched, with_room) = (HashMap::new(), HashMap::new());
        let (beats, logged) = (HashMap::new(), BTreeSet::new());
        let round_trip = Duration::ZERO;
        let (read_at, unwritable) = (began, None);
        let watch = Self {
            store,
            queue,
            clock,
            report,
            began,
            read_at,
            unwritable,
            round_trip,
            watched,
            with_room,
            beats,
            logged,
        };
        (watch, reports)
    }

    /// Makes passes until `shutdown` resolves.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let passes = async {
            loop {
                let began = Instant::now();
                self.pass().await;
                // A slow store makes passes long, and must not delay the alert about it.
                let pause = if self.round_trip > SLOW { INTERVAL } else { began.elapsed() * PAUSES };
                sleep(pause.clamp(INTERVAL, LONGEST_INTERVAL)).await;
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = passes => {}
        }
    }

    /// Makes one pass.
    pub async fn pass(&mut self) {
        let read = timeout(STORE_TIMEOUT, self.read()).await;
        self.unwritable = match &read {
            Ok(Err(StoreError::CannotWrite { obstacle, .. })) => {
                let since = self.unwritable.map_or_else(|| self.clock.now(), |(since, _)| since);
                Some((since, obstacle.as_str()))
            }
            _ => None,
        };
        let report = match read {
            Ok(Ok(read)) => self.look(&read).await,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the watch over stalls cannot read the store");
                self.blind()
            }
            Err(_) => self.blind(),
        };
        self.publish(report);
    }

    async fn read(&mut self) -> StoreResult<Read> {
        let (store, now) = (Arc::clone(&self.store), self.clock.now());
        let measured_from = now.before(MEASURED).floor(TRAFFIC_BUCKET);
        let check = async {
            let began = Instant::now();
            store.check().await.map(|()| began.elapsed())
        };
        let processes = async { Ok::<_, StoreError>((store.running_processes().await?, store.processes().await?)) };
        let numbers =
            async { Ok::<_, StoreError>((store.all_counts().await?, store.recent_traffic(measured_from).await?)) };
        // At the same time: a slow store must not delay the alert about it.
        let (took, (processes, beats), (counts, traffic)) = tokio::try_join!(check, processes, numbers)?;
        let is_slow = took > SLOW;
        let stays_slow = is_slow && self.round_trip > SLOW;
        self.round_trip = took;
        let (works, schedules) = self.roles(&processes, beats, now);
        let owing: Vec<DestinationId> = counts.iter().filter(|(_, counts)| owes(counts)).map(|(id, _)| *id).collect();
        let destinations = store.destinations(&owing).await?.into_iter().flatten();
        let destinations: HashMap<_, _> = destinations.map(|of| (of.id, of.shared_at(now))).collect();
        let due = HashMap::new();
        let began = self.began;
        let mut read = Read {
            now,
            is_slow,
            stays_slow,
            works,
            schedules,
            counts,
            traffic,
            measured_from,
            began,
            destinations,
            due,
        };
        self.follow(&read);
        // The due times are read only if a destination may be late or behind.
        let is_suspect = |id: &DestinationId| self.watched.get(id).is_some_and(|of| of.is_suspect(now));
        if read.destinations.values().any(|of| is_suspect(&of.id) || read.may_be_behind(of)) {
            let mut after = None;
            loop {
                let page = store.due_destinations(now, after, PAGE).await?;
                read.due.extend(page.iter().map(|due| (due.destination_id, due.due)));
                match page.last() {
                    Some(last) if page.len() == PAGE as usize => after = Some(last.destination_id),
                    _ => break,
                }
            }
        }
        self.read_at = now;
        Ok(read)
    }

    /// Whether a worker and a scheduler run. The row of a process that died stays until another one declares it dead, so
    /// its beat counts.
    fn roles(&mut self, processes: &[RunningProcess], beats: Vec<ProcessBeat>, now: Timestamp) -> (bool, bool) {
        self.beats.retain(|id, _| beats.iter().any(|beat| beat.id == *id));
        for ProcessBeat { id, beat } in beats {
            let known = self.beats.entry(id).or_insert((beat, now));
            if known.0 != beat {
                *known = (beat, now);
            }
        }
        // A store with a single process has no beats.
        let lives =
            |process: &RunningProcess| self.beats.get(&process.id).is_none_or(|(_, at)| now.since(*at) < DEAD_AFTER);
        // A process of an earlier version does not say its role.
        let has_other_role = |process: &RunningProcess, roles: [&str; 2]| {
            process.profile.as_ref().is_none_or(|profile| !roles.contains(&profile.role.as_str()))
        };
        let any = |others: [&str; 2]| processes.iter().any(|process| lives(process) && has_other_role(process, others));
        (any(["api", "scheduler"]), any(["api", "worker"]))
    }

    /// Follows what is recorded of the destinations that owe something, and forgets the others.
    fn follow(&mut self, read: &Read) {
        self.watched.retain(|id, _| read.destinations.contains_key(id));
        for id in read.destinations.keys() {
            let recorded = read.recorded(*id);
            let new = Watched {
                recorded,
                moved_at: read.now,
                looked_at: Timestamp::MIN,
                track: None,
                late: None,
                empty_looks: 0,
                not_before: None,
            };
            let of = self.watched.entry(*id).or_insert(new);
            // Both also fall, by the retention and because the half minute moves on.
            if of.recorded.attempted < recorded.attempted || of.recorded.attempts < recorded.attempts {
                *of = Watched { looked_at: of.looked_at, empty_looks: of.empty_looks, ..new };
            }
            of.recorded = recorded;
        }
    }

    /// Looks at the destinations for which nothing was recorded of late, and at those that fall behind.
    async fn look(&mut self, read: &Read) -> StallReport {
        let now = read.now;
        let asked = self.next_looks(read);
        let is_slower = |of: &&Arc<Destination>| read.measured(of.id).is_some() && read.may_be_behind(of);
        let slower = read.destinations.values().filter(is_slower);
        let slower: Vec<DestinationId> = slower.map(|destination| destination.id).take(LOOKS).collect();
        // The queue is asked in each pass, because it may be away while nothing is late yet.
        let ids: Vec<DestinationId> = asked.iter().chain(&slower).copied().collect();
        // A destination with limit keys has come as far as the budget that they share.
        let is_keyed = |id: &DestinationId| read.destinations.get(id).is_some_and(|of| of.keyed_at.is_some());
        let asked_for = |id: &DestinationId| if is_keyed(id) { budget_as_destination(*id) } else { *id };
        let jobs: Vec<_> = ids.iter().map(asked_for).collect();
        for (of, job) in ids.iter().zip(&jobs).filter_map(|(id, job)| Some((read.destinations.get(id)?, job))) {
            self.queue.learn_group(*job, of.settings.limit_group);
        }
        let progress = timeout(QUEUE_TIMEOUT, self.queue.progress(&jobs)).await.ok().and_then(Result::ok);
        let fault = read.fault(progress.as_ref());
        self.judge(read, &asked, progress.as_ref(), fault).await;

        let late = self.watched.iter().filter_map(|(id, of)| {
            let late = of.late.filter(|late| now.since(late.since) >= SHOWN_AFTER)?;
            Some((*id, late))
        });
        let mut late: HashMap<DestinationId, Late> = late.collect();
        let mut behind = HashMap::new();
        let had_room = std::mem::take(&mut self.with_room);
        for (at, id) in slower.iter().enumerate() {
            if late.contains_key(id) {
                continue;
            }
            let of = progress.as_ref().map(|progress| progress.of[asked.len() + at]).unwrap_or_default();
            let used = read.destinations.get(id).and_then(|destination| read.used(destination, of));
            let Some((_, seldom_since)) = used.filter(|(used, _)| *used < FULL_USE) else { continue };
            let looks = had_room.get(id).copied().unwrap_or_default() + 1;
            self.with_room.insert(*id, looks);
            let is_at_fault = fault.is_some() || looks >= ROOM_LOOKS;
            let fault = fault.unwrap_or_else(|| unused(of));
            let is_empty = fault == Fault::NotPublished && of.next_start.is_none_or(|next| next <= now);
            let Some(watched) = self.watched.get_mut(id) else { continue };
            watched.empty_looks = if is_empty { watched.empty_looks + 1 } else { 0 };
            if let Some(since) = seldom_since.filter(|_| watched.empty_looks >= EMPTY_LOOKS) {
                late.insert(*id, Late { since, fault });
            } else if is_at_fault {
                behind.insert(*id, fault);
            }
        }
        let is_complete = now.since(self.began) >= STALLED_AFTER * 2;
        StallReport { at: now, is_complete, fault, unwritable: None, late, behind }
    }

    /// The store cannot be read or written: what waited at the last pass waits still, and nothing is sent for long without it.
    fn blind(&self) -> StallReport {
        let now = self.clock.now();
        let fault = if self.unwritable.is_some() { Fault::StoreUnwritable } else { Fault::StoreSlow };
        let is_late = now.since(self.read_at) >= SHOWN_AFTER;
        // Those that were seen to wait without a reason, or that were sent to.
        let may_send = |of: &&Watched| of.track.is_some() || of.moved_at + LATELY >= self.read_at;
        let waiting = self.watched.iter().filter(|(_, of)| is_late && may_send(of));
        let late = waiting.map(|(id, of)| {
            let since = of.late.map_or(self.read_at, |late| late.since.min(self.read_at));
            (*id, Late { since, fault })
        });
        let (late, behind) = (late.collect(), HashMap::new());
        StallReport { at: now, is_complete: true, fault: Some(fault), unwritable: self.unwritable, late, behind }
    }

    /// The destinations to look at in this pass: those that were not looked at for the longest.
    fn next_looks(&mut self, read: &Read) -> Vec<DestinationId> {
        let now = read.now;
        let mut next = Vec::new();
        for (id, of) in &mut self.watched {
            let Some(destination) = read.destinations.get(id).filter(|_| of.is_suspect(now)) else { continue };
            let is_claimed = read.counts.get(id).is_some_and(|counts| counts.of(DeliveryState::Delivering) > 0);
            if !is_claimed && !read.due.contains_key(id) {
                // Nothing is owed now.
                *of = Watched { looked_at: now, track: None, late: None, not_before: None, ..*of };
            } else if of.not_before.is_none_or(|(at, version)| at <= now || version != destination.updated_at) {
                next.push((of.looked_at, *id));
            }
        }
        if next.len() > LOOKS {
            next.select_nth_unstable(LOOKS);
            next.truncate(LOOKS);
        }
        next.into_iter().map(|(_, id)| id).collect()
    }

    /// Judges each of these destinations.
    async fn judge(
        &mut self,
        read: &Read,
        asked: &[DestinationId],
        progress: Option<&QueueProgress>,
        fault: Option<Fault>,
    ) {
        let now = read.now;
        let last_sent = self.last_sends(asked, progress).await;
        // Permits that workers hold without a fault: they may be connecting. But not to all receivers at once.
        let holding = progress.map_or(0, |progress| progress.of.iter().filter(|of| of.queued > 0).count());
        let is_standstill = holding >= STANDSTILL && self.watched.values().all(|of| of.moved_at < now);
        for (at, id) in asked.iter().enumerate() {
            let (Some(destination), Some(of)) = (read.destinations.get(id), self.watched.get_mut(id)) else { continue };
            let in_queue = progress.map(|progress| progress.of[at]);
            // Each key may wait for its own limits, which are not looked at one by one. A permit does not wait for long.
            if waits_for_keys(destination) && in_queue.is_some_and(|of| of.queued == 0) {
                *of = Watched { looked_at: now, track: None, late: None, not_before: None, ..*of };
                continue;
            }
            let sight = Sight {
                destination,
                due_since: read.due.get(id).copied(),
                last_sent_at: last_sent.get(id).copied(),
                progress: in_queue,
            };
            // Before that, a start was seen, or what kept it from starting.
            let before = of.moved_at.max(of.looked_at);
            of.track = Track::next(of.track, &sight, before, now);
            of.looked_at = now;
            let has_permits = in_queue.is_some_and(|in_queue| in_queue.queued > 0);
            let is_connecting = has_permits && fault.is_none() && !is_standstill;
            let late_since = of.track.and_then(|track| track.late_since(&sight, is_connecting, now));
            let fault = || fault.unwrap_or_else(|| unused(in_queue.unwrap_or_default()));
            of.late = late_since.map(|since| Late { since, fault: fault() });
            let next = in_queue.and_then(|in_queue| in_queue.next_start).filter(|next| *next > now);
            of.not_before = next.map(|at| (at, destination.updated_at));
        }
    }

    /// The last sends by the store, of the destinations whose cursors the queue does not know.
    async fn last_sends(
        &self,
        asked: &[DestinationId],
        progress: Option<&QueueProgress>,
    ) -> HashMap<DestinationId, Timestamp> {
        let has_cursors = |at: usize| progress.is_some_and(|progress| progress.of[at].next_start.is_some());
        let unknown: Vec<_> = asked.iter().enumerate().filter(|(at, _)| !has_cursors(*at)).map(|(_, id)| *id).collect();
        let read = timeout(STORE_TIMEOUT, self.store.send_history(&unknown)).await;
        let Ok(Ok(histories)) = read else { return HashMap::new() };
        unknown.into_iter().zip(histories).filter_map(|(id, history)| Some((id, history.last_sent_at?))).collect()
    }

    /// Exports the report, logs a change, and hands it on.
    fn publish(&mut self, report: StallReport) {
        let stalled: HashMap<_, _> = report.stalled().collect();
        for fault in Fault::all() {
            let of = |fault: Fault, faults: &mut dyn Iterator<Item = Fault>| faults.filter(|of| *of == fault).count();
            let stalls = of(fault, &mut stalled.values().map(|late| late.fault));
            let behind = of(fault, &mut report.behind.values().copied());
            gauge!("weir_destinations_stalled", "cause" => fault.as_str()).set(stalls as f64);
            gauge!("weir_destinations_behind", "cause" => fault.as_str()).set(behind as f64);
        }
        let lateness = report.late.values().map(|late| report.at.since(late.since)).max().unwrap_or_default();
        gauge!("weir_start_lateness_seconds").set(lateness.as_secs_f64());
        gauge!("weir_watch_timestamp_seconds").set(self.clock.wall().as_nanos() as f64 / 1e9);
        self.log(&stalled);
        self.report.send_replace(Arc::new(report));
    }

    /// One line when destinations stall, and one when the last of them sends again.
    fn log(&mut self, stalled: &HashMap<DestinationId, Late>) {
        let ids: BTreeSet<_> = stalled.keys().copied().collect();
        let is_new = ids.difference(&self.logged).next().is_some();
        if is_new {
            let named: Vec<_> = ids.iter().take(NAMED).map(ToString::to_string).collect();
            let mut causes: Vec<_> = stalled.values().map(|late| late.fault.sentence()).collect();
            causes.sort_unstable();
            causes.dedup();
            tracing::error!(
                destinations = ids.len(),
                first = named.join(", "),
                cause = causes.join("; "),
                "deliveries are due, the limits allow them, and none is sent"
            );
        } else if ids.is_empty() && !self.logged.is_empty() {
            tracing::info!("every destination that may send sends again");
        }
        // A destination that stalls for long is logged once, however the number of the others changes.
        if ids.is_empty() { self.logged.clear() } else { self.logged.extend(ids) }
    }
}

/// Whether its deliveries may wait although the destination may be sent to: for the limits of their keys.
fn waits_for_keys(destination: &Destination) -> bool {
    destination.settings.key_limits.as_ref().is_some_and(|limits| limits.may_bind())
}

impl Watched {
    fn is_suspect(&self, now: Timestamp) -> bool {
        now.since(self.moved_at) >= LATELY
    }
}
