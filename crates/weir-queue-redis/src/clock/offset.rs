//! The offset of another clock from this process's monotonic clock, with its error.

use std::sync::atomic::{AtomicI64, Ordering};

/// Earlier bounds widen by the time since their exchange, divided by this number: 500 ppm, the usual maximum rate of a
/// slewed clock.
const SLEW: i64 = 2_000;

/// The bounds of a clock's offset in nanoseconds, from exchanges with its server: at least `low`, at most `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) low: i64,
    pub(crate) high: i64,
}

impl Bounds {
    /// The bounds from one exchange, with the times of request and answer by the monotonic clock.
    pub(crate) fn of(asked_at: i64, micros: i64, answered_at: i64) -> Self {
        let nanos = micros.saturating_mul(1_000);
        Self { low: nanos - answered_at, high: nanos + 1_000 - asked_at }
    }

    /// The intersection of both. If they contradict each other, the clock was set in between, and the later bounds hold.
    pub(crate) fn and(self, later: Self) -> Self {
        let both = Self { low: self.low.max(later.low), high: self.high.min(later.high) };
        if both.low <= both.high { both } else { later }
    }

    /// The bounds of a clock that is ahead of this one by so many microseconds.
    pub(crate) fn shifted(self, micros: i64) -> Self {
        let nanos = micros.saturating_mul(1_000);
        Self { low: self.low.saturating_add(nanos), high: self.high.saturating_add(nanos) }
    }

    fn middle(self) -> i64 {
        self.low + (self.high - self.low) / 2
    }
}

/// The offset of another clock from the monotonic clock, in nanoseconds.
#[derive(Default)]
pub(crate) struct Offset {
    nanos: AtomicI64,
    error: AtomicI64,
    /// When the offset was set, by the monotonic clock; 0 before the first time.
    set_at: AtomicI64,
}

impl Offset {
    /// The bounds at `now`: the last ones, widened by as much as the clock may have been slewed since then. `None` before
    /// the first exchange.
    pub(crate) fn bounds(&self, now: i64) -> Option<Bounds> {
        match self.set_at.load(Ordering::Relaxed) {
            0 => None,
            set_at => {
                let (nanos, error) = (self.nanos(), self.error());
                let margin = error + (now - set_at) / SLEW;
                Some(Bounds { low: nanos - margin, high: nanos + margin })
            }
        }
    }

    /// The middle of the bounds.
    pub(crate) fn nanos(&self) -> i64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// Half the width of the bounds.
    pub(crate) fn error(&self) -> i64 {
        self.error.load(Ordering::Relaxed)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set_at.load(Ordering::Relaxed) > 0
    }

    /// How far a clock with these bounds is ahead of the offset, negative when it is behind; `None` unless they contradict
    /// each other.
    pub(crate) fn contradiction(&self, measured: Bounds, now: i64) -> Option<i64> {
        let known = self.bounds(now)?;
        let contradicts = measured.low > known.high || measured.high < known.low;
        contradicts.then(|| measured.middle() - known.middle())
    }

    /// Sets the offset from the bounds of new exchanges. Earlier bounds still count, so that slow exchanges of a busy
    /// process or a busy Redis do not make the error larger than the amount by which a slot can be narrowed.
    pub(crate) fn follow(&self, measured: Bounds, now: i64) {
        self.set(self.bounds(now).map_or(measured, |known| known.and(measured)), now);
    }

    pub(crate) fn set(&self, bounds: Bounds, now: i64) {
        self.set_at.store(now, Ordering::Relaxed);
        self.nanos.store(bounds.middle(), Ordering::Relaxed);
        self.error.store((bounds.high - bounds.low) / 2, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_narrow_the_offset() {
        // The server is 5 ms ahead. In one exchange the request was slow, in the other the answer.
        let slow_request = Bounds::of(0, 5_000 + 900, 1_000_000);
        let slow_answer = Bounds::of(2_000_000, 5_000 + 2_100, 3_000_000);
        assert_eq!(slow_request.and(slow_answer), Bounds { low: 4_900_000, high: 5_101_000 });
    }

    #[test]
    fn later_bounds_replace_bounds_that_contradict_them() {
        let before = Bounds::of(0, 1_000_000, 1_000);
        let after = Bounds::of(2_000, 9_000_000, 3_000);
        assert_eq!(before.and(after), after);
    }

    #[test]
    fn bounds_that_do_not_overlap_contradict_each_other_and_the_middles_tell_how_much() {
        let offset = Offset::default();
        let bounds = |middle: i64| Bounds { low: middle - 100, high: middle + 100 };
        assert_eq!(offset.contradiction(bounds(9_000), 1), None, "nothing is known yet");
        offset.set(bounds(5_000), 1);
        for (measured, expected) in
            [(5_000, None), (5_200, None), (5_201, Some(201)), (4_800, None), (4_799, Some(-201))]
        {
            assert_eq!(offset.contradiction(bounds(measured), 1), expected, "{measured}");
        }
        // A second later the clock may have been slewed by half a millisecond.
        assert_eq!(offset.contradiction(bounds(505_199), 1_000_000_001), None);
    }
}
