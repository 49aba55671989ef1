//! Known-bad hosts of OpsJobs: they change an end, take a node of another job, go on after a stop, or accept a namesake as a target.
//!
//! Takes the host's writes to OpsJobs and their OperationJobs; yields the wrong writes of the bug. May not touch a node itself.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Uri};
use serde_json::{Value, json};

use crate::variants::{body, send_changed};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::Variant;

/// Returns the path of a patch of an OpsJob or its status.
fn patched(request: &Request<Bytes>) -> Option<&str> {
    let path = request.uri().path();
    (request.method() == Method::PATCH && path.contains("/opsjobs/")).then_some(path)
}

/// A host that writes the phase `Running` after the end of a job, once.
#[derive(Debug, Default)]
pub struct MovesAnEnd {
    moved: AtomicBool,
}

impl Variant for MovesAnEnd {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let lets_go = body(&request).pointer("/1/op").is_some_and(|op| op == "remove");
            let path = patched(&request).filter(|_| lets_go);
            let status: Option<Uri> = path.and_then(|path| format!("{path}/status").parse().ok());
            if let Some(status) = status.filter(|_| !self.moved.swap(true, Ordering::SeqCst)) {
                let mut moved = request.clone();
                *moved.uri_mut() = status;
                *moved.body_mut() = json!({"status": {"phase": "Running"}}).to_string().into();
                moved.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/merge-patch+json"));
                upstream.send(moved).await?;
            }
            upstream.send(request).await
        })
    }
}

/// A host that takes a target although another job has it.
#[derive(Debug, Default)]
pub struct TakesABusyNode;

impl Variant for TakesABusyNode {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        let says_busy = String::from_utf8_lossy(request.body()).contains("TargetBusy");
        let concerns = patched(&request).is_some() && says_busy;
        let resolved = json!({"type": "TargetsResolved", "status": "True", "reason": "Resolved", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let taken = json!({"phase": "Pending", "revision": 1, "conditions": [resolved]});
        send_changed(request, upstream, concerns, |patch| {
            patch.pointer_mut("/1/value").into_iter().for_each(|one| *one = taken.clone());
        })
    }
}

/// A host that lets the OperationJob of a stopped job go on.
#[derive(Debug, Default)]
pub struct GoesOnAfterAStop;

impl Variant for GoesOnAfterAStop {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        let pauses = body(&request).pointer("/spec/paused") == Some(&json!(true));
        let concerns = request.method() == Method::PATCH && pauses;
        send_changed(request, upstream, concerns, |patch| {
            patch.pointer_mut("/spec/paused").into_iter().for_each(|one| *one = json!(false));
        })
    }
}

/// A host that accepts any node with the name of a target.
#[derive(Debug, Default)]
pub struct ForgetsUids;

impl Variant for ForgetsUids {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        let concerns = request.method() == Method::POST && request.uri().path().ends_with("/operationjobs");
        send_changed(request, upstream, concerns, |job| {
            let targets = job.pointer_mut("/spec/targets").and_then(Value::as_array_mut).into_iter().flatten();
            targets.filter_map(Value::as_object_mut).for_each(|target| drop(target.remove("uid")));
        })
    }
}
