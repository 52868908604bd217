//! The paces of adaptive destinations. A run learns from what grants and workers have noted since the last one, and its
//! publication carries the result. What is to outlive the queue goes to the store.

use metrics::counter;
use weir_core::{
    Timestamp,
    adaptive::{AdaptiveRate, Change},
    breaker::BreakerState,
};
use weir_queue::Pace;
use weir_store::{PaceCopy, PaceRecord, StoreError};

use crate::{run::Run, scheduler::Scheduler};

impl Scheduler {
    /// Lets the runs of adaptive destinations learn. Returns what the store is to record of them.
    pub(crate) async fn learn_paces(&self, runs: &mut [Run], now: Timestamp) -> Result<Vec<PaceRecord>, StoreError> {
        let is_lost = |run: &&Run| run.is_adaptive() && run.lease.pace.is_none();
        let lost: Vec<_> = runs.iter().filter(is_lost).map(|run| run.lease.destination_id).collect();
        let copies = if lost.is_empty() { Vec::new() } else { self.store.paces(&lost).await? };
        let mut copies = copies.into_iter();
        let mut records = Vec::new();
        for run in runs.iter_mut().filter(|run| run.is_adaptive()) {
            let copy = if run.lease.pace.is_none() { copies.next().flatten() } else { None };
            records.extend(learn(run, copy, now));
        }
        Ok(records)
    }

    /// Records copies and changes. A failure costs little: the next change makes another copy.
    pub(crate) async fn record_paces(&self, records: &[PaceRecord]) {
        for change in records.iter().filter_map(|record| record.change.as_ref()) {
            let direction = if change.is_lowered() { "lowered" } else { "raised" };
            let reason = <&'static str>::from(change.reason);
            counter!("weir_pace_changes_total", "direction" => direction, "reason" => reason).increment(1);
        }
        if !records.is_empty()
            && let Err(error) = self.store.record_paces(records).await
        {
            tracing::warn!(%error, "could not record the paces of adaptive destinations");
        }
    }
}

/// Lets a run learn. `copy` is that of the store, if the queue has lost the pace.
fn learn(run: &mut Run, copy: Option<PaceCopy>, now: Timestamp) -> Option<PaceRecord> {
    let destination = run.destination.as_ref()?;
    let settings = destination.settings.adaptive?.within(&destination.settings.rate_limits);
    let max_in_flight = destination.settings.max_in_flight;
    let resumed = || {
        // A copy that another version has written is none.
        let copy = copy.and_then(|copy| Some((serde_json::from_str(&copy.json).ok()?, copy.saved_at)));
        let rate = match copy {
            Some((rate, saved_at)) => AdaptiveRate::resumed(rate, saved_at, now),
            None => AdaptiveRate::new(settings, max_in_flight, None, now),
        };
        Box::new(Pace::new(rate, now))
    };
    let mut pace = run.lease.pace.take().unwrap_or_else(resumed);
    let Pace { rate, cursor, reports } = &mut *pace;
    let before = rate.per_s(now);
    rate.configure(settings, max_in_flight);
    rate.interrupt(destination.breaker.state(now) != BreakerState::Closed, now);
    rate.learn(cursor, reports, now);
    cursor.follow(&rate.cursor(now));
    let change = Change::between(before, rate, now);
    let json = if rate.needs_copy(now) { serde_json::to_string(rate).ok() } else { None };
    let copy = json.map(|json| PaceCopy { json, saved_at: now });
    let is_told = copy.is_some() || change.is_some();
    run.pace = Some(pace);
    is_told.then(|| PaceRecord { destination_id: run.lease.destination_id, copy, change })
}
