//! How busy the process was in the last seconds: the threads of its runtimes, and the places of its worker. Both are means
//! over time. Many destinations send in the same milliseconds, so a single reading of the places says little.

use std::{collections::VecDeque, sync::OnceLock, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::{Handle, RuntimeMetrics},
    time::Instant,
};
use weir_worker::WorkerLoad;

/// How often a sample is taken.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The share of the threads is measured from the oldest sample: about ten seconds, because a worker that starts is busy
/// for a moment.
const SAMPLES_KEPT: usize = 10;
/// The share of the places is measured from the last sample but one: one to two seconds, long enough for a whole round of
/// sends to destinations with limits per second, and short enough to show at once that receivers hang.
const SAMPLES_OF_PLACES: usize = 2;

/// Samples of the time that was spent. A thread that waits for a CPU counts as busy, so a throttled process is a busy
/// one.
pub(super) struct BusyMeter {
    runtime: RuntimeMetrics,
    /// The threads for requests, if they are not those above.
    intake: OnceLock<RuntimeMetrics>,
    worker: OnceLock<WorkerLoad>,
    samples: Mutex<VecDeque<Sample>>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    /// The sum over all threads.
    worked: Duration,
    /// The same of the threads for requests.
    took_in: Duration,
    /// The sum over all places of the worker.
    held: Duration,
}

impl BusyMeter {
    /// Measures the runtime that runs this function.
    pub(super) fn start() -> Self {
        let runtime = Handle::current().metrics();
        let busy = Self { runtime, intake: OnceLock::new(), worker: OnceLock::new(), samples: Mutex::default() };
        busy.sample();
        busy
    }

    /// Measures the places of this worker too.
    pub(super) fn watch(&self, worker: WorkerLoad) {
        // A process has one worker, so this is the first call.
        let _ = self.worker.set(worker);
    }

    /// Measures these threads for requests too.
    pub(super) fn watch_threads(&self, intake: &Handle) {
        let _ = self.intake.set(intake.metrics());
    }

    /// Takes a sample. Call it every [`SAMPLE_EVERY`].
    pub(super) fn sample(&self) {
        let now = self.now();
        let mut samples = self.samples.lock();
        if samples.len() == SAMPLES_KEPT {
            samples.pop_front();
        }
        samples.push_back(now);
    }

    /// How much of the last ten seconds the threads were busy: a share from 0 to 1. Of a process that has threads for
    /// requests, the share of the busier ones.
    pub(super) fn of_threads(&self) -> f64 {
        let own = self.share(SAMPLES_KEPT, self.runtime.num_workers(), |sample| sample.worked);
        let intake = self.intake.get().map_or(0, RuntimeMetrics::num_workers);
        own.max(self.share(SAMPLES_KEPT, intake, |sample| sample.took_in))
    }

    /// How many of the worker's places attempts held in the last second, on average: a share from 0 to 1.
    pub(super) fn of_places(&self) -> f64 {
        self.share(SAMPLES_OF_PLACES, self.worker.get().map_or(0, WorkerLoad::capacity), |sample| sample.held)
    }

    /// The share since the earliest of the last `samples` samples.
    fn share(&self, samples: usize, of: usize, spent: impl Fn(Sample) -> Duration) -> f64 {
        let (since, now) = (self.samples.lock().iter().rev().take(samples).next_back().copied(), self.now());
        since.map_or(0.0, |since| share(spent(now).saturating_sub(spent(since)), now.at.duration_since(since.at), of))
    }

    fn now(&self) -> Sample {
        Sample {
            at: Instant::now(),
            worked: worked(&self.runtime),
            took_in: self.intake.get().map(worked).unwrap_or_default(),
            held: self.worker.get().map(WorkerLoad::spent).unwrap_or_default(),
        }
    }
}

/// The time that all threads of a runtime have worked.
fn worked(runtime: &RuntimeMetrics) -> Duration {
    (0..runtime.num_workers()).map(|thread| runtime.worker_total_busy_duration(thread)).sum()
}

/// The share of the time that `of` threads or places had.
fn share(spent: Duration, time: Duration, of: usize) -> f64 {
    let had = time.as_secs_f64() * of as f64;
    if had == 0.0 { 0.0 } else { (spent.as_secs_f64() / had).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_is_measured_over_the_time_of_all_threads() {
        let (secs, time) = (Duration::from_secs, Duration::from_secs(10));
        assert_eq!([0, 5, 20, 33].map(|spent| share(secs(spent), time, 2)), [0.0, 0.25, 1.0, 1.0]);
        assert_eq!(share(Duration::ZERO, Duration::ZERO, 2), 0.0, "no time has passed");
        assert_eq!(share(Duration::ZERO, time, 0), 0.0, "there is no worker");
    }
}
