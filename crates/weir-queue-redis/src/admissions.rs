//! Sends deliveries to Redis that were claimed as they were stored.
//!
//! If an answer is lost, the call may have run and its permits may be in the delivery queue. The call is repeated under
//! its name until there is an answer or the claims have expired. Claims are released only if nothing was published.

use std::{sync::Arc, time::Duration};

use weir_core::{
    Backoff, Clock as _, DestinationId, Timestamp,
    claim::{ClaimedDelivery, ProcessId},
};
use weir_queue::{Mailbox, QueueError};

use crate::{
    batcher::Batcher,
    client::{ScriptAnswer, ShardClient},
    keys::Shard,
    schedule::{BATCH, by_destination},
    scripts::{Call, Operation},
};

/// Deliveries of one destination.
type OfDestination = (DestinationId, Vec<ClaimedDelivery>);

pub(crate) struct Admissions {
    client: Arc<ShardClient>,
    batcher: Batcher<ClaimedDelivery>,
    /// Deliveries that could not be admitted, or whose permits no worker has read.
    pub(crate) declined: Mailbox<ClaimedDelivery>,
}

impl Admissions {
    pub(crate) fn new(client: &Arc<ShardClient>) -> Self {
        let batcher = Batcher::new(BATCH, Duration::ZERO);
        Self { client: client.clone(), batcher, declined: Mailbox::default() }
    }

    pub(crate) fn add(&self, deliveries: Vec<ClaimedDelivery>) {
        for delivery in deliveries {
            let id = delivery.flow_id;
            if let Some(delivery) = self.batcher.add(self.client.homes.of(id), delivery) {
                self.client.estimates.declined(id, 1, self.client.clock.now());
                self.declined.add(vec![delivery]);
            }
        }
    }

    /// Admits the deliveries of a shard. Never returns.
    pub(crate) async fn run(self: Arc<Self>, shard: Shard) {
        loop {
            let deliveries = self.batcher.next(shard).await;
            self.admit(shard, deliveries).await;
            // Each delivery was admitted or declined, or its claim has expired, so none is repeated.
            self.batcher.finish(shard, Ok(()), Vec::new()).await;
        }
    }

    /// Repeats a call without an answer. Redis knows a call that ran by its name and gives the same answer again.
    async fn admit(&self, shard: Shard, deliveries: Vec<ClaimedDelivery>) {
        let mut backoff = Backoff::default();
        let mut batch = Batch {
            shard,
            destinations: by_destination(deliveries, |delivery| delivery.flow_id).collect(),
            name: rand::random(),
            maybe_ran: false,
            generation: self.client.registry.generation(shard),
            process: self.client.heartbeat.process(),
        };
        while let Some(tried) = self.try_admit(batch).await {
            tokio::time::sleep(backoff.fail_with_jitter(rand::random())).await;
            if !tried.lasts_beyond(self.client.clock.now()) {
                return;
            }
            batch = tried;
        }
    }

    /// Makes one call. Returns the batch if it may have run.
    async fn try_admit(&self, mut batch: Batch) -> Option<Batch> {
        // Without a valid heartbeat this process was declared dead, or will be. It declines a batch that did not run.
        // Other processes resolve one that may have run.
        if !self.client.may_publish(batch.process) {
            if !batch.maybe_ran {
                self.record_refusal(&batch);
                self.declined.add(batch.into_deliveries());
            }
            return None;
        }
        // A call has the name of its batch in every try.
        match self.client.call(batch.call(&self.client)).await {
            Ok(answered) => {
                // A new generation does not know the names of earlier calls. If an earlier try may have run, declined
                // deliveries are not released: their claims must expire.
                let is_certain = !batch.maybe_ran || answered.generation == batch.generation;
                let declined = self.record_admitted(batch.destinations, answered);
                if is_certain {
                    self.declined.add(declined);
                }
                None
            }
            Err(error) => {
                if !batch.maybe_ran {
                    tracing::warn!(%error, "could not admit deliveries");
                    // The first failure gives the reserved room back. A repetition has none to give back.
                    self.record_refusal(&batch);
                }
                // The claims can be released only if Redis has certainly not run the call. Otherwise it is repeated.
                batch.maybe_ran |= matches!(error, QueueError::Unknown(_));
                if batch.maybe_ran {
                    return Some(batch);
                }
                self.declined.add(batch.into_deliveries());
                None
            }
        }
    }

    fn record_refusal(&self, batch: &Batch) {
        let now = self.client.clock.now();
        for (id, deliveries) in &batch.destinations {
            self.client.estimates.declined(*id, deliveries.len() as u32, now);
        }
    }

    /// Learns which deliveries were admitted, and returns the refused ones.
    fn record_admitted(&self, destinations: Vec<OfDestination>, mut answered: ScriptAnswer) -> Vec<ClaimedDelivery> {
        let mut declined = Vec::new();
        for (id, mut deliveries) in destinations {
            let now = self.client.clock.now();
            let Some(admitted) = answered.values.next_admitted() else {
                tracing::warn!("the answer has an unexpected shape; the claims will expire");
                break;
            };
            // Redis admits from the front of the batch.
            let refused = deliveries.split_off(admitted.count.min(deliveries.len()));
            self.client.estimates.answered(id, refused.len() as u32, &admitted, now);
            declined.extend(refused);
        }
        declined
    }
}

/// The deliveries of one call.
struct Batch {
    shard: Shard,
    destinations: Vec<OfDestination>,
    name: u64,
    /// An earlier try may have run.
    maybe_ran: bool,
    /// The generation of the shard before the first try.
    generation: u64,
    /// The process that made the claims.
    process: Option<ProcessId>,
}

impl Batch {
    fn call(&self, client: &ShardClient) -> Call {
        let mut call = client.new_call(self.shard, Operation::Admit);
        call.arg(&client.heartbeat.name).arg(self.name.to_string()).arg(u8::from(self.maybe_ran));
        for (id, deliveries) in &self.destinations {
            // The deliveries were stored at about the same time, so the version of the last one stands for all. Without
            // a destination the version matches no terms.
            let destination = deliveries.last().and_then(|delivery| delivery.destination.as_ref());
            let version = destination.map(|of| of.version(client.clock.now()));
            call.destination(*id).version(version.unwrap_or(Timestamp::MIN));
            call.deliveries(deliveries, &client.config);
        }
        call
    }

    fn into_deliveries(self) -> Vec<ClaimedDelivery> {
        self.destinations.into_iter().flat_map(|(_, deliveries)| deliveries).collect()
    }

    /// Whether a claim has not expired. The sweep resolves expired claims.
    fn lasts_beyond(&self, now: Timestamp) -> bool {
        self.destinations.iter().any(|(_, deliveries)| deliveries.iter().any(|delivery| delivery.expires_at > now))
    }
}
