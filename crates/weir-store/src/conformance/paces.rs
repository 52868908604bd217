//! Adaptive paces: copies, what is shown of them, and their changes.

use weir_core::adaptive::{self, AdaptiveRate, Change, Reason};

use super::*;
use crate::{PaceCopy, PaceRecord};

fn copy(at_s: u64, per_s: f64) -> PaceCopy {
    let pace = AdaptiveRate::new(adaptive::Settings::default(), 64, Some(per_s), NOW);
    PaceCopy { json: serde_json::to_string(&pace).expect("json"), saved_at: NOW + seconds(at_s) }
}

fn change(at_s: u64, to_per_s: f64) -> Change {
    let detail = "12 of 340 answers were 429".to_owned();
    Change { at: NOW + seconds(at_s), from_per_s: 100.0, to_per_s, reason: Reason::Throttled, detail }
}

fn copied(number: u128, copy: PaceCopy) -> PaceRecord {
    PaceRecord { destination_id: destination_id(number), copy: Some(copy), change: None }
}

fn changed(number: u128, change: Change) -> PaceRecord {
    PaceRecord { destination_id: destination_id(number), copy: None, change: Some(change) }
}

impl Subject {
    async fn record(&self, records: &[PaceRecord]) {
        self.store.record_paces(records).await.expect("record");
    }

    async fn copies(&self) -> Vec<Option<PaceCopy>> {
        self.store.paces(&[1, 9, 2].map(destination_id)).await.expect("copies")
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
    assert_eq!(subject.copies().await, [None, None, None]);
    let (slow, fast) = (copy(5, 20.0), copy(6, 80.0));
    // Nothing is kept of a destination that there is not.
    subject.record(&[copied(2, slow.clone()), copied(1, fast.clone()), copied(9, slow.clone())]).await;
    // A copy that comes late changes nothing.
    subject.record(&[copied(1, slow.clone()), copied(2, fast.clone())]).await;
    subject.reopen().await;
    assert_eq!(subject.copies().await, [Some(fast.clone()), None, Some(fast.clone())]);
    subject.delete(1).await;
    assert_eq!(subject.copies().await, [None, None, Some(fast)]);
}

pub async fn changes_of_a_pace_are_listed_newest_first_page_by_page(subject: Subject) {
    subject.create_many(2).await;
    let changes: Vec<PaceRecord> = (1..=5).map(|at| changed(1, change(at, at as f64))).collect();
    subject.record(&changes).await;
    // The reply was lost, and it is recorded again, with one of a destination that there is not.
    let of_others = [changed(2, change(1, 9.0)), changed(9, change(1, 9.0))];
    subject.record(&[&changes[3..], &of_others[..]].concat()).await;
    let page = |before| PageRequest { before, limit: 2 };
    let (first, next) = subject.changes(5, page(None)).await;
    assert_eq!(first, [4.0, 3.0]);
    let (second, next) = subject.changes(5, page(next)).await;
    assert_eq!((second, next), (vec![2.0, 1.0], None));
    let recent = subject.store.recent_pace_changes(NOW + seconds(4), 10).await.expect("recent");
    assert_eq!(recent, [4, 5].map(|at| (destination_id(1), change(at, at as f64))));
    let last = subject.store.recent_pace_changes(NOW, 1).await.expect("recent");
    assert_eq!(last, recent[1..], "the last of too many");
}

pub async fn old_changes_of_paces_are_deleted(subject: Subject) {
    subject.create_many(1).await;
    subject.record(&[1, 2, 3].map(|at| changed(1, change(at, at as f64)))).await;
    let before = NOW + seconds(3);
    assert_eq!(subject.store.prune_pace_changes(before).await.expect("prune"), 2);
    assert_eq!(subject.store.prune_pace_changes(before).await.expect("prune"), 0);
    assert_eq!(subject.changes(9, PageRequest { before: None, limit: 9 }).await, (vec![3.0], None));
}
