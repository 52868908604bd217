//! Calls of scripts on shards: the connection, the keys, the clock, and what this process knows of Redis. All other parts
//! of the queue hold it.

use std::sync::Arc;

use weir_core::claim::ProcessId;
use weir_queue::{PermitId, QueueError, QueueResult};

use crate::{
    admission_estimates::AdmissionEstimates,
    clock::RedisClock,
    codec::AnswerReader,
    config::RedisConfig,
    connect::Dialer,
    connection::{CallFailure, Connection, FailureCause},
    due_times::DueTimes,
    heartbeat::OwnHeartbeat,
    homes::Homes,
    keys::{Keys, Shard},
    permit_registry::PermitRegistry,
    repairs::Repairs,
    scripts::{Call, Operation},
};

pub(crate) struct ShardClient {
    pub(crate) config: RedisConfig,
    pub(crate) keys: Keys,
    pub(crate) connection: Connection,
    pub(crate) clock: Arc<RedisClock>,
    pub(crate) heartbeat: OwnHeartbeat,
    pub(crate) registry: PermitRegistry,
    pub(crate) due_times: DueTimes,
    pub(crate) estimates: AdmissionEstimates,
    pub(crate) homes: Homes,
    repairs: Repairs,
}

/// The answer of a script.
pub(crate) struct ScriptAnswer {
    /// Every answer begins with it.
    pub(crate) generation: u64,
    pub(crate) values: AnswerReader,
}

impl ShardClient {
    pub(crate) fn new(config: RedisConfig, dialer: Dialer) -> Self {
        Self {
            keys: Keys::new(&config.prefix, config.installation),
            connection: Connection::new(dialer),
            clock: Arc::new(RedisClock::new()),
            heartbeat: OwnHeartbeat::new(),
            registry: PermitRegistry::default(),
            due_times: DueTimes::new(),
            estimates: AdmissionEstimates::default(),
            homes: Homes::default(),
            repairs: Repairs::default(),
            config,
        }
    }

    pub(crate) fn new_call(&self, shard: Shard, operation: Operation) -> Call {
        Call::new(&self.keys, shard, operation, self.clock.stated_time(shard), self.registry.generation(shard))
    }

    pub(crate) async fn call(&self, call: Call) -> QueueResult<ScriptAnswer> {
        let mut answers = self.call_all(std::slice::from_ref(&call)).await;
        answers.pop().unwrap_or_else(|| Err(unexpected()))
    }

    /// Returns the answers in the order of the calls.
    pub(crate) async fn call_all(&self, calls: &[Call]) -> Vec<QueueResult<ScriptAnswer>> {
        let answers = self.connection.call(calls).await;
        let mut read = Vec::new();
        for (call, answer) in calls.iter().zip(answers) {
            read.push(match answer {
                Ok(answer) => self.read_answer(call.shard, answer),
                Err(failure) => {
                    self.mend(call, &failure).await;
                    Err(failure.error)
                }
            });
        }
        read
    }

    /// Every answer begins with the generation.
    fn read_answer(&self, shard: Shard, answer: redis::Value) -> QueueResult<ScriptAnswer> {
        let mut values = AnswerReader::new(answer).ok_or_else(unexpected)?;
        let generation = values.next_u64().ok_or_else(unexpected)?;
        self.learn_generation(shard, generation);
        Ok(ScriptAnswer { generation, values })
    }

    pub(crate) fn learn_generation(&self, shard: Shard, generation: u64) {
        if self.registry.learn_generation(shard, generation) {
            tracing::warn!(shard = shard.index(), "Redis has lost its data; destinations recover from the store");
        }
    }

    /// The shard that issued a permit.
    pub(crate) fn shard_of_permit(&self, id: PermitId) -> Shard {
        self.registry.issued_by(id).map_or_else(|| self.homes.of(id.destination_id), |(shard, _)| shard)
    }

    /// Whether a permit may be used: the heartbeat is valid, and the permit was taken under the current id of this
    /// process.
    pub(crate) fn may_use(&self, id: PermitId) -> bool {
        self.heartbeat.is_valid() && self.registry.holder(id).is_none_or(|holder| holder == self.heartbeat.process())
    }

    /// Whether claims of `process` may be published: the heartbeat is valid, and `process` is the current id of this
    /// process.
    pub(crate) fn may_publish(&self, process: Option<ProcessId>) -> bool {
        self.heartbeat.is_valid() && process == self.heartbeat.process()
    }

    /// Does what a failed call asks for.
    async fn mend(&self, call: &Call, failure: &CallFailure) {
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

pub(crate) fn unexpected() -> QueueError {
    QueueError::Unknown("the answer has an unexpected shape".to_owned())
}
