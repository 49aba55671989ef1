//! Columns and cells of the built-in kinds, as the real server prints them. `workload_rows` has the kinds that run pods.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    kinds::registry::Kind,
    object::{self, at, str_at},
    printing::{
        cell::{Columns, PrintedObject, list},
        duration::age,
        json_path, workload_rows,
    },
};

/// Returns the columns of a built-in kind after `Name`.
pub(crate) fn columns(kind: &Kind) -> Columns {
    workload_rows::columns(&kind.kind).unwrap_or_else(|| other_columns(&kind.kind))
}

fn other_columns(kind: &str) -> Columns {
    match kind {
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

/// Returns the cells of a row after the name.
pub(crate) fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let row = PrintedObject { object, now };
    workload_rows::cells(&kind.kind, row).unwrap_or_else(|| other_cells(&kind.kind, row))
}

fn other_cells(kind: &str, row: PrintedObject<'_>) -> Vec<Value> {
    let PrintedObject { object, now } = row;
    let size = |field: &str| {
        json!(at(object, &[field]).and_then(Value::as_object).map_or(0, serde_json::Map::len).to_string())
    };
    match kind {
        "Node" => vec![
            json!(node_status(object)),
            json!(node_roles(object)),
            row.age(),
            row.text(&["status", "nodeInfo", "kubeletVersion"]),
        ],
        "Namespace" => vec![row.text(&["status", "phase"]), row.age()],
        "ConfigMap" => vec![size("data"), row.age()],
        "Secret" => vec![row.text(&["type"]), size("data"), row.age()],
        "Service" => {
            vec![row.text(&["spec", "type"]), row.text(&["spec", "clusterIP"]), json!(ports(object)), row.age()]
        }
        "Event" => event(object, now),
        "PodDisruptionBudget" => {
            let bound = |field: &str| json!(at(object, &["spec", field]).map_or("N/A".into(), json_path::text));
            vec![
                bound("minAvailable"),
                bound("maxUnavailable"),
                row.number(&["status", "disruptionsAllowed"]),
                row.age(),
            ]
        }
        "Lease" => vec![row.text(&["spec", "holderIdentity"]), row.age()],
        "CustomResourceDefinition" | "Role" | "ClusterRole" => {
            vec![json!(object::meta_str(object, "creationTimestamp"))]
        }
        "RoleBinding" | "ClusterRoleBinding" => {
            let role = format!("{}/{}", str_at(object, &["roleRef", "kind"]), str_at(object, &["roleRef", "name"]));
            vec![json!(role), row.age()]
        }
        "ValidatingAdmissionPolicy" => {
            let rules = at(object, &["spec", "validations"]).and_then(Value::as_array).map_or(0, Vec::len);
            vec![json!(rules), json!("<unset>"), row.age()]
        }
        "ValidatingAdmissionPolicyBinding" => vec![row.text(&["spec", "policyName"]), json!("<unset>"), row.age()],
        _ => vec![row.age()],
    }
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
