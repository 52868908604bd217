use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_000);
const CAPACITY: usize = 8_192;

fn id(number: u32) -> DestinationId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    DestinationId::from_bytes(bytes)
}

fn take(places: &Arc<Places>, of: u32) -> Result<Place, NoPlace> {
    places.take(id(of), "acme", NOW)
}

fn take_all(places: &Arc<Places>, of: u32) -> Vec<Place> {
    std::iter::from_fn(|| take(places, of).ok()).collect()
}

/// Makes the destination quick.
fn answer_quickly(places: &Arc<Places>, of: u32) {
    take(places, of).expect("a place").ended(NOW, NOW);
}

/// As many attempts as find places, at each of these destinations of a tenant in turn, `each` at one time.
fn hang(places: &Arc<Places>, tenant: &str, of: std::ops::Range<u32>, each: usize, now: Timestamp) -> Vec<Place> {
    let mut held = Vec::new();
    for _ in 0..each {
        held.extend(of.clone().filter_map(|of| places.take(id(of), tenant, now).ok()));
    }
    held
}

/// Ends attempts that have hung for half a minute.
fn time_out(held: Vec<Place>, began: Timestamp) {
    held.into_iter().for_each(|place| drop(place.ended(began, began + Duration::from_secs(30))));
}

#[test]
fn a_destination_that_hangs_takes_at_most_half_of_the_places() {
    let places = Places::new(800);
    answer_quickly(&places, 1);
    assert_eq!(take_all(&places, 1).len(), 400);
    assert_eq!(take_all(&places, 2).len(), 350, "an unknown destination leaves the reserved places free");
}

#[test]
fn hundreds_of_destinations_that_hang_leave_places_for_a_quick_one() {
    let places = Places::new(800);
    answer_quickly(&places, 10_000);
    let hanging: Vec<_> = (0..500).flat_map(|of| take_all(&places, of)).collect();
    assert!(hanging.len() <= 750, "{} of 800", hanging.len());
    assert!(take_all(&places, 10_000).len() >= 25);
    assert_eq!(take(&places, 9_999).err(), Some(NoPlace::Crowded));
}

#[test]
fn thousands_of_destinations_that_hang_leave_a_first_place_to_a_new_one_of_their_tenant() {
    let places = Places::new(CAPACITY);
    // In a few rounds each of them gets its first attempt.
    for _ in 0..5 {
        time_out(hang(&places, "acme", 0..8_000, 1, NOW), NOW);
    }
    let later = NOW + Duration::from_secs(31);
    let hanging = hang(&places, "acme", 0..8_000, 10, later);
    assert!(hanging.len() > CAPACITY / 2, "with one tenant, its destinations use the places: {}", hanging.len());
    for of in 10_000..10_500 {
        places.take(id(of), "acme", later).expect("a place for the first attempt").ended(later, later);
    }
}

#[test]
fn thousands_of_destinations_of_one_tenant_that_hang_leave_places_to_the_others() {
    let places = Places::new(CAPACITY);
    let hanging = hang(&places, "acme", 0..8_000, 64, NOW);
    // A new destination of another tenant starts at once, with several attempts, whoever came first.
    let first: Vec<_> = (0..64).map(|_| places.take(id(10_000), "globex", NOW).expect("a place")).collect();
    time_out(hanging, NOW);
    // From now on the tenants are both active: what hangs takes a bounded share.
    let later = NOW + Duration::from_secs(30);
    let hanging = hang(&places, "acme", 0..8_000, 64, later);
    assert!(hanging.len() <= CAPACITY * 4 / 5, "{} of {CAPACITY}", hanging.len());
    assert!(hanging.len() >= CAPACITY / 2, "{} of {CAPACITY}", hanging.len());
    drop(first);
    let others: Vec<_> = (10_001..10_101).flat_map(|of| hang(&places, "globex", of..of + 1, 8, later)).collect();
    assert_eq!(others.len(), 800, "every attempt of another tenant finds a place");
}

#[test]
fn tenants_that_all_hang_get_equal_shares() {
    let places = Places::new(CAPACITY);
    let names: Vec<String> = (0..100).map(|tenant| format!("tenant-{tenant}")).collect();
    // The first one comes alone, with far more destinations than the others.
    let mut held: Vec<Vec<(Place, Timestamp)>> = names.iter().map(|_| Vec::new()).collect();
    held[0] = hang(&places, &names[0], 0..8_000, 8, NOW).into_iter().map(|place| (place, NOW)).collect();
    // Then all of them ask in turn for one place after the other, while their attempts time out.
    for round in 1..40u32 {
        let now = NOW + Duration::from_secs(3) * round;
        for held in &mut held {
            let ended = held.extract_if(.., |(_, began)| now.since(*began) >= Duration::from_secs(30));
            ended.for_each(|(place, began)| drop(place.ended(began, now)));
        }
        for turn in 0..200 {
            for (tenant, (name, held)) in (0..).zip(names.iter().zip(&mut held)) {
                let of = tenant * 10_000 + turn % if tenant == 0 { 8_000 } else { 10 };
                held.extend(places.take(id(of), name, now).ok().map(|place| (place, now)));
            }
        }
    }
    let fewest = held.iter().map(Vec::len).min().unwrap_or_default();
    let most = held.iter().map(Vec::len).max().unwrap_or_default();
    assert!(fewest >= 32 && most <= 2 * fewest, "between {fewest} and {most} of {CAPACITY} places");
    assert!(places.take(id(9_000_000), "new", NOW + Duration::from_secs(120)).is_ok());
}

