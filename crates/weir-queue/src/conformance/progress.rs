//! What the queue says of destinations to the watch over stalls.

use std::time::Duration;

use weir_core::{RateLimits, plan::NextRun, stall::Progress};

use super::{Subject, destination, per_second};
use crate::QueueProgress;

impl Subject {
    pub(super) async fn progress(&self) -> (Progress, Duration) {
        // Destinations in other shards, around the one that is asked for.
        let ids: Vec<_> = [7, 1, 200].map(destination).into();
        let QueueProgress { untaken_for, of } = self.queue.progress(&ids).await.expect("progress");
        assert_eq!((of.len(), of[0], of[2]), (3, Progress::default(), Progress::default()), "in the order of the ids");
        (of[1], untaken_for)
    }
}

pub async fn an_unknown_destination_has_made_no_progress(subject: Subject) {
    assert_eq!(subject.progress().await, (Progress::default(), Duration::ZERO));
}

pub async fn the_progress_says_what_is_queued_in_flight_and_when_the_next_slot_opens(subject: Subject) {
    let limits = per_second(10);
    let permits = subject.permits(limits.clone(), 3, NextRun::Now).await;
    let slot = subject.slot(&permits[0]).await;
    let (progress, _) = subject.progress().await;
    assert_eq!((progress.queued, progress.in_flight, progress.lowered_maximum), (2, 1, None));
    let near = |a: weir_core::Timestamp, b: weir_core::Timestamp| a.since(b).max(b.since(a)) <= subject.precision;
    assert!(near(progress.last_start.expect("a start"), slot.start), "{progress:?}, {slot:?}");
    // In the past as well: from it on the next start is late.
    let next = slot.start + limits.as_slice()[0].spacing();
    subject.until(next + Duration::from_millis(50)).await;
    let later = subject.progress().await.0;
    assert!(near(later.next_start.expect("a start"), next), "{later:?}, {next:?}");
    subject.settle(&permits[0]).await;
    subject.claim().await;
    assert_eq!(subject.progress().await.0.in_flight, 0);
}

pub async fn a_hold_and_a_permit_that_nobody_takes_show_in_the_progress(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.publish(lease, RateLimits::UNLIMITED, 1, NextRun::Stop).await;
    let published = subject.clock.now();
    subject.until(published + Duration::from_millis(30)).await;
    let (progress, untaken_for) = subject.progress().await;
    assert_eq!((progress.queued, progress.in_flight), (1, 0));
    assert!(untaken_for >= Duration::from_millis(30), "{untaken_for:?}");
    let until = subject.clock.now() + Duration::from_secs(5);
    subject.hold(until, subject.clock.now()).await;
    let (held, _) = subject.progress().await;
    assert!(held.next_start.expect("a start") + subject.precision >= until, "{held:?}");
    // A hold begins with one send at a time.
    assert_eq!(held.lowered_maximum, Some(1));
    subject.take(1).await;
    assert_eq!(subject.progress().await.1, Duration::ZERO);
}
