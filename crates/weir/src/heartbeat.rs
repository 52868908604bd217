//! The heartbeat of this process: the process registers in the store and raises its beat periodically.
//!
//! Each beat that the store accepts extends the use of the queue by a few seconds. So a process that loses the
//! connection to the store stops by itself, before other processes declare it dead and resolve its claims.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::Readiness;
use weir_core::claim::ProcessId;
use weir_store::{BEAT_EVERY, LEASE_VALID, ProcessProfile, SharedStore, StoreError, StoreResult};

use crate::backends::Backends;

/// How long the deregistration may take on shutdown.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// Reasons of one failure that are logged: some name a request, so their number is not bounded otherwise.
const MOST_REASONS: usize = 5;

pub(crate) struct Heartbeat {
    backends: Backends,
    process: ProcessId,
    /// What the process says of itself.
    profile: ProcessProfile,
}

impl Heartbeat {
    pub(crate) async fn begin(backends: Backends, profile: ProcessProfile) -> StoreResult<Self> {
        let asked = Instant::now();
        let store = backends.store();
        let process = store.register_process().await?;
        backends.queue().renew_lease(process, asked + LEASE_VALID);
        store.describe_process(profile.clone()).await?;
        Ok(Self { backends, process, profile })
    }

    /// Beats until the task is aborted. Each reason of a failure is logged once until a beat succeeds again: while a server
    /// is away, reasons alternate.
    pub(crate) async fn keep(mut self, readiness: Readiness) {
        let mut logged: Vec<String> = Vec::new();
        loop {
            tokio::time::sleep(BEAT_EVERY).await;
            let error = self.beat().await.err();
            let lacks_key = matches!(error, Some(StoreError::Sealed(_)));
            readiness.set_lacks_key(lacks_key);
            let Some(error) = error.map(|error| error.to_string()) else {
                if !std::mem::take(&mut logged).is_empty() {
                    tracing::info!("the store records the heartbeat of this process again");
                }
                continue;
            };
            if logged.contains(&error) || logged.len() == MOST_REASONS {
                continue;
            }
            if lacks_key {
                tracing::error!(
                    error,
                    "this process lacks a key, and sends nothing; add the key to WEIR_ENCRYPTION_KEYS and restart it"
                );
            } else {
                tracing::warn!(
                    error,
                    "cannot record the heartbeat of this process in the store; nothing is sent without it"
                );
            }
            logged.push(error);
        }
    }

    async fn beat(&mut self) -> StoreResult<()> {
        let asked = Instant::now();
        let store = self.backends.store();
        // Others see a wrong clock of this machine in the store, also those that cannot reach this process.
        let clock_ahead_us = self.backends.clock_offset().map(|redis_ahead_s| (-redis_ahead_s * 1e6).round() as i64);
        if !store.beat(clock_ahead_us).await? {
            tracing::warn!(
                process = self.process.0,
                "this process was declared dead; it registers again under a new id"
            );
            self.process = store.register_process().await?;
            store.describe_process(self.profile.clone()).await?;
        }
        // A process without a key must not take a delivery that it cannot open: its lease ends.
        store.check_keys().await?;
        self.backends.queue().renew_lease(self.process, asked + LEASE_VALID);
        Ok(())
    }

    /// Deregisters the process, so that other processes can resolve its claims at once.
    pub(crate) async fn end(store: &SharedStore) {
        if !matches!(tokio::time::timeout(DEREGISTER_TIMEOUT, store.deregister()).await, Ok(Ok(()))) {
            tracing::warn!("cannot deregister this process in the store; its heartbeat ends in a few seconds");
        }
    }
}
