//! Columns and cells of the built-in kinds, as the real server prints them.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    kinds::registry::Kind,
    object::{self, at, str_at},
    printing::duration::{age, human},
};

/// Name, type, and 1 if the column is shown with `-o wide` only.
type Names = &'static [(&'static str, &'static str, i64)];

/// The columns after `Name`.
pub(crate) fn columns(kind: &Kind) -> Names {
    match kind.kind.as_str() {
        "Pod" => &[
            ("Ready", "string", 0),
            ("Status", "string", 0),
            ("Restarts", "string", 0),
            ("Age", "string", 0),
            ("IP", "string", 1),
            ("Node", "string", 1),
            ("Nominated Node", "string", 1),
            ("Readiness Gates", "string", 1),
        ],
        "Node" => &[("Status", "string", 0), ("Roles", "string", 0), ("Age", "string", 0), ("Version", "string", 0)],
        "Namespace" => &[("Status", "string", 0), ("Age", "string", 0)],
        "ConfigMap" => &[("Data", "string", 0), ("Age", "string", 0)],
        "Secret" => &[("Type", "string", 0), ("Data", "string", 0), ("Age", "string", 0)],
        "Service" => {
            &[("Type", "string", 0), ("Cluster-IP", "string", 0), ("Port(s)", "string", 0), ("Age", "string", 0)]
        }
        "Event" => &[
            ("Last Seen", "string", 0),
            ("Type", "string", 0),
            ("Reason", "string", 0),
            ("Object", "string", 0),
            ("Subobject", "string", 1),
            ("Source", "string", 1),
            ("Message", "string", 0),
            ("First Seen", "string", 1),
            ("Count", "string", 1),
            ("Name", "string", 1),
        ],
        "Deployment" => {
            &[("Ready", "string", 0), ("Up-to-date", "integer", 0), ("Available", "integer", 0), ("Age", "string", 0)]
        }
        "ReplicaSet" => {
            &[("Desired", "integer", 0), ("Current", "integer", 0), ("Ready", "integer", 0), ("Age", "string", 0)]
        }
        "DaemonSet" => &[
            ("Desired", "integer", 0),
            ("Current", "integer", 0),
            ("Ready", "integer", 0),
            ("Up-to-date", "integer", 0),
            ("Available", "integer", 0),
            ("Age", "string", 0),
        ],
        "StatefulSet" => &[("Ready", "string", 0), ("Age", "string", 0)],
        "Job" => {
            &[("Status", "string", 0), ("Completions", "string", 0), ("Duration", "string", 0), ("Age", "string", 0)]
        }
        "PodDisruptionBudget" => &[
            ("Min Available", "string", 0),
            ("Max Unavailable", "string", 0),
            ("Allowed Disruptions", "integer", 0),
            ("Age", "string", 0),
        ],
        "Lease" => &[("Holder", "string", 0), ("Age", "string", 0)],
        "CustomResourceDefinition" | "Role" | "ClusterRole" => &[("Created At", "date", 0)],
        "RoleBinding" | "ClusterRoleBinding" => &[("Role", "string", 0), ("Age", "string", 0)],
        "ValidatingAdmissionPolicy" => {
            &[("Validations", "integer", 0), ("ParamKind", "string", 0), ("Age", "string", 0)]
        }
        "ValidatingAdmissionPolicyBinding" => {
            &[("PolicyName", "string", 0), ("ParamRef", "string", 0), ("Age", "string", 0)]
        }
        _ => &[("Age", "string", 0)],
    }
}

