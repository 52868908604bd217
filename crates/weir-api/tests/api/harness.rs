//! A server without a socket. Its queue records its calls; its callers may have keys.

mod callers;
mod queue;
mod reserver;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body};
use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tower::ServiceExt;
use weir_api::{
    ApiState, BodyBudget, DEFAULT_BODY_BUDGET_BYTES, DEFAULT_MAX_EVENT_BYTES, EventTypes, Hosts, Installation, KeyRing,
    LiveOverview, Operations, PublicUrl, QueueDepths, Readiness, SettingKeys, Shedding, TrustedProxies, router,
};
use weir_core::{
    Clock, Timestamp,
    address::AddressPolicy,
    claim::ClaimedDelivery,
    delivery::{Attempt, AttemptDetails, AttemptOutcome, ConnectionDetails},
    event_types,
    id::AttemptId,
    outcome::Verdict,
    shed::Mode,
    stall::StallReport,
};
use weir_store::{AttemptResult, ClaimRequest, ClaimedFlow, SharedStore};
use weir_store_sqlite::SqliteStore;

pub(crate) use self::callers::{FOREIGN, OWN, ROOT};
use self::{queue::RecordingQueue, reserver::ScriptedReserver};

/// 2026-11-21T07:30:00Z
const START: Timestamp = Timestamp::from_secs(1_795_246_200);

/// A server without a socket, with its store, queue and clock.
pub(crate) struct Server {
    pub(crate) router: Router,
    pub(crate) store: SharedStore,
    pub(crate) queue: Arc<RecordingQueue>,
    pub(crate) reserver: Arc<ScriptedReserver>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) readiness: Readiness,
    pub(crate) keys: KeyRing,
    /// Ends open streams, as the end of the process does.
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) shedding: Shedding,
    /// What the watch over stalls found.
    pub(crate) stalls: watch::Sender<Arc<StallReport>>,
    _dir: TempDir,
}

