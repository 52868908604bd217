//! Makes connections: shared ones for scripts, one for each blocking reader, and one for notifications.
//!
//! A blocking read delays all later commands on its connection, so a reader never shares one. The pool exists only for
//! these exclusive connections. Every connection has explicit timeouts: the default of redis-rs, 500 ms, is shorter
//! than a blocking read.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use deadpool_redis::{Manager, Pool};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ErrorKind, InfoDict, IntoConnectionInfo as _, RedisError,
    RedisResult, TlsCertificates,
    aio::{ConnectionLike, MultiplexedConnection, PubSub},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    io::tcp::TcpSettings,
};

use crate::config::{OpenError, RedisConfig, Topology};

/// How long a blocking read waits for permits. A reader that is stopped finishes its read, so this is a part of every
/// shutdown; and an idle process makes one call in this time.
pub(crate) const BLOCK: Duration = Duration::from_secs(1);
/// Long enough for one lost SYN, which is sent again after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Half of the lease of a run: after a call without an answer the publication can be tried again before another
/// scheduler runs the job.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// A blocking read is answered after [`BLOCK`] when there are no permits.
const READ_TIMEOUT: Duration = BLOCK.saturating_add(RESPONSE_TIMEOUT);
/// Connections of the pool: the reader, and its successor while the reader is being closed.
const EXCLUSIVE: usize = 2;
/// From 7.0 on, an error inside a script keeps its error code. In older versions the code is lost, so a refused script
/// cannot be told from a script that failed after some writes.
const OLDEST_MAJOR: u32 = 7;

/// A connection whose clones share one socket, or one socket to each node of a Cluster.
#[derive(Clone)]
pub(crate) enum Shared {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Shared {
    pub(crate) async fn query<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        match self {
            Self::Single(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }
}

/// A connection that only one reader uses.
pub(crate) enum Exclusive {
    Single(deadpool_redis::Connection),
    Cluster(ClusterConnection),
}

impl Exclusive {
    pub(crate) async fn query<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        match self {
            Self::Single(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }

    /// Closes the connection instead of returning it to the pool: an answer may still arrive on it.
    pub(crate) fn discard(self) {
        if let Self::Single(connection) = self {
            drop(deadpool_redis::Connection::take(connection));
        }
    }
}

enum Route {
    Single(Pool),
    Cluster(Box<ClusterRoute>),
}

struct ClusterRoute {
    shared: ClusterClient,
    reading: ClusterClient,
}

/// Opens connections to Redis.
pub(crate) struct Dialer {
    route: Route,
    /// Each configured node, for requests that any node can answer.
    nodes: Vec<Client>,
    next_node: AtomicUsize,
}

impl Dialer {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, OpenError> {
        let url_error = |error: RedisError| OpenError::Url(error.to_string());
        if config.topology.urls().iter().any(|url| url.starts_with("rediss:")) {
            // The TLS provider of the workspace. An error means that a provider is installed already.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        // A client for each node, for checks and notifications.
        let nodes: Vec<Client> = config
            .topology
            .urls()
            .iter()
            .map(|url| client(url, config).map_err(url_error))
            .collect::<Result<_, _>>()?;
        let first = nodes.first().ok_or_else(|| OpenError::Url("no node is named".to_owned()))?;
        // The connections for scripts and for readers. A pooled connection has the longer timeout of a reader; a
        // connection for scripts gets the shorter timeout when it is taken from the pool. The client of a Cluster has
        // one timeout, so there are two clients.
        let route = match &config.topology {
            Topology::Single(_) => {
                let timeouts = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(CONNECT_TIMEOUT))
                    .set_response_timeout(Some(READ_TIMEOUT));
                let info = first.get_connection_info().clone();
                let manager = Manager::new_with_config(info, timeouts).map_err(url_error)?;
                let pool = Pool::builder(manager).max_size(EXCLUSIVE).build();
                Route::Single(pool.map_err(|error| OpenError::Url(error.to_string()))?)
            }
            Topology::Cluster(urls) => Route::Cluster(Box::new(ClusterRoute {
                shared: cluster(urls, config, RESPONSE_TIMEOUT).map_err(url_error)?,
                reading: cluster(urls, config, READ_TIMEOUT).map_err(url_error)?,
            })),
        };
        Ok(Self { route, nodes, next_node: AtomicUsize::new(0) })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    pub(crate) async fn shared(&self) -> RedisResult<Shared> {
        match &self.route {
            Route::Single(pool) => {
                let mut connection = deadpool_redis::Connection::take(exclusive(pool).await?);
                connection.set_response_timeout(RESPONSE_TIMEOUT);
                Ok(Shared::Single(connection))
            }
            Route::Cluster(route) => route.shared.get_async_connection().await.map(Shared::Cluster),
        }
    }

