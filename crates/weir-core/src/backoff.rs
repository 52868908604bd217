//! The delays between the tries of a call that fails.

use std::time::Duration;

/// Doubles the delay with each failure, up to a cap. A success starts again with the first delay.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    /// Failures since the last success.
    failures: u32,
}

/// For calls of the store and of Redis. 50 ms: most failures are one lost connection, and the next try succeeds. 5 s: a
/// long outage costs few calls, and every loop continues within 5 s of its end. The sweep relies on that: it does not
/// resolve claims as unknown before the workers can have recorded them.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(5))
    }
}

impl Backoff {
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, failures: 0 }
    }

    /// A call succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// A call failed. Returns how long to wait before the next one.
    pub fn fail(&mut self) -> Duration {
        let delay = exponential(self.first, self.cap, self.failures);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// Like [`Self::fail`], but returns half to all of the delay, so that several processes do not try at the same
    /// time. `jitter` is uniform in [0, 1).
    pub fn fail_with_jitter(&mut self, jitter: f64) -> Duration {
        self.fail().mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

/// `min(cap, first·2^doublings)`.
pub(crate) fn exponential(first: Duration, cap: Duration, doublings: u32) -> Duration {
    // 64 doublings of a nanosecond are 584 years.
    (0..doublings.min(64)).fold(first.min(cap), |delay, _| delay.saturating_mul(2).min(cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn delays_double_up_to_the_cap_until_a_success() {
        let mut backoff = Backoff::new(50 * MS, 300 * MS);
        let delays = [(); 5].map(|()| backoff.fail());
        assert_eq!(delays, [50, 100, 200, 300, 300].map(|ms| ms * MS));
        backoff.reset();
        assert_eq!(backoff.fail(), 50 * MS);
    }

    #[test]
    fn jitter_shortens_a_delay_to_half_at_most() {
        let mut backoff = Backoff::new(50 * MS, 300 * MS);
        assert_eq!(backoff.fail_with_jitter(0.0), 25 * MS);
        assert_eq!(backoff.fail_with_jitter(0.5), 75 * MS);
        assert!(backoff.fail_with_jitter(0.999) <= 200 * MS);
    }

    #[test]
    fn the_delay_does_not_overflow() {
        assert_eq!(exponential(MS, Duration::MAX, u32::MAX), MS * (1 << 31) * (1 << 31) * 4);
        assert_eq!(exponential(400 * MS, 300 * MS, 0), 300 * MS);
    }
}
