//! Traces: the producer's `traceparent` reaches the receiver, and a collector gets the spans in between. In one process
//! with SQLite, and in several processes on servers.

use std::{collections::BTreeSet, time::Duration};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::{Span, span::SpanKind},
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::{Answer, App, Fleet, Receiver, eventually};

const WITHIN: Duration = Duration::from_secs(20);
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PRODUCER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// A collector on loopback.
struct Collector(Receiver);

impl Collector {
    async fn start() -> Self {
        Self(Receiver::start().await)
    }

    fn endpoint(&self) -> String {
        self.0.url("")
    }

    /// Every span so far, with the service it came from.
    fn spans(&self) -> Vec<(String, Span)> {
        let mut spans = Vec::new();
        for arrival in self.0.arrivals("/v1/traces") {
            assert_eq!(arrival.header("content-type"), "application/x-protobuf");
            for resource in ExportTraceServiceRequest::decode(arrival.body).unwrap().resource_spans {
                let service = text(&resource.resource.unwrap().attributes, "service.name");
                let of_resource = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.extend(of_resource.map(|span| (service.clone(), span)));
            }
        }
        spans
    }

    /// Waits for `count` spans of this kind and returns them, the oldest first.
    async fn wait_for(&self, kind: SpanKind, count: usize) -> Vec<Span> {
        let of_kind = || {
            let spans = self.spans().into_iter().map(|(_, span)| span);
            let mut spans: Vec<_> = spans.filter(|span| span.kind == kind as i32).collect();
            spans.sort_by_key(|span| span.start_time_unix_nano);
            spans
        };
        eventually(&format!("{count} spans"), WITHIN, async || of_kind().len() >= count).await;
        let spans = of_kind();
        assert_eq!(spans.len(), count);
        spans
    }
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Any> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    match attribute(attributes, key) {
        Some(Any::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?}"),
    }
}