    pub(crate) async fn reader(&self) -> RedisResult<Exclusive> {
        match &self.route {
            Route::Single(pool) => exclusive(pool).await.map(Exclusive::Single),
            Route::Cluster(route) => route.reading.get_async_connection().await.map(Exclusive::Cluster),
        }
    }

    /// Notifications reach every node. Each call connects to the next node.
    pub(crate) async fn pub_sub(&self) -> RedisResult<PubSub> {
        let node = self.next_node.fetch_add(1, Ordering::Relaxed) % self.nodes.len();
        match tokio::time::timeout(CONNECT_TIMEOUT, self.nodes[node].get_async_pubsub()).await {
            Ok(connected) => connected,
            Err(_) => Err(RedisError::from((ErrorKind::Io, "connecting took too long"))),
        }
    }

    /// Checks whether Weir can work with the first node that answers, and returns its address.
    pub(crate) async fn check(&self) -> Result<String, OpenError> {
        let mut last = Err(OpenError::Url("no node is named".to_owned()));
        for node in &self.nodes {
            last = check_node(node).await;
            if !matches!(last, Err(OpenError::Unreachable { .. })) {
                break;
            }
        }
        last
    }
}

async fn exclusive(pool: &Pool) -> RedisResult<deadpool_redis::Connection> {
    pool.get().await.map_err(|error| match error {
        deadpool_redis::PoolError::Backend(error) => error,
        error => RedisError::from((ErrorKind::Client, "no connection", error.to_string())),
    })
}

/// `None`: the authorities of the system, and no certificate of this process.
fn certificates(config: &RedisConfig) -> Option<TlsCertificates> {
    let client_tls = config.client_certificate.clone();
    let client_tls = client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    let root_cert = config.trusted_ca.clone();
    (client_tls.is_some() || root_cert.is_some()).then_some(TlsCertificates { client_tls, root_cert })
}

/// Without this a call that begins while another one has no answer stays in the kernel until that answer comes, which
/// doubles the round trip: many calls share a connection.
fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn client(url: &str, config: &RedisConfig) -> RedisResult<Client> {
    let info = url.into_connection_info()?.set_tcp_settings(at_once());
    match certificates(config) {
        Some(certificates) if url.starts_with("rediss:") => Client::build_with_tls(info, certificates),
        _ => Client::open(info),
    }
}

fn cluster(urls: &[String], config: &RedisConfig, response_timeout: Duration) -> RedisResult<ClusterClient> {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let builder = ClusterClient::builder(urls)
        .tcp_settings(at_once())
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(response_timeout)
        .overall_response_timeout(Some(response_timeout * 2));
    match certificates(config) {
        Some(certificates) => builder.certs(certificates).build(),
        None => builder.build(),
    }
}

async fn check_node(node: &Client) -> Result<String, OpenError> {
    let address = node.get_connection_info().addr().to_string();
    // Explicit timeouts, so that a node without an answer is reported within seconds.
    let timeouts = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    let mut connection = node
        .get_multiplexed_async_connection_with_config(&timeouts)
        .await
        .map_err(|error| refused(&address, &error))?;
    // A server that is too old is refused, and so is one that does not tell its version.
    let info: InfoDict = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await
        .map_err(|error| refused(&address, &error))?;
    let version: String = info.get("redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major: u32| major < OLDEST_MAJOR) {
        return Err(OpenError::TooOld { address, version });
    }
    // A policy that may evict keys is only reported.
    match warn_of_eviction(&mut connection, &address).await {
        Ok(()) => Ok(address),
        Err(error) => Err(refused(&address, &error)),
    }
}

fn refused(address: &str, error: &RedisError) -> OpenError {
    let address = address.to_owned();
    if error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) {
        return OpenError::Password { address };
    }
    OpenError::Unreachable { address, reason: error.to_string() }
}

/// Warns when Redis may evict keys. An evicted key is a lost queue: the queue recovers, but holds every destination
/// meanwhile.
async fn warn_of_eviction(connection: &mut impl ConnectionLike, address: &str) -> RedisResult<()> {
    let asked: RedisResult<Vec<String>> =
        redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").query_async(connection).await;
    match asked {
        Ok(answer) => {
            if let Some(policy) = answer.get(1).filter(|policy| *policy != "noeviction") {
                tracing::warn!(
                    address,
                    policy,
                    "redis_url: set Redis's maxmemory-policy to noeviction; it may drop jobs"
                );
            }
            Ok(())
        }
        // Hosted Redis services often refuse CONFIG.
        Err(error) if !error.is_io_error() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_waits_in_the_kernel_for_the_answer_of_another() {
        for url in ["redis://127.0.0.1:6379", "rediss://redis.internal:6379"] {
            let config = RedisConfig::new(Topology::Single(url.to_owned()));
            let client = client(url, &config).expect("a valid URL");
            assert!(client.get_connection_info().tcp_settings().nodelay(), "{url}");
        }
    }
}
