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
        let (copies, taken) = match lost.is_empty() {
            true => Default::default(),
            false => (self.store.paces(&lost).await?, self.store.taken_lately(&lost, now).await?),
        };
        let mut known = copies.into_iter().zip(taken);
        let mut records = Vec::new();
        for run in runs.iter_mut().filter(|run| run.is_adaptive()) {
            let known = if run.lease.pace.is_none() { known.next() } else { None };
            records.extend(learn(run, known.unwrap_or_default(), now));
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

/// Lets a run learn. If the queue does not know the pace: the copy of the store, and what the receiver took lately.
fn learn(run: &mut Run, (copy, taken): (Option<PaceCopy>, Option<f64>), now: Timestamp) -> Option<PaceRecord> {
    let destination = run.effective.as_ref()?;
    let settings = destination.settings.adaptive?.within(&destination.settings.rate_limits);
    let max_in_flight = destination.settings.max_in_flight;
    let resumed = || {
        // A copy that another version has written is none.
        let copy = copy.and_then(|copy| Some((serde_json::from_str(&copy.json).ok()?, copy.saved_at)));
        let rate = match copy {
            Some((rate, saved_at)) => AdaptiveRate::resumed(rate, saved_at, now),
            None => AdaptiveRate::new(settings, max_in_flight, taken, now),
        };
        Box::new(Pace::new(rate, now))
    };
    let mut pace = run.lease.pace.take().unwrap_or_else(resumed);
    let Pace { rate, cursor, reports } = &mut *pace;
    let before = rate.per_s(now);
    rate.interrupt(destination.breaker.state(now) != BreakerState::Closed, now);
    rate.learn(cursor, reports, now);
    // Last, so that a lowered limit is the reason that people see.
    rate.configure(settings, max_in_flight, now);
    cursor.follow(&rate.cursor(now));
    let change = Change::between(before, rate, now);
    let json = if rate.needs_copy(now) { serde_json::to_string(rate).ok() } else { None };
    let copy = json.map(|json| PaceCopy { json, saved_at: now });
    let is_told = copy.is_some() || change.is_some();
    run.pace = Some(pace);
    is_told.then_some(PaceRecord { destination_id: run.lease.destination_id, copy, change })
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use weir_core::{
        Period, RateLimit, RateLimits,
        adaptive::{Reason, Sample, Settings, Verdict},
        plan::NextRun,
    };
    use weir_queue::{JobLease, conformance::settings};

    use super::*;
    use crate::run::tests::lease;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    /// A run of an adaptive destination with this limit a second, whose queue knows this pace.
    fn run(per_second: u32, pace: Option<Box<Pace>>) -> Run {
        let limits = RateLimits::new(RateLimit::new(per_second, Period::SECOND).into_iter().collect()).unwrap();
        let mut destination = settings(&limits, 64);
        destination.settings.adaptive = Some(Settings::default());
        let lease = JobLease { destination_id: destination.id, pace, ..lease(NOW) };
        Run::new(lease, Some(Arc::new(destination)), None, NOW)
    }

    fn pace_of(run: &Run) -> f64 {
        run.pace.as_ref().unwrap().rate.per_s(NOW)
    }

    /// A pace of forty a second.
    fn forty() -> AdaptiveRate {
        AdaptiveRate::new(Settings::default(), 64, Some(40.0), NOW)
    }

    #[test]
    fn a_pace_begins_below_the_limit_and_its_first_copy_is_recorded() {
        let mut run = run(5, None);
        let record = learn(&mut run, (None, None), NOW).unwrap();
        assert_eq!((pace_of(&run), record.change), (5.0, None));
        assert!(record.copy.is_some_and(|copy| copy.saved_at == NOW && copy.json.len() < 2_048));
    }

    #[test]
    fn a_new_pace_begins_at_what_the_receiver_took_lately_if_that_is_more_than_ten() {
        for (taken, per_s) in [(None, 10.0), (Some(3.0), 10.0), (Some(70.0), 70.0), (Some(700.0), 100.0)] {
            let mut run = run(100, None);
            learn(&mut run, (None, taken), NOW);
            assert_eq!(pace_of(&run), per_s, "{taken:?}");
        }
    }

    #[test]
    fn a_lost_pace_is_resumed_from_its_copy_unless_that_cannot_be_read() {
        let copy = |json: &str, age| Some(PaceCopy { json: json.to_owned(), saved_at: NOW - Duration::from_secs(age) });
        let json = serde_json::to_string(&forty()).unwrap();
        for (copy, per_s) in [(copy(&json, 59), 32.0), (copy(&json, 61), 20.0), (copy("{}", 1), 10.0), (None, 10.0)] {
            let mut run = run(100, None);
            learn(&mut run, (copy, None), NOW);
            assert_eq!(pace_of(&run), per_s);
        }
    }

    #[test]
    fn a_lowered_limit_is_a_change_with_its_reason() {
        let mut run = run(4, Some(Box::new(Pace::new(forty(), NOW))));
        let change = learn(&mut run, (None, None), NOW).unwrap().change.unwrap();
        assert_eq!((change.from_per_s, change.to_per_s, change.at), (40.0, 4.0, NOW));
        assert_eq!((change.reason, change.detail.as_str()), (Reason::AtLimit, "the limit was lowered"));
    }

    #[test]
    fn refusals_lower_the_pace_and_the_publication_has_it() {
        let mut pace = Pace::new(forty(), NOW - Duration::from_secs(1));
        let mut sample = Sample { generation: pace.cursor.generation, ..Sample::default() };
        (0..20).for_each(|_| sample.add(Verdict::Ok, 0.05, 4));
        (0..20).for_each(|_| sample.add(Verdict::Throttled, 0.01, 4));
        (pace.cursor.granted, pace.cursor.last_start) = (40, NOW);
        pace.rate = AdaptiveRate::new(Settings::default(), 64, Some(40.0), NOW - Duration::from_secs(1));
        pace.reports.push((NOW, sample));
        let mut run = run(100, Some(Box::new(pace)));
        let change = learn(&mut run, (None, None), NOW).unwrap().change.unwrap();
        assert_eq!((change.reason, change.detail.as_str()), (Reason::Throttled, "20 of 40 answers were 429"));
        assert!(change.is_lowered() && run.pace.as_ref().unwrap().cursor.spacing > Duration::from_millis(50));
        let published = run.into_publication(NextRun::Paced).pace.unwrap();
        assert_eq!(published.per_s(NOW), change.to_per_s);
    }
}
