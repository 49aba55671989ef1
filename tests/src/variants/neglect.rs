//! Known-bad hosts that leave something undone, or do not stop.
//!
//! Takes writes that let go of pods and of the job, and those after its end; yields reads in their place, or more writes. May
//! not change what else the host does.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::crash::line::{Reply, Wire};
use crate::variants::{Deed, Variant, body, told, word};

/// Whether a write takes something off an object.
fn lets_go(request: &Request<Bytes>) -> bool {
    let text = String::from_utf8_lossy(request.body());
    text.contains("\"remove\"") || text.contains(":null")
}

/// The object that a request writes, as it is, in place of the reply.
async fn left(request: &Request<Bytes>, wire: &Wire) -> Reply {
    wire.send(Request::get(request.uri().clone()).body(Bytes::new())?).await
}

/// Never takes its marks off a pod.
#[derive(Debug, Default)]
pub struct LeavesItsMarks;

impl Variant for LeavesItsMarks {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            match Deed::of(&request) {
                Deed::Marks(_) if lets_go(&request) => left(&request, wire).await,
                _ => wire.send(request).await,
            }
        })
    }
}

/// Takes its marks off the pods of targets that succeeded, and forgets those that failed.
#[derive(Debug, Default)]
pub struct LeavesTheMarksOfFailures {
    failed: Mutex<BTreeSet<String>>,
}

impl Variant for LeavesTheMarksOfFailures {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let status = body(&request);
            let failed = told(&status).filter(|target| word(target, "/progress") == "Failed");
            self.failed.lock().extend(failed.map(|target| word(target, "/name").to_owned()));
            match Deed::of(&request) {
                Deed::Marks(pod) if lets_go(&request) && self.failed.lock().contains(&pod) => {
                    left(&request, wire).await
                }
                _ => wire.send(request).await,
            }
        })
    }
}

/// Never takes its finalizer off a job.
#[derive(Debug, Default)]
pub struct KeepsItsFinalizer;

impl Variant for KeepsItsFinalizer {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let path = request.uri().path();
            let of_a_job = path.contains("/operationjobs/") && !path.ends_with("/status");
            let takes_off =
                of_a_job && request.method() == Method::PATCH && body(&request).to_string().contains("finalizers");
            let object = if takes_off { crate::variants::read(wire, path).await } else { Value::Null };
            if object.pointer("/metadata/deletionTimestamp").is_some() {
                return left(&request, wire).await;
            }
            wire.send(request).await
        })
    }
}

/// Notes on an ended job that it still looks at it.
#[derive(Debug, Default)]
pub struct WritesAfterTheEnd {
    ended: Mutex<Option<String>>,
    notes: AtomicU64,
}

impl Variant for WritesAfterTheEnd {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let ends = body(&request).pointer("/status/endTime").is_some_and(Value::is_string);
            let (path, renews) = (request.uri().path().to_owned(), request.uri().path().contains("/leases/"));
            let reply = wire.send(request).await;
            if ends {
                *self.ended.lock() = Some(path.trim_end_matches("/status").to_owned());
            }
            let ended = self.ended.lock().clone().filter(|_| renews);
            if let Some(job) = ended {
                let number = self.notes.fetch_add(1, Ordering::Relaxed).to_string();
                let note = json!({"metadata": {"annotations": {"seen": number}}}).to_string();
                let patch = Request::patch(job).header("content-type", "application/merge-patch+json");
                let _unread = wire.send(patch.body(Bytes::from(note))?).await.is_err();
            }
            reply
        })
    }
}
