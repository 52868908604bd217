//! How busy the threads of the runtime were in the last seconds.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::{Handle, RuntimeMetrics},
    time::Instant,
};

/// Samples kept. The share is measured from the oldest sample, so it covers one to two sampling intervals.
const SAMPLES_KEPT: usize = 2;

/// Samples of the time that the runtime's threads were busy. A thread that waits for a CPU counts as busy, so a
/// throttled process is a busy one.
pub(super) struct BusyMeter {
    runtime: RuntimeMetrics,
    samples: Mutex<VecDeque<Sample>>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    /// Sum over all threads.
    worked: Duration,
}

impl BusyMeter {
    /// Measures the runtime that runs this function.
    pub(super) fn start() -> Self {
        let busy = Self { runtime: Handle::current().metrics(), samples: Mutex::default() };
        busy.sample();
        busy
    }

    /// Takes a sample. Call it every few seconds.
    pub(super) fn sample(&self) {
        let now = self.now();
        let mut samples = self.samples();
        if samples.len() == SAMPLES_KEPT {
            samples.pop_front();
        }
        samples.push_back(now);
    }

    /// The share of time that the threads were busy since the oldest sample, from 0 to 1.
    pub(super) fn share(&self) -> f64 {
        let (since, now) = (self.samples().front().copied(), self.now());
        since.map_or(0.0, |since| share(since, now, self.runtime.num_workers()))
    }

    fn now(&self) -> Sample {
        let threads = 0..self.runtime.num_workers();
        Sample {
            at: Instant::now(),
            worked: threads.map(|thread| self.runtime.worker_total_busy_duration(thread)).sum(),
        }
    }

    // A panic under the lock leaves valid samples.
    fn samples(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn share(since: Sample, now: Sample, threads: usize) -> f64 {
    let had = now.at.duration_since(since.at).as_secs_f64() * threads as f64;
    if had == 0.0 {
        return 0.0;
    }
    (now.worked.saturating_sub(since.worked).as_secs_f64() / had).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_is_measured_over_the_time_of_all_threads() {
        let at = Instant::now();
        let since = Sample { at, worked: Duration::from_secs(7) };
        let after = |worked| Sample { at: at + Duration::from_secs(10), worked: Duration::from_secs(worked) };
        assert_eq!([7, 12, 27, 40].map(|worked| share(since, after(worked), 2)), [0.0, 0.25, 1.0, 1.0]);
        assert_eq!(share(since, since, 2), 0.0, "no time has passed");
    }
}
