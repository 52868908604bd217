//! The outbound client: connections to destinations, and one request through the gate.
//!
//! ```text
//! connect ──none idle──▶ dial (DNS, policy, TCP, TLS) ──▶ Connection ──send──▶ gate ──▶ answer ──▶ back to the pool
//!     └────────────────── idle connection ───────────────────▲
//! ```
//!
//! Invariants:
//! - A slot is used only on an open connection. Connecting and sending are separate steps with separate failures.
//! - No byte of a request is sent outside its slot: the gate (`gate`) reads the clock and writes in one step. A missed
//!   slot keeps the connection, and another slot is asked for.
//! - No request is sent twice, and no redirect is followed. No connection is made to an address that the policy refuses,
//!   for names and for literal addresses; behind an egress proxy, the proxy judges the addresses of names.
//! - A connection is driven by the task that holds it, not by a task of its own: no hand-over between tasks separates
//!   the read of the clock from the write, and dropping a send stops it.

mod answer;
mod certificates;
mod connection;
mod decoded;
mod dial;
mod egress_proxy;
mod fault;
#[cfg(test)]
mod fixed_clock;
mod gate;
mod idle_times;
mod kept_headers;
mod names;
mod origin;
mod pool;
mod slot_timer;
mod status_line;
mod stream;
mod target;
mod tls;
mod way;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use weir_core::{
    Clock, Slot, Timestamp,
    address::AddressPolicy,
    delivery::AttemptDetails,
    egress::{HostPattern, HttpProxy},
    outcome::SendResult,
};

pub use connection::Connection;
pub use fault::{NoConnection, Unreachable};
pub use pool::Checkout;
pub use target::{RequestHead, Target};
pub use tls::TlsRoots;

use connection::Waits;
use dial::{DialStep, Dialer};
use names::{NameServers, Names};
use pool::{Acquired, Dial, Pool};
use slot_timer::SlotTimer;

/// The maximum number of bytes that are read of an answer's body: enough for a message of an error, and 8,192 attempts
/// hold no more than 128 MiB.
pub const MAX_ANSWER_BODY: usize = 16 * 1024;
/// The part of a 2xx answer's body that is kept. Nobody looks for the cause of a success, and with thousands of them
/// unrecorded their bodies would need a hundred megabytes.
pub const MAX_SUCCESS_BODY: usize = 1024;
/// The time limit for DNS, TCP and TLS together. Room for a look-up that takes all of its 5 s, and for a SYN that is
/// lost twice (3 s).
const CONNECT_BUDGET: Duration = Duration::from_secs(10);

/// The outbound client of a worker. One for each process.
pub struct Outbound {
    dialer: Arc<Dialer>,
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
    slot_timer: SlotTimer,
}

/// The result of [`Outbound::send`].
#[derive(Debug)]
pub enum ExchangeResult {
    /// The request was sent. This is an attempt, even if no answer arrived.
    Sent(Box<Sent>),
    /// No slot was granted, or no other one after a missed slot. No byte was sent; not an attempt.
    Withdrawn,
    /// The connection was closed before any byte was sent. Not an attempt; the caller may use another connection. A
    /// slot that was granted for it can still be used until its end.
    NotSent(Unreachable),
}

/// An attempt: a request that was sent, or one that had no connection.
#[derive(Debug)]
pub struct Sent {
    /// The send start. Always present in a value from [`Outbound::send`].
    pub sent_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub result: SendResult,
    /// At most [`MAX_ANSWER_BODY`] bytes of the answer.
    pub response_body: Option<String>,
    /// What else is recorded of it. The caller adds the time that it signed.
    pub details: AttemptDetails,
    /// The error, for the destination's owner. With an answer: how it was cut off, which changes no verdict.
    pub error: Option<String>,
    /// The connection had been used before and ended without one byte of answer: most likely the server closed it just
    /// before the request arrived and never read the request. The caller may send the request again in the next slot,
    /// without backoff, once. This send counts under the limit.
    pub cut_on_reuse: bool,
    /// From the send start to the end; without a connection, how long the attempt tried to get one.
    pub took: Duration,
}

impl Sent {
    /// An attempt without a connection.
    pub(crate) fn nothing(Unreachable { failure, error }: Unreachable, took: Duration, ended_at: Timestamp) -> Self {
        Self {
            sent_at: None,
            ended_at,
            result: SendResult::Failure(failure),
            response_body: None,
            details: AttemptDetails::default(),
            error: Some(error),
            cut_on_reuse: false,
            took,
        }
    }
}

/// The time limit of an attempt: for connecting and for the request together. The wait for a slot between the two does
/// not count, because the destination is not what it waits for.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimit {
    whole: Duration,
    /// How long connecting took.
    connecting: Duration,
}

impl TimeLimit {
    pub const fn new(whole: Duration) -> Self {
        Self { whole, connecting: Duration::ZERO }
    }

    fn left(&self) -> Duration {
        self.whole.saturating_sub(self.connecting)
    }

    /// How long connecting took.
    pub fn connecting(&self) -> Duration {
        self.connecting
    }
}

/// Grants slots to a request that is ready to send.
pub trait SlotSource: Send {
    /// The slot to send in. Called when the connection is open and the request is ready, and again after each missed
    /// slot. The slot may start in the future: the caller waits for its start. `None`: the request is withdrawn, and no
    /// byte is sent.
    fn next(&mut self) -> impl Future<Output = Option<Slot>> + Send;

    /// Whether the send is to start within a fraction of a millisecond of the slot's start, although the slot is wide.
    fn is_exact(&self) -> bool {
        false
    }
}

