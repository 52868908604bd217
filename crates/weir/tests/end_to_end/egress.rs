//! Deliveries through an egress proxy: limits hold, and faults of the proxy cost a destination nothing.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::support::{App, Fleet, Receiver};

const WITHIN: Duration = Duration::from_secs(60);

/// A proxy that can be told to refuse everybody.
struct Proxy {
    address: SocketAddr,
    refuses: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    tunnels: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            refuses: Arc::default(),
            refused: Arc::default(),
            tunnels: Arc::default(),
        };
        let (refuses, refused, tunnels) = (proxy.refuses.clone(), proxy.refused.clone(), proxy.tunnels.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                if refuses.load(Ordering::SeqCst) {
                    near.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await.unwrap();
                    refused.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                tunnels.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(tunnel(near));
            }
        });
        proxy
    }

    fn environment(&self) -> String {
        format!("http://weir:secret@{}", self.address)
    }
}

async fn tunnel(mut near: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = near.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let origin = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).expect("a CONNECT");
    let Ok(mut far) = TcpStream::connect(origin).await else { return };
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    // Ends when either side closes.
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

async fn limits_hold_through_a_proxy_and_its_faults_are_no_attempts(app: &App, proxy: &Proxy) {
    let receiver = Receiver::start().await;
    let id = app
        .destination(json!({
            "url": receiver.url("/hook"), "event_types": ["order"],
            "rate_limits": [{"limit": 20, "period": "second"}, {"limit": 300, "period": "minute"}],
        }))
        .await;
    app.events("order", 40).await;
    app.drained(&id, WITHIN).await;

    // Connections that are kept would need no proxy, so the next destination is a new one.
    proxy.refuses.store(true, Ordering::SeqCst);
    let other = Receiver::start().await;
    let late = app
        .destination(json!({
            "url": other.url("/late"), "event_types": ["late"], "rate_limits": [{"limit": 50, "period": "second"}],
        }))
        .await;
    app.events("late", 50).await;
    while proxy.refused.load(Ordering::SeqCst) < 20 {
        tokio::task::yield_now().await;
    }
    let shown = app.get(&format!("/v1/destinations/{late}")).await;
    assert_eq!(shown["breaker_state"], "closed", "{shown}");
    let waiting = app.get(&format!("/v1/deliveries?destination={late}")).await;
    assert!(waiting["data"].as_array().unwrap().iter().all(|delivery| delivery["attempt_count"] == 0), "{waiting}");

    proxy.refuses.store(false, Ordering::SeqCst);
    app.drained(&late, WITHIN).await;
    assert_eq!((receiver.count("/hook"), other.count("/late")), (40, 50));
    for id in [id, late] {
        app.assert_audit_clean(&id).await;
    }
    assert!(proxy.tunnels.load(Ordering::SeqCst) >= 2, "the deliveries went through the proxy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_proxy_is_used_by_one_process() {
    let (folder, proxy) = (tempfile::tempdir().unwrap(), Proxy::start().await);
    let app = App::start_with(folder.path(), &[("WEIR_EGRESS_PROXY", &proxy.environment())]).await;
    limits_hold_through_a_proxy_and_its_faults_are_no_attempts(&app, &proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_proxy_is_used_at_scale() {
    let (fleet, proxy) = (Fleet::new().await, Proxy::start().await);
    let environment = proxy.environment();
    let app = fleet.launch_with("serve", &[("WEIR_EGRESS_PROXY", &environment)]).await;
    limits_hold_through_a_proxy_and_its_faults_are_no_attempts(&app, &proxy).await;
}
