//! How a destination is reached: proxies and certificates as they are set, edited, shown and refused.

use http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use weir_core::egress::{Egress, ProxyChoice};

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";
const PROXY: &str = "http://weir:p%40ss@proxy.example:3128";

/// The PEM of an authority, and those of a client certificate and its key.
struct Pems {
    ca: String,
    client: String,
    key: String,
}

fn pems(expires: i32) -> Pems {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let ca = authority.self_signed(&ca_key).unwrap().pem();
    let mut client = CertificateParams::new(vec!["weir.example".to_owned()]).unwrap();
    client.not_after = rcgen::date_time_ymd(expires, 1, 1);
    client.distinguished_name = rcgen::DistinguishedName::new();
    client.distinguished_name.push(rcgen::DnType::CommonName, "weir.example");
    let client = client.signed_by(&key, &Issuer::from_params(&authority, &ca_key)).unwrap().pem();
    Pems { ca, client, key: key.serialize_pem() }
}

/// A certificate of X.509 version 1, as `openssl x509 -req` makes it before OpenSSL 3.2, and its key. Both were
/// made for this test.
const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBKjCB0QIUeEdsfeaJprhgw6ArgUATe/Fn9jgwCgYIKoZIzj0EAwIwFzEVMBMG\n\
A1UEAwwMd2Vpci5leGFtcGxlMCAXDTI2MTEyNzE2MzcxN1oYDzIxMjYxMTAzMTYz\n\
NzE3WjAXMRUwEwYDVQQDDAx3ZWlyLmV4YW1wbGUwWTATBgcqhkjOPQIBBggqhkjO\n\
PQMBBwNCAATfW9+96wg9xvFgCnYyBi2nhQWUmgbVJG36Gh0bAINcfia3EezjiRYv\n\
CV6dzitq6oqrIUE861OAOAsIR0jbEtVmMAoGCCqGSM49BAMCA0gAMEUCIQCxcJcO\n\
JQQVlhrNx/C5ZCVKFnZ7tPTm++Tn3SXhz9El/AIgMPqXEWiTg3T2GUm6ZjHvs18l\n\
RPGg1VQKhWFfUQpKT68=\n\
-----END CERTIFICATE-----\n";
const KEY_OF_VERSION_1: &str = "\
-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgIo7q58JzyRq7BArT\n\
0yoFcf7iCVENQJZAnsc7BES61rehRANCAATfW9+96wg9xvFgCnYyBi2nhQWUmgbV\n\
JG36Gh0bAINcfia3EezjiRYvCV6dzitq6oqrIUE861OAOAsIR0jbEtVm\n\
-----END PRIVATE KEY-----\n";

async fn stored(server: &Server, path: &str) -> Egress {
    let id = path.rsplit('/').next().unwrap().parse().unwrap();
    server.store.destination(id).await.unwrap().unwrap().settings.egress.clone()
}

#[tokio::test]
async fn secrets_of_the_way_out_are_masked_and_kept_by_the_mask() {
    let server = Server::start().await;
    let Pems { ca, client, key } = pems(2099);
    let tls = json!({"ca": ca, "client_certificate": client, "client_key": key});
    let created = server.post("/v1/destinations", &json!({"url": URL, "proxy": PROXY, "tls": tls})).await;
    let created = created.expect(StatusCode::CREATED);
    let path = format!("/v1/destinations/{}", created["id"].as_str().unwrap());
    let before = stored(&server, &path).await;
    assert_eq!(before.secrets(), (Some("p%40ss"), Some(key.trim())));
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(shown["proxy"], "http://weir:***@proxy.example:3128");
    let masked = json!({"ca": ca.trim(), "client_certificate": client.trim(), "client_key": "***"});
    assert_eq!(shown["tls"], masked);
    let certificate = &shown["tls_certificates"][0];
    assert_eq!((&certificate["subject"], &certificate["warning"]), (&json!("CN=weir.example"), &Value::Null));

    // What was shown can be sent back, whole or in part.
    let back = json!({"proxy": shown["proxy"], "tls": shown["tls"]});
    for patch in
        [back, json!({"tls": {"client_key": "***"}}), json!({"tls": {}}), json!({"url": format!("{URL}/other")})]
    {
        server.patch(&path, patch).await.expect(StatusCode::OK);
        assert_eq!(stored(&server, &path).await, before);
    }
    let renewed = pems(2098).client;
    let refused = server.patch(&path, json!({"tls": {"client_certificate": renewed}})).await;
    assert_eq!(refused.pointers(), ["/tls/client_key"], "the kept key is of the other certificate");
    // The mask of a password is that of the same proxy and user.
    for other in ["http://weir:***@proxy.example:3129", "http://root:***@proxy.example:3128"] {
        assert_eq!(server.patch(&path, json!({"proxy": other})).await.pointers(), ["/proxy"]);
    }
    // Without its certificate the key has no meaning.
    let edited = server.patch(&path, json!({"tls": {"client_certificate": null}})).await.expect(StatusCode::OK);
    assert_eq!((&edited["tls"]["client_key"], &edited["tls"]["ca"]), (&Value::Null, &json!(ca.trim())));
    let edited = server.patch(&path, json!({"tls": null, "proxy": null})).await.expect(StatusCode::OK);
    assert_eq!((&edited["tls"], &edited["tls_certificates"]), (&Value::Null, &json!([])));
    assert_eq!(stored(&server, &path).await, Egress::default());
    let activity = server.get("/v1/activity").await.expect(StatusCode::OK).to_string();
    assert!(!activity.contains("p%40ss") && !activity.contains("PRIVATE") && activity.contains("proxy_password"));
}

