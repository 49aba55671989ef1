//! The state of a task as its pod shows it.
//!
//! Takes the stored task, and its pod; yields the task to store. May not decide when a pod goes. Source:
//! docs/operationjob.md 3.17.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use crate::object::api_object::{Kind, Object};
use crate::object::bound::shown_cause;
use crate::object::task_pod::{Hindrance, TASK_KIND, TaskPod};
use crate::object::time::after;
use crate::operation_job::tasks::stored::{CUT, NodeResult, StoredTask, TaskProgress, of_check};
use crate::plugin::task::{CHECK_POD, RUN_ON_NODE};

/// Time within which the pod of a task must run.
pub(crate) const STARTS_WITHIN: SignedDuration = SignedDuration::from_secs(300);
/// Time that a kubelet has to end a pod that is over and to report the end.
const KUBELET_SLACK: SignedDuration = SignedDuration::from_secs(120);
/// Most characters of a message that are stored.
const MESSAGE_CHARS: usize = 200;
/// Bytes of a termination message that the kubelet takes: the end of the message.
const TERMINATION_MESSAGE: usize = 4096;

/// Returns the kind of the objects that keep outputs.
pub(crate) fn output_kind() -> Kind {
    Kind::new("v1", "ConfigMap")
}

/// Returns a task as its pod shows it.
pub(crate) fn progressed(task: &StoredTask, pod: &Object, seen: &TaskPod) -> StoredTask {
    let task = StoredTask { pod: Some(pod.uid.clone()).filter(|_| !task.of_host), ..task.clone() };
    if !seen.is_over() {
        return match seen.started {
            // The pod started after all.
            true => StoredTask { state: TaskProgress::Running, message: String::new(), waits: awaited(seen), ..task },
            false => StoredTask { state: TaskProgress::Waiting, waits: waits_for(&task, seen), ..task },
        };
    }
    let Some(end) = seen.ended.as_ref().filter(|_| !was_ended(pod, seen)) else {
        let message = never_begun(&task, seen).unwrap_or_else(|| end_of_pod(pod, seen));
        return StoredTask { state: TaskProgress::Failed, message, waits: String::new(), ..task };
    };
    let result = result(pod, seen);
    let exit_code = match &result {
        Some(result) => result.exit_code,
        None => Some(end.exit_code),
    };
    let state = if exit_code == Some(0) { TaskProgress::Succeeded } else { TaskProgress::Failed };
    let why =
        [&seen.why, &end.reason].into_iter().find(|word| !word.is_empty() && *word != "Completed" && *word != "Error");
    let message = match &result {
        Some(result) => result.message.clone(),
        None => why.cloned(),
    };
    let output = output(pod, seen).unwrap_or_default();
    let digest = || Sha256::digest(output.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sha256 = result.and_then(|result| result.sha256).or_else(|| (!output.is_empty()).then(digest));
    let message = shown_cause(&message.unwrap_or_default(), MESSAGE_CHARS);
    let output = if is(pod, CHECK_POD) { of_check(output, exit_code == Some(0)) } else { output };
    StoredTask { state, exit_code, sha256, output, message, ..task }
}

/// Returns true if another party ended the pod of a check. The result of its program then tells nothing about the node.
/// A command on a node reports its end itself.
fn was_ended(pod: &Object, seen: &TaskPod) -> bool {
    let as_a_whole = matches!(seen.hindrance, Hindrance::Deadline | Hindrance::Ended);
    !is(pod, RUN_ON_NODE) && (as_a_whole || pod.terminating())
}

/// Returns the message of a task whose pod another party ended. Plugins go by its first word.
fn end_of_pod(pod: &Object, seen: &TaskPod) -> String {
    let word = if seen.hindrance == Hindrance::Deadline { "timed out" } else { "lost" };
    let why = match seen.why.as_str() {
        "" if pod.terminating() => "somebody deleted its pod",
        "" => &seen.phase,
        why => why,
    };
    shown_cause(&format!("{word}: {why}"), MESSAGE_CHARS)
}

/// Returns the wait of a task of the host that has begun: for its turn, or for its next try.
fn awaited(seen: &TaskPod) -> String {
    if seen.hindrance == Hindrance::Turn { shown_cause(&seen.why, MESSAGE_CHARS) } else { String::new() }
}

/// Returns the wait of a pod that has not started. The words of a cause change with each try, so the first ones stay.
fn waits_for(task: &StoredTask, seen: &TaskPod) -> String {
    let word = word(seen);
    if word.is_empty() || task.waits.starts_with(word) {
        return task.waits.clone();
    }
    shown_cause(&format!("{word}{}", seen.why), MESSAGE_CHARS)
}

/// Returns the message of a task whose pod was over before its container began. The timeout of the task was shorter
/// than the time for a start.
fn never_begun(task: &StoredTask, seen: &TaskPod) -> Option<String> {
    let has_begun = seen.ended.as_ref().is_some_and(|end| end.reason != "ContainerStatusUnknown");
    let is_meant = seen.hindrance == Hindrance::Deadline && !has_begun;
    let (word, why) = task.waits.split_once(": ").filter(|_| is_meant)?;
    Some(shown_cause(&format!("{word}: not started within {} s: {why}", seen.deadline_seconds), MESSAGE_CHARS))
}

/// Returns the first word of a message, if the cause that keeps a pod from starting is known.
fn word(seen: &TaskPod) -> &'static str {
    match seen.hindrance {
        Hindrance::Image => "image: ",
        Hindrance::Unschedulable => "unschedulable: ",
        Hindrance::Other | Hindrance::Turn | Hindrance::Deadline | Hindrance::Ended => "",
    }
}