/// The cells after the name.
pub(crate) fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let own_age = json!(age(object::meta(object, "creationTimestamp"), now));
    let count = |path: &[&str]| at(object, path).and_then(Value::as_i64).unwrap_or_default();
    let text = |path: &[&str]| json!(shown(at(object, path)));
    let size = |field: &str| {
        json!(at(object, &[field]).and_then(Value::as_object).map_or(0, serde_json::Map::len).to_string())
    };
    let ready = |wanted: i64| json!(format!("{}/{wanted}", count(&["status", "readyReplicas"])));
    let number = |path: &[&str]| json!(count(path));
    match kind.kind.as_str() {
        "Pod" => pod(object, own_age, now),
        "Node" => vec![
            json!(node_status(object)),
            json!(node_roles(object)),
            own_age,
            text(&["status", "nodeInfo", "kubeletVersion"]),
        ],
        "Namespace" => vec![text(&["status", "phase"]), own_age],
        "ConfigMap" => vec![size("data"), own_age],
        "Secret" => vec![text(&["type"]), size("data"), own_age],
        "Service" => vec![text(&["spec", "type"]), text(&["spec", "clusterIP"]), json!(ports(object)), own_age],
        "Event" => event(object, now),
        "Deployment" => vec![
            ready(count(&["spec", "replicas"])),
            number(&["status", "updatedReplicas"]),
            number(&["status", "availableReplicas"]),
            own_age,
        ],
        "ReplicaSet" => vec![
            number(&["spec", "replicas"]),
            number(&["status", "replicas"]),
            number(&["status", "readyReplicas"]),
            own_age,
        ],
        "DaemonSet" => vec![
            number(&["status", "desiredNumberScheduled"]),
            number(&["status", "currentNumberScheduled"]),
            number(&["status", "numberReady"]),
            number(&["status", "updatedNumberScheduled"]),
            number(&["status", "numberAvailable"]),
            own_age,
        ],
        "StatefulSet" => vec![ready(count(&["spec", "replicas"])), own_age],
        "Job" => job(object, own_age, now),
        "PodDisruptionBudget" => {
            let bound = |field: &str| {
                json!(at(object, &["spec", field]).map_or("N/A".into(), crate::printing::json_path::text))
            };
            vec![bound("minAvailable"), bound("maxUnavailable"), number(&["status", "disruptionsAllowed"]), own_age]
        }
        "Lease" => vec![text(&["spec", "holderIdentity"]), own_age],
        "CustomResourceDefinition" | "Role" | "ClusterRole" => {
            vec![json!(object::meta_str(object, "creationTimestamp"))]
        }
        "RoleBinding" | "ClusterRoleBinding" => {
            let role = format!("{}/{}", str_at(object, &["roleRef", "kind"]), str_at(object, &["roleRef", "name"]));
            vec![json!(role), own_age]
        }
        "ValidatingAdmissionPolicy" => {
            let rules = at(object, &["spec", "validations"]).and_then(Value::as_array).map_or(0, Vec::len);
            vec![json!(rules), json!("<unset>"), own_age]
        }
        "ValidatingAdmissionPolicyBinding" => vec![text(&["spec", "policyName"]), json!("<unset>"), own_age],
        _ => vec![own_age],
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map(crate::printing::json_path::text).filter(|text| !text.is_empty()).unwrap_or_else(|| "<none>".to_owned())
}

fn list<'v>(object: &'v Value, path: &[&str]) -> &'v [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn pod(pod: &Value, own_age: Value, now: Timestamp) -> Vec<Value> {
    let statuses = list(pod, &["status", "containerStatuses"]);
    let ready = statuses.iter().filter(|one| one.get("ready") == Some(&json!(true))).count();
    let restarts: i64 = statuses.iter().filter_map(|one| one.get("restartCount")?.as_i64()).sum();
    let last = statuses
        .iter()
        .filter_map(|one| at(one, &["lastState", "terminated", "finishedAt"]))
        .max_by_key(|at| at.to_string());
    let restarts = match last {
        Some(last) if restarts > 0 => format!("{restarts} ({} ago)", age(Some(last), now)),
        _ => restarts.to_string(),
    };
    vec![
        json!(format!("{ready}/{}", list(pod, &["spec", "containers"]).len())),
        json!(pod_status(pod)),
        json!(restarts),
        own_age,
        json!(shown(at(pod, &["status", "podIP"]))),
        json!(shown(at(pod, &["spec", "nodeName"]))),
        json!(shown(at(pod, &["status", "nominatedNodeName"]))),
        json!("<none>"),
    ]
}

