//! The way out to a destination: a proxy of its own, and the certificates of its TLS connections.
//!
//! The password of the proxy and the key of the client certificate are secrets. They are stored apart from the rest
//! ([`Egress::secrets_to_stored`]), shown as [`MASK`], and never logged.

use std::{fmt, net::IpAddr, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// What is shown instead of a secret. A client that sends it back keeps the secret.
pub const MASK: &str = "***";
/// The proxy of a destination that is reached without one.
const DIRECT: &str = "direct";

/// How a destination is reached. The default is the way of the installation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Egress {
    pub proxy: ProxyChoice,
    pub tls: Tls,
}

/// Which proxy leads to a destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum ProxyChoice {
    /// That of the installation, if it has one.
    #[default]
    Installation,
    /// None, even if the installation has one.
    Direct,
    Own(HttpProxy),
}

impl FromStr for ProxyChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text == DIRECT { Ok(Self::Direct) } else { HttpProxy::parse(text).map(Self::Own) }
    }
}

impl ProxyChoice {
    /// The setting with a masked password; `None` for the proxy of the installation.
    pub fn masked(&self) -> Option<String> {
        match self {
            Self::Installation => None,
            Self::Direct => Some(DIRECT.to_owned()),
            Self::Own(proxy) => Some(proxy.with_password(proxy.password().map(|_| MASK)).to_string()),
        }
    }
}

/// The certificates of the TLS connections to a destination, in PEM. The default is the public authorities and no client
/// certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Tls {
    /// The authorities that are trusted instead of the public ones.
    pub ca: Option<String>,
    pub client: Option<ClientCertificate>,
}

impl Tls {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The certificate by which a receiver knows Weir.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClientCertificate {
    /// The certificate, followed by the intermediate certificates.
    pub chain: String,
    pub key: String,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate")
    }
}

/// An HTTP proxy that makes tunnels (`CONNECT`).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HttpProxy(Url);

/// It may hold a password.
impl fmt::Debug for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())
    }
}

/// With its password.
impl fmt::Display for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl HttpProxy {
    /// Reads `http://[user:password@]host[:port]`. The error repeats no part of the text, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const SHAPE: &str = "not the URL of an HTTP proxy; use http://host:port or http://user:password@host:port";
        let url = Url::parse(text).map_err(|_| SHAPE)?;
        if url.scheme() == "https" {
            return Err("the proxy must be reached over http://; what is sent through it is encrypted by https URLs");
        }
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        if url.scheme() != "http" || !is_bare || url.host().is_none() || url.port() == Some(0) {
            return Err(SHAPE);
        }
        Ok(Self(url))
    }

    pub fn host(&self) -> Option<Host<&str>> {
        self.0.host()
    }

    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or_default()
    }

    /// Percent-encoded, as in the URL.
    pub fn password(&self) -> Option<&str> {
        self.0.password()
    }

    /// The same proxy and user with another password, which is percent-encoded.
    #[must_use]
    pub fn with_password(&self, password: Option<&str>) -> Self {
        let mut url = self.0.clone();
        // An http URL can have a password.
        let _ = url.set_password(password);
        Self(url)
    }

    /// Whether both have the same host, port and user.
    pub fn is_login_of(&self, other: &Self) -> bool {
        self.with_password(None) == other.with_password(None)
    }

    /// `host:port`, for logs.
    pub fn address(&self) -> String {
        format!("{}:{}", self.0.host_str().unwrap_or_default(), self.port())
    }

    /// The value of `Proxy-Authorization`.
    pub fn authorization(&self) -> Option<String> {
        let decoded = |part: &str| percent_encoding::percent_decode_str(part).collect::<Vec<u8>>();
        let (user, password) = (self.0.username(), self.0.password());
        let pair = [&*decoded(user), b":", &*decoded(password.unwrap_or_default())].concat();
        (!user.is_empty() || password.is_some()).then(|| format!("Basic {}", STANDARD.encode(pair)))
    }
}

/// Hosts by name or by network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    Network(IpNet),
    /// The name and all names below it.
    Name(String),
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(network) = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
            return Ok(Self::Network(network));
        }
        let name = text.strip_prefix("*.").or_else(|| text.strip_prefix('.')).unwrap_or(text);
        match Host::parse(name) {
            Ok(Host::Domain(name)) if !name.contains('*') => Ok(Self::Name(name)),
            _ => Err(format!("`{text}` is neither a host name nor a network, such as example.com or 10.0.0.0/8")),
        }
    }
}

impl HostPattern {
    /// Whether it matches a host: by the name, or by the literal address.
    pub fn contains<S: AsRef<str>>(&self, host: &Host<S>) -> bool {
        match (self, host) {
            (_, Host::Ipv4(v4)) => self.has_address(IpAddr::V4(*v4)),
            (_, Host::Ipv6(v6)) => self.has_address(IpAddr::V6(*v6)),
            (Self::Name(name), Host::Domain(host)) => {
                let above = host.as_ref().trim_end_matches('.').strip_suffix(name.as_str());
                above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            (Self::Network(_), Host::Domain(_)) => false,
        }
    }

    pub fn has_address(&self, address: IpAddr) -> bool {
        matches!(self, Self::Network(network) if network.contains(&address.to_canonical()))
    }
}

/// What is stored of [`Egress`] besides its secrets.
#[derive(Serialize, Deserialize)]
struct StoredEgress {
    proxy: Option<String>,
    ca: Option<String>,
    client_certificate: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct StoredSecrets {
    proxy_password: Option<String>,
    client_key: Option<String>,
}

impl Egress {
    /// What is no secret, for the store; `None` for the default.
    pub fn to_stored(&self) -> Result<Option<String>, serde_json::Error> {
        let proxy = match &self.proxy {
            ProxyChoice::Own(proxy) => Some(proxy.with_password(None).to_string()),
            other => other.masked(),
        };
        let client_certificate = self.tls.client.as_ref().map(|client| client.chain.clone());
        let stored = StoredEgress { proxy, ca: self.tls.ca.clone(), client_certificate };
        (*self != Self::default()).then(|| serde_json::to_string(&stored)).transpose()
    }

