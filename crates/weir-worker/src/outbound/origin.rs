//! The endpoint of a connection, and the way to it.
//!
//! Connections are pooled by origin, and the way is a part of the origin. So connections of different TLS identities are
//! never shared, and an edit makes new connections.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use url::Host;
use weir_core::egress::Egress;

/// The endpoint of a connection, and its key in the pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) tls: bool,
    pub(super) host: Host<String>,
    pub(super) port: u16,
    /// `None`: as the installation connects.
    pub(super) way: Option<Arc<Way>>,
}

impl Origin {
    /// Whether connections to it are made with certificates that no other destination has.
    pub(super) fn has_own_identity(&self) -> bool {
        self.way.as_ref().is_some_and(|way| way.has_identity())
    }
}

/// The way to one destination.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) egress: Egress,
    /// Hashed instead of the certificates, because connections are looked up for each send.
    fingerprint: u64,
}

impl Way {
    /// `None`: the way of the installation.
    pub(super) fn of(egress: &Egress) -> Option<Arc<Self>> {
        let mut hasher = DefaultHasher::new();
        egress.hash(&mut hasher);
        let way = Self { egress: egress.clone(), fingerprint: hasher.finish() };
        (*egress != Egress::default()).then(|| Arc::new(way))
    }

    /// Whether its connections have a TLS identity of their own.
    pub(super) fn has_identity(&self) -> bool {
        !self.egress.tls.is_default()
    }
}

impl Hash for Way {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use weir_core::egress::Tls;

    use super::*;

    #[test]
    fn ways_differ_by_everything_that_a_connection_depends_on() {
        let of = |proxy: Option<&str>, ca: Option<&str>| {
            let proxy = proxy.map(|proxy| proxy.parse().unwrap()).unwrap_or_default();
            let tls = Tls { ca: ca.map(str::to_owned), client: None };
            Way::of(&Egress { proxy, tls })
        };
        let ways = [
            of(None, None),
            of(Some("direct"), None),
            of(Some("http://proxy"), None),
            of(Some("http://user:a@proxy"), None),
            of(Some("http://user:b@proxy"), None),
            of(None, Some("a")),
            of(None, Some("b")),
        ];
        for (number, way) in ways.iter().enumerate() {
            assert_eq!(ways.iter().position(|other| other == way), Some(number), "{way:?}");
        }
        assert_eq!((of(None, Some("a")), ways[0].is_none()), (ways[5].clone(), true));
    }
}
