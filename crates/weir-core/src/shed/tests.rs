//! The gates in simulated time.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000) + Duration::from_millis(millis)
}

fn shedder() -> Shedder {
    Shedder::new(Mode::On, false, at(0))
}

fn sender(name: &str) -> Sender {
    Sender { key: Client { id: ClientId::of("key", name), name: name.into() }, tenant: None }
}

fn of_tenant(name: &str, tenant: &str) -> Sender {
    let tenant = Client { id: ClientId::of("tenant", tenant), name: tenant.into() };
    Sender { tenant: Some(tenant), ..sender(name) }
}

fn ticket(decision: Decision) -> Option<Ticket> {
    match decision {
        Decision::Admitted { ticket, .. } => Some(ticket),
        Decision::Refused(_) => None,
    }
}

fn refusal(decision: Decision) -> Refusal {
    match decision {
        Decision::Refused(refusal) => refusal,
        admitted => panic!("{admitted:?}"),
    }
}

/// As many as are admitted at this time.
fn take_all(shedder: &mut Shedder, class: Class, sender: &Sender, now: Timestamp) -> Vec<Ticket> {
    std::iter::from_fn(|| ticket(shedder.admit(class, sender, now, 0.0))).take(100_000).collect()
}

/// A store that is in the middle of this many ingests, and finishes none.
fn hang(shedder: &mut Shedder, ingests: usize, now: Timestamp) {
    (0..ingests).for_each(|_| shedder.store_began(now));
}

#[test]
fn a_class_is_full_at_its_limit_and_has_room_again_after_a_release() {
    let (mut shed, many) = (shedder(), (0..20).map(|n| sender(&n.to_string())).collect::<Vec<_>>());
    let mut tickets: Vec<_> = many[..8].iter().map(|it| ticket(shed.admit(Class::Heavy, it, at(0), 0.0))).collect();
    assert!(tickets.iter().all(Option::is_some));
    let full = refusal(shed.admit(Class::Heavy, &many[8], at(1), 0.0));
    assert_eq!((full.reason, full.limit, full.is_own_limit), (Reason::Class, 8, false));
    shed.release(tickets.pop().flatten().unwrap(), false, at(2));
    assert!(ticket(shed.admit(Class::Heavy, &many[8], at(3), 0.0)).is_some());
    assert!(ticket(shed.admit(Class::Control, &many[9], at(3), 0.0)).is_some(), "control has places of its own");
}

#[test]
fn a_store_that_stands_still_refuses_heavy_requests_then_reads_and_then_bounds_events() {
    let mut shed = shedder();
    hang(&mut shed, 1, at(0));
    let one = sender("one");
    let mut first_refused = [None; 3];
    let mut held = Vec::new();
    for now in (0..3_000).step_by(10) {
        for (index, class) in [Class::Heavy, Class::Read].into_iter().enumerate() {
            match shed.admit(class, &one, at(now), 0.0) {
                Decision::Admitted { ticket, .. } => shed.release(ticket, true, at(now)),
                Decision::Refused(refusal) => {
                    assert_eq!(refusal.reason, Reason::Pressure);
                    first_refused[index].get_or_insert(now);
                }
            }
        }
        match shed.admit(Class::Ingest, &one, at(now), 0.0) {
            Decision::Admitted { ticket, .. } => held.push(ticket),
            Decision::Refused(refusal) => drop(first_refused[2].get_or_insert((now, refusal).0)),
        }
        assert!(
            ticket(shed.admit(Class::Control, &one, at(now), 0.0)).map(|it| shed.release(it, true, at(now))).is_some()
        );
    }
    // A second without progress, and 200 ms for each level.
    assert_eq!(first_refused, [Some(1_100), Some(1_300), Some(1_500)]);
    // The store goes on: one level less for each calm second.
    shed.store_ended(at(0), true, at(3_000));
    held.into_iter().for_each(|ticket| shed.release(ticket, true, at(3_000)));
    let level = |shed: &mut Shedder, now| shed.figures(at(now), 0).level;
    assert_eq!([3_900, 4_100, 5_100, 6_100].map(|now| level(&mut shed, now)), [3, 2, 1, 0]);
}

#[test]
fn a_slow_disk_with_few_producers_is_no_overload() {
    let mut shed = shedder();
    let one = sender("one");
    // Each commit takes 800 ms, for ten minutes. 40 producers wait for it.
    for commit in 0..750 {
        let began = at(800 * commit);
        let tickets: Vec<_> = (0..40).map(|_| ticket(shed.admit(Class::Ingest, &one, began, 0.0)).unwrap()).collect();
        hang(&mut shed, 40, began);
        let ended = began + 800 * MS;
        tickets.into_iter().for_each(|ticket| {
            shed.store_ended(began, true, ended);
            shed.release(ticket, true, ended);
        });
        assert!(
            take_all(&mut shed, Class::Heavy, &one, ended).into_iter().map(|it| shed.release(it, true, ended)).count()
                >= 6
        );
    }
}

