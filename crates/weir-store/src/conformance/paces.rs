//! Adaptive paces: copies, what is shown of them, and their changes.

use weir_core::adaptive::{self, AdaptiveRate, Change, Reason};

use super::*;
use crate::{PaceSave, SavedPace};

/// A pace that has just begun at `per_s`.
fn pace(per_s: f64) -> AdaptiveRate {
    AdaptiveRate::new(adaptive::Settings::default(), 64, Some(per_s), NOW)
}

fn change(at_s: u64, to_per_s: f64) -> Change {
    let detail = "12 of 340 answers were 429".to_owned();
    Change { at: NOW + seconds(at_s), from_per_s: 100.0, to_per_s, reason: Reason::Throttled, detail }
}

fn save(number: u128, at_s: u64, state: &AdaptiveRate, changes: &[Change]) -> PaceSave {
    let (destination_id, saved_at) = (destination_id(number), NOW + seconds(at_s));
    PaceSave { destination_id, saved_at, state: state.clone(), changes: changes.to_vec() }
}

impl Subject {
    async fn save(&self, saves: Vec<PaceSave>) {
        self.store.save_paces(saves).await.expect("save");
    }

    async fn changes(&self, to_s: u64, page: PageRequest) -> (Vec<f64>, Option<[u8; 16]>) {
        let found = self.store.pace_changes(destination_id(1), NOW, NOW + seconds(to_s), page).await.expect("changes");
        (found.rows.iter().map(|change| change.to_per_s).collect(), found.next)
    }
}

pub async fn the_bounds_of_a_pace_are_read_back_and_edited(mut subject: Subject) {
    let mut made = destination(1);
    made.settings.adaptive = Some(adaptive::Settings { min_per_s: 0.5, max_per_s: Some(40.0), latency: false });
    let created = subject.create(made).await;
    subject.reopen().await;
    let read = subject.store.destination(created.id).await.expect("read").expect("a destination");
    assert_eq!(read.settings, created.settings);
    subject.patch(&read, NOW + seconds(1), |settings| settings.adaptive = None).await.expect("applied");
    subject.reopen().await;
    let read = subject.store.destination(created.id).await.expect("read").expect("a destination");
    assert_eq!(read.settings.adaptive, None);
}

pub async fn the_latest_copy_of_a_pace_is_kept_until_its_destination_is_deleted(mut subject: Subject) {
    subject.create_many(2).await;
    assert_eq!(subject.store.saved_pace(destination_id(1)).await.expect("read"), None);
    let (slow, fast) = (pace(20.0), pace(80.0));
    // Nothing is kept of a destination that there is not.
    subject.save(vec![save(2, 5, &slow, &[]), save(1, 5, &fast, &[]), save(9, 5, &slow, &[])]).await;
    // A copy that comes late changes nothing.
    subject.save(vec![save(1, 4, &slow, &[]), save(2, 6, &fast, &[])]).await;
    subject.reopen().await;
    let saved = subject.store.saved_pace(destination_id(1)).await.expect("read");
    assert_eq!(saved, Some(SavedPace { saved_at: NOW + seconds(5), state: fast.clone() }));
    let shown = subject.store.paces().await.expect("read");
    assert_eq!(shown.len(), 2);
    assert_eq!(shown[&destination_id(2)], fast.status(NOW));
    subject.delete(1).await;
    assert_eq!(subject.store.saved_pace(destination_id(1)).await.expect("read"), None);
}

pub async fn changes_of_a_pace_are_listed_newest_first_page_by_page(subject: Subject) {
    subject.create_many(2).await;
    let changes: Vec<Change> = (1..=5).map(|at| change(at, at as f64)).collect();
    subject.save(vec![save(1, 5, &pace(10.0), &changes), save(2, 5, &pace(10.0), &changes[..1])]).await;
    // The reply was lost, and it is saved again.
    subject.save(vec![save(1, 5, &pace(10.0), &changes[3..])]).await;
    let page = |before| PageRequest { before, limit: 2 };
    let (first, next) = subject.changes(5, page(None)).await;
    assert_eq!(first, [4.0, 3.0]);
    let (second, next) = subject.changes(5, page(next)).await;
    assert_eq!((second, next), (vec![2.0, 1.0], None));
    let recent = subject.store.recent_pace_changes(NOW + seconds(4), 10).await.expect("recent");
    assert_eq!(recent, [4, 5].map(|at| (destination_id(1), change(at, at as f64))));
    let recent = subject.store.recent_pace_changes(NOW, 1).await.expect("recent");
    assert_eq!(recent.len(), 1, "the last of too many");
}

pub async fn old_changes_of_paces_are_deleted(subject: Subject) {
    subject.create_many(1).await;
    subject.save(vec![save(1, 5, &pace(10.0), &[change(1, 1.0), change(2, 2.0), change(3, 3.0)])]).await;
    let before = NOW + seconds(3);
    assert_eq!(subject.store.prune_pace_changes(before).await.expect("prune"), 2);
    assert_eq!(subject.store.prune_pace_changes(before).await.expect("prune"), 0);
    assert_eq!(subject.changes(9, PageRequest { before: None, limit: 9 }).await, (vec![3.0], None));
}
