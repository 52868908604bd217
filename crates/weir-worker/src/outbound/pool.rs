//! Connections that stand unused, and who waits for one, by origin.
//!
//! The one used last is used first, so that those no longer needed grow old and go. Whether a connection still stands is
//! looked at when it is taken, and every [`SWEEP`] while there are any; nothing wakes up for an empty pool.
//!
//! Who finds none joins the wait queue of its origin. There are as many dials under way as wait in it, up to a limit. A connection
//! goes to the first in the queue, whether it was dialled or comes back from use: one lost SYN, as of a receiver whose accept queue
//! is full, costs its dial a second, and must cost no delivery that. A dial that fails answers the first in the queue as well. What
//! is dialled beyond need stands in the pool.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    connection::{Connection, Counted},
    fault::{NoConnection, Unreachable},
    idle_times::IdleTimes,
    target::Origin,
};

/// How often those that are too old, or that the server has closed, are dropped.
const SWEEP: Duration = Duration::from_secs(15);
/// Unused connections to one origin. Fewer than are in flight at once would be closed and made anew all the time.
const MAX_PER_ORIGIN: usize = 1_024;
/// Unused connections to all origins.
const MAX_TOTAL: usize = 4_096;
/// Dials under way to one origin. One that hangs holds each for the whole connect budget.
const MAX_DIALS_PER_ORIGIN: usize = 256;
/// Dials under way to all origins; beyond them an origin has [`DIALS_RESERVED`].
const MAX_DIALS: usize = 2_048;
/// Dials that an origin may have under way however many others hang. Two, so that one lost SYN stops nobody.
const DIALS_RESERVED: usize = 2;

pub(super) struct Pool {
    pools: Mutex<OriginPools>,
    /// Connections that stand unused or are in use.
    open: Arc<AtomicUsize>,
    max_per_origin: usize,
}

#[derive(Default)]
struct OriginPools {
    of: HashMap<Arc<Origin>, OriginPool>,
    idle_times: IdleTimes,
    /// Unused connections.
    total: usize,
    /// Dials under way.
    dialling: usize,
    /// A task sweeps.
    swept: bool,
}

/// A connection that stood unused, and for how long such a one can be used.
struct Unused {
    connection: Connection,
    trusted_for: Duration,
}

/// One origin.
#[derive(Default)]
struct OriginPool {
    /// The one used last at the back.
    unused: VecDeque<Connection>,
    queue: VecDeque<oneshot::Sender<Answer>>,
    /// Dials under way: as many as wait in the queue, or more, unless that is more than may be.
    dialling: usize,
}

impl OriginPool {
    /// The first in the queue that has not given up.
    fn next_waiting(&mut self) -> Option<oneshot::Sender<Answer>> {
        std::iter::from_fn(|| self.queue.pop_front()).find(|waiting| !waiting.is_closed())
    }

    fn is_over(&self) -> bool {
        self.unused.is_empty() && self.queue.is_empty() && self.dialling == 0
    }
}

/// What comes to whoever waits in the queue.
pub(super) type Answer = Result<Checkout, NoConnection>;

/// A connection to send on.
pub struct Checkout {
    pub connection: Connection,
    /// It was standing, not made just now.
    pub warm: bool,
}

/// What there is for whoever needs a connection.
pub(super) enum Asked {
    Standing(Connection),
    /// A place in the queue, and the dial that the caller has to make, if another is needed.
    Queued(oneshot::Receiver<Answer>, Option<Dial>),
}

/// A dial that is under way. Dropped without an outcome, it has failed.
pub(super) struct Dial {
    pool: Arc<Pool>,
    origin: Arc<Origin>,
    outcome: Option<Result<Connection, NoConnection>>,
}

impl Dial {
    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Hands over the outcome. Returns the dials that are to follow.
    pub(super) fn end(mut self, outcome: Result<Connection, NoConnection>) -> Vec<Self> {
        self.outcome = Some(outcome);
        let (pool, origin) = (self.pool.clone(), self.origin.clone());
        drop(self);
        pool.dials_wanted(&origin)
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        let mut pools = self.pool.lock();
        pools.dialling -= 1;
        if let Some(pool) = pools.of.get_mut(&self.origin) {
            pool.dialling -= 1;
        }
        drop(pools);
        match self.outcome.take() {
            Some(Ok(mut connection)) => {
                connection.count(Counted::among(&self.pool.open));
                self.pool.pass_on(Checkout { connection, warm: false });
            }
            Some(Err(error)) => self.pool.fail_next(&self.origin, error),
            None => self.pool.fail_next(&self.origin, Unreachable::closed_before_send().into()),
        }
    }
}

