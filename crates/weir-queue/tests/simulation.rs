//! The whole limiter in simulated time: plans, permits and slots over hours, with workers that are late, must connect
//! first, or are killed.
//!
//! A discrete-event loop replaces scheduler and workers; the job table and the plans are the real ones. Every send
//! start is recorded and checked over every sliding window.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use weir_core::{
    DeliveryId, Destination, DestinationId, EventId, Limiter, Period, RateLimit, RateLimits, Slot, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    plan::{self, Allowance, NextRun, Observed},
};
use weir_queue::{
    Edit, HandedBack, PermitId, Publication, Published, SlotAnswer, SlotRequest, Terms, Wake,
    conformance::settings,
    memory::{Depths, JobTable},
};

const START: Timestamp = Timestamp::from_secs(1_000_000_000);
const LEASE: Duration = Duration::from_secs(10);
/// Workers ask for a slot this long before the slot is expected.
const ASK_AHEAD: Duration = Duration::from_millis(10);

/// The timing of the simulated workers.
#[derive(Clone, Copy)]
struct WorkerTiming {
    /// The maximum time from the start of a slot to the send.
    lateness: Duration,
    /// The time to connect; zero when connections are open.
    connect: Duration,
    /// The time from send to answer.
    answer: Duration,
}

const PUNCTUAL: WorkerTiming =
    WorkerTiming { lateness: Duration::from_millis(2), connect: Duration::ZERO, answer: Duration::from_millis(5) };

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum SimulatedEvent {
    SlotOpens(u64, i64, i64),
    /// The worker is ready: its permit, the nanoseconds it took to connect, and when its slot is expected.
    Ready(u64, i64, i64),
    Asks(u64),
    Answered(u64),
}

struct Simulation {
    table: JobTable,
    limits: RateLimits,
    paused: bool,
    edits: i64,
    max_in_flight: u32,
    backlog: u64,
    timing: WorkerTiming,
    random: u64,
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, SimulatedEvent)>>,
    sends: Vec<Timestamp>,
    runs: u64,
    most_queued: u32,
}

fn destination() -> DestinationId {
    DestinationId::from_bytes([7; 16])
}

fn delivery(now: Timestamp) -> ClaimedDelivery {
    ClaimedDelivery {
        claim: Claim { delivery_id: DeliveryId::from_bytes([1; 16]), destination_id: destination(), epoch: 1 },
        event_id: EventId::from_bytes([2; 16]),
        event_created_at: now,
        attempts: 0,
        attempts_before: 0,
        is_replay: false,
        body: ClaimedBody::Inline(EventBody::stored(Bytes::new(), 0)),
        expires_at: now + Duration::from_secs(86_400),
        destination: None,
    }
}

fn limits(of: &[(u32, Period)]) -> RateLimits {
    RateLimits::new(of.iter().map(|&(limit, period)| RateLimit::new(limit, period).unwrap()).collect()).unwrap()
}

impl Simulation {
    fn new(limits: RateLimits, timing: WorkerTiming) -> Self {
        Self {
            table: JobTable::new(START),
            limits,
            paused: false,
            edits: 0,
            max_in_flight: 10_000,
            backlog: 0,
            timing,
            random: 0x9e37_79b9_7f4a_7c15,
            now: START,
            events: BinaryHeap::new(),
            sends: Vec::new(),
            runs: 0,
            most_queued: 0,
        }
    }

    fn add(&mut self, deliveries: u64) {
        self.backlog += deliveries;
        self.table.wake(Wake { destination_id: destination(), due: self.now });
    }

    fn edit(&mut self, limits: RateLimits) {
        self.limits = limits;
        self.announce();
    }

    fn pause(&mut self, paused: bool) {
        self.paused = paused;
        self.announce();
    }

    fn announce(&mut self) {
        self.edits += 1;
        self.table.edited(self.now, &Edit { destination_id: destination(), terms: self.terms() });
    }

    fn terms(&self) -> Terms {
        let mut of =
            Destination { updated_at: Timestamp::from_secs(self.edits), ..settings(&self.limits, self.max_in_flight) };
        of.settings.paused = self.paused;
        Terms::of(&of, self.now)
    }

    /// The process dies and loses its memory. The next run recovers the cursors as if the last send had started now.
    fn crash(&mut self) {
        self.table = JobTable::new(self.now);
        self.events.clear();
        self.table.wake(Wake { destination_id: destination(), due: self.now });
    }

