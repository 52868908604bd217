//! Sends deliveries to Redis that were claimed as they were stored. Deliveries that arrive during a call go together in
//! the next call.
//!
//! If an answer is lost, the call may have run and its permits may be in the delivery queue. The call is repeated under
//! its name until there is an answer or the claims have expired. Claims are released only if nothing was published.

use weir_core::{
    Backoff, Clock as _, DestinationId, Timestamp,
    claim::{ClaimedDelivery, ProcessId},
};
use weir_queue::{Mailbox, QueueError};

use crate::{
    codec::Admitted,
    keys::Shard,
    schedule::{by_destination, by_shard},
    scripts::{Call, Operation},
    shard_context::{ScriptAnswer, ShardContext},
};

/// Deliveries of one destination.
type Group = (DestinationId, Vec<ClaimedDelivery>);

#[derive(Default)]
pub(crate) struct Admissions {
    added: Mailbox<ClaimedDelivery>,
    declined: Mailbox<ClaimedDelivery>,
}

impl Admissions {
    pub(crate) fn add(&self, deliveries: Vec<ClaimedDelivery>) {
        self.added.add(deliveries);
    }

    /// Waits for deliveries that could not be admitted.
    pub(crate) async fn declined(&self) -> Vec<ClaimedDelivery> {
        self.declined.take().await
    }

    pub(crate) fn decline(&self, deliveries: Vec<ClaimedDelivery>) {
        self.declined.add(deliveries);
    }

    /// Admits deliveries. Never returns.
    pub(crate) async fn run(&self, context: &ShardContext) {
        loop {
            let deliveries = self.added.take().await;
            self.admit(context, deliveries).await;
        }
    }

    /// Repeats calls without an answer. Redis knows a call that ran by its name and gives the same answer again.
    async fn admit(&self, context: &ShardContext, deliveries: Vec<ClaimedDelivery>) {
        // One call for each shard, or several if there are many destinations. Each call has a name, so that Redis
        // recognises a repeated call.
        let mut open: Vec<Batch> =
            by_shard(by_destination(deliveries, |delivery| delivery.claim.destination_id), |(id, _)| *id)
                .into_iter()
                .enumerate()
                .map(|(index, (shard, groups))| {
                    let generation = context.registry.generation(shard);
                    let process = context.lease.process();
                    Batch { shard, groups, index, name: rand::random(), maybe_ran: false, generation, process }
                })
                .collect();
        // Batches without an answer are repeated until there is one or all their claims have expired.
        let mut backoff = Backoff::default();
        loop {
            self.try_admit(context, &mut open).await;
            if open.is_empty() {
                return;
            }
            tokio::time::sleep(backoff.fail_with_jitter(rand::random())).await;
            let now = context.clock.now();
            open.retain(|batch| batch.lasts_beyond(now));
        }
    }

    /// Makes one call for each batch. Keeps the batches that may have run.
    async fn try_admit(&self, context: &ShardContext, open: &mut Vec<Batch>) {
        // Without a valid lease this process was declared dead, or will be. It declines the batches that did not run.
        // Other processes resolve the batches that may have run.
        let (valid, expired): (Vec<_>, Vec<_>) = open.drain(..).partition(|batch| context.may_publish(batch.process));
        *open = valid;
        for batch in expired.into_iter().filter(|batch| !batch.maybe_ran) {
            batch.record_refusal(context);
            self.declined.add(batch.into_deliveries());
        }
        // A call has the name of its batch in every try.
        let calls: Vec<Call> = open.iter().map(|batch| batch.call(context)).collect();
        let answers = context.call_all(&calls).await;
        for (mut batch, answered) in std::mem::take(open).into_iter().zip(answers) {
            match answered {
                Ok(answered) => {
                    // A new generation does not know the names of earlier calls. If an earlier try may have run,
                    // declined deliveries are not released: their claims must expire.
                    let is_certain = !batch.maybe_ran || answered.generation == batch.generation;
                    let declined = record_admitted(context, batch.groups, answered);
                    if is_certain {
                        self.declined.add(declined);
                    }
                }
                Err(error) => {
                    // The first failure gives the reserved room back. A repetition has none to give back.
                    if !batch.maybe_ran {
                        tracing::warn!(%error, "could not admit deliveries");
                        batch.record_refusal(context);
                    }
                    // The claims can be released only if Redis has certainly not run the call. Otherwise it is
                    // repeated.
                    batch.maybe_ran |= matches!(error, QueueError::Unknown(_));
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

/// The deliveries of one call.
struct Batch {
    shard: Shard,
    groups: Vec<Group>,
    /// The position among the batches of one round.
    index: usize,
    name: u64,
    /// An earlier try may have run.
    maybe_ran: bool,
    /// The generation of the shard before the first try.
    generation: u64,
    /// The process that made the claims.
    process: Option<ProcessId>,
}

impl Batch {
    fn call(&self, context: &ShardContext) -> Call {
        let mut call = context.new_call(self.shard, Operation::Admit);
        call.arg(format!("{}:{}", context.lease.name, self.index))
            .arg(self.name.to_string())
            .arg(u8::from(self.maybe_ran));
        for (id, deliveries) in &self.groups {
            // The deliveries were stored at about the same time, so the version of the last one stands for all. Without
            // a destination the version matches no terms.
            let version = deliveries.last().and_then(|delivery| delivery.destination.as_ref()).map(|of| of.updated_at);
            call.destination(*id).version(version.unwrap_or(Timestamp::MIN));
            call.deliveries(deliveries, context.config.largest_inline_body);
        }
        call
    }

    fn into_deliveries(self) -> Vec<ClaimedDelivery> {
        self.groups.into_iter().flat_map(|(_, deliveries)| deliveries).collect()
    }

    /// Whether a claim has not expired. The sweep resolves expired claims.
    fn lasts_beyond(&self, now: Timestamp) -> bool {
        self.groups.iter().any(|(_, deliveries)| deliveries.iter().any(|delivery| delivery.expires_at > now))
    }

    fn record_refusal(&self, context: &ShardContext) {
        let now = context.clock.now();
        for (id, deliveries) in &self.groups {
            context.admission_estimates.declined(*id, deliveries.len() as u32, now);
        }
    }
}

/// Learns which deliveries were admitted, and returns the refused ones.
fn record_admitted(context: &ShardContext, groups: Vec<Group>, mut answered: ScriptAnswer) -> Vec<ClaimedDelivery> {
    let mut declined = Vec::new();
    for (id, mut deliveries) in groups {
        let now = context.clock.now();
        let Some(Admitted { count, room, admits_from }) = answered.values.next_admitted() else {
            tracing::warn!("the answer has an unexpected shape; the claims will expire");
            break;
        };
        // Redis admits from the front of the batch.
        let refused = deliveries.split_off(count.min(deliveries.len()));
        context.admission_estimates.admitted(id, deliveries.len() as u32, room, admits_from, now);
        if !refused.is_empty() {
            context.admission_estimates.declined(id, refused.len() as u32, now);
            declined.extend(refused);
        }
    }
    declined
}
