//! Known-bad hosts that ignore the state they see, or assume a state they did not see.
//!
//! Takes evictions, their replies and status writes; yields repetitions and outcomes that a correct host would not send. May
//! not change the server's answers.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::variants::{body, read, rewritten, told, word};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

/// The wait before a repetition.
const PAUSE: Duration = Duration::from_secs(1);
/// A wait that is long enough for a pod to be created again under its name.
const LONG_PAUSE: Duration = Duration::from_secs(5);

/// A host that repeats every request to a busy server, including POST, as the Kubernetes client does by default.
#[derive(Debug, Default)]
pub struct RepeatsPosts;

impl Variant for RepeatsPosts {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let reply = upstream.send(request.clone()).await?;
            let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
            if !busy.contains(&reply.status()) {
                return Ok(reply);
            }
            tokio::time::sleep(PAUSE).await;
            upstream.send(request).await
        })
    }
}

/// A host that repeats an eviction without an answer for the pod that then has the name, as "retry on conflict" does.
#[derive(Debug, Default)]
pub struct RetriesOnAFreshView;

impl Variant for RetriesOnAFreshView {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let Deed::Evicts(_) = Deed::of(&request) else { return upstream.send(request).await };
            let reply = upstream.send(request.clone()).await;
            if reply.is_ok() {
                return reply;
            }
            tokio::time::sleep(LONG_PAUSE).await;
            let pod = read(upstream, request.uri().path().trim_end_matches("/eviction")).await;
            let anew = rewritten(&request, |eviction| {
                let fresh = json!({"uid": pod.pointer("/metadata/uid"), "resourceVersion": pod.pointer("/metadata/resourceVersion")});
                eviction.pointer_mut("/deleteOptions/preconditions").into_iter().for_each(|old| *old = fresh.clone());
            });
            upstream.send(anew).await
        })
    }
}

/// A host that takes an accepted eviction for a replaced pod.
#[derive(Debug, Default)]
pub struct TakesOutcomesFromRequests {
    evicted: Mutex<BTreeSet<String>>,
}

impl Variant for TakesOutcomesFromRequests {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            match Deed::of(&request) {
                Deed::Evicts(name) => {
                    let reply = upstream.send(request).await?;
                    if reply.status().is_success() {
                        self.evicted.lock().insert(name);
                    }
                    Ok(reply)
                }
                Deed::Records if told(&body(&request)).next().is_some() => {
                    let evicted = self.evicted.lock().clone();
                    upstream.send(rewritten(&request, |status| succeed(status, &evicted))).await
                }
                _ => upstream.send(request).await,
            }
        })
    }
}

fn succeed(status: &mut Value, evicted: &BTreeSet<String>) {
    let details = status.pointer_mut("/status/targetDetails").and_then(Value::as_array_mut);
    for target in details.into_iter().flatten() {
        if word(target, "/progress") == "Processing" && evicted.contains(word(target, "/name")) {
            let begun = target.get("startTime").cloned().unwrap_or_default();
            if let Some(fields) = target.as_object_mut() {
                fields.insert("progress".to_owned(), json!("Succeeded"));
                fields.insert("endTime".to_owned(), begun);
            }
        }
    }
}
