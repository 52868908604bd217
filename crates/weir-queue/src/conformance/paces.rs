//! The paces of adaptive destinations: they delay slots, and runs learn what grants and workers have noted.

use std::time::Duration;

use weir_core::{
    DestinationId, Limiter, Period, RateLimits,
    adaptive::{AdaptiveRate, PaceCursor, Sample, Settings, Verdict},
    limiter::GRANT_AHEAD,
    plan::NextRun,
};

use super::{SOON, Subject, destination, granted, per, per_second};
use crate::{JobLease, MOST_REPORTS, PacedGrant, Publication, Published, Report, SlotAnswer, Terms, TermsChange};

/// The report of an answer that is no refusal.
fn clean() -> Sample {
    let mut sample = Sample::default();
    sample.add(Verdict::Ok, 0.05, 1);
    sample
}

/// The report of a refusal.
fn refusal() -> Sample {
    let mut sample = Sample::default();
    sample.add(Verdict::Throttled, 0.05, 1);
    sample
}

impl Subject {
    /// A pace of `per_s`, with a window of `most` requests.
    fn pace(&self, per_s: f64, most: u32) -> AdaptiveRate {
        let settings = Settings { max_per_s: Some(per_s), ..Settings::default() };
        AdaptiveRate::new(settings, most, Some(per_s), self.clock.now())
    }

    fn adaptive_terms(&self, limits: &RateLimits) -> Terms {
        Terms { is_adaptive: true, ..self.terms(limits) }
    }

    async fn publish_paced(
        &self,
        lease: JobLease,
        limits: &RateLimits,
        pace: AdaptiveRate,
        count: u8,
        next: NextRun,
    ) -> Published {
        let recovered = lease.cursors.is_none().then(|| Limiter::new(limits));
        let deliveries = (0..count).map(|number| self.delivery(number, SOON * 4)).collect();
        let (terms, pace) = (Some(self.adaptive_terms(limits)), Some(Box::new(pace)));
        let publication = Publication { lease, terms, recovered, groups: Vec::new(), pace, deliveries, next };
        self.queue.publish(vec![publication]).await.expect("publish").remove(0)
    }

    async fn report(&self, samples: &[Sample]) {
        let report = |sample: &Sample| Report { destination_id: destination(1), sample: *sample };
        self.queue.report(&samples.iter().map(report).collect::<Vec<_>>()).await.expect("report");
    }
}

pub async fn a_pace_delays_slots_below_the_limit_and_never_hurries_them(subject: Subject) {
    let limits = per_second(10);
    for (per_s, apart) in [(4.0, Duration::from_millis(250)), (1_000.0, limits.as_slice()[0].spacing())] {
        let lease = subject.begin_run().await;
        subject.publish_paced(lease, &limits, subject.pace(per_s, 64), 3, NextRun::Stop).await;
        let permits = subject.take(3).await;
        let expected: Vec<_> = permits.iter().filter_map(|permit| permit.expected_at).collect();
        assert!(expected.windows(2).all(|pair| pair[1].since(pair[0]) >= apart - subject.precision), "{expected:?}");
        let mut last = subject.slot(&permits[0]).await;
        for permit in &permits[1..] {
            let slot = subject.slot(permit).await;
            subject.assert_starts(slot.start, last.start + apart);
            assert!(slot.start + subject.precision >= last.start + apart, "{per_s}/s");
            last = slot;
        }
        for permit in &permits {
            subject.settle(permit).await;
        }
    }
}

pub async fn a_pace_counts_on_from_the_last_slot_of_the_pace_before(subject: Subject) {
    let unlimited = RateLimits::UNLIMITED;
    let lease = subject.begin_run().await;
    subject.publish_paced(lease, &unlimited, subject.pace(100.0, 64), 2, NextRun::Now).await;
    let permits = subject.take(2).await;
    let first = subject.slot(&permits[0]).await;
    let lease = subject.claim().await;
    subject.publish_paced(lease, &unlimited, subject.pace(2.0, 64), 0, NextRun::Stop).await;
    let second = subject.slot(&permits[1]).await;
    subject.assert_starts(second.start, first.start + Duration::from_millis(500));
}

