//! The settings of the queue, and the errors when it is opened.

use std::time::Duration;

use weir_queue::QueueError;

/// Where Redis is.
#[derive(Debug, Clone)]
pub enum Topology {
    /// One server: `redis://[[user]:password@]host[:port][/database]`, or `rediss://` for TLS.
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
    /// The prefix of every key, for queues that share a server.
    pub prefix: String,
    /// Larger bodies, in bytes, stay in the store, and workers read them there.
    pub largest_inline_body: usize,
    /// How often this process drops expired state of dead workers.
    pub tidy_every: Duration,
    /// How long permits wait for a worker before their claims are released. Together with `tidy_every` this must be
    /// shorter than a claim lasts; otherwise the claims would expire and count as attempts.
    pub unread_for: Duration,
}

impl RedisConfig {
    /// One URL is a single server. Several URLs, separated by commas, are nodes of a Cluster.
    pub fn from_urls(urls: &str) -> Self {
        let nodes: Vec<_> = urls.split(',').map(|node| node.trim().to_owned()).collect();
        Self::new(if nodes.len() == 1 { Topology::Single(urls.to_owned()) } else { Topology::Cluster(nodes) })
    }

    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            trusted_ca: None,
            prefix: String::new(),
            largest_inline_body: 16 * 1024,
            tidy_every: Duration::from_secs(10),
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
    #[error("redis_url: the Redis at {address} does not answer as expected ({error})")]
    Unusable { address: String, error: QueueError },
}