/// A store that finishes one event after the other. Arrivals: in events per second, by time.
struct Simulation {
    shed: Shedder,
    /// When it came, and its ticket.
    queue: VecDeque<(Timestamp, Ticket)>,
    waits: Vec<Duration>,
    refused: usize,
    goodput: usize,
}

impl Simulation {
    fn new() -> Self {
        Self { shed: shedder(), queue: VecDeque::new(), waits: Vec::new(), refused: 0, goodput: 0 }
    }

    /// Milliseconds `from` to `to`, with so many arrivals and ends in each.
    fn run(&mut self, from: u64, to: u64, arrivals: usize, ends: usize) {
        let (one, other) = (sender("one"), sender("other"));
        for now in (from..to).map(at) {
            for arrival in 0..arrivals {
                match self.shed.admit(Class::Ingest, if arrival % 2 == 0 { &one } else { &other }, now, 0.5) {
                    Decision::Admitted { ticket, .. } => {
                        self.shed.store_began(now);
                        self.queue.push_back((now, ticket));
                    }
                    Decision::Refused(_) => self.refused += 1,
                }
            }
            for _ in 0..ends.min(self.queue.len()) {
                let (began, ticket) = self.queue.pop_front().unwrap();
                self.shed.store_ended(began, true, now);
                self.shed.release(ticket, true, now);
                self.waits.push(now.since(began));
                self.goodput += 1;
            }
        }
    }

    fn p99(&mut self) -> Duration {
        self.waits.sort_unstable();
        self.waits[self.waits.len() * 99 / 100]
    }
}

#[test]
fn three_times_the_peak_costs_no_goodput_and_accepted_events_wait_less_than_half_a_second() {
    let mut simulation = Simulation::new();
    simulation.run(0, 5_000, 3, 4);
    assert_eq!(simulation.refused, 0, "below the peak nothing is refused");
    (simulation.waits, simulation.goodput) = (Vec::new(), 0);
    // It takes half a second to see that this is no burst. What came in until then is worked off within a second.
    simulation.run(5_000, 7_000, 12, 4);
    let longest = simulation.waits.iter().max().copied();
    assert!(longest <= Some(1_100 * MS), "{longest:?}");
    simulation.waits.clear();
    simulation.run(7_000, 27_000, 12, 4);
    assert!(simulation.goodput >= 86_000, "{} of 88,000", simulation.goodput);
    let p99 = simulation.p99();
    assert!(p99 <= 500 * MS, "{p99:?}");
    // Two seconds after the overload nothing is refused any more.
    simulation.run(27_000, 29_000, 3, 4);
    simulation.refused = 0;
    simulation.run(29_000, 34_000, 3, 4);
    assert_eq!(simulation.refused, 0);
}

#[test]
fn the_bound_follows_a_store_that_becomes_fast_again_within_two_seconds() {
    let mut simulation = Simulation::new();
    // The store almost stands still for a minute, under load.
    for second in 0..60 {
        simulation.run(second * 1_000, second * 1_000 + 999, 4, 0);
        simulation.run(second * 1_000 + 999, (second + 1) * 1_000, 4, 50);
    }
    assert!(simulation.shed.figures(at(60_000), 0).classes[1].limit <= 64);
    simulation.run(60_000, 62_000, 4, 5);
    simulation.refused = 0;
    simulation.run(62_000, 65_000, 4, 5);
    assert_eq!(simulation.refused, 0);
}

#[test]
fn a_quiet_client_that_is_served_first_hides_no_queue() {
    let mut shed = shedder();
    hang(&mut shed, 2_000, at(0));
    for now in 1..1_500 {
        // 4,000 a second are finished, each after half a second, and a quiet client waits for a millisecond only.
        (0..4).for_each(|_| shed.store_ended(at(now) - 500 * MS, true, at(now)));
        hang(&mut shed, 5, at(now));
        shed.store_ended(at(now), true, at(now) + MS);
    }
    let figures = shed.figures(at(1_500), 0);
    assert_eq!(figures.level, 3);
    let limit = figures.classes[Class::Ingest as usize].limit;
    assert!((1_000..=1_300).contains(&limit), "{limit}");
}