fn is_fit(connection: &mut Connection, now: Instant) -> bool {
    connection.is_reusable(now) && connection.is_open()
}

impl Pool {
    pub(super) fn new() -> Arc<Self> {
        Self::keeping(MAX_PER_ORIGIN)
    }

    fn keeping(max_per_origin: usize) -> Arc<Self> {
        Arc::new(Self { pools: Mutex::default(), open: Arc::default(), max_per_origin })
    }

    pub(super) fn checkout(&self, origin: &Arc<Origin>) -> Option<Connection> {
        let now = Instant::now();
        loop {
            // Looked at, and dropped, outside the lock.
            let unused = self.lock().pop(origin, now)?;
            if let Some(connection) = self.usable(unused, now) {
                return Some(connection);
            }
        }
    }

    /// A standing connection, or a place in the queue for one.
    pub(super) fn ask(self: &Arc<Self>, origin: &Arc<Origin>) -> Asked {
        let now = Instant::now();
        loop {
            let mut pools = self.lock();
            let Some(unused) = pools.pop(origin, now) else {
                let pool = pools.of.entry(origin.clone()).or_default();
                let (waiting, place) = oneshot::channel();
                pool.queue.push_back(waiting);
                let dial = pools.begin_dial(origin).then(|| self.dial(origin));
                return Asked::Queued(place, dial);
            };
            drop(pools);
            if let Some(connection) = self.usable(unused, now) {
                return Asked::Standing(connection);
            }
        }
    }

    /// The connection, if it can still be used. Asked outside the lock.
    fn usable(&self, unused: Unused, now: Instant) -> Option<Connection> {
        let Unused { mut connection, trusted_for } = unused;
        if !connection.is_reusable(now) || connection.stood_for(now) >= trusted_for {
            return None;
        }
        if !connection.is_open() {
            self.closed_by_server(&connection, now);
            return None;
        }
        Some(connection)
    }

    /// The server has closed a connection that stood unused until now.
    pub(super) fn closed_by_server(&self, connection: &Connection, now: Instant) {
        self.lock().idle_times.learn(connection.origin(), connection.stood_for(now), now);
    }

    /// Closes what stands unused.
    pub(super) fn forget(&self, origin: &Arc<Origin>) {
        // Dropped outside the lock.
        let now = Instant::now();
        while let Some(unused) = { self.lock().pop(origin, now) } {
            drop(unused);
        }
    }

    /// The dials that have become possible, for those who wait for one.
    fn dials_wanted(self: &Arc<Self>, origin: &Arc<Origin>) -> Vec<Dial> {
        let mut pools = self.lock();
        std::iter::from_fn(|| pools.begin_dial(origin).then(|| self.dial(origin))).collect()
    }

    /// A dial that has been counted.
    fn dial(self: &Arc<Self>, origin: &Arc<Origin>) -> Dial {
        Dial { pool: self.clone(), origin: origin.clone(), outcome: None }
    }

    pub(super) fn give_back(self: &Arc<Self>, connection: Connection) {
        if connection.is_reusable(Instant::now()) {
            self.pass_on(Checkout { connection, warm: true });
        }
    }

    /// To the first in the queue, or else into the pool.
    fn pass_on(self: &Arc<Self>, mut found: Checkout) {
        loop {
            let mut pools = self.lock();
            let pool = pools.of.entry(found.connection.origin().clone()).or_default();
            let Some(waiting) = pool.next_waiting() else { return self.keep(pools, found.connection) };
            drop(pools);
            // Whoever gave up in this moment gives it back.
            let Err(Ok(back)) = waiting.send(Ok(found)) else { return };
            found = back;
        }
    }

    fn keep(self: &Arc<Self>, mut pools: MutexGuard<'_, OriginPools>, connection: Connection) {
        let full = pools.total >= MAX_TOTAL;
        let pool = pools.of.entry(connection.origin().clone()).or_default();
        pool.unused.push_back(connection);
        // Dropped outside the lock. With the pool full, the oldest of this pool goes, were it the one that came.
        let surplus = if full || pool.unused.len() > self.max_per_origin { pool.unused.pop_front() } else { None };
        pools.total += usize::from(surplus.is_none());
        if !pools.swept {
            pools.swept = true;
            tokio::spawn(sweep_while_used(Arc::downgrade(self)));
        }
        drop(pools);
        drop(surplus);
    }

