//! Exports the spans of rounds to an OpenTelemetry collector, if the user names one.
//!
//! A round is one trace: a span for the round, and spans for its parts. Spans have the kind and the name of the object,
//! and nothing that a user or a plugin wrote. The queue of finished spans is bounded. If the collector is slow or down,
//! the process drops spans, counts them, and does nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use opentelemetry::Context;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The target of the spans of rounds. Only these spans are exported. The spans of the parts of a round have the level
/// TRACE, and never appear in logs.
pub const SPANS: &str = "oarlock::round";

/// The most finished spans that wait for their export.
const QUEUE: usize = 2_048;
/// The most spans of one request.
const BATCH: usize = 512;
/// The time for which finished spans are gathered into one request.
const GATHERING: Duration = Duration::from_secs(5);
/// The longest time for the last requests at the end of the process.
const LAST_EXPORT: Duration = Duration::from_secs(2);
/// The variables that name a collector, as the OpenTelemetry specification says.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// The flags of traces.
#[derive(Clone, Debug, Default, Args)]
pub struct OtlpArgs {
    /// OpenTelemetry collector that gets a trace of each round, by OTLP over HTTP, such as http://collector:4318
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT, or no traces]
    ///
    /// OTEL_TRACES_SAMPLER=traceidratio and OTEL_TRACES_SAMPLER_ARG=0.01 export the traces of one round in a hundred.
    /// A collector that is down or slow delays nothing: the host drops spans and counts them in the metric
    /// oarlock_trace_spans_total.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

/// The reason why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("cannot export traces: write --otlp-endpoint as a URL such as http://collector:4318")]
pub struct TracesError(#[from] ExporterBuildError);

impl OtlpArgs {
    /// Prepares the export of traces. Returns `None` if neither the flag nor a variable names a collector.
    ///
    /// # Errors
    /// If the URL of the collector is invalid.
    pub fn open(&self) -> Result<Option<TraceExport>, TracesError> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if self.otlp_endpoint.is_none() && !ENDPOINTS.iter().any(is_set) {
            return Ok(None);
        }
        Ok(Some(TraceExport::through(exporter(self.otlp_endpoint.as_deref())?)))
    }
}

/// Returns an exporter to the collector at this URL, or to the one that a variable names.
fn exporter(url: Option<&str>) -> Result<SpanExporter, ExporterBuildError> {
    // The HTTP client takes the TLS of the process. Another part of the process may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder().with_http();
    match url {
        Some(url) => exporter.with_endpoint(format!("{}/v1/traces", url.trim_end_matches('/'))).build(),
        None => exporter.build(),
    }
}

/// The numbers of exported and dropped spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    /// Returns the number of spans that a collector accepted.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that were lost, because the queue was full or the collector did not accept them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Puts finished spans into the queue, and never waits.
#[derive(Debug)]
struct SpanQueue {
    spans: Sender<SpanData>,
    counts: Arc<SpanCounts>,
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        // A sampler may record a span that nobody exports.
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The export of traces, before it runs.
#[derive(Debug)]
pub struct TraceExport {
    tracer: SdkTracer,
    exporter: SpanExporter,
    spans: Receiver<SpanData>,
    counts: Arc<SpanCounts>,
    /// True if the last request failed.
    is_down: bool,
}

impl TraceExport {
    fn through(mut exporter: SpanExporter) -> Self {
        let (queue, spans) = channel(QUEUE);
        let counts = Arc::<SpanCounts>::default();
        let resource = resource();
        exporter.set_resource(&resource);
        let processor = SpanQueue { spans: queue, counts: counts.clone() };
        let provider = SdkTracerProvider::builder().with_resource(resource).with_span_processor(processor).build();
        Self { tracer: provider.tracer("oarlock"), exporter, spans, counts, is_down: false }
    }

    /// Returns the tracer that makes the spans.
    pub fn tracer(&self) -> SdkTracer {
        self.tracer.clone()
    }

    /// Returns the counts of spans.
    pub fn counts(&self) -> Arc<SpanCounts> {
        self.counts.clone()
    }

    /// Exports spans until `stop`, and then those that are left, for a limited time.
    pub async fn run(mut self, stop: CancellationToken) {
        let late = async {
            stop.cancelled().await;
            sleep(LAST_EXPORT).await;
        };
        tokio::select! {
            () = self.export_all(&stop) => {}
            () = late => {}
        }
    }