    fn jitter(&mut self, most: Duration) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        most.mul_f64((self.random >> 33) as f64 / f64::from(1u32 << 31))
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let next = [self.table.next_due(), self.events.peek().map(|Reverse((at, _))| *at)];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.run_due_jobs();
            self.take_permits();
            while let Some(Reverse((at, event))) = self.events.peek().copied() {
                if at > self.now {
                    break;
                }
                self.events.pop();
                self.handle(event);
            }
        }
        self.now = end;
    }

    fn run_due_jobs(&mut self) {
        for lease in self.table.claim_due(self.now, 256, LEASE) {
            self.runs += 1;
            self.most_queued = self.most_queued.max(lease.queued);
            let recovered =
                lease.cursors.is_none().then(|| Limiter::recovered(&self.limits, self.sends.last().map(|_| self.now)));
            let mut cursors = lease.cursors.clone().or(recovered.clone()).unwrap();
            cursors.reconfigure(&self.limits);
            let allowance: Allowance = plan::allowance(&Observed {
                now: self.now,
                cursors: &cursors,
                preparation: lease.preparation,
                queued: lease.queued,
                in_flight: lease.in_flight,
                max_in_flight: self.max_in_flight,
                max_queued: self.limits.max_queued(),
                suspended: self.paused,
                breaker: &weir_core::breaker::Breaker::default(),
                lagging: false,
            });
            let claimed = u64::from(allowance.allow).min(self.backlog);
            self.backlog -= claimed;
            let deliveries = (0..claimed).map(|_| delivery(self.now)).collect();
            let next = plan::next_run(allowance, (claimed as u32) < allowance.allow, None);
            let publication = Publication { lease, terms: Some(self.terms()), recovered, deliveries, next };
            if let Published::Stale(back) = self.table.publish(self.now, publication) {
                self.backlog += back.len() as u64;
            }
        }
    }

    fn take_permits(&mut self) {
        for permit in self.table.take(usize::MAX) {
            let expected = permit.expected_at.unwrap_or(self.now).as_nanos();
            let connect = self.timing.connect;
            let ready = SimulatedEvent::Ready(permit.id.serial, connect.as_nanos() as i64, expected);
            self.events.push(Reverse((self.now + connect, ready)));
        }
    }

    fn ask_for_slot(&mut self, id: PermitId, preparation: Option<Duration>) {
        match self.table.take_slot(self.now, SlotRequest { id, preparation }) {
            SlotAnswer::Granted(slot) => self.wait_for(id, slot),
            SlotAnswer::Later(start) => {
                self.events.push(Reverse((start - ASK_AHEAD, SimulatedEvent::Asks(id.serial))));
            }
            SlotAnswer::Withdrawn => {
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
                    self.ask_for_slot(id(serial), preparation);
                }
            }
            SimulatedEvent::Asks(serial) => self.ask_for_slot(id(serial), None),
            SimulatedEvent::SlotOpens(serial, start, end) => {
                let slot = Slot { start: Timestamp::from_nanos(start), end: Timestamp::from_nanos(end) };
                if !slot.contains(self.now) {
                    return self.ask_for_slot(id(serial), None);
                }
                self.sends.push(self.now);
                let answered = self.now + self.timing.answer;
                self.events.push(Reverse((answered, SimulatedEvent::Answered(serial))));
            }
            SimulatedEvent::Answered(serial) => self.table.settle(self.now, id(serial)),
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

    fn assert_caps(&self) {
        for limit in self.limits.as_slice() {
            self.assert_cap(limit.period.window(), limit.limit.get());
        }
    }

    fn utilisation(&self) -> f64 {
        let span = self.sends.last().unwrap().since(self.sends[0]).as_secs_f64();
        (self.sends.len() - 1) as f64 / (self.limits.per_second().unwrap() * span)
    }
}

const EVERY_LIMIT: [(u32, Period); 9] = [
    (1, Period::Second),
    (7, Period::Second),
    (10, Period::Second),
    (100, Period::Second),
    (1000, Period::Second),
    (2000, Period::Second),
    (30, Period::Minute),
    (90, Period::Minute),
    (500, Period::Hour),
];

