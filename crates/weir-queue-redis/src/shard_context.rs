//! The context that all parts of the queue share: the connection to Redis, the clock, and the state of this process.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use tokio::sync::Notify;
use weir_core::{Backoff, Clock as _};
use weir_queue::{PermitId, QueueError, QueueResult};

use crate::{
    admission_estimates::AdmissionEstimates,
    admissions::Admissions,
    clock::RedisClock,
    codec::{AnswerReader, Entry},
    config::RedisConfig,
    connection::Connection,
    due_times::DueTimes,
    keys::{Keys, Shard},
    leases::OwnLease,
    permit_registry::PermitRegistry,
    repairs::Repairs,
    scripts::{Call, Operation, from_micros},
    settlements::{PermitEnd, Settlements},
    slots::SlotRequests,
    wakes::Wakes,
};

/// After this long without a notification the connection is tested with a ping. Until a broken connection is noticed,
/// notifications are lost, and due jobs are found by the check of each second.
const PING_AFTER: Duration = Duration::from_secs(5);
/// Entries and destinations that one call tidies, so that no script occupies the server for long.
const TIDY_PAGE: i64 = 200;
/// A reader that was idle for this long is removed from the consumer group. Much longer than any permit lives: a
/// process that has only been cut off keeps its reader.
const READER_IDLE: Duration = Duration::from_secs(600);

pub(crate) struct ShardContext {
    pub(crate) config: RedisConfig,
    pub(crate) lease: OwnLease,
    pub(crate) keys: Keys,
    pub(crate) connection: Connection,
    pub(crate) clock: Arc<RedisClock>,
    pub(crate) due_times: DueTimes,
    /// Notified when an answer of Redis suggests that its clock was changed.
    pub(crate) clock_doubt: Notify,
    pub(crate) registry: PermitRegistry,
    pub(crate) slot_requests: SlotRequests,
    pub(crate) settlements: Settlements,
    pub(crate) wakes: Wakes,
    pub(crate) admission_estimates: AdmissionEstimates,
    pub(crate) admissions: Admissions,
    pub(crate) repairs: Repairs,
}

/// The answer of a script.
pub(crate) struct ScriptAnswer {
    /// Every answer begins with it.
    pub(crate) generation: u64,
    pub(crate) values: AnswerReader,
}

impl ShardContext {
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
    pub(crate) fn read_answer(&self, shard: Shard, answer: redis::Value) -> QueueResult<ScriptAnswer> {
        let mut values = AnswerReader::new(answer).ok_or_else(unexpected)?;
        let generation = values.next_u64().ok_or_else(unexpected)?;
        warn_of_loss(shard, self.registry.learn_generation(shard, generation));
        Ok(ScriptAnswer { generation, values })
    }

    /// Ends a permit; Redis learns it with the next settlements. A used permit stays held until its attempt is
    /// recorded.
    pub(crate) fn end(&self, id: PermitId, end: PermitEnd) {
        let current = self.registry.generation(Shard::of(id.destination_id));
        if matches!(end, PermitEnd::Used { .. }) {
            let generation = self.registry.generation_of(id).unwrap_or(current);
            return self.settlements.add(id, end, generation, None);
        }
        let (generation, entry) =
            self.registry.remove(id).map_or((current, None), |held| (held.generation, Some(held.entry)));
        self.settlements.add(id, end, generation, entry);
    }

    /// Receives notifications. Never returns.
    pub(crate) async fn run_notifications(&self) {
        let mut backoff = Backoff::default();
        loop {
            if let Err(error) = self.listen(&mut backoff).await {
                tracing::debug!(%error, "not subscribed to notifications; trying again");
            }
            tokio::time::sleep(backoff.fail_with_jitter(rand::random())).await;
        }
    }

    async fn listen(&self, backoff: &mut Backoff) -> redis::RedisResult<()> {
        let (mut connection, mut messages) = self.connection.dialer().pub_sub().await?.split();
        connection.subscribe(self.keys.notifications()).await?;
        backoff.reset();
        loop {
            let Ok(message) = tokio::time::timeout(PING_AFTER, messages.next()).await else {
                // There were no notifications, or the connection is broken.
                let answered = tokio::time::timeout(PING_AFTER, connection.ping::<redis::Value>()).await;
                answered.map_err(|_| redis::RedisError::from((redis::ErrorKind::Io, "no answer to a ping")))??;
                continue;
            };
            let Some(message) = message else { return Ok(()) };
            let text: String = message.get_payload()?;
            if self.apply_notification(&text).is_none() {
                tracing::warn!(text, "could not read a notification");
            }
        }
    }

    /// A notification is four words: its kind, a shard, a number, and the installation. Those of other installations
    /// on the same server are ignored. An earlier version names no installation; what it notifies of is found within a
    /// second.
    fn apply_notification(&self, text: &str) -> Option<()> {
        let mut words = text.split(' ');
        let (kind, shard, value) = (words.next()?, words.next()?, words.next()?.parse::<u64>().ok()?);
        if words.next() != Some(self.keys.installation()) {
            return Some(());
        }
        match kind {
            "due" => self.due_times.learn(Shard::parse(shard)?, from_micros(value.try_into().ok()?)),
            "generation" => {
                let shard = Shard::parse(shard)?;
                warn_of_loss(shard, self.registry.learn_generation(shard, value));
            }
            _ => return None,
        }
        Some(())
    }

    /// Drops expired state of dead workers, in Redis and in this process. Never returns.
    pub(crate) async fn run_tidying(&self) {
        loop {
            tokio::time::sleep(self.config.tidy_every).await;
            self.registry.tidy(self.clock.now());
            self.admission_estimates.tidy(self.clock.now());
            for shard in Shard::all() {
                if let Err(error) = self.tidy(shard).await {
                    tracing::debug!(%error, "could not drop the expired state of dead workers; trying again later");
                    break;
                }
            }
        }
    }

    async fn tidy(&self, shard: Shard) -> QueueResult<()> {
        loop {
            let mut call = self.new_call(shard, Operation::Tidy);
            call.arg(TIDY_PAGE).arg(self.config.unread_for.as_millis() as u64).arg(READER_IDLE.as_millis() as u64);
            let mut answer = self.call(call).await?.values;
            let dropped = answer.next_int().ok_or_else(unexpected)?;
            let unread = answer.next_entries().ok_or_else(unexpected)?;
            if !unread.is_empty() {
                tracing::warn!(
                    dropped,
                    unread = unread.len(),
                    "dropped permits that no worker has used; is a worker running?"
                );
            }
            self.decline_unread(unread);
            // Less than a page: no other entry is old enough.
            if dropped < TIDY_PAGE {
                return Ok(());
            }
        }
    }

    /// Ends permits that left the delivery queue unread, and declines their deliveries.
    fn decline_unread(&self, unread: Vec<Entry>) {
        for entry in &unread {
            self.end(entry.id, PermitEnd::Unused);
        }
        self.admissions.decline(unread.into_iter().map(|entry| entry.delivery).collect());
    }
}

fn warn_of_loss(shard: Shard, lost: bool) {
    if lost {
        tracing::warn!(shard = shard.index(), "Redis has lost its data; destinations recover from the store");
    }
}

pub(crate) fn unexpected() -> QueueError {
    QueueError::Unknown("the answer has an unexpected shape".to_owned())
}
