//! Answers a POST to `pods/x/binding`, with which a scheduler sets the node of a pod once.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    controllers::edit,
    object::{self, str_at},
    server::{cluster::State, decode, handle::key, reply::Reply, routing::Call, status::Refusal},
    verbs::{create, update},
};

/// Answers a POST with a binding.
pub(crate) fn bind(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    let binding = decode::body(call)?;
    create::namespace_admits(state, call, &call.name)?;
    if object::name(&binding) != call.name {
        return Err(Refusal::bad_request("name in URL does not match name in Binding object"));
    }
    let node = target(&binding)?;
    let key = key(call);
    let pod = state.store.get(call.kind.table, &key).ok_or_else(|| Refusal::not_found(&call.kind, &call.name))?;
    let (wanted, uid) = (object::uid(&binding), object::uid(&pod.value));
    if !wanted.is_empty() && wanted != uid {
        return Err(update::uid_precondition(call, wanted, uid));
    }
    if let Some(why) = unbindable(&pod.value) {
        let message = format!("Operation cannot be fulfilled on pods/binding {:?}: {why}", call.name);
        let details = json!({"name": call.name, "kind": "pods/binding"});
        return Err(Refusal::plain(409, "Conflict", message).with_details(details));
    }
    if !call.query.dry_run() {
        let time = state.time();
        edit::edit(state, &call.kind, &key, |pod| schedule(pod, node, &time));
    }
    let success = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(Reply::value(StatusCode::CREATED, &success))
}

/// Returns the node of a binding. The real server answers an invalid binding with a 500.
fn target(binding: &Value) -> Result<&str, Refusal> {
    let invalid = |text: String| Err(Refusal::plain(500, "", text));
    let (kind, name) = (str_at(binding, &["target", "kind"]), str_at(binding, &["target", "name"]));
    if !matches!(kind, "" | "Node") {
        return invalid(format!("target.kind: Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\""));
    }
    if name.is_empty() { invalid("target.name: Required value".into()) } else { Ok(name) }
}

fn unbindable(pod: &Value) -> Option<String> {
    let (name, node) = (object::name(pod), str_at(pod, &["spec", "nodeName"]));
    if object::is_deleting(pod) {
        return Some(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    (!node.is_empty()).then(|| format!("pod {name} is already assigned to node {node:?}"))
}

fn schedule(pod: &mut Value, node: &str, time: &str) {
    object::map_at(pod, "spec").insert("nodeName".into(), json!(node));
    let slot = object::map_at(pod, "status").entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = slot.as_array_mut() else { return };
    conditions.retain(|one| str_at(one, &["type"]) != "PodScheduled");
    conditions
        .push(json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": time}));
}