#[test]
fn every_limit_holds_and_is_used_over_hours_of_backlog() {
    for limit in EVERY_LIMIT {
        let hours = if limit.1 == Period::Hour { 24 } else { 3 };
        let mut simulation = Simulation::new(limits(&[limit]), PUNCTUAL);
        simulation.add(u64::MAX / 2);
        simulation.run_for(Duration::from_secs(hours * 3_600 / if limit.0 >= 1000 { 10 } else { 1 }));
        simulation.assert_caps();
        assert!(simulation.utilisation() >= 0.985, "{limit:?}: {}", simulation.utilisation());
        assert!(simulation.most_queued <= limit.0, "{limit:?}: {} queued", simulation.most_queued);
    }
}

#[test]
fn several_limits_hold_together() {
    let mut simulation = Simulation::new(limits(&[(10, Period::Second), (300, Period::Minute)]), PUNCTUAL);
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(3_600));
    simulation.assert_caps();
    assert!(simulation.utilisation() >= 0.98);
}

#[test]
fn workers_that_miss_their_slots_do_not_exceed_the_limit() {
    let late = WorkerTiming { lateness: Duration::from_millis(40), ..PUNCTUAL };
    for limit in [(10, Period::Second), (1000, Period::Second)] {
        let mut simulation = Simulation::new(limits(&[limit]), late);
        simulation.add(1_000_000);
        simulation.run_for(Duration::from_secs(60));
        simulation.assert_caps();
        assert!(simulation.sends.len() > 100, "late workers must not livelock");
    }
}

#[test]
fn a_process_that_stalls_for_a_second_loses_no_slot_of_an_hourly_limit() {
    let late = WorkerTiming { lateness: Duration::from_secs(2), ..PUNCTUAL };
    let mut simulation = Simulation::new(limits(&[(60, Period::Hour)]), late);
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(360_000));
    simulation.assert_caps();
    assert!(simulation.utilisation() >= 0.985, "{}", simulation.utilisation());
}

#[test]
fn a_destination_that_closes_after_each_answer_loses_no_slot() {
    let cold = WorkerTiming { connect: Duration::from_millis(500), ..PUNCTUAL };
    for limit in [(10, Period::Second), (200, Period::Second), (5, Period::Minute)] {
        let mut simulation = Simulation::new(limits(&[limit]), cold);
        simulation.add(1_000_000);
        simulation.run_for(Duration::from_secs(600));
        simulation.assert_caps();
        assert!(simulation.utilisation() >= 0.98, "{limit:?}: {}", simulation.utilisation());
    }
}

#[test]
fn edits_under_backlog_take_effect_within_100_ms_and_reset_no_cursor() {
    let edits =
        [(10, Period::Second), (100, Period::Second), (5, Period::Second), (1, Period::Second), (50, Period::Second)];
    let mut simulation = Simulation::new(limits(&edits[..1]), PUNCTUAL);
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(10));
    for pair in edits.windows(2) {
        simulation.edit(limits(&pair[1..]));
        let edited_at = simulation.now;
        simulation.run_for(Duration::from_secs(10));
        let larger = pair[0].0.max(pair[1].0);
        let around: Vec<_> =
            simulation.sends.iter().copied().filter(|send| *send >= edited_at - Duration::from_secs(1)).collect();
        for (first, last) in around.iter().zip(around.iter().skip(larger as usize)) {
            assert!(last.since(*first) >= Duration::from_secs(1), "{pair:?}");
        }
        let settled = around.iter().filter(|send| **send >= edited_at + Duration::from_millis(100)).count() as f64;
        let expected = f64::from(pair[1].0) * 9.9;
        assert!((settled - expected).abs() <= expected * 0.02 + 1.0, "{pair:?}: {settled} of {expected}");
    }
}

#[test]
fn an_edit_to_another_period_or_to_no_limit_takes_effect() {
    let mut simulation = Simulation::new(limits(&[(10, Period::Second)]), PUNCTUAL);
    simulation.add(100_000);
    simulation.run_for(Duration::from_secs(5));
    simulation.edit(limits(&[(30, Period::Minute)]));
    simulation.sends.clear();
    simulation.run_for(Duration::from_secs(3_600));
    simulation.assert_caps();
    assert!(simulation.utilisation() >= 0.985);
    simulation.edit(RateLimits::UNLIMITED);
    simulation.run_for(Duration::from_millis(100));
    assert!(simulation.sends.len() > 5_000, "unlimited at once: {}", simulation.sends.len());
}

