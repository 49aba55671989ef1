//! A task as its pod shows it.
//!
//! Takes what is stored of a task, and its pod; yields what is to be stored. May not decide when a pod goes. Source:
//! docs/operationjob.md 3.17.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use crate::cluster::object::Object;
use crate::cluster::task_pod::{Hindrance, TASK_KIND, TaskPod};
use crate::job::state::cut;
use crate::job::task::{CUT, NodeResult, StoredTask, TaskProgress, of_check};
use crate::job::time::after;
use crate::plugin::task::{CHECK_POD, RUN_ON_NODE};

/// Time in which the pod of a task must run.
pub(super) const STARTS_WITHIN: SignedDuration = SignedDuration::from_secs(300);
/// Time that a kubelet has to end a pod that is over and to say so.
const KUBELET_SLACK: SignedDuration = SignedDuration::from_secs(120);
/// Most characters of a message that are stored.
const MESSAGE_CHARS: usize = 200;
/// Bytes that the kubelet takes of a termination message: the end of it.
const TERMINATION_MESSAGE: usize = 4096;

/// A task as its pod shows it.
pub(super) fn progressed(task: &StoredTask, pod: &Object, seen: &TaskPod) -> StoredTask {
    let task = StoredTask { pod: Some(pod.uid.clone()), ..task.clone() };
    if !seen.is_over() {
        return match seen.started {
            // It started after all.
            true => StoredTask { state: TaskProgress::Running, message: String::new(), ..task },
            false => StoredTask { state: TaskProgress::Waiting, ..task },
        };
    }
    let Some(end) = seen.ended.as_ref().filter(|_| !was_ended(pod, seen)) else {
        return StoredTask { state: TaskProgress::Failed, message: end_of_pod(pod, seen), ..task };
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
    let message = cut(&message.unwrap_or_default(), MESSAGE_CHARS);
    let output = if is(pod, CHECK_POD) { of_check(output, exit_code == Some(0)) } else { output };
    StoredTask { state, exit_code, sha256, output, message, ..task }
}

/// True if somebody ended the pod of a check: what its program made of that says nothing of the node. A command on a node
/// says itself what became of it.
fn was_ended(pod: &Object, seen: &TaskPod) -> bool {
    let as_a_whole = matches!(seen.hindrance, Hindrance::Deadline | Hindrance::Ended);
    !is(pod, RUN_ON_NODE) && (as_a_whole || pod.terminating())
}

/// The message of a task whose pod was ended. Its first word is what plugins go by.
fn end_of_pod(pod: &Object, seen: &TaskPod) -> String {
    let word = if seen.hindrance == Hindrance::Deadline { "timed out" } else { "lost" };
    let why = match seen.why.as_str() {
        "" if pod.terminating() => "somebody deleted its pod",
        "" => &seen.phase,
        why => why,
    };
    cut(&format!("{word}: {why}"), MESSAGE_CHARS)
}

/// The message of a task whose pod did not start in time. Where it is known what kept it, that is the first word.
pub(super) fn not_started(seen: &TaskPod) -> String {
    let word = match seen.hindrance {
        Hindrance::Image => "image: ",
        Hindrance::Unschedulable => "unschedulable: ",
        Hindrance::Other | Hindrance::Deadline | Hindrance::Ended => "",
    };
    let why = if seen.why.is_empty() { String::new() } else { format!(": {}", seen.why) };
    cut(&format!("{word}not started within {} s{why}", STARTS_WITHIN.as_secs()), MESSAGE_CHARS)
}

/// A task whose pod is gone without a result.
pub(super) fn gone(task: StoredTask) -> StoredTask {
    let message = match task.message.as_str() {
        "" => "lost: its pod is gone without a result, so it may have run".to_owned(),
        not_started => not_started.to_owned(),
    };
    StoredTask { state: TaskProgress::Failed, message, ..task }
}

/// Time by which the kubelet must have ended a pod, and said so.
pub(super) fn must_have_ended(pod: &Object, seen: &TaskPod) -> Option<Timestamp> {
    let last = match pod.deleted {
        Some(deleted) => deleted,
        None => after(after(pod.created?, STARTS_WITHIN), SignedDuration::from_secs(seen.deadline_seconds)),
    };
    Some(after(last, KUBELET_SLACK))
}

/// A task whose pod no kubelet ends. What that does not say is not known.
pub(super) fn given_up(task: StoredTask, pod: &Object) -> StoredTask {
    let message = match task.message.as_str() {
        "" if pod.terminating() => "lost: its pod is deleted, and its kubelet does not end it".to_owned(),
        "" => "timed out: its kubelet does not end its pod".to_owned(),
        not_started => format!("lost: {not_started}, and its kubelet does not end it"),
    };
    StoredTask { state: TaskProgress::Failed, message: cut(&message, MESSAGE_CHARS), ..task }
}

/// True of the pod of a task of this kind.
fn is(pod: &Object, kind: &str) -> bool {
    pod.labels.get(TASK_KIND) == Some(kind)
}

/// The result that a command on a node left.
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

/// The output of a task, as far as its pod has it.
pub(super) fn output(pod: &Object, seen: &TaskPod) -> Option<String> {
    let text = match result(pod, seen) {
        Some(result) if result.truncated => format!("[...]{}", result.output),
        Some(result) => result.output,
        None => as_taken(&seen.ended.as_ref()?.message),
    };
    // A ConfigMap takes text alone; control characters of a terminal are none.
    Some(text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect())
}

/// A termination message, marked where the kubelet may have kept its end alone: not where it is a whole JSON object.
fn as_taken(message: &str) -> String {
    let may_be_cut =
        message.len() >= TERMINATION_MESSAGE && serde_json::from_str::<BTreeMap<String, IgnoredAny>>(message).is_err();
    if may_be_cut { format!("{CUT}{message}") } else { message.to_owned() }
}