fn number(attributes: &[KeyValue], key: &str) -> Option<i64> {
    match attribute(attributes, key) {
        Some(Any::IntValue(number)) => Some(*number),
        None => None,
        other => panic!("{key}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The header that names this span.
fn header(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}

async fn post(app: &App, path: &str, body: Value, traceparent: Option<&str>) -> Value {
    let mut request = app.http.post(format!("{}{path}", app.url)).json(&body);
    if let Some(traceparent) = traceparent {
        request = request.header("traceparent", traceparent);
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 202);
    response.json().await.unwrap()
}

fn event() -> Value {
    json!({"type": "traced", "data": {"secret": "of-the-body"}})
}

async fn destination(app: &App, receiver: &Receiver) -> String {
    let url = format!("{}?token=of-the-query", receiver.url("/hooks"));
    let retry = json!({"max_attempts": 5, "base_ms": 50, "cap_ms": 100});
    app.destination(json!({"url": url, "headers": {"x-key": "of-the-header"}, "retry": retry, "breaker": null})).await
}

/// A failed first attempt and a retry each have a span in the producer's trace.
async fn attempts_are_spans_of_the_producers_trace(app: &App, collector: &Collector) {
    let receiver = Receiver::start().await;
    receiver.script("/hooks", [Answer::status(503), Answer::status(204)]);
    let destination = destination(app, &receiver).await;
    let accepted = post(app, "/v1/events", event(), Some(PRODUCER)).await;
    let id = accepted["id"].as_str().unwrap();
    let arrivals = receiver.wait_for("/hooks", 2, WITHIN).await;

    let server = collector.wait_for(SpanKind::Server, 1).await.remove(0);
    assert_eq!((server.name.as_str(), hex(&server.trace_id).as_str()), ("POST /v1/events", TRACE_ID));
    assert_eq!(hex(&server.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(text(&server.attributes, "http.route"), "/v1/events");
    assert_eq!(number(&server.attributes, "http.response.status_code"), Some(202));
    assert_eq!(text(&server.attributes, "weir.event.id"), id);

    let attempts = collector.wait_for(SpanKind::Client, 2).await;
    let sent: Vec<_> = arrivals.iter().map(|arrival| arrival.header("traceparent").to_owned()).collect();
    assert_eq!(sent, attempts.iter().map(header).collect::<Vec<_>>());
    assert_ne!(attempts[0].span_id, attempts[1].span_id);
    for (attempt, (status, resend)) in attempts.iter().zip([(503, None), (204, Some(1))]) {
        assert_eq!((hex(&attempt.trace_id).as_str(), &attempt.parent_span_id), (TRACE_ID, &server.span_id));
        let attributes = &attempt.attributes;
        assert_eq!(number(attributes, "http.response.status_code"), Some(status));
        assert_eq!(number(attributes, "http.request.resend_count"), resend);
        assert_eq!(attribute(attributes, "error.type").is_some(), status == 503);
        assert_eq!(text(attributes, "server.address"), "127.0.0.1");
        assert_eq!(number(attributes, "server.port"), Some(receiver.address.port().into()));
        assert_eq!(text(attributes, "weir.event.id"), id);
        assert_eq!(text(attributes, "weir.destination.id"), destination);
        assert!(attempt.end_time_unix_nano >= attempt.start_time_unix_nano);
    }
    let all = format!("{:?}", collector.spans());
    assert!(!all.contains("of-the-"), "a span contains data that may be secret: {all}");
}

/// An event without a trace context belongs to the trace of its request.
async fn a_request_without_a_trace_starts_one(app: &App, collector: &Collector, receiver: &Receiver) {
    let seen = collector.spans().len();
    let before = receiver.count("/hooks");
    post(app, "/v1/events/batch", json!({"events": [event(), event()]}), None).await;
    let arrivals = receiver.wait_for("/hooks", before + 2, WITHIN).await;
    eventually("three spans", WITHIN, async || collector.spans().len() >= seen + 3).await;
    let spans = collector.spans();
    let server = spans.iter().map(|(_, span)| span).find(|span| span.name == "POST /v1/events/batch").unwrap();
    assert!(server.parent_span_id.is_empty(), "it is the root of the trace");
    assert_eq!(number(&server.attributes, "weir.event.count"), Some(2));
    let sent: BTreeSet<_> = arrivals[before..].iter().map(|arrival| arrival.header("traceparent").to_owned()).collect();
    let made = spans.iter().map(|(_, span)| span).filter(|span| span.parent_span_id == server.span_id);
    assert_eq!(sent, made.map(header).collect());
    assert_eq!(sent.len(), 2);
}

#[tokio::test]
async fn one_process_exports_the_spans_of_a_producers_trace() {
    let (folder, collector) = (tempfile::tempdir().unwrap(), Collector::start().await);
    let app = App::start_with(folder.path(), &[(ENDPOINT, &collector.endpoint())]).await;
    attempts_are_spans_of_the_producers_trace(&app, &collector).await;
    assert!(collector.spans().iter().all(|(service, _)| service == "weir"));
}

#[tokio::test]
async fn roles_export_the_spans_of_a_producers_trace() {
    let (fleet, collector) = (Fleet::new().await, Collector::start().await);
    let endpoint = collector.endpoint();
    let with = |name| [(ENDPOINT, endpoint.as_str()), ("OTEL_SERVICE_NAME", name)];
    let api = fleet.launch_with("api", &with("hooks-api")).await;
    let _scheduler = fleet.launch_with("scheduler", &with("hooks-scheduler")).await;
    let _worker = fleet.launch_with("worker", &with("hooks-worker")).await;
    attempts_are_spans_of_the_producers_trace(&api, &collector).await;
    let spans = collector.spans();
    let services: BTreeSet<_> = spans.iter().map(|(service, span)| (service.as_str(), span.kind)).collect();
    let expected = [("hooks-api", SpanKind::Server as i32), ("hooks-worker", SpanKind::Client as i32)];
    assert_eq!(services, BTreeSet::from(expected));
}

#[tokio::test]
async fn a_request_without_a_header_starts_the_trace_of_its_events() {
    let (folder, collector, receiver) =
        (tempfile::tempdir().unwrap(), Collector::start().await, Receiver::start().await);
    let app = App::start_with(folder.path(), &[(ENDPOINT, &collector.endpoint())]).await;
    destination(&app, &receiver).await;
    a_request_without_a_trace_starts_one(&app, &collector, &receiver).await;
}

#[tokio::test]
async fn a_trace_that_is_not_sampled_is_handed_on_and_not_exported() {
    let (folder, collector, receiver) =
        (tempfile::tempdir().unwrap(), Collector::start().await, Receiver::start().await);
    let app = App::start_with(folder.path(), &[(ENDPOINT, &collector.endpoint())]).await;
    destination(&app, &receiver).await;
    let unsampled = PRODUCER.replace("-01", "-00");
    post(&app, "/v1/events", event(), Some(&unsampled)).await;
    let arrivals = receiver.wait_for("/hooks", 1, WITHIN).await;
    assert_eq!(arrivals[0].header("traceparent"), unsampled);
    assert!(app.terminate().await.success());
    assert!(collector.spans().is_empty(), "an unsampled trace is not exported");
}

#[tokio::test]
async fn queued_spans_are_exported_before_the_process_exits() {
    let (folder, collector, receiver) =
        (tempfile::tempdir().unwrap(), Collector::start().await, Receiver::start().await);
    let app = App::start_with(folder.path(), &[(ENDPOINT, &collector.endpoint())]).await;
    let id = destination(&app, &receiver).await;
    app.event("traced").await;
    app.drained(&id, WITHIN).await;
    assert!(app.terminate().await.success());
    assert_eq!(collector.spans().len(), 2);
}

/// Nothing is exported here. A valid header reaches the receiver unchanged, an invalid one is ignored, and an event
/// without one is sent without one.
async fn the_header_is_handed_on(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/hooks", [Answer::status(503), Answer::status(204)]);
    destination(app, &receiver).await;
    let traceparent = async |count: usize| {
        let arrivals = receiver.wait_for("/hooks", count, WITHIN).await;
        arrivals[count - 1].headers.get("traceparent").map(|value| value.to_str().unwrap().to_owned())
    };
    post(app, "/v1/events", event(), Some(PRODUCER)).await;
    assert_eq!(traceparent(1).await.as_deref(), Some(PRODUCER));
    assert_eq!(traceparent(2).await.as_deref(), Some(PRODUCER), "the retry has it too");
    post(app, "/v1/events", event(), None).await;
    assert_eq!(traceparent(3).await, None);
    post(app, "/v1/events", event(), Some(&PRODUCER.to_uppercase())).await;
    assert_eq!(traceparent(4).await, None);
    post(app, "/v1/events/batch", json!({"events": [event()]}), Some(PRODUCER)).await;
    assert_eq!(traceparent(5).await.as_deref(), Some(PRODUCER));
}

#[tokio::test]
async fn without_export_the_header_is_handed_on_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    the_header_is_handed_on(&App::start(folder.path()).await).await;
}

#[tokio::test]
async fn without_export_roles_hand_on_the_header_unchanged() {
    let fleet = Fleet::new().await;
    the_header_is_handed_on(&fleet.launch("serve").await).await;
}

#[tokio::test]
async fn deliveries_go_on_without_the_collector() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    // No process listens on port 1.
    let app = App::start_with(folder.path(), &[(ENDPOINT, "http://127.0.0.1:1")]).await;
    let id = destination(&app, &receiver).await;
    app.events("traced", 500).await;
    receiver.wait_for("/hooks", 500, WITHIN).await;
    app.drained(&id, WITHIN).await;
    eventually("the loss is counted", WITHIN, async || app.metric("weir_spans_dropped_total").await >= 501.0).await;
    assert!(app.terminate().await.success());
}

#[tokio::test]
async fn a_collector_that_never_answers_costs_spans_and_delays_nothing() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    // The kernel accepts connections, but no program reads from them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let app = App::start_with(folder.path(), &[(ENDPOINT, &endpoint)]).await;
    let id = destination(&app, &receiver).await;
    // More spans than the queue holds.
    app.events("traced", 9_000).await;
    app.drained(&id, WITHIN).await;
    assert_eq!(receiver.count("/hooks"), 9_000);
    eventually("the full queue is counted", WITHIN, async || app.metric("weir_spans_dropped_total").await >= 800.0)
        .await;
    assert!(app.terminate().await.success(), "the process exits although spans are queued");
}

#[tokio::test]
async fn a_malformed_endpoint_is_named_and_nothing_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (name, value) in [(ENDPOINT, "collector:4318"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/v1/traces")] {
        let output = App::command(folder.path()).arg("serve").env(name, value).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(name), "{error}");
    }
}
