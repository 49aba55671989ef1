//! preflight: checks by a pod whether a node is healthy.
//!
//! A node counts as healthy only if the check ran there, ended with exit code 0, and did not report `"passed": false`. All other
//! nodes fail with a reason, also nodes that accept no pod. The plugin must not change the node.

use core::time::Duration;
use std::collections::BTreeMap;

use oarlock_sdk::{
    Action, Failure, Job, Mark, Object, Proposal, Report, Result, Target, TaskRequest, TaskStatus, Value, export, json,
};

/// The name of the task.
pub const TASK: &str = "check";
/// The extra with the exit code of the check.
pub const EXIT_CODE: &str = "ExitCode";

/// The resource names of GPUs, in the order of the search.
const GPUS: [&str; 2] = ["amd.com/gpu", "nvidia.com/gpu"];
/// The effects of taints that keep a pod away.
const KEEPS_AWAY: [&str; 2] = ["NoSchedule", "NoExecute"];
/// The parameters that the task takes unchanged.
const AS_THEY_ARE: [&str; 7] = ["image", "script", "command", "args", "sharedMemory", "hostPaths", "timeoutSeconds"];
/// The longest time between two visits of a node that is checked.
const CHECK: Duration = Duration::from_secs(60);
/// The most characters of an output in a message.
const SHOWN: usize = 256;
/// The words with which the host begins the message of a task without a result, with the reason that this plugin reports.
const REASONS: [(&str, &str); 4] =
    [("lost", "PodLost"), ("image", "ImagePull"), ("unschedulable", "Unschedulable"), ("timed out", "CheckTimeout")];
/// The mark at the beginning of an output that was cut at its beginning.
const CUT: &str = "[...]";

/// The action of this plugin.
#[derive(Debug)]
pub struct Preflight;

impl Action for Preflight {
    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let Some(node) = target.object().filter(|_| target.task(TASK).is_none()) else { return Ok(Proposal::new()) };
        let tolerates = job.parameter("/tolerateAll")?.unwrap_or(false);
        takes_pods(&node, tolerates)?;
        let arguments = arguments(job, target, &node, tolerates)?.to_string();
        Ok(Proposal::new().task(TaskRequest { name: TASK.to_owned(), kind: "check-pod".to_owned(), arguments }))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        let name = target.name();
        let Some(task) = target.task(TASK) else {
            return Ok(match target.object() {
                Some(_) => Report::processing().check_after(CHECK),
                None => gone(&name),
            });
        };
        let report = match (task.state.as_str(), target.object()) {
            ("Succeeded", _) if task.exit_code == Some(0) => passed(&name, &task),
            ("Succeeded" | "Failed", _) => failed(&name, &task),
            (_, None) => gone(&name),
            _ => return Ok(Report::processing().check_after(CHECK)),
        };
        let code = task.exit_code.map(|code| Proposal::new().extra(EXIT_CODE, code.to_string()));
        Ok(code.into_iter().fold(report, Report::with))
    }
}

export!(Preflight, manifest = include_str!("../manifest.json"));

/// Checks that a pod may run on the node. A node that accepts no pod is not healthy.
fn takes_pods(node: &Object, tolerates: bool) -> Result<()> {
    let name = node.name();
    if !node.is_ready()? {
        let said = node.condition("Ready")?.map_or_else(|| "unknown".to_owned(), |ready| ready.status);
        return Err(Failure::permanent("NodeNotReady", format!("Node {name} is not Ready ({said}).")));
    }
    if tolerates {
        return Ok(());
    }
    if Mark::Cordon.is_on(node)? {
        return Err(Failure::permanent("Unschedulable", format!("Node {name} is cordoned.")));
    }
    let taints: Vec<Value> = node.field("/spec/taints")?.unwrap_or_default();
    let text = |taint: &Value, field: &str| taint.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    match taints.iter().find(|taint| KEEPS_AWAY.contains(&text(taint, "effect").as_str())) {
        Some(taint) => {
            let (key, effect) = (text(taint, "key"), text(taint, "effect"));
            Err(Failure::permanent("Unschedulable", format!("Node {name} has the taint {key}:{effect}.")))
        }
        None => Ok(()),
    }
}

