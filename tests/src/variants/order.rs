//! Known-bad hosts that do things in the wrong order: an effect before its record, a release before what it waits for.
//!
//! Takes status writes and writes to pods; yields them the other way round. May not lose a write by itself: what a crash
//! in between loses is the point.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Uri};
use parking_lot::Mutex;

use crate::crash::line::{Reply, Wire};
use crate::variants::{Deed, PROTECTED, Variant, body, keep_finalizers, told, word};

/// Holds a record back until the act that it was to precede. What the host takes for the reply to its record is that of a
/// rehearsal.
#[derive(Debug, Default)]
pub(super) struct Swapped {
    held: Mutex<Option<Request<Bytes>>>,
}

impl Swapped {
    /// Sends a request, which may be such a record, or such an act.
    pub(super) async fn carry(&self, request: Request<Bytes>, (records, acts): (bool, bool), wire: &Wire) -> Reply {
        if records && self.held.lock().is_none() {
            let reply = wire.send(rehearsed(&request)).await;
            *self.held.lock() = Some(request);
            return reply;
        }
        let reply = wire.send(request).await;
        let held = if acts { self.held.lock().take() } else { None };
        if let Some(late) = held {
            let _unread = wire.send(late).await.is_err();
        }
        reply
    }
}

/// Evicts and marks first and writes down afterwards that it was going to.
#[derive(Debug, Default)]
pub struct ActsBeforeItRecords {
    swapped: Swapped,
}

impl Variant for ActsBeforeItRecords {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let deed = Deed::of(&request);
            let begins =
                deed == Deed::Records && told(&body(&request)).any(|target| word(target, "/progress") == "Processing");
            self.swapped.carry(request, (begins, deed.acts()), wire).await
        })
    }
}

pub(super) fn rehearsed(request: &Request<Bytes>) -> Request<Bytes> {
    let mut request = request.clone();
    let sign = if request.uri().query().is_some() { '&' } else { '?' };
    let uri: Result<Uri, _> = format!("{}{sign}dryRun=All", request.uri()).parse();
    uri.into_iter().for_each(|uri| *request.uri_mut() = uri);
    request
}

/// Lets an origin go as soon as it has found the new pod, and writes down afterwards which that is.
#[derive(Debug, Default)]
pub struct ReleasesBeforeItRecords {
    released: Mutex<BTreeSet<String>>,
}

impl Variant for ReleasesBeforeItRecords {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            if Deed::of(&request) == Deed::Records {
                let status = body(&request);
                let namespace = request.uri().path().split('/').skip_while(|part| *part != "namespaces").nth(1);
                let found = told(&status).filter(|target| !word(target, "/extraInfo/NewPod").is_empty());
                for name in found.map(|target| word(target, "/name").to_owned()) {
                    if self.released.lock().insert(name.clone()) {
                        let path = format!("/api/v1/namespaces/{}/pods/{name}", namespace.unwrap_or_default());
                        keep_finalizers(wire, &path, |finalizer| finalizer != PROTECTED).await;
                    }
                }
            }
            wire.send(request).await
        })
    }
}

/// Takes its finalizer off a job that is deleted as soon as the outcomes are written, and not once everything is let go.
#[derive(Debug, Default)]
pub struct DropsItsFinalizerTooEarly;

impl Variant for DropsItsFinalizerTooEarly {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let broken_off =
                |status: &serde_json::Value| told(status).any(|target| word(target, "/error/reason") == "JobDeleted");
            let ends = Deed::of(&request) == Deed::Records && broken_off(&body(&request));
            let path = request.uri().path().trim_end_matches("/status").to_owned();
            let reply = wire.send(request).await;
            if ends {
                keep_finalizers(wire, &path, |_| false).await;
            }
            reply
        })
    }
}
