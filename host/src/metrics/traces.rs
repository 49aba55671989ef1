//! The counts of exported spans at a scrape. A process without `--otlp-endpoint` shows none.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::metrics::at_scrape::ScrapeSources;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpanLabels {
    outcome: &'static str,
}

/// The collector of the counts of spans.
#[derive(Debug)]
pub(super) struct Traces(pub(super) Arc<ScrapeSources>);

impl Collector for Traces {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(counts) = self.0.spans.get() else { return Ok(()) };
        let help =
            "Number of spans by outcome: exported, or dropped because the queue was full or the collector failed";
        let mut family = encoder.encode_descriptor("trace_spans", help, None, MetricType::Counter)?;
        for (outcome, count) in [("exported", counts.exported()), ("dropped", counts.dropped())] {
            ConstCounter::new(count).encode(family.encode_family(&SpanLabels { outcome })?)?;
        }
        Ok(())
    }
}
