//! Idle connections, and the wait queue for connections, by origin.
//!
//! The connection used last is used first, so connections that are no longer needed grow old and are closed. The pool
//! checks whether a connection is still open when it is checked out, and every [`SWEEP`] while there are idle
//! connections. An empty pool has no timer.
//!
//! A checkout that finds no idle connection joins the wait queue of its origin. The pool dials once for each waiter, up
//! to a limit. The first waiter gets the next connection, whether it was dialled or returned after use. So no delivery
//! waits for one certain dial, which may lose its SYN (at a full accept queue) and take a second longer. A failed dial
//! also fails the first waiter. A connection that no waiter needs becomes idle.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    connection::{Connection, OpenConnectionGuard},
    fault::{NoConnection, Unreachable},
    idle_times::IdleTimes,
    origin::Origin,
};

/// How often connections that are too old, or that the server has closed, are dropped. A closed connection keeps a file
/// open until then; a connection that is taken is checked in any case.
const SWEEP: Duration = Duration::from_secs(15);
/// Idle connections to one origin. With fewer than the sends in flight, connections would be closed and dialled again
/// all the time; this many send thousands of requests a second.
const MAX_PER_ORIGIN: usize = 1_024;
/// Idle connections to all origins: half as many as there are attempts, because each is an open file too.
const MAX_TOTAL: usize = 4_096;
/// Idle connections with a TLS identity of their own, a quarter of all: each has buffers and keys that no other can
/// use, and thousands of such destinations must not take the places of all others. Beyond them a connection that comes
/// back is closed, so its destination connects again for its next request.
const MAX_OWN_IDENTITIES: usize = 1_024;
/// Dials under way to one origin. An origin that hangs keeps each of them for the whole connect budget. An origin whose
/// handshake takes 500 ms gets 500 connections a second with this many.
const MAX_DIALS_PER_ORIGIN: usize = 256;
/// Dials under way to all origins, a quarter of the attempts; beyond them an origin has [`DIALS_RESERVED`].
const MAX_DIALS: usize = 2_048;
/// Dials that an origin may have under way even when the others hang. Two, so that one lost SYN does not block the
/// origin.
const DIALS_RESERVED: usize = 2;

pub(super) struct Pool {
    pools: Mutex<PoolState>,
    /// Connections that are idle or in use.
    open: Arc<AtomicUsize>,
    max_per_origin: usize,
}

#[derive(Default)]
struct PoolState {
    by_origin: HashMap<Arc<Origin>, OriginPool>,
    idle_times: IdleTimes,
    /// Idle connections.
    idle_total: usize,
    /// Those of them with a TLS identity of their own.
    idle_own: usize,
    /// Dials under way.
    dials: usize,
    /// The sweep task is running.
    is_sweeping: bool,
}

/// A connection that was idle, and how long a connection to its origin can be idle and still be used.
struct IdleConnection {
    connection: Connection,
    trusted_for: Duration,
}

/// The idle connections, waiters and dials of one origin.
#[derive(Default)]
struct OriginPool {
    /// The connection used last is at the back.
    idle: VecDeque<Connection>,
    wait_queue: VecDeque<Waiter>,
    /// Dials under way: at least one for each waiter, up to the limits.
    dials: usize,
}

/// An attempt that waits for a connection.
struct Waiter {
    sender: oneshot::Sender<CheckoutResult>,
    /// The end of its time limit.
    until: Instant,
}

impl Waiter {
    fn has_left(&self, now: Instant) -> bool {
        self.sender.is_closed() || self.until <= now
    }
}

impl OriginPool {
    /// Takes the first waiter that has not given up.
    fn next_waiter(&mut self) -> Option<oneshot::Sender<CheckoutResult>> {
        std::iter::from_fn(|| self.wait_queue.pop_front())
            .map(|waiter| waiter.sender)
            .find(|sender| !sender.is_closed())
    }

    fn is_empty(&self) -> bool {
        self.idle.is_empty() && self.wait_queue.is_empty() && self.dials == 0
    }
}

/// The result of a checkout that waited in the queue.
pub(super) type CheckoutResult = Result<Checkout, NoConnection>;

/// A connection to send on.
pub struct Checkout {
    pub connection: Connection,
    /// The connection comes from the pool; it was not dialled for this checkout.
    pub warm: bool,
}

/// The result of [`Pool::acquire`].
pub(super) enum Acquired {
    Idle(Connection),
    /// The receiver of a waiter, and the dial that the caller must make if another one is needed.
    Queued(oneshot::Receiver<CheckoutResult>, Option<Dial>),
}

/// A dial that is under way. A dial that is dropped without a result has failed.
pub(super) struct Dial {
    pool: Arc<Pool>,
    origin: Arc<Origin>,
    until: Instant,
    result: Option<DialResult>,
}

/// `Err(None)`: the waiters' time limit ended the dial. Each of them learns that from its own limit, so the dial fails
/// no waiter that came later or has a longer limit.
pub(super) type DialResult = Result<Connection, Option<NoConnection>>;

