//! The ways out: what a connection to a destination is made with, if not with what the installation has.
//!
//! TLS settings and tunnels are kept for the ways that were gone last.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio_rustls::TlsConnector;
use weir_core::{
    egress::{HostPattern, HttpProxy, ProxyChoice, Tls},
    outcome::Failure,
};

use super::{
    egress_proxy::Tunnels,
    fault::Unreachable,
    origin::Origin,
    tls::{TlsIdentity, TlsRoots, connector, own_identity},
};

/// How many TLS identities, and how many proxies, are kept ready. Destinations beyond them read their certificates again
/// for each connection, which costs less than its handshake, and make a full handshake with each.
const MOST: usize = 1_024;

/// What is needed to go the ways of all destinations.
pub(super) struct Ways {
    roots: TlsRoots,
    tls: TlsConnector,
    /// `None`: every destination without a proxy of its own is connected to directly.
    installation: Option<(Arc<Tunnels>, Vec<HostPattern>)>,
    identities: Recent<Tls, Arc<TlsIdentity>>,
    tunnels: Recent<HttpProxy, Arc<Tunnels>>,
}

/// A proxy to connect through.
pub(super) enum Through {
    Installation(Arc<Tunnels>),
    /// The destination names it, so its address is judged.
    Own(Arc<Tunnels>),
}

impl Ways {
    pub(super) fn new(roots: TlsRoots) -> Self {
        let tls = connector(roots.clone());
        Self { roots, tls, installation: None, identities: Recent::new(MOST), tunnels: Recent::new(MOST) }
    }

    /// The same with this proxy for destinations that name none, except these hosts.
    pub(super) fn through(&self, proxy: HttpProxy, direct: Vec<HostPattern>) -> Self {
        Self { installation: Some((Arc::new(Tunnels::new(proxy)), direct)), ..Self::new(self.roots.clone()) }
    }

    /// The proxy that leads to the origin, if there is one.
    pub(super) fn proxy(&self, origin: &Origin) -> Option<Through> {
        match origin.way.as_ref().map(|way| &way.egress.proxy) {
            None | Some(ProxyChoice::Installation) => {
                let (tunnels, direct) = self.installation.as_ref()?;
                let is_direct = direct.iter().any(|direct| direct.contains(&origin.host));
                (!is_direct).then(|| Through::Installation(tunnels.clone()))
            }
            Some(ProxyChoice::Direct) => None,
            Some(ProxyChoice::Own(proxy)) => {
                Some(Through::Own(self.tunnels.get_or_make(proxy, || Arc::new(Tunnels::new(proxy.clone())))))
            }
        }
    }

    /// The TLS connector for the origin, and the client certificate and authorities that only its destination has.
    pub(super) fn tls(&self, origin: &Origin) -> Result<(TlsConnector, Option<Arc<TlsIdentity>>), Unreachable> {
        let Some(way) = origin.way.as_ref().filter(|way| way.has_identity()) else {
            return Ok((self.tls.clone(), None));
        };
        let tls = &way.egress.tls;
        if let Some(known) = self.identities.get(tls) {
            return Ok((known.connector.clone(), Some(known)));
        }
        // The API accepts only certificates that can be used; a later version of the library may know better.
        let unusable = |error: rustls::Error| {
            Unreachable::new(
                Failure::Tls,
                format!("the certificates of the destination's `tls` cannot be used: {error}"),
            )
        };
        let made = Arc::new(own_identity(tls, &self.roots.0).map_err(unusable)?);
        self.identities.insert(tls.clone(), made.clone());
        Ok((made.connector.clone(), Some(made)))
    }
}

/// The values that were used last, at most so many.
struct Recent<K, V> {
    most: usize,
    known: Mutex<Known<K, V>>,
}

struct Known<K, V> {
    /// Each with the number of its last use.
    values: HashMap<K, (V, u64)>,
    uses: u64,
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    fn new(most: usize) -> Self {
        Self { most, known: Mutex::new(Known { values: HashMap::new(), uses: 0 }) }
    }

    fn get(&self, key: &K) -> Option<V> {
        let mut known = self.known.lock();
        known.uses += 1;
        let uses = known.uses;
        let (value, used) = known.values.get_mut(key)?;
        *used = uses;
        Some(value.clone())
    }

    fn insert(&self, key: K, value: V) {
        let mut known = self.known.lock();
        known.uses += 1;
        if known.values.len() >= self.most && !known.values.contains_key(&key) {
            let oldest = known.values.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            oldest.map(|key| known.values.remove(&key));
        }
        let uses = known.uses;
        known.values.insert(key, (value, uses));
    }

    fn get_or_make(&self, key: &K, make: impl FnOnce() -> V) -> V {
        self.get(key).unwrap_or_else(|| {
            let value = make();
            self.insert(key.clone(), value.clone());
            value
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_that_were_used_last_are_kept() {
        let recent = Recent::new(2);
        for key in [1, 2] {
            recent.insert(key, key);
        }
        assert_eq!(recent.get(&1), Some(1));
        recent.insert(3, 3);
        assert_eq!([1, 2, 3].map(|key| recent.get(&key)), [Some(1), None, Some(3)]);
        recent.insert(1, 4);
        assert_eq!([1, 3].map(|key| recent.get(&key)), [Some(4), Some(3)]);
    }
}
