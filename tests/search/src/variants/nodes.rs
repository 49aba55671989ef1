//! Known-bad hosts that create tasks on nodes too early, or that do not know who owns a cordon.
//!
//! Takes status writes, pods of tasks and patches of nodes; yields them in another order, or with a wrong cordon. May not
//! create an object that the host would not create.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::variants::order::Swapped;
use crate::variants::{body, send_changed, told};
use oarlock_scenarios::host_requests::{Reply, Upstream};
use oarlock_scenarios::variant::{Deed, Variant};

/// A host that creates the pod of a task first and records the task afterwards.
#[derive(Debug, Default)]
pub struct MakesTasksBeforeItRecords {
    swapped: Swapped,
}

fn tells_of_a_task(status: &Value) -> bool {
    let keys = told(status).filter_map(|target| target.pointer("/extraInfo")?.as_object());
    keys.flat_map(serde_json::Map::keys).any(|key| key.starts_with("Task/"))
}

impl Variant for MakesTasksBeforeItRecords {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let records = Deed::of(&request) == Deed::Records && tells_of_a_task(&body(&request));
            let acts = request.method() == Method::POST && request.uri().path().ends_with("/pods");
            self.swapped.carry(request, (records, acts), upstream).await
        })
    }
}

/// Returns true if a request removes a job's hold from a node.
fn lets_go_of_a_node(request: &Request<Bytes>) -> bool {
    let is_node = request.uri().path().starts_with("/api/v1/nodes/") && request.method() == Method::PATCH;
    let annotations = body(request).pointer("/metadata/annotations").cloned();
    let mut all = annotations.iter().filter_map(Value::as_object).flatten();
    is_node && all.any(|(key, value)| key.starts_with("hold.oarlock.dev/") && value.is_null())
}

/// A host that uncordons every node that it releases, even if someone else cordoned it.
#[derive(Debug, Default)]
pub struct TakesEveryCordonOff;

impl Variant for TakesEveryCordonOff {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        let concerns = lets_go_of_a_node(&request);
        send_changed(request, upstream, concerns, |patch| {
            if let Some(patch) = patch.as_object_mut() {
                patch.insert("spec".to_owned(), json!({"unschedulable": null}));
            }
        })
    }
}

/// A host that removes its hold from a node and leaves its cordon.
#[derive(Debug, Default)]
pub struct LeavesItsCordon;

impl Variant for LeavesItsCordon {
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply> {
        let concerns = lets_go_of_a_node(&request);
        send_changed(request, upstream, concerns, |patch| {
            patch.as_object_mut().into_iter().for_each(|patch| drop(patch.remove("spec")));
        })
    }
}
