//! When shards are mended whose keys somebody has damaged: overwritten with another type or with other values, or deleted
//! in part.
//!
//! There is one remedy for every kind of damage: the shard begins a new generation, as if Redis had lost its data, and
//! everything is rebuilt from the store.

use std::time::Duration;

use parking_lot::Mutex;

use crate::keys::{SHARDS, Shard};

/// How often this process mends a shard at most. Each time the destinations of the shard may wait for three seconds, so
/// a script that always fails must not cause a repair with each call.
const REPAIR_EVERY: Duration = Duration::from_secs(5);
/// How often a foreign marker is reported. The call of every shard fails several times a second.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// When each shard was last mended and last reported, by the monotonic clock in nanoseconds.
#[derive(Default)]
pub(crate) struct Repairs(Mutex<[LastTimes; SHARDS]>);

#[derive(Clone, Copy, Default)]
struct LastTimes {
    repaired: Option<i64>,
    reported: Option<i64>,
}

/// Whether `every` has passed. If so, it begins again at `now`.
fn is_due(last: &mut Option<i64>, every: Duration, now: i64) -> bool {
    let due = last.is_none_or(|last| now - last >= every.as_nanos() as i64);
    if due {
        *last = Some(now);
    }
    due
}

impl Repairs {
    pub(crate) fn may_repair(&self, shard: Shard, now: i64) -> bool {
        is_due(&mut self.0.lock()[shard.index()].repaired, REPAIR_EVERY, now)
    }

    pub(crate) fn may_report(&self, shard: Shard, now: i64) -> bool {
        is_due(&mut self.0.lock()[shard.index()].reported, REPORT_EVERY, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_mended_at_once_and_then_once_in_a_while() {
        let repairs = Repairs::default();
        let every = REPAIR_EVERY.as_nanos() as i64;
        let other = Shard::parse("1").unwrap();
        assert!(repairs.may_repair(Shard::REFERENCE, 7));
        assert!(!repairs.may_repair(Shard::REFERENCE, 7 + every - 1));
        assert!(repairs.may_repair(other, 7 + every - 1), "each shard is mended on its own");
        assert!(repairs.may_repair(Shard::REFERENCE, 7 + every));
    }
}
