//! Heartbeats: one row for each process that makes claims, and the orphaned claims, which name a process without a
//! row.
//!
//! A claim statement makes claims only if it sees the row of its process. It does not lock the row, because then every
//! claim would write it. So a claim may commit a moment after its process was declared dead. Such a claim is orphaned
//! at once: the next process that reads orphaned claims resolves it, and the dead process learns from its next beat
//! that it must not send the delivery.

use std::{
    sync::atomic::{AtomicI32, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{PgConnection, postgres::PgRow};
use weir_core::{
    Timestamp,
    claim::{Claim, ProcessId},
};
use weir_store::{
    ProcessBeat, ProcessProfile, Processes, Recovered, RunningProcess, StoreResult,
    rows::{self, Row as _},
    sealing, sql,
};

use crate::{
    PostgresStore, Shared,
    edit::change,
    recovery::{Abandoned, recover},
    rows::{Unreadable, column, process_id, uuid},
    sealing_keys,
    writer::Operation,
};

/// The registration of this process, while it has one.
#[derive(Debug, Default)]
pub(crate) struct OwnProcess(AtomicI32);

impl OwnProcess {
    /// No process: the database numbers processes from 1.
    const NONE: i32 = 0;

    pub(crate) fn id(&self) -> Option<ProcessId> {
        Some(self.0.load(Ordering::Acquire)).filter(|id| *id != Self::NONE).map(ProcessId)
    }

    fn set(&self, id: Option<ProcessId>) {
        self.0.store(id.map_or(Self::NONE, |id| id.0), Ordering::Release);
    }
}

#[async_trait]
impl Processes for PostgresStore {
    async fn register_process(&self) -> StoreResult<ProcessId> {
        let id = ProcessId(self.edit(|connection| change(register(connection))).await?);
        self.shared.process.set(Some(id));
        Ok(id)
    }

    async fn describe_process(&self, profile: ProcessProfile) -> StoreResult<()> {
        match self.shared.process.id() {
            Some(id) => self.edit(|connection| change(describe(connection, id, &profile))).await,
            None => Ok(()),
        }
    }

    async fn running_processes(&self) -> StoreResult<Vec<RunningProcess>> {
        self.read(sqlx::query(PROFILES), running_process).await
    }

    async fn beat(&self, clock_ahead_us: Option<i64>) -> StoreResult<bool> {
        match self.shared.process.id() {
            Some(id) => self.beats.ask(Beating { id, clock_ahead_us }).await,
            None => Ok(false),
        }
    }

    async fn check_keys(&self) -> StoreResult<()> {
        let keyring = &self.shared.keyring;
        let missing = self.edit(|connection| change(sealing_keys::check_keys(connection, keyring))).await?;
        missing.map_or(Ok(()), |key| Err(sealing::lacks(key)))
    }

    async fn processes(&self) -> StoreResult<Vec<ProcessBeat>> {
        let read = |row: &PgRow| Ok(ProcessBeat { id: process_id(row, 0)?, beat: row.int(1)? });
        self.read(sqlx::query(PROCESSES), read).await
    }

    async fn declare_dead(&self, id: ProcessId, beat: i64) -> StoreResult<bool> {
        self.edit(|connection| change(remove(connection, id, Some(beat)))).await
    }

    async fn deregister(&self) -> StoreResult<()> {
        if let Some(id) = self.shared.process.id() {
            self.edit(|connection| change(remove(connection, id, None))).await?;
            self.shared.process.set(None);
        }
        Ok(())
    }

    async fn renew_claims(&self, mut claims: Vec<Claim>, expires_at: Timestamp) -> StoreResult<u64> {
        if claims.is_empty() {
            return Ok(0);
        }
        // Every process updates rows in the order of their ids, which prevents deadlocks.
        claims.sort_unstable_by_key(|claim| claim.delivery_id);
        let owner = self.shared.process.id();
        self.edit(|connection| change(renew(connection, &claims, expires_at, owner))).await
    }

    async fn orphaned_claims(&self, limit: u32) -> StoreResult<Vec<Claim>> {
        self.read(sqlx::query(ORPHANED).bind(i64::from(limit)), rows::claim).await
    }

    async fn resolve_claims(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<Recovered> {
        if claims.is_empty() {
            return Ok(Recovered::default());
        }
        let named = Abandoned::Named(claims);
        self.edit(|connection| change(recover(connection, &named, now))).await
    }
}

const REGISTER: &str = "INSERT INTO processes (beat) VALUES (0) RETURNING id";

const BEAT: &str = "UPDATE processes p SET beat = p.beat + 1, clock_ahead_us = b.ahead
    FROM unnest($1::int[], $2::bigint[]) AS b (id, ahead) WHERE p.id = b.id RETURNING p.id";

const PROCESSES: &str = "SELECT id, beat FROM processes ORDER BY id";

const DESCRIBE: &str = "UPDATE processes SET role = $2, version = $3, started_at = $4, host = $5 WHERE id = $1";

const PROFILES: &str = "SELECT id, coalesce(role, ''), coalesce(version, ''), started_at, coalesce(host, ''),
    clock_ahead_us FROM processes ORDER BY id";

const REMOVE: &str = "DELETE FROM processes WHERE id = $1 AND ($2::bigint IS NULL OR beat = $2)";

/// Whether a process may make claims.
pub(crate) const IS_REGISTERED: &str = "SELECT EXISTS (SELECT FROM processes WHERE id = $1)";

/// There are only as many outstanding claims as sends in flight, so all of them may be read.
pub(crate) const ORPHANED: &str = sql! {"
SELECT d.id, d.destination_id, d.claim_epoch FROM deliveries d
WHERE d.state = {delivering} AND d.claimed_by IS NOT NULL
    AND NOT EXISTS (SELECT FROM processes p WHERE p.id = d.claimed_by)
LIMIT $1"};

/// Renews claims. A claim keeps its owner if this process is not registered. `state + 0` makes the planner look up the
/// given deliveries; with `state` it could scan all claims.
pub(crate) const RENEW: &str = sql! {"
UPDATE deliveries d SET claim_expires_at = greatest(d.claim_expires_at, $3), claimed_by = coalesce($4, d.claimed_by)
FROM unnest($1::uuid[], $2::bigint[]) AS r (id, epoch)
WHERE d.id = r.id AND d.claim_epoch = r.epoch AND d.state + 0 = {delivering}"};

async fn renew(
    connection: &mut PgConnection,
    claims: &[Claim],
    expires_at: Timestamp,
    owner: Option<ProcessId>,
) -> Result<u64, sqlx::Error> {
    let renew = sqlx::query(RENEW)
        .bind(column(claims, |claim| uuid(claim.delivery_id.as_bytes())))
        .bind(column(claims, |claim| claim.epoch))
        .bind(expires_at.as_nanos())
        .bind(owner.map(|owner| owner.0));
    Ok(renew.execute(connection).await?.rows_affected())
}

async fn register(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar(REGISTER).fetch_one(connection).await
}

async fn describe(connection: &mut PgConnection, id: ProcessId, profile: &ProcessProfile) -> Result<(), sqlx::Error> {
    let ProcessProfile { role, version, host, started_at } = profile;
    let describe = sqlx::query(DESCRIBE).bind(id.0).bind(role).bind(version).bind(started_at.as_nanos()).bind(host);
    describe.execute(connection).await.map(drop)
}

fn running_process(row: &PgRow) -> Result<RunningProcess, Unreadable> {
    let (role, version, host) = (row.text(1)?, row.text(2)?, row.text(4)?);
    // The columns are stored together, so one of them shows whether the others have values. Older versions store no host.
    let profile = row.optional_time(3)?.map(|started_at| ProcessProfile { role, version, host, started_at });
    Ok(RunningProcess { id: process_id(row, 0)?, profile, clock_ahead_us: row.optional_int(5)? })
}

async fn remove(connection: &mut PgConnection, id: ProcessId, beat: Option<i64>) -> Result<bool, sqlx::Error> {
    let removed = sqlx::query(REMOVE).bind(id.0).bind(beat).execute(connection).await?;
    Ok(removed.rows_affected() == 1)
}

/// A beat. It has a connection of its own, so that it waits neither for other operations of this process nor for the
/// disk.
pub(crate) struct Beating {
    id: ProcessId,
    clock_ahead_us: Option<i64>,
}

#[async_trait]
impl Operation for Beating {
    type Answer = bool;

    const NAME: &'static str = "beat";

    /// A late beat is as bad as a missing one.
    const TIMEOUT: Duration = Duration::from_secs(2);

    fn rows(&self) -> usize {
        1
    }

    async fn run(batch: &[&Self], connection: &mut PgConnection, _: &Shared) -> Result<Vec<bool>, sqlx::Error> {
        let beat = sqlx::query_scalar(BEAT)
            .bind(column(batch, |beating| beating.id.0))
            .bind(column(batch, |beating| beating.clock_ahead_us));
        let raised: Vec<i32> = beat.fetch_all(connection).await?;
        Ok(batch.iter().map(|beating| raised.contains(&beating.id.0)).collect())
    }
}
