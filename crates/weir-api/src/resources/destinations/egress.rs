//! How a destination is reached, as it is set and shown: its proxy, and the certificates of its TLS connections.
//!
//! The password of the proxy and the key of the client certificate are write-only: they are shown as [`MASK`], and a
//! request with the mask keeps them, unless they would go elsewhere (another proxy or user, another origin).

use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    Timestamp,
    address::AddressPolicy,
    certificate::Certificate,
    egress::{ClientCertificate, Egress, MASK, ProxyChoice, Tls},
};

use crate::{
    errors::Errors,
    readers::{
        fields::object,
        texts::{parsed, text},
    },
};

const MAX_PROXY_LEN: usize = 2_048;
/// About ten certificates. A worker keeps the texts of every destination that it sends to.
const MAX_PEM_LEN: usize = 16_384;

text! {
    /// `direct`, or the URL of an HTTP proxy, with user and password or without. The pattern describes a part of them.
    #[schema(
        as = DestinationProxy, value_type = String, max_length = 2048, example = "http://weir:password@proxy.example:3128",
        pattern = "^(direct|http://([a-z]{1,20}:[A-Za-z0-9]{1,40}@)?([a-z0-9]{1,20}\\.){1,4}[a-z]{2,20}(:[1-9][0-9]{0,3})?)$"
    )]
    pub(crate) struct ProxyText(ProxyChoice);
    parse = |text| match text.len() {
        0..=MAX_PROXY_LEN => parsed(text).map_err(|error| format!("must be `direct` or a proxy: {error}")),
        _ => Err(format!("must be at most {MAX_PROXY_LEN} bytes long")),
    };
}

text! {
    /// Certificates or a private key in PEM.
    #[schema(as = Pem, max_length = 16384, example = "-----BEGIN CERTIFICATE-----\nMIIB…\n-----END CERTIFICATE-----\n")]
    pub(crate) struct PemText(String);
    parse = |text| match text.len() {
        // Forms and editors add line ends of their own.
        0..=MAX_PEM_LEN => Ok(text.replace("\r\n", "\n").trim().to_owned()),
        _ => Err(format!("must be at most {MAX_PEM_LEN} bytes long")),
    };
}

object! {
    /// The certificates of TLS connections to the destination.
    pub(crate) struct TlsRequest {
        /// The authorities that are trusted for this destination, instead of the public ones: one or more certificates.
        pub(super) ca: Option<PemText>,
        /// With which Weir shows the receiver who it is (mTLS): the certificate, followed by those between it and the
        /// authority of the receiver.
        pub(super) client_certificate: Option<PemText>,
        /// The private key of `client_certificate` (PKCS#8, PKCS#1 or SEC1, without a password). Write-only.
        pub(super) client_key: Option<PemText>,
    }
}

impl TlsRequest {
    /// A client certificate and its key come together.
    pub(crate) fn keywords() -> Value {
        let null = json!({"type": "null"});
        let both = json!(["client_certificate", "client_key"]);
        json!({"anyOf": [
            {"properties": {"client_certificate": &null, "client_key": &null}},
            {"properties": {"client_certificate": {"type": "string"}, "client_key": {"type": "string"}}, "required": both},
        ]})
    }
}

/// What an edit keeps.
pub(super) struct Kept<'a> {
    pub(super) current: Option<&'a Egress>,
    /// The URL gets another origin, so no secret is kept for it.
    pub(super) origin_changes: bool,
}

