//! The settings of the queue, and the errors when it is opened.

use std::time::Duration;

use weir_core::InstallationId;
use weir_queue::QueueError;
use weir_sealing::Keyring;

/// The prefix of keys that no setting replaces.
pub const DEFAULT_PREFIX: &str = "weir";

/// Where Redis is.
#[derive(Debug, Clone)]
pub enum Topology {
    /// One server: `redis://[[user]:password@]host[:port][/database]`, `rediss://` for TLS, or `unix:///run/redis.sock`.
    Single(String),
    /// A Cluster, found through any of these nodes.
    Cluster(Vec<String>),
}

impl Topology {
    pub(crate) fn urls(&self) -> &[String] {
        match self {
            Self::Single(url) => std::slice::from_ref(url),
            Self::Cluster(urls) => urls,
        }
    }
}

/// Settings of the queue.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    pub topology: Topology,
    /// Certificates, in PEM, of the authorities that are trusted instead of the system's.
    pub trusted_ca: Option<Vec<u8>>,
    /// The certificate that this process shows, and its private key, in PEM.
    pub client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// The prefix of all keys and of the channel, for installations that share a server.
    pub prefix: String,
    /// The installation whose queue this is. All processes of one database have the same.
    pub installation: InstallationId,
    /// Larger bodies, in bytes, stay in the store, and workers read them there.
    pub largest_inline_body: usize,
    /// Seals the bodies in entries, if it seals those of the store.
    pub keyring: Keyring,
    /// How often this process drops expired state of dead workers, and looks for entries that somebody has deleted:
    /// after two rounds a shard is rebuilt, so that its destinations are back at their limits within ten seconds.
    pub tidy_every: Duration,
    /// How long permits wait for a worker before their claims are released. Together with `tidy_every` this must be
    /// shorter than a claim lasts; otherwise the claims would expire and count as attempts.
    pub unread_for: Duration,
}

impl RedisConfig {
    /// One URL is a single server. Several URLs, separated by commas, are nodes of a Cluster.
    pub fn from_urls(urls: &str, prefix: &str, installation: InstallationId) -> Self {
        let nodes: Vec<_> = urls.split(',').map(|node| node.trim().to_owned()).collect();
        let topology = if nodes.len() == 1 { Topology::Single(urls.to_owned()) } else { Topology::Cluster(nodes) };
        Self { prefix: prefix.to_owned(), installation, ..Self::new(topology) }
    }

    /// The queue of an installation without an id, under the default prefix.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            trusted_ca: None,
            client_certificate: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            installation: InstallationId::from_bytes([0; 16]),
            largest_inline_body: 16 * 1024,
            keyring: Keyring::default(),
            tidy_every: Duration::from_secs(2),
            unread_for: Duration::from_secs(30),
        }
    }
}

/// The queue could not be opened. Every text names the setting and the remedy; none shows a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("redis_url: this is not a Redis URL ({0}); write redis://host:6379, or rediss:// for TLS")]
    Url(String),
    #[error("redis_url: cannot reach Redis at {address} ({reason}); start it, or correct the URL")]
    Unreachable { address: String, reason: String },
    #[error("redis_url: Redis at {address} refuses the password; put it in the URL as redis://:password@host:6379")]
    Password { address: String },
    #[error("redis_url: Redis at {address} is version {version}; Weir needs 7.0 or later")]
    TooOld { address: String, version: String },
    #[error(
        "redis_prefix: the keys {prefix}:… of the Redis at {address} belong to another Weir ({owner}; this one is {own}). \
         Give this one a prefix of its own (WEIR_REDIS_PREFIX) or another Redis (WEIR_REDIS_URL). If the other one no \
         longer exists, delete its keys"
    )]
    Foreign { address: String, prefix: String, owner: String, own: InstallationId },
    #[error("redis_url: the Redis at {address} does not answer as expected ({error})")]
    Unusable { address: String, error: QueueError },
}
