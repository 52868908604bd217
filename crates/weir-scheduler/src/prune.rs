//! Retention: deletes old data in small steps, so that deliveries are not slowed down.

use std::{sync::Arc, time::Duration};

use metrics::{counter, gauge};
use tokio::time::Instant;
use weir_core::{
    Clock, Timestamp,
    retention::{ACTIVITY_KEPT, ANSWERS_KEPT, Cutoffs, Retention},
};
use weir_store::{
    ActivityLog, PACE_CHANGES_KEPT, Prune, PrunePosition, Pruned, RetentionStore, StoreError, reservations_before,
};

use crate::run_every::{Agent, run_every};

/// The time between two passes. Each pass also reads old data that must be kept. Retention is counted in days, so ten
/// minutes more do not matter.
const INTERVAL: Duration = Duration::from_secs(600);
/// The pause after a step that deleted something, so that most of the store's time is left for deliveries, also when a
/// step takes some tens of milliseconds.
const PAUSE: Duration = Duration::from_millis(50);
/// If a pass finds rows that have been too old for longer than this, the passes before did not delete fast enough. Then each
/// pause is half as long as the step before it, so that a third of the time is left for deliveries.
const BEHIND: Duration = Duration::from_secs(2 * 600);
/// The shortest of these pauses.
const BEHIND_PAUSE: Duration = Duration::from_millis(2);
/// The pause after a step that deleted nothing: it only read, so it leaves the writer free.
const SHORT_PAUSE: Duration = Duration::from_millis(5);

/// Deletes data that is older than the retention. Any number of processes may run this; the store lets one at a time
/// delete.
pub struct Pruner {
    store: Arc<dyn RetentionStore>,
    clock: Arc<dyn Clock>,
    retention: Retention,
}

impl Pruner {
    pub fn new(store: Arc<dyn RetentionStore>, clock: Arc<dyn Clock>, retention: Retention) -> Self {
        Self { store, clock, retention }
    }

    /// Makes a pass at once and then every ten minutes until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        // Until the first pass has ended, its age is counted from here.
        self.passed();
        run_every(INTERVAL, shutdown, self).await;
    }

    /// Deletes everything that is too old now.
    pub async fn pass(&self) -> Result<Pruned, StoreError> {
        let now = self.clock.now();
        let cutoffs = self.retention.cutoffs(now);
        let pruned = pass(&*self.store, &cutoffs).await?;
        pass_activity(&*self.store, now).await?;
        // Traffic has a retention of its own.
        while self.store.roll_up_traffic(now).await? {
            tokio::time::sleep(PAUSE).await;
        }
        while self.store.prune_pace_changes(now.before(PACE_CHANGES_KEPT)).await? > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        if let Some(before) = reservations_before(&cutoffs, now) {
            while self.store.prune_reservations(before).await? > 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        self.passed();
        if let Err(error) = self.store.compact().await {
            tracing::warn!(%error, "could not give disk back; the next pass tries again");
        }
        Ok(pruned)
    }

    /// Everything that is too old is deleted now.
    fn passed(&self) {
        gauge!("weir_retention_pass_timestamp_seconds").set(self.clock.wall().as_nanos() as f64 / 1e9);
    }
}

impl Agent for Pruner {
    async fn make_pass(&mut self) {
        match self.pass().await {
            Ok(Pruned { deliveries: 0, attempts: 0, events: 0, days: 0 }) => {}
            Ok(Pruned { deliveries, attempts, events, days }) => {
                tracing::info!(deliveries, attempts, events, days, "deleted data older than the retention");
            }
            Err(error) => tracing::warn!(%error, "could not delete old data; the next pass tries again"),
        }
    }
}

