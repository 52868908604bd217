//! Deliveries through egress proxies, and to receivers with private authorities and client certificates: limits hold, faults
//! of a proxy cost a destination nothing, and edits are in effect at once.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::Method;
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::support::{Answer, App, Fleet, Receiver, assert_cap, eventually};

const WITHIN: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// What a proxy does to a CONNECT.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Conduct {
    Tunnel,
    /// Answers this, whatever it is, and closes.
    Say(&'static str),
    Hang,
    /// 502 to every host except literal addresses.
    ReachNoNames,
}

/// A proxy that lets only `weir` with the password `secret` in.
struct Proxy {
    address: SocketAddr,
    conduct: Arc<Mutex<Conduct>>,
    /// How many requests were not answered by a tunnel.
    refused: Arc<AtomicUsize>,
    tunnels: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            conduct: Arc::new(Mutex::new(Conduct::Tunnel)),
            refused: Arc::default(),
            tunnels: Arc::default(),
        };
        let (conduct, refused, tunnels) = (proxy.conduct.clone(), proxy.refused.clone(), proxy.tunnels.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let conduct = *conduct.lock();
                tokio::spawn(serve(near, conduct, refused.clone(), tunnels.clone()));
            }
        });
        proxy
    }

    fn url(&self) -> String {
        format!("http://weir:secret@{}", self.address)
    }

    fn set(&self, conduct: Conduct) {
        *self.conduct.lock() = conduct;
    }
}

async fn serve(mut near: TcpStream, conduct: Conduct, refused: Arc<AtomicUsize>, tunnels: Arc<AtomicUsize>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = near.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let origin = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).expect("a CONNECT");
    let is_known = head.contains("Proxy-Authorization: Basic d2VpcjpzZWNyZXQ=\r\n");
    let answer = match conduct {
        _ if !is_known => Some("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"),
        Conduct::ReachNoNames if !origin.starts_with("127.") => Some("HTTP/1.1 502 Bad Gateway\r\n\r\n"),
        Conduct::Tunnel | Conduct::ReachNoNames => None,
        Conduct::Say(answer) => Some(answer),
        Conduct::Hang => {
            refused.fetch_add(1, Ordering::SeqCst);
            // Until the client gives up.
            let _ = near.read_u8().await;
            return;
        }
    };
    if let Some(answer) = answer {
        refused.fetch_add(1, Ordering::SeqCst);
        let _ = near.write_all(answer.as_bytes()).await;
        return;
    }
    let Ok(mut far) = TcpStream::connect(origin).await else { return };
    tunnels.fetch_add(1, Ordering::SeqCst);
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    // Ends when either side closes.
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

/// The first attempt of the only delivery of a destination, once it was made.
async fn first_attempt(app: &App, destination: &str) -> Value {
    let mut found = Value::Null;
    eventually("an attempt is recorded", WITHIN, async || {
        let page = app.get(&format!("/v1/deliveries?destination={destination}")).await;
        let Some(id) = page["data"][0]["id"].as_str() else { return false };
        found = app.get(&format!("/v1/deliveries/{id}")).await["attempts"][0].clone();
        found.is_object()
    })
    .await;
    found
}

