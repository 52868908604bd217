//! The whole system under test: the real binary as a process, real sockets, and a receiver that keeps every arrival.

#![expect(dead_code, reason = "each test file uses its part of the harness")]

#[path = "support/app.rs"]
pub mod app;
#[path = "support/receiver.rs"]
pub mod receiver;

use std::time::{Duration, Instant};

pub use app::App;
pub use receiver::{Answer, Arrival, Receiver};

#[expect(clippy::disallowed_methods, reason = "the tests run in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Polls until `condition` holds.
pub async fn eventually(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = now() + within;
    while !condition().await {
        assert!(now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the receiver's own scheduling may add to or take from the distance of two arrivals. The recorded send starts are
/// judged without any.
pub const SLACK: Duration = Duration::from_millis(5);

/// No half-open window of `window` holds more than `limit` arrivals.
pub fn assert_cap(arrivals: &[Arrival], limit: usize, window: Duration) {
    let mut times: Vec<_> = arrivals.iter().map(|arrival| arrival.at).collect();
    times.sort_unstable();
    for (first, last) in times.iter().zip(times.iter().skip(limit)) {
        let distance = *last - *first;
        assert!(distance >= window - SLACK, "{limit} + 1 arrivals within {distance:?} of {window:?}");
    }
}

/// Sends per window ÷ limit, from the first arrival to the last.
pub fn utilisation(arrivals: &[Arrival], limit: f64, window: Duration) -> f64 {
    let first = arrivals.iter().map(|arrival| arrival.at).min().expect("there are arrivals");
    let last = arrivals.iter().map(|arrival| arrival.at).max().expect("there are arrivals");
    (arrivals.len() - 1) as f64 / (limit * (last - first).as_secs_f64() / window.as_secs_f64())
}
