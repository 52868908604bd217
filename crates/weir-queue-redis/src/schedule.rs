//! The scheduler's and the producer's half: wakes, edits, holds, and claims of due jobs.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use weir_core::{Clock as _, Destination, DestinationId, Timestamp, claim::ClaimedDelivery};
use weir_queue::{DueJobs, Edit, Lease, Publication, Published, QueueError, QueueResult, Schedule, Wake};

use crate::{
    RedisQueue,
    connection::CallError,
    keys::Shard,
    scripts::{Call, Operation, from_micros},
    shard_context::{Answered, ShardContext, unexpected},
};

/// Items in one call, so that no script keeps the server for long.
pub(crate) const BATCH: usize = 200;

impl From<CallError> for QueueError {
    fn from(error: CallError) -> Self {
        Self(error.to_string())
    }
}

/// The items of each shard, in their order, at most [`BATCH`] together.
pub(crate) fn by_shard<T>(
    items: impl IntoIterator<Item = T>,
    id: impl Fn(&T) -> DestinationId,
) -> Vec<(Shard, Vec<T>)> {
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

/// The items of each destination, in their order.
pub(crate) fn by_destination<T>(
    items: impl IntoIterator<Item = T>,
    id: impl Fn(&T) -> DestinationId,
) -> impl Iterator<Item = (DestinationId, Vec<T>)> {
    let mut groups: HashMap<DestinationId, Vec<T>> = HashMap::new();
    for item in items {
        groups.entry(id(&item)).or_default().push(item);
    }
    groups.into_iter()
}

#[async_trait]
impl Schedule for RedisQueue {
    async fn check(&self) -> QueueResult<()> {
        let calls: Vec<Call> = Shard::all().map(|shard| self.core.begin(shard, false)).collect();
        self.core.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))?;
        Ok(())
    }

    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()> {
        self.core.wakes.send(&self.core, wakes).await
    }

    async fn edited(&self, edits: &[Edit]) -> QueueResult<()> {
        let now = self.core.clock.now();
        let batches = by_shard(edits, |edit| edit.destination_id);
        let mut calls = Vec::new();
        for (shard, edits) in &batches {
            let mut call = self.core.new_call(*shard, Operation::Edit);
            for edit in edits {
                call.destination(edit.destination_id).terms(&edit.terms);
            }
            calls.push(call);
        }
        for ((shard, _), answered) in batches.iter().zip(self.core.call_all(&calls).await) {
            answered?;
            self.core.due_times.learn(*shard, now);
        }
        Ok(())
    }

    async fn hold(&self, destination_id: DestinationId, until: Timestamp) -> QueueResult<()> {
        let mut call = self.core.new_call(Shard::of(destination_id), Operation::Hold);
        call.destination(destination_id).not_before(until);
        self.core.call(call).await?;
        Ok(())
    }

    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs> {
        loop {
            let sooner = self.core.due_times.sooner();
            tokio::pin!(sooner);
            sooner.as_mut().enable();
            let now = self.core.clock.now();
            let shards = self.core.due_times.take_due(now, max);
            if !shards.is_empty() {
                let leases = self.core.claim(&shards, max / shards.len(), lease_for).await?;
                if !leases.is_empty() {
                    return Ok(DueJobs { leases, depth: self.core.due_times.unread() });
                }
            }
            // Either way the shards are looked at again.
            let wait = self.core.due_times.next().since(self.core.clock.now());
            let _ = tokio::time::timeout(wait, sooner).await;
        }
    }

    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>> {
        let outcomes = self.core.publish(&publications).await;
        let published = publications.into_iter().zip(outcomes);
        Ok(published.map(|(publication, outcome)| self.core.published(publication, outcome)).collect())
    }

    fn reserve(&self, destination: &Destination) -> bool {
        self.core.gates.reserve(destination.id, self.core.clock.now(), destination.settings.max_in_flight)
    }

    fn unreserve(&self, destination_id: DestinationId) {
        self.core.gates.unreserve(destination_id);
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.core.admissions.add(deliveries);
    }

    async fn declined(&self) -> Vec<ClaimedDelivery> {
        self.core.admissions.declined().await
    }
}

impl ShardContext {
    async fn claim(&self, shards: &[Shard], max: usize, lease_for: Duration) -> Result<Vec<Lease>, CallError> {
        // What this process did with its permits counts before what it asks.
        self.settlements.flush(self, shards).await?;
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
            self.due_times.learn(shard, due);
        }
        let unread = answered.rest.next_int().ok_or_else(unexpected)?;
        self.due_times.set_unread(shard, unread.max(0) as usize);
        answered.rest.next_leases(known_since).ok_or_else(unexpected)
    }
}
