//! A view of an OpsJob at one time. While its OperationJob exists, the OperationJob provides the targets.
//!
//! A view takes an OpsJob and its OperationJob, if that could be read, and has the same form as the view of an OperationJob. It trusts no
//! field of these objects. Source: docs/opsjob.md 4, 5.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, TargetError};
use serde::Serialize;
use serde_json::Value;

use crate::job_view::{JobView, Notice};
use crate::shown_progress::{ShownCounts, ShownProgress};
use crate::target_view::TargetView;

/// The conditions that explain why a job waits or how it ended, with the status in which they do.
const TELLING: [(&str, &str); 5] = [
    ("TargetsResolved", "False"),
    ("OperationJobCreated", "False"),
    ("ActionAvailable", "False"),
    ("Stopping", "True"),
    ("Failed", "True"),
];
/// The most targets that a job can have. A spec with a higher number is wrong and must not cost memory.
const MOST_TARGETS: usize = 10_000;

/// An input of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownInput {
    /// The name of the input. Several inputs may have the same name.
    pub name: String,
    /// The value as the job has it: text, or a script in Base64.
    pub value: String,
}

/// An output of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownOutput {
    /// The name of the output. Several outputs may have the same name.
    pub name: String,
    /// The value: text, or JSON as text.
    pub value: String,
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn time(value: &Value, pointer: &str) -> Option<Timestamp> {
    text(value, pointer).parse().ok()
}

impl JobView {
    /// Returns the view of an OpsJob, with the targets of its OperationJob.
    pub fn of_ops(ops: &Value, child: Option<&OperationJob>) -> Self {
        let targets = match child {
            Some(child) => Self::new(child, []).targets().to_vec(),
            None => targets(ops),
        };
        let progress = match text(ops, "/status/phase") {
            "" | "Pending" => ShownProgress::Pending,
            "Running" => ShownProgress::Processing,
            "Succeeded" => ShownProgress::Succeeded,
            "Failed" => ShownProgress::Failed,
            _ => ShownProgress::Unknown,
        };
        let view = Self {
            is_ops: true,
            name: text(ops, "/metadata/name").to_owned(),
            uid: text(ops, "/metadata/uid").to_owned(),
            action: text(ops, "/spec/type").to_owned(),
            plugin: child.and_then(|child| child.status.as_ref()?.plugin.clone()),
            progress,
            counts: counts(ops),
            created: time(ops, "/metadata/creationTimestamp"),
            started: time(ops, "/status/startedAt"),
            ended: time(ops, "/status/finishedAt"),
            waits_for: list(ops, "/status/waitingFor").first().and_then(Value::as_str).map(str::to_owned),
            notices: conditions(ops).filter(tells).map(notice).collect(),
            conditions: conditions(ops).map(notice).collect(),
            bounds: bounds(ops),
            has_nodes: !matches!(text(ops, "/spec/type"), "dumplog" | "exportimage"),
            is_deleting: ops.pointer("/metadata/deletionTimestamp").is_some(),
            inputs: inputs(ops),
            outputs: outputs(ops),
            has_child: ops.pointer("/status/operationJob").is_some(),
            ..Self::default()
        };
        view.with_targets(targets)
    }
}

