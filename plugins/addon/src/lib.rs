//! addon: runs a list of scripts as root on a node, each script once.
//!
//! A taint keeps new pods off the node until the last script has ended. In all other cases, the host removes the taint. A script
//! whose result is lost may have run. So it counts as failed, and the plugin never repeats it. The plugin must not evict a pod.
//! It also must not wait for a pod that was created after the taint: a pod with `spec.nodeName` bypasses taints, and could keep a
//! node from its patch.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use oarlock_sdk::{
    Action, Failure, Freshness, Job, Mark, Object, Proposal, Registration, Relation, Report, Result, Taint, Target,
    TaskRequest, TaskStatus, Value, config, export, json, parse_instant,
};

/// The key of the taint. Its value is the name of the job.
pub const TAINT: &str = "oarlock.dev/opsjob";
/// The extra with the positions of the steps for this node, such as `0,2`. It is fixed at the start, because a driver that a step
/// installs changes the GPUs that the node shows.
pub const STEPS: &str = "Steps";
/// The extra with the time when the taint was first seen on the node, in milliseconds since 1970.
pub const TAINTED: &str = "TaintedSince";

const NO_SCHEDULE: &str = "NoSchedule";
/// The relation to the pods on the node.
const PODS: &str = "pods";
/// The annotation that a kubelet puts on pods from files on its node.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The default namespaces whose pods do not make a node busy.
const SYSTEM: [&str; 3] = ["kube-system", "oarlock-system", "oarlock-tasks"];
/// The longest time between two visits of a node whose script runs.
const CHECK: Duration = Duration::from_secs(60);
/// The time in which a scheduler that has not seen the taint may still place a pod.
const SETTLED: Duration = Duration::from_secs(5);
/// The most pods of a busy node that a message names.
const NAMED: usize = 10;
/// The most characters of an output in a message.
const SHOWN: usize = 256;
/// The words with which the host begins the message of a script without an exit code, with the reason that this plugin reports.
const REASONS: [(&str, &str); 2] = [("lost", "ResultLost"), ("timed out", "ScriptTimeout")];

/// The action of this plugin.
#[derive(Debug)]
pub struct Addon;

impl Action for Addon {
    fn setup() -> Result<Registration> {
        Ok(Registration::new().relation(Relation::pods(PODS).by_field("/spec/nodeName")))
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let Some(node) = target.object() else { return Ok(Proposal::new()) };
        let steps = steps(job, target, &node)?;
        let proposal = match target.extra(STEPS) {
            None => Proposal::new().extra(STEPS, positions(&steps)),
            Some(_) => Proposal::new(),
        };
        let Course::Next(step) = Course::of(&steps, target) else { return Ok(proposal) };
        let waits = job.parameter("/waitUntilIdle")?.unwrap_or(false) && step.is_first;
        // Somebody may remove the taint at any time.
        if node.holds(job).lacks(Mark::Taint(TAINT, NO_SCHEDULE))? {
            let proposal = proposal.taint(taint(&node, job, true));
            // The host makes these changes in order, and stops after one that fails.
            return Ok(if waits { proposal } else { proposal.task(step.task.clone()) });
        }
        if waits {
            let Some(since) = target.extra(TAINTED).and_then(|text| text.parse::<u64>().ok()) else {
                return Ok(proposal.extra(TAINTED, job.now_ms().to_string()));
            };
            is_idle(job, target, since)?;
        }
        Ok(proposal.task(step.task.clone()))
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        let name = target.name();
        let Some(node) = target.object() else {
            return Ok(Report::failed("NodeGone", format!("Node {name} is gone, or another one has its name.")));
        };
        let steps = steps(job, target, &node)?;
        Ok(match Course::of(&steps, target) {
            Course::Next(_) | Course::Running => Report::processing().check_after(CHECK),
            Course::Failed(step, task) => failed(&name, step, &task),
            // The taint is removed first, so that the node is usable once the job reports its success.
            Course::Done if node.holds(job).has(Mark::Taint(TAINT, NO_SCHEDULE)) => {
                Report::processing().with(Proposal::new().taint(taint(&node, job, false))).check_after(CHECK)
            }
            Course::Done if steps.is_empty() => {
                let message = format!("{name}: no step is for the GPUs of this node, so nothing ran there.");
                Report::succeeded().with(Proposal::new().event("NothingToRun", message))
            }
            Course::Done => Report::succeeded(),
        })
    }

    fn release(_: &Job, _: &Target) -> Result<Proposal> {
        // The taint is a hold, so the host removes it.
        Ok(Proposal::new())
    }
}

export!(Addon, manifest = include_str!("../manifest.json"));

/// A script that runs on the node.
struct Step {
    index: usize,
    task: TaskRequest,
    name: String,
    required: bool,
    is_first: bool,
}

