use tokio::net::{TcpListener, TcpStream};
use url::Host;
use weir_core::{
    delivery::ConnectionDetails,
    egress::{Egress, ProxyChoice, Tls},
};

use super::{
    super::{
        fixed_clock::FixedClock,
        origin::Way,
        stream::{Dialled, Stream},
    },
    *,
};

/// An origin, and both ends of `count` connections to it.
async fn connected(count: usize) -> (Arc<Origin>, Vec<Connection>, Vec<TcpStream>) {
    connected_by(&Egress::default(), count).await
}

async fn connected_by(egress: &Egress, count: usize) -> (Arc<Origin>, Vec<Connection>, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let host = Host::Domain("receiver.example".to_owned());
    let origin = Arc::new(Origin { tls: false, host, port: address.port(), way: Way::of(egress) });
    let (mut connections, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let details = ConnectionDetails { remote_address: address, connect_ms: None, tls_ms: None };
        let dialled = Dialled { stream: Stream::Plain(near.unwrap()), details };
        connections.push(Connection::new(dialled, origin.clone(), Arc::new(FixedClock)).await.unwrap());
        ends.push(far.unwrap().0);
    }
    (origin, connections, ends)
}

fn total(pool: &Pool) -> usize {
    let pools = pool.pools.lock();
    assert_eq!(pools.idle_total, pools.by_origin.values().map(|pool| pool.idle.len()).sum::<usize>());
    pools.idle_total
}

#[tokio::test]
async fn connections_idle_for_a_minute_are_dropped_and_the_sweep_ends() {
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
    let pools = pool.pools.lock();
    assert!(pools.by_origin.is_empty() && !pools.is_sweeping);
}

#[tokio::test]
async fn the_sweep_drops_connections_that_the_server_has_closed() {
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
    Arc::new(Origin { tls: true, host: Host::Domain("hangs.example".to_owned()), port: number, way: None })
}

/// Calls [`Pool::acquire`] `times` times: the receivers of the waiters, and the dials to make.
fn acquire(
    pool: &Arc<Pool>,
    origin: &Arc<Origin>,
    times: usize,
) -> (Vec<oneshot::Receiver<CheckoutResult>>, Vec<Dial>) {
    let acquired = (0..times).map(|_| match pool.acquire(origin, Instant::now() + Duration::from_secs(10)) {
        Acquired::Idle(_) => panic!("no connection was made"),
        Acquired::Queued(receiver, dial) => (receiver, dial),
    });
    let (receivers, dials): (Vec<_>, Vec<_>) = acquired.unzip();
    (receivers, dials.into_iter().flatten().collect())
}

fn refused() -> NoConnection {
    Unreachable::closed_before_send().into()
}

#[test]
fn dials_to_one_origin_are_bounded_and_an_ended_dial_allows_another() {
    let pool = Pool::new();
    let (mut receivers, mut dials) = acquire(&pool, &origin(1), 400);
    assert_eq!(dials.len(), MAX_DIALS_PER_ORIGIN);
    let next = dials.pop().unwrap().end(Err(Some(refused())));
    assert_eq!(next.len(), 1);
    dials.extend(next);
    assert!(receivers[0].try_recv().unwrap().is_err(), "the first waiter gets the error");
    // Waiters that gave up need no dial.
    receivers.drain(..300);
    assert!(dials.pop().unwrap().end(Err(Some(refused()))).is_empty());
}

#[test]
fn a_dial_that_its_waiters_no_longer_wait_for_fails_no_other_waiter() {
    let (pool, origin, now) = (Pool::new(), origin(1), Instant::now());
    let wait = |until| match pool.acquire(&origin, until) {
        Acquired::Idle(_) => panic!("no connection was made"),
        Acquired::Queued(receiver, dial) => (receiver, dial),
    };
    let (mut patient, first) = wait(now + Duration::from_secs(10));
    let (short, second) = wait(now + Duration::from_millis(1));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.until() - now, second.until() - now), (Duration::from_secs(10), Duration::from_millis(1)));
    // The attempt with the short limit gives up, and so does its dial.
    drop(short);
    assert!(second.end(Err(None)).is_empty());
    assert!(patient.try_recv().is_err(), "it still waits for its own dial");
    // A dial with somebody who waits is followed by another, and one without leaves nothing behind.
    let mut next = first.end(Err(None));
    assert_eq!((next.len(), next[0].until() - now), (1, Duration::from_secs(10)));
    drop(patient);
    assert!(next.remove(0).end(Err(None)).is_empty());
    assert_eq!(pool.pools.lock().by_origin.len(), 0);
    let (mut over, dial) = wait(now);
    assert!(dial.is_none() && over.try_recv().is_err(), "no time is left for a dial");
    assert_eq!(pool.pools.lock().by_origin.len(), 0);
}

#[test]
fn origins_that_hang_leave_dials_for_every_other_origin() {
    let pool = Pool::new();
    let hanging: Vec<_> = (1..=500).map(|number| acquire(&pool, &origin(number), 64)).collect();
    let under_way: usize = hanging.iter().map(|(_, dials)| dials.len()).sum();
    assert!((MAX_DIALS..=MAX_DIALS + 500 * DIALS_RESERVED).contains(&under_way), "{under_way}");
    assert!(hanging.iter().all(|(_, dials)| dials.len() >= DIALS_RESERVED));
    // Each dial that ends is followed by another, until every waiter has been answered.
    let (receivers, dials) = acquire(&pool, &origin(501), 10);
    assert_eq!(dials.len(), DIALS_RESERVED);
    let (mut dials, mut made) = (dials, 0);
    while let Some(dial) = dials.pop() {
        dials.extend(dial.end(Err(Some(refused()))));
        made += 1;
    }
    assert_eq!(made, 10);
    assert!(receivers.into_iter().all(|mut receiver| receiver.try_recv().is_ok()));
    // Without the hanging dials the limit no longer applies.
    drop(hanging);
    let (_receivers, dials) = acquire(&pool, &origin(501), 10);
    assert_eq!((dials.len(), pool.pools.lock().dials), (10, 10));
    drop(dials);
    assert!(pool.pools.lock().by_origin.is_empty());
}

#[tokio::test]
async fn a_full_pool_keeps_no_more_connections() {
    let pool = Pool::new();
    let (origin, connections, _ends) = connected(1).await;
    pool.pools.lock().idle_total = MAX_TOTAL;
    for connection in connections {
        pool.give_back(connection);
    }
    assert_eq!(pool.pools.lock().idle_total, MAX_TOTAL);
    assert!(pool.checkout(&origin).is_none());
}

#[tokio::test]
async fn connections_with_identities_of_their_own_have_a_bound_of_their_own() {
    let (pool, mut ends) = (Pool::new(), Vec::new());
    pool.pools.lock().idle_own = MAX_OWN_IDENTITIES - 1;
    for (number, egress) in [
        Egress { tls: Tls { ca: Some("ca".to_owned()), client: None }, ..Egress::default() },
        Egress { tls: Tls { ca: Some("other".to_owned()), client: None }, ..Egress::default() },
        Egress { proxy: ProxyChoice::Direct, ..Egress::default() },
    ]
    .iter()
    .enumerate()
    {
        let (_, mut connections, end) = connected_by(egress, 1).await;
        ends.extend(end);
        pool.give_back(connections.remove(0));
        // The first has the last place, the second is closed, and the third needs none.
        assert_eq!(total(&pool), [1, 1, 2][number]);
    }
    assert_eq!(pool.pools.lock().idle_own, MAX_OWN_IDENTITIES);
}