impl Kept<'_> {
    pub(super) fn proxy(&self, given: Option<ProxyText>, policy: &AddressPolicy, errors: &mut Errors) -> ProxyChoice {
        let Some(ProxyText(given)) = given else { return ProxyChoice::Installation };
        let current = self.current.map(|current| &current.proxy);
        let ProxyChoice::Own(mut proxy) = given else { return given };
        if proxy.password() == Some(MASK) {
            match current {
                Some(ProxyChoice::Own(current)) if current.is_login_of(&proxy) => proxy = current.clone(),
                _ => errors
                    .add("/proxy", "must have the password, not `***`: it is kept only for the same proxy and user"),
            }
        }
        let proxy = ProxyChoice::Own(proxy);
        // As with the URL: what is unchanged is not checked again.
        if let ProxyChoice::Own(proxy) = &proxy
            && current.is_none_or(|current| *current != ProxyChoice::Own(proxy.clone()))
            && let Err(refusal) = policy.check_proxy(proxy)
        {
            errors.add("/proxy", refusal);
        }
        proxy
    }

    pub(super) fn tls(&self, given: Option<TlsRequest>, errors: &mut Errors) -> Tls {
        let Some(TlsRequest { ca, client_certificate, client_key }) = given else { return Tls::default() };
        let current = self.current.and_then(|current| current.tls.client.as_ref());
        let ca = ca.map(|ca| ca.0);
        if let Some(Err(error)) = ca.as_deref().map(check_authorities) {
            errors.add("/tls/ca", error);
        }
        let client = match (client_certificate, client_key) {
            (None, None) => None,
            (Some(PemText(chain)), Some(PemText(key))) => {
                let key = match current {
                    Some(current) if key == MASK && !self.origin_changes => current.key.clone(),
                    _ if key == MASK => {
                        let detail = "must be the key, not `***`: there is none that is kept for this URL";
                        errors.add("/tls/client_key", detail);
                        return Tls { ca, client: None };
                    }
                    _ => key,
                };
                match certificates(&chain).map(|chain| check_key(&key, &chain)) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => errors.add("/tls/client_key", error),
                    Err(error) => errors.add("/tls/client_certificate", error),
                }
                Some(ClientCertificate { chain, key })
            }
            (certificate, _) => {
                let missing = if certificate.is_some() { "client_key" } else { "client_certificate" };
                errors.add(format!("/tls/{missing}"), "is missing: a client certificate and its key come together");
                None
            }
        };
        Tls { ca, client }
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.map_err(|error| format!("must be PEM of certificates: {error}"))?;
    if found.is_empty() {
        return Err("must be PEM of certificates: a text with `-----BEGIN CERTIFICATE-----`".to_owned());
    }
    match found.iter().position(|der| Certificate::read(der).is_none()) {
        Some(index) => Err(format!("must be PEM of certificates: number {} cannot be read", index + 1)),
        None => Ok(found),
    }
}

fn check_authorities(pem: &str) -> Result<(), String> {
    for (index, authority) in certificates(pem)?.into_iter().enumerate() {
        let unusable = |error| format!("must be PEM of certificates: number {} cannot be trusted: {error}", index + 1);
        RootCertStore::empty().add(authority).map_err(unusable)?;
    }
    Ok(())
}

/// The library would also check the certificate. That is left to the receiver, which may accept what this library does not,
/// such as the first version of X.509, which OpenSSL makes by default before 3.2.
fn check_key(pem: &str, chain: &[CertificateDer<'static>]) -> Result<(), String> {
    // The error repeats nothing of the text.
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| "must be PEM of a private key without a password (PKCS#8, PKCS#1 or SEC1)".to_owned())?;
    let key = ring::default_provider().key_provider.load_private_key(key);
    let key =
        key.map_err(|_| "must be PEM of a private key of RSA (2048 to 8192 bits), ECDSA or Ed25519".to_owned())?;
    let of_certificate = chain.first().and_then(|first| Certificate::read(first)).map(|first| first.public_key);
    match key.public_key().zip(of_certificate) {
        Some((of_key, of_certificate)) if of_key.as_ref() != of_certificate => {
            Err("is not the key of the first certificate in `client_certificate`".to_owned())
        }
        _ => Ok(()),
    }
}

pub(super) fn tls_view(tls: &Tls) -> Option<types::Tls> {
    let client = tls.client.as_ref();
    (!tls.is_default()).then(|| types::Tls {
        ca: tls.ca.clone(),
        client_certificate: client.map(|client| client.chain.clone()),
        client_key: client.map(|_| MASK.to_owned()),
    })
}

/// The certificates in words.
pub(crate) fn certificates_view(tls: &Tls, now: Timestamp) -> Vec<types::TlsCertificate> {
    let of = |field: &str, pem: Option<&str>| -> Vec<types::TlsCertificate> {
        let found = Certificate::in_pem(pem.unwrap_or_default()).into_iter();
        found
            .map(|certificate| types::TlsCertificate {
                field: field.to_owned(),
                warning: certificate.warning(now),
                subject: certificate.subject,
                issuer: certificate.issuer,
                not_before: certificate.not_before,
                not_after: certificate.not_after,
            })
            .collect()
    };
    let client = tls.client.as_ref().map(|client| client.chain.as_str());
    [of("client_certificate", client), of("ca", tls.ca.as_deref())].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::texts::tests::assert_pattern_is_accepted;

    #[test]
    fn every_text_that_a_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<ProxyText>();
    }
}
