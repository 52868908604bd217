//! The receivers of a run: a port for each group, a path for each destination. They keep every arrival with its time.
//! Their behaviour may change at any time.
//!
//! All receivers of a run share one thread with the task that detects stalls, so anything that stops the receivers also
//! stops that task. Where the kernel stamps arrivals, a stall shows that the machine stood still during a send;
//! elsewhere it may also show that a request waited to be read.

mod behaviors;
mod timestamped;
mod trial;

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{self, Handle},
    sync::watch,
};
use weir_core::{EventId, Timestamp};

use crate::{
    clock::{Timeline, now},
    recording::{Answered, Arrival},
    scenario::ReceiverBehavior,
};
use behaviors::{Answer, RateLimiter};
use timestamped::{ArrivalTime, TimestampedStream};
pub(crate) use trial::Trial;

/// The longest delay of this process that does not count as a stall. The judge also allows this much for the network
/// and the kernel.
pub(crate) const SLACK: Duration = Duration::from_millis(5);
const BEAT: Duration = Duration::from_millis(1);

/// The port of one group's destinations.
pub(crate) struct Receivers {
    pub(crate) port: u16,
    behavior: watch::Sender<ReceiverBehavior>,
}

/// The arrivals at all receivers of a run.
pub(crate) struct Arrivals {
    timeline: Timeline,
    kept: Mutex<Vec<Arrival>>,
    /// The numbers of the limit keys, in the order of their first arrivals.
    limit_keys: Mutex<HashMap<String, u32>>,
    successes: AtomicU64,
    stalls: Mutex<Vec<Stall>>,
    thread: Handle,
}

/// A time in which the thread of the receivers did not run, although it should have.
#[derive(Debug, Clone, Copy)]
struct Stall {
    from: Timestamp,
    until: Timestamp,
}

impl Arrivals {
    /// Starts the thread. It ends when this value is dropped.
    pub(crate) fn new(timeline: Timeline) -> anyhow::Result<Arc<Self>> {
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().context("cannot start the receivers")?;
        let arrivals = Arc::new(Self {
            timeline,
            kept: Mutex::default(),
            limit_keys: Mutex::default(),
            successes: AtomicU64::new(0),
            stalls: Mutex::default(),
            thread: runtime.handle().clone(),
        });
        let watched = Arc::downgrade(&arrivals);
        thread::spawn(move || runtime.block_on(watch_for_stalls(watched)));
        Ok(arrivals)
    }

    pub(crate) fn count(&self) -> usize {
        self.kept.lock().len()
    }