    async fn export_all(&mut self, stop: &CancellationToken) {
        let mut batch = Vec::new();
        while stop.run_until_cancelled(self.gather(&mut batch)).await.is_some_and(|has_spans| has_spans) {
            self.export(std::mem::take(&mut batch)).await;
        }
        self.spans.close();
        while !batch.is_empty() || self.spans.recv_many(&mut batch, BATCH).await > 0 {
            self.export(std::mem::take(&mut batch)).await;
        }
    }

    /// Waits for a span, and then for further spans until the batch is full or old enough. Returns false if no more spans
    /// can come.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) -> bool {
        self.spans.recv_many(batch, BATCH).await;
        let deadline = Instant::now() + GATHERING;
        while batch.len() < BATCH {
            let room = BATCH.saturating_sub(batch.len());
            match timeout_at(deadline, self.spans.recv_many(batch, room)).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        !batch.is_empty()
    }

    /// Sends one batch. Logs the first failure of a series.
    async fn export(&mut self, batch: Vec<SpanData>) {
        let number = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        match self.exporter.export(batch).await {
            Ok(()) => {
                self.counts.exported.fetch_add(number, Ordering::Relaxed);
                self.is_down = false;
            }
            Err(error) => {
                self.counts.dropped.fetch_add(number, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_down, true) {
                    tracing::warn!(%error, "failed to export traces; the host drops spans until the collector accepts them");
                }
            }
        }
    }
}

/// Returns the attributes of the process: its name and version, and those that `OTEL_RESOURCE_ATTRIBUTES` and
/// `OTEL_SERVICE_NAME` name.
fn resource() -> Resource {
    let resource = Resource::builder();
    let is_named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
    let resource = if is_named { resource } else { resource.with_service_name("oarlock") };
    resource.with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build()
}

/// Exports traces until `stop`, if there are any, and shows their counts in `metrics`.
pub(crate) fn export(traces: Option<TraceExport>, metrics: &Metrics, stop: CancellationToken) -> JoinHandle<()> {
    let traces = traces.inspect(|traces| metrics.shows_traces(&traces.counts()));
    tokio::spawn(async move {
        if let Some(traces) = traces {
            traces.run(stop).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns an export to this address.
    fn export_to(address: &str) -> TraceExport {
        TraceExport::through(exporter(Some(&format!("http://{address}"))).unwrap())
    }

    fn make_spans(export: &TraceExport, number: usize) {
        (0..number).for_each(|_| export.tracer().start("round").end());
    }

    /// Answers one request with 200, and returns the request.
    async fn collect(listener: TcpListener) -> Vec<u8> {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        loop {
            let mut piece = [0; 4_096];
            let length = stream.read(&mut piece).await.unwrap();
            request.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&request).into_owned();
            let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if request.len() >= head.len() + 4 + length.unwrap_or(0) {
                break;
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        request
    }

    #[test]
    fn without_a_collector_nothing_is_exported_and_a_bad_url_is_named_with_the_fix() {
        let bad = OtlpArgs { otlp_endpoint: Some("no url".to_owned()) };
        let refused = bad.open().unwrap_err().to_string();
        assert!(refused.contains("--otlp-endpoint") && refused.contains("http://collector:4318"), "{refused}");
    }

    #[tokio::test]
    async fn spans_that_wait_at_the_end_of_the_process_reach_the_collector() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let export = export_to(&listener.local_addr().unwrap().to_string());
        let (counts, collecting) = (export.counts(), tokio::spawn(collect(listener)));
        make_spans(&export, 3);
        let stop = CancellationToken::new();
        stop.cancel();
        export.run(stop).await;
        let request = String::from_utf8_lossy(&collecting.await.unwrap()).into_owned();
        assert!(request.starts_with("POST /v1/traces ") && request.contains("application/x-protobuf"), "{request}");
        assert!(request.contains("round") && request.contains("service.name"), "{request}");
        assert_eq!((counts.exported(), counts.dropped()), (3, 0));
    }

    #[tokio::test]
    async fn spans_beyond_the_queue_and_spans_that_no_collector_takes_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let export = export_to(&address);
        let counts = export.counts();
        make_spans(&export, QUEUE + 10);
        assert_eq!(counts.dropped(), 10);
        let stop = CancellationToken::new();
        stop.cancel();
        export.run(stop).await;
        let (exported, dropped) = (counts.exported(), counts.dropped());
        assert!(
            exported == 0 && dropped >= 10 + u64::try_from(BATCH).unwrap(),
            "{exported} exported, {dropped} dropped"
        );
    }
}
