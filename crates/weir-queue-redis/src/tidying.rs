//! Drops the expired state of dead workers.

use std::{sync::Arc, time::Duration};

use weir_core::Clock as _;
use weir_queue::QueueResult;

use crate::{
    admissions::Admissions,
    client::unexpected,
    keys::Shard,
    scripts::Operation,
    settlements::{Ending, Settlements},
};

/// Entries and destinations that one call tidies, so that no script occupies the server for long.
const TIDY_PAGE: i64 = 200;
/// A reader that was idle for this long is removed from the consumer group. Much longer than any permit lives: a
/// process that has only been cut off keeps its reader.
const READER_IDLE: Duration = Duration::from_secs(600);

impl Settlements {
    /// Drops expired state of dead workers, in Redis and in this process. Never returns.
    pub(crate) async fn run_tidying(self: Arc<Self>, admissions: Arc<Admissions>) {
        loop {
            tokio::time::sleep(self.client.config.tidy_every).await;
            let now = self.client.clock.now();
            self.client.registry.tidy(now);
            self.client.estimates.tidy(now);
            for shard in Shard::all() {
                if let Err(error) = self.tidy(shard, &admissions).await {
                    tracing::debug!(%error, "could not drop the expired state of dead workers; trying again later");
                    break;
                }
            }
        }
    }

    async fn tidy(&self, shard: Shard, admissions: &Admissions) -> QueueResult<()> {
        loop {
            let mut call = self.client.new_call(shard, Operation::Tidy);
            call.arg(TIDY_PAGE)
                .arg(self.client.config.unread_for.as_millis() as u64)
                .arg(READER_IDLE.as_millis() as u64);
            let mut answer = self.client.call(call).await?.values;
            let dropped = answer.next_int().ok_or_else(unexpected)?;
            let unread = answer.next_entries().ok_or_else(unexpected)?;
            if !unread.is_empty() {
                tracing::warn!(
                    dropped,
                    unread = unread.len(),
                    "dropped permits that no worker has used; is a worker running?"
                );
            }
            // Their permits end, and their deliveries are declined.
            unread.iter().for_each(|entry| {
                self.end_in(shard, entry.id, Ending::Unused);
            });
            admissions.declined.add(unread.into_iter().map(|entry| entry.delivery).collect());
            // Less than a page: no other entry is old enough.
            if dropped < TIDY_PAGE {
                return Ok(());
            }
        }
    }
}