#[test]
fn a_bound_below_what_is_in_flight_refuses_no_client_that_holds_few() {
    let mut shed = shedder();
    let (loud, quiet) = (sender("loud"), sender("quiet"));
    let held = take_all(&mut shed, Class::Ingest, &loud, at(0));
    hang(&mut shed, held.len(), at(0));
    // The store stands still, so the bound is the least there is, and far more is in flight.
    let ticket = ticket(shed.admit(Class::Ingest, &quiet, at(3_000), 0.0)).expect("the quiet client gets in");
    assert_eq!(refusal(shed.admit(Class::Ingest, &loud, at(3_000), 0.0)).reason, Reason::Pressure);
    shed.release(ticket, true, at(3_010));
    // All who hold few together exceed the bound by little: each client has one.
    assert!(take_all(&mut shed, Class::Ingest, &quiet, at(3_020)).len() <= 4);
}

#[test]
fn while_deliveries_wait_to_be_recorded_events_are_bounded_to_what_the_store_completes() {
    let mut shed = shedder();
    let one = sender("one");
    for now in 0..2_000 {
        // 100 events of 20 ms each are in the store, which is no overload by itself.
        hang(&mut shed, 5, at(now));
        if now >= 20 {
            (0..5).for_each(|_| shed.store_ended(at(now - 20), true, at(now)));
        }
        if now % 50 == 0 {
            shed.recorded(400 * MS, at(now));
        }
    }
    // 5,000 a second × 250 ms, a little less where the last tick has only begun.
    let limit = shed.figures(at(2_000), 0).classes[Class::Ingest as usize].limit;
    assert!((1_100..=1_250).contains(&limit), "{limit}");
    assert!(take_all(&mut shed, Class::Ingest, &one, at(2_000)).len() <= 1_250);
}

#[test]
fn results_that_wait_in_a_worker_bound_the_events_of_an_api() {
    let [mut worker, mut api] = [(); 2].map(|()| Shedder::new(Mode::On, true, at(0)));
    worker.takes_no_requests();
    for now in 0..2_000 {
        hang(&mut api, 5, at(now));
        if now >= 20 {
            (0..5).for_each(|_| api.store_ended(at(now - 20), true, at(now)));
        }
        worker.recorded(400 * MS, at(now));
        if now % 100 == 50 {
            api.look(&[worker.record(at(now))], at(now));
            worker.look(&[api.record(at(now))], at(now));
        }
    }
    let figures = api.figures(at(2_000), 0);
    assert_eq!((figures.level, figures.processes), (3, 1), "a worker has no part of a limit");
    assert!(figures.classes[Class::Ingest as usize].limit <= 1_250);
    assert_eq!(worker.figures(at(2_000), 0).processes, 2);
}

#[test]
fn a_flood_by_one_client_refuses_no_other_and_one_alone_uses_nearly_everything() {
    let mut shed = shedder();
    let (loud, quiet) = (sender("loud"), sender("quiet"));
    let mut flood = take_all(&mut shed, Class::Read, &loud, at(0));
    assert_eq!(flood.len(), 240, "alone: all but what is kept for newcomers");
    for now in 1..4_000 {
        // The quiet one has a request every 20 ms, each for 30 ms. The loud one takes whatever it gets.
        if now % 20 == 0 {
            let held = ticket(shed.admit(Class::Read, &quiet, at(now), 0.0)).expect("the quiet one is not refused");
            let also = ticket(shed.admit(Class::Read, &quiet, at(now), 0.0)).expect("the quiet one is not refused");
            flood.extend(take_all(&mut shed, Class::Read, &loud, at(now)));
            shed.release(held, true, at(now));
            shed.release(also, true, at(now));
        }
        flood.drain(..1).for_each(|ticket| shed.release(ticket, true, at(now)));
        flood.extend(take_all(&mut shed, Class::Read, &loud, at(now)));
    }
    assert_eq!(flood.len(), 192, "three quarters while another client is active");
}

#[test]
fn weights_divide_what_is_left_above_three_quarters() {
    let mut shed = shedder();
    let of = |tenant: &str, weight| ClientOverride { tenant: Some(tenant.into()), key: None, in_flight: None, weight };
    let overrides = vec![of("heavy", 12), of("light", 4)];
    let clients = ClientLimits { overrides, ..ClientLimits::default() };
    shed.set_policy(ShedPolicy { clients, ..ShedPolicy::default() });
    let (heavy, light) = (of_tenant("a", "heavy"), of_tenant("b", "light"));
    let mut both = (Vec::new(), Vec::new());
    for _ in 0..256 {
        both.0.extend(ticket(shed.admit(Class::Read, &heavy, at(0), 0.0)));
        both.1.extend(ticket(shed.admit(Class::Read, &light, at(0), 0.0)));
    }
    assert_eq!(
        (both.0.len(), both.1.len()),
        (144, 96),
        "192 for all; then only the heavy one is below its share of 192"
    );
}

