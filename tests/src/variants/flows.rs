//! Known-bad hosts of JobFlows and DaemonJobs: they make children twice, too early or not at all, or let them go too early.
//!
//! Takes creates of children; yields what the bug makes of them. May not touch what the host says of itself.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};
use oarlock_core::child::build::{JOB_TTL, REVISION, STEP, TTL};
use serde_json::{Value, json};

use super::order::rehearsed;
use crate::crash::line::{Reply, Wire};
use crate::variants::{Variant, body, rewritten};

/// Whether a request creates a Job.
fn makes_a_job(request: &Request<Bytes>) -> bool {
    request.method() == Method::POST && request.uri().path().ends_with("/jobs")
}

/// An annotation of the Job that a request creates.
fn annotation<'a>(job: &'a Value, key: &str) -> Option<&'a str> {
    job.pointer("/metadata/annotations")?.get(key)?.as_str()
}

/// Makes a Job once more under another name where nobody answers it.
#[derive(Debug, Default)]
pub struct NamesARepeatedCreateAnew;

impl Variant for NamesARepeatedCreateAnew {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let reply = wire.send(request.clone()).await;
            if !makes_a_job(&request) || reply.as_ref().is_ok_and(|reply| !reply.status().is_server_error()) {
                return reply;
            }
            let again = rewritten(&request, |job| {
                let name = job.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let name = format!("{name}-again");
                job.pointer_mut("/metadata/name").into_iter().for_each(|old| *old = json!(name));
            });
            wire.send(again).await
        })
    }
}

/// Makes the Job of `build` as soon as it makes that of `fetch`, for which it should wait.
#[derive(Debug, Default)]
pub struct StartsADependantAtOnce;

impl Variant for StartsADependantAtOnce {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
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
                let _unread = wire.send(early).await.is_err();
            }
            wire.send(request).await
        })
    }
}

/// Withholds no time to live.
#[derive(Debug, Default)]
pub struct LetsJobsExpireAtOnce;

impl Variant for LetsJobsExpireAtOnce {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let withheld = makes_a_job(&request).then(|| body(&request));
            let time = withheld.as_ref().and_then(|job| annotation(job, TTL)?.parse::<i64>().ok());
            let Some(time) = time else { return wire.send(request).await };
            let careless = rewritten(&request, |job| {
                let spec = job.pointer_mut("/spec").and_then(Value::as_object_mut);
                spec.into_iter().for_each(|spec| drop(spec.insert(JOB_TTL.to_owned(), json!(time))));
            });
            wire.send(careless).await
        })
    }
}

/// Takes its first Job for made though it is not stored.
#[derive(Debug, Default)]
pub struct BelievesInARehearsedJob {
    done: AtomicBool,
}

impl Variant for BelievesInARehearsedJob {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let is_it = makes_a_job(&request) && !self.done.swap(true, Ordering::SeqCst);
            wire.send(if is_it { rehearsed(&request) } else { request }).await
        })
    }
}

/// Makes Jobs without their owner's word: whoever looks for them by their owner finds none.
#[derive(Debug, Default)]
pub struct ForgetsOwners;

impl Variant for ForgetsOwners {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            if !makes_a_job(&request) {
                return wire.send(request).await;
            }
            let ownerless = rewritten(&request, |job| {
                let metadata = job.pointer_mut("/metadata").and_then(Value::as_object_mut);
                metadata.into_iter().for_each(|metadata| drop(metadata.remove("ownerReferences")));
            });
            wire.send(ownerless).await
        })
    }
}
