//! The queue for schedulers and producers: wakes, edits, holds, and claims of due jobs.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use weir_core::{
    Clock as _, Destination, DestinationId, LimitGroup, LimitGroupId, Timestamp, adaptive::Status,
    claim::ClaimedDelivery, stall::Progress,
};
use weir_queue::{
    DueJobs, GroupRun, Hold, JobLease, LeftShard, Publication, Published, QueueProgress, QueueResult, ReservedSlots,
    Schedule, Terms, TermsChange, Wake, WantedSlot,
};

use crate::{
    RedisQueue,
    client::{ScriptAnswer, unexpected},
    keys::{Shard, group_job},
    scripts::{Call, Operation},
};

/// Items in one call, so that no script occupies the server for long: other processes wait for their slots meanwhile.
pub(crate) const BATCH: usize = 200;

/// Groups items by shard in batches of at most [`BATCH`]; their order stays.
pub(crate) fn by_shard<T>(items: impl IntoIterator<Item = T>, shard: impl Fn(&T) -> Shard) -> Vec<(Shard, Vec<T>)> {
    let mut shards: BTreeMap<Shard, Vec<Vec<T>>> = BTreeMap::new();
    for item in items {
        let batches = shards.entry(shard(&item)).or_default();
        match batches.last_mut().filter(|batch| batch.len() < BATCH) {
            Some(batch) => batch.push(item),
            None => batches.push(vec![item]),
        }
    }
    shards.into_iter().flat_map(|(shard, batches)| batches.into_iter().map(move |batch| (shard, batch))).collect()
}

