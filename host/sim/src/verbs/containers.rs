//! Answers the requests that a kubelet would answer: logs, commands, forwarded ports. Only logs have content, because no container
//! really runs. The other requests are refused with this reason, and with the real server's errors where it would refuse them too.

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use crate::{
    object::{at, str_at},
    server::{
        cluster::{Cluster, State},
        handle::key,
        reply::Reply,
        routing::{Call, Verb},
        status::Refusal,
    },
    verbs::log::Log,
};

/// The pod subresources that this file answers.
pub(crate) const SUBRESOURCES: [&str; 5] = ["attach", "ephemeralcontainers", "exec", "log", "portforward"];

/// Answers a request for one of these subresources.
pub(crate) fn answer(cluster: &Cluster, state: &State, call: &Call) -> Result<Reply, Refusal> {
    let served = match call.subresource.as_str() {
        "log" => matches!(call.verb, Verb::Get | Verb::Watch),
        "ephemeralcontainers" => matches!(call.verb, Verb::Get | Verb::Update | Verb::Patch),
        _ => matches!(call.verb, Verb::Get | Verb::Create),
    };
    if !served {
        return Err(Refusal::method_not_allowed());
    }
    let pod = state.store.get(call.kind.table, &key(call));
    let pod = &pod.ok_or_else(|| Refusal::not_found(&call.kind, &call.name))?.value;
    if matches!(call.subresource.as_str(), "attach" | "exec" | "log") {
        container_is_there(pod, call)?;
    }
    let name = &call.name;
    match (call.subresource.as_str(), str_at(pod, &["spec", "nodeName"])) {
        ("log", "") => return Ok(Reply::Json(StatusCode::NO_CONTENT, Bytes::new())),
        ("attach" | "exec" | "portforward", "") => {
            return Err(Refusal::bad_request(format!("pod {name} does not have a host assigned")));
        }
        _ => {}
    }
    if call.subresource == "log" {
        return Ok(Reply::Log(Box::new(Log::open(cluster, state, call)?)));
    }
    let undone = match call.subresource.as_str() {
        "exec" => format!("cannot run a command in pod {name}"),
        "attach" => format!("cannot attach to pod {name}"),
        "portforward" => format!("cannot forward a port to pod {name}"),
        _ => format!("cannot add a container to pod {name}"),
    };
    Err(Refusal::bad_request(format!("{undone}: pods of a cluster in memory have no containers, nothing runs in them")))
}

/// Refuses a container that the pod lacks, and a request without a container if the pod has several.
fn container_is_there(pod: &Value, call: &Call) -> Result<(), Refusal> {
    let list = |field: &str| at(pod, &["spec", field]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let all = ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(list);
    let names = all.map(|one| str_at(one, &["name"])).collect::<Vec<_>>();
    let pod = &call.name;
    match call.query.get("container") {
        Some(wanted) if !names.contains(&wanted) => {
            Err(Refusal::bad_request(format!("container {wanted} is not valid for pod {pod}")))
        }
        None if list("containers").len() > 1 => {
            let names = names.join(" ");
            let text = format!("a container name must be specified for pod {pod}, choose one of: [{names}]");
            Err(Refusal::bad_request(text))
        }
        _ => Ok(()),
    }
}
