//! Queues for tests, and servers for tests that need their own.

use std::{
    ffi::OsString,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tempfile::TempDir;
use weir_core::{
    Clock as _, DeliveryId, DestinationId, EventId, Limiter, Period, RateLimit, RateLimits, Timestamp,
    adaptive::{AdaptiveRate, Settings},
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    plan::NextRun,
};
use weir_queue::{
    HandedBack, JobLease, Permit, PermitId, Permits as _, Publication, Published, QueueResult, Schedule as _, Settled,
    SlotAnswer, SlotRequest, Terms, Wake, conformance::Subject,
};
use weir_queue_redis::{RedisConfig, RedisQueue, Topology};
use weir_test_support::{HeldPort, ServerClock};

/// How much of a slot the connection to Redis may cost on a busy machine.
const PRECISION: Duration = Duration::from_millis(10);

pub(crate) fn shared_config() -> RedisConfig {
    with_own_keys(RedisConfig::new(Topology::Single(provided("WEIR_TEST_REDIS_URL"))))
}

pub(crate) fn cluster_config() -> RedisConfig {
    let urls = provided("WEIR_TEST_REDIS_CLUSTER_URL").split(',').map(str::to_owned).collect();
    with_own_keys(RedisConfig::new(Topology::Cluster(urls)))
}

fn provided(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("these tests need a server: run them with `cargo xtask test`, which provides it, or set {variable}")
    })
}

/// Separate keys, because tests and test runs share a server at the same time.
fn with_own_keys(config: RedisConfig) -> RedisConfig {
    RedisConfig { prefix: format!("test-{:016x}", rand::random::<u64>()), ..config }
}

pub(crate) async fn open(config: RedisConfig) -> RedisQueue {
    RedisQueue::open(config).await.unwrap()
}

pub(crate) fn subject_of(queue: RedisQueue) -> Subject {
    let clock = queue.clock();
    Subject::new(Arc::new(queue), clock, PRECISION)
}

/// A redis-server of one test, which may be killed.
pub(crate) struct Server {
    process: Child,
    /// Removed when the server is dropped.
    _directory: TempDir,
    port: HeldPort,
    arguments: Vec<String>,
    environment: Vec<(&'static str, OsString)>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_with(directory, |port| vec!["--port".to_owned(), port.to_string()]).await
    }

    /// A server whose clock the test sets with libfaketime.
    pub(crate) async fn start_with_clock() -> (Self, ServerClock) {
        let clock = ServerClock::new().unwrap();
        let environment = clock.environment();
        let port = |port: u16| vec!["--port".to_owned(), port.to_string()];
        (Self::start_in(tempfile::tempdir().unwrap(), port, environment).await, clock)
    }

    /// `arguments` must make the server listen on the given port.
    pub(crate) async fn start_with(directory: TempDir, arguments: impl FnOnce(u16) -> Vec<String>) -> Self {
        Self::start_in(directory, arguments, Vec::new()).await
    }

