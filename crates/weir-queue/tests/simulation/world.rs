//! The simulated world: a discrete-event loop with the real job table and the real plans.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use weir_core::{
    DeliveryId, Destination, DestinationId, EventId, Limiter, Period, RateLimit, RateLimits, Slot, Timestamp,
    adaptive::{self, AdaptiveRate, PaceCursor, Sample, Verdict},
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    plan::{self, Allowance, Observed},
    temporary::{Override, Temporary},
};
use weir_queue::{
    HandedBack, JobLease, Pace, PacedGrant, PermitId, Publication, Published, Report, SlotAnswer, SlotRequest, Terms,
    TermsChange, Wake, conformance::settings, memory::JobTable,
};

pub(crate) const START: Timestamp = Timestamp::from_secs(1_000_000_000);
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// Workers ask for a slot this long before the slot is expected.
const ASK_AHEAD: Duration = Duration::from_millis(10);

/// When a worker asks again for room, on average.
const ROOM_WAIT: Duration = Duration::from_millis(2);

/// The timing of the simulated workers.
#[derive(Clone, Copy)]
pub(crate) struct WorkerTiming {
    /// The maximum time from the start of a slot to the send.
    pub(crate) lateness: Duration,
    /// The time to connect; zero when connections are open.
    pub(crate) connect: Duration,
    /// The time from send to answer.
    pub(crate) answer: Duration,
    /// The time from the claim of a job to its publication.
    pub(crate) run: Duration,
    /// The processor is taken from each worker for slices of this length, for a third of the time.
    pub(crate) slice: Duration,
}

pub(crate) const PUNCTUAL: WorkerTiming = WorkerTiming {
    lateness: Duration::from_millis(2),
    connect: Duration::ZERO,
    answer: Duration::from_millis(5),
    run: Duration::ZERO,
    slice: Duration::ZERO,
};

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum SimulatedEvent {
    SlotOpens(u64, i64, i64),
    /// The worker is ready: its permit, the nanoseconds it took to connect, and when its slot is expected.
    Ready(u64, i64, i64),
    Asks(u64),
    Answered(u64),
    /// A worker reports the answers of the last quarter of a second.
    Reports(u64),
}

impl SimulatedEvent {
    /// Two workers share the permits.
    fn worker(self) -> u64 {
        let (Self::SlotOpens(serial, ..)
        | Self::Ready(serial, ..)
        | Self::Asks(serial)
        | Self::Answered(serial)
        | Self::Reports(serial)) = self;
        serial % 2
    }
}

pub(crate) struct Simulation {
    pub(crate) table: JobTable,
    limits: RateLimits,
    temporary: Temporary,
    paused: bool,
    edits: i64,
    pub(crate) max_in_flight: u32,
    pub(crate) backlog: u64,
    timing: WorkerTiming,
    random: u64,
    pub(crate) now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, SimulatedEvent)>>,
    /// The publications of runs under way, in the order in which the runs end.
    publications: VecDeque<(Timestamp, Publication)>,
    pub(crate) sends: Vec<Timestamp>,
    pub(crate) runs: u64,
    pub(crate) most_queued: u32,
    /// Set for an adaptive destination: how many requests its receiver takes in each second of the clock.
    pub(crate) takes: Option<u32>,
    /// The send starts that the receiver refused.
    pub(crate) refused: Vec<Timestamp>,
    /// What slots were granted under, and what the receiver said.
    paced: BTreeMap<u64, (PacedGrant, Verdict)>,
    gathered: [BTreeMap<u32, Sample>; 2],
    copy: Option<(AdaptiveRate, Timestamp)>,
}

fn destination() -> DestinationId {
    DestinationId::from_bytes([7; 16])
}

pub(crate) fn delivery(now: Timestamp) -> ClaimedDelivery {
    ClaimedDelivery {
        flow_id: destination(),
        claim: Claim { delivery_id: DeliveryId::from_bytes([1; 16]), destination_id: destination(), epoch: 1 },
        event_id: EventId::from_bytes([2; 16]),
        event_created_at: now,
        attempts: 0,
        attempts_before: 0,
        is_replay: false,
        cost: 1,
        body: ClaimedBody::Inline(EventBody::stored(Bytes::new(), 0)),
        expires_at: now + Duration::from_secs(86_400),
        destination: None,
    }
}

