//! A receiver of Weir's webhooks (Standard Webhooks).
//!
//!     SECRET=whsec_… cargo run --example receiver -- [port]
//!
//! It uses axum, tokio, base64, hmac and sha2, and no crate of Weir.

use std::{
    collections::{HashSet, VecDeque},
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::sync::mpsc;

const TOLERANCE_S: u64 = 300;
const MAX_BODY: usize = 2 * 1024 * 1024;
const MAX_SEEN: usize = 100_000;

struct Receiver {
    /// The old or the new secret: during a rotation each delivery is signed with both.
    mac: Hmac<Sha256>,
    seen: Mutex<Seen>,
    /// In production: a table or a queue that survives a restart.
    work: mpsc::UnboundedSender<(String, Bytes)>,
}

/// The accepted ids; the oldest is forgotten first. In production: a unique key in the database, written in the
/// transaction that stores the event.
#[derive(Default)]
struct Seen {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl Seen {
    /// Remembers the id. A retry has the id of the first attempt, so an event is handled once.
    fn is_new(&mut self, id: &str) -> bool {
        if !self.ids.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > MAX_SEEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

/// The reason to refuse the request. `body` is the raw bytes, before any parsing.
fn check(mac: &Hmac<Sha256>, headers: &HeaderMap, body: &[u8]) -> Result<(), &'static str> {
    let (id, sent_at) = (header(headers, "webhook-id"), header(headers, "webhook-timestamp"));
    let mut mac = mac.clone();
    mac.update(format!("{id}.{sent_at}.").as_bytes());
    mac.update(body);
    let signatures = header(headers, "webhook-signature").split(' ').filter_map(|part| part.strip_prefix("v1,"));
    let mut decoded = signatures.filter_map(|signature| STANDARD.decode(signature).ok());
    // verify_slice takes the same time for every wrong signature, so the time reveals nothing about the right one.
    if !decoded.any(|signature| mac.clone().verify_slice(&signature).is_ok()) {
        return Err("bad signature");
    }
    let sent_at: u64 = sent_at.parse().map_err(|_| "not recent")?;
    #[expect(clippy::disallowed_methods, reason = "a program of its own, with no clock to be given")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if now.abs_diff(sent_at) > TOLERANCE_S { Err("not recent") } else { Ok(()) }
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn receive(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if let Err(reason) = check(&receiver.mac, &headers, &body) {
        println!("refused {reason}");
        return StatusCode::UNAUTHORIZED;
    }
    let id = header(&headers, "webhook-id");
    if receiver.seen.lock().unwrap_or_else(PoisonError::into_inner).is_new(id) {
        // The event is processed after the answer, so the sender does not wait for it and does not time out.
        let _ = receiver.work.send((id.to_owned(), body));
    } else {
        // A duplicate gets the same answer as the first: after a refusal it would be sent again.
        println!("duplicate {id}");
    }
    StatusCode::NO_CONTENT
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let secret = std::env::var("SECRET").map_err(|_| "set SECRET to the destination's whsec_… secret")?;
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap_or(&secret))?;
    let (work, mut events) = mpsc::unbounded_channel::<(String, Bytes)>();
    let receiver = Receiver { mac: Hmac::new_from_slice(&key)?, seen: Mutex::default(), work };
    tokio::spawn(async move {
        while let Some((id, body)) = events.recv().await {
            println!("accepted {id} {}", String::from_utf8_lossy(&body));
        }
    });
    let port: u16 = std::env::args().nth(1).map_or(Ok(9000), |port| port.parse())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let router = Router::new().fallback(post(receive)).layer(DefaultBodyLimit::max(MAX_BODY));
    axum::serve(listener, router.with_state(Arc::new(receiver))).await?;
    Ok(())
}
