//! Process leases: the id under which this process takes permits, how long it may do so, and the permits of dead
//! processes.
//!
//! Each process reads the delivery queue under its own id, so Redis knows which process has which entry. An entry of a
//! dead process whose permit has no slot is first moved to the reader [`WITHDRAWN_READER`]. So every later look-up
//! finds it there and knows that it was not sent.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use tokio::{sync::watch, time::Instant};
use weir_core::claim::{Claim, ProcessId};
use weir_queue::{Leases, OrphanedPermit, PermitId, QueueResult};

use crate::{
    RedisQueue,
    codec::OrphanedEntry,
    keys::Shard,
    permit_registry::HeldPermit,
    scripts::Operation,
    shard_context::{ShardContext, unexpected},
};

/// The reader that holds the unsent entries of dead processes. No process has this id.
const WITHDRAWN_READER: ProcessId = ProcessId(0);
/// Entries in one call, so that no script occupies the server for long. An orphaned entry comes with its delivery.
const ORPHANED_PAGE: usize = 100;
/// How soon the workers renew the claims that they hold after a loss of the queue's data. They notice a loss within a
/// second, look for it every second, and write one statement for a thousand claims.
const RENEWED_WITHIN: Duration = Duration::from_secs(5);
/// Entries of the delivery queue in one call. Only their claims come back.
const QUEUE_PAGE: usize = 200;

/// The lease of this process, as last renewed. A process that has never registered reads under a random name and may do
/// everything, because no other process watches it.
pub(crate) struct OwnLease {
    /// A random name of this process, for uses that need no lease.
    pub(crate) name: String,
    lease: watch::Sender<Option<ProcessLease>>,
}

#[derive(Debug, Clone, Copy)]
struct ProcessLease {
    process: ProcessId,
    until: Instant,
}

impl OwnLease {
    pub(crate) fn new() -> Self {
        Self { name: format!("{:016x}", rand::random::<u64>()), lease: watch::Sender::new(None) }
    }

    pub(crate) fn process(&self) -> Option<ProcessId> {
        self.lease.borrow().map(|lease| lease.process)
    }

    /// The reader name under which this process takes permits.
    pub(crate) fn reader(&self) -> String {
        self.process().map_or_else(|| self.name.clone(), reader_named)
    }

    pub(crate) fn is_valid(&self) -> bool {
        is_valid(&self.lease.borrow())
    }

    /// Waits until the lease is valid.
    pub(crate) async fn valid(&self) {
        // The sender is in `self`, so the channel stays open.
        let _ = self.lease.subscribe().wait_for(is_valid).await;
    }
}

fn is_valid(lease: &Option<ProcessLease>) -> bool {
    lease.is_none_or(|lease| Instant::now() < lease.until)
}

fn reader_named(process: ProcessId) -> String {
    process.0.to_string()
}

#[async_trait]
impl Leases for RedisQueue {
    fn renew_lease(&self, process: ProcessId, until: Instant) {
        self.context.lease.lease.send_replace(Some(ProcessLease { process, until }));
    }

    async fn holders(&self) -> QueueResult<Vec<ProcessId>> {
        let calls: Vec<_> = Shard::all().map(|shard| self.context.new_call(shard, Operation::Holders)).collect();
        let mut holders = HashSet::new();
        for answered in self.context.call_all(&calls).await {
            let mut names = answered?.values;
            while let Some(name) = names.next_text() {
                // Processes without a lease have names that are not numbers.
                holders.extend(name.parse().map(ProcessId));
            }
        }
        Ok(holders.into_iter().collect())
    }

    async fn orphaned_permits(&self, dead: &[ProcessId]) -> QueueResult<Vec<OrphanedPermit>> {
        let mut orphaned = Vec::new();
        for shard in Shard::all() {
            // Settlements of orphaned permits that this process found earlier.
            self.context.settlements.flush(&self.context, &[shard]).await?;
            for &process in dead {
                orphaned.extend(self.context.orphaned_by(process, shard).await?);
            }
        }
        Ok(orphaned)
    }

    async fn permitted_claims(&self) -> QueueResult<Option<HashSet<Claim>>> {
        let mut claims = HashSet::new();
        for shard in Shard::all() {
            // Page by page. Each page begins behind the last entry of the previous one; a short page is the last.
            let mut after = "-".to_owned();
            loop {
                let mut call = self.context.new_call(shard, Operation::Entries);
                call.arg(after).arg(QUEUE_PAGE);
                let mut answer = self.context.call(call).await?.values;
                let (count, last) = (answer.next_u64().ok_or_else(unexpected)?, answer.next_text());
                while let Some(claim) = answer.next_claim() {
                    claims.insert(claim);
                }
                match last {
                    Some(last) if count == QUEUE_PAGE as u64 => after = format!("({last}"),
                    _ => break,
                }
            }
        }
        // Judged last, because the calls above may have found a loss.
        Ok(self.context.registry.is_older_than(RENEWED_WITHIN).then_some(claims))
    }
}

impl ShardContext {
    /// Whether a permit may be used: the lease is valid, and the permit was taken under the current id of this process.
    pub(crate) fn may_use(&self, id: PermitId) -> bool {
        self.lease.is_valid() && self.registry.holder(id).is_none_or(|holder| holder == self.lease.process())
    }

    /// Whether claims of `process` may be published: the lease is valid, and `process` is the current id of this
    /// process.
    pub(crate) fn may_publish(&self, process: Option<ProcessId>) -> bool {
        self.lease.is_valid() && process == self.lease.process()
    }

    /// A page of the orphaned permits of a dead process in a shard. This process holds them from now on, so that they
    /// can be settled or handed back.
    async fn orphaned_by(&self, process: ProcessId, shard: Shard) -> QueueResult<Vec<OrphanedPermit>> {
        // The entries that the process had read and that are not acknowledged.
        let mut call = self.new_call(shard, Operation::Orphaned);
        call.arg(reader_named(process)).arg(ORPHANED_PAGE);
        let mut answer = self.call(call).await?.values;
        let mut entries = Vec::new();
        while let Some(entry) = answer.next_orphaned() {
            entries.push(entry);
        }
        // Permits that are still queued have no slot. They are withdrawn first, so that they can get none any more. The
        // entries of the withdrawn reader went through this before.
        if process != WITHDRAWN_READER && !entries.is_empty() {
            let mut call = self.new_call(shard, Operation::Withdraw);
            call.arg(reader_named(WITHDRAWN_READER));
            for OrphanedEntry { entry, id, .. } in &entries {
                call.destination(id.destination_id).arg(id.serial).arg(entry);
            }
            let mut answer = self.call(call).await?.values;
            for entry in &mut entries {
                // 0: the permit was not queued any more, so it may have been sent.
                entry.had_slot = answer.next_int().ok_or_else(unexpected)? == 0;
            }
        }
        // This process holds the permits now, so their ends will remove the entries from the delivery queue.
        let holder = self.lease.process();
        let register = |entry: OrphanedEntry| {
            let OrphanedEntry { entry, generation, id, claim, expires_at, had_slot } = entry;
            self.registry.register(id, HeldPermit { generation, expires_at, entry, holder, slot_start: 0 });
            OrphanedPermit { id, claim, had_slot }
        };
        Ok(entries.into_iter().map(register).collect())
    }
}