impl Outbound {
    pub fn new(policy: AddressPolicy, roots: TlsRoots, clock: Arc<dyn Clock>) -> Self {
        let dialer = Arc::new(Dialer::new(policy, roots, CONNECT_BUDGET, clock.clone()));
        Self { dialer, pool: Pool::new(), clock, slot_timer: SlotTimer::default() }
    }

    /// Uses these name servers instead of those in the system's files.
    #[must_use]
    pub fn with_name_servers(mut self, servers: &[SocketAddr]) -> Self {
        Arc::make_mut(&mut self.dialer).names = Names::new(NameServers::new(servers));
        self
    }

    /// Connects through this proxy, except to these hosts and to destinations that choose otherwise.
    #[must_use]
    pub fn with_egress_proxy(mut self, proxy: HttpProxy, direct: Vec<HostPattern>) -> Self {
        let dialer = Arc::make_mut(&mut self.dialer);
        dialer.ways = Arc::new(dialer.ways.through(proxy, direct));
        self
    }

    /// Sets the time limit for DNS, TCP and TLS together.
    #[must_use]
    pub fn with_connect_budget(mut self, budget: Duration) -> Self {
        Arc::make_mut(&mut self.dialer).budget = budget;
        self
    }

    /// A connection to the target: the idle one that was used last, or else the next one that is dialled or returned
    /// after use. Fails when the dial fails, or when the time limit of the attempt ends. This takes at most the connect
    /// budget, or twice the budget when more deliveries wait than may dial at one time.
    pub async fn connect(&self, target: &Target, limit: &mut TimeLimit) -> Result<Checkout, NoConnection> {
        let began = Instant::now();
        let connected = self.connect_within(target, limit.left().min(2 * self.dialer.budget), began).await;
        limit.connecting += began.elapsed();
        connected
    }

    async fn connect_within(&self, target: &Target, left: Duration, began: Instant) -> Result<Checkout, NoConnection> {
        self.dialer.check(target)?;
        let until = began + left;
        // An idle connection at once, or a position in the wait queue, with a dial if one more is needed.
        let (receiver, dial) = match self.pool.acquire(target.origin(), until) {
            Acquired::Idle(connection) => return Ok(Checkout { connection, warm: true }),
            Acquired::Queued(receiver, dial) => (receiver, dial),
        };
        let step = DialStep::default();
        if let Some(dial) = dial {
            start_dial(dial, step.clone(), self.dialer.clone(), self.clock.clone());
        }
        match timeout_at(until, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) if Instant::now() < until => Err(Unreachable::closed_before_send().into()),
            _ => Err(step.too_late(left)),
        }
    }

    /// The idle connection to the target that was used last, if there is one. Never waits.
    pub fn checkout(&self, target: &Target) -> Option<Connection> {
        self.dialer.check(target).ok()?;
        self.pool.checkout(target.origin())
    }

    /// Whether there is an idle connection to the target.
    pub fn has_idle_connection(&self, target: &Target) -> bool {
        self.checkout(target).is_some_and(|connection| {
            self.pool.give_back(connection);
            true
        })
    }

    /// How many connections are open, and how many of them are idle.
    pub fn connections(&self) -> (usize, usize) {
        self.pool.connections()
    }

    /// Closes the idle connections to the target.
    pub fn close_idle(&self, target: &Target) {
        self.pool.close_idle(target.origin());
    }

    /// Takes back a connection that was not used.
    pub fn give_back(&self, target: &Target, connection: Connection) {
        debug_assert_eq!(target.origin(), connection.origin());
        self.pool.give_back(connection);
    }

    /// Sends one request in the first slot that is not missed. What connecting has left of the time limit runs from the
    /// send start to the end of the answer's body. A connection that can be used again goes back to the pool, after a
    /// withdrawal too, unless a slot was missed at the gate. Dropping the future closes the connection; whether the
    /// request was sent is then unknown.
    pub async fn send(
        &self,
        target: &Target,
        mut connection: Connection,
        head: RequestHead,
        body: Bytes,
        slots: &mut impl SlotSource,
        limit: TimeLimit,
    ) -> ExchangeResult {
        debug_assert_eq!(target.origin(), connection.origin());
        let taken = Instant::now();
        let waits = Waits { clock: &*self.clock, timer: &self.slot_timer };
        let result = connection.exchange(head.with_body(body), slots, limit, waits).await;
        // The server closed the connection before the request: learn how long it keeps idle connections.
        if matches!(result, ExchangeResult::NotSent(_)) {
            self.pool.closed_by_server(&connection, taken);
        }
        if connection.is_reusable(Instant::now()) {
            self.pool.give_back(connection);
        }
        result
    }
}

/// Dials in a separate task, because the waiter that caused the dial may get another connection first.
fn start_dial(dial: Dial, step: DialStep, dialer: Arc<Dialer>, clock: Arc<dyn Clock>) {
    tokio::spawn(async move {
        let connection = match timeout_at(dial.until(), dialer.dial(dial.origin(), &step)).await {
            Ok(Ok(dialled)) => Connection::new(dialled, dial.origin().clone(), clock.clone())
                .await
                .map_err(|_| Some(Unreachable::closed_before_send().into())),
            Ok(Err(error)) => Err(Some(error)),
            Err(_) => Err(None),
        };
        // The end of one dial makes room for the dials of other waiters.
        for next in dial.end(connection) {
            start_dial(next, DialStep::default(), dialer.clone(), clock.clone());
        }
    });
}