pub(crate) fn limits(of: &[(u32, Period)]) -> RateLimits {
    RateLimits::new(of.iter().map(|&(limit, period)| RateLimit::new(limit, period).unwrap()).collect()).unwrap()
}

impl Simulation {
    pub(crate) fn new(limits: RateLimits, timing: WorkerTiming) -> Self {
        Self {
            table: JobTable::new(START),
            limits,
            temporary: Temporary::default(),
            paused: false,
            edits: 0,
            max_in_flight: 10_000,
            backlog: 0,
            timing,
            random: 0x9e37_79b9_7f4a_7c15,
            now: START,
            events: BinaryHeap::new(),
            publications: VecDeque::new(),
            sends: Vec::new(),
            runs: 0,
            most_queued: 0,
            takes: None,
            refused: Vec::new(),
            paced: BTreeMap::new(),
            gathered: Default::default(),
            copy: None,
        }
    }

    pub(crate) fn add(&mut self, deliveries: u64) {
        self.backlog += deliveries;
        self.table.wake(Wake { destination_id: destination(), due: self.now });
    }

    pub(crate) fn edit(&mut self, limits: RateLimits) {
        self.limits = limits;
        self.announce();
    }

    /// Overrides the limits for a while. Nobody announces the end.
    pub(crate) fn override_limits(&mut self, limits: RateLimits, lasts: Duration) {
        let overridden =
            Override { limits: Some(limits), max_in_flight: None, until: self.now + lasts, reason: String::new() };
        self.temporary.overridden = Some(overridden);
        self.announce();
    }

    pub(crate) fn pause(&mut self, paused: bool) {
        self.paused = paused;
        self.announce();
    }

    /// Turns the adaptive rate off, or on for a receiver that takes so many requests a second.
    pub(crate) fn adapt(&mut self, takes: Option<u32>) {
        self.takes = takes;
        self.announce();
    }

    fn announce(&mut self) {
        self.edits += 1;
        self.table.edited(self.now, &TermsChange { destination_id: destination(), terms: self.terms() });
    }

    fn terms(&self) -> Terms {
        let mut of =
            Destination { updated_at: Timestamp::from_secs(self.edits), ..settings(&self.limits, self.max_in_flight) };
        of.temporary = self.temporary.clone();
        of.settings.paused = self.paused;
        of.settings.adaptive = self.takes.map(|_| adaptive::Settings::default());
        Terms::of(&of, self.now)
    }

    /// The process dies and loses its memory. The next run recovers the cursors as if the last send had started now.
    pub(crate) fn crash(&mut self) {
        self.table = JobTable::new(self.now);
        self.events.clear();
        self.publications.clear();
        self.paced.clear();
        self.gathered = Default::default();
        self.table.wake(Wake { destination_id: destination(), due: self.now });
    }