/// Groups items by destination; their order stays.
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
        let calls: Vec<Call> = Shard::all().map(|shard| self.client.begin_shard(shard)).collect();
        self.client.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))?;
        Ok(())
    }

    async fn progress(&self, ids: &[DestinationId]) -> QueueResult<QueueProgress> {
        // A shard without any of them is asked too, for the oldest permit that no worker has taken.
        let mut batches = by_shard(ids.iter().copied().enumerate(), |(_, id)| self.client.homes.of(*id));
        let asked: HashSet<Shard> = batches.iter().map(|(shard, _)| *shard).collect();
        batches.extend(Shard::all().filter(|shard| !asked.contains(shard)).map(|shard| (shard, Vec::new())));
        let call = |(shard, batch): &(Shard, Vec<(usize, DestinationId)>)| {
            let mut call = self.client.new_call(*shard, Operation::Progress);
            for (_, id) in batch {
                call.destination(*id);
            }
            call
        };
        let calls: Vec<Call> = batches.iter().map(call).collect();
        let mut progress = QueueProgress { of: vec![Progress::default(); ids.len()], ..QueueProgress::default() };
        for ((_, batch), answered) in batches.iter().zip(self.client.call_all(&calls).await) {
            let mut values = answered?.values;
            let untaken_for = Duration::from_micros(values.next_u64().ok_or_else(unexpected)?);
            progress.untaken_for = progress.untaken_for.max(untaken_for);
            for (at, _) in batch {
                progress.of[*at] = values.next_progress().ok_or_else(unexpected)?;
            }
        }
        Ok(progress)
    }

    async fn paces(&self, ids: &[DestinationId]) -> QueueResult<Vec<Option<Status>>> {
        let batches = by_shard(ids.iter().copied().enumerate(), |(_, id)| self.client.homes.of(*id));
        let call = |(shard, batch): &(Shard, Vec<(usize, DestinationId)>)| {
            let mut call = self.client.new_call(*shard, Operation::Paces);
            for (_, id) in batch {
                call.destination(*id);
            }
            call
        };
        let calls: Vec<Call> = batches.iter().map(call).collect();
        let now = self.client.clock.now();
        let mut paces = vec![None; ids.len()];
        for ((_, batch), answered) in batches.iter().zip(self.client.call_all(&calls).await) {
            let mut values = answered?.values;
            for (at, _) in batch {
                paces[*at] = values.next_rate().map(|rate| rate.status(now));
            }
        }
        Ok(paces)
    }

    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()> {
        self.wakes.send(wakes).await
    }

    async fn edited_groups(&self, edits: &[Arc<LimitGroup>]) -> QueueResult<()> {
        let now = self.client.clock.now();
        let mut changes = Vec::new();
        for edit in edits {
            let (job, terms) = (group_job(edit.id), Terms::of_group(edit, now));
            self.change_home(job, edit.outer().or(Some(edit.id)), terms, &mut changes);
        }
        self.change_terms(changes).await
    }

    async fn edited(&self, edits: &[TermsChange]) -> QueueResult<()> {
        let mut changes = Vec::new();
        for TermsChange { destination_id: id, terms } in edits {
            self.change_home(*id, terms.home(), terms.clone(), &mut changes);
        }
        self.change_terms(changes).await
    }

    fn shard_of(&self, id: DestinationId, group: Option<LimitGroupId>) -> u16 {
        Shard::of_home(id, group).number()
    }

    fn learn_group(&self, id: DestinationId, group: Option<LimitGroupId>) {
        self.client.homes.learn_group(id, group);
    }

    async fn close(&self, left: &[LeftShard]) -> QueueResult<Vec<bool>> {
        let batches = by_shard(left.iter().enumerate(), |(_, left)| Shard::numbered(left.shard));
        let call = |(shard, batch): &(Shard, Vec<(usize, &LeftShard)>)| {
            let mut call = self.client.new_call(*shard, Operation::Close);
            for (_, left) in batch {
                call.destination(left.destination_id).version(left.version).arg(u8::from(left.of_keys));
            }
            call
        };
        let calls: Vec<Call> = batches.iter().map(call).collect();
        let mut closed = vec![false; left.len()];
        for ((_, batch), answered) in batches.iter().zip(self.client.call_all(&calls).await) {
            let mut values = answered?.values;
            for (at, _) in batch {
                closed[*at] = values.next_int().ok_or_else(unexpected)? == 1;
            }
        }
        Ok(closed)
    }

    async fn hold(&self, holds: &[Hold]) -> QueueResult<()> {
        let mut calls = Vec::new();
        for (shard, holds) in by_shard(holds, |hold| self.client.homes.of(hold.destination_id)) {
            let mut call = self.client.new_call(shard, Operation::Hold);
            for hold in holds {
                call.destination(hold.destination_id).not_before(hold.until).not_before(hold.sent_at);
            }
            calls.push(call);
        }
        self.client.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))
    }

    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs> {
        loop {
            // Listen before the due times are read, so that an earlier one that is learned in between is not missed.
            let sooner = self.client.due_times.sooner();
            tokio::pin!(sooner);
            sooner.as_mut().enable();
            let now = self.client.clock.now();
            let shards = self.client.due_times.take_due(now, max);
            if !shards.is_empty() {
                let leases = self.claim(&shards, max / shards.len(), lease_for).await?;
                if !leases.is_empty() {
                    return Ok(DueJobs { leases, depth: self.client.due_times.unread() });
                }
            }
            // Wait for the next due time, or until an earlier one is learned. The shards are checked again in either
            // case.
            let wait = self.client.due_times.next().since(self.client.clock.now());
            let _ = tokio::time::timeout(wait, sooner).await;
        }
    }

    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>> {
        let outcomes = self.publish_all(&publications).await;
        let published = publications.into_iter().zip(outcomes);
        Ok(published.map(|(publication, outcome)| self.published(publication, outcome)).collect())
    }

    fn reserve(&self, destination: &Destination, flow: DestinationId) -> bool {
        self.client.homes.learn_group(flow, destination.settings.limit_group);
        let now = self.client.clock.now();
        let max_in_flight = destination.temporary.max_in_flight(destination.settings.max_in_flight, now);
        self.client.estimates.reserve(flow, destination.shared_budget(), now, max_in_flight)
    }

    fn unreserve(&self, flow: DestinationId) {
        self.client.estimates.unreserve(flow);
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.admissions.add(deliveries);
    }

    async fn reserve_slots(&self, group: &GroupRun, wanted: &[WantedSlot]) -> QueueResult<ReservedSlots> {
        self.reservations.take(group, wanted).await
    }

    async fn has_kept(&self, group: LimitGroupId, start: Timestamp) -> QueueResult<bool> {
        self.reservations.has_kept(group, start).await
    }

    async fn give_back_reserved(&self, group: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()> {
        self.reservations.give_back(group, cost, start).await
    }

    async fn declined(&self) -> Vec<ClaimedDelivery> {
        self.admissions.declined.take().await
    }
}

