//! Mends shards whose keys somebody has damaged: overwritten with another type or with other values, or deleted in part.
//!
//! There is one remedy for every kind of damage: the shard begins a new generation, as if Redis had lost its data, and
//! everything is rebuilt from the store.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{
    connection::{CallFailure, FailureCause},
    keys::{SHARDS, Shard},
    scripts::{Call, Operation},
    shard_context::ShardContext,
};

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
    // A panic while the lock is held is a bug already reported; the times are valid between two calls.
    fn with<T>(&self, shard: Shard, act: impl FnOnce(&mut LastTimes) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[shard.index()])
    }

    fn may_repair(&self, shard: Shard, now: i64) -> bool {
        self.with(shard, |last| is_due(&mut last.repaired, REPAIR_EVERY, now))
    }

    fn may_report(&self, shard: Shard, now: i64) -> bool {
        self.with(shard, |last| is_due(&mut last.reported, REPORT_EVERY, now))
    }
}

impl ShardContext {
    /// Does what a failed call asks for.
    pub(crate) async fn mend(&self, call: &Call, failure: &CallFailure) {
        let (shard, now) = (call.shard, self.clock.monotonic());
        match &failure.cause {
            FailureCause::Damage if self.repairs.may_repair(shard, now) => self.repair(call, failure).await,
            FailureCause::Foreign(owner) if self.repairs.may_report(shard, now) => {
                tracing::error!(
                    shard = shard.index(),
                    %owner,
                    own = self.keys.installation(),
                    prefix = self.config.prefix,
                    "redis_prefix: another Weir uses these keys of Redis now, so nothing is scheduled or sent with them; \
                     give one of the two another WEIR_REDIS_PREFIX or another Redis"
                );
            }
            FailureCause::Damage | FailureCause::Foreign(_) | FailureCause::Server => {}
        }
    }

    /// Ends the generation in which the call failed, unless it has ended already.
    async fn repair(&self, failed: &Call, failure: &CallFailure) {
        let shard = failed.shard;
        tracing::warn!(
            shard = shard.index(),
            error = %failure.error,
            "keys of Redis were damaged; the shard begins anew, and its destinations recover from the store"
        );
        let mut call = self.new_call(shard, Operation::Begin);
        call.arg(0).arg(0).arg(0).arg(-1).arg(failed.generation);
        match self.connection.call(&[call]).await.pop() {
            Some(Ok(answer)) => {
                if let Err(error) = self.read_answer(shard, answer) {
                    tracing::warn!(%error, "could not read the answer to a repair");
                }
            }
            Some(Err(failure)) => tracing::warn!(error = %failure.error, "could not mend a shard; trying again"),
            None => {}
        }
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