    pub(crate) fn jitter(&mut self, most: Duration) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        most.mul_f64((self.random >> 33) as f64 / f64::from(1u32 << 31))
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let (event, published) = (self.events.peek(), self.publications.front());
            let next = [self.table.next_due(), event.map(|Reverse((at, _))| *at), published.map(|(at, _)| *at)];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.run_due_jobs();
            self.publish();
            self.take_permits();
            while let Some(Reverse((at, event))) = self.events.peek().copied() {
                if at > self.now {
                    break;
                }
                self.events.pop();
                match self.runs_again_at(event.worker()) {
                    Some(later) => self.events.push(Reverse((later, event))),
                    None => self.handle(event),
                }
            }
        }
        self.now = end;
    }

    /// The pace of a run after it has learnt, as in a scheduler.
    fn learn(&mut self, lease: &mut JobLease) -> Option<Box<Pace>> {
        self.takes?;
        let settings = adaptive::Settings::default().within(&self.limits);
        let mut pace = lease.pace.take().unwrap_or_else(|| {
            let new = || AdaptiveRate::new(settings, self.max_in_flight, None, self.now);
            let resumed = |(copy, saved_at)| AdaptiveRate::resumed(copy, saved_at, self.now);
            Box::new(Pace::new(self.copy.clone().map_or_else(new, resumed), self.now))
        });
        pace.rate.learn(&pace.cursor, &pace.reports, self.now);
        pace.rate.configure(settings, self.max_in_flight, self.now);
        pace.cursor.follow(&pace.rate.cursor(self.now));
        if pace.rate.needs_copy(self.now) {
            self.copy = Some((pace.rate.clone(), self.now));
        }
        Some(pace)
    }

    /// The pace, as the queue shows it.
    pub(crate) fn per_s(&self) -> Option<f64> {
        self.table.pace(destination(), self.now).map(|status| status.per_s)
    }

    /// A receiver with a bucket for each second of the clock.
    fn receive(&mut self) -> Verdict {
        let second = self.now.as_secs();
        let taken = self.sends.iter().rev().take_while(|send| send.as_secs() == second);
        let refused = self.refused.iter().rev().take_while(|send| send.as_secs() == second);
        let is_full = self.takes.is_some_and(|takes| taken.count() - refused.count() >= takes as usize);
        if is_full {
            self.refused.push(self.now);
        }
        self.sends.push(self.now);
        if is_full { Verdict::Throttled } else { Verdict::Ok }
    }

    /// Gathers what the worker reports of an answer.
    fn gather(&mut self, serial: u64) {
        let Some((PacedGrant { generation, in_flight }, verdict)) = self.paced.remove(&serial) else { return };
        let worker = serial % 2;
        let gathered = &mut self.gathered[worker as usize];
        if gathered.is_empty() {
            self.events.push(Reverse((self.now + Duration::from_millis(250), SimulatedEvent::Reports(worker))));
        }
        let sample = gathered.entry(generation).or_insert(Sample { generation, ..Sample::default() });
        sample.add(verdict, self.timing.answer.as_secs_f64(), in_flight);
    }

    fn run_due_jobs(&mut self) {
        for mut lease in self.table.claim_due(self.now, 256, LEASE) {
            let limits = self.temporary.limits(&self.limits, self.now);
            self.runs += 1;
            self.most_queued = self.most_queued.max(lease.queued);
            let recovered =
                lease.cursors.is_none().then(|| Limiter::recovered(&limits, self.sends.last().map(|_| self.now)));
            let mut cursors = lease.cursors.clone().or(recovered.clone()).unwrap();
            cursors.reconfigure(&limits);
            let pace = self.learn(&mut lease);
            let pace_cursor: Option<&PaceCursor> = pace.as_ref().map(|pace| &pace.cursor);
            let allowance: Allowance = plan::allowance(&Observed {
                now: self.now,
                cursors: &cursors,
                pace: pace_cursor,
                preparation: lease.preparation,
                run_time: lease.run_time,
                ahead: lease.ahead,
                queued: lease.queued,
                in_flight: lease.in_flight,
                max_in_flight: pace_cursor.map_or(self.max_in_flight, |pace| pace.window),
                max_queued: limits.max_queued(),
                suspended: self.paused,
                breaker: &weir_core::breaker::Breaker::default(),
                lagging: false,
            });
            let claimed = u64::from(allowance.allow).min(self.backlog);
            self.backlog -= claimed;
            let deliveries = (0..claimed).map(|_| delivery(self.now)).collect();
            let next = plan::next_run(allowance, (claimed as u32) < allowance.allow, None);
            let pace = pace.map(|pace| Box::new(pace.rate));
            let publication =
                Publication { lease, terms: Some(self.terms()), recovered, groups: Vec::new(), pace, deliveries, next };
            self.publications.push_back((self.now + self.timing.run, publication));
        }
    }

    fn publish(&mut self) {
        while self.publications.front().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, publication)) = self.publications.pop_front() else { return };
            if let Published::Stale(back) = self.table.publish(self.now, publication) {
                self.backlog += back.len() as u64;
            }
        }
    }

    /// The end of the slice for which the processor is taken from this worker now, if it is. The slices begin at random
    /// times.
    fn runs_again_at(&self, worker: u64) -> Option<Timestamp> {
        let slice = self.timing.slice.as_nanos() as u64;
        let now = self.now.as_nanos() as u64;
        let period = now.checked_div(3 * slice)?;
        let random = (2 * period + worker).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let begins = period * 3 * slice + random.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (2 * slice);
        (begins..begins + slice).contains(&now).then(|| Timestamp::from_nanos((begins + slice) as i64))
    }

    fn take_permits(&mut self) {
        for permit in self.table.take(usize::MAX) {
            let expected = permit.expected_at.unwrap_or(self.now).as_nanos();
            let connect = self.timing.connect;
            let ready = SimulatedEvent::Ready(permit.id.serial, connect.as_nanos() as i64, expected);
            self.events.push(Reverse((self.now + connect, ready)));
        }
    }

    fn ask_for_slot(&mut self, request: SlotRequest) {
        let id = request.id;
        match self.table.take_slot(self.now, request) {
            SlotAnswer::Granted(slot, paced) => {
                self.paced.extend(paced.map(|paced| (id.serial, (paced, Verdict::Ok))));
                self.wait_for(id, slot);
            }
            SlotAnswer::Later(start) => {
                self.events.push(Reverse((start - ASK_AHEAD, SimulatedEvent::Asks(id.serial))));
            }
            SlotAnswer::NoRoom => {
                let again = self.now + self.jitter(2 * ROOM_WAIT);
                self.events.push(Reverse((again, SimulatedEvent::Asks(id.serial))));
            }
            SlotAnswer::AboveLimit | SlotAnswer::Withdrawn => {
                self.table.hand_back(self.now, HandedBack { id, crowded: false });
                self.backlog += 1;
                self.table.wake(Wake { destination_id: destination(), due: self.now });
            }
        }
    }

    fn wait_for(&mut self, id: PermitId, slot: Slot) {
        let at = slot.start.max(self.now) + self.jitter(self.timing.lateness);
        let opens = SimulatedEvent::SlotOpens(id.serial, slot.start.as_nanos(), slot.end.as_nanos());
        self.events.push(Reverse((at, opens)));
    }

    fn handle(&mut self, event: SimulatedEvent) {
        let id = |serial| PermitId { destination_id: destination(), serial };
        match event {
            SimulatedEvent::Ready(serial, connect, expected) => {
                let preparation = Some(Duration::from_nanos(connect as u64));
                let asks_at = Timestamp::from_nanos(expected) - ASK_AHEAD;
                if asks_at > self.now {
                    self.events.push(Reverse((asks_at, SimulatedEvent::Ready(serial, connect, 0))));
                } else {
                    self.ask_for_slot(SlotRequest { preparation, ..SlotRequest::new(id(serial)) });
                }
            }
            SimulatedEvent::Asks(serial) => self.ask_for_slot(SlotRequest::new(id(serial))),
            SimulatedEvent::SlotOpens(serial, start, end) => {
                let slot = Slot { start: Timestamp::from_nanos(start), end: Timestamp::from_nanos(end) };
                if !slot.contains(self.now) {
                    return self.ask_for_slot(SlotRequest { missed: true, ..SlotRequest::new(id(serial)) });
                }
                let verdict = self.receive();
                if let Some((_, known)) = self.paced.get_mut(&serial) {
                    *known = verdict;
                }
                let answered = self.now + self.timing.answer;
                self.events.push(Reverse((answered, SimulatedEvent::Answered(serial))));
            }
            SimulatedEvent::Answered(serial) => {
                self.table.settle(self.now, id(serial).into());
                self.gather(serial);
            }
            SimulatedEvent::Reports(worker) => {
                for (_, sample) in std::mem::take(&mut self.gathered[worker as usize]) {
                    self.table.report(self.now, &Report { destination_id: destination(), sample });
                }
            }
        }
    }

    /// No half-open window of length `window` holds more than `bound` sends.
    fn assert_cap(&self, window: Duration, bound: u32) {
        let mut recent = VecDeque::new();
        for &send in &self.sends {
            while recent.front().is_some_and(|&first| send.since(first) >= window) {
                recent.pop_front();
            }
            recent.push_back(send);
            assert!(recent.len() <= bound as usize, "{} sends in a window of {window:?}", recent.len());
        }
    }

    pub(crate) fn assert_caps(&self) {
        for limit in self.limits.as_slice() {
            self.assert_cap(limit.period.window(), limit.limit.get());
        }
    }

    pub(crate) fn utilisation(&self) -> f64 {
        let span = self.sends.last().unwrap().since(self.sends[0]).as_secs_f64();
        (self.sends.len() - 1) as f64 / (self.limits.per_second().unwrap() * span)
    }
}
