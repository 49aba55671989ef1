//! Known-bad hosts of JobFlows and DaemonJobs: they create children twice, too early or not at all, or let children expire too early.
//!
//! Takes creates of children; yields the wrong requests of the bug. May not change the host's statuses.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};
use oarlock_core::attempts::build::{JOB_TTL, REVISION, STEP, TTL};
use serde_json::{Value, json};

use super::order::as_dry_run;
use crate::variants::{body, rewritten};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::Variant;

/// Returns true if a request creates a Job.
fn makes_a_job(request: &Request<Bytes>) -> bool {
    request.method() == Method::POST && request.uri().path().ends_with("/jobs")
}

/// Returns an annotation of the Job in a request.
fn annotation<'a>(job: &'a Value, key: &str) -> Option<&'a str> {
    job.pointer("/metadata/annotations")?.get(key)?.as_str()
}

/// A host that creates a Job again under another name if the create has no answer or a server error.
#[derive(Debug, Default)]
pub struct NamesARepeatedCreateAnew;

impl Variant for NamesARepeatedCreateAnew {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let reply = upstream.send(request.clone()).await;
            if !makes_a_job(&request) || reply.as_ref().is_ok_and(|reply| !reply.status().is_server_error()) {
                return reply;
            }
            let again = rewritten(&request, |job| {
                let name = job.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let name = format!("{name}-again");
                job.pointer_mut("/metadata/name").into_iter().for_each(|old| *old = json!(name));
            });
            upstream.send(again).await
        })
    }
}

/// A host that creates the Job of `build` together with the Job of `fetch`, for which `build` should wait.
#[derive(Debug, Default)]
pub struct StartsADependantAtOnce;

impl Variant for StartsADependantAtOnce {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            if makes_a_job(&request) && annotation(&body(&request), STEP) == Some("fetch") {
                let early = rewritten(&request, |job| {
                    job.pointer_mut("/metadata/name").into_iter().for_each(|name| *name = json!("f-build"));
                    let annotations = job.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
                    annotations.into_iter().for_each(|all| {
                        all.insert(STEP.to_owned(), json!("build"));
                        all.remove(REVISION);
                    });
                });
                let _unread = upstream.send(early).await.is_err();
            }
            upstream.send(request).await
        })
    }
}

/// A host that sets the time to live of a Job at once instead of after its outcome is stored.
#[derive(Debug, Default)]
pub struct LetsJobsExpireAtOnce;

impl Variant for LetsJobsExpireAtOnce {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let withheld = makes_a_job(&request).then(|| body(&request));
            let time = withheld.as_ref().and_then(|job| annotation(job, TTL)?.parse::<i64>().ok());
            let Some(time) = time else { return upstream.send(request).await };
            let careless = rewritten(&request, |job| {
                let spec = job.pointer_mut("/spec").and_then(Value::as_object_mut);
                spec.into_iter().for_each(|spec| drop(spec.insert(JOB_TTL.to_owned(), json!(time))));
            });
            upstream.send(careless).await
        })
    }
}

/// A host that creates its first Job only as a dry run and takes that Job for stored.
#[derive(Debug, Default)]
pub struct BelievesInARehearsedJob {
    done: AtomicBool,
}

impl Variant for BelievesInARehearsedJob {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let is_it = makes_a_job(&request) && !self.done.swap(true, Ordering::SeqCst);
            upstream.send(if is_it { as_dry_run(&request) } else { request }).await
        })
    }
}

/// A host that creates Jobs without owner references. A lookup by owner finds no such Job.
#[derive(Debug, Default)]
pub struct ForgetsOwners;

impl Variant for ForgetsOwners {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            if !makes_a_job(&request) {
                return upstream.send(request).await;
            }
            let ownerless = rewritten(&request, |job| {
                let metadata = job.pointer_mut("/metadata").and_then(Value::as_object_mut);
                metadata.into_iter().for_each(|metadata| drop(metadata.remove("ownerReferences")));
            });
            upstream.send(ownerless).await
        })
    }
}
