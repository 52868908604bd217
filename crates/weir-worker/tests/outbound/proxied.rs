//! Connections through an egress proxy: tunnels, and whose fault it is when there is none.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use weir_core::{
    address::AddressPolicy,
    egress::{Egress, HttpProxy},
    outcome::{Failure, SendResult},
};
use weir_worker::outbound::{NoConnection, Outbound, Target, TlsRoots};

use crate::support::*;

/// A proxy that answers each CONNECT in the same way.
struct Proxy {
    listener: TcpListener,
    /// The heads that it has read.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), heads: Arc::default() }
    }

    fn url(&self) -> String {
        format!("http://weir:pass@{}", self.listener.local_addr().unwrap())
    }

    fn outbound(&self, roots: TlsRoots) -> Outbound {
        let proxy = HttpProxy::parse(&self.url()).unwrap();
        Outbound::new(loopback(), roots, TestClock::running()).with_egress_proxy(proxy, Vec::new())
    }

    async fn accept(&self) -> TcpStream {
        let mut stream = self.listener.accept().await.unwrap().0;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        self.heads.lock().unwrap().push(String::from_utf8(head).unwrap());
        stream
    }

    /// Makes tunnels to this port of the machine, whatever name is asked for.
    async fn tunnel_to(&self, port: u16) {
        loop {
            let mut near = self.accept().await;
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            near.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
        }
    }

    async fn answer(&self, answer: &str) {
        self.accept().await.write_all(answer.as_bytes()).await.unwrap();
    }
}

async fn failure(outbound: &Outbound, url: &str) -> NoConnection {
    connect(outbound, &target(url)).await.err().expect("a connection was made")
}

#[tokio::test]
async fn a_tunnel_is_made_by_name_and_kept_for_further_requests() {
    let authority = Authority::new();
    // Only the proxy knows the address of this name.
    let receiver = authority.receiver("hooks.invalid").await;
    let proxy = Proxy::new().await;
    let (outbound, target) = (proxy.outbound(authority.trusted()), receiver.target("hooks.invalid"));
    let exchanges = async {
        for warm in [false, true] {
            let found = connect(&outbound, &target).await.unwrap();
            assert_eq!(found.warm, warm);
            assert_eq!(status(&sent(send(&outbound, &target, found.connection).await)), 200);
        }
    };
    let receiving = async {
        let mut wire = receiver.accept().await;
        wire.answer(OK).await;
        wire.answer(OK).await;
        wire
    };
    tokio::select! {
        _ = async { tokio::join!(exchanges, receiving) } => {}
        () = proxy.tunnel_to(receiver.address().port()) => {}
    }
    let port = receiver.address().port();
    let expected = format!(
        "CONNECT hooks.invalid:{port} HTTP/1.1\r\nHost: hooks.invalid:{port}\r\nProxy-Authorization: Basic d2VpcjpwYXNz\r\n\r\n"
    );
    assert_eq!(*proxy.heads.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn faults_of_the_proxy_are_no_attempt_of_the_destination() {
    let proxy = Proxy::new().await;
    let outbound = proxy.outbound(TlsRoots::none());
    for (answer, said) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "user or password"),
        ("HTTP/1.1 500 Internal Server Error\r\n\r\n", "error of its own"),
        ("HTTP/1.1 503 Service Unavailable\r\n\r\n", "error of its own"),
        ("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\n\r\n", "error of its own"),
        ("HTTP/1.1 302 Found\r\nLocation: http://login/\r\n\r\n", "error of its own"),
        ("SSH-2.0-OpenSSH_9\r\n", "not valid HTTP"),
        ("HTTP/1.1 200 OK\r\n\r\nsurprise", "not valid HTTP"),
        ("", "closed the connection"),
    ] {
        let url = "http://hooks.invalid/";
        let (failed, ()) = tokio::join!(failure(&outbound, url), proxy.answer(answer));
        assert!(matches!(&failed, NoConnection::Exhausted(what) if what.contains(said)), "{answer:?}: {failed}");
    }
    let endless = async {
        let mut stream = proxy.accept().await;
        // Until the client has had enough.
        while stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.is_ok() && stream.write_all(&[b'y'; 4096]).await.is_ok()
        {
        }
    };
    let (failed, ()) = tokio::join!(failure(&outbound, "http://hooks.invalid/"), endless);
    assert!(matches!(failed, NoConnection::Exhausted(_)), "{failed}");

    drop(proxy);
    let failed = failure(&outbound, "http://hooks.invalid/").await;
    assert_eq!(failed.to_string(), "the egress proxy cannot be reached");
}

#[tokio::test]
async fn what_the_proxy_says_of_the_destination_is_the_destinations_failure() {
    let proxy = Proxy::new().await;
    let outbound = proxy.outbound(TlsRoots::none());
    for (answer, expected) in [
        ("HTTP/1.1 403 Forbidden\r\n\r\n", Failure::Forbidden),
        ("HTTP/1.1 403 Forbidden\r\nx-smokescreen-error: no\r\n\r\n", Failure::Forbidden),
        ("HTTP/1.1 407 Request rejected by proxy\r\nX-Smokescreen-Error: denied\r\n\r\n", Failure::Forbidden),
        ("HTTP/1.1 502 Bad Gateway\r\n\r\n", Failure::Connect),
        ("HTTP/1.1 504 Gateway Timeout\r\n\r\n", Failure::Connect),
        ("HTTP/1.1 503 Service Unavailable\r\nX-Squid-Error: ERR_DNS_FAIL 0\r\n\r\n", Failure::Connect),
    ] {
        let url = "http://hooks.invalid/";
        let (failed, ()) = tokio::join!(failure(&outbound, url), proxy.answer(answer));
        assert!(matches!(&failed, NoConnection::Unreachable(it) if it.failure == expected), "{answer:?}: {failed}");
    }
}