/// The progress of a node.
enum Course<'a> {
    /// This step may begin.
    Next(&'a Step),
    /// A step runs.
    Running,
    /// This step has failed with this result, and no further step begins.
    Failed(&'a Step, TaskStatus),
    /// All steps have ended.
    Done,
}

impl<'a> Course<'a> {
    fn of(steps: &'a [Step], target: &Target) -> Self {
        for step in steps {
            let Some(task) = target.task(&step.task.name) else { return Self::Next(step) };
            match (task.state.as_str(), task.exit_code) {
                ("Succeeded", Some(0)) => {}
                ("Succeeded" | "Failed", _) if !step.required => {}
                ("Succeeded" | "Failed", _) => return Self::Failed(step, task),
                _ => return Self::Running,
            }
        }
        Self::Done
    }
}

/// Returns the steps for a node in order. The choice is fixed when the work on the node begins.
fn steps(job: &Job, target: &Target, node: &Object) -> Result<Vec<Step>> {
    let all: Vec<Value> = job.parameter("/steps")?.unwrap_or_default();
    let capacity: BTreeMap<String, Value> = node.field("/status/capacity")?.unwrap_or_default();
    let has = |chip: &str| capacity.get(&format!("{chip}.com/gpu")).is_some_and(|count| *count != "0" && *count != 0);
    let decided = target.extra(STEPS);
    let is_decided =
        |index: usize| decided.as_ref().map(|decided| decided.split(',').any(|position| position.parse() == Ok(index)));
    let mut steps: Vec<Step> = Vec::new();
    for (index, step) in all.iter().enumerate() {
        let chip = text(step, "gpuChip");
        if is_decided(index).unwrap_or_else(|| chip.is_empty() || has(&chip)) {
            steps.push(Step::read(index, step, steps.is_empty()));
        }
    }
    Ok(steps)
}

/// Returns the positions of steps as the extra stores them.
fn positions(steps: &[Step]) -> String {
    steps.iter().map(|step| step.index.to_string()).collect::<Vec<_>>().join(",")
}

fn text(step: &Value, field: &str) -> String {
    step.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Step {
    fn read(index: usize, step: &Value, is_first: bool) -> Self {
        let interpreter = step.get("interpreter").and_then(Value::as_str).unwrap_or("/bin/bash");
        let mut script = step.get("script").cloned().unwrap_or_default();
        script.as_object_mut().map(|script| script.insert("interpreter".to_owned(), json!(interpreter)));
        let seconds = step.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(600);
        let arguments = json!({"script": script, "timeoutSeconds": seconds}).to_string();
        let (name, kind) = (format!("step-{index}"), "run-on-node".to_owned());
        let shown = Some(text(step, "name")).filter(|name| !name.is_empty()).unwrap_or_else(|| name.clone());
        let required = step.get("required").and_then(Value::as_bool).unwrap_or(true);
        Self { index, task: TaskRequest { name, kind, arguments }, name: shown, required, is_first }
    }
}

fn taint(node: &Object, job: &Job, present: bool) -> Taint {
    let (key, effect) = (TAINT.to_owned(), NO_SCHEDULE.to_owned());
    Taint { node: node.name(), key, value: job.name(), effect, present }
}

/// Checks that no pod of a workload is on the node. The node has had its taint since this time.
fn is_idle(job: &Job, target: &Target, since: u64) -> Result<()> {
    let name = target.name();
    let busy = |message: String| Err(Failure::retryable("NodeBusy", message).retry_after(SETTLED));
    let settled = u128::from(job.now_ms().saturating_sub(since)) >= SETTLED.as_millis();
    let pods = pods_of_workloads(target, since)?;
    if pods.is_empty() && !settled {
        return busy(format!("Node {name} has had its taint for less than {} s.", SETTLED.as_secs()));
    }
    if pods.is_empty() {
        return Ok(());
    }
    let named: Vec<&str> = pods.iter().take(NAMED).map(String::as_str).collect();
    let more = pods.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    busy(format!("Node {name} waits for the end of {}{more}.", named.join(", ")))
}

/// Returns the pods of workloads on the node that were there before this time, as `namespace/name`. The first pods of all
/// namespaces come first, so that a message names as many namespaces as possible.
fn pods_of_workloads(target: &Target, since: u64) -> Result<Vec<String>> {
    let system: Vec<String> = config("/systemNamespaces")?.unwrap_or_else(|| SYSTEM.map(str::to_owned).to_vec());
    let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in target.related(PODS, Freshness::Watched)? {
        let namespace = pod.namespace().unwrap_or_default();
        let phase: String = pod.field("/status/phase")?.unwrap_or_default();
        let is_daemon = pod.controller()?.is_some_and(|owner| owner.kind == "DaemonSet");
        let is_over = matches!(phase.as_str(), "Succeeded" | "Failed");
        let is_late = created(&pod)?.is_some_and(|created| created > since);
        let counts = !is_over && !is_late && !is_daemon && !system.contains(&namespace);
        if counts && pod.annotation(MIRROR).is_none() {
            pods.entry(namespace).or_default().insert(pod.name());
        }
    }
    let mut named: Vec<(usize, String)> = Vec::new();
    for (namespace, names) in pods {
        named.extend(names.iter().enumerate().map(|(turn, name)| (turn, format!("{namespace}/{name}"))));
    }
    named.sort();
    Ok(named.into_iter().map(|(_, pod)| pod).collect())
}

/// Returns the creation time of a pod, in milliseconds since 1970. Kubernetes cuts it to whole seconds. So a pod from the same
/// second as the taint counts as an earlier pod.
fn created(pod: &Object) -> Result<Option<u64>> {
    let created: Option<String> = pod.field("/metadata/creationTimestamp")?;
    Ok(created.as_deref().and_then(parse_instant))
}

fn failed(node: &str, step: &Step, task: &TaskStatus) -> Report {
    let (message, output) = (task.message.trim(), short(task.output.trim()));
    let named = &step.name;
    if let Some(code) = task.exit_code {
        return Report::failed("ScriptFailed", format!("{named} on node {node} ended with exit code {code}: {output}"));
    }
    let reason =
        REASONS.iter().find(|(word, _)| message.starts_with(word)).map_or("ScriptFailed", |(_, reason)| reason);
    Report::failed(reason, format!("{named} on node {node} has no exit code: {}", short(message)))
}

/// Returns the end of a text.
fn short(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(SHOWN);
    text.chars().skip(skipped).collect()
}
