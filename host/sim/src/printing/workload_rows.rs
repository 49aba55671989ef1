//! Columns and cells of pods and of the kinds that create pods.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    object::{self, at, str_at},
    printing::{
        cell::{Columns, PrintedObject, list},
        duration::{age, human},
    },
};

/// Returns the columns after `Name`, or `None` for any other kind.
pub(crate) fn columns(kind: &str) -> Option<Columns> {
    Some(match kind {
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
        _ => return None,
    })
}

/// Returns the cells after the name, or `None` for any other kind.
pub(crate) fn cells(kind: &str, row: PrintedObject<'_>) -> Option<Vec<Value>> {
    Some(match kind {
        "Pod" => pod(row),
        "Deployment" => vec![
            ready_of_wanted(row),
            row.number(&["status", "updatedReplicas"]),
            row.number(&["status", "availableReplicas"]),
            row.age(),
        ],
        "ReplicaSet" => vec![
            row.number(&["spec", "replicas"]),
            row.number(&["status", "replicas"]),
            row.number(&["status", "readyReplicas"]),
            row.age(),
        ],
        "DaemonSet" => vec![
            row.number(&["status", "desiredNumberScheduled"]),
            row.number(&["status", "currentNumberScheduled"]),
            row.number(&["status", "numberReady"]),
            row.number(&["status", "updatedNumberScheduled"]),
            row.number(&["status", "numberAvailable"]),
            row.age(),
        ],
        "StatefulSet" => vec![ready_of_wanted(row), row.age()],
        "Job" => job(row),
        _ => return None,
    })
}

fn ready_of_wanted(row: PrintedObject<'_>) -> Value {
    let [ready, wanted] = [&["status", "readyReplicas"], &["spec", "replicas"]].map(|path| row.number(path));
    json!(format!("{ready}/{wanted}"))
}

fn pod(row: PrintedObject<'_>) -> Vec<Value> {
    let PrintedObject { object: pod, now } = row;
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
        row.age(),
        row.text(&["status", "podIP"]),
        row.text(&["spec", "nodeName"]),
        row.text(&["status", "nominatedNodeName"]),
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

fn job(row: PrintedObject<'_>) -> Vec<Value> {
    let PrintedObject { object: job, now } = row;
    let condition = |kind: &str| {
        let all = list(job, &["status", "conditions"]);
        all.iter().any(|one| str_at(one, &["type"]) == kind && str_at(one, &["status"]) == "True")
    };
    let status = ["Complete", "Failed", "Suspended"].into_iter().find(|kind| condition(kind)).unwrap_or("Running");
    let done = at(job, &["status", "succeeded"]).and_then(Value::as_i64).unwrap_or_default();
    let wanted = at(job, &["spec", "completions"]).and_then(Value::as_i64).unwrap_or(1);
    let moment = |field: &str| at(job, &["status", field]).and_then(Value::as_str)?.parse::<Timestamp>().ok();
    let took = moment("startTime").map(|start| human(moment("completionTime").unwrap_or(now).duration_since(start)));
    vec![json!(status), json!(format!("{done}/{wanted}")), json!(took.unwrap_or_default()), row.age()]
}
