//! Clients take turns on the threads: the connections of one client share a few tasks, its lanes.
//!
//! A task waits behind all that are ready before it. With a task for each connection, a request of a quiet client, and a
//! health check, would wait behind a step of each of the thousand connections of another client: the commit of their
//! events makes them all ready at one time. With lanes it waits behind one turn of each client that has something to do.
//!
//! ```text
//!   accept ──▶ lane of the address ──the API knows the key──▶ lane of the key
//!                    │ a turn: at most STEPS of the connections that are ready, in their order; then other tasks
//! ```

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use weir_api::LastSender;
use weir_core::shed::ClientId;

/// The connections that advance in one turn. A step of a request takes tens of microseconds, a change of the task less
/// than one.
const STEPS: usize = 4;

/// Who takes turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Whose {
    /// The connections of an address whose requests have told no key.
    Address(IpAddr),
    Client(ClientId),
}

/// The lanes of a listener.
pub(super) struct Lanes {
    runtime: Handle,
    /// The lanes of each client: one for each thread, so that a client that is alone can use all threads.
    of_each: usize,
    accepted: AtomicUsize,
    open: Mutex<HashMap<(Whose, usize), Arc<Lane>>>,
}

struct Lane {
    /// The connections that have something to do.
    ready: Mutex<VecDeque<Arc<Connection>>>,
    /// The task of the lane.
    task: AtomicWaker,
    /// Only [`Lanes::enter`] raises it, while it holds the lock of all lanes.
    connections: AtomicUsize,
}

struct Connection {
    number: usize,
    sender: LastSender,
    /// `None` once the connection has ended.
    place: Mutex<Option<Place>>,
    /// `None` once it has ended. Locked during a step: in the moment of a change, two lanes may have the connection.
    serving: Mutex<Option<Serving>>,
    /// Whether it is in the list of a lane.
    is_ready: AtomicBool,
}

struct Place {
    lane: Arc<Lane>,
    whose: Whose,
}

type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Wake for Connection {
    fn wake(self: Arc<Self>) {
        if self.is_ready.swap(true, Ordering::AcqRel) {
            return;
        }
        // Locked until it is in the list, so that a lane which a connection has left gets it no more.
        let place = self.place.lock();
        if let Some(Place { lane, .. }) = &*place {
            lane.ready.lock().push_back(Arc::clone(&self));
            lane.task.wake();
        }
    }
}

impl Drop for Connection {
    /// Nobody can wake it any more.
    fn drop(&mut self) {
        if let Some(Place { lane, .. }) = self.place.get_mut().take() {
            lane.leave();
        }
    }
}

impl Lanes {
    /// On the threads of the current runtime.
    pub(super) fn new() -> Arc<Self> {
        let runtime = Handle::current();
        let of_each = runtime.metrics().num_workers();
        Arc::new(Self { runtime, of_each, accepted: AtomicUsize::new(0), open: Mutex::default() })
    }

    /// Serves a connection. `sender`: where the API tells who has sent the last request on it.
    pub(super) fn spawn(
        self: &Arc<Self>,
        address: IpAddr,
        sender: LastSender,
        serving: impl Future<Output = ()> + Send + 'static,
    ) {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        let whose = Whose::Address(address);
        let lane = self.enter(whose, number);
        let (place, serving) =
            (Mutex::new(Some(Place { lane, whose })), Mutex::new(Some(Box::pin(serving) as Serving)));
        Arc::new(Connection { number, sender, place, serving, is_ready: AtomicBool::new(false) }).wake();
    }

    /// The lane of a client for this connection, which counts there from now on.
    fn enter(self: &Arc<Self>, whose: Whose, number: usize) -> Arc<Lane> {
        let key = (whose, number % self.of_each);
        let mut open = self.open.lock();
        let lane = open.entry(key).or_insert_with(|| {
            let lane =
                Arc::new(Lane { ready: Mutex::default(), task: AtomicWaker::new(), connections: AtomicUsize::new(0) });
            self.runtime.spawn(Turns { lanes: Arc::clone(self), lane: Arc::clone(&lane), key });
            lane
        });
        lane.connections.fetch_add(1, Ordering::Relaxed);
        Arc::clone(lane)
    }

    /// A step of a connection.
    fn advance(self: &Arc<Self>, connection: &Arc<Connection>) {
        // Before the step, so that what happens during it leads to another one. A swap, so that the step sees what happened before.
        connection.is_ready.swap(false, Ordering::AcqRel);
        let ended = {
            let mut slot = connection.serving.lock();
            let Some(serving) = slot.as_mut() else { return };
            let waker = Waker::from(Arc::clone(connection));
            // A panic ends this connection only, as in a task of its own.
            let step = catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(&mut Context::from_waker(&waker))));
            if matches!(step, Ok(Poll::Pending)) { None } else { slot.take() }
        };
        let mut place = connection.place.lock();
        let left = if ended.is_some() {
            place.take()
        } else {
            let client = connection.sender.get().map(Whose::Client);
            let whose = client.filter(|client| place.as_ref().is_some_and(|place| place.whose != *client));
            whose.and_then(|whose| place.replace(Place { lane: self.enter(whose, connection.number), whose }))
        };
        drop(place);
        if let Some(Place { lane, .. }) = left {
            lane.leave();
        }
    }
}

