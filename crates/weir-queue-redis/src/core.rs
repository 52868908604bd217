//! What every part of the queue shares: the way to Redis, the clock, and what this process knows.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::join_all};
use weir_core::{Clock as _, DestinationId, claim::ClaimedDelivery};
use weir_queue::{Permit, PermitId};

use crate::{
    admissions::Admissions,
    advance::Advance,
    agenda::Agenda,
    clock::{Bounds, RedisClock},
    config::RedisConfig,
    connect::Backoff,
    gates::Gates,
    hands::{Hands, Received},
    keys::{Keys, Shard},
    local::Local,
    reports::Reports,
    scripts::{Call, Operation, from_micros},
    trunk::{CallError, Trunk},
    wakes::Wakes,
    wire::{Answer, Entry, Granted},
};

/// Often enough that what Redis answered stays trusted; see [`Hands`].
const CLOCK_EVERY: Duration = Duration::from_secs(1);
/// Exchanges that set an offset; the fastest of them counts.
const EXCHANGES: usize = 4;
/// After so long without a notice the line is tested.
const SILENCE: Duration = Duration::from_secs(5);
/// Entries and destinations tidied in one call.
const TIDY_PAGE: i64 = 200;
/// A reader that asked for nothing for so long is gone.
const SILENT: Duration = Duration::from_secs(600);

pub(crate) struct Core {
    pub(crate) config: RedisConfig,
    /// Names this process among those that share the queue.
    pub(crate) process: String,
    pub(crate) keys: Keys,
    pub(crate) trunk: Trunk,
    pub(crate) clock: Arc<RedisClock>,
    pub(crate) agenda: Agenda,
    pub(crate) hands: Hands,
    pub(crate) reports: Reports,
    pub(crate) wakes: Wakes,
    pub(crate) local: Local,
    pub(crate) gates: Gates,
    pub(crate) advance: Advance,
    pub(crate) admissions: Admissions,
}

/// What a script answered, after the generation that every answer begins with.
pub(crate) struct Answered {
    pub(crate) generation: u64,
    pub(crate) rest: Answer,
}

impl Core {
    pub(crate) fn new_call(&self, shard: Shard, operation: Operation) -> Call {
        Call::new(&self.keys, shard, operation)
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Answered, CallError> {
        let mut answers = self.call_all(std::slice::from_ref(&call)).await;
        answers.pop().unwrap_or_else(|| Err(unexpected()))
    }

    /// Answers in the order of the calls.
    pub(crate) async fn call_all(&self, calls: &[Call]) -> Vec<Result<Answered, CallError>> {
        let asked = self.clock.monotonic();
        let answers = self.trunk.call(calls).await;
        let read = |(call, answer): (&Call, Result<redis::Value, CallError>)| {
            let mut rest = Answer::new(answer?).ok_or_else(unexpected)?;
            let generation = rest.next_u64().ok_or_else(unexpected)?;
            tell_of_loss(call.shard, self.hands.hear(call.shard, generation, asked));
            Ok(Answered { generation, rest })
        };
        calls.iter().zip(answers).map(read).collect()
    }

    /// Hands permits that were issued to this process to its worker. Answers the deliveries back that are nobody's now: of a
    /// generation that has ended, of a destination that was suspended meanwhile, or because no worker takes any more.
    pub(crate) fn hand_over(
        &self,
        issued: impl IntoIterator<Item = (Granted, ClaimedDelivery)>,
    ) -> Vec<ClaimedDelivery> {
        let mut permits = Vec::new();
        let mut back = Vec::new();
        for (Granted { serial, generation, version, slot }, delivery) in issued {
            let id = PermitId { destination_id: delivery.claim.destination_id, serial };
            let received = Received { id, generation, version, expires_at: delivery.expires_at, entry: None };
            if !self.hands.receive(received) {
                self.reports.add_unused(id, generation);
                back.push(delivery);
                continue;
            }
            let shard = Shard::of(id.destination_id);
            let slot = slot.map(|given| {
                let mut slot = self.clock.narrowed(shard, given);
                if is_unlimited(&delivery) {
                    // There is no window that a send a little too early could fill.
                    slot.start = self.clock.placed(shard, given.0);
                }
                slot
            });
            permits.push(Permit { id, slot, delivery });
        }
        for Permit { id, delivery, .. } in self.local.hand(permits).err().unwrap_or_default() {
            self.reports.add(self.hands.end(id));
            back.push(delivery);
        }
        back
    }

    /// Sets the offset of every shard's clock, and hears of its generation.
    pub(crate) async fn set_clock(&self) -> Result<(), CallError> {
        if self.trunk.dialer().is_cluster() {
            return join_all(Shard::all().map(|shard| self.measure(shard))).await.into_iter().try_for_each(
                |measured| {
                    let (shard, bounds) = measured?;
                    self.clock.set(shard, bounds);
                    Ok(())
                },
            );
        }
        let begin: Vec<Call> = Shard::all().map(|shard| self.new_call(shard, Operation::Begin)).collect();
        self.call_all(&begin).await.into_iter().try_for_each(|answered| answered.map(drop))?;
        // One server, one clock.
        let (_, bounds) = self.measure(Shard::REFERENCE).await?;
        Shard::all().for_each(|shard| self.clock.set(shard, bounds));
        Ok(())
    }

    async fn measure(&self, shard: Shard) -> Result<(Shard, Bounds), CallError> {
        let mut known: Option<Bounds> = None;
        for _ in 0..EXCHANGES {
            let call = self.new_call(shard, Operation::Begin);
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
        loop {
            tokio::time::sleep(CLOCK_EVERY).await;
            if let Err(error) = self.set_clock().await {
                tracing::debug!(%error, "could not set the clock; it runs on");
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
        let (mut line, mut messages) = self.trunk.dialer().notices().await?.split();
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
        let now = self.clock.now();
        match what {
            "due" => self.agenda.learn(Shard::parse(of)?, from_micros(value.try_into().ok()?)),
            "generation" => {
                let shard = Shard::parse(of)?;
                tell_of_loss(shard, self.hands.learn_generation(shard, value));
            }
            "suspended" | "resumed" => {
                self.hands.learn_suspension(of.parse::<DestinationId>().ok()?, value, what == "suspended", now);
            }
            "held" => self.hands.learn_hold(of.parse().ok()?, from_micros(value.try_into().ok()?), now),
            _ => return None,
        }
        Some(())
    }

    /// Drops what dead workers left, in Redis and here, for ever.
    pub(crate) async fn run_tidying(&self) {
        loop {
            tokio::time::sleep(self.config.tidy_every).await;
            self.hands.tidy(self.clock.now());
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
            if dropped > 0 {
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
            self.reports.add(self.hands.end(entry.id));
        }
        self.admissions.decline(unread.into_iter().map(|entry| entry.delivery).collect());
    }
}

fn is_unlimited(delivery: &ClaimedDelivery) -> bool {
    delivery.destination.as_ref().is_some_and(|destination| destination.settings.rate_limits.is_unlimited())
}

fn tell_of_loss(shard: Shard, lost: bool) {
    if lost {
        tracing::warn!(shard = shard.index(), "Redis has lost what it knew; destinations recover from the store");
    }
}

pub(crate) fn unexpected() -> CallError {
    CallError::Unknown("an answer of an unexpected shape".to_owned())
}