    fn fail_next(&self, origin: &Arc<Origin>, error: NoConnection) {
        let mut pools = self.lock();
        let Some(pool) = pools.of.get_mut(origin) else { return };
        let waiting = pool.next_waiting();
        if pool.is_over() {
            pools.of.remove(origin);
        }
        drop(pools);
        if let Some(waiting) = waiting {
            let _ = waiting.send(Err(error));
        }
    }

    /// Drops what is too old or closed. Whether there is anything left; if not, the caller ends.
    fn sweep(&self, now: Instant) -> bool {
        let origins: Vec<_> = self.lock().of.keys().cloned().collect();
        for origin in origins {
            // One pool at a time, so that no checkout waits long.
            let mut pools = self.lock();
            let Some(pool) = pools.of.get_mut(&origin) else {
                continue;
            };
            let (fit, unfit) = parted(std::mem::take(&mut pool.unused), now);
            pool.unused = fit;
            if pool.is_over() {
                pools.of.remove(&origin);
            }
            pools.total -= unfit.len();
            drop(pools);
            drop(unfit);
        }
        let mut pools = self.lock();
        pools.swept = pools.total > 0;
        pools.swept
    }

    /// How many connections are open, and how many of them stand unused.
    pub(super) fn connections(&self) -> (usize, usize) {
        let unused = self.lock().total;
        (self.open.load(Ordering::Relaxed).max(unused), unused)
    }

    fn lock(&self) -> MutexGuard<'_, OriginPools> {
        // A panic in between leaves at worst a count that is too high: fewer connections are kept.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OriginPools {
    fn pop(&mut self, origin: &Arc<Origin>, now: Instant) -> Option<Unused> {
        let connection = self.of.get_mut(origin)?.unused.pop_back()?;
        self.total -= 1;
        Some(Unused { connection, trusted_for: self.idle_times.trusted_for(origin, now) })
    }

    /// Counts a dial to the origin, if another is needed and there may be one.
    fn begin_dial(&mut self, origin: &Arc<Origin>) -> bool {
        let most = if self.dialling < MAX_DIALS { MAX_DIALS_PER_ORIGIN } else { DIALS_RESERVED };
        let Some(pool) = self.of.get_mut(origin) else { return false };
        // Those who gave up are at the front: all wait equally long.
        while pool.queue.pop_front_if(|waiting| waiting.is_closed()).is_some() {}
        let begins = pool.dialling < pool.queue.len().min(most);
        pool.dialling += usize::from(begins);
        self.dialling += usize::from(begins);
        begins
    }
}