impl Lane {
    fn leave(&self) {
        // The task of an empty lane ends.
        if self.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.task.wake();
        }
    }
}

/// The task of a lane. It ends when the last connection has left.
struct Turns {
    lanes: Arc<Lanes>,
    lane: Arc<Lane>,
    key: (Whose, usize),
}

impl Future for Turns {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { lanes, lane, key } = &*self;
        lane.task.register(context.waker());
        for _ in 0..STEPS {
            let next = lane.ready.lock().pop_front();
            let Some(connection) = next else { break };
            lanes.advance(&connection);
        }
        if !lane.ready.lock().is_empty() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if lane.connections.load(Ordering::Acquire) == 0 {
            let mut open = lanes.open.lock();
            // Nothing enters while the lock is held. The last one may have left a wake.
            if lane.connections.load(Ordering::Acquire) == 0 && lane.ready.lock().is_empty() {
                open.remove(key);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::Ipv4Addr};

    use tokio::{
        sync::{mpsc, oneshot, watch},
        task::yield_now,
    };

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// What happens on the connections, in its order.
    type Log = Arc<Mutex<Vec<&'static str>>>;

    /// A connection that tells its key, waits for `start`, and takes a step.
    fn connect(lanes: &Arc<Lanes>, key: &'static str, start: &watch::Sender<bool>, log: &Log) {
        let (sender, mut start, log) = (LastSender::default(), start.subscribe(), Arc::clone(log));
        lanes.spawn(ADDRESS, sender.clone(), async move {
            sender.set(ClientId::of("key", key));
            start.wait_for(|start| *start).await.unwrap();
            log.lock().push(key);
        });
    }

    /// On the one thread of a test: everybody else has done what there is to do.
    async fn until(done: impl Fn() -> bool) {
        while !done() {
            yield_now().await;
        }
    }

    fn open(lanes: &Lanes) -> Vec<Whose> {
        lanes.open.lock().keys().map(|(whose, _)| *whose).collect()
    }

    #[tokio::test]
    async fn a_quiet_client_waits_for_a_turn_of_a_loud_one_and_not_for_all_its_connections() {
        let (lanes, start, log) = (Lanes::new(), watch::Sender::new(false), Log::default());
        for key in std::iter::repeat_n("loud", 200).chain(["quiet"]) {
            connect(&lanes, key, &start, &log);
        }
        // The lane of the address is empty when all have told their keys.
        until(|| open(&lanes).len() == 2 && !open(&lanes).contains(&Whose::Address(ADDRESS))).await;
        start.send_replace(true);
        until(|| open(&lanes).is_empty()).await;
        let log = log.lock();
        assert_eq!(log.len(), 201);
        let before = log.iter().position(|key| *key == "quiet").unwrap();
        assert!(before <= STEPS, "{before} steps of the loud client came first");
    }

    #[tokio::test]
    async fn a_connection_that_panics_or_ends_leaves_the_others_alone() {
        let (lanes, start, log) = (Lanes::new(), watch::Sender::new(false), Log::default());
        lanes.spawn(ADDRESS, LastSender::default(), async { panic!("a fault of a handler") });
        lanes.spawn(ADDRESS, LastSender::default(), async {});
        // Nobody can wake it.
        lanes.spawn(ADDRESS, LastSender::default(), pending());
        connect(&lanes, "other", &start, &log);
        start.send_replace(true);
        until(|| !log.lock().is_empty()).await;
        until(|| open(&lanes).is_empty()).await;
    }

    #[tokio::test]
    async fn a_wake_during_a_step_leads_to_another_step() {
        let (lanes, log) = (Lanes::new(), Log::default());
        let of = Arc::clone(&log);
        lanes.spawn(ADDRESS, LastSender::default(), async move {
            for _ in 0..3 * STEPS {
                yield_now().await;
                of.lock().push("step");
            }
        });
        until(|| open(&lanes).is_empty()).await;
        assert_eq!(log.lock().len(), 3 * STEPS);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_connection_that_changes_its_key_with_each_request_loses_no_wake() {
        const REQUESTS: usize = 500;
        let (lanes, keys) = (Lanes::new(), ["one", "two", "three"]);
        let (served, mut all_served) = mpsc::channel::<()>(1);
        for connection in 0..16 {
            // The other end answers from another task, as a store does.
            let (ask, mut asked) = mpsc::channel::<oneshot::Sender<()>>(1);
            tokio::spawn(async move {
                while let Some(asked) = asked.recv().await {
                    asked.send(()).unwrap();
                }
            });
            let (sender, served) = (LastSender::default(), served.clone());
            lanes.spawn(ADDRESS, sender.clone(), async move {
                for request in 0..REQUESTS {
                    sender.set(ClientId::of("key", keys[(connection + request) % keys.len()]));
                    let (answer, answered) = oneshot::channel();
                    ask.send(answer).await.unwrap();
                    answered.await.unwrap();
                }
                drop(served);
            });
        }
        drop(served);
        assert_eq!(all_served.recv().await, None);
        until(|| open(&lanes).is_empty()).await;
    }
}
