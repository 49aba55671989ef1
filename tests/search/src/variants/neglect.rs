//! Known-bad hosts that omit a write, or that never stop writing.
//!
//! Takes writes that release pods or the job, and writes after the job's end; yields reads in their place, or more writes.
//! May not change anything else that the host does.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::variants::{body, told, word};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

/// Returns true if a write removes something from an object.
fn lets_go(request: &Request<Bytes>) -> bool {
    let text = String::from_utf8_lossy(request.body());
    text.contains("\"remove\"") || text.contains(":null")
}

/// Reads the object that the request would write and returns it as the reply.
async fn left(request: &Request<Bytes>, upstream: &Upstream) -> Reply {
    upstream.send(Request::get(request.uri().clone()).body(Bytes::new())?).await
}

/// A host that never removes its marks from a pod.
#[derive(Debug, Default)]
pub struct LeavesItsMarks;

impl Variant for LeavesItsMarks {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            match Deed::of(&request) {
                Deed::Marks(_) if lets_go(&request) => left(&request, upstream).await,
                _ => upstream.send(request).await,
            }
        })
    }
}

/// A host that removes its marks from pods of succeeded targets and leaves those of failed targets.
#[derive(Debug, Default)]
pub struct LeavesTheMarksOfFailures {
    failed: Mutex<BTreeSet<String>>,
}

impl Variant for LeavesTheMarksOfFailures {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let status = body(&request);
            let failed = told(&status).filter(|target| word(target, "/progress") == "Failed");
            self.failed.lock().extend(failed.map(|target| word(target, "/name").to_owned()));
            match Deed::of(&request) {
                Deed::Marks(pod) if lets_go(&request) && self.failed.lock().contains(&pod) => {
                    left(&request, upstream).await
                }
                _ => upstream.send(request).await,
            }
        })
    }
}

/// A host that never removes its finalizer from a deleted job.
#[derive(Debug, Default)]
pub struct KeepsItsFinalizer;

impl Variant for KeepsItsFinalizer {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let path = request.uri().path();
            let of_a_job = path.contains("/operationjobs/") && !path.ends_with("/status");
            let takes_off =
                of_a_job && request.method() == Method::PATCH && body(&request).to_string().contains("finalizers");
            let object = if takes_off { crate::variants::read(upstream, path).await } else { Value::Null };
            if object.pointer("/metadata/deletionTimestamp").is_some() {
                return left(&request, upstream).await;
            }
            upstream.send(request).await
        })
    }
}

/// A host that keeps writing an annotation to an ended job.
#[derive(Debug, Default)]
pub struct WritesAfterTheEnd {
    ended: Mutex<Option<String>>,
    notes: AtomicU64,
}

impl Variant for WritesAfterTheEnd {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let ends = body(&request).pointer("/status/endTime").is_some_and(Value::is_string);
            let (path, renews) = (request.uri().path().to_owned(), request.uri().path().contains("/leases/"));
            let reply = upstream.send(request).await;
            if ends {
                *self.ended.lock() = Some(path.trim_end_matches("/status").to_owned());
            }
            let ended = self.ended.lock().clone().filter(|_| renews);
            if let Some(job) = ended {
                let number = self.notes.fetch_add(1, Ordering::Relaxed).to_string();
                let note = json!({"metadata": {"annotations": {"seen": number}}}).to_string();
                let patch = Request::patch(job).header("content-type", "application/merge-patch+json");
                let _unread = upstream.send(patch.body(Bytes::from(note))?).await.is_err();
            }
            reply
        })
    }
}
