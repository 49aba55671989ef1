//! Known-bad hosts. Each variant stands between the host and the API server and changes the host's requests to those of a host with one bug.
//!
//! Takes the requests of a correct host; yields the requests of the host with the bug. Variants show that the checks can
//! fail, so a check must catch each variant. May not touch the cluster in any other way than as that host.

pub mod belief;
pub mod earnest;
pub mod flows;
pub mod identity;
pub mod invention;
pub mod neglect;
pub mod nodes;
pub mod ops;
pub mod order;
pub mod records;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use oarlock_scenarios::host_requests::{Reply, Upstream};

/// The finalizer that keeps an original pod until its new pod is recorded.
pub(crate) const PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";

/// Returns the body of a request as JSON, or null if the body is no JSON.
pub(crate) fn body(request: &Request<Bytes>) -> Value {
    serde_json::from_slice(request.body()).unwrap_or(Value::Null)
}

/// Returns a copy of the request with a changed body.
pub(crate) fn rewritten(request: &Request<Bytes>, change: impl FnOnce(&mut Value)) -> Request<Bytes> {
    let mut value = body(request);
    change(&mut value);
    let mut request = request.clone();
    *request.body_mut() = Bytes::from(value.to_string());
    request
}

/// Sends a request. Changes its body first if the bug concerns the request.
pub(crate) fn send_changed<'a>(
    request: Request<Bytes>,
    upstream: &'a Upstream,
    concerns: bool,
    change: impl FnOnce(&mut Value),
) -> BoxFuture<'a, Reply> {
    let request = if concerns { rewritten(&request, change) } else { request };
    Box::pin(upstream.send(request))
}

/// Returns the targets in a status write.
pub(crate) fn told(status: &Value) -> impl Iterator<Item = &Value> {
    status.pointer("/status/targetDetails").and_then(Value::as_array).into_iter().flatten()
}

/// Returns a text of a target, such as `/progress`, or an empty string.
pub(crate) fn word<'a>(target: &'a Value, pointer: &str) -> &'a str {
    target.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Reads an object as the host would. Returns null if the read fails.
pub(crate) async fn read(upstream: &Upstream, path: &str) -> Value {
    let Ok(request) = Request::get(path).body(Bytes::new()) else { return Value::Null };
    let Ok(reply) = upstream.send(request).await else { return Value::Null };
    let content = reply.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    serde_json::from_slice(&content).unwrap_or(Value::Null)
}

/// Removes the finalizers of an object that `keep` rejects.
pub(crate) async fn keep_finalizers(upstream: &Upstream, path: &str, keep: impl Fn(&str) -> bool) {
    let object = read(upstream, path).await;
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten();
    let kept: Vec<&str> = all.filter_map(Value::as_str).filter(|name| keep(name)).collect();
    let patch = json!({"metadata": {"uid": object.pointer("/metadata/uid"), "finalizers": kept}});
    let request = Request::patch(path).header("content-type", "application/merge-patch+json");
    if let Ok(request) = request.body(Bytes::from(patch.to_string())) {
        // The host with this bug ignores the answer too.
        let _unread = upstream.send(request).await.is_err();
    }
}
