//! Receivers made of raw TCP and TLS sockets, clocks, and outbound clients that may connect to them.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{RootCertStore, ServerConfig, crypto::ring, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use weir_core::{
    Clock, Slot, Timestamp, address::AddressPolicy, body::BodySettings, egress::ClientCertificate, outcome::SendResult,
    signing::SignatureStyle,
};
use weir_worker::outbound::{
    Checkout, Connection, ExchangeResult, NoConnection, Outbound, RequestHead, Sent, SlotSource, Target, TimeLimit,
    TlsRoots, Unreachable,
};

/// The start time of the test clocks.
pub(crate) const EPOCH: Timestamp = Timestamp::from_secs(1_000_000);
pub(crate) const BODY: &[u8] = br#"{"hello":"there"}"#;
/// Longer than any test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Connects within a time limit that no test reaches.
pub(crate) async fn connect(outbound: &Outbound, target: &Target) -> Result<Checkout, NoConnection> {
    outbound.connect(target, &mut TimeLimit::new(PATIENCE)).await
}

/// A clock that runs from [`EPOCH`]. Scripted readings are returned first.
pub(crate) struct TestClock {
    started: Instant,
    scripted: Mutex<VecDeque<Timestamp>>,
}

impl TestClock {
    pub(crate) fn running() -> Arc<Self> {
        Self::scripted([])
    }

    pub(crate) fn scripted(readings: impl IntoIterator<Item = Timestamp>) -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), scripted: Mutex::new(readings.into_iter().collect()) })
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let scripted = self.scripted.lock().unwrap().pop_front();
        scripted.unwrap_or_else(|| EPOCH + self.started.elapsed())
    }
    fn wall(&self) -> Timestamp {
        EPOCH
    }
}

/// A slot that contains every time of a test.
pub(crate) fn wide() -> Slot {
    Slot { start: EPOCH, end: EPOCH + Duration::from_secs(3_600) }
}

/// A slot that was over before the test began.
pub(crate) fn over() -> Slot {
    Slot { start: EPOCH - Duration::from_millis(10), end: EPOCH }
}

/// Grants these slots in order, and then none.
pub(crate) struct Slots(VecDeque<Slot>);

impl<const N: usize> From<[Slot; N]> for Slots {
    fn from(slots: [Slot; N]) -> Self {
        Self(slots.into())
    }
}

impl SlotSource for Slots {
    async fn next(&mut self) -> Option<Slot> {
        self.0.pop_front()
    }
}

pub(crate) fn loopback() -> AddressPolicy {
    AddressPolicy { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()], ..AddressPolicy::default() }
}

pub(crate) fn outbound() -> Outbound {
    Outbound::new(loopback(), TlsRoots::none(), TestClock::running())
}

pub(crate) fn target(url: &str) -> Target {
    target_with(url, &[])
}

/// A target with custom headers.
pub(crate) fn target_with(url: &str, headers: &[(String, String)]) -> Target {
    Target::new(&url.parse().unwrap(), headers, &SignatureStyle::standard(), &BodySettings::default())
}

pub(crate) fn head(target: &Target) -> RequestHead {
    target.request_head("evt_1", 1_700_000_000, "v1,c2ln", 1, None, None)
}

pub(crate) async fn plain_receiver() -> (TcpListener, Target) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(&format!("http://{}/hook?a=b", listener.local_addr().unwrap()));
    (listener, target)
}

pub(crate) async fn send(outbound: &Outbound, target: &Target, connection: Connection) -> ExchangeResult {
    send_for(outbound, target, connection, PATIENCE).await
}

pub(crate) async fn send_for(
    outbound: &Outbound,
    target: &Target,
    connection: Connection,
    limit: Duration,
) -> ExchangeResult {
    post(outbound, target, connection, Bytes::from_static(BODY), &mut Slots::from([wide()]), limit).await
}

pub(crate) async fn post(
    outbound: &Outbound,
    target: &Target,
    connection: Connection,
    body: Bytes,
    slots: &mut impl SlotSource,
    limit: Duration,
) -> ExchangeResult {
    outbound.send(target, connection, head(target), body, slots, TimeLimit::new(limit)).await
}

/// Sends once on a fresh connection, to a receiver that answers with `script`.
pub(crate) async fn exchange<F>(outbound: &Outbound, limit: Duration, script: impl FnOnce(Wire<TcpStream>) -> F) -> Sent
where
    F: Future<Output = ()>,
{
    let (listener, target) = plain_receiver().await;
    let connection = connect(outbound, &target).await.unwrap().connection;
    let receiver = async { script(Wire::accept(&listener).await).await };
    let (result, ()) = tokio::join!(send_for(outbound, &target, connection, limit), receiver);
    sent(result)
}

