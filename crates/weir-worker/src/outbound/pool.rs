//! Connections that stand unused, by origin.
//!
//! The one used last is used first, so that those no longer needed grow old and go. Whether a connection still stands is
//! looked at when it is taken, and every [`SWEEP`] while there are any; nothing wakes up for an empty pool.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{connection::Connection, target::Origin};

/// How long a connection may stand unused.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// How often those that are too old, or that the server has closed, are dropped.
const SWEEP: Duration = Duration::from_secs(15);
/// Unused connections to one origin. Fewer than are in flight at once would be closed and made anew all the time.
const MAX_PER_ORIGIN: usize = 1_024;
/// Unused connections to all origins.
const MAX_TOTAL: usize = 4_096;

pub(super) struct Pool {
    idle: Mutex<Idle>,
    max_per_origin: usize,
}

#[derive(Default)]
struct Idle {
    lanes: HashMap<Arc<Origin>, Lane>,
    total: usize,
    /// A task sweeps.
    swept: bool,
}

/// The connections to one origin, the one used last at the back.
type Lane = VecDeque<Unused>;

struct Unused {
    connection: Connection,
    since: Instant,
}

impl Unused {
    fn is_fit(&mut self, now: Instant) -> bool {
        now.duration_since(self.since) < MAX_IDLE && self.connection.stands()
    }
}

impl Pool {
    pub(super) fn new() -> Arc<Self> {
        Self::keeping(MAX_PER_ORIGIN)
    }

    fn keeping(max_per_origin: usize) -> Arc<Self> {
        Arc::new(Self { idle: Mutex::default(), max_per_origin })
    }

    pub(super) fn checkout(&self, origin: &Arc<Origin>) -> Option<Connection> {
        let now = Instant::now();
        loop {
            // Looked at, and dropped, outside the lock.
            let mut unused = self.pop(origin)?;
            if unused.is_fit(now) {
                return Some(unused.connection);
            }
        }
    }

    fn pop(&self, origin: &Arc<Origin>) -> Option<Unused> {
        let mut idle = self.lock();
        let unused = idle.lanes.get_mut(origin)?.pop_back()?;
        idle.total -= 1;
        Some(unused)
    }

    pub(super) fn give_back(self: &Arc<Self>, connection: Connection) {
        if !connection.is_reusable() {
            return;
        }
        let origin = connection.origin().clone();
        let unused = Unused { connection, since: Instant::now() };
        let mut idle = self.lock();
        let full = idle.total >= MAX_TOTAL;
        let lane = idle.lanes.entry(origin).or_default();
        lane.push_back(unused);
        // Dropped outside the lock. With the pool full, the oldest of this lane goes, were it the one that came.
        let surplus = if full || lane.len() > self.max_per_origin { lane.pop_front() } else { None };
        idle.total += usize::from(surplus.is_none());
        if !idle.swept {
            idle.swept = true;
            tokio::spawn(sweep_while_used(Arc::downgrade(self)));
        }
        drop(idle);
        drop(surplus);
    }

    /// Drops what is too old or closed. Whether there is anything left; if not, the caller ends.
    fn sweep(&self, now: Instant) -> bool {
        let origins: Vec<_> = self.lock().lanes.keys().cloned().collect();
        for origin in origins {
            // One lane at a time, so that no checkout waits long.
            let mut idle = self.lock();
            let Some(lane) = idle.lanes.get_mut(&origin) else {
                continue;
            };
            let (fit, unfit) = parted(std::mem::take(lane), now);
            if fit.is_empty() {
                idle.lanes.remove(&origin);
            } else {
                *lane = fit;
            }
            idle.total -= unfit.len();
            drop(idle);
            drop(unfit);
        }
        let mut idle = self.lock();
        idle.swept = idle.total > 0;
        idle.swept
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        // A panic in between leaves at worst a count that is too high: fewer connections are kept.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parts a lane into what may stay and what goes.
fn parted(lane: Lane, now: Instant) -> (Lane, Lane) {
    let (mut fit, mut unfit) = (Lane::new(), Lane::new());
    for mut unused in lane {
        let side = if unused.is_fit(now) { &mut fit } else { &mut unfit };
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
            Timestamp::MIN
        }
        fn wall(&self) -> Timestamp {
            Timestamp::MIN
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
            connections.push(Connection::establish(stream, origin.clone(), Arc::new(Still)).await.unwrap());
            ends.push(far.unwrap().0);
        }
        (origin, connections, ends)
    }

    fn total(pool: &Pool) -> usize {
        let idle = pool.lock();
        assert_eq!(idle.total, idle.lanes.values().map(Lane::len).sum::<usize>());
        idle.total
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
        let idle = pool.lock();
        assert!(idle.lanes.is_empty() && !idle.swept);
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
