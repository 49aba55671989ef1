//! Known-bad hosts that write false statuses, or undo what they wrote.
//!
//! Takes status writes; yields them with other facts about targets. May not touch a pod. [`EvictsANewPod`] is the one exception.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::variants::{body, rewritten, told, word};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

type Fields = Map<String, Value>;

/// Returns the status write with each target changed.
fn each(request: &Request<Bytes>, mut change: impl FnMut(&mut Fields)) -> Request<Bytes> {
    rewritten(request, |status| {
        let targets = status.pointer_mut("/status/targetDetails").and_then(Value::as_array_mut);
        targets.into_iter().flatten().filter_map(Value::as_object_mut).for_each(&mut change);
    })
}

fn text<'a>(target: &'a Fields, field: &str) -> &'a str {
    target.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn new_pod(target: &Fields) -> String {
    target
        .get("extraInfo")
        .and_then(|extras| extras.get("NewPod"))
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn set(target: &mut Fields, progress: &str) {
    target.insert("progress".to_owned(), json!(progress));
    let begun = target.get("startTime").cloned();
    match progress {
        "Succeeded" | "Failed" => begun.and_then(|begun| target.insert("endTime".to_owned(), begun)),
        _ => target.remove("endTime"),
    };
}

/// Defines a host whose only fault is in its status writes.
macro_rules! tells {
    ($(#[$about:meta])* $name:ident, $state:ty, $of:expr) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $name {
            state: Mutex<$state>,
        }

        impl Variant for $name {
            fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
                Box::pin(async move {
                    if Deed::of(&request) != Deed::Records {
                        return upstream.send(request).await;
                    }
                    let of: fn(&mut $state, &Request<Bytes>) -> Request<Bytes> = $of;
                    let wrong = of(&mut self.state.lock(), &request);
                    upstream.send(wrong).await
                })
            }
        }
    };
}

tells!(
    /// A host that stores the names of its targets and not their UIDs.
    StoresNoUids, (), |(), request| each(request, |target| drop(target.remove("uid")))
);

tells!(
    /// A host that restarts targets that it had stored as succeeded.
    TakesEndsBack, BTreeSet<String>, |ended, request| each(request, |target| {
        let name = text(target, "name").to_owned();
        if text(target, "progress") == "Succeeded" && !ended.insert(name) {
            set(target, "Processing");
        }
    })
);

tells!(
    /// A host that writes the epoch of its first term in every term.
    StaysInItsFirstEpoch, (), |(), request| rewritten(request, |status| {
        status.pointer_mut("/status/epoch").into_iter().for_each(|epoch| {
            *epoch = json!(epoch.as_i64().unwrap_or(0) % 2);
        });
    })
);

tells!(
    /// A host that stores the same new pod for every target.
    SharesANewPod, String, |first, request| each(request, |target| {
        let pod = new_pod(target);
        if first.is_empty() {
            first.clone_from(&pod);
        }
        if !pod.is_empty() {
            target.insert("extraInfo".to_owned(), json!({"NewPod": first.as_str()}));
        }
    })
);

tells!(
    /// A host that takes a new pod for a pod that serves.
    BelievesInNewPods, (), |(), request| each(request, |target| {
        if text(target, "progress") == "Processing" && !new_pod(target).is_empty() {
            set(target, "Succeeded");
        }
    })
);

tells!(
    /// A host that stores failures as successes.
    TellsNoFailures, (), |(), request| each(request, |target| {
        if text(target, "progress") == "Failed" {
            set(target, "Succeeded");
        }
    })
);

tells!(
    /// A host that starts all its targets at once.
    StartsAllAtOnce, (), |(), request| {
        let begun = told(&body(request)).find_map(|target| target.get("startTime").cloned());
        each(request, |target| {
            if let Some(begun) = begun.clone().filter(|_| text(target, "progress") == "Pending") {
                set(target, "Processing");
                target.insert("startTime".to_owned(), begun);
            }
        })
    }
);

/// A host that also evicts the first new pod that it found.
#[derive(Debug, Default)]
pub struct EvictsANewPod {
    has_evicted: Mutex<bool>,
}

impl Variant for EvictsANewPod {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let records = Deed::of(&request) == Deed::Records;
            let (status, path) = (body(&request), request.uri().path().to_owned());
            let reply = upstream.send(request).await;
            let Some(namespace) = path.split('/').skip_while(|part| *part != "namespaces").nth(1) else { return reply };
            let found = told(&status).map(|target| word(target, "/extraInfo/NewPod")).find(|pod| !pod.is_empty());
            if let Some(pod) = found.filter(|_| records && !std::mem::replace(&mut *self.has_evicted.lock(), true)) {
                let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
                let post = Request::post(format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction"));
                let post = post.header("content-type", "application/json").body(Bytes::from(eviction.to_string()))?;
                let _unread = upstream.send(post).await.is_err();
            }
            reply
        })
    }
}
