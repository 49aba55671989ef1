//! Known-bad hosts that perform a write of a dry run for real.
//!
//! Takes requests of dry runs; yields them without the dry-run option. May not change the rest of a request.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Uri};
use serde_json::Value;

use crate::variants::rewritten;
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

/// A host that evicts pods in dry runs.
#[derive(Debug, Default)]
pub struct EvictsInDryRuns;

impl Variant for EvictsInDryRuns {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Evicts(_) = Deed::of(&request) else { return upstream.send(request).await };
            upstream.send(in_earnest(&request)).await
        })
    }
}

/// A host that marks pods in dry runs.
#[derive(Debug, Default)]
pub struct MarksInDryRuns;

impl Variant for MarksInDryRuns {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Marks(_) = Deed::of(&request) else { return upstream.send(request).await };
            upstream.send(in_earnest(&request)).await
        })
    }
}

/// Returns the same request without the dry-run option.
fn in_earnest(request: &Request<Bytes>) -> Request<Bytes> {
    let mut earnest = rewritten(request, |body| {
        let options = body.pointer_mut("/deleteOptions").and_then(Value::as_object_mut);
        options.into_iter().for_each(|options| drop(options.remove("dryRun")));
    });
    let kept: Vec<&str> =
        request.uri().query().unwrap_or_default().split('&').filter(|part| !part.starts_with("dryRun=")).collect();
    let uri: Result<Uri, _> = format!("{}?{}", request.uri().path(), kept.join("&")).parse();
    uri.into_iter().for_each(|uri| *earnest.uri_mut() = uri);
    earnest
}
