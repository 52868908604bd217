//! Puts the recorded deliveries and attempts together to what a simulation plays.

use std::time::Duration;

use weir_core::{
    DeliveryState, Timestamp,
    delivery::AttemptOutcome,
    retry::RetryPolicy,
    simulate::{Fate, Past, PastAttempt, Trial},
};
use weir_store::{PastRecord, PastRecordAttempt};

/// Of the deliveries from before the range, those that still waited at its start are played too. After so many that did
/// not, the earlier ones are not read: deliveries are sent about in the order of their creation.
const PASSED: u32 = 5_000;

/// Collects records, the latest delivery first.
pub(super) struct Reading<'r> {
    trial: &'r Trial,
    retry: &'r RetryPolicy,
    past: Past,
    /// Of one delivery, its first attempt first.
    records: Vec<PastRecord>,
    /// Deliveries from before the range in a row that had ended before it.
    passed: u32,
    /// The time that all recorded attempts took, and their number.
    durations: (u64, u64),
    earliest: Timestamp,
}

impl<'r> Reading<'r> {
    pub(super) fn new(trial: &'r Trial, retry: &'r RetryPolicy) -> Self {
        let (past, records) = (Past::default(), Vec::new());
        Self { trial, retry, past, records, passed: 0, durations: (0, 0), earliest: trial.to }
    }

    /// Whether more is needed.
    pub(super) fn add(&mut self, record: &PastRecord) -> bool {
        if self.records.last().is_some_and(|last| last.delivery_id != record.delivery_id) {
            self.end_delivery();
        }
        let goes_on = !self.past.is_full(self.trial.scale) && self.passed < PASSED;
        if goes_on {
            self.records.push(*record);
        }
        goes_on
    }

    /// What was read, and where it begins.
    pub(super) fn finish(mut self) -> (Past, Timestamp) {
        let is_cut = self.past.is_full(self.trial.scale);
        self.end_delivery();
        let (duration_ms, attempts) = self.durations;
        self.past.assume_duration((duration_ms / attempts.max(1)) as u32);
        let from = if is_cut { self.trial.from.max(self.earliest) } else { self.trial.from };
        (self.past, from)
    }

    fn end_delivery(&mut self) {
        let records = std::mem::take(&mut self.records);
        let Some(delivery) = records.first() else { return };
        if self.push(&records) {
            self.passed = 0;
        } else if delivery.delivery_id.made_at() < self.trial.from {
            self.passed += 1;
        }
        self.records = records;
        self.records.clear();
    }

    /// Whether there was something to send in the range.
    fn push(&mut self, records: &[PastRecord]) -> bool {
        let Some(&PastRecord { state, due_at, next_attempt_at, expires_at, replayed_at, .. }) = records.last() else {
            return false;
        };
        let is_earlier = |attempt: &PastRecordAttempt| replayed_at.is_none_or(|at| attempt.began_at < at);
        let recorded: Vec<_> = records.iter().filter_map(|record| record.attempt).filter(is_earlier).collect();
        let last = recorded.last();
        let is_unsent = state.is_waiting() || matches!(state, DeliveryState::Delivering | DeliveryState::Expired);
        let fate = match last.map(|attempt| attempt.outcome) {
            Some(AttemptOutcome::Delivered) => Fate::Delivered,
            _ if is_unsent && replayed_at.is_none() => Fate::Unsent,
            Some(_) => Fate::Failed,
            // It was cancelled or superseded, and so would not be sent.
            None => return false,
        };
        let is_over = fate == Fate::Unsent && expires_at.is_some_and(|at| at <= self.trial.from);
        if due_at >= self.trial.to || is_over {
            return false;
        }
        let (mut first_due, mut due) = (None, due_at);
        let mut attempts: Vec<PastAttempt> = Vec::with_capacity(recorded.len() + 1);
        for (index, attempt) in recorded.iter().enumerate() {
            if let Some(before) = index.checked_sub(1).map(|before| &recorded[before]) {
                due = self.retried_at(before, attempt.began_at, &mut attempts);
            }
            self.durations = (self.durations.0 + u64::from(attempt.duration_ms), self.durations.1 + 1);
            if attempt.began_at >= self.trial.from {
                first_due.get_or_insert(due);
                let waited_ms = millis(attempt.began_at.since(due));
                attempts.push(PastAttempt { waited_ms, duration_ms: attempt.duration_ms, retried_after_ms: 0 });
            }
        }
        if fate == Fate::Unsent {
            if let Some(last) = last {
                due = self.retried_at(last, next_attempt_at, &mut attempts);
            }
            first_due.get_or_insert(due);
            let expired_at = expires_at.filter(|_| state == DeliveryState::Expired);
            let waited_ms = expired_at.map_or(u32::MAX, |at| millis(at.since(due)));
            attempts.push(PastAttempt { waited_ms, duration_ms: 0, retried_after_ms: 0 });
        }
        let Some(first_due) = first_due else { return false };
        self.past.push(first_due, expires_at, fate, &attempts);
        self.past.set_cost(records[0].cost);
        self.earliest = self.earliest.min(first_due);
        true
    }

