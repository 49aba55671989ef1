//! Known-bad hosts that are careless with OperationRecords.
//!
//! Takes writes of records; yields them with less content, or deletes a record again. May not touch pods or statuses.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::variants::{body, rewritten, word};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

/// Defines a host whose only fault is in its writes of records.
macro_rules! details {
    ($(#[$about:meta])* $name:ident, $of:expr) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $name;

        impl Variant for $name {
            fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
                let change: fn(&mut Value) = $of;
                let wrong = if Deed::of(&request) == Deed::Details { rewritten(&request, change) } else { request };
                Box::pin(async move { upstream.send(wrong).await })
            }
        }
    };
}

/// Returns true if the target of a line has ended.
fn has_ended(line: &Value) -> bool {
    let line: Value = line.as_str().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    matches!(word(&line, "/progress"), "Succeeded" | "Failed")
}

details!(
    /// A host that omits the first ended target from each record.
    DropsALineOfARecord,
    |record| {
        let lines = record.pointer_mut("/targets").and_then(Value::as_array_mut);
        lines.into_iter().for_each(|lines| {
            if let Some(at) = lines.iter().position(has_ended) {
                drop(lines.remove(at));
            }
        });
    }
);

details!(
    /// A host that writes the epoch of its first term into the records of every term.
    KeepsRecordsInTheFirstEpoch,
    |record| record.pointer_mut("/epoch").into_iter().for_each(|epoch| *epoch = json!(epoch.as_i64().unwrap_or(0) % 2))
);

/// A host that deletes a record once, as soon as the record has an outcome.
#[derive(Debug, Default)]
pub struct DeletesARecord {
    has_deleted: Mutex<bool>,
}

impl Variant for DeletesARecord {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let (deed, record, path) = (Deed::of(&request), body(&request), request.uri().path().to_owned());
            let lines = record.pointer("/targets").and_then(Value::as_array);
            let ends = deed == Deed::Details && lines.is_some_and(|lines| lines.iter().any(has_ended));
            let is_patch = request.method() == http::Method::PATCH;
            let reply = upstream.send(request).await;
            let done = reply.as_ref().is_ok_and(|reply| reply.status().is_success());
            if ends && is_patch && done && !std::mem::replace(&mut *self.has_deleted.lock(), true) {
                let _unread = upstream.send(Request::delete(path).body(Bytes::new())?).await.is_err();
            }
            reply
        })
    }
}
