//! JSON documents of scenarios, and processes of this machine.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::ensure;
pub(crate) use oarlock_nodes::states::is_ready;
use serde_json::{Value, json};

use crate::scenario::Scenario;
use crate::shared_cluster::TAINT;

/// Returns the text at a JSON pointer of a document, or an empty text if there is none.
pub(crate) fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn keys_at(object: &Value, pointer: &str) -> Vec<String> {
    object.pointer(pointer).and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// Returns the outputs of an OpsJob, either from the resource or from an answer of the REST API.
pub(crate) fn outputs_of(job: &Value) -> BTreeMap<String, String> {
    let outputs = job.pointer("/status/outputs").or_else(|| job.get("outputs")).and_then(Value::as_array);
    let pair = |output: &Value| (text_at(output, "/name").to_owned(), text_at(output, "/value").to_owned());
    outputs.into_iter().flatten().map(pair).collect()
}

/// Returns the targets of a job by name, each with its progress and the reason of its error.
pub(crate) fn targets_of(job: &Value) -> BTreeMap<String, String> {
    let details = job.pointer("/status/targetDetails").and_then(Value::as_array);
    let word = |one: &Value| {
        let reason = text_at(one, "/error/reason");
        let progress = text_at(one, "/progress");
        (
            text_at(one, "/name").to_owned(),
            if reason.is_empty() { progress.to_owned() } else { format!("{progress}/{reason}") },
        )
    };
    details.into_iter().flatten().map(word).collect()
}

/// Returns the processes of this machine with this command line.
pub(crate) fn processes_of(line: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned());
    lines.filter(|found| found == line).collect()
}

/// Returns a container that runs this script in a shell.
pub(crate) fn shell(script: &str) -> Value {
    json!({"name": "c", "image": "busybox", "command": ["sh", "-c", script]})
}

/// Returns the fields of a pod spec that make the pod run on a node of the scenario.
pub(crate) fn pinned(scenario: &Scenario) -> Value {
    json!({"nodeSelector": {"scenario": scenario.namespace}, "tolerations": [{"key": TAINT, "operator": "Exists"}]})
}

/// Returns a document with the fields of another document added.
pub(crate) fn with(mut document: Value, more: &Value) -> Value {
    if let (Some(fields), Some(more)) = (document.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    document
}

/// Kills the processes of a pod with SIGKILL. The name of their control group has the pod's UID.
pub(crate) fn kill_pod(uid: &str) -> anyhow::Result<()> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_pod = |id: &u32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        // The process that holds the pod's namespaces stays, as on any node.
        read("cgroup").contains(&format!("pod{uid}")) && read("cmdline").contains("oarlock")
    };
    let ids: Vec<u32> = ids.filter(of_pod).collect();
    ensure!(!ids.is_empty(), "no process is of pod {uid}");
    for id in ids {
        // The process may have ended meanwhile.
        let _ = Command::new("kill").arg("-KILL").arg(id.to_string()).status();
    }
    Ok(())
}