/// Returns the targets from the OpsJob itself: conditions name the failed targets, and outputs name the successful ones.
fn targets(ops: &Value) -> Vec<TargetView> {
    let has_ended = matches!(text(ops, "/status/phase"), "Succeeded" | "Failed");
    let outputs = outputs(ops);
    let mut succeeded: BTreeSet<String> =
        outputs.iter().filter(|output| output.name == "node").map(|output| output.value.clone()).collect();
    for result in outputs.iter().filter(|output| output.name == "result") {
        let result: Value = serde_json::from_str(&result.value).unwrap_or_default();
        succeeded.extend(list(&result, "/healthy_nodes").iter().filter_map(Value::as_str).map(str::to_owned));
    }
    for nodes in outputs.iter().filter(|output| output.name == "nodes") {
        let nodes: Vec<Value> = serde_json::from_str(&nodes.value).unwrap_or_default();
        let passed = nodes.iter().filter(|node| node.get("passed") == Some(&Value::Bool(true)));
        succeeded.extend(passed.map(|node| text(node, "/node").to_owned()));
    }
    // All targets of a dumplog have succeeded unless the output lists them as missing.
    if let Some(missing) = outputs.iter().find(|output| output.name == "missing").filter(|_| has_ended) {
        let missing: Vec<String> = serde_json::from_str(&missing.value).unwrap_or_default();
        let named = list(ops, "/spec/targets").iter().map(|target| text(target, "/name").to_owned());
        succeeded.extend(named.filter(|name| !missing.contains(name)));
    }
    // An export has one target.
    if outputs.iter().any(|output| output.name == "status" && output.value == "completed") {
        succeeded.extend(list(ops, "/spec/targets").iter().map(|target| text(target, "/name").to_owned()));
    }
    let failure = |name: &str| {
        let of_name = |one: &&Value| text(one, "/type") == name && text(one, "/status") == "False";
        let condition = list(ops, "/status/conditions").iter().find(of_name)?;
        let [reason, message] = ["/reason", "/message"].map(|field| text(condition, field).to_owned());
        Some(TargetError { reason, message })
    };
    let named = list(ops, "/spec/targets").iter().take(MOST_TARGETS).map(|target| text(target, "/name"));
    let view = |(index, name): (usize, &str)| {
        let error = failure(name);
        let progress = match (&error, has_ended) {
            (Some(_), _) => ShownProgress::Failed,
            _ if succeeded.contains(name) => ShownProgress::Succeeded,
            (None, true) => ShownProgress::Unknown,
            (None, false) => ShownProgress::Pending,
        };
        TargetView { error, ..TargetView::unexplained(index, name, progress) }
    };
    named.enumerate().map(view).collect()
}

/// Returns the numbers of targets. Targets that were skipped because others had failed count as pending.
fn counts(ops: &Value) -> ShownCounts {
    let count = |field: &str| {
        let count = ops.pointer(&format!("/status/progress/{field}")).and_then(Value::as_u64);
        count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    };
    ShownCounts {
        total: count("total"),
        succeeded: count("succeeded"),
        failed: count("failed"),
        in_flight: count("processing"),
        pending: count("pending").saturating_add(count("skipped")),
    }
}

fn conditions(ops: &Value) -> impl Iterator<Item = &Value> {
    list(ops, "/status/conditions").iter()
}

/// Returns true for a condition that explains why the job waits or how it ended.
fn tells(condition: &&Value) -> bool {
    TELLING.contains(&(text(condition, "/type"), text(condition, "/status")))
}

fn notice(condition: &Value) -> Notice {
    let [kind, status, reason, message] =
        ["/type", "/status", "/reason", "/message"].map(|field| text(condition, field).to_owned());
    Notice { condition: kind, status, reason, message }
}

fn bounds(ops: &Value) -> Vec<String> {
    let number = |field: &str| ops.pointer(field).and_then(Value::as_i64).filter(|number| *number > 0);
    // The API sets these fields for each type, but the types that work on pods ignore them.
    let has_batches = !matches!(text(ops, "/spec/type"), "dumplog" | "exportimage");
    let ratio = Some(text(ops, "/spec/availableRatio")).filter(|ratio| has_batches && !ratio.is_empty());
    let bounds = [
        number("/spec/batchCount").filter(|_| has_batches).map(|batch| format!("{batch} at once")),
        ratio.map(|ratio| format!("ratio {ratio}")),
        number("/spec/timeoutSecond").map(|seconds| format!("timeout {seconds} s")),
    ];
    bounds.into_iter().flatten().collect()
}

fn inputs(ops: &Value) -> Vec<ShownInput> {
    let inputs = list(ops, "/spec/inputs").iter();
    inputs
        .map(|one| ShownInput { name: text(one, "/name").to_owned(), value: text(one, "/value").to_owned() })
        .collect()
}