#[test]
fn a_limit_of_its_own_is_the_clients_and_not_overload() {
    let mut shed = shedder();
    let acme = ClientOverride { tenant: Some("acme".into()), key: None, in_flight: Some(8), weight: 1 };
    let blocked = ClientOverride { tenant: None, key: Some("blocked".into()), in_flight: Some(0), weight: 1 };
    let clients = ClientLimits { overrides: vec![acme, blocked], ..ClientLimits::default() };
    shed.set_policy(ShedPolicy { clients, ..ShedPolicy::default() });
    let (acme, blocked) = (of_tenant("key of acme", "acme"), of_tenant("blocked", "acme"));
    let mut left = Vec::new();
    for _ in 0..8 {
        let Decision::Admitted { left: some, .. } = shed.admit(Class::Ingest, &acme, at(0), 0.0) else { panic!() };
        left.extend(some);
    }
    assert_eq!(left, [1, 0].map(|left| Left { limit: 8, left }), "below a quarter");
    for (sender, limit) in [(&acme, 8), (&blocked, 0)] {
        let refused = refusal(shed.admit(Class::Read, sender, at(0), 0.0));
        assert_eq!((refused.reason, refused.is_own_limit, refused.limit), (Reason::Client, true, limit));
        assert!(
            ticket(shed.admit(Class::Control, sender, at(0), 0.0)).is_some(),
            "nobody is kept from changing limits"
        );
    }
    assert!(ticket(shed.admit(Class::Ingest, &sender("other"), at(0), 0.0)).is_some());
}

#[test]
fn a_dry_run_counts_what_would_be_refused_and_refuses_nothing() {
    let mut shed = Shedder::new(Mode::DryRun, false, at(0));
    let one = sender("one");
    let would: Vec<_> = (0..10)
        .map(|_| match shed.admit(Class::Heavy, &one, at(0), 0.0) {
            Decision::Admitted { would_refuse, .. } => would_refuse,
            refused => panic!("{refused:?}"),
        })
        .collect();
    assert_eq!(would.iter().flatten().count(), 10 - 7, "one place is kept for newcomers");
    assert_eq!(shed.figures(at(0), 20).clients[0].refused, 3);
    shed.set_policy(ShedPolicy { mode: Some(Mode::On), ..ShedPolicy::default() });
    assert_eq!(refusal(shed.admit(Class::Heavy, &one, at(0), 0.0)).reason, Reason::Class, "a set mode wins");
}

#[test]
fn who_is_refused_comes_again_later_the_more_are_refused() {
    let mut shed = shedder();
    let (one, other) = (sender("one"), sender("other"));
    let tickets = take_all(&mut shed, Class::Heavy, &one, at(0));
    let retry_after =
        |shed: &mut Shedder, jitter| refusal(shed.admit(Class::Heavy, &one, at(10), jitter)).retry_after_s;
    assert_eq!((retry_after(&mut shed, 0.0), retry_after(&mut shed, 0.999)), (1, 16), "3 refused, of 0.2 × 1 a second");
    for _ in 0..1_000 {
        assert!((1..=31).contains(&retry_after(&mut shed, 0.999)));
    }
    assert_eq!(retry_after(&mut shed, 0.999), 31);
    drop((tickets, other));
}

#[test]
fn limits_that_would_refuse_everything_are_faults() {
    let zero = ClassLimit { in_flight: Some(0) };
    let mut policy = ShedPolicy::default();
    policy.classes.heavy = zero;
    policy.clients.overrides.push(ClientOverride {
        tenant: Some("acme".into()),
        key: None,
        in_flight: Some(0),
        weight: 1,
    });
    assert_eq!(policy.faults(), [], "a class of luxury and a single client may be refused altogether");
    policy.classes = ClassLimits { control: zero, ingest: zero, read: zero, heavy: zero };
    policy.clients.default.in_flight = Some(0);
    policy.clients.overrides.push(policy.clients.overrides[0].clone());
    policy.clients.overrides.push(ClientOverride { tenant: None, key: None, in_flight: None, weight: 1 });
    let places: Vec<_> = policy.faults().into_iter().map(|(place, _)| place).collect();
    assert_eq!(
        places,
        [
            "/classes/control/in_flight",
            "/classes/ingest/in_flight",
            "/classes/read/in_flight",
            "/clients/default/in_flight",
            "/clients/overrides/1",
            "/clients/overrides/2",
        ]
    );
}

