//! The test harness: the real binary as a process, real sockets, and a receiver that keeps every arrival.

pub(crate) mod app;
pub(crate) mod cases;
pub(crate) mod fleet;
pub(crate) mod machine;
pub(crate) mod order_receiver;
pub(crate) mod receiver;
pub(crate) mod servers;

use std::time::{Duration, Instant};

pub(crate) use app::{App, http_client};
pub(crate) use fleet::Fleet;
pub(crate) use machine::Machine;
pub(crate) use receiver::{Answer, Arrival, Receiver};

#[expect(clippy::disallowed_methods, reason = "the tests run in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Polls until `condition` holds.
pub(crate) async fn eventually(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = now() + within;
    while !condition().await {
        assert!(now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How much the scheduling of the receiver may change the distance of two arrivals, in addition to detected stalls.
/// Recorded send starts are judged without slack.
pub(crate) const SLACK: Duration = Duration::from_millis(5);

/// Asserts that no half-open window of this length holds more than `limit` arrivals.
pub(crate) fn assert_cap(arrivals: &[Arrival], limit: usize, window: Duration) {
    assert_cap_with(SLACK, arrivals, limit, window);
}

/// The same, where the distance of two arrivals may be shorter by `slack`.
pub(crate) fn assert_cap_with(slack: Duration, arrivals: &[Arrival], limit: usize, window: Duration) {
    let mut times: Vec<_> = arrivals.iter().map(|arrival| (arrival.at, arrival.stalled)).collect();
    times.sort_unstable();
    for ((first, stalled), (last, _)) in times.iter().zip(times.iter().skip(limit)) {
        let distance = *last - *first;
        assert!(
            distance + *stalled >= window - slack,
            "{limit} + 1 arrivals within {distance:?} of {window:?}, after a stall of {stalled:?}"
        );
    }
}

/// Sends per window ÷ the limit, from the first arrival to the last.
pub(crate) fn utilisation(arrivals: &[Arrival], limit: f64, window: Duration) -> f64 {
    let first = arrivals.iter().map(|arrival| arrival.at).min().expect("there are arrivals");
    let last = arrivals.iter().map(|arrival| arrival.at).max().expect("there are arrivals");
    (arrivals.len() - 1) as f64 / (limit * (last - first).as_secs_f64() / window.as_secs_f64())
}
