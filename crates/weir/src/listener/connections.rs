//! The open connections of a listener: how many there may be, in all and from one network, and which one makes room for
//! a new one.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{ConnectionLimits, phases::PhaseTracker};

/// How long a head may be under way before its connection makes room for another client. Heads arrive at once.
const HEAD_GRACE: Duration = Duration::from_secs(1);
/// How often a waiting client looks for a connection that has become idle.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The clients that count as one: an IPv4 address, or the 64 bits of an IPv6 address that one client usually has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(IpAddr);

impl Network {
    fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

#[derive(Debug)]
pub(super) struct Connections {
    limits: ConnectionLimits,
    open: Mutex<Open>,
    /// A connection has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Open {
    last_number: u64,
    all: HashMap<u64, Connection>,
    /// The number of connections without those that make room: they are about to end.
    counted: usize,
    by_network: HashMap<Network, usize>,
}

#[derive(Debug)]
struct Connection {
    network: Network,
    phases: Arc<PhaseTracker>,
    makes_room: Arc<Notify>,
    is_counted: bool,
}

/// The right to one connection. Its drop ends it.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    connections: Arc<Connections>,
    number: u64,
    pub(super) phases: Arc<PhaseTracker>,
    makes_room: Arc<Notify>,
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default(), ended: Notify::new() })
    }

    /// Adds a new connection, once there is room. `None`: its network has its maximum of busy connections.
    pub(super) async fn enter(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionGuard> {
        let network = Network::of(address);
        loop {
            let ended = self.ended.notified();
            {
                let mut open = self.open.lock();
                let of_network = open.by_network.get(&network).copied().unwrap_or(0);
                if of_network >= self.limits.max_per_address && !open.make_room(Some(network)) {
                    return None;
                }
                if open.counted < self.limits.max_connections || open.make_room(None) {
                    let (number, phases, makes_room) = open.add(network);
                    return Some(ConnectionGuard { connections: Arc::clone(self), number, phases, makes_room });
                }
            }
            tokio::select! {
                () = ended => {}
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Waits until all connections have ended.
    pub(super) async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.open.lock().all.is_empty() {
                return;
            }
            ended.await;
        }
    }
}

impl Open {
    fn add(&mut self, network: Network) -> (u64, Arc<PhaseTracker>, Arc<Notify>) {
        self.last_number += 1;
        let (phases, makes_room) = (PhaseTracker::new(), Arc::new(Notify::new()));
        let connection =
            Connection { network, phases: Arc::clone(&phases), makes_room: Arc::clone(&makes_room), is_counted: true };
        self.all.insert(self.last_number, connection);
        self.counted += 1;
        *self.by_network.entry(network).or_default() += 1;
        (self.last_number, phases, makes_room)
    }

    /// Ends a connection that serves no request, of this network or of any. `false`: there is none.
    ///
    /// Those of the network with the most connections go first: who opens many cannot displace those who open few. Among
    /// them, it is the one that has been idle for the longest time.
    fn make_room(&mut self, network: Option<Network>) -> bool {
        let now = Instant::now();
        let free_since = |connection: &Connection| {
            let phase = connection.phases.current();
            let is_free = !phase.is_busy() && phase.head_since.is_none_or(|since| now - since >= HEAD_GRACE);
            is_free.then_some(phase.since)
        };
        let candidates = self.all.iter().filter(|(_, connection)| {
            connection.is_counted && network.is_none_or(|network| connection.network == network)
        });
        let ranked = candidates.filter_map(|(number, connection)| {
            let open = self.by_network.get(&connection.network).copied().unwrap_or(0);
            Some(((open, Reverse(free_since(connection)?)), *number))
        });
        let Some((_, number)) = ranked.max() else { return false };
        self.discount(number);
        if let Some(connection) = self.all.get(&number) {
            connection.makes_room.notify_one();
        }
        true
    }

    /// The connection counts no longer.
    fn discount(&mut self, number: u64) {
        let Some(connection) = self.all.get_mut(&number).filter(|connection| connection.is_counted) else { return };
        connection.is_counted = false;
        self.counted -= 1;
        if let Some(open) = self.by_network.get_mut(&connection.network) {
            *open -= 1;
            if *open == 0 {
                self.by_network.remove(&connection.network);
            }
        }
    }
}

impl ConnectionGuard {
    /// Waits until the connection has to make room for another one.
    pub(super) async fn makes_room(&self) {
        self.makes_room.notified().await;
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.discount(self.number);
        open.all.remove(&self.number);
        drop(open);
        self.connections.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_client_is_its_64_bits() {
        let network = |text: &str| Network::of(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }

    #[tokio::test]
    async fn the_longest_idle_connection_of_the_network_with_the_most_makes_room() {
        let limits = ConnectionLimits::new(5, Some(4));
        let connections = Connections::new(limits);
        let (many, few) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut guards = Vec::new();
        for address in [few, many, many, many, many] {
            let guard = connections.enter(address).await.unwrap();
            drop(PhaseTracker::begin_request(&guard.phases));
            guards.push(guard);
        }
        // The last one to become idle.
        drop(PhaseTracker::begin_request(&guards[1].phases));
        guards.push(connections.enter(few).await.unwrap());
        guards[2].makes_room().await;
        // At its own maximum a network makes room for itself, and is refused when all its connections are busy.
        let busy: Vec<_> = [1, 3, 4].map(|index| PhaseTracker::begin_request(&guards[index].phases)).into();
        drop(guards.remove(5));
        let last = connections.enter(many).await.unwrap();
        let _served = PhaseTracker::begin_request(&last.phases);
        assert!(connections.enter(many).await.is_none());
        drop(busy);
        assert!(connections.enter(many).await.is_some());
    }
}
