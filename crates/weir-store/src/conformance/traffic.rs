//! Traffic and health.

use weir_core::DestinationId;

use super::*;
use crate::{HOUR, Latencies, MINUTE, TRAFFIC_BUCKET, Traffic, latency_bucket};

/// The result of a claim: when its send started, how long it took, and when it was judged.
fn sent(claimed: &ClaimedDelivery, verdict: Verdict, sent_s: Option<u64>, took_ms: u32, now_s: u64) -> AttemptResult {
    let mut result = result(claimed, verdict);
    result.attempt.sent_at = sent_s.map(|sent| NOW + seconds(sent));
    result.attempt.duration_ms = took_ms;
    result.now = NOW + seconds(now_s);
    result
}

impl Subject {
    /// The traffic of destination 1 between two times in seconds after [`NOW`].
    async fn traffic(&self, [from, to]: [u64; 2], step: Duration) -> (Vec<(u64, Traffic)>, u64) {
        let history = self.store.traffic(destination_id(1), NOW + seconds(from), NOW + seconds(to), step).await;
        let history = history.expect("traffic");
        let after = |at: Timestamp| at.since(NOW).as_secs();
        (history.buckets.into_iter().map(|(at, traffic)| (after(at), traffic)).collect(), history.backlog)
    }

    pub(super) async fn fold(&self) {
        while self.store.fold_changes().await.expect("fold") > 0 {}
    }

    async fn roll_up(&self, now: Timestamp) {
        while self.store.roll_up_traffic(now).await.expect("roll up") {}
    }
}

/// Stores ten events at once, claims four deliveries after 15 s, and settles them: one delivered, one refused with 429,
/// one dead, and one that could not connect.
async fn busy(subject: &Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=10).await;
    let claimed = subject.claims(vec![request(1, 4)], NOW + seconds(15)).await.remove(0).deliveries;
    let retry = Verdict::Retry { at: NOW + seconds(600) };
    subject.settle(sent(&claimed[0], Verdict::Delivered, Some(16), 120, 17)).await;
    let mut throttled = sent(&claimed[1], retry, Some(18), 5_000, 23);
    throttled.attempt.status_code = Some(429);
    subject.settle(throttled).await;
    subject.settle(sent(&claimed[2], Verdict::Dead, Some(29), 40, 31)).await;
    subject.settle(sent(&claimed[3], retry, None, 0, 33)).await;
}

fn expected() -> [(u64, Traffic); 4] {
    [
        (0, Traffic { arrivals: 10, backlog_change: 10, ..Traffic::default() }),
        (10, Traffic { sends: 2, delivered: 1, failed: 1, backlog_change: -4, throttled: 1, ..Traffic::default() }),
        (20, Traffic { sends: 1, failed: 1, dead: 1, backlog_change: 1, ..Traffic::default() }),
        (30, Traffic { failed: 1, backlog_change: 1, ..Traffic::default() }),
    ]
}

pub async fn traffic_is_counted_by_bucket(subject: Subject) {
    busy(&subject).await;
    for folded in [false, true] {
        let (buckets, backlog) = subject.traffic([0, 60], TRAFFIC_BUCKET).await;
        assert_eq!((buckets.as_slice(), backlog), (expected().as_slice(), 8), "folded: {folded}");
        assert_eq!(subject.traffic([20, 30], TRAFFIC_BUCKET).await, (vec![expected()[2]], 7), "the backlog at its end");
        assert_eq!(subject.traffic([60, 90], TRAFFIC_BUCKET).await, (vec![], 8));
        subject.fold().await;
    }
    let other = subject.store.traffic(destination_id(2), NOW, NOW + seconds(60), TRAFFIC_BUCKET).await;
    assert_eq!(other.expect("traffic"), crate::TrafficHistory::default());
}

pub async fn buckets_are_added_up_to_longer_steps(subject: Subject) {
    busy(&subject).await;
    let minute = Traffic { sends: 3, delivered: 1, failed: 3, dead: 1, arrivals: 10, backlog_change: 8, throttled: 1 };
    let (buckets, backlog) = subject.traffic([0, 120], MINUTE).await;
    assert_eq!((buckets, backlog), (vec![(0, minute)], 8));
}

