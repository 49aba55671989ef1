//! Known-bad hosts that act on a name where they should act on one object.
//!
//! Takes writes to pods; yields them without the preconditions that tie them to what the host saw. May not change what
//! they do.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use serde_json::Value;

use crate::crash::line::{Reply, Wire};
use crate::variants::{Deed, Variant, rewritten};

/// Patches whichever pod has the name.
#[derive(Debug, Default)]
pub struct NamesInsteadOfUids;

impl Variant for NamesInsteadOfUids {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Marks(_) = Deed::of(&request) else { return wire.send(request).await };
            let careless = rewritten(&request, |patch| {
                let metadata = patch.pointer_mut("/metadata").and_then(Value::as_object_mut);
                metadata
                    .into_iter()
                    .for_each(|metadata| metadata.retain(|key, _| key != "uid" && key != "resourceVersion"));
            });
            wire.send(careless).await
        })
    }
}

/// Evicts whichever pod has the name, as a client does whose preconditions the server does not read.
#[derive(Debug, Default)]
pub struct EvictsWithoutPreconditions;

impl Variant for EvictsWithoutPreconditions {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Evicts(_) = Deed::of(&request) else { return wire.send(request).await };
            let careless = rewritten(&request, |eviction| {
                let options = eviction.pointer_mut("/deleteOptions").and_then(Value::as_object_mut);
                options.into_iter().for_each(|options| options.retain(|key, _| key != "preconditions"));
            });
            wire.send(careless).await
        })
    }
}
