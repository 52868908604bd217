//! What every part of the queue shares: the way to Redis, the clock, and what this process knows.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::join_all};
use tokio::sync::Notify;
use weir_core::Clock as _;
use weir_queue::PermitId;

use crate::{
    admission_estimates::AdmissionEstimates,
    admissions::Admissions,
    clock::{Bounds, RedisClock},
    codec::{Answer, Entry},
    config::RedisConfig,
    connect::Backoff,
    connection::{CallError, Connection},
    due_times::DueTimes,
    keys::{Keys, Shard},
    leases::OwnLease,
    permit_registry::PermitRegistry,
    scripts::{Call, Operation, from_micros},
    settlements::{End, Settlements},
    slots::SlotRequests,
    wakes::Wakes,
};

/// How often the clock is set.
const CLOCK_EVERY: Duration = Duration::from_secs(1);
/// Exchanges that set an offset; the fastest of them counts.
const EXCHANGES: usize = 4;
/// After so long without a notice the line is tested.
const SILENCE: Duration = Duration::from_secs(5);
/// Entries and destinations tidied in one call.
const TIDY_PAGE: i64 = 200;
/// A reader that asked for nothing for so long is gone.
const SILENT: Duration = Duration::from_secs(600);

pub(crate) struct ShardContext {
    pub(crate) config: RedisConfig,
    pub(crate) lease: OwnLease,
    pub(crate) keys: Keys,
    pub(crate) connection: Connection,
    pub(crate) clock: Arc<RedisClock>,
    pub(crate) due_times: DueTimes,
    /// An answer of Redis says that its clock is not what it was.
    pub(crate) clock_doubt: Notify,
    pub(crate) registry: PermitRegistry,
    pub(crate) slot_requests: SlotRequests,
    pub(crate) settlements: Settlements,
    pub(crate) wakes: Wakes,
    pub(crate) gates: AdmissionEstimates,
    pub(crate) admissions: Admissions,
}

/// What a script answered, after the generation that every answer begins with.
pub(crate) struct Answered {
    pub(crate) generation: u64,
    pub(crate) rest: Answer,
}