pub async fn old_buckets_are_added_up_to_minutes_and_hours_and_then_deleted(subject: Subject) {
    busy(&subject).await;
    subject.fold().await;
    let (hour, day) = (3_600, 86_400);
    let all = Traffic { sends: 3, delivered: 1, failed: 3, dead: 1, arrivals: 10, backlog_change: 8, throttled: 1 };
    let until = [0, 3_600];
    subject.roll_up(NOW + seconds(2 * hour)).await;
    assert_eq!(subject.traffic(until, TRAFFIC_BUCKET).await.0, expected(), "kept for two hours");
    subject.roll_up(NOW + seconds(2 * hour + 60)).await;
    assert_eq!(subject.traffic(until, TRAFFIC_BUCKET).await, (vec![(0, all)], 8), "one row for the minute");
    // A later minute of the same hour is added to its row.
    subject.ingest(vec![named(event_at(11, NOW + seconds(600)), &[1])]).await;
    subject.fold().await;
    subject.roll_up(NOW + seconds(25 * hour)).await;
    assert_eq!(subject.traffic(until, MINUTE).await.0.len(), 2, "kept for a day");
    subject.roll_up(NOW + seconds(27 * hour)).await;
    let (buckets, backlog) = subject.traffic(until, HOUR).await;
    assert_eq!(buckets.iter().map(|(_, traffic)| traffic.arrivals).sum::<u64>(), 11);
    assert_eq!(backlog, 9);
    subject.roll_up(NOW + seconds(day * 366)).await;
    assert_eq!(subject.traffic(until, HOUR).await, (vec![], 9), "kept for a year");
}

pub async fn recent_traffic_is_summed_for_every_destination(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=3).await;
    subject.post(2, [4]).await;
    let claimed = subject.claim(1, 2).await;
    subject.settle(sent(&claimed[0], Verdict::Delivered, Some(11), 20, 12)).await;
    for _ in 0..2 {
        let recent = subject.store.recent_traffic(NOW + seconds(15)).await.expect("traffic");
        let of = |number: u128| recent.get(&destination_id(number)).copied().unwrap_or_default().sum;
        assert_eq!(of(1), Traffic { sends: 1, delivered: 1, backlog_change: -2, ..Traffic::default() });
        assert_eq!(of(2), Traffic::default(), "its arrival is older");
        let all = subject.store.recent_traffic(NOW).await.expect("traffic");
        let arrivals = |id: DestinationId| (all[&id].sum.arrivals, all[&id].arriving_since);
        assert_eq!([1, 2].map(|number| arrivals(destination_id(number))), [(3, Some(NOW)), (1, Some(NOW))]);
        assert_eq!(recent[&destination_id(1)].arriving_since, None, "it arrived before");
        subject.fold().await;
    }
}

pub async fn traffic_of_some_destinations_is_read_by_bucket(subject: Subject) {
    busy(&subject).await;
    for folded in [false, true] {
        let ids = [2, 1].map(destination_id);
        let read = subject.store.traffic_of(&ids, NOW + seconds(10), TRAFFIC_BUCKET).await.expect("traffic");
        let after = |at: Timestamp| at.since(NOW).as_secs();
        let of_one: Vec<_> = read[&ids[1]].iter().map(|&(at, traffic)| (after(at), traffic)).collect();
        assert_eq!(of_one, expected()[1..], "folded: {folded}");
        assert_eq!(read.len(), 1, "the other had none");
        let minutes = subject.store.traffic_of(&ids[1..], NOW, MINUTE).await.expect("traffic");
        let minute =
            Traffic { sends: 3, delivered: 1, failed: 3, dead: 1, arrivals: 10, backlog_change: 8, throttled: 1 };
        assert_eq!(minutes[&ids[1]], [(NOW, minute)]);
        assert!(subject.store.traffic_of(&[], NOW, MINUTE).await.expect("traffic").is_empty());
        subject.fold().await;
    }
}

