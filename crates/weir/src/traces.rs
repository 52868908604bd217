//! Traces, exported over OTLP if an endpoint is configured. Without an endpoint no [`Traces`] exist.
//!
//! The API and the worker report the begin and the end of each request and attempt. The ids of a span are created at
//! its begin, because the request to the receiver contains them. The span itself is built at its end and passed to the
//! SDK's batch processor, which exports it on its own thread.

mod config;
mod export;

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use weir_api::{RequestSpan, RequestSpans};
use weir_core::{Timestamp, TraceParent};
use weir_worker::{AttemptSpan, AttemptSpans};

use config::Sampling;
pub(crate) use config::TraceSettings;
use export::Export;

/// How long the export of queued spans may take on shutdown.
const FLUSH: Duration = Duration::from_secs(5);

/// Records and exports spans.
pub(crate) struct Traces {
    sampling: Sampling,
    export: Export,
}

impl Traces {
    /// Starts the export. Call it on the runtime that sends the requests to the collector.
    pub(crate) fn start(settings: TraceSettings) -> anyhow::Result<Arc<Self>> {
        let TraceSettings { endpoint, service_is_named, sampling } = settings;
        Ok(Arc::new(Self { sampling, export: Export::start(&endpoint, service_is_named)? }))
    }

    /// Exports the queued spans and stops, after at most [`FLUSH`].
    pub(crate) async fn stop(self: Arc<Self>) {
        // The SDK blocks the thread while it waits.
        let stopped = tokio::task::spawn_blocking(move || self.export.stop(FLUSH)).await;
        if let Ok(Err(error)) = stopped {
            tracing::warn!(%error, "some spans were not exported before the end of the process");
        }
    }

    /// The context of a new span, and whether the span is recorded.
    fn begin_span(&self, parent: Option<TraceParent>, name: &str, kind: &SpanKind) -> Option<(TraceParent, bool)> {
        let trace_id = parent.map_or_else(rand::random, |parent| parent.trace_id());
        let is_recorded = self.sampling.records(parent, trace_id, name, kind);
        let span_id = rand::random();
        let context = match parent {
            Some(parent) => parent.child(span_id, is_recorded),
            None => TraceParent::new(trace_id, span_id, is_recorded),
        };
        context.map(|context| (context, is_recorded))
    }

    fn record(
        &self,
        (context, parent): (TraceParent, Option<TraceParent>),
        (kind, name): (SpanKind, Cow<'static, str>),
        (start, end): (Timestamp, Timestamp),
        attributes: Vec<KeyValue>,
        failed: bool,
    ) {
        // Convert ids and times to the types of the SDK.
        let flags = if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        let (trace_id, span_id) = (TraceId::from_bytes(context.trace_id()), SpanId::from_bytes(context.span_id()));
        self.export.queue(SpanData {
            span_context: SpanContext::new(trace_id, span_id, flags, false, TraceState::NONE),
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.span_id())),
            parent_span_is_remote: parent.is_some(),
            span_kind: kind,
            name,
            start_time: wall(start),
            end_time: wall(end),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            // OpenTelemetry leaves the status of a success unset.
            status: if failed { Status::error("") } else { Status::Unset },
            instrumentation_scope: InstrumentationScope::builder("weir")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        });
    }
}

impl RequestSpans for Traces {
    fn begin(&self, parent: Option<TraceParent>) -> Option<weir_api::StartedSpan> {
        let (context, is_recorded) = self.begin_span(parent, "POST", &SpanKind::Server)?;
        // A span that is not recorded cannot be a parent.
        let context = if is_recorded { context } else { parent.unwrap_or(context) };
        Some(weir_api::StartedSpan { context, is_recorded })
    }

    fn end(&self, span: RequestSpan) {
        let RequestSpan { context, parent, route, began_at, ended_at, status, event_count, event_id } = span;
        let mut attributes = vec![
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new("http.route", route),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
            KeyValue::new("weir.event.count", event_count as i64),
        ];
        attributes.extend(event_id.map(|id| KeyValue::new("weir.event.id", id.to_string())));
        let failed = status.is_server_error();
        if failed {
            attributes.push(KeyValue::new("error.type", status.as_str().to_owned()));
        }
        let name = Cow::Owned(format!("POST {route}"));
        self.record((context, parent), (SpanKind::Server, name), (began_at, ended_at), attributes, failed);
    }
}

impl AttemptSpans for Traces {
    fn begin(&self, parent: Option<TraceParent>) -> Option<weir_worker::StartedSpan> {
        let (context, is_recorded) = self.begin_span(parent, "POST", &SpanKind::Client)?;
        is_recorded.then_some(weir_worker::StartedSpan { context, parent })
    }

    fn end(&self, attempt: AttemptSpan<'_>) {
        let AttemptSpan { span, event_id, claim, number, sent_at, ended_at, url, status_code, failure } = attempt;
        let mut attributes = Vec::with_capacity(9);
        attributes.push(KeyValue::new("http.request.method", "POST"));
        attributes.push(KeyValue::new("server.address", url.host_str().unwrap_or_default().to_owned()));
        attributes.extend(url.port_or_known_default().map(|port| KeyValue::new("server.port", i64::from(port))));
        attributes.extend(status_code.map(|code| KeyValue::new("http.response.status_code", i64::from(code))));
        if number > 1 {
            attributes.push(KeyValue::new("http.request.resend_count", i64::from(number) - 1));
        }
        let refused = status_code.filter(|code| *code >= 400).map(|code| code.to_string());
        let error = failure.map(|failure| failure.as_str().to_owned()).or(refused);
        let failed = error.is_some();
        attributes.extend(error.map(|error| KeyValue::new("error.type", error)));
        attributes.push(KeyValue::new("weir.event.id", event_id.to_string()));
        attributes.push(KeyValue::new("weir.delivery.id", claim.delivery_id.to_string()));
        attributes.push(KeyValue::new("weir.destination.id", claim.destination_id.to_string()));
        let kind = (SpanKind::Client, Cow::Borrowed("POST"));
        self.record((span.context, span.parent), kind, (sent_at, ended_at), attributes, failed);
    }
}

fn wall(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(at.as_nanos().try_into().unwrap_or_default())
}