#[test]
fn a_process_that_hears_nothing_counts_itself_alone_after_three_seconds() {
    let mut shed = Shedder::new(Mode::On, true, at(0));
    let default = ClientLimit { in_flight: Some(10), weight: 1 };
    let clients = ClientLimits { default, ..ClientLimits::default() };
    shed.set_policy(ShedPolicy { clients, ..ShedPolicy::default() });
    let one = sender("one");
    let mut other = Shedder::new(Mode::On, true, at(0));
    other.set_policy(shed.policy().clone());
    assert_eq!(take_all(&mut other, Class::Ingest, &one, at(0)).len(), 10);
    let record = other.record(at(0));
    shed.look(&[&record], at(0));
    assert_eq!(take_all(&mut shed, Class::Ingest, &one, at(1)).len(), 1, "one place more for each process");
    assert_eq!(shed.figures(at(2_999), 0).processes, 2);
    let figures = shed.figures(at(3_100), 0);
    assert_eq!((figures.processes, figures.is_blind), (1, true));
    assert_eq!(take_all(&mut shed, Class::Ingest, &one, at(3_100)).len(), 9, "10, with the one from before");
    // Records of other versions, and damaged ones, are none.
    shed.look(&[vec![], vec![9; 9], record[..record.len() - 1].to_vec(), record], at(3_200));
    assert_eq!(shed.figures(at(3_200), 0).processes, 2);
}

proptest! {
    /// However requests come and end, the counts are exact, and no class is ever above its limit.
    #[test]
    fn in_flight_is_what_was_admitted_and_not_released(
        steps in prop::collection::vec((0..4usize, 0..5usize, any::<bool>(), 0..300u64), 1..400)
    ) {
        let mut shed = shedder();
        let senders: Vec<_> = (0..5).map(|n| sender(&n.to_string())).collect();
        let (mut held, mut now) = (Vec::new(), 0);
        for (class, who, ends, wait) in steps {
            now += wait;
            let class = [Class::Control, Class::Ingest, Class::Read, Class::Heavy][class];
            if ends && !held.is_empty() {
                let ticket: Ticket = held.swap_remove(who % held.len());
                shed.release(ticket, wait % 2 == 0, at(now));
            } else {
                held.extend(ticket(shed.admit(class, &senders[who], at(now), 0.5)));
            }
            for of in shed.figures(at(now), 0).classes {
                prop_assert_eq!(of.in_flight as usize, held.iter().filter(|it| it.class == of.class).count());
                prop_assert!(of.in_flight <= of.class.default_in_flight());
            }
        }
        held.into_iter().for_each(|ticket| shed.release(ticket, true, at(now)));
        prop_assert!(shed.figures(at(now), 9).classes.iter().all(|of| of.in_flight == 0));
        prop_assert!(shed.clients.values().all(|client| client.counted() == 0));
    }

    /// While all see each other, a client has at most its limit and one place more for each process.
    #[test]
    fn processes_together_keep_a_limit(
        limit in 1..200u32,
        demands in prop::collection::vec(prop::collection::vec((0..60usize, 0..60usize), 1..6), 1..12)
    ) {
        let count = demands.iter().map(Vec::len).max().unwrap_or(1);
        let default = ClientLimit { in_flight: Some(limit), weight: 1 };
        let policy = ShedPolicy { clients: ClientLimits { default, ..ClientLimits::default() }, ..ShedPolicy::default() };
        let mut processes: Vec<(Shedder, Vec<Ticket>)> = (0..count)
            .map(|_| {
                let mut shed = Shedder::new(Mode::On, true, at(0));
                shed.set_policy(policy.clone());
                (shed, Vec::new())
            })
            .collect();
        let one = sender("one");
        for (round, demands) in demands.into_iter().enumerate() {
            let now = at(100 * round as u64);
            let records: Vec<_> = processes.iter_mut().map(|(shed, _)| shed.record(now)).collect();
            for (index, (shed, _)) in processes.iter_mut().enumerate() {
                let others: Vec<_> = (0..count).filter(|other| *other != index).map(|other| &records[other]).collect();
                shed.look(&others, now);
            }
            for ((shed, held), (wanted, ended)) in processes.iter_mut().zip(demands) {
                held.extend((0..wanted).map_while(|_| ticket(shed.admit(Class::Ingest, &one, now, 0.0))));
                let ended = ended.min(held.len());
                held.drain(..ended).for_each(|ticket| shed.release(ticket, true, now));
            }
            let total: usize = processes.iter().map(|(_, held)| held.len()).sum();
            prop_assert!(total <= limit as usize + count, "{total} of {limit} in {count} processes");
        }
    }
}
