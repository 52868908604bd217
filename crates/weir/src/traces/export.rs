//! The export to the collector: a bounded queue, a thread of the SDK that sends batches, and the HTTP client of this
//! process. An unreachable or slow collector causes lost spans, which are counted, and no other harm.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use metrics::{counter, describe_counter};
use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor as _},
};
use tokio::runtime::Handle;
use url::Url;

use crate::exit::Misuse;

const EXPORTED: &str = "weir_spans_exported_total";
const DROPPED: &str = "weir_spans_dropped_total";
/// The maximum number of spans that wait or are being sent. The queue of the SDK has the same size, so the SDK never
/// drops a span itself.
const MAX_PENDING: usize = 8_192;
const BATCH: usize = 512;
/// How long the collector may take for a batch.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long spans wait to be sent in a batch.
const DELAY: Duration = Duration::from_secs(1);

/// Queues spans for export, without blocking.
pub(super) struct Export {
    processor: BatchSpanProcessor,
    pending: Arc<AtomicUsize>,
}

impl Export {
    pub(super) fn start(endpoint: &Url, service_is_named: bool) -> anyhow::Result<Self> {
        // Export both counters from the start, so that the first lost span shows as an increase.
        describe_counter!(EXPORTED, "Spans that the trace collector accepted");
        describe_counter!(
            DROPPED,
            "Spans lost, by reason: the queue was full, or the export failed; check the trace collector"
        );
        counter!(EXPORTED).increment(0);
        counter!(DROPPED, "reason" => "queue_full").increment(0);
        counter!(DROPPED, "reason" => "export_failed").increment(0);

        // The exporter sends through this client and this runtime, because the thread of the SDK has no runtime.
        let redirects = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().timeout(TIMEOUT).redirect(redirects).build();
        let client = Client { http: http.context("no HTTP client for traces")?, runtime: Handle::current() };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(endpoint.as_str())
            .with_timeout(TIMEOUT)
            .with_http_client(client)
            .build()
            .map_err(|error| Misuse(format!("traces cannot be exported: {error}")))?;

        // The wrapper counts what was exported or lost. It also lowers `pending`, which bounds the spans in memory.
        let pending = Arc::new(AtomicUsize::new(0));
        let counting = CountingExporter { exporter, pending: pending.clone(), failing: AtomicBool::new(false) };
        // The SDK sends a batch each second, or earlier if one is full.
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_PENDING)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(DELAY)
            .build();
        let mut processor = BatchSpanProcessor::new(counting, batches);
        processor.set_resource(&resource(service_is_named));
        Ok(Self { processor, pending })
    }

    pub(super) fn queue(&self, span: SpanData) {
        if self.pending.fetch_add(1, Ordering::Relaxed) < MAX_PENDING {
            self.processor.on_end(span);
        } else {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            counter!(DROPPED, "reason" => "queue_full").increment(1);
        }
    }

    pub(super) fn stop(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }
}

/// The resource of the spans. The standard variables, if set, override the service name.
fn resource(service_is_named: bool) -> Resource {
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if service_is_named { resource.build() } else { resource.with_service_name("weir").build() }
}

/// An exporter that counts exported and dropped spans.
#[derive(Debug)]
struct CountingExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    pending: Arc<AtomicUsize>,
    /// Whether the last batch failed. The log reports changes, not every failed batch.
    failing: AtomicBool,
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let exported = self.exporter.export(batch).await;
        self.pending.fetch_sub(count, Ordering::Relaxed);
        let was_failing = self.failing.swap(exported.is_err(), Ordering::Relaxed);
        match &exported {
            Ok(()) => {
                counter!(EXPORTED).increment(count as u64);
                if was_failing {
                    tracing::info!("the trace collector accepts spans again");
                }
            }
            Err(error) => {
                counter!(DROPPED, "reason" => "export_failed").increment(count as u64);
                if !was_failing {
                    tracing::warn!(%error, "the trace collector does not accept spans; spans are dropped until it does");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The HTTP client of the exporter. The SDK's thread has no runtime, so the request runs as a task on the runtime of
/// this process.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let response = self.runtime.spawn(async move {
            let response = http.execute(request.try_into()?).await?;
            let status = response.status();
            // The body is short: it reports the spans of the batch that were rejected.
            let body = response.bytes().await?;
            Ok::<_, reqwest::Error>((status, body))
        });
        let (status, body) = response.await??;
        let mut response = Response::new(body);
        *response.status_mut() = status;
        Ok(response)
    }
}