fn outputs(ops: &Value) -> Vec<ShownOutput> {
    let outputs = list(ops, "/status/outputs").iter();
    outputs
        .map(|one| ShownOutput { name: text(one, "/name").to_owned(), value: text(one, "/value").to_owned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plain::{TargetRows, job_text};
    use crate::watched::Watched as _;

    fn ops(status: &Value) -> Value {
        json!({"metadata": {"name": "boot", "uid": "u", "creationTimestamp": "2026-07-01T10:00:00Z"},
            "spec": {"type": "reboot", "batchCount": 2, "timeoutSecond": 60, "availableRatio": "0.5",
                "targets": [{"name": "a", "uid": "1"}, {"name": "b", "uid": "2"}, {"name": "c", "uid": "3"}]},
            "status": status})
    }

    #[test]
    fn one_that_has_ended_tells_of_its_targets_by_conditions_and_outputs() {
        let status = json!({"phase": "Failed", "startedAt": "2026-07-01T10:00:01Z", "finishedAt": "2026-07-01T10:00:31Z",
            "progress": {"total": 3, "succeeded": 1, "failed": 1, "processing": 0, "pending": 0, "skipped": 1},
            "conditions": [{"type": "b", "status": "False", "reason": "NotReady", "message": "it stays down"},
                {"type": "Failed", "status": "True", "reason": "ToleranceExceeded", "message": "1 of 3 targets failed"}],
            "outputs": [{"name": "result", "value": "{\"failed\":1}"}, {"name": "node", "value": "a"}]});
        let view = JobView::of_ops(&ops(&status), None);
        assert_eq!((view.handle(), view.has_ended(), view.has_succeeded()), ("ops/boot".to_owned(), true, false));
        let now = "2026-07-01T10:01:00Z".parse().unwrap();
        assert_eq!(
            job_text(&view, TargetRows::First, now),
            "Job:          ops/boot\nAction:       reboot\nBounds:       2 at once, ratio 0.5, timeout 60 s\n\
             Progress:     Failed, 66% of 3: 1 succeeded, 1 failed, 1 pending\nStarted:      2026-07-01T10:00:01Z, took 30s\n\
             Failed=True ToleranceExceeded: 1 of 3 targets failed\nresult: {\"failed\":1}\n\n\
             TARGET   STATE       FOR\nb        Failed            NotReady: it stays down\nc        Unknown\na        Succeeded\n"
        );
    }

    #[test]
    fn the_pods_of_a_dumplog_have_succeeded_unless_they_are_missing() {
        let status = json!({"phase": "Succeeded", "outputs": [{"name": "missing", "value": "[\"b\"]"}],
            "conditions": [{"type": "b", "status": "False", "reason": "LogUnavailable", "message": "its node is down"}]});
        let view = JobView::of_ops(&ops(&status), None);
        let states: Vec<&str> = view.targets().iter().map(TargetView::state).collect();
        assert_eq!(states, ["Succeeded", "Failed", "Succeeded"]);
    }

    #[test]
    fn one_in_work_shows_what_holds_it_up_and_the_targets_of_its_operation_job() {
        let status = json!({"phase": "Running", "waitingFor": ["drain"], "conditions": [{"type": "ActionAvailable", "status": "False",
            "reason": "NotServed", "message": "no plugin serves reboot"}]});
        let child: OperationJob = serde_json::from_value(json!({"metadata": {"name": "boot"},
            "spec": {"targets": [{"name": "a"}, {"name": "b"}]},
            "status": {"targetDetails": [{"name": "a", "progress": "Processing"}, {"name": "b"}]}}))
        .unwrap();
        let view = JobView::of_ops(&ops(&status), Some(&child));
        let states: Vec<&str> = view.targets().iter().map(TargetView::state).collect();
        assert_eq!(states, ["In flight", "Pending"]);
        assert_eq!((view.waits_for.as_deref(), view.notices.len()), (Some("drain"), 1));
    }

    #[test]
    fn all_inputs_and_conditions_are_there_besides_what_a_person_should_read() {
        let mut job = ops(&json!({"phase": "Running", "operationJob": {"name": "boot"}, "conditions": [
            {"type": "TargetsResolved", "status": "True", "reason": "Found", "message": "3 nodes"},
            {"type": "Failed", "status": "True", "reason": "Stopped", "message": "m"}]}));
        job["spec"]["inputs"] = json!([{"name": "node", "value": "a"}, {"name": "node", "value": "b"}, 7]);
        let view = JobView::of_ops(&job, None);
        let inputs: Vec<(&str, &str)> =
            view.inputs.iter().map(|input| (input.name.as_str(), input.value.as_str())).collect();
        assert_eq!(inputs, [("node", "a"), ("node", "b"), ("", "")]);
        assert_eq!((view.conditions.len(), view.notices.len()), (2, 1));
        assert!(view.has_child && view.has_nodes && view.is_ops());
    }

    #[test]
    fn nothing_in_a_job_can_break_the_view() {
        for wrong in [json!(null), json!({"spec": [], "status": {"phase": 7, "outputs": {}, "conditions": [1, {}]}})] {
            assert!(!JobView::of_ops(&wrong, None).has_ended());
        }
    }
}
