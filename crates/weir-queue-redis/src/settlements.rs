//! Sends to Redis how permits ended.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::{DestinationId, Timestamp};
use weir_queue::{PermitId, QueueResult};

use crate::{
    batcher::Batcher,
    client::ShardClient,
    keys::Shard,
    scripts::{Call, Operation},
};

/// Settlements in one call, so that no script occupies the server for long. A settlement costs less than a slot or a
/// permit, so these are more than the 200 of other calls.
const BATCH: usize = 500;
/// How long a settlement that no caller waits for stays before it causes a call of its own. Most of them go earlier,
/// with a flush.
const BATCH_DELAY: Duration = Duration::from_millis(20);

/// How a permit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The attempt has ended and is not recorded yet.
    Used {
        /// [`weir_queue::Settled::answered`].
        answered: Option<Timestamp>,
    },
    /// The attempt is recorded.
    Recorded,
    /// Nothing was sent.
    Unused,
    /// Nothing was sent, because the worker had no place.
    Crowded,
}

#[derive(Debug)]
struct EndedPermit {
    id: PermitId,
    end: Ending,
    generation: u64,
    /// Is removed from the delivery queue.
    entry: Option<String>,
}

pub(crate) struct Settlements {
    pub(crate) client: Arc<ShardClient>,
    batcher: Batcher<EndedPermit>,
}

impl Settlements {
    pub(crate) fn new(client: &Arc<ShardClient>) -> Self {
        Self { client: client.clone(), batcher: Batcher::new(BATCH, BATCH_DELAY) }
    }

    /// Ends a permit; Redis learns it with the next settlements. A used permit stays held until its attempt is
    /// recorded. Returns the shard.
    pub(crate) fn end(&self, id: PermitId, end: Ending) -> Shard {
        self.end_in(self.client.shard_of_permit(id), id, end)
    }

    /// The same for a permit of this shard.
    pub(crate) fn end_in(&self, shard: Shard, id: PermitId, end: Ending) -> Shard {
        let registry = &self.client.registry;
        let current = registry.generation(shard);
        let (generation, entry) = match end {
            Ending::Used { .. } => (registry.issued_by(id).map_or(current, |(_, generation)| generation), None),
            _ => registry.remove(id).map_or((current, None), |held| (held.generation, Some(held.entry))),
        };
        self.batcher.add(shard, EndedPermit { id, end, generation, entry });
        shard
    }

    /// Returns once Redis has received all settlements that were added for the shards before this call.
    pub(crate) async fn flush(&self, shards: impl IntoIterator<Item = Shard>) -> QueueResult<()> {
        self.batcher.flush(shards).await
    }

    /// Sends the settlements of a shard. Never returns.
    pub(crate) async fn run(self: Arc<Self>, shard: Shard) {
        loop {
            let batch = self.batcher.next(shard).await;
            let mut call = self.client.new_call(shard, Operation::Settle);
            DestinationSettlements::of_all(&batch).iter().for_each(|group| group.write(&mut call));
            let sent = self.client.call(call).await.map(drop);
            self.batcher.finish(shard, sent, batch).await;
        }
    }
}

/// The settlements of a batch for one destination and generation.
struct DestinationSettlements<'s> {
    destination_id: DestinationId,
    generation: u64,
    used: Vec<u64>,
    /// For each used permit.
    answered: Vec<Option<Timestamp>>,
    unused: Vec<u64>,
    crowded: usize,
    entries: Vec<&'s str>,
}

impl<'s> DestinationSettlements<'s> {
    /// Groups a batch by destination and generation.
    fn of_all(batch: &'s [EndedPermit]) -> Vec<Self> {
        let mut indexes = HashMap::new();
        let mut groups: Vec<Self> = Vec::new();
        for EndedPermit { id: PermitId { destination_id, serial }, end, generation, entry } in batch {
            let index = *indexes.entry((destination_id, generation)).or_insert_with(|| {
                let (used, answered, unused, entries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
                let (destination_id, generation) = (*destination_id, *generation);
                groups.push(Self { destination_id, generation, used, answered, unused, crowded: 0, entries });
                groups.len() - 1
            });
            let group = &mut groups[index];
            match end {
                Ending::Used { answered } => {
                    group.used.push(*serial);
                    group.answered.push(*answered);
                }
                Ending::Unused | Ending::Crowded => group.unused.push(*serial),
                Ending::Recorded => {}
            }
            group.crowded += usize::from(*end == Ending::Crowded);
            group.entries.extend(entry.as_deref());
        }
        groups
    }

    fn write(&self, call: &mut Call) {
        call.destination(self.destination_id).arg(self.generation);
        call.arg(self.used.len()).arg(&self.used).arg(self.answered.len());
        for answered in &self.answered {
            call.not_before(answered.unwrap_or(Timestamp::MIN));
        }
        call.arg(self.unused.len()).arg(&self.unused);
        call.arg(self.crowded).arg(self.entries.len()).arg(&self.entries);
    }
}