    /// The secrets, for the store; `None` if there are none.
    pub fn secrets_to_stored(&self) -> Result<Option<String>, serde_json::Error> {
        let (proxy_password, client_key) = self.secrets();
        let has_some = proxy_password.is_some() || client_key.is_some();
        let stored = StoredSecrets {
            proxy_password: proxy_password.map(str::to_owned),
            client_key: client_key.map(str::to_owned),
        };
        has_some.then(|| serde_json::to_string(&stored)).transpose()
    }

    /// The password of the proxy, and the key of the client certificate.
    pub fn secrets(&self) -> (Option<&str>, Option<&str>) {
        let password = match &self.proxy {
            ProxyChoice::Own(proxy) => proxy.password(),
            ProxyChoice::Installation | ProxyChoice::Direct => None,
        };
        (password, self.tls.client.as_ref().map(|client| client.key.as_str()))
    }

    /// From the two stored texts.
    pub fn from_stored(stored: Option<&str>, secrets: Option<&str>) -> Option<Self> {
        let Some(stored) = stored else { return Some(Self::default()) };
        let StoredEgress { proxy, ca, client_certificate } = serde_json::from_str(stored).ok()?;
        let StoredSecrets { proxy_password, client_key } = match secrets {
            Some(secrets) => serde_json::from_str(secrets).ok()?,
            None => StoredSecrets::default(),
        };
        let mut proxy = proxy.map_or(Some(ProxyChoice::Installation), |proxy| proxy.parse().ok())?;
        if let (ProxyChoice::Own(proxy), Some(password)) = (&mut proxy, &proxy_password) {
            *proxy = proxy.with_password(Some(password));
        }
        let client = match (client_certificate, client_key) {
            (Some(chain), Some(key)) => Some(ClientCertificate { chain, key }),
            (None, None) => None,
            _ => return None,
        };
        Some(Self { proxy, tls: Tls { ca, client } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_authenticates_and_shows_no_password() {
        let proxy = HttpProxy::parse("http://weir:p%40ss%3A@proxy.internal:3128").unwrap();
        assert_eq!(proxy.authorization(), Some(format!("Basic {}", STANDARD.encode("weir:p@ss:"))));
        assert_eq!(format!("{proxy:?}"), "proxy.internal:3128");
        assert_eq!(ProxyChoice::Own(proxy).masked().unwrap(), "http://weir:***@proxy.internal:3128");
        let plain = HttpProxy::parse("http://10.0.0.1").unwrap();
        assert_eq!((plain.port(), plain.authorization(), plain.to_string().as_str()), (80, None, "http://10.0.0.1"));
    }

    #[test]
    fn other_urls_are_refused_without_repeating_them() {
        for bad in [
            "",
            "proxy:3128",
            "socks5://s3cret@proxy",
            "http://u:s3cret@proxy/path",
            "http://proxy?s3cret",
            "https://u:s3cret@proxy",
            "http://u:s3cret@proxy:0",
        ] {
            let error = HttpProxy::parse(bad).unwrap_err();
            assert!(error.contains("http://") && !error.contains("s3cret"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_pattern_contains_names_below_a_name_and_addresses_of_a_network() {
        let patterns = ["10.0.0.0/8", "fd00::/8", "192.0.2.7", "corp.example", "*.svc.example", ".local"];
        let patterns: Vec<HostPattern> = patterns.into_iter().map(|host| host.parse().unwrap()).collect();
        let contained = |host: &str| patterns.iter().any(|pattern| pattern.contains(&Host::parse(host).unwrap()));
        for host in
            ["10.1.2.3", "[fd00::1]", "192.0.2.7", "corp.example", "a.corp.example", "a.corp.example.", "x.local"]
        {
            assert!(contained(host), "{host}");
        }
        for host in ["11.0.0.1", "192.0.2.8", "[2001:db8::1]", "notcorp.example", "corp.example.com", "10.example"] {
            assert!(!contained(host), "{host}");
        }
        for bad in ["*", "a*b.example", "10.0.0.0/33", "http://a.example", ""] {
            assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_stored_apart_from_the_secrets_holds_none_of_them() {
        let client = ClientCertificate { chain: "chain".to_owned(), key: "k3y".to_owned() };
        let proxy = "http://u:p%40ss@proxy:3128".parse().unwrap();
        let whole = Egress { proxy, tls: Tls { ca: Some("ca".to_owned()), client: Some(client) } };
        for egress in [whole.clone(), Egress { proxy: ProxyChoice::Direct, ..Egress::default() }, Egress::default()] {
            let (stored, secrets) = (egress.to_stored().unwrap(), egress.secrets_to_stored().unwrap());
            let public = stored.clone().unwrap_or_default();
            assert!(!public.contains("p%40ss") && !public.contains("k3y"), "{public}");
            assert_eq!(Egress::from_stored(stored.as_deref(), secrets.as_deref()), Some(egress));
        }
        assert!(!format!("{whole:?}").contains("k3y") && !format!("{whole:?}").contains("p%40ss"));
    }
}