impl Dial {
    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// When no waiter of today waits for it any more. A dial that continued would hide from later waiters that a new one
    /// may succeed: the pauses of a lost SYN double.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Delivers the result. Returns the dials that the caller must make next.
    pub(super) fn end(mut self, result: DialResult) -> Vec<Self> {
        self.result = Some(result);
        let (pool, origin) = (self.pool.clone(), self.origin.clone());
        drop(self);
        pool.start_dials(&origin)
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        // The dial has ended, so it is no longer counted, whatever its result.
        let mut pools = self.pool.pools.lock();
        pools.dials -= 1;
        if let Some(pool) = pools.by_origin.get_mut(&self.origin) {
            pool.dials -= 1;
        }
        drop(pools);
        match self.result.take() {
            Some(Ok(mut connection)) => {
                connection.set_open_guard(OpenConnectionGuard::new(&self.pool.open));
                self.pool.offer(Checkout { connection, warm: false });
            }
            Some(Err(Some(error))) => self.pool.fail_first_waiter(&self.origin, error),
            Some(Err(None)) => {}
            None => self.pool.fail_first_waiter(&self.origin, Unreachable::closed_before_send().into()),
        }
    }
}

fn is_usable(connection: &mut Connection, now: Instant) -> bool {
    connection.is_reusable(now) && connection.is_open()
}

impl Pool {
    pub(super) fn new() -> Arc<Self> {
        Self::keeping(MAX_PER_ORIGIN)
    }

    fn keeping(max_per_origin: usize) -> Arc<Self> {
        Arc::new(Self { pools: Mutex::default(), open: Arc::default(), max_per_origin })
    }

    /// An idle connection to the origin, if there is one. Never waits.
    pub(super) fn checkout(&self, origin: &Arc<Origin>) -> Option<Connection> {
        let now = Instant::now();
        loop {
            // Checked, and dropped, outside the lock.
            let idle = self.pools.lock().pop(origin, now)?;
            if let Some(connection) = self.usable(idle, now) {
                return Some(connection);
            }
        }
    }

    /// An idle connection, or a position in the wait queue of the origin until the time limit of the waiter ends. The
    /// receiver gets no answer after that.
    pub(super) fn acquire(self: &Arc<Self>, origin: &Arc<Origin>, until: Instant) -> Acquired {
        let now = Instant::now();
        loop {
            let mut pools = self.pools.lock();
            let Some(idle) = pools.pop(origin, now) else {
                // Wait in the queue. Under the same lock, so that no connection becomes idle unnoticed in between.
                let pool = pools.by_origin.entry(origin.clone()).or_default();
                let (sender, receiver) = oneshot::channel();
                pool.wait_queue.push_back(Waiter { sender, until });
                let dial = pools.begin_dial(origin, now).map(|until| self.dial(origin, until));
                return Acquired::Queued(receiver, dial);
            };
            drop(pools);
            if let Some(connection) = self.usable(idle, now) {
                return Acquired::Idle(connection);
            }
        }
    }

    /// The connection, if it can still be used. Call it without the lock.
    fn usable(&self, idle: IdleConnection, now: Instant) -> Option<Connection> {
        let IdleConnection { mut connection, trusted_for } = idle;
        // It is too old, or the server may be about to close it.
        if !connection.is_reusable(now) || connection.idle_for(now) >= trusted_for {
            return None;
        }
        // The server has closed it: learn how long it keeps idle connections.
        if !connection.is_open() {
            self.closed_by_server(&connection, now);
            return None;
        }
        Some(connection)
    }

    /// Records that the server closed a connection that was idle until now.
    pub(super) fn closed_by_server(&self, connection: &Connection, now: Instant) {
        self.pools.lock().idle_times.learn(connection.origin(), connection.idle_for(now), now);
    }

    /// Closes the idle connections to the origin.
    pub(super) fn close_idle(&self, origin: &Arc<Origin>) {
        // Dropped outside the lock.
        let now = Instant::now();
        while let Some(idle) = { self.pools.lock().pop(origin, now) } {
            drop(idle);
        }
    }

    /// Counts and returns the dials that the waiters need and the limits now allow.
    fn start_dials(self: &Arc<Self>, origin: &Arc<Origin>) -> Vec<Dial> {
        let (mut pools, now) = (self.pools.lock(), Instant::now());
        std::iter::from_fn(|| pools.begin_dial(origin, now).map(|until| self.dial(origin, until))).collect()
    }

    /// A dial that [`PoolState::begin_dial`] has counted.
    fn dial(self: &Arc<Self>, origin: &Arc<Origin>, until: Instant) -> Dial {
        Dial { pool: self.clone(), origin: origin.clone(), until, result: None }
    }

    pub(super) fn give_back(self: &Arc<Self>, connection: Connection) {
        if connection.is_reusable(Instant::now()) {
            self.offer(Checkout { connection, warm: true });
        }
    }

    /// Gives the connection to the first waiter, or keeps it idle if there is none.
    fn offer(self: &Arc<Self>, mut checkout: Checkout) {
        loop {
            let mut pools = self.pools.lock();
            let pool = pools.by_origin.entry(checkout.connection.origin().clone()).or_default();
            let Some(waiter) = pool.next_waiter() else { return self.keep_idle(pools, checkout.connection) };
            drop(pools);
            // If the waiter gives up at this moment, the next waiter gets the connection.
            let Err(Ok(back)) = waiter.send(Ok(checkout)) else { return };
            checkout = back;
        }
    }

