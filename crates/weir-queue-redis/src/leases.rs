//! Which processes hold permits, and the permits of dead ones.
//!
//! Each process reads the delivery queue under its own id, so Redis knows which process has which entry. An entry of a
//! dead process whose permit has no slot is first moved to the reader [`WITHDRAWN_READER`]. So every later look-up
//! finds it there and knows that it was not sent.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;
use weir_core::claim::{Claim, ProcessId};
use weir_queue::{Leases, OrphanedPermit, QueueResult, RECORD_KEPT};

use crate::{
    RedisQueue, client::unexpected, codec::OrphanedEntry, heartbeat::reader_named, keys::Shard,
    permit_registry::HeldPermit, scripts::Operation,
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

#[async_trait]
impl Leases for RedisQueue {
    fn renew_lease(&self, process: ProcessId, until: Instant) {
        self.client.heartbeat.renew(process, until);
    }

    async fn holders(&self) -> QueueResult<Vec<ProcessId>> {
        let calls: Vec<_> = Shard::all().map(|shard| self.client.new_call(shard, Operation::Holders)).collect();
        let mut holders = HashSet::new();
        for answered in self.client.call_all(&calls).await {
            let mut names = answered?.values;
            while let Some(name) = names.next_text() {
                // Processes that have never registered have names that are not numbers.
                holders.extend(name.parse().map(ProcessId));
            }
        }
        Ok(holders.into_iter().collect())
    }

    async fn orphaned_permits(&self, dead: &[ProcessId]) -> QueueResult<Vec<OrphanedPermit>> {
        let mut orphaned = Vec::new();
        for shard in Shard::all() {
            // Settlements of orphaned permits that this process found earlier.
            self.settlements.flush([shard]).await?;
            for &process in dead {
                orphaned.extend(self.orphaned_by(process, shard).await?);
            }
        }
        Ok(orphaned)
    }

    async fn exchange(&self, record: Vec<u8>) -> QueueResult<Vec<Vec<u8>>> {
        let mut call = self.client.new_call(Shard::REFERENCE, Operation::Exchange);
        call.arg(&self.client.heartbeat.name).arg(record).arg(RECORD_KEPT.as_millis() as u64);
        let mut answer = self.client.call(call).await?.values;
        Ok(std::iter::from_fn(|| answer.next_bytes().map(Into::into)).collect())
    }

    async fn permitted_claims(&self) -> QueueResult<Option<HashSet<Claim>>> {
        let mut claims = HashSet::new();
        for shard in Shard::all() {
            // Page by page. Each page begins behind the last entry of the previous one; a short page is the last.
            let mut after = "-".to_owned();
            loop {
                let mut call = self.client.new_call(shard, Operation::Entries);
                call.arg(after).arg(QUEUE_PAGE);
                let mut answer = self.client.call(call).await?.values;
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
        Ok(self.client.registry.is_older_than(RENEWED_WITHIN).then_some(claims))
    }
}

impl RedisQueue {
    /// A page of the orphaned permits of a dead process in a shard. This process holds them from now on, so that they
    /// can be settled or handed back.
    async fn orphaned_by(&self, process: ProcessId, shard: Shard) -> QueueResult<Vec<OrphanedPermit>> {
        // The entries that the process had read and that are not acknowledged.
        let mut call = self.client.new_call(shard, Operation::Orphaned);
        call.arg(reader_named(process)).arg(ORPHANED_PAGE);
        let mut answer = self.client.call(call).await?.values;
        let mut entries = Vec::new();
        while let Some(entry) = answer.next_orphaned() {
            entries.push(entry);
        }
        // Permits that are still queued have no slot. They are withdrawn first, so that they can get none any more. The
        // entries of the withdrawn reader went through this before.
        if process != WITHDRAWN_READER && !entries.is_empty() {
            let mut call = self.client.new_call(shard, Operation::Withdraw);
            call.arg(reader_named(WITHDRAWN_READER));
            for OrphanedEntry { entry, id, .. } in &entries {
                call.destination(id.destination_id).arg(id.serial).arg(entry);
            }
            let mut answer = self.client.call(call).await?.values;
            for entry in &mut entries {
                // 0: the permit was not queued any more, so it may have been sent.
                entry.had_slot = answer.next_int().ok_or_else(unexpected)? == 0;
            }
        }
        // This process holds the permits now, so their ends will remove the entries from the delivery queue.
        let holder = self.client.heartbeat.process();
        let register = |entry: OrphanedEntry| {
            let OrphanedEntry { entry, generation, id, claim, expires_at, had_slot } = entry;
            self.client
                .registry
                .register(id, HeldPermit { shard, generation, expires_at, entry, holder, slot_start: 0 });
            OrphanedPermit { id, claim, had_slot }
        };
        Ok(entries.into_iter().map(register).collect())
    }
}