pub(crate) fn unreachable(result: Result<Checkout, NoConnection>) -> Unreachable {
    match result.err().expect("a connection was made") {
        NoConnection::Unreachable(unreachable) => unreachable,
        NoConnection::Exhausted(what) => panic!("{what}"),
    }
}

pub(crate) fn sent(result: ExchangeResult) -> Sent {
    match result {
        ExchangeResult::Sent(sent) => *sent,
        other => panic!("not sent: {other:?}"),
    }
}

pub(crate) fn status(sent: &Sent) -> u16 {
    match sent.result {
        SendResult::Answer { status, .. } => status,
        SendResult::Failure(failure) => panic!("{failure:?}: {:?}", sent.error),
    }
}

/// The receiver's end of a connection.
pub(crate) struct Wire<S> {
    pub(crate) stream: S,
}

impl Wire<TcpStream> {
    pub(crate) async fn accept(listener: &TcpListener) -> Self {
        Self { stream: listener.accept().await.unwrap().0 }
    }

    /// Closes with a reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Reads one complete request: head and body, as received.
    pub(crate) async fn request(&mut self) -> String {
        let mut seen = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&seen);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let whole = match length {
                    Some(length) => body.len() >= length.parse().unwrap(),
                    None => body.ends_with("0\r\n\r\n"),
                };
                if whole {
                    return text.into_owned();
                }
            }
            assert_ne!(self.stream.read_buf(&mut seen).await.unwrap(), 0, "closed after {seen:?}");
        }
    }

    pub(crate) async fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    pub(crate) async fn answer(&mut self, head: &str) {
        self.request().await;
        self.say(head).await;
    }

    /// Reads until the other side closes.
    pub(crate) async fn read_to_end(&mut self) -> Vec<u8> {
        let mut seen = Vec::new();
        // A reset, or TLS without close_notify, ends the connection as well.
        let _ = self.stream.read_to_end(&mut seen).await;
        seen
    }
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A certificate authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        // A unique name, because issuers are looked up by name first.
        params.distinguished_name.push(DnType::CommonName, format!("authority {:x?}", &key.public_key_raw()[1..9]));
        Self { issuer: CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    pub(crate) fn trusted(&self) -> TlsRoots {
        TlsRoots::none().with_extra(self.issuer.der().clone()).unwrap()
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A receiver with a certificate for `name`.
    pub(crate) async fn receiver(&self, name: &str) -> TlsReceiver {
        self.receiver_of(name, Strictness::default()).await
    }

    pub(crate) async fn receiver_of(&self, name: &str, strictness: Strictness<'_>) -> TlsReceiver {
        let (certificate, key) = self.signed(name, strictness.has_expired);
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = match strictness.only {
            Some(version) => builder.with_protocol_versions(&[version]),
            None => builder.with_safe_default_protocol_versions(),
        };
        let builder = match strictness.clients_of {
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.issuer.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.unwrap().with_client_cert_verifier(verifier.build().unwrap())
            }
            None => builder.unwrap().with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        TlsReceiver { listener, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    /// A client certificate.
    pub(crate) fn client(&self, name: &str, has_expired: bool) -> ClientCertificate {
        let (certificate, key) = self.signed(name, has_expired);
        ClientCertificate { chain: certificate.pem(), key: key.serialize_pem() }
    }

    fn signed(&self, name: &str, has_expired: bool) -> (Certificate, KeyPair) {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(vec![name.to_owned()]).unwrap());
        if has_expired {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

/// What a receiver wants, and how old its own certificate is.
#[derive(Default)]
pub(crate) struct Strictness<'a> {
    /// It requires client certificates of this authority.
    pub(crate) clients_of: Option<&'a Authority>,
    pub(crate) only: Option<&'static rustls::SupportedProtocolVersion>,
    pub(crate) has_expired: bool,
}

pub(crate) struct TlsReceiver {
    pub(crate) listener: TcpListener,
    pub(crate) acceptor: TlsAcceptor,
}

impl TlsReceiver {
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn target(&self, host: &str) -> Target {
        target(&format!("https://{host}:{}/hook", self.address().port()))
    }

    pub(crate) async fn accept(&self) -> Wire<TlsStream<TcpStream>> {
        let stream = self.listener.accept().await.unwrap().0;
        Wire { stream: self.acceptor.accept(stream).await.unwrap() }
    }
}