    async fn start_in(
        directory: TempDir,
        arguments: impl FnOnce(u16) -> Vec<String>,
        environment: Vec<(&'static str, OsString)>,
    ) -> Self {
        let port = HeldPort::hold().unwrap();
        let mut arguments = arguments(port.number());
        // No snapshots except those that the test requests.
        arguments.extend(["--save".to_owned(), String::new(), "--dir".to_owned()]);
        arguments.push(directory.path().display().to_string());
        let process = run(&arguments, &environment);
        let server = Self { process, _directory: directory, port, arguments, environment };
        server.listening().await;
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    pub(crate) fn config(&self) -> RedisConfig {
        RedisConfig::new(Topology::Single(self.url()))
    }

    pub(crate) async fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await.unwrap()
    }

    /// Kills the server with SIGKILL. No process listens at its port afterwards.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Kills the server with SIGKILL and starts a new process, from the snapshot if there is one.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// Starts a new process after a kill.
    pub(crate) async fn start_again(&mut self) {
        self.process = run(&self.arguments, &self.environment);
        self.listening().await;
    }

    async fn listening(&self) {
        eventually("the server listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", self.port())).await.is_ok()
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(arguments: &[String], environment: &[(&'static str, OsString)]) -> Child {
    Command::new("redis-server")
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server 7.0 or later must be installed for these tests")
}

/// Polls for a condition in another process, which sends no signal.
pub(crate) async fn eventually(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waited).await.unwrap_or_else(|_| panic!("timed out: {condition}"));
}

pub(crate) fn destination(number: u64) -> DestinationId {
    DestinationId::new(Timestamp::from_secs(1), u128::from(number))
}

pub(crate) fn per_second(limit: u32) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect()).unwrap()
}

pub(crate) fn delivery(queue: &RedisQueue, to: DestinationId, number: u8, expires_in: Duration) -> ClaimedDelivery {
    let now = queue.clock().now();
    ClaimedDelivery {
        flow_id: to,
        claim: Claim { delivery_id: DeliveryId::from_bytes([number; 16]), destination_id: to, epoch: 1 },
        event_id: EventId::from_bytes([number; 16]),
        event_created_at: now,
        attempts: 0,
        attempts_before: 0,
        is_replay: false,
        cost: 1,
        body: ClaimedBody::Inline(EventBody::stored(Bytes::from_static(b"{}"), 0)),
        expires_at: now + expires_in,
        destination: None,
    }
}

pub(crate) async fn wake(queue: &RedisQueue, id: DestinationId) -> QueueResult<()> {
    queue.wake(&[Wake { destination_id: id, due: queue.clock().now() }]).await
}

/// The lease of a job that is due.
pub(crate) async fn claim(queue: &RedisQueue) -> JobLease {
    let claimed = tokio::time::timeout(Duration::from_secs(5), queue.claim_due(1, Duration::from_secs(4))).await;
    claimed.expect("a job is due").unwrap().leases.remove(0)
}

/// A run that publishes `count` deliveries under a limit of ten a second.
pub(crate) fn publication(queue: &RedisQueue, lease: JobLease, count: u8, next: NextRun) -> Publication {
    let terms = terms(per_second(10));
    let recovered = lease.cursors.is_none().then(|| Limiter::new(&terms.limits));
    let to = lease.destination_id;
    let deliveries = (0..count).map(|number| delivery(queue, to, number, Duration::from_secs(30))).collect();
    Publication { lease, terms: Some(terms), recovered, groups: Vec::new(), pace: None, deliveries, next }
}

/// Wakes destination 1, runs its job once, and takes its permits.
pub(crate) async fn permits(queue: &RedisQueue, count: u8) -> Vec<Permit> {
    permits_at(queue, count, None).await
}

/// The same at a pace, if there is one.
pub(crate) async fn permits_at(queue: &RedisQueue, count: u8, pace: Option<AdaptiveRate>) -> Vec<Permit> {
    wake(queue, destination(1)).await.unwrap();
    let lease = claim(queue).await;
    let terms = Some(Terms { is_adaptive: pace.is_some(), ..terms(per_second(10)) });
    let publication =
        Publication { terms, pace: pace.map(Box::new), ..publication(queue, lease, count, NextRun::Stop) };
    let published = queue.publish(vec![publication]).await.unwrap();
    assert!(matches!(published[..], [Published::Done]), "{published:?}");
    take(queue, usize::from(count)).await
}

pub(crate) async fn take(queue: &RedisQueue, count: usize) -> Vec<Permit> {
    let mut permits = Vec::new();
    while permits.len() < count {
        let more = tokio::time::timeout(Duration::from_secs(5), queue.take(count - permits.len())).await;
        permits.extend(more.expect("permits are published").unwrap());
    }
    permits
}

/// A pace of so many a second.
pub(crate) fn pace(queue: &RedisQueue, per_s: f64) -> AdaptiveRate {
    let settings = Settings { max_per_s: Some(per_s), ..Settings::default() };
    AdaptiveRate::new(settings, 64, Some(per_s), queue.clock().now())
}

/// These permits as settled, without an answer.
pub(crate) fn settled(ids: &[PermitId]) -> Vec<Settled> {
    ids.iter().map(|&id| id.into()).collect()
}

/// The terms of a destination that was never edited.
pub(crate) fn terms(limits: RateLimits) -> Terms {
    let [version, held_until, released_at] = [Timestamp::MIN; 3];
    let (group, weight) = (None, 1);
    Terms {
        of_keys: false,
        outer: None,
        version,
        limits,
        max_in_flight: 64,
        suspended: false,
        group,
        weight,
        is_adaptive: false,
        held_until,
        released_at,
        until: None,
    }
}

pub(crate) async fn ask_for_slot(queue: &RedisQueue, id: PermitId) -> SlotAnswer {
    queue.take_slot(SlotRequest::new(id)).await.unwrap()
}

pub(crate) async fn hand_back(queue: &RedisQueue, permits: &[Permit]) {
    let permits: Vec<_> = permits.iter().map(|permit| HandedBack { id: permit.id, crowded: false }).collect();
    queue.hand_back(&permits).await.unwrap();
}
