//! The scheduler's and the producer's half: wakes, edits, holds, claims of due jobs, and the publishing that ends a run.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use weir_core::{Clock as _, DestinationId, Timestamp, plan::NextRun};
use weir_queue::{DueJobs, Edit, Lease, Publication, Published, QueueError, QueueResult, Schedule, Wake};

use crate::{
    RedisQueue,
    core::{Answered, Core, unexpected},
    keys::Shard,
    scripts::{Call, Operation, from_micros},
    trunk::CallError,
    wire,
};

/// Items in one call, so that no script keeps the server for long.
const BATCH: usize = 200;
/// How often a publication is repeated whose answer was lost.
const TRIES: u32 = 3;
const FIRST_RETRY: Duration = Duration::from_millis(100);

impl From<CallError> for QueueError {
    fn from(error: CallError) -> Self {
        Self(error.to_string())
    }
}

/// The items of each shard, in their order, at most [`BATCH`] together.
fn by_shard<T>(items: impl IntoIterator<Item = T>, id: impl Fn(&T) -> DestinationId) -> Vec<(Shard, Vec<T>)> {
    let mut shards: BTreeMap<Shard, Vec<Vec<T>>> = BTreeMap::new();
    for item in items {
        let batches = shards.entry(Shard::of(id(&item))).or_default();
        match batches.last_mut().filter(|batch| batch.len() < BATCH) {
            Some(batch) => batch.push(item),
            None => batches.push(vec![item]),
        }
    }
    shards.into_iter().flat_map(|(shard, batches)| batches.into_iter().map(move |batch| (shard, batch))).collect()
}

#[async_trait]
impl Schedule for RedisQueue {
    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()> {
        let mut calls = Vec::new();
        for (shard, wakes) in by_shard(wakes, |wake| wake.destination_id) {
            let mut call = self.core.new_call(shard, Operation::Wake);
            for wake in wakes {
                call.destination(wake.destination_id).not_before(wake.due);
            }
            calls.push(call);
        }
        self.core.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))?;
        for wake in wakes {
            self.core.agenda.learn(Shard::of(wake.destination_id), wake.due);
        }
        Ok(())
    }

    async fn edited(&self, edits: &[Edit]) -> QueueResult<()> {
        let now = self.core.clock.now();
        let batches = by_shard(edits, |edit| edit.destination_id);
        let mut calls = Vec::new();
        for (shard, edits) in &batches {
            let mut call = self.core.new_call(*shard, Operation::Edit);
            for edit in edits {
                call.destination(edit.destination_id).arg(u8::from(edit.suspended));
            }
            calls.push(call);
        }
        for ((shard, edits), answered) in batches.iter().zip(self.core.call_all(&calls).await) {
            let mut versions = answered?.rest;
            for edit in edits {
                let version = versions.next_u64().ok_or_else(unexpected)?;
                self.core.hands.learn_suspension(edit.destination_id, version, edit.suspended, now);
            }
            self.core.agenda.learn(*shard, now);
        }
        Ok(())
    }

    async fn hold(&self, destination_id: DestinationId, until: Timestamp) -> QueueResult<()> {
        self.core.hands.learn_hold(destination_id, until, self.core.clock.now());
        let mut call = self.core.new_call(Shard::of(destination_id), Operation::Hold);
        call.destination(destination_id).not_before(until);
        self.core.call(call).await?;
        Ok(())
    }

    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs> {
        loop {
            let sooner = self.core.agenda.sooner();
            tokio::pin!(sooner);
            sooner.as_mut().enable();
            let now = self.core.clock.now();
            let shards = self.core.agenda.take_due(now, max);
            if !shards.is_empty() {
                let leases = self.core.claim(&shards, max / shards.len(), lease_for).await?;
                if !leases.is_empty() {
                    return Ok(DueJobs { leases, depth: self.core.agenda.unread() });
                }
            }
            // Either way the shards are looked at again.
            let wait = self.core.agenda.next().since(self.core.clock.now());
            let _ = tokio::time::timeout(wait, sooner).await;
        }
    }

    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>> {
        let outcomes = self.core.publish(&publications).await;
        let published = publications.into_iter().zip(outcomes).map(|(publication, outcome)| match outcome {
            Outcome::Done => Published::Done,
            Outcome::Stale => Published::Stale(publication.deliveries),
            Outcome::Unknown => Published::Unknown,
        });
        Ok(published.collect())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Stale,
    Unknown,
}

/// Publications that go in one call.
struct Batch {
    /// Their places among all.
    members: Vec<usize>,
    call: Call,
    /// An earlier try may have run: then a refusal says nothing about it.
    maybe_ran: bool,
}