impl RedisQueue {
    /// The terms go to the shard of the home. No permit of another shard, where this process last saw the job, gets a slot any
    /// more. A deleted destination does not always say its group.
    fn change_home(
        &self,
        id: DestinationId,
        home: Option<LimitGroupId>,
        terms: Terms,
        changes: &mut Vec<(Shard, DestinationId, Terms)>,
    ) {
        let (known, shard) = (self.client.homes.of(id), Shard::of_home(id, home));
        if known != shard {
            let group = terms.group.filter(|_| terms.of_keys);
            changes.push((known, id, Terms { suspended: true, group, outer: None, ..terms.clone() }));
        }
        changes.push((shard, id, terms));
        self.client.homes.learn(id, shard);
    }

    /// Changes the terms of destinations and groups in these shards.
    async fn change_terms(&self, changes: Vec<(Shard, DestinationId, Terms)>) -> QueueResult<()> {
        let now = self.client.clock.now();
        let batches = by_shard(changes, |(shard, ..)| *shard);
        let mut calls = Vec::new();
        for (shard, changes) in &batches {
            let mut call = self.client.new_call(*shard, Operation::ChangeTerms);
            for (_, id, terms) in changes {
                call.destination(*id).terms(terms);
            }
            calls.push(call);
        }
        for ((shard, _), answered) in batches.iter().zip(self.client.call_all(&calls).await) {
            answered?;
            // The jobs of edited destinations are due at once.
            self.client.due_times.learn(*shard, now);
        }
        Ok(())
    }

    async fn claim(&self, shards: &[Shard], max: usize, lease_for: Duration) -> QueueResult<Vec<JobLease>> {
        // The leases must count the permits that this process has settled.
        self.settlements.flush(shards.iter().copied()).await?;
        // One call for each shard, with the same maximum.
        let calls: Vec<Call> = shards
            .iter()
            .map(|&shard| {
                let mut call = self.client.new_call(shard, Operation::Claim);
                call.arg(max).arg(lease_for.as_micros() as u64);
                call
            })
            .collect();
        let mut leases = Vec::new();
        let mut failed = None;
        for (call, answered) in calls.iter().zip(self.client.call_all(&calls).await) {
            match answered.and_then(|answered| self.read_claim(call.shard, answered)) {
                Ok(claimed) => leases.extend(claimed),
                Err(error) => failed = Some(error),
            }
        }
        // Run the leases that were claimed. A shard whose call failed is checked again within a second.
        match failed {
            Some(error) if leases.is_empty() => Err(error),
            _ => Ok(leases),
        }
    }

    fn read_claim(&self, shard: Shard, mut answered: ScriptAnswer) -> QueueResult<Vec<JobLease>> {
        if let Some(due) = answered.values.next_time() {
            self.client.due_times.learn(shard, due);
        }
        let unread = answered.values.next_int().ok_or_else(unexpected)?;
        self.client.due_times.set_unread(shard, unread.max(0) as usize);
        answered.values.next_leases(shard.number()).ok_or_else(unexpected)
    }
}