    /// When the attempt after `before` was due, which began at `next`. The time between includes the wait for a slot, so
    /// no more of it is the delay than the policy makes.
    fn retried_at(&self, before: &PastRecordAttempt, next: Timestamp, attempts: &mut [PastAttempt]) -> Timestamp {
        let ended_at = before.began_at + Duration::from_millis(before.duration_ms.into());
        let delay = next.since(ended_at).min(self.retry.longest_delay(before.number));
        if let Some(last) = attempts.last_mut() {
            last.retried_after_ms = millis(delay);
        }
        ended_at + delay
    }
}

fn millis(duration: Duration) -> u32 {
    duration.as_millis().try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use weir_core::{DeliveryId, RateLimits, simulate::simulate};

    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_secs(1_800_000_000 + s as i64)
    }

    fn trial() -> Trial {
        let (from, to) = (at(100), at(200));
        Trial { limits: RateLimits::default(), max_in_flight: 9, scale: 1.0, repeats_failures: true, from, to }
    }

    /// A delivery that was created at this second, and its attempts: when each began, and whether it was the last.
    fn record(due: u64, state: DeliveryState, attempts: &[(u64, AttemptOutcome)]) -> Vec<PastRecord> {
        let record = |attempt| PastRecord {
            delivery_id: DeliveryId::new(at(due), 7),
            state,
            due_at: at(due),
            next_attempt_at: at(due),
            expires_at: None,
            replayed_at: None,
            cost: 1,
            attempt,
        };
        let of = |(number, &(began, outcome)): (u32, &(u64, AttemptOutcome))| {
            record(Some(PastRecordAttempt { number, began_at: at(began), duration_ms: 500, outcome }))
        };
        let records: Vec<_> = (1..).zip(attempts).map(of).collect();
        if records.is_empty() { vec![record(None)] } else { records }
    }

    fn read(records: &[Vec<PastRecord>]) -> (Past, Timestamp) {
        let (trial, retry) = (trial(), RetryPolicy::default());
        let mut reading = Reading::new(&trial, &retry);
        assert!(records.iter().flatten().all(|record| reading.add(record)));
        reading.finish()
    }

    #[test]
    fn what_was_due_in_the_range_or_waited_at_its_start_is_played() {
        use AttemptOutcome::{Delivered as Ok, Retryable as Failed};
        for (record, expected, latency) in [
            (record(150, DeliveryState::Delivered, &[(151, Ok)]), 1, Some(1_500.0)),
            (record(150, DeliveryState::Pending, &[]), 1, None),
            (record(150, DeliveryState::Dead, &[(151, Failed)]), 1, None),
            // It waited when the range began.
            (record(90, DeliveryState::Delivered, &[(101, Ok)]), 1, Some(11_500.0)),
            // Its first attempt was before the range. The second was due ten seconds after it at the latest.
            (record(80, DeliveryState::Delivered, &[(81, Failed), (120, Ok)]), 1, Some(29_000.0)),
            (record(90, DeliveryState::Delivered, &[(99, Ok)]), 0, None),
            (record(150, DeliveryState::Cancelled, &[]), 0, None),
            (record(200, DeliveryState::Pending, &[]), 0, None),
        ] {
            let (past, from) = read(std::slice::from_ref(&record));
            assert_eq!((past.len(), from), (expected, at(100)), "{record:?}");
            assert_eq!(simulate(&past, &trial()).recorded_latency_ms.max, latency, "{record:?}");
        }
    }

    #[test]
    fn the_sends_of_a_replay_are_left_out() {
        use AttemptOutcome::{Delivered as Ok, Rejected as Failed};
        let mut records = record(110, DeliveryState::Delivered, &[(111, Failed), (150, Ok)]);
        records.iter_mut().for_each(|record| record.replayed_at = Some(at(140)));
        let (past, _) = read(&[records]);
        let seen = simulate(&past, &trial());
        assert_eq!((past.len(), seen.audit.sends, seen.recorded_latency_ms.max), (1, 1, None));
    }

    #[test]
    fn reading_ends_after_many_deliveries_that_ended_before_the_range() {
        let (trial, retry) = (trial(), RetryPolicy::default());
        let mut reading = Reading::new(&trial, &retry);
        let ended = |number: u64| PastRecord {
            delivery_id: DeliveryId::new(at(50), number.into()),
            ..record(50, DeliveryState::Delivered, &[(51, AttemptOutcome::Delivered)])[0]
        };
        let read = (0..9_000).take_while(|number| reading.add(&ended(9_000 - number))).count();
        assert_eq!(read, PASSED as usize);
        assert!(reading.finish().0.is_empty());
    }
}