/// Parts connections into those that may stay and those that go.
fn parted(unused: VecDeque<Connection>, now: Instant) -> (VecDeque<Connection>, VecDeque<Connection>) {
    let (mut fit, mut unfit) = (VecDeque::new(), VecDeque::new());
    for mut unused in unused {
        let side = if is_fit(&mut unused, now) { &mut fit } else { &mut unfit };
        side.push_back(unused);
    }
    (fit, unfit)
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
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use url::Host;
    use weir_core::{Clock, Timestamp};

    use super::{super::stream::Stream, *};

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Timestamp {
            Timestamp::from_secs(1_000_000)
        }

        fn wall(&self) -> Timestamp {
            self.now()
        }
    }

    /// An origin, and both ends of as many connections to it.
    async fn connected(count: usize) -> (Arc<Origin>, Vec<Connection>, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let host = Host::Domain("receiver.example".to_owned());
        let origin = Arc::new(Origin { tls: false, host, port: address.port() });
        let (mut connections, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
            let stream = Stream::Plain(near.unwrap());
            connections.push(Connection::new(stream, origin.clone(), Arc::new(Still)).await.unwrap());
            ends.push(far.unwrap().0);
        }
        (origin, connections, ends)
    }

    fn total(pool: &Pool) -> usize {
        let pools = pool.lock();
        assert_eq!(pools.total, pools.of.values().map(|pool| pool.unused.len()).sum::<usize>());
        pools.total
    }

    #[tokio::test]
    async fn connections_unused_for_a_minute_are_dropped_and_the_sweep_ends() {
        let pool = Pool::new();
        let (_, connections, _ends) = connected(3).await;
        for connection in connections {
            pool.give_back(connection);
        }
        let now = Instant::now();
        assert!(pool.sweep(now + Duration::from_secs(59)));
        assert_eq!(total(&pool), 3);
        assert!(!pool.sweep(now + Duration::from_secs(61)));
        assert_eq!(total(&pool), 0);
        let pools = pool.lock();
        assert!(pools.of.is_empty() && !pools.swept);
    }

    #[tokio::test]
    async fn the_sweep_drops_what_the_server_has_closed() {
        let pool = Pool::new();
        let (origin, connections, mut ends) = connected(2).await;
        for connection in connections {
            pool.give_back(connection);
        }
        ends.remove(0);
        while total(&pool) == 2 {
            tokio::task::yield_now().await;
            assert!(pool.sweep(Instant::now()));
        }
        assert!(pool.checkout(&origin).is_some());
        assert!(pool.checkout(&origin).is_none());
    }

    #[tokio::test]
    async fn an_origin_keeps_a_bounded_number_of_connections() {
        let pool = Pool::keeping(4);
        let (_, connections, _ends) = connected(6).await;
        for connection in connections {
            pool.give_back(connection);
        }
        assert_eq!(total(&pool), 4);
    }

    fn origin(number: u16) -> Arc<Origin> {
        Arc::new(Origin { tls: true, host: Host::Domain("hangs.example".to_owned()), port: number })
    }

    /// So many ask for a connection: their places in the queue, and the dials that are made.
    fn ask(pool: &Arc<Pool>, origin: &Arc<Origin>, times: usize) -> (Vec<oneshot::Receiver<Answer>>, Vec<Dial>) {
        let asked = (0..times).map(|_| match pool.ask(origin) {
            Asked::Standing(_) => panic!("nobody has connected"),
            Asked::Queued(place, dial) => (place, dial),
        });
        let (places, dials): (Vec<_>, Vec<_>) = asked.unzip();
        (places, dials.into_iter().flatten().collect())
    }

    fn refused() -> NoConnection {
        Unreachable::closed_before_send().into()
    }

    #[test]
    fn dials_to_one_origin_are_bounded_and_those_that_end_make_room() {
        let pool = Pool::new();
        let (mut places, mut dials) = ask(&pool, &origin(1), 400);
        assert_eq!(dials.len(), MAX_DIALS_PER_ORIGIN);
        let next = dials.pop().unwrap().end(Err(refused()));
        assert_eq!(next.len(), 1);
        dials.extend(next);
        assert!(places[0].try_recv().unwrap().is_err(), "the first in the queue is answered");
        // Those who gave up need none.
        places.drain(..300);
        assert!(dials.pop().unwrap().end(Err(refused())).is_empty());
    }

    #[test]
    fn origins_that_hang_leave_dials_to_every_other() {
        let pool = Pool::new();
        let hanging: Vec<_> = (1..=500).map(|number| ask(&pool, &origin(number), 64)).collect();
        let under_way: usize = hanging.iter().map(|(_, dials)| dials.len()).sum();
        assert!((MAX_DIALS..=MAX_DIALS + 500 * DIALS_RESERVED).contains(&under_way), "{under_way}");
        assert!(hanging.iter().all(|(_, dials)| dials.len() >= DIALS_RESERVED));
        // Each that ends is followed by another, until all have theirs.
        let (places, dials) = ask(&pool, &origin(501), 10);
        assert_eq!(dials.len(), DIALS_RESERVED);
        let (mut dials, mut made) = (dials, 0);
        while let Some(dial) = dials.pop() {
            dials.extend(dial.end(Err(refused())));
            made += 1;
        }
        assert_eq!(made, 10);
        assert!(places.into_iter().all(|mut place| place.try_recv().is_ok()));
        // Room for all again.
        drop(hanging);
        let (_places, dials) = ask(&pool, &origin(501), 10);
        assert_eq!((dials.len(), pool.lock().dialling), (10, 10));
        drop(dials);
        assert!(pool.lock().of.is_empty());
    }

    #[tokio::test]
    async fn a_full_pool_takes_no_more() {
        let pool = Pool::new();
        let (origin, connections, _ends) = connected(1).await;
        pool.lock().total = MAX_TOTAL;
        for connection in connections {
            pool.give_back(connection);
        }
        assert_eq!(pool.lock().total, MAX_TOTAL);
        assert!(pool.checkout(&origin).is_none());
    }
}