/// Returns the arguments of the task.
fn arguments(job: &Job, target: &Target, node: &Object, tolerates: bool) -> Result<Value> {
    let mut arguments = json!({"tolerateAll": tolerates});
    for name in AS_THEY_ARE {
        let given: Option<Value> = job.parameter(&format!("/{name}"))?;
        put(&mut arguments, name, given);
    }
    let mut env: BTreeMap<String, String> = job.parameter("/env")?.unwrap_or_default();
    let own = [
        ("OARLOCK_NODE_NAME", target.name()),
        ("OARLOCK_JOB_ID", job.uid()),
        ("OARLOCK_NODE_INDEX", target.index().to_string()),
        ("OARLOCK_NODE_COUNT", job.target_count().to_string()),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    let mut resources: BTreeMap<String, String> = job.parameter("/resources")?.unwrap_or_default();
    let gpus: u32 = job.parameter("/gpus")?.unwrap_or(0);
    if gpus > 0 {
        resources.insert(gpu_of(job, node)?, gpus.to_string());
    }
    put(&mut arguments, "env", Some(json!(env)));
    put(&mut arguments, "resources", Some(json!(resources)).filter(|_| !resources.is_empty()));
    Ok(arguments)
}

fn put(arguments: &mut Value, name: &str, value: Option<Value>) {
    if let (Some(fields), Some(value)) = (arguments.as_object_mut(), value) {
        fields.insert(name.to_owned(), value);
    }
}

/// Returns the resource name of the node's GPUs.
fn gpu_of(job: &Job, node: &Object) -> Result<String> {
    let named: Option<String> = job.parameter("/gpuName")?;
    let allocatable: BTreeMap<String, Value> = node.field("/status/allocatable")?.unwrap_or_default();
    let has = |name: &str| allocatable.get(name).is_some_and(|count| *count != "0" && *count != 0);
    let wanted: Vec<String> = match named.filter(|name| name.contains('/')) {
        Some(name) => vec![name],
        None => GPUS.map(str::to_owned).to_vec(),
    };
    wanted.iter().find(|name| has(name)).cloned().ok_or_else(|| {
        let message = format!("Node {} has no {}.", node.name(), wanted.join(" and no "));
        Failure::permanent("NoGpu", message)
    })
}

/// Judges a check that ended with exit code 0. Its report counts too, and an unreadable report proves nothing.
fn passed(name: &str, task: &TaskStatus) -> Report {
    let text = task.output.trim();
    let said: Option<Value> = object_in(text);
    let is_unclear = said.is_none() && (text.starts_with('{') || text.starts_with(CUT));
    match said.as_ref().and_then(|said| said.get("passed")) {
        None if is_unclear => {
            let message = format!(
                "What the check of node {name} said cannot be read: a result is a JSON object of at most 4096 bytes."
            );
            Report::failed("ReportedFailure", message)
        }
        None | Some(Value::Bool(true)) => Report::succeeded(),
        Some(_) => {
            let message =
                said.as_ref().and_then(|said| said.get("message")).and_then(Value::as_str).unwrap_or_default();
            Report::failed("ReportedFailure", format!("The check of node {name} did not pass: {}", short(message)))
        }
    }
}

/// Returns the JSON object in a text, or `None` if the text is no JSON object.
fn object_in(text: &str) -> Option<Value> {
    text.trim().parse().ok().filter(Value::is_object)
}

fn failed(name: &str, task: &TaskStatus) -> Report {
    let (message, output) = (task.message.trim(), short(task.output.trim()));
    if let Some(code) = task.exit_code.filter(|code| *code != 0) {
        return Report::failed(
            "CheckFailed",
            format!("The check of node {name} ended with exit code {code}: {output}"),
        );
    }
    let reason = REASONS.iter().find(|(word, _)| message.starts_with(word)).map_or("CheckFailed", |(_, reason)| reason);
    Report::failed(reason, format!("The check of node {name} has no result: {}", short(message)))
}

fn gone(name: &str) -> Report {
    Report::failed("NodeGone", format!("Node {name} is gone, or another one has its name."))
}

fn short(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}