/// Returns the message of a task whose pod did not start in time. If the cause is known, its word comes first.
pub(crate) fn not_started(seen: &TaskPod) -> String {
    let word = word(seen);
    let why = if seen.why.is_empty() { String::new() } else { format!(": {}", seen.why) };
    shown_cause(&format!("{word}not started within {} s{why}", STARTS_WITHIN.as_secs()), MESSAGE_CHARS)
}

/// Returns the failed task of a pod that is gone without a result.
pub(crate) fn gone(task: StoredTask) -> StoredTask {
    let message = match task.message.as_str() {
        "" => "lost: its pod is gone without a result, so it may have run".to_owned(),
        not_started => not_started.to_owned(),
    };
    StoredTask { state: TaskProgress::Failed, message, ..task }
}

/// Returns the time by which the kubelet must have ended a pod and reported the end.
pub(crate) fn must_have_ended(pod: &Object, seen: &TaskPod) -> Option<Timestamp> {
    let last = match pod.deleted {
        Some(deleted) => deleted,
        None => after(after(pod.created?, STARTS_WITHIN), SignedDuration::from_secs(seen.deadline_seconds)),
    };
    Some(after(last, KUBELET_SLACK))
}

/// Returns the failed task of a pod that no kubelet ends. The real outcome of the task is unknown.
pub(crate) fn given_up(task: StoredTask, pod: &Object) -> StoredTask {
    let message = match task.message.as_str() {
        "" if pod.terminating() => "lost: its pod is deleted, and its kubelet does not end it".to_owned(),
        "" => "timed out: its kubelet does not end its pod".to_owned(),
        not_started => format!("lost: {not_started}, and its kubelet does not end it"),
    };
    StoredTask { state: TaskProgress::Failed, message: shown_cause(&message, MESSAGE_CHARS), ..task }
}

/// Returns true if the pod belongs to a task of this kind.
fn is(pod: &Object, kind: &str) -> bool {
    pod.labels.get(TASK_KIND) == Some(kind)
}

/// Returns the result that a command on a node left.
fn result(pod: &Object, seen: &TaskPod) -> Option<NodeResult> {
    let end = seen.ended.as_ref().filter(|_| is(pod, RUN_ON_NODE))?;
    Some(serde_json::from_str(&end.message).unwrap_or_else(|_| NodeResult {
        message: Some(format!(
            "lost: its pod ended with exit code {} and without a result ({})",
            end.exit_code, end.reason
        )),
        ..NodeResult::default()
    }))
}

/// Returns the output of a task, as far as its pod has the output.
pub(crate) fn output(pod: &Object, seen: &TaskPod) -> Option<String> {
    let text = match result(pod, seen) {
        Some(result) if result.truncated => format!("[...]{}", result.output),
        Some(result) => result.output,
        None => as_taken(&seen.ended.as_ref()?.message),
    };
    // A ConfigMap takes only text, and control characters of a terminal are no text.
    Some(text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect())
}

/// Returns a termination message, with a mark if the kubelet may have kept only its end. A whole JSON object was not
/// cut.
fn as_taken(message: &str) -> String {
    let may_be_cut =
        message.len() >= TERMINATION_MESSAGE && serde_json::from_str::<BTreeMap<String, IgnoredAny>>(message).is_err();
    if may_be_cut { format!("{CUT}{message}") } else { message.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::object::task_pod::TASK;

    fn seen(status: &Value) -> TaskPod {
        let document = json!({"metadata": {"labels": {TASK: "check"}}, "status": status,
            "spec": {"nodeName": "n", "activeDeadlineSeconds": 30}});
        TaskPod::read(&document).unwrap()
    }

    fn waiting(reason: &str) -> TaskPod {
        let state = json!({"waiting": {"reason": reason, "message": "no such image"}});
        seen(&json!({"phase": "Pending", "containerStatuses": [{"name": "task", "state": state}]}))
    }

    fn over(reason: &str) -> TaskPod {
        let state = json!({"terminated": {"exitCode": 137, "reason": reason}});
        let statuses = json!([{"name": "task", "state": state}]);
        seen(
            &json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long", "containerStatuses": statuses}),
        )
    }

    #[test]
    fn a_pod_that_its_kubelet_ended_before_it_began_tells_what_it_had_waited_for() {
        let mut task = StoredTask::default();
        // Two words for one cause take turns. The first word stays, so that the host does not write at each try.
        for reason in ["ErrImagePull", "ImagePullBackOff"] {
            task.waits = waits_for(&task, &waiting(reason));
            assert_eq!(task.waits, "image: ErrImagePull: no such image");
        }
        let told = never_begun(&task, &over("ContainerStatusUnknown"));
        assert_eq!(told.as_deref(), Some("image: not started within 30 s: ErrImagePull: no such image"));
    }

    #[test]
    fn one_that_ran_or_waited_for_nothing_timed_out() {
        let waits = StoredTask { waits: "image: ErrImagePull".into(), ..StoredTask::default() };
        assert_eq!(never_begun(&waits, &over("Error")), None);
        assert_eq!(never_begun(&StoredTask::default(), &over("ContainerStatusUnknown")), None);
        assert_eq!(waits_for(&StoredTask::default(), &waiting("ContainerCreating")), "");
    }
}
