//! The bodies of requests, and percentiles of durations.

use std::time::Duration;

use bytes::Bytes;

/// The size of a request's body.
pub(crate) const BODY_BYTES: usize = 256;

/// The data of the n-th event: its number, padded so that a request with one event has about [`BODY_BYTES`].
pub(crate) fn data(number: u64) -> String {
    format!(r#"{{"n":{number},"pad":"{}"}}"#, "x".repeat(BODY_BYTES - 80))
}

/// The same with a limit key at `/key`, which needs no escape in JSON.
pub(crate) fn keyed_data(number: u64, key: &str) -> String {
    format!(r#"{{"n":{number},"key":"{key}","pad":"{}"}}"#, "x".repeat(BODY_BYTES - 100))
}

/// The body of a request with one event.
pub(crate) fn event(event_type: &str, number: u64) -> String {
    format!(r#"{{"type":"{event_type}","data":{}}}"#, data(number))
}

/// The body of a request with `size` events: the `batch`-th of equal batches.
pub(crate) fn batch(event_type: &str, batch: u64, size: u64) -> Bytes {
    let events: Vec<_> = (0..size).map(|n| event(event_type, batch * size + n)).collect();
    format!(r#"{{"events":[{}]}}"#, events.join(",")).into()
}

/// Exact percentiles in milliseconds, by nearest rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Percentiles {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Percentiles {
    /// `None` without durations.
    pub(crate) fn of(mut durations: Vec<Duration>) -> Option<Self> {
        durations.sort_unstable();
        let rank = |percent: usize| {
            let index = (durations.len() * percent).div_ceil(100).saturating_sub(1);
            durations.get(index).map(|duration| duration.as_micros() as f64 / 1_000.0)
        };
        Some(Self { p50_ms: rank(50)?, p99_ms: rank(99)?, max_ms: rank(100)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_json_of_about_the_intended_size() {
        let event = event("bench.single", 1_234_567);
        assert!((BODY_BYTES - 40..=BODY_BYTES).contains(&event.len()), "{} bytes", event.len());
        let batch: serde_json::Value = serde_json::from_slice(&batch("bench.batch", 3, 100)).unwrap();
        assert_eq!(batch["events"].as_array().map(Vec::len), Some(100));
        assert_eq!(batch["events"][5]["data"]["n"], 305);
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let percentiles = Percentiles::of((1..=200).rev().map(Duration::from_millis).collect()).unwrap();
        assert_eq!((percentiles.p50_ms, percentiles.p99_ms, percentiles.max_ms), (100.0, 198.0, 200.0));
        assert!(Percentiles::of(Vec::new()).is_none());
    }
}