/// Deletes the old rows of the activity log, and the old answers of idempotency keys.
async fn pass_activity<S: ActivityLog + Sync + ?Sized>(store: &S, now: Timestamp) -> Result<(), StoreError> {
    while store.prune_activity(now.before(ACTIVITY_KEPT), now.before(ANSWERS_KEPT)).await? > 0 {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn pass<P: Prune + Sync + ?Sized>(store: &P, cutoffs: &Cutoffs) -> Result<Pruned, StoreError> {
    let mut total = Pruned::default();
    let mut position = PrunePosition::START;
    // Nothing that was created later than the latest cutoff is deleted.
    let behind = cutoffs.deliveries().map(|cutoff| cutoff.before(BEHIND));
    loop {
        let step_began = Instant::now();
        let step = store.prune_some(cutoffs, position).await?;
        count(step.pruned);
        total += step.pruned;
        let Some(next) = step.next else { return Ok(total) };
        position = next;
        let pause = match step.pruned {
            Pruned::NOTHING => SHORT_PAUSE,
            _ if behind.is_some_and(|behind| next.is_before(behind)) => {
                (step_began.elapsed() / 2).clamp(BEHIND_PAUSE, PAUSE)
            }
            _ => PAUSE,
        };
        tokio::time::sleep(pause).await;
    }
}

fn count(pruned: Pruned) {
    let Pruned { deliveries, attempts, events, days } = pruned;
    for (what, gone) in [("deliveries", deliveries), ("attempts", attempts), ("events", events), ("days", days)] {
        if gone > 0 {
            counter!("weir_retention_deleted_total", "what" => what).increment(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    };

    use async_trait::async_trait;
    use weir_core::activity::Activity;
    use weir_store::{
        ActivityFilter, Created, Creation, KeyedAnswer, Page, PageRequest, PruneStep, StoreResult, first_id,
    };

    use super::*;

    /// Three steps; the second deletes nothing.
    #[derive(Default)]
    struct Steps(Mutex<Vec<(PrunePosition, Cutoffs, Instant)>>);

    #[async_trait]
    impl Prune for Steps {
        async fn prune_some(&self, cutoffs: &Cutoffs, position: PrunePosition) -> StoreResult<PruneStep> {
            let mut steps = self.0.lock().unwrap();
            steps.push((position, *cutoffs, Instant::now()));
            let next = [Some(PrunePosition::Days(3)), Some(PrunePosition::Events([7; 16])), None][steps.len() - 1];
            let deliveries = if steps.len() == 2 { 0 } else { 500 };
            Ok(PruneStep { pruned: Pruned { deliveries, ..Pruned::default() }, next })
        }
    }

    /// Steps that take 20 ms each, through deliveries that were created at one time.
    struct Endless(AtomicU32, Timestamp);

    #[async_trait]
    impl Prune for Endless {
        async fn prune_some(&self, _: &Cutoffs, _: PrunePosition) -> StoreResult<PruneStep> {
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.0.fetch_add(1, Ordering::Relaxed);
            let next = PrunePosition::Deliveries(first_id(self.1.as_millis()));
            Ok(PruneStep { pruned: Pruned { deliveries: 500, ..Pruned::NOTHING }, next: Some(next) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_behind_is_deleted_for_two_thirds_of_the_time() {
        let now = Timestamp::from_secs(1_800_000_000);
        let cutoffs = Retention::default().cutoffs(now);
        for (too_old_for, step) in [(BEHIND - INTERVAL, 0.07), (BEHIND + INTERVAL, 0.03)] {
            let endless = Endless(AtomicU32::new(0), cutoffs.deliveries().unwrap().before(too_old_for));
            tokio::time::timeout(INTERVAL, pass(&endless, &cutoffs)).await.unwrap_err();
            let steps = f64::from(endless.0.into_inner());
            let ratio = steps * step / INTERVAL.as_secs_f64();
            assert!((ratio - 1.0).abs() < 0.05, "{steps} steps of {step} s, too old for {too_old_for:?}");
        }
    }

    fn not_called<T>() -> T {
        panic!("retention calls no other method")
    }

    /// An activity log with rows for two steps.
    #[derive(Default)]
    struct Log(Mutex<Vec<(Timestamp, Timestamp)>>);

    #[async_trait]
    impl ActivityLog for Log {
        async fn record_activity(&self, _: Creation) -> StoreResult<Created<()>> {
            not_called()
        }

        async fn list_activity(&self, _: &ActivityFilter, _: PageRequest) -> StoreResult<Page<Activity>> {
            not_called()
        }

        async fn keyed_answer(&self, _: [u8; 32], _: Timestamp) -> StoreResult<Option<KeyedAnswer>> {
            not_called()
        }

        async fn prune_activity(&self, activity_before: Timestamp, answers_before: Timestamp) -> StoreResult<u64> {
            let mut steps = self.0.lock().unwrap();
            steps.push((activity_before, answers_before));
            Ok([500, 7, 0][steps.len() - 1])
        }
    }

    #[tokio::test(start_paused = true)]
    async fn activities_are_kept_for_a_year_and_answers_for_a_day() {
        let (log, now) = (Log::default(), Timestamp::from_secs(1_800_000_000));
        pass_activity(&log, now).await.unwrap();
        let days = |days: u32| now.before(Duration::from_secs(86_400) * days);
        assert_eq!(log.0.into_inner().unwrap(), [(days(365), days(1)); 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_takes_every_step_and_pauses_longer_after_deletions() {
        let (steps, cutoffs) = (Steps::default(), Retention::default().cutoffs(Timestamp::from_secs(1_800_000_000)));
        let began = Instant::now();
        assert_eq!(pass(&steps, &cutoffs).await.unwrap().deliveries, 1_000);
        let seen = steps.0.into_inner().unwrap();
        let expected = [
            (PrunePosition::START, cutoffs, began),
            (PrunePosition::Days(3), cutoffs, began + PAUSE),
            (PrunePosition::Events([7; 16]), cutoffs, began + PAUSE + SHORT_PAUSE),
        ];
        assert_eq!(seen, expected);
    }
}
