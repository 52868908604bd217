//! Deliveries that were claimed as they were stored, on their way to Redis. Those that come while a call is under way go
//! together in the next.
//!
//! A lost answer means that the call may have run, and its permits may be in the delivery queue. It is repeated under its name
//! until there is an answer, or the claims have expired: they go back only if nothing was published.

use weir_core::{
    Clock as _, DestinationId, Timestamp,
    claim::{ClaimedDelivery, ProcessId},
};
use weir_queue::Mailbox;

use crate::{
    codec::Admitted,
    connect::Backoff,
    connection::CallError,
    keys::Shard,
    schedule::{by_destination, by_shard},
    scripts::{Call, Operation},
    shard_context::{Answered, ShardContext},
};

/// Deliveries of one destination.
type Group = (DestinationId, Vec<ClaimedDelivery>);

#[derive(Default)]
pub(crate) struct Admissions {
    waiting: Mailbox<ClaimedDelivery>,
    declined: Mailbox<ClaimedDelivery>,
}

impl Admissions {
    pub(crate) fn add(&self, deliveries: Vec<ClaimedDelivery>) {
        self.waiting.add(deliveries);
    }

    /// What could not be admitted.
    pub(crate) async fn declined(&self) -> Vec<ClaimedDelivery> {
        self.declined.take().await
    }

    pub(crate) fn decline(&self, deliveries: Vec<ClaimedDelivery>) {
        self.declined.add(deliveries);
    }

    /// Admits, for ever.
    pub(crate) async fn run(&self, core: &ShardContext) {
        loop {
            let deliveries = self.waiting.take().await;
            self.admit(core, deliveries).await;
        }
    }

    /// Repeats what brought no answer: a call that ran is known by its name and answers again.
    async fn admit(&self, core: &ShardContext, deliveries: Vec<ClaimedDelivery>) {
        let mut open: Vec<Batch> =
            by_shard(by_destination(deliveries, |delivery| delivery.claim.destination_id), |(id, _)| *id)
                .into_iter()
                .enumerate()
                .map(|(index, (shard, groups))| {
                    let generation = core.registry.generation(shard);
                    let process = core.lease.process();
                    Batch { shard, groups, index, name: rand::random(), maybe_ran: false, generation, process }
                })
                .collect();
        let mut backoff = Backoff::default();
        loop {
            self.try_admit(core, &mut open).await;
            if open.is_empty() {
                return;
            }
            tokio::time::sleep(backoff.fail()).await;
            let now = core.clock.now();
            open.retain(|batch| batch.lasts_beyond(now));
        }
    }

    /// One call for each batch; keeps those of which nobody knows whether they ran.
    async fn try_admit(&self, core: &ShardContext, open: &mut Vec<Batch>) {
        let (good, lapsed): (Vec<_>, Vec<_>) = open.drain(..).partition(|batch| core.may_publish(batch.process));
        *open = good;
        // What may have been admitted is for others to find: this process was declared dead, or will be.
        for batch in lapsed.into_iter().filter(|batch| !batch.maybe_ran) {
            batch.close_gates(core);
            self.declined.add(batch.into_deliveries());
        }
        let calls: Vec<Call> = open.iter().map(|batch| batch.call(core)).collect();
        let answers = core.call_all(&calls).await;
        for (mut batch, answered) in std::mem::take(open).into_iter().zip(answers) {
            match answered {
                Ok(answered) => {
                    // With what Redis lost went the name: nobody knows whether an earlier try ran, and claims expire.
                    let known = !batch.maybe_ran || answered.generation == batch.generation;
                    let declined = sort_out(core, batch.groups, answered);
                    if known {
                        self.declined.add(declined);
                    }
                }
                Err(error) => {
                    if !batch.maybe_ran {
                        tracing::warn!(%error, "could not admit deliveries");
                        batch.close_gates(core);
                    }
                    batch.maybe_ran |= matches!(error, CallError::Unknown(_));
                    if batch.maybe_ran {
                        open.push(batch);
                    } else {
                        self.declined.add(batch.into_deliveries());
                    }
                }
            }
        }
    }
}

/// Deliveries that go in one call.
struct Batch {
    shard: Shard,
    groups: Vec<Group>,
    /// Among those of one round.
    index: usize,
    name: u64,
    /// An earlier try may have run.
    maybe_ran: bool,
    /// Of the shard before the first try.
    generation: u64,
    /// Whose claims they are.
    process: Option<ProcessId>,
}

impl Batch {
    fn call(&self, core: &ShardContext) -> Call {
        let mut call = core.new_call(self.shard, Operation::Admit);
        call.arg(format!("{}:{}", core.lease.name, self.index))
            .arg(self.name.to_string())
            .arg(u8::from(self.maybe_ran));
        for (id, deliveries) in &self.groups {
            // All of them were stored within a moment; without a destination no terms are the same.
            let version = deliveries.last().and_then(|delivery| delivery.destination.as_ref()).map(|of| of.updated_at);
            call.destination(*id).version(version.unwrap_or(Timestamp::MIN));
            call.deliveries(deliveries, core.config.largest_inline_body);
        }
        call
    }

    fn into_deliveries(self) -> Vec<ClaimedDelivery> {
        self.groups.into_iter().flat_map(|(_, deliveries)| deliveries).collect()
    }

    /// Whether a claim has not expired: what has is resolved by the sweep.
    fn lasts_beyond(&self, now: Timestamp) -> bool {
        self.groups.iter().any(|(_, deliveries)| deliveries.iter().any(|delivery| delivery.expires_at > now))
    }

    fn close_gates(&self, core: &ShardContext) {
        let now = core.clock.now();
        for (id, deliveries) in &self.groups {
            core.gates.declined(*id, deliveries.len() as u32, now);
        }
    }
}

/// Learns what was admitted, and answers the rest.
fn sort_out(core: &ShardContext, groups: Vec<Group>, mut answered: Answered) -> Vec<ClaimedDelivery> {
    let mut declined = Vec::new();
    for (id, mut deliveries) in groups {
        let now = core.clock.now();
        let Some(Admitted { count, room, open_from }) = answered.rest.next_admitted() else {
            tracing::warn!("an answer of an unexpected shape; claims expire");
            break;
        };
        let rest = deliveries.split_off(count.min(deliveries.len()));
        core.gates.admitted(id, deliveries.len() as u32, room, open_from, now);
        if !rest.is_empty() {
            core.gates.declined(id, rest.len() as u32, now);
            declined.extend(rest);
        }
    }
    declined
}