#[tokio::test]
async fn a_silent_proxy_is_at_fault_until_it_answers_others() {
    let proxy = Proxy::new().await;
    let outbound = proxy.outbound(TlsRoots::none()).with_connect_budget(Duration::from_millis(200));
    let (failed, _stream) = tokio::join!(failure(&outbound, "http://slow.invalid/"), proxy.accept());
    assert_eq!(failed.to_string(), "the egress proxy does not answer");

    let others = async {
        let _stream = proxy.accept().await;
        tokio::join!(failure(&outbound, "http://other.invalid/"), proxy.answer("HTTP/1.1 502 Bad Gateway\r\n\r\n"));
        std::future::pending::<()>().await;
    };
    let failed = tokio::select! {
        failed = failure(&outbound, "http://slow.invalid/") => failed,
        () = others => unreachable!(),
    };
    assert!(matches!(&failed, NoConnection::Unreachable(it) if it.failure == Failure::Connect), "{failed}");
}

#[tokio::test]
async fn a_forbidden_literal_is_not_asked_for() {
    let proxy = Proxy::new().await;
    let outbound = proxy.outbound(TlsRoots::none());
    for url in ["http://10.0.0.1/", "http://169.254.169.254/", "http://[fd00::1]/"] {
        let failed = failure(&outbound, url).await;
        assert!(matches!(&failed, NoConnection::Unreachable(it) if it.failure == Failure::Forbidden), "{failed}");
    }
    assert!(proxy.heads.lock().unwrap().is_empty());
}

/// The same target through its own proxy, `direct` or not.
fn reached(target: Target, proxy: &str) -> Target {
    target.by_way_of(&Egress { proxy: proxy.parse().unwrap(), ..Egress::default() })
}

#[tokio::test]
async fn a_destination_may_have_its_own_proxy_or_none() {
    let (installation, own) = (Proxy::new().await, Proxy::new().await);
    let outbound = installation.outbound(TlsRoots::none());
    let (listener, direct) = plain_receiver().await;
    let direct = reached(direct, "direct");
    connect(&outbound, &direct).await.unwrap();
    listener.accept().await.unwrap();

    let through = reached(target("http://hooks.invalid/"), &own.url());
    let answer = own.answer("HTTP/1.1 502 Bad Gateway\r\n\r\n");
    let (failed, ()) = tokio::join!(connect(&outbound, &through), answer);
    assert_eq!(unreachable(failed).failure, Failure::Connect);
    assert_eq!((installation.heads.lock().unwrap().len(), own.heads.lock().unwrap().len()), (0, 1));
}

#[tokio::test]
async fn the_address_of_a_destinations_own_proxy_is_judged_when_it_is_connected_to() {
    let proxy = Proxy::new().await;
    let public = || AddressPolicy { allow_http: true, ..AddressPolicy::default() };
    let through = |url: &str| reached(target("http://hooks.invalid/"), url);
    let outbound = Outbound::new(public(), TlsRoots::none(), TestClock::running());
    let named = proxy.url().replace("127.0.0.1", "localhost");
    for url in [&proxy.url(), &named] {
        let refused = unreachable(connect(&outbound, &through(url)).await);
        assert_eq!(refused.failure, Failure::Forbidden, "{refused}");
    }
    for exempt in ["127.0.0.0/8", "localhost"] {
        let policy = AddressPolicy { allow_proxies: vec![exempt.parse().unwrap()], ..public() };
        let outbound = Outbound::new(policy, TlsRoots::none(), TestClock::running());
        let target = through(&if exempt == "localhost" { named.clone() } else { proxy.url() });
        let answer = proxy.answer("HTTP/1.1 504 Gateway Timeout\r\n\r\n");
        let (failed, ()) = tokio::join!(connect(&outbound, &target), answer);
        assert_eq!(unreachable(failed).failure, Failure::Connect, "{exempt}");
    }
}

/// Whether the receiver has got the request, nobody can know then.
#[tokio::test]
async fn a_proxy_that_dies_after_the_request_has_made_an_attempt_fail() {
    let (receiver, _) = plain_receiver().await;
    let port = receiver.local_addr().unwrap().port();
    let proxy = Proxy::new().await;
    let (outbound, target) = (proxy.outbound(TlsRoots::none()), target("http://hooks.invalid/"));
    let sending = async {
        let connection = connect(&outbound, &target).await.unwrap().connection;
        sent(send(&outbound, &target, connection).await)
    };
    let dying = async {
        let mut near = proxy.accept().await;
        let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut begun = [0; 20];
        near.read_exact(&mut begun).await.unwrap();
        far.write_all(&begun).await.unwrap();
    };
    let (sent, ()) = tokio::join!(sending, dying);
    assert_eq!(sent.result, SendResult::Failure(Failure::Broken), "{:?}", sent.error);
}