#[test]
fn destinations_that_were_quick_and_begin_to_hang_leave_places_to_other_tenants() {
    let places = Places::new(CAPACITY);
    (0..8_000).for_each(|of| answer_quickly(&places, of));
    places.take(id(10_000), "globex", NOW).expect("a place").ended(NOW, NOW);
    let hanging = hang(&places, "acme", 0..8_000, 64, NOW);
    assert!(hanging.len() <= CAPACITY * 8 / 9 + 1, "{} of {CAPACITY}", hanging.len());
    let others = hang(&places, "globex", 10_000..10_001, 64, NOW);
    assert_eq!(others.len(), 64);
}

#[test]
fn one_slow_attempt_does_not_end_the_preference_and_two_do() {
    let places = Places::new(8);
    answer_quickly(&places, 1);
    let others: Vec<_> = (10..17).filter_map(|of| take(&places, of).ok()).collect();
    assert_eq!(others.len(), 7);
    let slow =
        |began: Timestamp| places.take(id(1), "acme", began).map(|place| place.ended(began, began + QUICK)).err();
    assert_eq!(slow(NOW + QUICK), None);
    assert_eq!(slow(NOW + QUICK * 2), None, "one may be slow");
    assert_eq!(slow(NOW + QUICK * 3), Some(NoPlace::Crowded));
}

#[test]
fn a_slow_attempt_beside_quick_ones_does_not_count() {
    let places = Places::new(8);
    for number in 0..10 {
        let slow = take(&places, 1).expect("a place");
        let quick = take(&places, 1).expect("a place");
        let ended = NOW + Duration::from_secs(number);
        quick.ended(ended, ended);
        slow.ended(NOW, NOW + Duration::from_secs(30));
    }
    assert!(places.state.lock().destinations[&id(1)].is_quick());
}

#[test]
fn a_destination_with_an_event_a_day_stays_quick() {
    let places = Places::new(CAPACITY);
    let mut now = NOW;
    answer_quickly(&places, 10_000);
    for day in 0..10 {
        let hanging = hang(&places, "acme", 0..8_000, 8, now);
        let place = places.take(id(10_000), "acme", now);
        place.unwrap_or_else(|_| panic!("no place on day {day}")).ended(now, now);
        time_out(hanging, now);
        now = now + Duration::from_secs(86_400);
    }
}

#[test]
fn the_destinations_used_last_are_remembered() {
    let places = Places::new(CAPACITY);
    for of in 0..200_000 {
        let now = NOW + Duration::from_millis(of.into());
        places.take(id(of), "acme", now).expect("a place").ended(now, now);
        if of % 10_000 == 0 {
            places.take(id(0), "acme", now).expect("a place").ended(now, now);
        }
    }
    let state = places.state.lock();
    assert!(state.destinations.len() <= MOST_KNOWN + 1, "{} are known", state.destinations.len());
    assert!(state.destinations.contains_key(&id(0)) && state.destinations.contains_key(&id(199_999)));
}

#[test]
fn inactive_tenants_are_forgotten() {
    let places = Places::new(8);
    (0..100).for_each(|tenant| drop(places.take(id(tenant), &tenant.to_string(), NOW)));
    drop(places.take(id(1), "acme", NOW + ACTIVE));
    assert_eq!(places.state.lock().tenants.len(), 1);
}

#[test]
fn a_quick_destination_waits_for_its_own_places() {
    let places = Places::new(8);
    answer_quickly(&places, 1);
    let held = take_all(&places, 1);
    assert_eq!((held.len(), take(&places, 1).err()), (4, Some(NoPlace::Wait)));
    let later = places.take(id(1), "acme", NOW + QUICK).err();
    assert_eq!(later, Some(NoPlace::Crowded), "no quick attempt has ended for a second");
}

#[tokio::test]
async fn a_waiter_is_notified_when_a_place_is_free() {
    let places = Places::new(1);
    answer_quickly(&places, 1);
    let place = take(&places, 1).expect("a place");
    assert_eq!(take(&places, 1).err(), Some(NoPlace::Wait));
    tokio::join!(places.next_freed(), async { drop(place) });
    places.wait_for_all().await;
}

#[test]
fn no_attempt_begins_while_as_many_are_unrecorded_as_there_are_places() {
    let places = Places::new(8);
    answer_quickly(&places, 1);
    let mut unrecorded: Vec<_> = (0..8).map(|_| take(&places, 1).expect("a place").ended(NOW, NOW)).collect();
    assert_eq!((places.taken(), places.unrecorded(), places.free()), (0, 8, 0));
    for of in [1, 2] {
        assert_eq!(places.take(id(of), "acme", NOW + QUICK).err(), Some(NoPlace::Wait), "it is the store that is slow");
    }
    unrecorded.pop();
    assert_eq!(places.free(), 1);
    take(&places, 1).expect("a place");
}

#[test]
fn unrecorded_attempts_do_not_count_against_the_share_of_a_destination() {
    let places = Places::new(800);
    answer_quickly(&places, 1);
    let _unrecorded: Vec<_> = (0..790).map(|_| places.unused()).collect();
    assert_eq!(take_all(&places, 1).len(), 400);
}
