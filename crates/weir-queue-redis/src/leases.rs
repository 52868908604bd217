//! Process leases: the name under which this process takes permits, how long it may do so, and the permits of dead processes.
//!
//! Each process reads the delivery queue under its own name. So Redis knows which process has which entry. An entry of a dead
//! process whose permit has no slot is first moved to a reader with the name [`NOBODY`]. So every later look knows that it was not
//! sent.

use std::collections::HashSet;

use async_trait::async_trait;
use tokio::{sync::watch, time::Instant};
use weir_core::claim::{Claim, ProcessId};
use weir_queue::{Leases, LeftPermit, PermitId, QueueResult};

use crate::{
    RedisQueue,
    codec::LeftEntry,
    connection::CallError,
    keys::Shard,
    permit_registry::Taken,
    scripts::Operation,
    shard_context::{ShardContext, unexpected},
};

/// Has in hand what gone processes left unsent. No process has this name.
const NOBODY: ProcessId = ProcessId(0);
/// Entries looked at in one call.
const LEFT_PAGE: usize = 100;
const QUEUE_PAGE: usize = 200;

/// The lease of this process, as it was last told. A process that was never told of one reads under a random name and may do
/// everything: nobody watches it.
pub(crate) struct OwnLease {
    /// Random: names this process where it needs no lease.
    pub(crate) name: String,
    lease: watch::Sender<Option<Lease>>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
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

    /// The name under which this process takes permits.
    pub(crate) fn reader(&self) -> String {
        self.process().map_or_else(|| self.name.clone(), reader_named)
    }

    pub(crate) fn is_valid(&self) -> bool {
        is_valid(&self.lease.borrow())
    }

    /// Waits until the lease is valid.
    pub(crate) async fn valid(&self) {
        // The sender is this very lease.
        let _ = self.lease.subscribe().wait_for(is_valid).await;
    }
}

fn is_valid(lease: &Option<Lease>) -> bool {
    lease.is_none_or(|lease| Instant::now() < lease.until)
}

fn reader_named(process: ProcessId) -> String {
    process.0.to_string()
}

#[async_trait]
impl Leases for RedisQueue {
    fn renew_lease(&self, process: ProcessId, until: Instant) {
        self.core.lease.lease.send_replace(Some(Lease { process, until }));
    }

    async fn holders(&self) -> QueueResult<Vec<ProcessId>> {
        let calls: Vec<_> = Shard::all().map(|shard| self.core.new_call(shard, Operation::Holders)).collect();
        let mut holders = HashSet::new();
        for answered in self.core.call_all(&calls).await {
            let mut names = answered?.rest;
            while let Some(name) = names.next_text() {
                // Other names are of processes without a lease.
                holders.extend(name.parse().map(ProcessId));
            }
        }
        Ok(holders.into_iter().collect())
    }

    async fn left_permits(&self, gone: &[ProcessId]) -> QueueResult<Vec<LeftPermit>> {
        let mut left = Vec::new();
        for shard in Shard::all() {
            // What this process has found out of them before.
            self.core.settlements.flush(&self.core, &[shard]).await?;
            for &process in gone {
                left.extend(self.core.left_by(process, shard).await?);
            }
        }
        Ok(left)
    }

    async fn permitted_claims(&self) -> QueueResult<HashSet<Claim>> {
        let mut claims = HashSet::new();
        for shard in Shard::all() {
            let mut after = "-".to_owned();
            loop {
                let mut call = self.core.new_call(shard, Operation::Entries);
                call.arg(after).arg(QUEUE_PAGE);
                let mut answer = self.core.call(call).await?.rest;
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
        Ok(claims)
    }
}

impl ShardContext {
    /// Whether a permit in hand is still good: it was taken under the name that this process still has.
    pub(crate) fn may_use(&self, id: PermitId) -> bool {
        self.lease.is_valid() && self.registry.holder(id).is_none_or(|holder| holder == self.lease.process())
    }

    /// Whether claims that a process made may be published: it is this one still.
    pub(crate) fn may_publish(&self, process: Option<ProcessId>) -> bool {
        self.lease.is_valid() && process == self.lease.process()
    }

    /// A page of what a process left in a shard. It is taken in hand, so that it can be settled or handed back.
    async fn left_by(&self, process: ProcessId, shard: Shard) -> Result<Vec<LeftPermit>, CallError> {
        let mut call = self.new_call(shard, Operation::Left);
        call.arg(reader_named(process)).arg(LEFT_PAGE);
        let mut answer = self.call(call).await?.rest;
        let mut entries = Vec::new();
        while let Some(entry) = answer.next_left() {
            entries.push(entry);
        }
        if process != NOBODY && !entries.is_empty() {
            let mut call = self.new_call(shard, Operation::Withdraw);
            call.arg(reader_named(NOBODY));
            for LeftEntry { entry, id, .. } in &entries {
                call.destination(id.destination_id).arg(id.serial).arg(entry);
            }
            let mut answer = self.call(call).await?.rest;
            for entry in &mut entries {
                entry.had_slot = answer.next_int().ok_or_else(unexpected)? == 0;
            }
        }
        let holder = self.lease.process();
        let in_hand = |entry: LeftEntry| {
            let LeftEntry { entry, generation, id, claim, expires_at, had_slot } = entry;
            self.registry.take(id, Taken { generation, expires_at, entry, holder });
            LeftPermit { id, claim, had_slot }
        };
        Ok(entries.into_iter().map(in_hand).collect())
    }
}
