//! Known-bad hosts that act in the wrong order: an effect before its record, or a release before the write that it waits for.
//!
//! Takes status writes and writes to pods; yields them in the opposite order. May not lose a write by itself: a crash
//! between the two writes shows the bug.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Uri};
use parking_lot::Mutex;

use crate::variants::{PROTECTED, body, keep_finalizers, told, word};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

/// Delays a record until after the act that the record should precede. The host gets the reply of a dry run instead of the reply to its record.
#[derive(Debug, Default)]
pub(super) struct Swapped {
    held: Mutex<Option<Request<Bytes>>>,
}

impl Swapped {
    /// Sends a request, which may be such a record or such an act.
    pub(super) async fn carry(
        &self,
        request: Request<Bytes>,
        (records, acts): (bool, bool),
        upstream: &Upstream,
    ) -> Reply {
        if records && self.held.lock().is_none() {
            let reply = upstream.send(as_dry_run(&request)).await;
            *self.held.lock() = Some(request);
            return reply;
        }
        let reply = upstream.send(request).await;
        let held = if acts { self.held.lock().take() } else { None };
        if let Some(late) = held {
            let _unread = upstream.send(late).await.is_err();
        }
        reply
    }
}

/// A host that evicts and marks pods first and records the start afterwards.
#[derive(Debug, Default)]
pub struct ActsBeforeItRecords {
    swapped: Swapped,
}

impl Variant for ActsBeforeItRecords {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let deed = Deed::of(&request);
            let begins =
                deed == Deed::Records && told(&body(&request)).any(|target| word(target, "/progress") == "Processing");
            self.swapped.carry(request, (begins, deed.acts()), upstream).await
        })
    }
}

pub(super) fn as_dry_run(request: &Request<Bytes>) -> Request<Bytes> {
    let mut request = request.clone();
    let sign = if request.uri().query().is_some() { '&' } else { '?' };
    let uri: Result<Uri, _> = format!("{}{sign}dryRun=All", request.uri()).parse();
    uri.into_iter().for_each(|uri| *request.uri_mut() = uri);
    request
}

/// A host that releases an original pod as soon as it finds the new pod, and records the new pod afterwards.
#[derive(Debug, Default)]
pub struct ReleasesBeforeItRecords {
    released: Mutex<BTreeSet<String>>,
}

impl Variant for ReleasesBeforeItRecords {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            if Deed::of(&request) == Deed::Records {
                let status = body(&request);
                let namespace = request.uri().path().split('/').skip_while(|part| *part != "namespaces").nth(1);
                let found = told(&status).filter(|target| !word(target, "/extraInfo/NewPod").is_empty());
                for name in found.map(|target| word(target, "/name").to_owned()) {
                    if self.released.lock().insert(name.clone()) {
                        let path = format!("/api/v1/namespaces/{}/pods/{name}", namespace.unwrap_or_default());
                        keep_finalizers(upstream, &path, |finalizer| finalizer != PROTECTED).await;
                    }
                }
            }
            upstream.send(request).await
        })
    }
}

/// A host that removes its finalizer from a deleted job after it wrote the outcomes, before it released the pods.
#[derive(Debug, Default)]
pub struct DropsItsFinalizerTooEarly;

impl Variant for DropsItsFinalizerTooEarly {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let broken_off =
                |status: &serde_json::Value| told(status).any(|target| word(target, "/error/reason") == "JobDeleted");
            let ends = Deed::of(&request) == Deed::Records && broken_off(&body(&request));
            let path = request.uri().path().trim_end_matches("/status").to_owned();
            let reply = upstream.send(request).await;
            if ends {
                keep_finalizers(upstream, &path, |_| false).await;
            }
            reply
        })
    }
}