    fn keep_idle(self: &Arc<Self>, mut pools: MutexGuard<'_, PoolState>, connection: Connection) {
        let own = usize::from(connection.origin().has_own_identity());
        let full = pools.idle_total >= MAX_TOTAL || pools.idle_own + own > MAX_OWN_IDENTITIES;
        let pool = pools.by_origin.entry(connection.origin().clone()).or_default();
        pool.idle.push_back(connection);
        // Dropped outside the lock. When the pool is full, the oldest connection of this origin is closed, even if it
        // is this one.
        let surplus = if full || pool.idle.len() > self.max_per_origin { pool.idle.pop_front() } else { None };
        if surplus.is_none() {
            pools.idle_total += 1;
            pools.idle_own += own;
        }
        // The sweep task runs only while there are idle connections.
        if !pools.is_sweeping {
            pools.is_sweeping = true;
            tokio::spawn(sweep_while_used(Arc::downgrade(self)));
        }
        drop(pools);
        drop(surplus);
    }

    fn fail_first_waiter(&self, origin: &Arc<Origin>, error: NoConnection) {
        let mut pools = self.pools.lock();
        let Some(pool) = pools.by_origin.get_mut(origin) else { return };
        let waiter = pool.next_waiter();
        if pool.is_empty() {
            pools.by_origin.remove(origin);
        }
        drop(pools);
        if let Some(waiter) = waiter {
            let _ = waiter.send(Err(error));
        }
    }

    /// Drops connections that are too old or closed. Returns whether idle connections remain; if not, the sweep task
    /// ends.
    fn sweep(&self, now: Instant) -> bool {
        let origins: Vec<_> = self.pools.lock().by_origin.keys().cloned().collect();
        for origin in origins {
            // One origin per lock, so that no checkout waits long.
            let mut pools = self.pools.lock();
            let Some(pool) = pools.by_origin.get_mut(&origin) else {
                continue;
            };
            let (kept, closed) = split_reusable(std::mem::take(&mut pool.idle), now);
            pool.idle = kept;
            if pool.is_empty() {
                pools.by_origin.remove(&origin);
            }
            pools.forget_idle(&origin, closed.len());
            drop(pools);
            drop(closed);
        }
        let mut pools = self.pools.lock();
        pools.is_sweeping = pools.idle_total > 0;
        pools.is_sweeping
    }

    /// How many connections are open, and how many of them are idle.
    pub(super) fn connections(&self) -> (usize, usize) {
        let idle = self.pools.lock().idle_total;
        (self.open.load(Ordering::Relaxed).max(idle), idle)
    }
}

impl PoolState {
    /// Takes the idle connection to the origin that was used last.
    fn pop(&mut self, origin: &Arc<Origin>, now: Instant) -> Option<IdleConnection> {
        let connection = self.by_origin.get_mut(origin)?.idle.pop_back()?;
        self.forget_idle(origin, 1);
        Some(IdleConnection { connection, trusted_for: self.idle_times.trusted_for(origin, now) })
    }

    /// Connections to the origin are no longer idle.
    fn forget_idle(&mut self, origin: &Origin, count: usize) {
        self.idle_total -= count;
        self.idle_own -= if origin.has_own_identity() { count } else { 0 };
    }

    /// Counts a dial to the origin, if its waiters need another one and the limits allow it. Returns until when the
    /// last of them waits.
    fn begin_dial(&mut self, origin: &Arc<Origin>, now: Instant) -> Option<Instant> {
        let limit = if self.dials < MAX_DIALS { MAX_DIALS_PER_ORIGIN } else { DIALS_RESERVED };
        let pool = self.by_origin.get_mut(origin)?;
        // Waiters that gave up are mostly at the front. The last one must be waiting still, because the dial lasts as
        // long as it waits.
        while pool.wait_queue.pop_front_if(|waiter| waiter.has_left(now)).is_some() {}
        while pool.wait_queue.pop_back_if(|waiter| waiter.has_left(now)).is_some() {}
        if pool.is_empty() {
            self.by_origin.remove(origin);
            return None;
        }
        let until = pool.wait_queue.back()?.until;
        let begins = pool.dials < pool.wait_queue.len().min(limit);
        pool.dials += usize::from(begins);
        self.dials += usize::from(begins);
        begins.then_some(until)
    }
}

/// Splits connections into those that can be used again and those to close.
fn split_reusable(idle: VecDeque<Connection>, now: Instant) -> (VecDeque<Connection>, VecDeque<Connection>) {
    let (mut kept, mut closed) = (VecDeque::new(), VecDeque::new());
    for mut idle in idle {
        let side = if is_usable(&mut idle, now) { &mut kept } else { &mut closed };
        side.push_back(idle);
    }
    (kept, closed)
}

async fn sweep_while_used(pool: Weak<Pool>) {
    loop {
        sleep(SWEEP).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.sweep(Instant::now()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
