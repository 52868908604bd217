use weir_core::{DeliveryState, address::AddressPolicy};
use weir_store::StateCounts;

use super::{readings::TURNS, *};
use crate::{
    figures::{Figures, Measured},
    resources::destinations::settings,
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

/// A destination with this name and this backlog.
fn row(name: &str, pending: u64) -> Row {
    let body = serde_json::json!({"url": "https://example.com/", "name": name});
    let destination = Destination::new(
        DestinationId::new(NOW, u128::from(pending)),
        settings::read(body, &AddressPolicy::default()).unwrap(),
        NOW,
    );
    let mut counts = StateCounts::default();
    counts.add(DeliveryState::Pending, pending);
    let oldest_at = Some(NOW - Duration::from_secs(100 - pending));
    let figures = Figures::of(&destination, &Measured { counts, oldest_at, ..Measured::default() }, NOW);
    Row { destination: Arc::new(destination), figures }
}

fn sample(rows: Vec<Row>) -> Sample {
    Sample {
        as_of: NOW,
        began: Instant::now(),
        took: Duration::ZERO,
        cost: Duration::ZERO,
        number: 0,
        by_id: rows.iter().enumerate().map(|(at, row)| (row.destination.id, at)).collect(),
        rows,
        sorted: Default::default(),
        replays: OpenReplays::new(),
        refusals: RefusalWatch::default(),
        costs: CostWatch::default(),
        keys: KeyWatch::default(),
        changes: VecDeque::new(),
        last_change: 0,
        snapshots: parking_lot::Mutex::default(),
    }
}

#[test]
fn all_viewers_of_a_sample_share_the_sorted_rows() {
    let sample = sample(vec![row("b", 2), row("C", 3), row("a", 1)]);
    let names = |order, keeps: fn(&Row) -> bool| -> Vec<String> {
        sample.rows(order, keeps).iter().map(|row| row.destination.settings.name.clone()).collect()
    };
    for (order, expected, without_the_middle) in [
        (Order::Trouble, ["b", "C", "a"], ["C", "a"]),
        (Order::Name, ["a", "b", "C"], ["a", "C"]),
        (Order::Backlog, ["C", "b", "a"], ["C", "a"]),
        (Order::OldestAge, ["a", "b", "C"], ["a", "C"]),
    ] {
        assert!(sample.sorted.iter().filter(|sorted| sorted.get().is_some()).count() < Order::SORTED, "not before");
        assert_eq!(names(order, |_| true), expected, "{order:?}");
        let sorted = sample.positions(order).map(<[usize]>::as_ptr);
        assert_eq!(names(order, |row| row.figures.counts.waiting() != 2), without_the_middle, "{order:?}");
        // The same positions, so the second viewer has sorted nothing.
        assert_eq!(sample.positions(order).map(<[usize]>::as_ptr), sorted, "{order:?}");
    }
}

#[test]
fn the_oldest_delivery_is_known_until_a_count_changes_or_its_turn_comes() {
    let row = row("a", 40);
    let (id, counts) = (row.destination.id, row.figures.counts);
    let sample = sample(vec![row]);
    let turn = u64::from(id.as_bytes()[15]) % TURNS;
    let known = |counts: &StateCounts, number: u64| sample.known_oldest(id, counts, number);
    assert_eq!(known(&counts, turn + 1), Some(NOW - Duration::from_secs(60)));
    assert_eq!(known(&counts, turn + TURNS), None, "its turn");
    // One was delivered, and another one arrived: as many wait as before.
    let mut other = counts;
    other.add(DeliveryState::Delivered, 1);
    assert_eq!(known(&other, turn + 1), None);
    assert_eq!(sample.known_oldest(DestinationId::new(NOW, 7), &counts, turn + 1), None, "a new destination");
}

/// The version of a row at an instant, `later` after the sample of the others.
fn version(row: &Row, later: u64) -> String {
    crate::overview::version::of(&[row], NOW + Duration::from_secs(later), None)
}

#[test]
fn a_version_changes_with_a_figure_and_not_with_time() {
    let settled = row("a", 3);
    // The same destination, measured later: its oldest delivery is older by as much.
    let measure = |row: &Row, later: u64, change: fn(&mut Measured)| {
        let now = NOW + Duration::from_secs(later);
        let oldest_at = Some(NOW - Duration::from_secs(97));
        let mut measured = Measured { counts: row.figures.counts, oldest_at, ..Measured::default() };
        change(&mut measured);
        Row { figures: Figures::of(&row.destination, &measured, now), destination: Arc::clone(&row.destination) }
    };
    let first = version(&measure(&settled, 0, |_| {}), 0);
    assert_eq!(version(&measure(&settled, 90, |_| {}), 90), first, "only the age has grown");
    let changes: [fn(&mut Measured); 4] = [
        |measured| measured.counts.add(DeliveryState::Delivered, 1),
        |measured| measured.achieved_per_s = 0.1,
        |measured| measured.arrivals_per_s = 0.1,
        |measured| measured.oldest_at = Some(NOW),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        assert_ne!(version(&measure(&settled, 90, change), 90), first, "change {at}");
    }
    // A hold that counts down is no change; its beginning and its end are.
    let mut destination = (*settled.destination).clone();
    destination.held_until = Some(NOW + Duration::from_secs(60));
    let held = Row { destination: Arc::new(destination), figures: settled.figures };
    let during = [0, 30].map(|later| version(&measure(&held, later, |_| {}), later));
    assert_eq!(during[0], during[1]);
    assert_ne!(during[0], first);
    assert_ne!(version(&measure(&held, 61, |_| {}), 61), during[0]);
}
