//! Deliveries that were claimed as they were stored, on their way to Redis. Those that come while a call is under way go
//! together in the next.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;
use weir_core::{Clock as _, DestinationId, claim::ClaimedDelivery};

use crate::{
    core::{Answered, Core},
    keys::Shard,
    schedule::by_shard,
    scripts::{Call, Operation},
    trunk::CallError,
    wire::Admitted,
};

/// Deliveries of one destination.
type Group = (DestinationId, Vec<ClaimedDelivery>);

#[derive(Default)]
pub(crate) struct Admissions {
    waiting: Mutex<Vec<ClaimedDelivery>>,
    added: Notify,
    declined: Mutex<Vec<ClaimedDelivery>>,
    declining: Notify,
}

// A panic while a lock is held is a bug already reported; what is in there is whole between two calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Admissions {
    pub(crate) fn add(&self, deliveries: Vec<ClaimedDelivery>) {
        lock(&self.waiting).extend(deliveries);
        self.added.notify_one();
    }

    /// What could not be admitted.
    pub(crate) async fn declined(&self) -> Vec<ClaimedDelivery> {
        loop {
            let declined = std::mem::take(&mut *lock(&self.declined));
            if !declined.is_empty() {
                return declined;
            }
            self.declining.notified().await;
        }
    }

    /// Admits, for ever.
    pub(crate) async fn run(&self, core: &Core) {
        loop {
            let waiting = std::mem::take(&mut *lock(&self.waiting));
            if waiting.is_empty() {
                self.added.notified().await;
                continue;
            }
            let declined = admit(core, waiting).await;
            if !declined.is_empty() {
                lock(&self.declined).extend(declined);
                self.declining.notify_one();
            }
        }
    }
}

fn groups(deliveries: Vec<ClaimedDelivery>) -> impl Iterator<Item = Group> {
    let mut groups: HashMap<DestinationId, Vec<ClaimedDelivery>> = HashMap::new();
    for delivery in deliveries {
        groups.entry(delivery.claim.destination_id).or_default().push(delivery);
    }
    groups.into_iter()
}

/// Answers what could not be admitted.
async fn admit(core: &Core, deliveries: Vec<ClaimedDelivery>) -> Vec<ClaimedDelivery> {
    let straight = core.local.takes();
    let batches = by_shard(groups(deliveries), |(id, _)| *id);
    let calls: Vec<Call> = batches.iter().map(|(shard, groups)| call(core, *shard, groups, straight)).collect();
    let mut declined = Vec::new();
    for ((_, groups), answered) in batches.into_iter().zip(core.call_all(&calls).await) {
        match answered {
            Ok(answered) => declined.extend(sort_out(core, groups, answered, straight)),
            Err(error) => {
                tracing::debug!(%error, "could not admit deliveries");
                let now = core.clock.now();
                for (id, deliveries) in groups {
                    core.gates.declined(id, deliveries.len() as u32, now);
                    // They may be in the delivery queue: then they are sent. If not, their claims expire.
                    if straight || !matches!(error, CallError::Unknown(_)) {
                        declined.extend(deliveries);
                    }
                }
            }
        }
    }
    declined
}

fn call(core: &Core, shard: Shard, groups: &[Group], straight: bool) -> Call {
    let mut call = core.new_call(shard, Operation::Admit);
    call.arg(u8::from(straight));
    for (id, deliveries) in groups {
        call.destination(*id).arg(core.gates.max_in_flight(*id));
        call.deliveries(deliveries, straight, core.config.largest_inline_body);
    }
    call
}

/// Hands over what was admitted, and answers the rest.
fn sort_out(core: &Core, groups: Vec<Group>, mut answered: Answered, straight: bool) -> Vec<ClaimedDelivery> {
    let mut declined = Vec::new();
    for (id, mut deliveries) in groups {
        let now = core.clock.now();
        let Some(Admitted { count, permits, version, room, open_from }) = answered.rest.next_admitted() else {
            tracing::warn!("an answer of an unexpected shape; claims expire");
            break;
        };
        let rest = deliveries.split_off(count.min(deliveries.len()));
        core.gates.admitted(id, deliveries.len() as u32, room, open_from, now);
        if !rest.is_empty() {
            core.gates.declined(id, rest.len() as u32, now);
            declined.extend(rest);
        }
        if straight {
            declined.extend(core.hand_over(answered.generation, version, permits, deliveries));
        }
    }
    declined
}