pub async fn what_receivers_took_lately_is_known(subject: Subject) {
    busy(&subject).await;
    for (now, taken) in [(70, Some(0.1)), (90, Some(0.0)), (190, None)] {
        let ids = [2, 1].map(destination_id);
        let lately = subject.store.taken_lately(&ids, NOW + seconds(now)).await.expect("traffic");
        assert_eq!(lately, [None, taken], "after {now} s");
    }
}

pub async fn traffic_is_added_up_for_each_tenant(subject: Subject) {
    busy(&subject).await;
    for folded in [false, true] {
        let (from, to) = (NOW + seconds(10), NOW + seconds(30));
        let mut read = subject.store.traffic_by_tenant(from, to, TRAFFIC_BUCKET).await.expect("traffic");
        read.sort_unstable_by_key(|(at, ..)| *at);
        let tenant = subject.store.destination(destination_id(1)).await.expect("destination").expect("it exists");
        let tenant = tenant.settings.tenant.clone();
        let expected = [1, 2].map(|index| (NOW + seconds(expected()[index].0), tenant.clone(), expected()[index].1));
        assert_eq!(read, expected, "folded: {folded}; what is before and after is left out");
        subject.fold().await;
    }
}

pub async fn health_has_latencies_attempts_and_the_last_success(mut subject: Subject) {
    busy(&subject).await;
    let latencies: Latencies =
        Latencies([120, 5_000, 40].map(|ms| (u32::from(latency_bucket(ms)), 1)).into_iter().collect());
    for step in 0..3 {
        let health = subject.store.health(destination_id(1), NOW).await.expect("health");
        assert_eq!(health.latencies, latencies, "only of what was sent");
        assert_eq!(health.attempts.into_iter().collect::<Vec<_>>(), [(1, 1)]);
        assert_eq!((health.traffic.delivered, health.traffic.failed, health.traffic.dead), (1, 3, 1));
        assert_eq!(health.last_success_at, Some(NOW + seconds(17)));
        match step {
            0 => subject.fold().await,
            _ => subject.reopen().await,
        }
    }
    let later = subject.store.health(destination_id(1), NOW + seconds(120)).await.expect("health");
    assert_eq!((later.latencies.total(), later.traffic.delivered), (0, 0));
    assert_eq!(later.last_success_at, Some(NOW + seconds(17)), "also before the interval");
    let never = subject.store.health(destination_id(2), NOW).await.expect("health");
    assert_eq!(never, crate::Health::default());
}

pub async fn latencies_are_read_by_the_minute(subject: Subject) {
    busy(&subject).await;
    let claimed = subject.claims(vec![request(1, 1)], NOW + seconds(70)).await.remove(0).deliveries;
    subject.settle(sent(&claimed[0], Verdict::Delivered, Some(75), 300, 76)).await;
    let read = async |from, step| {
        let to = NOW + seconds(120);
        let found = subject.store.latencies(destination_id(1), NOW + seconds(from), to, step).await.expect("latencies");
        found.into_iter().map(|(at, latencies)| (at.since(NOW).as_secs(), latencies.total())).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(read(0, MINUTE).await, [(0, 3), (60, 1)]);
        assert_eq!(read(60, MINUTE).await, [(60, 1)]);
        assert_eq!(read(120, MINUTE).await, []);
        assert_eq!(read(0, HOUR).await, [(0, 4)]);
        subject.fold().await;
    }
}

pub async fn old_histograms_are_added_up_to_hours_and_then_deleted(subject: Subject) {
    busy(&subject).await;
    subject.fold().await;
    for (age_s, sends) in [(9 * 3_600, 3), (9 * 86_400, 0)] {
        subject.roll_up(NOW + seconds(age_s)).await;
        let health = subject.store.health(destination_id(1), NOW.floor(HOUR)).await.expect("health");
        assert_eq!(health.latencies.total(), sends, "after {age_s} s");
    }
}

pub async fn a_recovered_attempt_has_no_latency(subject: Subject) {
    subject.one_claimed().await;
    subject.store.recover_claims(NOW + seconds(20), true, 9).await.expect("recover");
    let health = subject.store.health(destination_id(1), NOW).await.expect("health");
    assert_eq!((health.latencies.total(), health.traffic.failed), (0, 1));
}