    /// Answers of 2xx so far.
    pub(crate) fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }

    /// All arrivals in the order of their times.
    pub(crate) fn all(&self) -> Vec<Arrival> {
        let mut arrivals = self.kept.lock().clone();
        let stalls = self.stalls.lock();
        for arrival in &mut arrivals {
            arrival.stalled = stalled(&stalls, arrival.at);
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }

    /// The limit keys by their numbers.
    pub(crate) fn limit_keys(&self) -> Vec<String> {
        let mut numbered: Vec<_> = self.limit_keys.lock().clone().into_iter().collect();
        numbered.sort_by_key(|(_, number)| *number);
        numbered.into_iter().map(|(key, _)| key).collect()
    }

    fn number_of(&self, limit_key: &str) -> u32 {
        let mut numbers = self.limit_keys.lock();
        if let Some(number) = numbers.get(limit_key) {
            return *number;
        }
        let next = numbers.len() as u32;
        numbers.insert(limit_key.to_owned(), next);
        next
    }

    fn keep(&self, arrival: Arrival) -> usize {
        let mut kept = self.kept.lock();
        kept.push(arrival);
        kept.len() - 1
    }

    fn answered(&self, number: usize, status: u16) {
        let answered = Answered { status, at: self.timeline.now() };
        self.kept.lock()[number].answered = Some(answered);
        if (200..300).contains(&status) {
            self.successes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn watch_for_stalls(watched: Weak<Arrivals>) {
    let Some(timeline) = watched.upgrade().map(|arrivals| arrivals.timeline) else { return };
    let mut from = timeline.now();
    while let Some(arrivals) = watched.upgrade() {
        let until = timeline.now();
        if until.since(from) > SLACK {
            arrivals.stalls.lock().push(Stall { from, until });
        }
        drop(arrivals);
        from = until;
        tokio::time::sleep(BEAT).await;
    }
}

/// How much earlier than `at` an arrival may have been sent: an arrival in a stall or right after it may have been sent
/// when the stall began.
fn stalled(stalls: &[Stall], at: Timestamp) -> Duration {
    let began = stalls.partition_point(|stall| stall.from <= at);
    let recent = stalls[..began].iter().rev().take(8);
    recent
        .filter(|stall| at <= stall.until + stall.until.since(stall.from))
        .map(|stall| at.since(stall.from))
        .max()
        .unwrap_or_default()
}

impl Receivers {
    pub(crate) async fn start(
        host: &str,
        behavior: ReceiverBehavior,
        arrivals: &Arc<Arrivals>,
    ) -> anyhow::Result<Self> {
        Self::listen_as(host, behavior, None, arrivals).await
    }

    /// A receiver of the trials of adaptive rate.
    pub(crate) async fn of_trial(host: &str, trial: Trial, arrivals: &Arc<Arrivals>) -> anyhow::Result<Self> {
        Self::listen_as(host, ReceiverBehavior::Ok, Some(Arc::new(trial)), arrivals).await
    }

    async fn listen_as(
        host: &str,
        behavior: ReceiverBehavior,
        trial: Option<Arc<Trial>>,
        arrivals: &Arc<Arrivals>,
    ) -> anyhow::Result<Self> {
        let at = (host.to_owned(), 0);
        let listener = arrivals.thread.spawn(TcpListener::bind(at)).await??;
        let address = listener.local_addr()?;
        let (sender, behaviors) = watch::channel(behavior);
        arrivals.thread.spawn(listen(listener, address, behaviors, trial, Arc::clone(arrivals)));
        Ok(Self { port: address.port(), behavior: sender })
    }

    pub(crate) fn set_behavior(&self, behavior: ReceiverBehavior) {
        self.behavior.send_replace(behavior);
    }
}

/// Accepts connections, except while the behaviour is to refuse: then the port is closed.
async fn listen(
    listener: TcpListener,
    address: SocketAddr,
    mut behaviors: watch::Receiver<ReceiverBehavior>,
    trial: Option<Arc<Trial>>,
    arrivals: Arc<Arrivals>,
) {
    let mut listener = Some(listener);
    let limiter = Arc::new(RateLimiter::default());
    // Some behaviours change with the time since the start.
    let since = now();
    loop {
        let is_refusing = *behaviors.borrow_and_update() == ReceiverBehavior::Refuse;
        // Dropping the listener closes the port. Afterwards the same port is opened again, which may need several
        // attempts.
        if is_refusing {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
            if listener.is_none() {
                tokio::time::sleep(BEAT).await;
                continue;
            }
        }
        // Without a listener wait only for another behaviour.
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = behaviors.changed() => if changed.is_err() { return },
            accepted = accepted => if let Ok((stream, _)) = accepted {
                let handler = ConnectionHandler {
                    behaviors: behaviors.clone(), trial: trial.clone(), arrivals: Arc::clone(&arrivals),
                    limiter: Arc::clone(&limiter), since,
                };
                tokio::spawn(handler.serve(stream));
            }
        }
    }
}

/// Serves one connection.
#[derive(Clone)]
struct ConnectionHandler {
    behaviors: watch::Receiver<ReceiverBehavior>,
    trial: Option<Arc<Trial>>,
    arrivals: Arc<Arrivals>,
    limiter: Arc<RateLimiter>,
    since: std::time::Instant,
}

impl ConnectionHandler {
    async fn serve(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut behaviors = self.behaviors.clone();
        let Ok(stream) = TimestampedStream::new(stream) else { return };
        let arrival_time = stream.arrival_time();
        let answer = service_fn(move |request| self.clone().answer(request, arrival_time.clone()));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        tokio::select! {
            // A closed port also cuts the open connections.
            biased;
            _ = behaviors.wait_for(|behavior| *behavior == ReceiverBehavior::Refuse) => {}
            // A receiver ignores peers that disconnect.
            _ = connection => {}
        }
    }

    async fn answer(
        self,
        request: Request<Incoming>,
        arrival_time: ArrivalTime,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
        // The send has arrived when its head has, so the time is taken before the body is read.
        let at = arrival_time.at();
        let (head, body) = request.into_parts();
        // The path contains the number of the destination, and the body that of the event.
        let destination = head.uri.path().trim_start_matches('/').parse().ok();
        let id = head.headers.get("webhook-id").and_then(|id| id.to_str().ok()?.parse::<EventId>().ok());
        let body = body.collect().await?.to_bytes();
        let (Some(destination), Some(event)) = (destination, number_in(&body)) else {
            return Ok(Response::builder().status(404).body(Full::default().boxed()).unwrap_or_default());
        };
        let arrivals = &self.arrivals;
        // Keep the arrival before the answer, which may come late or never.
        let at = arrivals.timeline.at(at);
        let limit_key = limit_key_in(&body).map(|key| arrivals.number_of(key));
        let kept = Arrival { destination, event, limit_key, id, at, stalled: Duration::ZERO, answered: None };
        let number = arrivals.keep(kept);
        // Answer as the behaviour says at this moment.
        let behavior = *self.behaviors.borrow();
        let Answer { after, status, retry_after_s, quota, drip } = match &self.trial {
            Some(trial) => trial.answer(at, arrivals.timeline.now()),
            None => {
                let has_room = |per_s| self.limiter.has_room(destination, at, per_s);
                behaviors::answer(behavior, self.since.elapsed(), has_room)
            }
        };
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        let mut response = Response::builder().status(status);
        if let Some(seconds) = retry_after_s {
            response = response.header("retry-after", seconds);
        }
        if let Some((remaining, reset_s)) = quota {
            response = response.header("ratelimit", format!(r#""trial";r={remaining};t={reset_s}"#));
        }
        let body = match drip {
            // This response never ends, so it never counts as answered.
            Some(every) => behaviors::drip(every),
            None => {
                arrivals.answered(number, status);
                Full::default().boxed()
            }
        };
        Ok(response.body(body).unwrap_or_default())
    }
}

/// The number that [`crate::figures::data`] put into an event.
pub(crate) fn number_in(body: &[u8]) -> Option<u64> {
    let digits = after_mark(body)?.iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// The limit key that [`crate::figures::keyed_data`] put behind the number.
fn limit_key_in(body: &[u8]) -> Option<&str> {
    let after = after_mark(body)?;
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let key = after[digits..].strip_prefix(br#","key":""#)?;
    std::str::from_utf8(&key[..key.iter().position(|byte| *byte == b'"')?]).ok()
}

/// What follows where the number begins.
fn after_mark(body: &[u8]) -> Option<&[u8]> {
    const MARK: &[u8] = br#""data":{"n":"#;
    let begin = body.windows(MARK.len()).position(|window| window == MARK)?;
    Some(&body[begin + MARK.len()..])
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;
    use crate::{client::Connection, figures::data};

    async fn post(connection: &mut Connection, number: u64) -> anyhow::Result<Bytes> {
        let body = format!(r#"{{"id":"evt_1","data":{}}}"#, data(number));
        connection.send(Method::POST, "/7", body.into()).await
    }

    #[tokio::test]
    async fn arrivals_are_kept_with_the_status_of_their_answer() {
        let arrivals = Arrivals::new(Timeline::begin()).unwrap();
        let receivers = Receivers::start("127.0.0.1", ReceiverBehavior::Ok, &arrivals).await.unwrap();
        let mut connection = Connection::open(([127, 0, 0, 1], receivers.port).into()).await.unwrap();
        post(&mut connection, 3).await.unwrap();
        receivers.set_behavior(ReceiverBehavior::Status { code: 500 });
        assert!(post(&mut connection, 4).await.is_err());
        let kept: Vec<_> = arrivals
            .all()
            .iter()
            .map(|a| (a.destination, a.event, a.answered.map(|answered| answered.status)))
            .collect();
        assert_eq!(kept, [(7, 3, Some(200)), (7, 4, Some(500))]);
        assert_eq!(arrivals.successes(), 1);
    }

    #[tokio::test]
    async fn a_refusing_receiver_closes_its_port_and_connections_until_its_behavior_changes() {
        let arrivals = Arrivals::new(Timeline::begin()).unwrap();
        let receivers = Receivers::start("127.0.0.1", ReceiverBehavior::Ok, &arrivals).await.unwrap();
        let address = ([127, 0, 0, 1], receivers.port).into();
        let mut connection = Connection::open(address).await.unwrap();
        post(&mut connection, 1).await.unwrap();
        receivers.set_behavior(ReceiverBehavior::Refuse);
        while Connection::open(address).await.is_ok() {
            tokio::time::sleep(BEAT).await;
        }
        assert!(post(&mut connection, 2).await.is_err());
        receivers.set_behavior(ReceiverBehavior::Ok);
        while Connection::open(address).await.is_err() {
            tokio::time::sleep(BEAT).await;
        }
        assert_eq!(arrivals.count(), 1);
    }

    #[test]
    fn the_limit_key_of_an_event_is_read_from_its_data() {
        let body = |data: String| format!(r#"{{"id":"evt_1","data":{data}}}"#);
        let keyed = body(crate::figures::keyed_data(12, "cus-3"));
        assert_eq!((number_in(keyed.as_bytes()), limit_key_in(keyed.as_bytes())), (Some(12), Some("cus-3")));
        assert_eq!(limit_key_in(body(data(12)).as_bytes()), None);
    }

    #[test]
    fn an_arrival_during_or_after_a_stall_may_have_been_sent_when_the_stall_began() {
        let at = Timestamp::from_millis;
        let stalls = [Stall { from: at(100), until: at(120) }];
        let late = [99, 110, 125, 141].map(|read| stalled(&stalls, at(read)).as_millis());
        assert_eq!(late, [0, 10, 25, 0]);
    }
}