impl ShardContext {
    pub(crate) fn new_call(&self, shard: Shard, operation: Operation) -> Call {
        Call::new(&self.keys, shard, operation, self.clock.lower_bound(shard))
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Answered, CallError> {
        let mut answers = self.call_all(std::slice::from_ref(&call)).await;
        answers.pop().unwrap_or_else(|| Err(unexpected()))
    }

    /// Answers in the order of the calls.
    pub(crate) async fn call_all(&self, calls: &[Call]) -> Vec<Result<Answered, CallError>> {
        let answers = self.connection.call(calls).await;
        let read = |(call, answer): (&Call, Result<redis::Value, CallError>)| {
            let mut rest = Answer::new(answer?).ok_or_else(unexpected)?;
            let generation = rest.next_u64().ok_or_else(unexpected)?;
            tell_of_loss(call.shard, self.registry.learn_generation(call.shard, generation));
            Ok(Answered { generation, rest })
        };
        calls.iter().zip(answers).map(read).collect()
    }

    /// What became of a permit; Redis is told with the next settlements. It stays in hand until that is recorded.
    pub(crate) fn end(&self, id: PermitId, end: End) {
        let known = self.registry.generation(Shard::of(id.destination_id));
        if end == End::Used {
            let generation = self.registry.generation_of(id).unwrap_or(known);
            return self.settlements.add(id, end, generation, None);
        }
        let (generation, entry) =
            self.registry.end(id).map_or((known, None), |taken| (taken.generation, Some(taken.entry)));
        self.settlements.add(id, end, generation, entry);
    }

    /// Sets the offset of every shard's clock, and hears of its generation. A server whose clock was set forward is told the time, once;
    /// when it is still ahead the next time, this process is the one that stood still, and believes the server.
    pub(crate) async fn set_clock(&self, believes: bool) -> Result<bool, CallError> {
        let mut was_corrected = false;
        if self.connection.dialer().is_cluster() {
            for measured in join_all(Shard::all().map(|shard| self.measure(shard))).await {
                let (shard, bounds) = measured?;
                if self.clock.set(shard, bounds, believes) {
                    self.correct(&[shard]).await?;
                    was_corrected = true;
                }
            }
            return Ok(was_corrected);
        }
        let begin: Vec<Call> = Shard::all().map(|shard| self.begin(shard, false)).collect();
        self.call_all(&begin).await.into_iter().try_for_each(|answered| answered.map(drop))?;
        // One server, one clock.
        let (_, bounds) = self.measure(Shard::REFERENCE).await?;
        let shards: Vec<Shard> = Shard::all().collect();
        for &shard in &shards {
            was_corrected |= self.clock.set(shard, bounds, believes);
        }
        if was_corrected {
            self.correct(&shards).await?;
        }
        Ok(was_corrected)
    }

    /// The shards go on from this process's time.
    async fn correct(&self, shards: &[Shard]) -> Result<(), CallError> {
        tracing::warn!("the clock of Redis was set forward; its time goes on from where it was");
        let calls: Vec<Call> = shards.iter().map(|&shard| self.begin(shard, true)).collect();
        self.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))
    }

    pub(crate) fn begin(&self, shard: Shard, corrects: bool) -> Call {
        let mut call = self.new_call(shard, Operation::Begin);
        call.arg(u8::from(corrects));
        call
    }

    async fn measure(&self, shard: Shard) -> Result<(Shard, Bounds), CallError> {
        let mut known: Option<Bounds> = None;
        for _ in 0..EXCHANGES {
            let call = self.begin(shard, false);
            let asked = self.clock.monotonic();
            let mut answered = self.call(call).await?;
            let heard = self.clock.monotonic();
            let micros = answered.rest.next_int().ok_or_else(unexpected)?;
            let bounds = Bounds::of(asked, micros, heard);
            known = Some(known.map_or(bounds, |known| known.and(bounds)));
        }
        known.map(|bounds| (shard, bounds)).ok_or_else(unexpected)
    }

    /// Keeps the clock set, for ever.
    pub(crate) async fn run_clock(&self) {
        let mut believes = false;
        loop {
            // Either way the clock is looked at.
            let _ = tokio::time::timeout(CLOCK_EVERY, self.clock_doubt.notified()).await;
            match self.set_clock(believes).await {
                Ok(was_corrected) => believes = was_corrected,
                Err(error) => tracing::debug!(%error, "could not set the clock; it runs on"),
            }
        }
    }

    /// Listens to notices, for ever.
    pub(crate) async fn run_notices(&self) {
        let mut backoff = Backoff::default();
        loop {
            if let Err(error) = self.listen(&mut backoff).await {
                tracing::debug!(%error, "not listening to notices; trying again");
            }
            tokio::time::sleep(backoff.fail()).await;
        }
    }

    async fn listen(&self, backoff: &mut Backoff) -> redis::RedisResult<()> {
        let (mut line, mut messages) = self.connection.dialer().notices().await?.split();
        line.subscribe(self.keys.notices()).await?;
        backoff.reset();
        loop {
            let Ok(message) = tokio::time::timeout(SILENCE, messages.next()).await else {
                // Nothing to hear, or a line that is dead without knowing.
                let answered = tokio::time::timeout(SILENCE, line.ping::<redis::Value>()).await;
                answered.map_err(|_| redis::RedisError::from((redis::ErrorKind::Io, "no answer to a ping")))??;
                continue;
            };
            let Some(message) = message else { return Ok(()) };
            let text: String = message.get_payload()?;
            if self.hear(&text).is_none() {
                tracing::warn!(text, "a notice that cannot be read");
            }
        }
    }

    /// A notice: what happened, to whom, and a number.
    fn hear(&self, text: &str) -> Option<()> {
        let mut words = text.split(' ');
        let (what, of, value) = (words.next()?, words.next()?, words.next()?.parse::<u64>().ok()?);
        match what {
            "due" => self.due_times.learn(Shard::parse(of)?, from_micros(value.try_into().ok()?)),
            "generation" => {
                let shard = Shard::parse(of)?;
                tell_of_loss(shard, self.registry.learn_generation(shard, value));
            }
            _ => return None,
        }
        Some(())
    }

    /// Drops what dead workers left, in Redis and here, for ever.
    pub(crate) async fn run_tidying(&self) {
        loop {
            tokio::time::sleep(self.config.tidy_every).await;
            self.registry.tidy(self.clock.now());
            self.gates.tidy(self.clock.now());
            for shard in Shard::all() {
                if let Err(error) = self.tidy(shard).await {
                    tracing::debug!(%error, "could not tidy; the next time will do");
                    break;
                }
            }
        }
    }

    async fn tidy(&self, shard: Shard) -> Result<(), CallError> {
        loop {
            let mut call = self.new_call(shard, Operation::Tidy);
            call.arg(TIDY_PAGE).arg(self.config.unread_for.as_millis() as u64).arg(SILENT.as_millis() as u64);
            let mut answer = self.call(call).await?.rest;
            let dropped = answer.next_int().ok_or_else(unexpected)?;
            let unread = answer.next_entries().ok_or_else(unexpected)?;
            if !unread.is_empty() {
                tracing::warn!(
                    dropped,
                    unread = unread.len(),
                    "dropped permits that no worker has used; is there a worker?"
                );
            }
            self.give_back(unread);
            if dropped < TIDY_PAGE {
                return Ok(());
            }
        }
    }

    /// What has left the delivery queue and was in nobody's hand.
    fn give_back(&self, unread: Vec<Entry>) {
        for entry in &unread {
            self.end(entry.id, End::Unused);
        }
        self.admissions.decline(unread.into_iter().map(|entry| entry.delivery).collect());
    }
}

fn tell_of_loss(shard: Shard, lost: bool) {
    if lost {
        tracing::warn!(shard = shard.index(), "Redis has lost what it knew; destinations recover from the store");
    }
}

pub(crate) fn unexpected() -> CallError {
    CallError::Unknown("an answer of an unexpected shape".to_owned())
}
