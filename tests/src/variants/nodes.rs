//! Known-bad hosts that make tasks on nodes too early, and that do not know whose a cordon is.
//!
//! Takes status writes, pods of tasks and patches of nodes; yields them in another order, or with more or less of a cordon. May
//! not make anything that the host would not make at all.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::crash::line::{Reply, Wire};
use crate::variants::order::Swapped;
use crate::variants::{Deed, Variant, body, send_changed, told};

/// Makes the pod of a task first, and writes down afterwards that it was going to.
#[derive(Debug, Default)]
pub struct MakesTasksBeforeItRecords {
    swapped: Swapped,
}

fn tells_of_a_task(status: &Value) -> bool {
    let keys = told(status).filter_map(|target| target.pointer("/extraInfo")?.as_object());
    keys.flat_map(serde_json::Map::keys).any(|key| key.starts_with("Task/"))
}

impl Variant for MakesTasksBeforeItRecords {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let records = Deed::of(&request) == Deed::Records && tells_of_a_task(&body(&request));
            let acts = request.method() == Method::POST && request.uri().path().ends_with("/pods");
            self.swapped.carry(request, (records, acts), wire).await
        })
    }
}

/// Whether a request takes something of a job off a node.
fn lets_go_of_a_node(request: &Request<Bytes>) -> bool {
    let is_node = request.uri().path().starts_with("/api/v1/nodes/") && request.method() == Method::PATCH;
    let annotations = body(request).pointer("/metadata/annotations").cloned();
    let mut all = annotations.iter().filter_map(Value::as_object).flatten();
    is_node && all.any(|(key, value)| key.starts_with("hold.oarlock.dev/") && value.is_null())
}

/// Takes every cordon off a node that it lets go, also that of somebody else.
#[derive(Debug, Default)]
pub struct TakesEveryCordonOff;

impl Variant for TakesEveryCordonOff {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        let concerns = lets_go_of_a_node(&request);
        send_changed(request, wire, concerns, |patch| {
            if let Some(patch) = patch.as_object_mut() {
                patch.insert("spec".to_owned(), json!({"unschedulable": null}));
            }
        })
    }
}

/// Takes its mark off a node and leaves its cordon.
#[derive(Debug, Default)]
pub struct LeavesItsCordon;

impl Variant for LeavesItsCordon {
    fn carry<'a>(&'a self, request: Request<Bytes>, wire: &'a Wire) -> BoxFuture<'a, Reply> {
        let concerns = lets_go_of_a_node(&request);
        send_changed(request, wire, concerns, |patch| {
            patch.as_object_mut().into_iter().for_each(|patch| drop(patch.remove("spec")));
        })
    }
}