impl Core {
    async fn claim(&self, shards: &[Shard], max: usize, lease_for: Duration) -> Result<Vec<Lease>, CallError> {
        // What this process did with its permits counts before what it asks.
        self.reports.flush_all(self, shards).await?;
        let calls: Vec<Call> = shards
            .iter()
            .map(|&shard| {
                let mut call = self.new_call(shard, Operation::Claim);
                call.arg(max).arg(lease_for.as_micros() as u64);
                call
            })
            .collect();
        let mut leases = Vec::new();
        let mut failed = None;
        for (call, answered) in calls.iter().zip(self.call_all(&calls).await) {
            match answered.and_then(|answered| self.read_claim(call.shard, answered)) {
                Ok(claimed) => leases.extend(claimed),
                Err(error) => failed = Some(error),
            }
        }
        // Leases in hand are run; what failed is due again a little later.
        match failed {
            Some(error) if leases.is_empty() => Err(error),
            _ => Ok(leases),
        }
    }

    fn read_claim(&self, shard: Shard, mut answered: Answered) -> Result<Vec<Lease>, CallError> {
        let known_since = from_micros(answered.generation as i64);
        if let Some(due) = answered.rest.next_time() {
            self.agenda.learn(shard, due);
        }
        let unread = answered.rest.next_int().ok_or_else(unexpected)?;
        self.agenda.set_unread(shard, unread.max(0) as usize);
        answered.rest.next_leases(known_since).ok_or_else(unexpected)
    }

    /// Repeats what brought no answer: a publication that ran is known by its name and answers again.
    async fn publish(&self, publications: &[Publication]) -> Vec<Outcome> {
        let mut outcomes = vec![None; publications.len()];
        let mut open = self.batches(publications);
        let mut delay = FIRST_RETRY;
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(delay).await;
                delay *= 2;
            }
            self.try_publish(&mut open, &mut outcomes).await;
            if open.is_empty() {
                break;
            }
        }
        for batch in open {
            for member in batch.members {
                outcomes[member] = Some(if batch.maybe_ran { Outcome::Unknown } else { Outcome::Stale });
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Unknown)).collect()
    }

    /// One call for each batch; keeps those without an answer.
    async fn try_publish(&self, open: &mut Vec<Batch>, outcomes: &mut [Option<Outcome>]) {
        let (calls, batches): (Vec<Call>, Vec<(Vec<usize>, bool)>) =
            open.drain(..).map(|batch| (batch.call, (batch.members, batch.maybe_ran))).unzip();
        let answers = self.call_all(&calls).await;
        for ((call, (members, maybe_ran)), answered) in calls.into_iter().zip(batches).zip(answers) {
            let mut rest = match answered {
                Ok(answered) => answered.rest,
                Err(error) => {
                    tracing::warn!(%error, "could not publish");
                    let maybe_ran = maybe_ran || matches!(error, CallError::Unknown(_));
                    open.push(Batch { members, call, maybe_ran });
                    continue;
                }
            };
            if let Some(due) = rest.next_time() {
                self.agenda.learn(call.shard, due);
            }
            for member in members {
                outcomes[member] = rest.next_int().map(|done| match done {
                    1 => Outcome::Done,
                    _ if maybe_ran => Outcome::Unknown,
                    _ => Outcome::Stale,
                });
            }
        }
    }

    fn batches(&self, publications: &[Publication]) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        let places = by_shard(0..publications.len(), |&place| publications[place].lease.destination_id);
        for (shard, places) in places {
            let mut room = 0;
            for place in places {
                let publication = &publications[place];
                let size = publication.deliveries.len().max(1);
                if room < size || batches.is_empty() {
                    room = BATCH.max(size);
                    let call = self.new_call(shard, Operation::Publish);
                    batches.push(Batch { members: Vec::new(), call, maybe_ran: false });
                }
                room -= size;
                if let Some(batch) = batches.last_mut() {
                    batch.members.push(place);
                    self.write(publication, &mut batch.call);
                }
            }
        }
        batches
    }

    fn write(&self, publication: &Publication, call: &mut Call) {
        let Publication { lease, limits, recovered, deliveries, next } = publication;
        call.destination(lease.destination_id)
            .arg(lease.epoch)
            .arg(lease.version)
            .arg(rand::random::<u64>().to_string());
        call.limits(limits.as_slice()).arg(u8::from(recovered.is_some()));
        if let Some(recovered) = recovered {
            call.limiter(recovered);
        }
        let (next, due) = match *next {
            NextRun::Stop => ("stop", Timestamp::MIN),
            NextRun::At(due) => ("at", due),
            NextRun::Now => ("now", Timestamp::MIN),
            NextRun::Paced => ("paced", Timestamp::MIN),
            NextRun::OnSettle => ("on_settle", Timestamp::MIN),
        };
        call.arg(next).not_before(due).arg(deliveries.len());
        for delivery in deliveries {
            call.deadline(delivery.expires_at).arg(wire::encode(delivery, self.config.largest_inline_body));
        }
    }
}
