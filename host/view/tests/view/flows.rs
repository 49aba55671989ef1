//! JobFlows and DaemonJobs as a cluster stores them.

use serde_json::{Value, json};

/// Returns a flow of five steps: 1 and 4 are roots, 2 follows 1, 3 follows 1 and 2, 5 follows 4 and 2.
pub(crate) fn five() -> Value {
    let step = |name: &str, on: &[&str]| json!({"name": name, "dependencies": on, "jobTemplate": {"template": {}}});
    json!({
        "apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow",
        "metadata": {"name": "demo", "namespace": "team-a", "uid": "u1", "generation": 1,
            "creationTimestamp": "2026-07-01T10:00:00Z"},
        "spec": {"flows": [step("1", &[]), step("2", &["1"]), step("3", &["1", "2"]), step("4", &[]), step("5", &["4", "2"])]},
        "status": {
            "state": "Running", "observedGeneration": 1, "progress": "2/5", "startTime": "2026-07-01T10:00:00Z",
            "counts": {"total": 5, "desired": 5, "waiting": 2, "blocked": 0, "pending": 0, "running": 1, "retrying": 0,
                "succeeded": 2, "failed": 0, "omitted": 0},
            "conditions": [
                {"type": "Complete", "status": "False", "reason": "InProgress", "message": ""},
                {"type": "Progressing", "status": "True", "reason": "Working", "message": "waits for 2: its pod runs"},
                {"type": "Valid", "status": "True", "reason": "Accepted", "message": ""}],
            "steps": [
                {"name": "1", "state": "Succeed", "job": "demo-1", "attempt": 0, "startTime": "2026-07-01T10:00:00Z",
                    "completionTime": "2026-07-01T10:00:12Z"},
                {"name": "2", "state": "Running", "job": "demo-2-r1", "attempt": 1, "startTime": "2026-07-01T10:00:30Z"},
                {"name": "3", "state": "Waiting"},
                {"name": "4", "state": "Succeed", "job": "demo-4", "startTime": "2026-07-01T10:00:00Z",
                    "completionTime": "2026-07-01T10:00:45Z"},
                {"name": "5", "state": "Waiting"}]},
    })
}

/// Returns a flow of sixty steps in layers, with branches that wait for failures, and two steps of `finally`.
pub(crate) fn sixty() -> Value {
    let states = ["Succeed", "Succeed", "Running", "Waiting", "Failed", "Blocked", "Pending", "Retrying", "Omitted"];
    let mut flows = Vec::new();
    let mut entries = Vec::new();
    for at in 0..58_usize {
        let name = format!("step-{at:02}-of-the-nightly-import");
        let on: Vec<String> = match at {
            0..6 => Vec::new(),
            _ => [at - 6, at - 3 - at % 4, at / 3]
                .iter()
                .map(|on| format!("step-{on:02}-of-the-nightly-import"))
                .collect(),
        };
        let when = if at >= 6 && at % 11 == 0 {
            "failure"
        } else if at >= 6 && at % 13 == 0 {
            "finished"
        } else {
            "success"
        };
        flows.push(json!({"name": name, "dependencies": on, "when": when}));
        let (state, started) = (states[(at / 5) % 9], (at < 45).then_some("2026-07-01T10:00:30Z"));
        entries.push(json!({"name": name, "state": state, "startTime": started, "attempt": at % 3}));
    }
    let mut flow = five();
    flow["metadata"]["name"] = json!("nightly");
    flow["spec"] = json!({"flows": flows, "finally": [{"name": "clean"}, {"name": "tell", "when": "failure"}]});
    flow["status"]["steps"] = json!(entries);
    flow["status"]["progress"] = json!("17/60");
    flow["status"]["counts"] = Value::Null;
    flow
}

/// Returns a flow with three steps in a cycle, a step before them and a step after them.
pub(crate) fn cycle() -> Value {
    let step = |name: &str, on: &[&str]| json!({"name": name, "dependencies": on});
    let mut flow = five();
    flow["spec"] = json!({"flows": [step("a", &["c"]), step("b", &["a", "root"]), step("c", &["b"]), step("root", &[]), step("last", &["c"])]});
    flow["status"] = Value::Null;
    flow
}

/// Returns a DaemonJob on four nodes: one is blocked and one has failed.
pub(crate) fn daemon() -> Value {
    json!({
        "apiVersion": "api.practice.com/v1alpha1", "kind": "DaemonJob",
        "metadata": {"name": "patch", "namespace": "ops", "uid": "u2", "creationTimestamp": "2026-07-01T10:00:00Z"},
        "spec": {"template": {}},
        "status": {
            "state": "Running", "progress": "2/4", "startTime": "2026-07-01T10:00:00Z",
            "conditions": [{"type": "Blocked", "status": "True", "reason": "NameConflict", "message": "n4: a foreign Job patch-n4"}],
            "nodes": [
                {"name": "n1", "state": "Succeed", "startTime": "2026-07-01T10:00:00Z", "completionTime": "2026-07-01T10:00:20Z"},
                {"name": "n2", "state": "Failed", "reason": "JobFailed", "message": "exit code 3 on n2", "startTime": "2026-07-01T10:00:00Z",
                    "completionTime": "2026-07-01T10:00:30Z"},
                {"name": "n3", "state": "Running", "startTime": "2026-07-01T10:00:00Z"},
                {"name": "n4", "state": "Blocked", "reason": "NameConflict", "message": "Job patch-n4 is owned by nobody"}]},
    })
}
