//! Connections through an egress proxy: tunnels, and whose fault it is when there is none.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use weir_core::outcome::Failure;
use weir_worker::outbound::{EgressProxy, NoConnection, Outbound, TlsRoots};

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

    fn outbound(&self, roots: TlsRoots) -> Outbound {
        let url = format!("http://weir:pass@{}", self.listener.local_addr().unwrap());
        Outbound::new(loopback(), roots, TestClock::running()).with_egress_proxy(EgressProxy::parse(&url).unwrap())
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
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "WEIR_EGRESS_PROXY"),
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