#[test]
fn a_stopped_and_restarted_job_starts_no_second_burst() {
    let mut simulation = Simulation::new(limits(&[(10, Period::Second)]), PUNCTUAL);
    for _ in 0..2_000 {
        simulation.add(3);
        let pause = simulation.jitter(Duration::from_millis(600));
        simulation.run_for(pause);
    }
    simulation.assert_caps();
    simulation.run_for(Duration::from_secs(1_000));
    assert_eq!((simulation.sends.len(), simulation.backlog), (6_000, 0));
    assert_eq!(simulation.table.depths(), Depths::default());
}

#[test]
fn a_stopped_job_is_forgotten_only_after_its_window_has_passed() {
    let [hourly, brief] = [1, 2].map(|number| DestinationId::from_bytes([number; 16]));
    let mut table = JobTable::new(START);
    let mut publish_one = |id, period, next| {
        table.wake(Wake { destination_id: id, due: START });
        let lease = table.claim_due(START, 1, LEASE).remove(0);
        let limits = limits(&[(1, period)]);
        let mut delivery = delivery(START);
        delivery.claim.destination_id = id;
        let recovered = Some(Limiter::new(&limits));
        let terms = Some(Terms::of(&settings(&limits, 64), START));
        let publication = Publication { lease, terms, recovered, deliveries: vec![delivery], next };
        assert!(matches!(table.publish(START, publication), Published::Done));
        let permit = table.take(1).remove(0);
        assert!(matches!(
            table.take_slot(START, SlotRequest { id: permit.id, preparation: None }),
            SlotAnswer::Granted(_)
        ));
        table.settle(START, permit.id);
    };
    publish_one(hourly, Period::Hour, NextRun::Stop);
    publish_one(brief, Period::Second, NextRun::Stop);
    // With so many jobs, idle jobs that the store can recover are dropped.
    let later = START + Duration::from_secs(600);
    for number in 0..25_000u128 {
        let far = later + Duration::from_secs(3_600);
        table.wake(Wake { destination_id: DestinationId::new(later, number), due: far });
    }
    assert!(table.claim_due(later, 1, LEASE).is_empty());
    let mut knows_cursors = |id| {
        table.wake(Wake { destination_id: id, due: later });
        table.claim_due(later, 1, LEASE).remove(0).cursors.is_some()
    };
    assert!(!knows_cursors(brief), "the store can recover these cursors");
    assert!(knows_cursors(hourly), "the send is still inside its window");
}

#[test]
fn a_pause_stops_all_sends_and_causes_no_burst_afterwards() {
    let mut simulation = Simulation::new(limits(&[(100, Period::Second)]), PUNCTUAL);
    simulation.add(10_000);
    simulation.run_for(Duration::from_secs(3));
    simulation.pause(true);
    let paused_at = simulation.now;
    simulation.run_for(Duration::from_secs(60));
    // A permit that has a slot may still be sent inside it.
    let latest = paused_at + Duration::from_millis(100);
    assert_eq!(simulation.sends.iter().filter(|send| **send > latest).count(), 0);
    simulation.pause(false);
    simulation.run_for(Duration::from_secs(200));
    simulation.assert_caps();
    assert_eq!(simulation.sends.len(), 10_000);
}

#[test]
fn a_crash_at_any_instant_keeps_the_cap_across_the_restart() {
    for limit in [(1, Period::Second), (10, Period::Second), (1000, Period::Second), (30, Period::Minute)] {
        let mut simulation = Simulation::new(limits(&[limit]), PUNCTUAL);
        simulation.add(1_000_000);
        for _ in 0..200 {
            let alive = simulation.jitter(Duration::from_secs(3));
            simulation.run_for(alive);
            simulation.crash();
        }
        simulation.assert_caps();
    }
}

#[test]
fn a_slow_destination_is_bounded_by_max_in_flight_and_does_not_spin() {
    let slow = WorkerTiming { answer: Duration::from_secs(30), ..PUNCTUAL };
    let mut simulation = Simulation::new(RateLimits::UNLIMITED, slow);
    simulation.max_in_flight = 8;
    simulation.add(100);
    simulation.run_for(Duration::from_secs(300));
    assert_eq!(simulation.sends.len(), 80);
    assert!(simulation.runs < 700, "{} runs", simulation.runs);
}

#[test]
fn an_idle_destination_costs_nothing() {
    let mut simulation = Simulation::new(limits(&[(10, Period::Second)]), PUNCTUAL);
    simulation.add(1);
    simulation.run_for(Duration::from_secs(10));
    let runs = simulation.runs;
    simulation.run_for(Duration::from_secs(86_400));
    assert_eq!(simulation.runs, runs);
}