/// The options of a server.
pub(crate) struct Options {
    pub(crate) api_keys: SettingKeys,
    pub(crate) addresses: AddressPolicy,
    pub(crate) hosts: Hosts,
    pub(crate) public_url: Option<PublicUrl>,
    pub(crate) max_event_bytes: usize,
    pub(crate) body_budget_bytes: usize,
    pub(crate) shed: Mode,
    pub(crate) event_types: event_types::Mode,
    pub(crate) proxies: TrustedProxies,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            api_keys: SettingKeys::default(),
            addresses: AddressPolicy::default(),
            hosts: Hosts::default(),
            public_url: None,
            max_event_bytes: DEFAULT_MAX_EVENT_BYTES,
            body_budget_bytes: DEFAULT_BODY_BUDGET_BYTES,
            shed: Mode::On,
            event_types: event_types::Mode::Open,
            proxies: TrustedProxies::default(),
        }
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        let dir = TempDir::new().unwrap();
        let store: SharedStore = Arc::new(SqliteStore::open(&dir.path().join("weir.db")).await.unwrap());
        let queue = Arc::new(RecordingQueue::default());
        let reserver = Arc::new(ScriptedReserver::default());
        let clock = Arc::new(TestClock(AtomicI64::new(START.as_nanos())));
        let readiness = Readiness::starting();
        readiness.set_ready();
        let (stop, stops) = watch::channel(false);
        let (stalls, found) = watch::channel(Arc::default());
        let keys = KeyRing::new(options.api_keys);
        keys.refresh(&*store).await.unwrap();
        let shedding = Shedding::new(options.shed, false, Arc::<TestClock>::clone(&clock));
        let router = router(ApiState {
            spans: None,
            store: Arc::clone(&store),
            queue: Arc::<RecordingQueue>::clone(&queue),
            reserver: Arc::<ScriptedReserver>::clone(&reserver),
            clock: Arc::<TestClock>::clone(&clock),
            keys: keys.clone(),
            addresses: options.addresses,
            hosts: options.hosts,
            public_url: options.public_url,
            proxies: options.proxies,
            live: LiveOverview::new(
                Arc::clone(&store),
                Arc::<RecordingQueue>::clone(&queue),
                Arc::<TestClock>::clone(&clock),
                found,
                stops,
            ),
            max_event_bytes: options.max_event_bytes,
            shedding: shedding.clone(),
            event_types: EventTypes::new(options.event_types),
            bodies: BodyBudget::new(options.body_budget_bytes),
            installation: Installation {
                store: "sqlite",
                queue: "memory",
                queue_depths: Arc::new(|| {
                    let depths = QueueDepths { jobs: 2, ready: 1, oldest_waited_ms: 40, queued: 3, in_flight: 4 };
                    Box::pin(std::future::ready(Some(depths)))
                }),
                free_bytes: Arc::new(|| Some(7_000_000)),
            },
            operations: Operations {
                store: Arc::clone(&store),
                queue: None,
                readiness: readiness.clone(),
                render_metrics: Some(Arc::new(|| {
                    Box::pin(std::future::ready("# HELP weir_up Whether it runs.\nweir_up 1\n".to_owned()))
                })),
            },
        });
        Self { router, store, queue, reserver, clock, readiness, keys, shedding, stop, stalls, _dir: dir }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        reply(self.router.clone(), request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send(Request::delete(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl ToString) -> Reply {
        self.send(json_request("POST", path, body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: impl ToString) -> Reply {
        self.send(json_request("PATCH", path, body)).await
    }

    /// Creates a destination and returns its id.
    pub(crate) async fn destination(&self, body: Value) -> String {
        self.post("/v1/destinations", body).await.expect(StatusCode::CREATED)["id"].as_str().unwrap().to_owned()
    }

    /// Sends an event and returns its id.
    pub(crate) async fn event(&self, event_type: &str) -> String {
        let accepted =
            self.post("/v1/events", json!({"type": event_type, "data": 1})).await.expect(StatusCode::ACCEPTED);
        accepted["id"].as_str().unwrap().to_owned()
    }

    /// The number of rows in a list.
    pub(crate) async fn count(&self, path: &str) -> usize {
        self.get(path).await.expect(StatusCode::OK)["data"].as_array().unwrap().len()
    }

    /// Asserts that nothing was stored and no destination was woken.
    pub(crate) async fn assert_untouched(&self) {
        for list in ["/v1/destinations", "/v1/events", "/v1/deliveries"] {
            assert_eq!(self.count(list).await, 0, "{list}");
        }
        assert!(self.queue.woken().is_empty() && self.queue.edited().is_empty());
    }

    /// Claims the due deliveries, as the scheduler does.
    pub(crate) async fn claim(&self, destination: &str) -> Vec<ClaimedDelivery> {
        let request = self.claim_request(destination, 100);
        self.store.claim(vec![request], self.clock.now()).await.unwrap().pop().unwrap().deliveries
    }

    pub(crate) fn claim_request(&self, destination: &str, limit: u32) -> ClaimRequest {
        ClaimRequest {
            flow: ClaimedFlow::All,
            destination_id: destination.parse().unwrap(),
            limit,
            expires_at: self.clock.now() + Duration::from_secs(60),
            durable: false,
        }
    }

    /// Records an attempt that is sent now, as the worker does.
    pub(crate) async fn settle(&self, delivery: &ClaimedDelivery, status: u16, verdict: Verdict) {
        self.settle_after(delivery, status, verdict, 12).await;
    }

    /// The same with the time that the answer took.
    pub(crate) async fn settle_after(
        &self,
        delivery: &ClaimedDelivery,
        status: u16,
        verdict: Verdict,
        duration_ms: u32,
    ) {
        let now = self.clock.now();
        let attempt = Attempt {
            id: AttemptId::new(now, delivery.attempts.into()),
            delivery_id: delivery.claim.delivery_id,
            number: delivery.attempts + 1,
            sent_at: Some(now),
            duration_ms,
            outcome: if status == 200 { AttemptOutcome::Delivered } else { AttemptOutcome::Retryable },
            status_code: Some(status),
            error: (status != 200).then(|| format!("answered {status}")),
            failure: None,
            response_body: Some("ok".to_owned()),
            details: AttemptDetails {
                signed_at: Some(Timestamp::from_secs(now.as_secs())),
                connection: Some(ConnectionDetails {
                    remote_address: ([203, 0, 113, 7], 443).into(),
                    connect_ms: Some(3),
                    tls_ms: None,
                }),
                response_headers: vec![("server".to_owned(), "nginx".to_owned())],
            },
        };
        let result = AttemptResult {
            claim: delivery.claim,
            attempt,
            verdict,
            is_counted: true,
            now: now + Duration::from_millis(duration_ms.into()),
        };
        self.store.settle(vec![Arc::new(result)]).await.unwrap();
    }
}

/// Sends a request and returns the reply. A request without a `Host` header goes to `localhost`.
pub(crate) async fn reply(router: Router, mut request: Request<Body>) -> Reply {
    request.headers_mut().entry(header::HOST).or_insert(HeaderValue::from_static("localhost"));
    let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
    let is_stream = parts.headers.get(header::CONTENT_TYPE).is_some_and(|value| value == "text/event-stream");
    // A stream does not end: its first event.
    let body = match is_stream {
        true => body.into_data_stream().next().await.unwrap().unwrap(),
        false => body.collect().await.unwrap().to_bytes(),
    };
    Reply { status: parts.status, headers: parts.headers, body }
}

pub(crate) fn json_request(method: &str, path: &str, body: impl ToString) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

/// The reply to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The JSON of a reply with this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: StatusCode) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), "application/json");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The document of a refusal with this status, which must be a complete problem.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], status);
        for member in ["type", "title", "detail"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member} of {problem}");
        }
        problem
    }

    /// The pointers of a 422.
    #[track_caller]
    pub(crate) fn pointers(&self) -> Vec<String> {
        let problem = self.problem(422);
        let errors = problem["errors"].as_array().unwrap();
        errors.iter().map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
    }
}

/// A clock that advances by one microsecond with each reading, and by [`TestClock::advance`].
pub(crate) struct TestClock(AtomicI64);

impl TestClock {
    pub(crate) fn advance(&self, duration: Duration) {
        self.0.fetch_add(duration.as_nanos() as i64, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.fetch_add(1_000, Ordering::Relaxed))
    }

    fn wall(&self) -> Timestamp {
        self.now()
    }
}
