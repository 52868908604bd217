//! Heartbeats: only one process has the file open, so no other process can observe its death. Its claims are
//! recovered at the next start and are never orphaned.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    Timestamp,
    claim::{Claim, ProcessId},
};
use weir_store::{
    AbandonedClaim, ProcessBeat, ProcessProfile, Processes, Recovered, Results as _, RunningProcess, StoreResult,
    rows::Row as _, sql,
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sealing_keys,
    sql::{Values, execute, fetch, values},
    transaction::Transaction,
};

const RENEW: &str = sql!(
    "UPDATE deliveries SET claim_expires_at = max(claim_expires_at, ?) WHERE id = ? AND claim_epoch = ? AND +state = {delivering}"
);

const ATTEMPTS: &str = "SELECT attempts, coalesce(attempts_before, 0) FROM deliveries WHERE id = ?";

#[async_trait]
impl Processes for SqliteStore {
    async fn register_process(&self) -> StoreResult<ProcessId> {
        Ok(ProcessId(1))
    }

    async fn describe_process(&self, profile: ProcessProfile) -> StoreResult<()> {
        // It is kept in memory, because no other process can ask for it.
        *self.profile.lock() = Some(profile);
        Ok(())
    }

    async fn running_processes(&self) -> StoreResult<Vec<RunningProcess>> {
        let profile = self.profile.lock().clone();
        // Its queue has no server whose clock could differ.
        Ok(vec![RunningProcess { id: ProcessId(1), profile, clock_ahead_us: None }])
    }

    /// Nobody observes the beat. It shows this process every second whether the store can write.
    async fn beat(&self, _: Option<i64>) -> StoreResult<bool> {
        self.edit(Durable::No, |transaction| transaction.beat()).await?;
        Ok(true)
    }

    /// The keys were checked when the file was opened, and no other process seals. But a rotation may have removed the key
    /// that this process seals with.
    async fn check_keys(&self) -> StoreResult<()> {
        let Some(first) = self.keyring.first_id() else { return Ok(()) };
        self.edit(Durable::No, move |transaction| sealing_keys::add_key(transaction.connection, first)).await
    }

    async fn processes(&self) -> StoreResult<Vec<ProcessBeat>> {
        Ok(Vec::new())
    }

    async fn declare_dead(&self, _: ProcessId, _: i64) -> StoreResult<bool> {
        Ok(false)
    }

    async fn deregister(&self) -> StoreResult<()> {
        Ok(())
    }

    async fn renew_claims(&self, claims: Vec<Claim>, expires_at: Timestamp) -> StoreResult<u64> {
        if claims.is_empty() {
            return Ok(0);
        }
        self.edit(Durable::No, move |transaction| transaction.renew(&claims, expires_at)).await
    }

    async fn orphaned_claims(&self, _: u32) -> StoreResult<Vec<Claim>> {
        Ok(Vec::new())
    }

    async fn resolve_claims(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<Recovered> {
        let mut results = Vec::with_capacity(claims.len());
        for claim in claims {
            let read = |row: &SqliteRow| Ok((row.small(0)?, row.small(1)?));
            // No attempt is counted while the claim holds. If the claim no longer holds, the result is ignored.
            let of_delivery = values![claim.delivery_id.as_bytes()];
            let Some((attempts, attempts_before)) = fetch(&self.readers, ATTEMPTS, of_delivery, read).await?.pop()
            else {
                continue;
            };
            let destination = self.destinations.get(claim.destination_id);
            let max_attempts = destination.map(|destination| destination.settings.retry.max_attempts);
            let abandoned = AbandonedClaim { claim, attempts, attempts_before, max_attempts };
            results.push(Arc::new(abandoned.unknown_outcome(now)));
        }
        Ok(Recovered::of(&self.settle(results).await?))
    }
}

impl Transaction<'_, '_> {
    /// Writes the first page of the file, which is then the only page of the commit. Weir does not use the value.
    fn beat(&self) -> Result<()> {
        execute(self.connection, "PRAGMA user_version = 0", &Values::default()).map(drop)
    }

    pub(crate) fn renew(&mut self, claims: &[Claim], expires_at: Timestamp) -> Result<u64> {
        let mut renewed = 0;
        for claim in claims {
            let values = values![expires_at, claim.delivery_id.as_bytes(), claim.epoch];
            renewed += execute(self.connection, RENEW, &values)?;
        }
        Ok(renewed)
    }
}
