//! Servers with passwords and TLS, and servers that cannot be used.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use weir_queue::QueueError;
use weir_queue_redis::{OpenError, RedisConfig, RedisQueue, Topology};

use crate::support::{self, Server, permits};

fn at(url: String) -> RedisConfig {
    RedisConfig::new(Topology::Single(url))
}

async fn refusal(config: RedisConfig) -> OpenError {
    match RedisQueue::open(config).await {
        Ok(_) => panic!("the configuration should be refused"),
        Err(error) => error,
    }
}

fn plain(more: &'static [&'static str]) -> impl FnOnce(u16) -> Vec<String> {
    move |port| ["--port", &port.to_string()].iter().chain(more).map(|&word| word.to_owned()).collect()
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_refused() {
    let server = Server::start_with(tempfile::tempdir().unwrap(), plain(&["--requirepass", "open-sesame"])).await;
    let port = server.port();
    for url in [server.url(), format!("redis://:wrong@127.0.0.1:{port}")] {
        let error = refusal(at(url)).await;
        assert!(matches!(error, OpenError::Password { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("redis_url:") && !text.contains("wrong"), "{text}");
    }
    let queue = support::open(at(format!("redis://:open-sesame@127.0.0.1:{port}"))).await;
    assert_eq!(permits(&queue, 2).await.len(), 2);
}

/// A server over TLS that asks clients for certificates or does not, with its authority.
async fn over_tls(clients: &'static str) -> (Server, Certificates) {
    let directory = tempfile::tempdir().unwrap();
    let certificates = write_certificates(directory.path());
    let file = |directory: &TempDir, name: &str| directory.path().join(name).display().to_string();
    let (certificate, key, root) =
        (file(&directory, "cert.pem"), file(&directory, "key.pem"), file(&directory, "ca.pem"));
    let server = Server::start_with(directory, move |port| {
        let port = port.to_string();
        let words = ["--port", "0", "--tls-port", &port, "--tls-auth-clients", clients];
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &root];
        words.iter().chain(&files).map(|&word| word.to_owned()).collect()
    })
    .await;
    (server, certificates)
}

#[tokio::test]
async fn a_server_over_tls_is_used_when_its_authority_is_trusted() {
    let (server, Certificates { authority, .. }) = over_tls("no").await;
    let url = format!("rediss://localhost:{}", server.port());
    let error = refusal(at(url.clone())).await;
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    let queue = support::open(RedisConfig { trusted_ca: Some(authority), ..at(url) }).await;
    assert_eq!(permits(&queue, 2).await.len(), 2, "scripts and the blocking reader use TLS");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_that_of_the_client() {
    let (server, Certificates { authority, certificate, key }) = over_tls("yes").await;
    let url = format!("rediss://localhost:{}", server.port());
    let trusting = RedisConfig { trusted_ca: Some(authority), ..at(url) };
    let error = refusal(trusting.clone()).await;
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    let queue = support::open(RedisConfig { client_certificate: Some((certificate, key)), ..trusting }).await;
    assert_eq!(permits(&queue, 2).await.len(), 2, "scripts and the blocking reader show it");
}

#[tokio::test]
async fn a_server_is_reached_over_its_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock").display().to_string();
    let path = socket.clone();
    let _server = Server::start_with(directory, move |port| {
        let port = port.to_string();
        ["--port", &port, "--unixsocket", &path, "--requirepass", "open sesame"].map(str::to_owned).into()
    })
    .await;
    let error = refusal(at(format!("unix://{socket}?pass=wrong"))).await;
    assert!(matches!(error, OpenError::Password { .. }) && error.to_string().contains(&socket), "{error}");
    let queue = support::open(at(format!("unix://{socket}?pass=open+sesame"))).await;
    assert_eq!(permits(&queue, 2).await.len(), 2, "scripts, notifications and the blocking reader use the socket");
}

#[tokio::test]
async fn a_server_is_reached_by_its_ipv6_address() {
    // `Server` waits for the IPv4 address.
    let server = Server::start_with(tempfile::tempdir().unwrap(), plain(&["--bind", "127.0.0.1", "-::1"])).await;
    if tokio::net::TcpStream::connect(("::1", server.port())).await.is_err() {
        // A machine without IPv6: the address is named as it was written.
        let error = refusal(at(format!("redis://[::1]:{}", server.port()))).await;
        assert!(error.to_string().contains("::1"), "{error}");
        return;
    }
    let queue = support::open(at(format!("redis://[::1]:{}", server.port()))).await;
    assert_eq!(permits(&queue, 2).await.len(), 2);
}

/// In PEM.
struct Certificates {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Writes a certificate for `localhost`, and returns it with its authority.
fn write_certificates(directory: &Path) -> Certificates {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Another name than that of the certificate, which would otherwise look as if it had signed itself.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    std::fs::write(directory.join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(directory.join("ca.pem"), authority.pem()).unwrap();
    let pem = |text: String| text.into_bytes();
    Certificates { authority: pem(authority.pem()), certificate: pem(certificate.pem()), key: pem(key.serialize_pem()) }
}

#[tokio::test]
async fn an_unreachable_server_is_named_in_the_error() {
    let mut server = Server::start().await;
    let (url, port) = (server.url(), server.port());
    server.kill();
    let error = refusal(at(url)).await;
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("redis_url: cannot reach Redis at 127.0.0.1:{port}")), "{error}");
}

#[tokio::test]
async fn an_invalid_url_is_refused() {
    let error = refusal(at("localhost".to_owned())).await;
    assert!(matches!(error, OpenError::Url(_)), "{error:?}");
}

#[tokio::test]
async fn a_single_server_is_refused_as_a_cluster() {
    let server = Server::start().await;
    let error = refusal(RedisConfig::new(Topology::Cluster(vec![server.url()]))).await;
    assert!(matches!(error, OpenError::Unusable { error: QueueError::NotSent(_), .. }), "{error:?}");
}
