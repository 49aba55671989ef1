//! Known-bad hosts: each stands between the host and the API and turns its requests into those of a host with one bug.
//!
//! Takes the requests of a host that is right; yields what the one with the bug would send. They show that the oracles
//! can fail: each must be caught. May not touch the cluster in any way but as that host.

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
use http::{Method, Request};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::crash::line::{Reply, Wire};

/// Keeps an origin until its new pod is recorded.
pub(crate) const PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";

/// A host with one bug.
pub trait Variant: Send + Sync {
    /// Sends what the bug makes of `request`.
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply>;
}

/// What a request of the host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// An eviction of the pod of this name.
    Evicts(String),
    /// A patch of the pod of this name.
    Marks(String),
    /// A job's status.
    Records,
    /// An OperationRecord, made or changed.
    Details,
    /// Anything else.
    Other,
}

impl Deed {
    pub(crate) fn of(request: &Request<Bytes>) -> Self {
        let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        match (request.method(), parts.as_slice()) {
            (&Method::POST, [.., "pods", name, "eviction"]) => Self::Evicts((*name).to_owned()),
            (&Method::PATCH, [.., "pods", name]) => Self::Marks((*name).to_owned()),
            (&Method::PATCH, [.., "operationjobs", _, "status"]) => Self::Records,
            (&Method::POST, [.., "operationrecords"]) | (&Method::PATCH, [.., "operationrecords", _]) => Self::Details,
            _ => Self::Other,
        }
    }

    /// Whether it does something to a pod.
    pub(crate) fn acts(&self) -> bool {
        matches!(self, Self::Evicts(_) | Self::Marks(_))
    }
}

/// The body of a request, null where it is none.
pub(crate) fn body(request: &Request<Bytes>) -> Value {
    serde_json::from_slice(request.body()).unwrap_or(Value::Null)
}

/// The same request with another body.
pub(crate) fn rewritten(request: &Request<Bytes>, change: impl FnOnce(&mut Value)) -> Request<Bytes> {
    let mut value = body(request);
    change(&mut value);
    let mut request = request.clone();
    *request.body_mut() = Bytes::from(value.to_string());
    request
}

/// Sends a request; changed, where the bug concerns it.
pub(crate) fn send_changed<'a>(
    request: Request<Bytes>,
    wire: &'a Wire,
    concerns: bool,
    change: impl FnOnce(&mut Value),
) -> BoxFuture<'a, Reply> {
    let request = if concerns { rewritten(&request, change) } else { request };
    Box::pin(wire.send(request))
}

/// The targets that a status write tells of.
pub(crate) fn told(status: &Value) -> impl Iterator<Item = &Value> {
    status.pointer("/status/targetDetails").and_then(Value::as_array).into_iter().flatten()
}

/// A word of a target, such as `/progress`.
pub(crate) fn word<'a>(target: &'a Value, pointer: &str) -> &'a str {
    target.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Reads an object as the host would.
pub(crate) async fn read(wire: &Wire, path: &str) -> Value {
    let Ok(request) = Request::get(path).body(Bytes::new()) else { return Value::Null };
    let Ok(reply) = wire.send(request).await else { return Value::Null };
    let content = reply.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    serde_json::from_slice(&content).unwrap_or(Value::Null)
}

/// Sets an object's finalizers to what `keep` leaves of them.
pub(crate) async fn keep_finalizers(wire: &Wire, path: &str, keep: impl Fn(&str) -> bool) {
    let object = read(wire, path).await;
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten();
    let kept: Vec<&str> = all.filter_map(Value::as_str).filter(|name| keep(name)).collect();
    let patch = json!({"metadata": {"uid": object.pointer("/metadata/uid"), "finalizers": kept}});
    let request = Request::patch(path).header("content-type", "application/merge-patch+json");
    if let Ok(request) = request.body(Bytes::from(patch.to_string())) {
        // As little looked at as by the host with this bug.
        let _unread = wire.send(request).await.is_err();
    }
}
