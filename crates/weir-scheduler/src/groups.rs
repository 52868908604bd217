//! The groups of a batch: their terms, the cursors that a queue has lost, and the homes that destinations have left.

use std::{
    collections::{BTreeSet, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use weir_core::{
    DestinationId, IdMap, IdSet, LimitGroup, LimitGroupId, Limiter, RateLimit, Timestamp,
    limit::Shape,
    limit_key::{budget_as_destination, budget_of_keys},
};
use weir_queue::{Edits, GroupRun, LAST_OLD_START, LeftShard, Published, Wake};
use weir_store::{RunStore, SentCounts, StoreError};

use crate::{
    release::Failure,
    run::{RETRY_RUN, Run, latest_start, of_late, replaced_windows},
    scheduler::{Scheduler, was_window},
};

impl Scheduler {
    /// Reads the groups of the runs' destinations. A run whose group is not found is repeated. A destination with limit
    /// keys is itself the group of its flows, and may be a member of a limit group.
    pub(crate) async fn read_groups(&self, runs: &mut [Run], now: Timestamp) -> Result<(), StoreError> {
        let mut of_keys: IdMap<LimitGroupId, Arc<LimitGroup>> = IdMap::default();
        for run in runs.iter_mut() {
            let Some(destination) = run.destination.as_ref().filter(|of| of.keyed_at.is_some()) else { continue };
            let id = budget_of_keys(destination.id);
            let terms = of_keys.entry(id).or_insert_with(|| Arc::new(destination.as_group()));
            run.groups.push(GroupRun { terms: Arc::clone(terms), recovered: None });
        }
        let ids: BTreeSet<_> = runs.iter().filter_map(Run::limit_group).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = ids.into_iter().collect();
        let found: IdMap<_, _> =
            self.store.limit_groups(&ids).await?.into_iter().flatten().map(|group| (group.id, group)).collect();
        for run in runs.iter_mut() {
            let Some(id) = run.limit_group() else { continue };
            match found.get(&id) {
                Some(terms) => run.groups.push(GroupRun { terms: terms.clone(), recovered: None }),
                None => run.wait_until(now + RETRY_RUN),
            }
        }
        Ok(())
    }

    /// Closes the homes that destinations have left, before anything is read to recover cursors: two homes never grant
    /// slots at the same time. A run that finds its job in an old home publishes nothing and wakes the right one.
    pub(crate) async fn close_left_homes(&self, runs: &mut [Run], now: Timestamp) -> Result<(), Failure> {
        let (mut wakes, mut left) = (Vec::new(), Vec::new());
        for run in runs.iter_mut() {
            let Some(destination) = &run.destination else { continue };
            let (destination_id, group) = (destination.id, destination.settings.limit_group);
            // The flows of its limit keys, and the budget that they share, are where the destination is.
            let budget = destination.keyed_at.map(|_| budget_as_destination(destination_id));
            for id in [destination_id, run.lease.destination_id].into_iter().chain(budget) {
                self.queue.learn_group(id, group);
            }
            if self.queue.shard_of(destination_id, group) != run.lease.shard {
                wakes.push(Wake { destination_id: run.lease.destination_id, due: now });
                run.leave();
                continue;
            }
            let shards = destination.left_homes.iter().map(|home| self.queue.shard_of(destination_id, home.group()));
            let shards: BTreeSet<_> = shards.filter(|shard| *shard != run.lease.shard).collect();
            let version = destination.updated_at;
            for shard in shards {
                // No flow gets a slot in a shard where their budget is closed.
                for (id, of_keys) in std::iter::once((destination_id, false)).chain(budget.map(|id| (id, true))) {
                    let of = (LeftShard { destination_id: id, of_keys, shard, version }, destination_id);
                    // Flows of one destination have the same old homes.
                    if !left.contains(&of) {
                        left.push(of);
                    }
                }
            }
            // A flow may have been granted slots in another shard until its budget was closed there, which another run may
            // have done. None is granted now: those before are recorded, or their claims are outstanding.
            if budget.is_some() {
                run.lease.known_since = run.lease.known_since.max(now);
            }
        }
        if !wakes.is_empty() {
            self.queue.wake(&wakes).await?;
        }
        let open: IdSet<_> = if left.is_empty() {
            IdSet::default()
        } else {
            match self.queue.close(&left.iter().map(|(of, _)| *of).collect::<Vec<_>>()).await {
                Ok(closed) => left.iter().zip(closed).filter(|(_, closed)| !closed).map(|((_, id), _)| *id).collect(),
                Err(error) => {
                    tracing::warn!(%error, "could not close the old homes of destinations; their runs are repeated");
                    left.iter().map(|(_, id)| *id).collect()
                }
            }
        };
        let closed_at = self.clock.now();
        for run in runs {
            let Some(destination) = run.destination.clone().filter(|of| !of.left_homes.is_empty()) else { continue };
            if open.contains(&destination.id) {
                run.wait_until(now + RETRY_RUN);
                continue;
            }
            // A send of the old home may still start, and is not recorded yet.
            if left.iter().any(|(_, id)| *id == destination.id) {
                run.lease.known_since = run.lease.known_since.max(closed_at);
            }
            self.closed.lock().insert(destination.id, (destination.updated_at, destination.left_homes.clone()));
        }
        Ok(())
    }

    /// Forgets closed homes once a run has published the recovered cursors: after a crash before that, the next run closes
    /// them again.
    pub(crate) async fn forget_left_homes(&self, ids: Vec<DestinationId>, answers: &[Published]) {
        let done = ids.into_iter().zip(answers).filter(|(_, answer)| matches!(answer, Published::Done));
        let closed: Vec<_> = {
            let mut closed = self.closed.lock();
            done.filter_map(|(id, _)| Some((id, closed.remove(&id)?))).collect()
        };
        for (id, (version, homes)) in closed {
            if let Err(error) = self.store.homes_left(id, version, &homes).await {
                tracing::warn!(%error, "could not forget closed homes; the next run closes them again");
            }
        }
    }

    /// Recovers the lost cursors of groups from the last sends of all destinations that are or were members.
    pub(crate) async fn recover_groups(&self, runs: &mut [Run], now: Timestamp) -> Result<(), Failure> {
        // Each once, however many members have a run.
        let mut found: IdMap<LimitGroupId, Limiter> = IdMap::default();
        for run in runs {
            let Some(turn) = run.lease.turn else { continue };
            for lost in turn.groups().filter(|of| !of.is_known) {
                let Some(group) = run.groups.iter_mut().find(|group| group.terms.id == lost.group) else { continue };
                if let Entry::Vacant(unknown) = found.entry(lost.group) {
                    let (mut known_since, mut now) = (lost.known_since, now);
                    if let Some(destination) = run.destination.as_ref().filter(|_| group.terms.keys_of.is_some()) {
                        // The job of the destination may still have terms from before it had limit keys, and grant slots
                        // that only they count. None is granted after this call, and those before it are recorded, or
                        // their claims are outstanding.
                        Edits::of(destination, now).announce(&*self.queue).await?;
                        now = self.clock.now();
                        known_since = now;
                    }
                    unknown.insert(recovered(&*self.store, &group.terms, known_since, now).await?);
                }
                group.recovered = found.get(&lost.group).cloned();
            }
        }
        Ok(())
    }
}

/// The cursors of a group after everything that is recorded, and what may still start.
pub(crate) async fn recovered(
    store: &dyn RunStore,
    terms: &LimitGroup,
    known_since: Timestamp,
    now: Timestamp,
) -> Result<Limiter, StoreError> {
    let effective = terms.at(now);
    let limits = &effective.rate_limits;
    let replaced: Vec<_> = replaced_windows(&terms.rate_limits, limits).collect();
    let spans = limits.as_slice().iter().chain(&replaced).map(limit_span);
    let longest = spans.chain(limits.min_interval().map(|interval| interval.as_duration())).max().unwrap_or_default();
    let senders = match &terms.keys_of {
        Some(of) => vec![of.destination_id],
        None => store.group_senders(terms.id, now - longest).await?,
    };
    let histories = if senders.is_empty() { Vec::new() } else { store.send_history(&senders).await? };
    let starts = histories.into_iter().filter_map(|history| latest_start(history, known_since, now));
    // Nobody reports when callers outside Weir have started their calls, and slots may be granted that are not recorded yet.
    let has_reserved = terms.keys_of.is_none() && store.has_reserved(terms.id, now - longest).await?;
    let unrecorded = known_since + LAST_OLD_START;
    let reserved = has_reserved.then(|| now.max(unrecorded));
    let mut limiter = Limiter::recovered(limits, starts.max().max(reserved));
    if senders.is_empty() && !has_reserved {
        return Ok(limiter);
    }
    let ring = async |limit| {
        let since = now - limit_span(&limit);
        let mut sent =
            if senders.is_empty() { SentCounts::default() } else { store.sent_counts(&senders, since, limit).await? };
        let mut latest = now;
        if has_reserved {
            sent.buckets.extend(store.reserved_counts(terms.id, since, limit).await?.buckets);
            // Their slots may end later than now.
            latest = now + LAST_OLD_START;
        }
        Ok::<_, StoreError>((sent.usual_cost, sent.ring(limit, unrecorded, latest)))
    };
    for &limit in limits.of_shape(Shape::Window) {
        let (usual_cost, ring) = ring(limit).await?;
        limiter.expect_cost(usual_cost);
        limiter.recall(ring);
    }
    for limit in replaced {
        limiter.recall_dormant(&ring(limit).await?.1);
    }
    // Calls in reserved slots are not evenly spaced, and neither are sends before an edit.
    let is_edited = terms.created_at < terms.updated_at;
    let uneven: Vec<_> = match (has_reserved, is_edited) {
        (true, _) => limits.of_shape(Shape::Even).map(RateLimit::as_window).collect(),
        // An override, which may have ended a moment ago, changes limits too.
        (false, true) => {
            let changed_at = if terms.temporary.is_none() { terms.updated_at } else { now };
            let late: Vec<_> = of_late(limits, changed_at, now).collect();
            match &terms.keys_of {
                Some(of) if !late.is_empty() => {
                    let changes = store.limit_changes(of.destination_id).await?;
                    late.into_iter().filter(|limit| was_window(&changes, limit, now)).collect()
                }
                _ => late,
            }
        }
        (false, false) => Vec::new(),
    };
    for limit in uneven {
        limiter.recall_even(&ring(limit).await?.1);
    }
    Ok(limiter)
}

/// How far back a limit counts.
fn limit_span(limit: &RateLimit) -> Duration {
    limit.span() + limit.bucket()
}
