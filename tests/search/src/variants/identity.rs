//! Known-bad hosts that act on a name instead of on one object.
//!
//! Takes writes to pods; yields them without the preconditions that tie them to the object that the host observed. May not
//! change the effect of a write.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use serde_json::Value;

use crate::variants::rewritten;
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

/// A host that patches any pod of the name.
#[derive(Debug, Default)]
pub struct NamesInsteadOfUids;

impl Variant for NamesInsteadOfUids {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Marks(_) = Deed::of(&request) else { return upstream.send(request).await };
            let careless = rewritten(&request, |patch| {
                let metadata = patch.pointer_mut("/metadata").and_then(Value::as_object_mut);
                metadata
                    .into_iter()
                    .for_each(|metadata| metadata.retain(|key, _| key != "uid" && key != "resourceVersion"));
            });
            upstream.send(careless).await
        })
    }
}

/// A host that evicts any pod of the name, as a client does whose preconditions the server does not read.
#[derive(Debug, Default)]
pub struct EvictsWithoutPreconditions;

impl Variant for EvictsWithoutPreconditions {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Evicts(_) = Deed::of(&request) else { return upstream.send(request).await };
            let careless = rewritten(&request, |eviction| {
                let options = eviction.pointer_mut("/deleteOptions").and_then(Value::as_object_mut);
                options.into_iter().for_each(|options| options.retain(|key, _| key != "preconditions"));
            });
            upstream.send(careless).await
        })
    }
}
