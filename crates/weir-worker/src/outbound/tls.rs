//! TLS: one provider (ring), the system's roots, HTTP/1.1 only.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::CertificateDer};
use tokio_rustls::TlsConnector;

/// The certificates that are trusted.
#[derive(Debug, Clone)]
pub struct TlsRoots(RootCertStore);

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
        Self(store)
    }

    /// No certificates.
    pub fn none() -> Self {
        Self(RootCertStore::empty())
    }

    /// Trusts one more authority.
    pub fn with_extra(mut self, root: CertificateDer<'static>) -> Result<Self, rustls::Error> {
        self.0.add(root)?;
        Ok(self)
    }
}

pub(super) fn connector(TlsRoots(roots): TlsRoots) -> TlsConnector {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // With HTTP/1.1 the send start is predictable: one request, one connection, one write.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}
