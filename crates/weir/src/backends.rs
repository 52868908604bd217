//! The combinations of store, queue and clock: the only module that names the backends.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use weir_core::{Clock, InstallationId, Timestamp};
use weir_queue::{SharedQueue, memory::MemoryQueue};
use weir_queue_redis::{RedisConfig, RedisQueue};
use weir_sealing::Keyring;
use weir_store::SharedStore;
use weir_store_postgres::{Connections, PoolUse, PostgresStore};
use weir_store_sqlite::SqliteStore;

use crate::{
    clock::SystemClock,
    config::{Backing, RedisServer, TlsFiles},
    exit::Misuse,
    logs,
};

/// Opened backends, shared by all parts of the process.
#[derive(Clone)]
pub(crate) enum Backends {
    /// One process owns the SQLite file and holds the queue in memory.
    Embedded { store: Arc<SqliteStore>, queue: Arc<MemoryQueue>, clock: Arc<SystemClock> },
    /// Any number of processes share the servers and the clock of Redis.
    Scaled { store: Arc<PostgresStore>, queue: Arc<RedisQueue> },
}

/// The depths of the queue, for gauges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depths {
    pub(crate) ready: usize,
    /// How long the oldest ready permit has waited.
    pub(crate) oldest_waited: Duration,
    pub(crate) queued: usize,
    pub(crate) in_flight: usize,
    pub(crate) jobs: usize,
}

/// The resources that a store uses, for gauges.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StoreUse {
    Sqlite { wal_bytes: u64 },
    Postgres(PoolUse),
}

/// How large the store is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StoreSize {
    /// The disk that holds the file, where the system says how large it is and how much of it is free.
    Sqlite { bytes: u64, disk: Option<(u64, u64)> },
    /// `kept_log`: what a replication slot keeps of the write-ahead log.
    Postgres { bytes: u64, kept_log: u64 },
}

impl Backends {
    pub(crate) async fn open(backing: &Backing, role: &str, keyring: Keyring) -> anyhow::Result<Self> {
        match backing {
            Backing::Embedded { database } => {
                let store = Arc::new(SqliteStore::open_with_keys(database, keyring).await?);
                let clock = Arc::new(SystemClock::start());
                let queue = Arc::new(MemoryQueue::new(clock.clone()));
                // Before anything runs: no other process can hold a claim, and the cursors need the complete history.
                resolve_abandoned_claims(&*store, clock.now()).await?;
                Ok(Self::Embedded { store, queue, clock })
            }
            Backing::Scaled { postgres, redis } => {
                let url = postgres.url_for(&application_name(role));
                let installation = PostgresStore::installation(&url).await?;
                let queue = Arc::new(
                    RedisQueue::open(RedisConfig { keyring: keyring.clone(), ..redis_config(redis, installation)? })
                        .await?,
                );
                let now = queue.clock().now();
                let replica = postgres.read_url_for(&application_name(role));
                let connections = Connections { pool: postgres.pool, replica };
                let store = Arc::new(PostgresStore::open_with(&url, connections, now, keyring).await?);
                Ok(Self::Scaled { store, queue })
            }
        }
    }

    pub(crate) fn store(&self) -> SharedStore {
        match self {
            Self::Embedded { store, .. } => store.clone(),
            Self::Scaled { store, .. } => store.clone(),
        }
    }

