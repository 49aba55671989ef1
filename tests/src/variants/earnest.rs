//! Known-bad hosts that do what they were only to try.
//!
//! Takes requests of dry runs; yields them without the word that makes them such. May not change what they ask for.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Uri};
use serde_json::Value;

use crate::crash::line::{Reply, Wire};
use crate::variants::{Deed, Variant, rewritten};

/// Evicts in dry runs.
#[derive(Debug, Default)]
pub struct EvictsInDryRuns;

impl Variant for EvictsInDryRuns {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Evicts(_) = Deed::of(&request) else { return wire.send(request).await };
            wire.send(in_earnest(&request)).await
        })
    }
}

/// Marks pods in dry runs.
#[derive(Debug, Default)]
pub struct MarksInDryRuns;

impl Variant for MarksInDryRuns {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Marks(_) = Deed::of(&request) else { return wire.send(request).await };
            wire.send(in_earnest(&request)).await
        })
    }
}

/// The same request, to be made.
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