pub async fn a_grant_names_its_pace_and_how_many_are_in_flight(subject: Subject) {
    let lease = subject.begin_run().await;
    let pace = subject.pace(10_000.0, 64);
    let generation = pace.cursor(subject.clock.now()).generation;
    subject.publish_paced(lease, &RateLimits::UNLIMITED, pace, 2, NextRun::Stop).await;
    for (index, permit) in subject.take(2).await.iter().enumerate() {
        let SlotAnswer::Granted(_, paced) = subject.ask_for_slot(permit).await else { panic!("a slot is free") };
        assert_eq!(paced, Some(PacedGrant { generation, in_flight: index as u32 + 1 }));
    }
    // Without a pace there is nothing to name.
    let plain = subject.begin_run().await;
    subject.publish(plain, RateLimits::UNLIMITED, 1, NextRun::Stop).await;
    let permit = subject.take(1).await.remove(0);
    assert!(matches!(subject.ask_for_slot(&permit).await, SlotAnswer::Granted(_, None)));
}

pub async fn a_full_window_waits_for_an_answer_and_the_next_run_learns_of_it(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.publish_paced(lease, &RateLimits::UNLIMITED, subject.pace(10_000.0, 2), 3, NextRun::Now).await;
    let permits = subject.take(3).await;
    granted(subject.ask_for_slot(&permits[0]).await);
    let last = subject.slot(&permits[1]).await;
    assert_eq!(subject.ask_for_slot(&permits[2]).await, SlotAnswer::NoRoom);
    let lease = subject.claim().await;
    let PaceCursor { granted: count, was_full, last_start, window, .. } = lease.pace.as_ref().expect("a pace").cursor;
    assert_eq!((count, was_full, window), (2, true, 2));
    assert!(last_start.since(last.start).max(last.start.since(last_start)) <= subject.precision * 2);
    let pace = lease.pace.as_ref().expect("a pace").rate.clone();
    subject.publish_paced(lease, &RateLimits::UNLIMITED, pace, 0, NextRun::Now).await;
    subject.settle(&permits[0]).await;
    subject.slot(&permits[2]).await;
    let cursor = subject.claim().await.pace.expect("a pace").cursor;
    assert_eq!((cursor.granted, cursor.was_full), (1, false), "each run learns only what is new");
}

pub async fn a_report_of_a_refusal_runs_the_job_and_others_wait(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.report(&[refusal()]).await;
    subject.publish_paced(lease, &per_second(10), subject.pace(10.0, 64), 0, NextRun::Stop).await;
    subject.assert_nothing_due().await;
    subject.report(&[clean()]).await;
    subject.assert_nothing_due().await;
    let before = subject.clock.now() - subject.precision;
    subject.report(&[refusal(), clean()]).await;
    let lease = subject.claim().await;
    let reports = &lease.pace.as_ref().expect("a pace").reports;
    let samples: Vec<_> = reports.iter().map(|(_, sample)| *sample).collect();
    assert_eq!(samples, [clean(), refusal(), clean()], "what came before there was a pace says nothing");
    let after = subject.clock.now() + subject.precision;
    assert!(reports[1..].iter().all(|(at, _)| (before..=after).contains(at)), "{before} {reports:?} {after}");
    // One that comes during a run causes another run.
    subject.report(&[refusal()]).await;
    let pace = lease.pace.as_ref().expect("a pace").rate.clone();
    subject.publish_paced(lease, &per_second(10), pace, 0, NextRun::Stop).await;
    assert_eq!(subject.claim().await.pace.expect("a pace").reports.len(), 1);
}