    pub(crate) fn queue(&self) -> SharedQueue {
        match self {
            Self::Embedded { queue, .. } => queue.clone(),
            Self::Scaled { queue, .. } => queue.clone(),
        }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Self::Embedded { clock, .. } => clock.clone(),
            Self::Scaled { queue, .. } => queue.clock(),
        }
    }

    /// `None` while the queue cannot be reached.
    pub(crate) async fn depths(&self) -> Option<Depths> {
        match self {
            Self::Embedded { queue, clock, .. } => {
                let weir_queue::memory::Depths { ready, oldest_published_at, queued, in_flight, jobs } = queue.depths();
                let oldest_waited = oldest_published_at.map_or(Duration::ZERO, |at| clock.now().since(at));
                Some(Depths { ready, oldest_waited, queued, in_flight, jobs })
            }
            Self::Scaled { queue, .. } => {
                let weir_queue_redis::Depths { ready, oldest_waited, queued, in_flight, jobs, .. } =
                    queue.depths().await.ok()?;
                Some(Depths { ready, oldest_waited, queued, in_flight, jobs })
            }
        }
    }

    /// How far the clock of the queue's server is ahead of this process's wall clock, in seconds; negative when it is
    /// behind. `None` for a queue in this process.
    pub(crate) fn clock_offset(&self) -> Option<f64> {
        match self {
            Self::Embedded { .. } => None,
            Self::Scaled { queue, .. } => Some(queue.clock().servers_ahead_of_wall()? as f64 / 1e9),
        }
    }

    /// Whether other processes may use the same servers.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Scaled { .. })
    }

    /// The kinds of store and queue, as the API names them.
    pub(crate) fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Embedded { .. } => ("sqlite", "memory"),
            Self::Scaled { .. } => ("postgres", "redis"),
        }
    }

    /// The resources that the store uses.
    pub(crate) fn store_use(&self) -> StoreUse {
        match self {
            Self::Embedded { store, .. } => StoreUse::Sqlite { wal_bytes: store.wal_bytes() },
            Self::Scaled { store, .. } => StoreUse::Postgres(store.pool_use()),
        }
    }

    /// Looks whether a read replica can be used, and exports how far it is behind.
    pub(crate) async fn check_replica(&self) {
        if let Self::Scaled { store, .. } = self {
            store.check_replica().await;
        }
    }

    /// Looks whether the address of a database server leads to another one than before.
    pub(crate) async fn watch_server(&self) {
        if let Self::Scaled { store, .. } = self {
            // That the server is away is seen and said elsewhere.
            let _ = store.watch_server().await;
        }
    }

    /// How large the store is. `None` if it does not say.
    pub(crate) async fn store_size(&self) -> Option<StoreSize> {
        match self {
            Self::Embedded { store, .. } => {
                Some(StoreSize::Sqlite { bytes: store.file_bytes(), disk: disk_of(store.folder()) })
            }
            Self::Scaled { store, .. } => {
                let (bytes, kept_log) = store.sizes().await.ok()?;
                Some(StoreSize::Postgres { bytes, kept_log })
            }
        }
    }

    /// Finishes the pending operations and closes the connections.
    pub(crate) async fn close(&self) {
        match self {
            Self::Embedded { store, .. } => store.close().await,
            Self::Scaled { store, queue } => {
                queue.close().await;
                store.close().await;
            }
        }
    }
}

/// The size of the disk with this folder, and what is free of it for this user.
#[cfg(unix)]
fn disk_of(folder: &Path) -> Option<(u64, u64)> {
    let disk = nix::sys::statvfs::statvfs(folder).ok()?;
    // The types of the counts differ between systems.
    let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
    Some((bytes(disk.blocks()), bytes(disk.blocks_available())))
}

#[cfg(not(unix))]
fn disk_of(_: &Path) -> Option<(u64, u64)> {
    None
}

/// How PostgreSQL lists the connections of a process: `weir worker web-1`. The server cuts it after 63 bytes.
pub(crate) fn application_name(role: &str) -> String {
    format!("weir {role} {}", logs::host())
}

/// The settings of the queue. The files for TLS are read now.
pub(crate) fn redis_config(redis: &RedisServer, installation: InstallationId) -> anyhow::Result<RedisConfig> {
    let read = |file: &Option<PathBuf>| {
        let read = |file: &PathBuf| {
            std::fs::read(file)
                .map_err(|error| Misuse(format!("cannot read {} for TLS with Redis: {error}", file.display())))
        };
        file.as_ref().map(read).transpose()
    };
    let TlsFiles { ca, cert, key } = &redis.tls;
    Ok(RedisConfig {
        trusted_ca: read(ca)?,
        client_certificate: read(cert)?.zip(read(key)?),
        ..RedisConfig::from_urls(&redis.urls(), &redis.prefix, installation)
    })
}

async fn resolve_abandoned_claims(store: &dyn weir_store::Store, now: Timestamp) -> anyhow::Result<()> {
    let recovered = weir_scheduler::recover_all(store, now).await.context("cannot recover the claims of a crash")?;
    let count = recovered.retried + recovered.dead + recovered.cancelled;
    if count > 0 {
        tracing::warn!(
            count,
            "the last process died with claimed deliveries; each counts as an attempt of unknown outcome"
        );
    }
    Ok(())
}
