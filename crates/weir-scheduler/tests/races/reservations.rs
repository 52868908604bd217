//! Callers outside Weir who wait for slots of a limit group.

use std::{sync::Arc, time::Duration};

use tokio::task::{JoinSet, yield_now};
use weir_core::{
    LimitGroup, LimitGroupId, Period, RateLimit, RateLimits, Slot, Timestamp, limiter::GRANT_AHEAD,
    reservation::LONGEST_WAIT,
};
use weir_queue::{LAST_OLD_START, ReserveAnswer, ReserveSlots as _, WantedSlot};
use weir_scheduler::{MOST_WAITING, ReservationDesk};
use weir_store::SendHistory;

use crate::{START, World, store::limits};

const WANTED: WantedSlot = WantedSlot { cost: 1, width: Duration::from_millis(10) };

fn group(rate_limits: RateLimits) -> Arc<LimitGroup> {
    Arc::new(LimitGroup {
        keys_of: None,
        id: LimitGroupId::from_bytes([9; 16]),
        tenant: None,
        name: "account".to_owned(),
        rate_limits,
        max_in_flight: None,
        temporary: Default::default(),
        created_at: START,
        updated_at: START,
    })
}

fn desk(world: &World) -> Arc<ReservationDesk> {
    Arc::new(ReservationDesk::new(world.store.clone(), world.queue.clone(), world.clock.clone()))
}

fn world() -> World {
    World::new(RateLimits::UNLIMITED, SendHistory::default())
}

fn slot(answer: ReserveAnswer) -> Slot {
    match answer {
        ReserveAnswer::Granted(slot) => slot,
        refused => panic!("a slot should be granted: {refused:?}"),
    }
}

fn later(answer: ReserveAnswer) -> Timestamp {
    match answer {
        ReserveAnswer::Later(at) => at,
        other => panic!("no slot is near: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn callers_get_their_slots_in_the_order_of_their_arrival() {
    let (world, group) = (world(), group(limits(10, Period::SECOND)));
    let (desk, mut callers) = (desk(&world), JoinSet::new());
    for number in 0..8 {
        let (desk, group) = (desk.clone(), group.clone());
        callers.spawn(async move { (number, desk.reserve(group, WANTED, LONGEST_WAIT).await.unwrap()) });
        yield_now().await;
    }
    let mut answers = callers.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    let starts: Vec<_> = answers.into_iter().map(|(_, answer)| slot(answer).start).collect();
    assert_eq!(starts[0], START);
    assert!(starts.windows(2).all(|pair| pair[1].since(pair[0]) >= Duration::from_millis(101)), "{starts:?}");
    assert!(starts[7] <= START + Duration::from_millis(101 * 7 + 20), "{starts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_does_not_wait_long_enough_is_told_when_a_slot_is_expected() {
    let (world, group) = (world(), group(limits(6, Period::MINUTE)));
    let desk = desk(&world);
    slot(desk.reserve(group.clone(), WANTED, Duration::ZERO).await.unwrap());
    let spacing = RateLimit::new(6, Period::MINUTE).unwrap().spacing();
    let wait = Duration::from_secs(3);
    for (wait, until) in [(Duration::ZERO, START), (wait, START + wait)] {
        let at = later(desk.reserve(group.clone(), WANTED, wait).await.unwrap());
        assert!(at >= START + spacing && at <= START + spacing + Duration::from_millis(1), "{at:?}");
        assert!(world.clock.now().since(until) < Duration::from_millis(10));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_away_leaves_its_place_to_the_next() {
    let (world, group) = (world(), group(limits(1, Period::SECOND)));
    let desk = desk(&world);
    slot(desk.reserve(group.clone(), WANTED, Duration::ZERO).await.unwrap());
    let (first, second) = (desk.clone(), desk.clone());
    let gone = group.clone();
    let first = tokio::spawn(async move { first.reserve(gone, WANTED, LONGEST_WAIT).await });
    yield_now().await;
    let second = tokio::spawn(async move { second.reserve(group, WANTED, LONGEST_WAIT).await });
    yield_now().await;
    first.abort();
    let start = slot(second.await.unwrap().unwrap()).start;
    assert!(start < START + Duration::from_millis(1_010) + GRANT_AHEAD, "{start:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_given_back_is_granted_again() {
    let (world, group) = (world(), group(limits(6, Period::MINUTE)));
    let desk = desk(&world);
    let first = slot(desk.reserve(group.clone(), WANTED, Duration::ZERO).await.unwrap());
    desk.give_back(group.id, WANTED.cost, first.start).await.unwrap();
    let second = slot(desk.reserve(group, WANTED, Duration::ZERO).await.unwrap());
    assert!(second.start > first.start && second.start < first.start + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_a_limit_is_refused_and_delays_nobody() {
    let limit = RateLimit::new(10, Period::SECOND).unwrap().in_costs().unwrap();
    let (world, group) = (world(), group(RateLimits::new(vec![limit]).unwrap()));
    let desk = desk(&world);
    let of_cost = |cost| desk.reserve(group.clone(), WantedSlot { cost, ..WANTED }, LONGEST_WAIT);
    let (above, other) = tokio::join!(of_cost(11), of_cost(10));
    assert_eq!(above.unwrap(), ReserveAnswer::AboveLimit);
    slot(other.unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_more_than_a_thousand_callers_wait_for_a_group() {
    let (world, group) = (world(), group(limits(1, Period::MINUTE)));
    let (desk, mut callers) = (desk(&world), JoinSet::new());
    slot(desk.reserve(group.clone(), WANTED, Duration::ZERO).await.unwrap());
    for _ in 0..MOST_WAITING {
        let (desk, group) = (desk.clone(), group.clone());
        callers.spawn(async move { desk.reserve(group, WANTED, LONGEST_WAIT).await });
        yield_now().await;
    }
    let refused = desk.reserve(group.clone(), WANTED, Duration::ZERO).await.unwrap();
    assert_eq!(refused, ReserveAnswer::TooMany);
    // Those who go away make room.
    callers.shutdown().await;
    later(desk.reserve(group, WANTED, Duration::ZERO).await.unwrap());
}

/// A queue that has lost its data does not know what it has granted, and no call is ever reported.
#[tokio::test(start_paused = true)]
async fn after_a_loss_a_group_continues_as_if_its_last_reservation_had_started_now() {
    let spacing = RateLimit::new(2, Period::MINUTE).unwrap().spacing();
    for shape in [false, true] {
        let world = world();
        let limit = RateLimit::new(2, Period::MINUTE).unwrap();
        let group = group(RateLimits::new(vec![if shape { limit.as_window() } else { limit }]).unwrap());
        let desk = desk(&world);
        let end = START - Duration::from_secs(30);
        world.store.reserved(end);
        let at = match desk.reserve(group.clone(), WANTED, Duration::ZERO).await.unwrap() {
            // A window of two has room for one beside the recorded one, and then it is full until that one is out.
            ReserveAnswer::Granted(slot) if shape => {
                assert_eq!(slot.start, START);
                later(desk.reserve(group, WANTED, Duration::ZERO).await.unwrap()) - (spacing + LAST_OLD_START)
            }
            answer => later(answer) - (spacing + LAST_OLD_START),
        };
        if shape {
            let free = end + Duration::from_secs(60) - (spacing + LAST_OLD_START);
            assert!(at >= free && at <= free + limit.bucket() * 2, "{at:?}");
        } else {
            assert!(at >= START && at <= START + Duration::from_millis(200), "{at:?}");
        }
    }
}
