//! The way out: connections to destinations, and one request through the gate.
//!
//! ```text
//! connect ──none──▶ dial (DNS, policy, TCP, TLS) ──▶ Connection ──send──▶ gate ──▶ answer ──▶ back to the pool
//!     └──────────────── standing ────────────────────▲
//! ```
//!
//! What this module holds to:
//! - A slot is spent only on a connection that stands. Connecting and sending are apart, and so are their failures.
//! - No byte of a request leaves outside its slot: the gate (`gate`) looks at the clock and writes in one step. A slot that is
//!   missed costs the connection nothing: another is asked for.
//! - Nothing is ever sent twice, no redirect is followed, no proxy is used, and no address is connected to that the policy
//!   refuses, whatever the name resolves to.
//! - A connection is driven by whoever holds it, not by a task of its own: sending needs no hand-over between tasks between
//!   the look at the clock and the write, and dropping a send stops it.

mod answer;
mod connection;
mod dial;
mod fault;
mod gate;
mod idle_times;
mod names;
mod pool;
mod stream;
mod target;
mod tls;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use weir_core::{
    Clock, Slot, Timestamp,
    address::AddressPolicy,
    outcome::{Failure, SendResult},
};

pub use connection::Connection;
pub use fault::{NoConnection, Unreachable};
pub use pool::Checkout;
pub use target::{RequestHead, Target};
pub use tls::TlsRoots;

use dial::Dialer;
use names::{NameServers, Names};
use pool::{Asked, Dial, Pool};

/// The bytes of an answer's body that are read; the rest is not.
pub const MAX_ANSWER_BODY: usize = 16 * 1024;
/// For DNS, TCP and TLS together.
const CONNECT_BUDGET: Duration = Duration::from_secs(10);

/// The outbound side of a worker. One for the process.
pub struct Outbound {
    dialer: Arc<Dialer>,
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
}

/// What became of a send.
#[derive(Debug)]
pub enum ExchangeResult {
    /// The request left; whatever followed, this is an attempt.
    Sent(Sent),
    /// There was no slot, or no other after one that was missed. Nothing left; not an attempt.
    Withdrawn,
    /// The connection was dead before anything left. Not an attempt; another connection may be made. A slot that had been granted
    /// for it can still be used, as long as it lasts.
    NotSent(Unreachable),
}

/// A request that left, or that never can: an attempt.
#[derive(Debug)]
pub struct Sent {
    /// When the request left; always there when [`Outbound::send`] made this.
    pub sent_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub result: SendResult,
    /// At most [`MAX_ANSWER_BODY`] bytes of the answer.
    pub response_body: Option<String>,
    /// What went wrong, for the destination's owner. With an answer: how its body was cut, which changes no verdict.
    pub error: Option<String>,
    /// The connection had been used before, and ended without one byte of answer: the server most likely closed it as the request
    /// left, and never saw it. The caller may send it again in the next slot, without backoff, once. It was a send start all the
    /// same, and counts under the limit.
    pub cut_on_reuse: bool,
}

/// Where a request that is ready to leave gets its slot from.
pub trait SlotSource: Send {
    /// The slot to send in: the first once the connection stands and the request is ready, and another each time one was missed.
    /// It may lie ahead: its start is waited for. `None`: the request is withdrawn, and nothing leaves.
    fn next(&mut self) -> impl Future<Output = Option<Slot>> + Send;
}

impl Outbound {
    pub fn new(policy: AddressPolicy, roots: TlsRoots, clock: Arc<dyn Clock>) -> Self {
        Self { dialer: Arc::new(Dialer::new(policy, roots, CONNECT_BUDGET)), pool: Pool::new(), clock }
    }

    /// Names are asked for at these servers, instead of where the system's files say.
    #[must_use]
    pub fn with_name_servers(mut self, servers: &[SocketAddr]) -> Self {
        Arc::make_mut(&mut self.dialer).names = Names::new(NameServers::new(servers));
        self
    }

    /// Another budget for DNS, TCP and TLS together.
    #[must_use]
    pub fn with_connect_budget(mut self, budget: Duration) -> Self {
        Arc::make_mut(&mut self.dialer).budget = budget;
        self
    }

    /// A connection to the target: the one used last, or the first that is dialled or comes back from use. Errs when the dial
    /// fails, after the connect budget at the latest; after twice as much where more wait than may dial at one time.
    pub async fn connect(&self, target: &Target) -> Result<Checkout, NoConnection> {
        self.dialer.check(target)?;
        let (place, dial) = match self.pool.ask(target.origin()) {
            Asked::Standing(connection) => return Ok(Checkout { connection, warm: true }),
            Asked::Queued(place, dial) => (place, dial),
        };
        if let Some(dial) = dial {
            make(dial, self.dialer.clone(), self.clock.clone());
        }
        match timeout(2 * self.dialer.budget, place).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Unreachable::closed_before_send().into()),
            Err(_) => Err(self.dialer.late(Failure::Connect).into()),
        }
    }

    /// A standing connection to the target, if there is one: the one used last. Never waits.
    pub fn checkout(&self, target: &Target) -> Option<Connection> {
        self.dialer.check(target).ok()?;
        self.pool.checkout(target.origin())
    }

    /// Whether a connection to the target stands unused.
    pub fn has_idle_connection(&self, target: &Target) -> bool {
        self.checkout(target).is_some_and(|connection| {
            self.pool.give_back(connection);
            true
        })
    }

    /// How many connections are open, and how many of them stand unused.
    pub fn connections(&self) -> (usize, usize) {
        self.pool.connections()
    }

    /// Closes the connections to the target that stand unused.
    pub fn forget(&self, target: &Target) {
        self.pool.forget(target.origin());
    }

    /// Takes back a connection that was not used.
    pub fn give_back(&self, target: &Target, connection: Connection) {
        debug_assert_eq!(target.origin(), connection.origin());
        self.pool.give_back(connection);
    }

    /// Sends one request in the first slot that is not missed. The timeout runs from the moment the request leaves to the end of
    /// the answer's body. A connection that can be used again goes back to the pool, after a withdrawal too, unless a slot had been
    /// missed at the wire. Dropping the future closes the connection; whether the request had left is then unknown.
    pub async fn send(
        &self,
        target: &Target,
        mut connection: Connection,
        head: RequestHead,
        body: Bytes,
        slots: &mut impl SlotSource,
        timeout: Duration,
    ) -> ExchangeResult {
        debug_assert_eq!(target.origin(), connection.origin());
        let taken = Instant::now();
        let result = connection.exchange(head.with_body(body), slots, timeout, &*self.clock).await;
        if matches!(result, ExchangeResult::NotSent(_)) {
            self.pool.closed_by_server(&connection, taken);
        }
        if connection.is_reusable(Instant::now()) {
            self.pool.give_back(connection);
        }
        result
    }
}

/// Dials in a task of its own: whoever asked may be served before.
fn make(dial: Dial, dialer: Arc<Dialer>, clock: Arc<dyn Clock>) {
    tokio::spawn(async move {
        let connection = match dialer.dial(dial.origin()).await {
            Ok(stream) => Connection::new(stream, dial.origin().clone(), clock.clone())
                .await
                .map_err(|_| Unreachable::closed_before_send().into()),
            Err(error) => Err(error),
        };
        for next in dial.end(connection) {
            make(next, dialer.clone(), clock.clone());
        }
    });
}
