//! The context that all parts of the queue share: the connection to Redis, the clock, and the state of this process.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::join_all};
use tokio::sync::Notify;
use weir_core::{Backoff, Clock as _};
use weir_queue::{PermitId, QueueError, QueueResult};

use crate::{
    admission_estimates::AdmissionEstimates,
    admissions::Admissions,
    clock::{Measured, RedisClock},
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

/// How often the clock is set. Two quartz clocks drift apart by 0.1 ms in a second at most, a hundredth of the
/// narrowest slot.
const CLOCK_EVERY: Duration = Duration::from_secs(1);
/// Exchanges with a server for each setting of its offset. Their bounds are intersected, so one exchange in four
/// without a delay is enough.
const EXCHANGES: usize = 4;
/// A Redis whose clock is this far ahead of the wall clock when a process starts may have been set forward a moment ago.
const WALL_DOUBT: Duration = Duration::from_secs(1);
/// Running processes have corrected it by then: each sets its clock every second.
const CORRECTED_WITHIN: Duration = CLOCK_EVERY.saturating_mul(2);
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

    /// Sets the clock at the start of the process. A clock of Redis that is ahead of the wall clock is not trusted: it may
    /// have been set forward since the last process wrote a cursor. Running processes correct it. If there are none, the
    /// time continues at the wall clock, but not before the last time that a process has stated.
    pub(crate) async fn start_clock(&self) -> QueueResult<()> {
        self.set_clock().await?;
        if self.is_ahead_of_wall() {
            tokio::time::sleep(CORRECTED_WITHIN).await;
            self.set_clock().await?;
        }
        if self.is_ahead_of_wall() {
            tracing::warn!("the clock of Redis is ahead of this machine's; the time continues by this machine's");
            let shards: Vec<Shard> = Shard::all().collect();
            let wall = self.clock.wall().as_nanos() / 1_000;
            self.set_back(&shards, |_| (wall, wall)).await?;
            self.set_clock().await?;
        }
        self.clock.finish_start();
        Ok(())
    }

    fn is_ahead_of_wall(&self) -> bool {
        self.clock.time_ahead_of_wall().is_some_and(|ahead| ahead > WALL_DOUBT.as_nanos() as i64)
    }

    /// Sets the offset of every shard's clock, and learns its generation. Corrects the shards of a server whose clock was
    /// set forward. Returns whether none was.
    pub(crate) async fn set_clock(&self) -> QueueResult<bool> {
        // In a Cluster each shard has the clock of its node.
        let mut ahead = Vec::new();
        if self.connection.dialer().is_cluster() {
            for measured in join_all(Shard::all().map(|shard| self.measure(shard))).await {
                let (shard, measured) = measured?;
                if self.clock.set(shard, measured) {
                    ahead.push(shard);
                }
            }
            return self.correct(&ahead).await;
        }
        // Each shard begins, and its generation is learned.
        let begin: Vec<Call> = Shard::all().map(|shard| self.begin(shard)).collect();
        let asked_at = self.clock.monotonic();
        let answers = self.call_all(&begin).await;
        let answered_at = self.clock.monotonic();
        let mut begun = Vec::with_capacity(answers.len());
        for answered in answers {
            begun.push(Begun::read(&mut answered?.values).ok_or_else(unexpected)?);
        }
        // All shards are on one server with one clock, so what was stated to one of them holds for all.
        let heard = begun.iter().map(|begun| begun.heard).max().unwrap_or_default();
        Shard::all().for_each(|shard| self.clock.hear(shard, heard, answered_at));
        // And one of them is measured.
        let (_, measured) = self.measure(Shard::REFERENCE).await?;
        for (shard, begun) in Shard::all().zip(begun) {
            let own = Measured::of(asked_at, (begun.time, begun.server), answered_at);
            if self.clock.set(shard, measured) || self.clock.is_ahead(shard, own) {
                ahead.push(shard);
            }
        }
        self.correct(&ahead).await
    }

    /// Sets the time of shards that are ahead to the time of this process. Returns whether none was.
    async fn correct(&self, ahead: &[Shard]) -> QueueResult<bool> {
        if ahead.is_empty() {
            return Ok(true);
        }
        tracing::warn!("the clock of Redis was set forward; Weir keeps the time from before the change");
        self.set_back(ahead, |shard| self.clock.bounds(shard)).await?;
        Ok(false)
    }

    /// Sets the time of shards back, given as its bounds, unless other processes have stated later times.
    async fn set_back(&self, shards: &[Shard], time: impl Fn(Shard) -> (i64, i64)) -> QueueResult<()> {
        let calls: Vec<Call> = shards.iter().map(|&shard| self.begin_at(shard, time(shard))).collect();
        self.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))
    }

    pub(crate) fn begin(&self, shard: Shard) -> Call {
        self.begin_at(shard, (0, 0))
    }

    /// `time`: the bounds of the time to which the shard is set back, in microseconds, or 0.
    fn begin_at(&self, shard: Shard, (lower, upper): (i64, i64)) -> Call {
        let mut call = self.new_call(shard, Operation::Begin);
        call.arg(lower).arg(upper).arg(0);
        call
    }

    async fn measure(&self, shard: Shard) -> QueueResult<(Shard, Measured)> {
        let mut measured: Option<Measured> = None;
        for _ in 0..EXCHANGES {
            let call = self.begin(shard);
            let asked_at = self.clock.monotonic();
            let mut answered = self.call(call).await?;
            let answered_at = self.clock.monotonic();
            let Begun { time, server, heard } = Begun::read(&mut answered.values).ok_or_else(unexpected)?;
            self.clock.hear(shard, heard, answered_at);
            let exchange = Measured::of(asked_at, (time, server), answered_at);
            measured = Some(measured.map_or(exchange, |earlier| earlier.and(exchange)));
        }
        measured.map(|measured| (shard, measured)).ok_or_else(unexpected)
    }

    /// Sets the clock every second, and at once when it is in doubt. Never returns.
    pub(crate) async fn run_clock(&self) {
        loop {
            // Wait for the next second, or until the clock is in doubt. The clock is set in either case.
            let _ = tokio::time::timeout(CLOCK_EVERY, self.clock_doubt.notified()).await;
            match self.set_clock().await {
                // Since the start the other processes have corrected a clock that was set forward.
                Ok(true) => self.clock.state_time(),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%error, "could not set the clock; it keeps its offset");
                    self.registry.doubt();
                }
            }
        }
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

/// The answer of `begin.lua`.
struct Begun {
    /// The time of the shard and the clock of its server, in microseconds.
    time: i64,
    server: i64,
    /// The latest time that a process had stated, in microseconds; 0 for none.
    heard: i64,
}

impl Begun {
    fn read(answer: &mut AnswerReader) -> Option<Self> {
        Some(Self { time: answer.next_int()?, server: answer.next_int()?, heard: answer.next_int()? })
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