fn pod_status(pod: &Value) -> String {
    let reason = [&["status", "reason"][..], &["status", "phase"]]
        .into_iter()
        .map(|path| str_at(pod, path))
        .find(|text| !text.is_empty());
    let mut status = reason.unwrap_or_default().to_owned();
    for one in list(pod, &["status", "containerStatuses"]).iter().rev() {
        let waiting = str_at(one, &["state", "waiting", "reason"]);
        let ended = str_at(one, &["state", "terminated", "reason"]);
        if let Some(reason) = [waiting, ended].into_iter().find(|text| !text.is_empty()) {
            reason.clone_into(&mut status);
        }
    }
    if object::is_deleting(pod) && !matches!(str_at(pod, &["status", "phase"]), "Failed" | "Succeeded") {
        "Terminating".clone_into(&mut status);
    }
    status
}

fn node_status(node: &Value) -> String {
    let ready = list(node, &["status", "conditions"]).iter().find(|one| str_at(one, &["type"]) == "Ready");
    let mut status = match ready.map(|one| str_at(one, &["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if at(node, &["spec", "unschedulable"]) == Some(&json!(true)) {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn node_roles(node: &Value) -> String {
    let labels = object::meta(node, "labels").and_then(Value::as_object).into_iter().flatten();
    let roles = labels.filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/")).collect::<Vec<_>>();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn ports(service: &Value) -> String {
    let one = |port: &Value| format!("{}/{}", port.get("port").unwrap_or(&Value::Null), str_at(port, &["protocol"]));
    let all = list(service, &["spec", "ports"]).iter().map(one).collect::<Vec<_>>();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}

fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let first_of = |paths: &[&[&str]]| paths.iter().find_map(|path| at(event, path));
    let created: &[&str] = &["metadata", "creationTimestamp"];
    let last =
        first_of(&[&["series", "lastObservedTime"], &["lastTimestamp"], &["eventTime"], &["firstTimestamp"], created]);
    let first = first_of(&[&["firstTimestamp"], &["eventTime"], created]);
    let [kind, name] = ["kind", "name"].map(|part| str_at(event, &["involvedObject", part]));
    let source = first_of(&[&["source", "component"], &["reportingComponent"]]).and_then(Value::as_str);
    let count = first_of(&[&["series", "count"], &["count"]]).and_then(Value::as_i64).unwrap_or(1);
    vec![
        json!(age(last, now)),
        json!(str_at(event, &["type"])),
        json!(str_at(event, &["reason"])),
        json!(format!("{}/{name}", kind.to_lowercase())),
        json!(str_at(event, &["involvedObject", "fieldPath"])),
        json!(source.unwrap_or_default()),
        json!(str_at(event, &["message"]).trim()),
        json!(age(first, now)),
        json!(count.to_string()),
        json!(object::name(event)),
    ]
}

fn job(job: &Value, own_age: Value, now: Timestamp) -> Vec<Value> {
    let condition = |kind: &str| {
        let all = list(job, &["status", "conditions"]);
        all.iter().any(|one| str_at(one, &["type"]) == kind && str_at(one, &["status"]) == "True")
    };
    let status = ["Complete", "Failed", "Suspended"].into_iter().find(|kind| condition(kind)).unwrap_or("Running");
    let done = at(job, &["status", "succeeded"]).and_then(Value::as_i64).unwrap_or_default();
    let wanted = at(job, &["spec", "completions"]).and_then(Value::as_i64).unwrap_or(1);
    let moment = |field: &str| at(job, &["status", field]).and_then(Value::as_str)?.parse::<Timestamp>().ok();
    let took = moment("startTime").map(|start| human(moment("completionTime").unwrap_or(now).duration_since(start)));
    vec![json!(status), json!(format!("{done}/{wanted}")), json!(took.unwrap_or_default()), own_age]
}
