//! Reservations: slots of limit groups that callers outside Weir have taken.

use weir_core::{LimitGroupId, ReservationId, reservation::Reservation};

use super::{limit_groups::group, *};
use crate::{Cancelled, SentCounts};

/// A reservation of group 1 whose slot begins so many milliseconds after [`NOW`] and is 250 ms wide.
fn reservation(number: u128, starts_ms: u64) -> Reservation {
    let starts_at = NOW + Duration::from_millis(starts_ms);
    Reservation {
        id: ReservationId::new(starts_at, number),
        group: group(1).id,
        cost: 3,
        created_at: NOW,
        starts_at,
        ends_at: starts_at + Duration::from_millis(250),
        cancelled_at: None,
    }
}

impl Subject {
    async fn reserve(&self, new: &[Reservation]) {
        self.store.add_reservations(new).await.expect("add");
    }

    async fn cancel_reservation(&self, group: LimitGroupId, id: ReservationId, at_ms: u64) -> Cancelled {
        let now = NOW + Duration::from_millis(at_ms);
        self.store.cancel_reservation(group, id, now).await.expect("cancel")
    }

    async fn reserved(&self, from_ms: u64, to_ms: u64, page: PageRequest) -> (Vec<Reservation>, Option<[u8; 16]>) {
        let [from, to] = [from_ms, to_ms].map(|after| NOW + Duration::from_millis(after));
        let found = self.store.list_reservations(group(1).id, from, to, page).await.expect("list");
        (found.rows, found.next)
    }
}

pub async fn reservations_are_read_back_newest_first_page_by_page(mut subject: Subject) {
    // Three end at the same time: a group without even spacing.
    let all = [(1, 1_000), (2, 2_000), (3, 2_000), (4, 2_000), (5, 3_000)].map(|(number, at)| reservation(number, at));
    subject.reserve(&all).await;
    subject.reserve(&[]).await;
    let of_another = Reservation { id: ReservationId::new(NOW, 9), group: group(2).id, ..all[0].clone() };
    subject.reserve(&[of_another]).await;
    subject.reopen().await;
    assert_eq!(subject.store.reservation(all[1].id).await.expect("read"), Some(all[1].clone()));
    assert_eq!(subject.store.reservation(ReservationId::new(NOW, 8)).await.expect("read"), None);
    let page = |before| PageRequest { before, limit: 2 };
    let (mut pages, mut before) = (Vec::new(), None);
    loop {
        let (rows, next) = subject.reserved(0, 60_000, page(before)).await;
        pages.push(rows.iter().map(|one| one.id).collect::<Vec<_>>());
        if next.is_none() {
            break;
        }
        before = next;
    }
    assert_eq!(pages, [vec![all[4].id, all[3].id], vec![all[2].id, all[1].id], vec![all[0].id]]);
    let (mut forwards, mut last) = (Vec::new(), (Timestamp::MIN, ReservationId::new(NOW, 0)));
    loop {
        let page = subject.store.reserved_after(group(1).id, last, all[4].ends_at, 2).await.expect("read");
        let Some(end) = page.last() else { break };
        last = (end.ends_at, end.id);
        forwards.extend(page.into_iter().map(|one| one.id));
    }
    assert_eq!(forwards, [all[0].id, all[1].id, all[2].id, all[3].id]);
    // By their ends, the first included, the last not.
    let (rows, next) = subject.reserved(2_250, 3_250, PageRequest { before: None, limit: 9 }).await;
    assert_eq!((rows.len(), next), (3, None));
    // Of a list whose last row is deleted meanwhile, nothing is left.
    let gone = Some(*ReservationId::new(NOW, 8).as_bytes());
    assert_eq!(subject.reserved(0, 60_000, page(gone)).await, (vec![], None));
}

