//! TLS: one provider (ring), the system's roots or those of a destination, HTTP/1.1 only.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio_rustls::TlsConnector;
use weir_core::{certificate::Certificate, egress::Tls};

/// Sessions that are kept for one TLS identity of its own: it has one destination, or a few.
const OWN_SESSIONS: usize = 4;

/// The certificates that are trusted.
#[derive(Debug, Clone)]
pub struct TlsRoots(pub(super) Arc<RootCertStore>);

impl TlsRoots {
    /// The system's certificates, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`. Reads files: call it once, at start.
    /// If no certificate can be read, every https destination fails with a reason; this is a warning, not a refusal to
    /// start.
    pub fn system() -> Self {
        let found = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        let (usable, unusable) = store.add_parsable_certificates(found.certs);
        if usable == 0 {
            let errors = found.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            tracing::warn!(errors, "no trusted certificates found; https destinations will fail (see SSL_CERT_FILE)");
        } else {
            tracing::debug!(usable, unusable, "trusted certificates loaded");
        }
        Self(Arc::new(store))
    }

    /// No certificates.
    pub fn none() -> Self {
        Self(RootCertStore::empty().into())
    }

    /// Trusts one more authority.
    pub fn with_extra(mut self, root: CertificateDer<'static>) -> Result<Self, rustls::Error> {
        Arc::make_mut(&mut self.0).add(root)?;
        Ok(self)
    }
}

/// For destinations without certificates of their own.
pub(super) fn connector(TlsRoots(roots): TlsRoots) -> TlsConnector {
    let config = config(roots, None).expect("ring supports the default protocol versions");
    TlsConnector::from(Arc::new(config))
}

/// The TLS settings of destinations with certificates of their own.
pub(super) struct TlsIdentity {
    pub(super) connector: TlsConnector,
    /// The client certificate, and whose it is.
    pub(super) client: Option<(CertificateDer<'static>, String)>,
}

/// The authorities of the destination are trusted instead of the public ones: a pinned authority that only added to them
/// would protect from nothing.
pub(super) fn own_identity(tls: &Tls, public: &Arc<RootCertStore>) -> Result<TlsIdentity, rustls::Error> {
    let unreadable = |_| rustls::Error::General("it is no PEM".to_owned());
    let roots = match &tls.ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for root in CertificateDer::pem_slice_iter(ca.as_bytes()) {
                roots.add(root.map_err(unreadable)?)?;
            }
            Arc::new(roots)
        }
        None => public.clone(),
    };
    let client = match &tls.client {
        Some(client) => {
            let chain = CertificateDer::pem_slice_iter(client.chain.as_bytes()).collect::<Result<Vec<_>, _>>();
            let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).map_err(unreadable)?;
            Some((chain.map_err(unreadable)?, key))
        }
        None => None,
    };
    let leaf = client.as_ref().and_then(|(chain, _)| chain.first()).cloned();
    let subject = |leaf: &CertificateDer<'_>| Certificate::read(leaf).map(|read| read.subject).unwrap_or_default();
    let client_leaf = leaf.map(|leaf| (leaf.clone(), subject(&leaf)));
    let mut config = config(roots, client)?;
    config.resumption = Resumption::in_memory_sessions(OWN_SESSIONS);
    Ok(TlsIdentity { connector: TlsConnector::from(Arc::new(config)), client: client_leaf })
}

type ClientAuth = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn config(roots: Arc<RootCertStore>, client: Option<ClientAuth>) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match client {
        // Without a check of the certificate, which is the receiver's to make: it may accept what this library does not.
        Some((chain, key)) => {
            let key = ring::default_provider().key_provider.load_private_key(key)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key))))
        }
        None => builder.with_no_client_auth(),
    };
    // With HTTP/1.1 the send start is predictable: one request, one connection, one write.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