async fn faults_of_a_proxy_are_no_attempts(app: &App, proxy: &Proxy) {
    let receiver = Receiver::start().await;
    let id = app
        .destination(json!({
            "url": receiver.url("/hook"), "event_types": ["order"],
            "rate_limits": [{"limit": 20, "period": "second"}, {"limit": 300, "period": "minute"}],
        }))
        .await;
    app.events("order", 40).await;
    app.drained(&id, WITHIN).await;

    let faults = [
        Conduct::Say("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"),
        Conduct::Say("HTTP/1.1 500 Internal Server Error\r\n\r\n"),
        Conduct::Say("SSH-2.0-OpenSSH_9\r\n"),
        Conduct::Say(""),
        Conduct::Hang,
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        // Connections that are kept would need no proxy, so each destination is a new one.
        let other = Receiver::start().await;
        let late = app
            .destination(json!({
                "url": other.url("/late"), "event_types": [format!("late.{number}")], "timeout_ms": 500,
                "rate_limits": [{"limit": 50, "period": "second"}],
            }))
            .await;
        let refused = proxy.refused.load(Ordering::SeqCst);
        proxy.set(fault);
        app.events(&format!("late.{number}"), 20).await;
        eventually("the proxy has refused often", WITHIN, async || {
            proxy.refused.load(Ordering::SeqCst) >= refused + 12
        })
        .await;
        let shown = app.get(&format!("/v1/destinations/{late}")).await;
        assert_eq!(shown["breaker_state"], "closed", "{fault:?}: {shown}");
        let waiting = app.get(&format!("/v1/deliveries?destination={late}")).await;
        let is_unsent = |delivery: &Value| delivery["attempt_count"] == 0;
        assert!(waiting["data"].as_array().unwrap().iter().all(is_unsent), "{fault:?}: {waiting}");
        proxy.set(Conduct::Tunnel);
        app.drained(&late, WITHIN).await;
        assert_eq!(other.count("/late"), 20, "{fault:?}");
        app.assert_audit_clean(&late).await;
    }
    assert_eq!(receiver.count("/hook"), 40);
    app.assert_audit_clean(&id).await;

    // What the proxy says of one destination concerns that one alone.
    proxy.set(Conduct::ReachNoNames);
    let named = receiver.url("/named").replace("127.0.0.1", "localhost");
    let unreached = app.destination(json!({"url": named, "event_types": ["one"]})).await;
    let reached = app.destination(json!({"url": receiver.url("/literal"), "event_types": ["one"]})).await;
    app.event("one").await;
    app.drained(&reached, WITHIN).await;
    let attempt = first_attempt(app, &unreached).await;
    assert_eq!(attempt["error"], "the egress proxy could not reach the destination (502)", "{attempt}");

    // A denial by the rules of the proxy is a setting of the destination to look at.
    proxy.set(Conduct::Say("HTTP/1.1 407 Request rejected by proxy\r\nX-Smokescreen-Error: rule 7 10.0.0.1\r\n\r\n"));
    let denied = app.destination(json!({"url": named.replace("named", "denied"), "event_types": ["two"]})).await;
    app.event("two").await;
    let attempt = first_attempt(app, &denied).await;
    assert_eq!(attempt["error"], "the rules of the egress proxy do not allow this destination (407)", "{attempt}");
    proxy.set(Conduct::Tunnel);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_proxy_is_used_by_one_process() {
    let (folder, proxy) = (tempfile::tempdir().unwrap(), Proxy::start().await);
    let app = App::start_with(folder.path(), &[("WEIR_EGRESS_PROXY", &proxy.url())]).await;
    faults_of_a_proxy_are_no_attempts(&app, &proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_proxy_is_used_at_scale() {
    let (fleet, proxy) = (Fleet::new().await, Proxy::start().await);
    let environment = proxy.url();
    let app = fleet.launch_with("serve", &[("WEIR_EGRESS_PROXY", &environment)]).await;
    faults_of_a_proxy_are_no_attempts(&app, &proxy).await;
}

/// A private authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for `name`, and its key.
    fn signed(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap(), key)
    }

    /// As the field `tls` of a destination.
    fn tls(&self, client: &str) -> Value {
        let (certificate, key) = self.signed(client);
        json!({"ca": self.0.pem(), "client_certificate": certificate.pem(), "client_key": key.serialize_pem()})
    }

    /// A receiver on `localhost` that lets in only clients of this authority.
    async fn receiver(&self) -> Receiver {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let (certificate, key) = self.signed("localhost");
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Receiver::start_tls(TlsAcceptor::from(Arc::new(config)), Duration::ZERO).await
    }
}

async fn a_private_receiver_is_reached_through_its_own_proxy(app: &App, proxy: &Proxy) {
    let authority = Authority::named("Acme Root");
    let (receiver, tls) = (authority.receiver().await, authority.tls("weir"));
    // Each request needs a connection of its own: a tunnel, and a TLS handshake on both sides.
    receiver.script("/cold", [Answer::status(200).header("connection", "close")]);
    let settings = |path: &str, of: &str| {
        json!({
            "url": receiver.url(path), "event_types": [of], "rate_limits": [{"limit": 20, "period": "second"}],
            "proxy": proxy.url(), "tls": tls.clone(), "retry": {"schedule_ms": [100]},
        })
    };
    let (cold, warm) =
        (app.destination(settings("/cold", "both")).await, app.destination(settings("/warm", "both")).await);
    app.events("both", 60).await;
    for (id, path) in [(&cold, "/cold"), (&warm, "/warm")] {
        app.drained(id, WITHIN).await;
        assert_eq!(receiver.count(path), 60);
        assert_cap(&receiver.arrivals(path), 20, SECOND);
        app.assert_audit_clean(id).await;
    }
    let tunnels = proxy.tunnels.load(Ordering::SeqCst);
    assert!(tunnels > 60, "{tunnels} tunnels: each cold request had its own");

    // The secrets are in no answer.
    let shown = app.get(&format!("/v1/destinations/{cold}")).await;
    let masked = proxy.url().replace("secret", "***");
    assert_eq!((&shown["proxy"], &shown["tls"]["client_key"]), (&json!(masked), &json!("***")));
    assert_eq!(shown["tls_certificates"][1]["subject"], "CN=Acme Root", "{shown}");
    let activity = app.get(&format!("/v1/activity?destination={cold}")).await.to_string();
    assert!(!shown.to_string().contains("PRIVATE KEY") && !activity.contains("PRIVATE KEY"), "{activity}");
    assert!(!activity.contains("secret@"), "{activity}");

    // Edits are in effect for the next delivery: another identity, another authority, another way.
    let stranger = Authority::named("Stranger Root");
    let edits = [
        (json!({"tls": {"client_certificate": null}}), "TLS refused by the server"),
        (json!({"tls": {"ca": stranger.0.pem()}}), "certificate not trusted: unknown issuer"),
        (json!({"proxy": format!("http://weir:wrong@{}", proxy.address)}), ""),
        (json!({"proxy": "direct"}), "delivered"),
    ];
    let mut settings_before = HashMap::new();
    for (number, (edit, expected)) in edits.into_iter().enumerate() {
        let of = format!("edit.{number}");
        let id = app.destination(settings("/warm", &of)).await;
        // A connection in the former way is idle.
        app.event(&of).await;
        app.drained(&id, WITHIN).await;
        let (refused, count) = (proxy.refused.load(Ordering::SeqCst), receiver.count("/warm"));
        app.patch(&id, edit.clone()).await;
        app.event(&of).await;
        match expected {
            "" => {
                eventually("the proxy refuses the password", WITHIN, async || {
                    proxy.refused.load(Ordering::SeqCst) > refused
                })
                .await;
                assert_eq!(receiver.count("/warm"), count);
            }
            "delivered" => {
                app.drained(&id, WITHIN).await;
                assert_eq!(receiver.count("/warm"), count + 1);
            }
            cause => {
                let attempt = first_attempt(app, &id).await;
                assert!(attempt["error"].as_str().is_some_and(|error| error.starts_with(cause)), "{attempt}");
                assert_eq!(receiver.count("/warm"), count);
            }
        }
        settings_before.insert(of, (id, edit));
    }
    // And back: what waits is delivered.
    for (id, edit) in settings_before.into_values() {
        let field = edit.as_object().unwrap().keys().next().unwrap().clone();
        let before = if field == "tls" { tls.clone() } else { json!(proxy.url()) };
        app.patch(&id, json!({field: before})).await;
        app.drained(&id, WITHIN).await;
        app.assert_audit_clean(&id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_receiver_is_reached_by_one_process() {
    let (folder, proxy) = (tempfile::tempdir().unwrap(), Proxy::start().await);
    let app = App::start(folder.path()).await;
    a_private_receiver_is_reached_through_its_own_proxy(&app, &proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_receiver_is_reached_at_scale() {
    let (fleet, proxy) = (Fleet::new().await, Proxy::start().await);
    let app = fleet.launch("serve").await;
    a_private_receiver_is_reached_through_its_own_proxy(&app, &proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_have_the_user_agent_of_the_installation_or_of_their_destination() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start_with(folder.path(), &[("WEIR_USER_AGENT", "Acme-Hooks/2 (+https://acme.example)")]).await;
    app.destination(json!({"url": receiver.url("/general")})).await;
    app.destination(json!({"url": receiver.url("/own"), "headers": {"User-Agent": "Own/1"}})).await;
    app.event("any").await;
    for (path, expected) in [("/general", "Acme-Hooks/2 (+https://acme.example)"), ("/own", "Own/1")] {
        assert_eq!(receiver.wait_for(path, 1, WITHIN).await[0].header("user-agent"), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_who_run_weir_choose_a_proxy_and_an_internal_one_must_be_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let environment =
        [("WEIR_API_KEYS", "key-of-the-operators"), ("WEIR_ALLOW_NETWORKS", ""), ("WEIR_EGRESS_ALLOW", "10.0.0.5")];
    let app = App::start_with(folder.path(), &environment).await;
    let send = async |key: &str, method: Method, path: &str, body: Value| {
        let request = app.http.request(method, format!("{}{path}", app.url)).bearer_auth(key).json(&body);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let create = async |key: &str, proxy: &str| {
        let body = json!({"url": "https://example.com/", "tenant": "acme", "proxy": proxy});
        send(key, Method::POST, "/v1/destinations", body).await
    };
    let mut keys = Vec::new();
    for (role, tenants) in [("operate", None), ("admin", Some(["acme"]))] {
        let body = json!({"name": role, "role": role, "tenants": tenants});
        let (status, made) = send("key-of-the-operators", Method::POST, "/v1/keys", body).await;
        assert_eq!(status, 201, "{made}");
        keys.push(made["secret"].as_str().unwrap().to_owned());
    }
    for key in &keys {
        for proxy in ["http://proxy.example:3128", "direct"] {
            let (status, problem) = create(key, proxy).await;
            assert_eq!((status, problem["detail"].as_str().unwrap().contains("`proxy`")), (403, true), "{problem}");
        }
    }
    let mut last = Value::Null;
    for (proxy, expected) in [
        ("http://proxy.example:3128", 201),
        ("direct", 201),
        ("http://10.0.0.5:3128", 201),
        ("http://10.0.0.6:3128", 422),
        ("http://169.254.169.254", 422),
        ("https://proxy.example:3128", 422),
    ] {
        let (status, answer) = create("key-of-the-operators", proxy).await;
        assert_eq!(status, expected, "{proxy}: {answer}");
        if status == 201 {
            last = answer;
        }
    }
    // A key without the right still edits everything else.
    let id = last["id"].as_str().unwrap().to_owned();
    let body = json!({"name": "renamed", "proxy": last["proxy"]});
    let (status, edited) = send(&keys[0], Method::PATCH, &format!("/v1/destinations/{id}"), body).await;
    assert_eq!((status, &edited["name"]), (200, &json!("renamed")));
}