pub async fn a_reservation_is_given_back_once_and_only_before_it_starts(mut subject: Subject) {
    let (early, late) = (reservation(1, 1_000), reservation(2, 5_000));
    subject.reserve(&[early.clone(), late.clone()]).await;
    assert_eq!(subject.cancel_reservation(group(2).id, late.id, 0).await, Cancelled::Unknown, "of another group");
    assert_eq!(subject.cancel_reservation(group(1).id, ReservationId::new(NOW, 8), 0).await, Cancelled::Unknown);
    assert_eq!(subject.cancel_reservation(group(1).id, early.id, 1_000).await, Cancelled::Started(early.clone()));
    let given_back = Reservation { cancelled_at: Some(NOW + Duration::from_millis(999)), ..late.clone() };
    assert_eq!(subject.cancel_reservation(group(1).id, late.id, 999).await, Cancelled::Now(given_back.clone()));
    assert_eq!(subject.cancel_reservation(group(1).id, late.id, 9_000).await, Cancelled::Before(given_back.clone()));
    subject.reopen().await;
    // Those given back are no calls.
    let after = async |end: Timestamp, id| {
        let found = subject.store.reserved_after(group(1).id, (end, id), Timestamp::MAX, 9).await.expect("read");
        found.iter().map(|one| one.id).collect::<Vec<_>>()
    };
    assert_eq!(after(Timestamp::MIN, late.id).await, [early.id]);
    assert_eq!(after(early.ends_at, early.id).await, []);
    let (rows, _) = subject.reserved(0, 60_000, PageRequest { before: None, limit: 9 }).await;
    assert_eq!(rows, [given_back, early]);
}

pub async fn reservations_are_counted_by_the_buckets_of_a_window(subject: Subject) {
    let limit = RateLimit::new(9, Period::MINUTE).expect("a limit").as_window();
    let all = [(1, 750), (2, 9_750), (3, 9_849), (4, 9_850), (5, 20_000)].map(|(number, at)| reservation(number, at));
    subject.reserve(&all).await;
    assert!(matches!(subject.cancel_reservation(group(1).id, all[4].id, 0).await, Cancelled::Now(_)));
    let counts = async |since_ms: u64, limit| {
        let since = NOW + Duration::from_millis(since_ms);
        let mut counts = subject.store.reserved_counts(group(1).id, since, limit).await.expect("read");
        counts.buckets.sort_unstable();
        counts
    };
    let number = |after: u64| (NOW + Duration::from_millis(after)).as_nanos() / 100_000_000 + 1;
    let of = |buckets: Vec<(i64, u32)>| SentCounts { buckets, ..SentCounts::default() };
    assert_eq!(counts(1_000, limit).await, of(vec![(number(10_000), 2), (number(10_100), 1)]));
    assert_eq!(
        counts(1_000, limit.in_costs().expect("a limit in costs")).await,
        of(vec![(number(10_000), 6), (number(10_100), 3)])
    );
    // The last has been given back, and the queue may not know.
    let has = async |since_ms: u64| {
        let since = NOW + Duration::from_millis(since_ms);
        subject.store.has_reserved(group(1).id, since).await.expect("read")
    };
    assert_eq!((has(20_250).await, has(20_251).await), (true, false));
    assert!(!subject.store.has_reserved(group(2).id, NOW).await.expect("read"));
}

pub async fn a_restored_store_may_have_lost_reservations(subject: Subject) {
    subject.make_groups([1]).await;
    let mark = NOW + seconds(100);
    subject.store.mark_restored(mark).await.expect("mark");
    let limit = RateLimit::new(9, Period::MINUTE).expect("a limit").as_window();
    let look = async |number: u128, since: Timestamp| {
        let counts = subject.store.reserved_counts(group(number).id, since, limit).await.expect("read");
        (subject.store.has_reserved(group(number).id, since).await.expect("read"), counts.restored)
    };
    assert_eq!(look(1, mark - seconds(1)).await, (true, Some(mark)));
    assert_eq!(look(1, mark + seconds(1)).await, (false, None));
    assert_eq!(look(2, mark - seconds(1)).await, (false, None), "a group that is not there");
}

pub async fn old_reservations_are_deleted_in_steps(subject: Subject) {
    let all: Vec<_> = (0..1_200).map(|number| reservation(number, number as u64)).collect();
    subject.reserve(&all).await;
    let before = NOW + Duration::from_millis(1_100);
    let mut steps = Vec::new();
    while steps.last() != Some(&0) {
        steps.push(subject.store.prune_reservations(before).await.expect("prune"));
    }
    assert_eq!(steps, [500, 500, 100, 0]);
    let (rows, _) = subject.reserved(0, 60_000, PageRequest { before: None, limit: 200 }).await;
    assert_eq!((rows.len(), rows[99].id), (100, all[1_100].id));
}