pub async fn a_slow_pace_learns_from_each_report_and_a_quick_one_from_a_few(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.publish_paced(lease, &per(10, Period::MINUTE), subject.pace(0.1, 64), 0, NextRun::Stop).await;
    subject.report(&[clean()]).await;
    let lease = subject.claim().await;
    subject.publish_paced(lease, &per_second(10), subject.pace(10.0, 64), 0, NextRun::Stop).await;
    subject.report(&[clean(); 15]).await;
    subject.assert_nothing_due().await;
    subject.report(&[clean()]).await;
    let lease = subject.claim().await;
    assert_eq!(lease.pace.as_ref().expect("a pace").reports.len(), 16);
    // A job whose run takes long keeps a bounded number.
    subject.report(&[clean(); MOST_REPORTS + 9]).await;
    subject.publish_paced(lease, &per_second(10), subject.pace(10.0, 64), 0, NextRun::Now).await;
    assert_eq!(subject.claim().await.pace.expect("a pace").reports.len(), MOST_REPORTS);
}

pub async fn a_pace_is_shown_until_an_edit_turns_it_off(subject: Subject) {
    let [one, other] = [1, 2].map(destination);
    let shown = async |ids: &[DestinationId]| subject.queue.paces(ids).await.expect("paces");
    assert_eq!(shown(&[one]).await, [None]);
    let limits = per_second(10);
    let lease = subject.begin_run().await;
    subject.publish_paced(lease, &limits, subject.pace(0.5, 64), 2, NextRun::Stop).await;
    let permits = subject.take(2).await;
    let first = subject.slot(&permits[0]).await;
    let paces = shown(&[other, one]).await;
    assert!(paces[0].is_none() && paces[1].as_ref().is_some_and(|status| status.per_s == 0.5), "{paces:?}");
    subject.edits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let edit = TermsChange { destination_id: one, terms: subject.terms(&limits) };
    subject.queue.edited(&[edit]).await.expect("edit");
    assert_eq!(shown(&[one]).await, [None]);
    let second = subject.slot(&permits[1]).await;
    subject.assert_starts(second.start, first.start + limits.as_slice()[0].spacing());
}

pub async fn a_delivery_beyond_the_pace_is_not_admitted(subject: Subject) {
    let mut adaptive = subject.destination(&RateLimits::UNLIMITED, 64);
    adaptive.settings.adaptive = Some(Settings::default());
    let lease = subject.begin_run().await;
    subject.publish_paced(lease, &RateLimits::UNLIMITED, subject.pace(0.1, 64), 0, NextRun::Stop).await;
    let permit = subject.admitted(1, &adaptive).await;
    subject.slot(&permit).await;
    subject.settle(&permit).await;
    subject.assert_not_admitted(2, &adaptive).await;
}

pub async fn a_probe_of_a_held_receiver_goes_alone_and_at_its_time(subject: Subject) {
    let mut pace = subject.pace(1_000.0, 64);
    let now = subject.clock.now();
    let until = now + Duration::from_millis(300);
    pace.learn(&PaceCursor::default(), &[(now, Sample { held_until: Some(until), ..refusal() })], now);
    let lease = subject.begin_run().await;
    subject.publish_paced(lease, &RateLimits::UNLIMITED, pace, 2, NextRun::Stop).await;
    let permits = subject.take(2).await;
    let probe = subject.slot(&permits[0]).await;
    assert!(probe.start + subject.precision >= until, "{probe:?} {until}");
    subject.until(probe.start + GRANT_AHEAD).await;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Withdrawn, "a minute is too long to wait");
}

/// Otherwise a worker that is late would cost a minute of a slow pace, and a probe.
pub async fn a_missed_slot_gives_the_spacing_of_its_pace_back(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.publish_paced(lease, &RateLimits::UNLIMITED, subject.pace(0.05, 64), 1, NextRun::Now).await;
    let permit = subject.take(1).await.remove(0);
    let missed = subject.slot(&permit).await;
    let slot = granted(subject.ask_after_miss(&permit, missed).await);
    assert!(slot.start.since(missed.start) < Duration::from_secs(10), "{missed:?} {slot:?}");
    assert_eq!(subject.claim().await.pace.expect("a pace").cursor.granted, 1, "it is one send");
}
