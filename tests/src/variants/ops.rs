//! Known-bad hosts of OpsJobs: they change an end, take a node of another job, go on after a stop, or take a namesake for a target.
//!
//! Takes what the host writes on OpsJobs and their OperationJobs; yields what the bug makes of it. May not touch a node itself.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Uri};
use serde_json::{Value, json};

use crate::crash::line::{Reply, Wire};
use crate::variants::{Variant, body, send_changed};

/// The path of what an OpsJob is patched at: itself or its status.
fn patched(request: &Request<Bytes>) -> Option<&str> {
    let path = request.uri().path();
    (request.method() == Method::PATCH && path.contains("/opsjobs/")).then_some(path)
}

/// Says that a job runs once more, after its end.
#[derive(Debug, Default)]
pub struct MovesAnEnd {
    moved: AtomicBool,
}

impl Variant for MovesAnEnd {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let lets_go = body(&request).pointer("/1/op").is_some_and(|op| op == "remove");
            let path = patched(&request).filter(|_| lets_go);
            let status: Option<Uri> = path.and_then(|path| format!("{path}/status").parse().ok());
            if let Some(status) = status.filter(|_| !self.moved.swap(true, Ordering::SeqCst)) {
                let mut moved = request.clone();
                *moved.uri_mut() = status;
                *moved.body_mut() = json!({"status": {"phase": "Running"}}).to_string().into();
                moved.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/merge-patch+json"));
                wire.send(moved).await?;
            }
            wire.send(request).await
        })
    }
}

/// Takes a target for itself where it should say that another job has it.
#[derive(Debug, Default)]
pub struct TakesABusyNode;

impl Variant for TakesABusyNode {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        let says_busy = String::from_utf8_lossy(request.body()).contains("TargetBusy");
        let concerns = patched(&request).is_some() && says_busy;
        let resolved = json!({"type": "TargetsResolved", "status": "True", "reason": "Resolved", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let taken = json!({"phase": "Pending", "revision": 1, "conditions": [resolved]});
        send_changed(request, wire, concerns, |patch| {
            patch.pointer_mut("/1/value").into_iter().for_each(|one| *one = taken.clone());
        })
    }
}

/// Lets the OperationJob of a job that was stopped go on.
#[derive(Debug, Default)]
pub struct GoesOnAfterAStop;

impl Variant for GoesOnAfterAStop {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        let pauses = body(&request).pointer("/spec/paused") == Some(&json!(true));
        let concerns = request.method() == Method::PATCH && pauses;
        send_changed(request, wire, concerns, |patch| {
            patch.pointer_mut("/spec/paused").into_iter().for_each(|one| *one = json!(false));
        })
    }
}

/// Takes whatever node has the name of a target for it.
#[derive(Debug, Default)]
pub struct ForgetsUids;

impl Variant for ForgetsUids {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        let concerns = request.method() == Method::POST && request.uri().path().ends_with("/operationjobs");
        send_changed(request, wire, concerns, |job| {
            let targets = job.pointer_mut("/spec/targets").and_then(Value::as_array_mut).into_iter().flatten();
            targets.filter_map(Value::as_object_mut).for_each(|target| drop(target.remove("uid")));
        })
    }
}