#[tokio::test]
async fn another_origin_gets_no_client_certificate_of_the_former_one() {
    let server = Server::start().await;
    let Pems { ca, client, key } = pems(2099);
    let tls = json!({"ca": ca, "client_certificate": client, "client_key": key});
    let id = server.destination(json!({"url": URL, "tls": tls, "proxy": PROXY})).await;
    let path = format!("/v1/destinations/{id}");
    let other = "https://elsewhere.example/";
    let masked = json!({"url": other, "tls": {"client_certificate": client, "client_key": "***"}});
    assert_eq!(server.patch(&path, masked).await.pointers(), ["/tls/client_key"]);
    let edited = server.patch(&path, json!({"url": other})).await.expect(StatusCode::OK);
    assert_eq!((&edited["tls"]["client_certificate"], &edited["tls"]["ca"]), (&Value::Null, &json!(ca.trim())));
    assert_eq!(stored(&server, &path).await.secrets(), (Some("p%40ss"), None));
    let http = server.patch(&path, json!({"tls": null, "proxy": "direct"})).await.expect(StatusCode::OK);
    assert_eq!(http["proxy"], "direct");
    assert_eq!(stored(&server, &path).await.proxy, ProxyChoice::Direct);
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_and_an_expired_certificate_is_a_warning() {
    let server = Server::start().await;
    let (one, two) = (pems(2099), pems(2099));
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let no_certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let with = |client: &str, key: &str| json!({"tls": {"client_certificate": client, "client_key": key}});
    for (body, pointer, said) in [
        (json!({"tls": {"ca": "hello"}}), "/tls/ca", "BEGIN CERTIFICATE"),
        (json!({"tls": {"ca": ""}}), "/tls/ca", "BEGIN CERTIFICATE"),
        (json!({"tls": {"ca": no_certificate}}), "/tls/ca", "number 1 cannot be read"),
        (json!({"tls": {"ca": format!("{}{no_certificate}", one.ca)}}), "/tls/ca", "number 2 cannot be read"),
        (json!({"tls": {"ca": "x".repeat(16_385)}}), "/tls/ca", "at most 16384"),
        (json!({"tls": {"client_certificate": one.client}}), "/tls/client_key", "is missing"),
        (json!({"tls": {"client_key": one.key}}), "/tls/client_certificate", "is missing"),
        (with(&one.client, &two.key), "/tls/client_key", "is not the key"),
        (with(&one.client, encrypted), "/tls/client_key", "without a password"),
        (with(&one.client, &one.client), "/tls/client_key", "private key"),
        (with(&one.key, &one.key), "/tls/client_certificate", "BEGIN CERTIFICATE"),
        (with(&one.client, "***"), "/tls/client_key", "not `***`"),
        (json!({"tls": {"key": "x"}}), "/tls/key", "known field"),
        (json!({"tls": "x"}), "/tls", "must be an object"),
        (json!({"proxy": "http://weir:***@proxy.example"}), "/proxy", "not `***`"),
        (json!({"proxy": "https://weir:s3cret@proxy.example"}), "/proxy", "http://"),
        (json!({"proxy": "http://10.0.0.1:3128"}), "/proxy", "--egress-allow 10.0.0.1"),
        (json!({"proxy": "http://localhost:3128"}), "/proxy", "--egress-allow localhost"),
        (json!({"proxy": 7}), "/proxy", "must be a string"),
    ] {
        let mut body = body;
        body["url"] = json!(URL);
        let refused = server.post("/v1/destinations", &body).await.problem(422);
        let error = &refused["errors"][0];
        assert_eq!(error["pointer"], pointer, "{body}: {refused}");
        assert!(error["detail"].as_str().unwrap().contains(said), "{said}: {refused}");
        assert!(!refused.to_string().contains("s3cret") && !refused.to_string().contains("PRIVATE"), "{refused}");
    }
    server.assert_untouched().await;

    let body = json!({"url": URL, "tls": {"client_certificate": VERSION_1, "client_key": KEY_OF_VERSION_1}});
    let created = server.post("/v1/destinations", &body).await.expect(StatusCode::CREATED);
    assert_eq!(created["tls_certificates"][0]["subject"], "CN=weir.example");
    let expired = pems(2020);
    let body = json!({"url": URL, "tls": {"client_certificate": expired.client, "client_key": expired.key}});
    let created = server.post("/v1/destinations", &body).await.expect(StatusCode::CREATED);
    assert_eq!(created["tls_certificates"][0]["warning"], "expired at 2020-01-01T00:00:00.000Z");
}
