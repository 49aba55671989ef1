//! The outcomes of an OpsJob's targets, as its status shows them. Source: docs/opsjob.md 5.
//!
//! Takes the target details of the OperationJob, after all targets have ended or the job was ended by force; yields counts, conditions and outputs.
//! May not make a status too large: outputs without room are left out, and the status says so.

use std::collections::BTreeMap;

use oarlock_api::{TargetDetail, TargetError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::object::api_object::Kind;
use crate::object::bound::cut;
use crate::object::bound::shown_cause;
use crate::object::fields::{flag, list, number, text};
use crate::object::task_pod::JOB_UID;
use crate::operation_job::tasks::stored::{StoredTask, tail};
use crate::ops_job::names::SKIPPED;
use crate::ops_job::spec::OpsType;
use crate::ops_job::view::{OpsJobView, TargetCounts};
use crate::plugin::task::is_digest;
use crate::requests::reads::{Answers, Pending, Read, Selected};

/// The most targets that have a condition.
pub(super) const SHOWN: usize = 100;
/// The most bytes of the value of one output, and of all outputs together.
const VALUE: usize = 64 * 1024;
const ALL: usize = 256 * 1024;
/// The longest part of a message that is shown.
const MESSAGE: usize = 256;
/// The task with which `dumplog` collects logs.
const COLLECTED: &str = "logs";
/// The task with which `exportimage` exports an image.
const EXPORTED: &str = "export";
/// The reason of a target that was in work when its job was ended by force.
const INTERRUPTED: &str = "Interrupted";
/// The message about a task that had not ended when its job was ended by force.
const UNFINISHED: &str = "had not ended when the job was ended: its effect is unknown";

/// The outcome of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetOutcome {
    /// Name of the target.
    pub name: String,
    /// True if the target succeeded.
    pub succeeded: bool,
    /// True if the target was in work when its job was ended by force.
    pub in_work: bool,
    /// The reason for programs why the target did not succeed. Empty if it succeeded.
    pub reason: String,
    /// The message for people.
    pub message: String,
    /// The exit code of the target's check.
    pub exit_code: Option<String>,
    /// The steps of an addon that have run or run now, in order.
    pub steps: Vec<StepOutcome>,
    /// The result of the task that collected the target's logs.
    pub collected: Collected,
    /// The result of the task that copied the target's image.
    pub copied: ExportedTo,
}

/// The result of an image copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportedTo {
    /// The image in the registry, as registry, name and tag.
    pub target: String,
    /// Digest of the image.
    pub digest: String,
    /// Platforms that did not exist and were left out.
    pub left_out: String,
}

impl ExportedTo {
    fn read(extra: &BTreeMap<String, String>) -> Self {
        let output = StoredTask::read(extra, EXPORTED).map(|task| task.output).unwrap_or_default();
        let said: Value = serde_json::from_str(&output).unwrap_or_default();
        let own = |name: &str| text(&said, name).unwrap_or_default().to_owned();
        Self { target: own("/target"), digest: own("/digest"), left_out: own("/leftOut") }
    }
}

/// The result of collecting a pod's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// The containers whose older log lines are probably lost.
    pub rotated: Vec<String>,
    /// True if lines are missing because the job had no room for them.
    pub is_truncated: bool,
}

impl Collected {
    fn read(extra: &BTreeMap<String, String>) -> Self {
        let output = StoredTask::read(extra, COLLECTED).map(|task| task.output).unwrap_or_default();
        let said: Value = serde_json::from_str(&output).unwrap_or_default();
        let rotated = list(&said, "/maybeRotated").iter().filter_map(|name| Some(cut(name.as_str()?, MESSAGE)));
        Self { rotated: rotated.collect(), is_truncated: flag(&said, "/truncated") }
    }
}

/// The outcome of a step of an addon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutcome {
    /// Position of the step in the job.
    pub index: usize,
    /// Exit code of the script, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The end of the script's output, or the reason why the script has no exit code.
    pub output: String,
}

impl StepOutcome {
    fn all(extra: &BTreeMap<String, String>) -> Vec<Self> {
        let named = StoredTask::all(extra).filter_map(|(name, task)| {
            let index = name.strip_prefix("step-")?.parse().ok()?;
            let said = match task {
                _ if !task.state.terminal() => UNFINISHED.to_owned(),
                StoredTask { output, message, .. } if output.is_empty() => message,
                StoredTask { output, .. } => output,
            };
            Some(Self { index, exit_code: task.exit_code, output: tail(said.trim(), MESSAGE) })
        });
        let mut steps: Vec<Self> = named.collect();
        steps.sort_by_key(|step| step.index);
        steps
    }
}

impl TargetOutcome {
    fn of(detail: TargetDetail) -> Self {
        let (error, mut extra) = (detail.error.unwrap_or_default(), detail.extra_info.unwrap_or_default());
        let in_work = detail.progress.as_deref() == Some("Processing");
        let (reason, message) = match in_work {
            true => (INTERRUPTED.to_owned(), interrupted(&error, &extra)),
            false => (error.reason, error.message),
        };
        Self {
            name: detail.name,
            succeeded: detail.progress.as_deref() == Some("Succeeded"),
            in_work,
            reason,
            message: shown_cause(&message, MESSAGE),
            steps: StepOutcome::all(&extra),
            collected: Collected::read(&extra),
            copied: ExportedTo::read(&extra),
            exit_code: extra.remove("ExitCode"),
        }
    }

    fn failed(&self) -> bool {
        !self.succeeded && !self.in_work && !self.reason.is_empty() && self.reason != SKIPPED
    }
}

/// Returns the message about a target that was in work when its job was ended by force.
fn interrupted(error: &TargetError, extra: &BTreeMap<String, String>) -> String {
    let unfinished = StoredTask::all(extra).find(|(_, task)| !task.state.terminal());
    match (unfinished, error.reason.as_str()) {
        (Some((task, _)), _) => format!("its task {task} {UNFINISHED}"),
        (None, "") => "the host worked on this target when the job was ended".to_owned(),
        (None, reason) => format!("it waited when the job was ended: {reason}: {}", error.message),
    }
}

/// The outcomes of the targets of an OperationJob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// The targets with known names. Some targets may be missing, because an OperationRecord may be lost.
    pub targets: Vec<TargetOutcome>,
    /// The numbers of all targets by progress.
    pub counts: TargetCounts,
}

impl Outcomes {
    /// Reads the outcomes from the status of an OperationJob, which counts all targets, and from its OperationRecords. The records name the targets
    /// for which the status has no room.
    pub fn read(child: &Value, records: &[Value]) -> Self {
        let targets = outcomes(child, records);
        let skipped = targets.iter().filter(|target| target.reason == SKIPPED).count();
        Self { counts: TargetCounts::of_child(child, skipped), targets }
    }
}

/// Returns the stored OperationJob of a job, and the outcomes of its targets from its status and its OperationRecords. Returns `None` if no
/// OperationJob with this UID exists any more.
///
/// # Errors
/// If reads are missing or one failed.
pub fn stored_outcomes(job: &OpsJobView, child: &str, answers: &Answers) -> Result<Option<(Value, Outcomes)>, Pending> {
    let stored = answers.to(&Read::one(job.child_key()))?.one::<Value>();
    let Some(stored) = stored.filter(|stored| text(stored, "/metadata/uid") == Some(child)) else { return Ok(None) };
    let mut records = Vec::new();
    if number(&stored, "/status/records/count").unwrap_or(0) > 0 {
        let (namespace, labels) = (Some(job.child_namespace().to_owned()), Some(format!("{JOB_UID}={child}")));
        let of_child = Read::of(Kind::record(), Selected::All { namespace, labels, fields: None });
        records.extend(answers.to(&of_child)?.parsed::<Value>());
    }
    let outcomes = Outcomes::read(&stored, &records);
    Ok(Some((stored, outcomes)))
}

/// Returns the name of the file with the outcomes of all targets. It contains the job's UID, because a later job may have the same name.
pub fn report_file(uid: &str) -> String {
    format!("report-{}.json", uid.split('-').next().unwrap_or_default())
}

/// The most bytes of a workload's name in a file name. A file system allows 255 bytes for the whole name.
const MOST_OF_WORKLOAD: usize = 200;

/// Returns the name of the file with the logs of a workload, for the job with this UID.
pub fn log_file(workload: &str, uid: &str) -> String {
    let workload = workload.get(..MOST_OF_WORKLOAD).unwrap_or(workload);
    format!("{workload}-{}.log", uid.split('-').next().unwrap_or_default())
}

/// A file that a job has left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// The reference for the output.
    pub reference: String,
    /// Size of the file, in bytes.
    pub size: u64,
    /// The number of lines, if the file has logs.
    pub lines: u64,
}

/// State of a job's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobFile<'a> {
    /// The host keeps no files.
    NotKept,
    /// The file is not stored yet.
    Due,
    /// The host is making the file. The text says how far it is.
    Underway(&'a str),
    /// The file is stored.
    Stored(&'a StoredFile),
    /// The file could not be stored, for this reason.
    Lost(&'a str),
    /// The volume has no room for a new file, for this reason.
    NoRoom(&'a str),
}

impl JobFile<'_> {
    /// Returns the outputs about the file, for a job of this type.
    pub(super) fn outputs(self, kind: Option<OpsType>) -> Vec<Value> {
        let name = if kind == Some(OpsType::Dumplog) { "endpoint" } else { "report" };
        match self {
            Self::NotKept | Self::Due | Self::Underway(_) | Self::NoRoom(_) => Vec::new(),
            Self::Stored(file) if kind == Some(OpsType::Dumplog) => {
                let StoredFile { reference, size, lines } = file;
                let counts = [("lines", lines), ("size", size)].map(|(name, count)| output(name, count.to_string()));
                std::iter::once(output(name, reference)).chain(counts).collect()
            }
            Self::Stored(file) => vec![output(name, &*file.reference)],
            Self::Lost(why) => vec![output(name, shown_cause(&format!("it could not be stored: {why}"), MESSAGE))],
        }
    }
}

/// Returns the content of the report file: the outcome of each target of a check, failed targets first.
pub fn report(job: &OpsJobView, Outcomes { targets, counts }: &Outcomes) -> Value {
    let mut sorted: Vec<&TargetOutcome> = targets.iter().collect();
    sorted.sort_by(|one, other| (one.succeeded, &one.name).cmp(&(other.succeeded, &other.name)));
    let nodes: Vec<Value> = sorted.into_iter().map(check).collect();
    let (OpsJobView { name, uid, .. }, created) = (job, job.created.map(|at| at.to_string()));
    json!({"jobId": name, "uid": uid, "created": created, "total": counts.total, "succeeded": counts.succeeded, "nodes": nodes})
}

fn outcomes(child: &Value, records: &[Value]) -> Vec<TargetOutcome> {
    let of_status = list(child, "/status/targetDetails").iter().filter_map(|one| TargetDetail::deserialize(one).ok());
    let lines = records.iter().flat_map(|record| list(record, "/targets")).filter_map(Value::as_str);
    let of_records = lines.filter_map(|line| serde_json::from_str(line).ok());
    of_status.chain(of_records).map(TargetOutcome::of).collect()
}

/// Returns name, reason and message of the targets that get a condition. Failed targets come first, then the targets that were in work when the job
/// was ended by force.
pub(super) fn explained(outcomes: &[TargetOutcome]) -> impl Iterator<Item = (&str, &str, &str)> {
    let failed = outcomes.iter().filter(|outcome| outcome.failed());
    let all = failed.chain(outcomes.iter().filter(|outcome| outcome.in_work)).take(SHOWN);
    all.map(|outcome| (outcome.name.as_str(), outcome.reason.as_str(), outcome.message.as_str()))
}

/// Facts for the outputs that are not in the outcomes. The host decided them before the first target began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OutputFacts {
    /// The number of nodes that were left out when the host found the targets.
    pub(super) left_out: usize,
    /// The names that the exported image may have, with the registry.
    pub(super) images: Vec<String>,
}

/// Returns the outputs of a job type, to be added to the existing outputs.
pub(super) fn outputs(kind: OpsType, outcomes: &Outcomes, facts: &OutputFacts) -> Vec<Value> {
    let mut outputs = match kind {
        OpsType::Preflight => of_checks(outcomes),
        OpsType::Addon => of_addons(outcomes, facts),
        OpsType::Dumplog => of_logs(outcomes),
        OpsType::Exportimage => of_export(outcomes, facts),
        OpsType::Reboot => of_reboots(outcomes, facts),
    };
    let mut room = ALL;
    let fits = |output: &Value| {
        let bytes = output.to_string().len();
        room = room.saturating_sub(bytes);
        room > 0
    };
    let before = outputs.len();
    outputs = outputs.into_iter().take_while(fits).collect();
    let left_out = before - outputs.len();
    if left_out > 0 {
        outputs.push(output("truncated", format!("{left_out} outputs are left out, for which there is no room")));
    }
    outputs
}

fn output(name: &str, value: impl Into<String>) -> Value {
    json!({"name": name, "value": value.into()})
}

/// Returns the output `result`. It counts the nodes that succeeded, failed and were skipped, and the nodes that other outputs leave out. Skipped
/// nodes never began, or the host left them out before and the output `skipped` names them.
fn counted(counts: &TargetCounts, facts: &OutputFacts, left_out: usize) -> Value {
    let TargetCounts { succeeded, failed, skipped, .. } = counts;
    let skipped = skipped.saturating_add(facts.left_out);
    let mut result = json!({"succeeded": succeeded, "failed": failed, "skipped": skipped});
    if let Some(result) = result.as_object_mut().filter(|_| left_out > 0) {
        result.insert("left_out".to_owned(), json!(left_out));
    }
    output("result", result.to_string())
}

fn of_addons(Outcomes { targets, counts }: &Outcomes, facts: &OutputFacts) -> Vec<Value> {
    let mut sorted: Vec<&TargetOutcome> = targets.iter().collect();
    sorted.sort_by(|one, other| (one.succeeded, &one.name).cmp(&(other.succeeded, &other.name)));
    let mut room = VALUE - 1_024;
    let fits = |node: &Value| {
        let bytes = node.to_string().len() + 1;
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    };
    let nodes: Vec<Value> = sorted.into_iter().take(SHOWN).map(ran).take_while(fits).collect();
    let result = counted(counts, facts, counts.total.saturating_sub(nodes.len()));
    vec![result, output("nodes", json!(nodes).to_string())]
}

fn ran(outcome: &TargetOutcome) -> Value {
    let TargetOutcome { name, succeeded, reason, message, steps, .. } = outcome;
    let step = |step: &StepOutcome| json!({"step": step.index, "exitCode": step.exit_code, "output": step.output});
    let steps: Vec<Value> = steps.iter().map(step).collect();
    json!({"node": name, "passed": succeeded, "reason": reason, "message": message, "steps": steps})
}

/// Returns the outputs of a dumplog: the pods whose logs could not be read, and the containers that may have lost older lines.
fn of_logs(Outcomes { targets, counts }: &Outcomes) -> Vec<Value> {
    let mut missing: Vec<String> = targets.iter().filter(|one| !one.succeeded).map(|one| one.name.clone()).collect();
    let of =
        |one: &TargetOutcome| one.collected.rotated.iter().map(|own| format!("{}/{own}", one.name)).collect::<Vec<_>>();
    let mut rotated: Vec<String> = targets.iter().flat_map(of).collect();
    missing.sort();
    rotated.sort();
    let left_out = counts.total.saturating_sub(targets.len()) + shorten(&mut missing, VALUE);
    let left_out = left_out + shorten(&mut rotated, VALUE);
    let all = [output("missing", json!(missing).to_string())];
    let rotated = (!rotated.is_empty()).then(|| output("maybeRotated", json!(rotated).to_string()));
    let left_out = (left_out > 0).then(|| output("left_out", left_out.to_string()));
    let is_truncated = targets.iter().any(|one| one.collected.is_truncated);
    let left_out = left_out.into_iter().chain(is_truncated.then(|| output("truncated", "true")));
    all.into_iter().chain(rotated).chain(left_out).collect()
}

/// Returns the outputs of an export: the name of the image, or the reason why there is none. The node reports a commit and may report anything. So
/// the host uses the name that it chose itself, and drops a digest that does not have the form of one.
fn of_export(Outcomes { targets, .. }: &Outcomes, facts: &OutputFacts) -> Vec<Value> {
    let Some(TargetOutcome { succeeded, message, copied, .. }) = targets.first() else { return Vec::new() };
    if !succeeded {
        return vec![output("status", "failed"), output("message", message)];
    }
    let only = facts.images.first().filter(|_| facts.images.len() == 1);
    let target = facts.images.iter().find(|own| **own == copied.target).or(only).map_or("", String::as_str);
    let digest = if is_digest(&copied.digest) { copied.digest.as_str() } else { "" };
    let place = if target.is_empty() { "its digest" } else { target };
    let without = match copied.left_out.as_str() {
        "" => String::new(),
        left_out => format!(", without what its registry did not have: {left_out}"),
    };
    let said = format!("the image is in the registry as {place}{without}");
    let all = [("status", "completed"), ("target", target), ("digest", digest), ("message", &said)];
    all.map(|(name, value)| output(name, value)).to_vec()
}

fn of_reboots(Outcomes { targets, counts }: &Outcomes, facts: &OutputFacts) -> Vec<Value> {
    let rebooted = targets.iter().filter(|outcome| outcome.succeeded).map(|outcome| output("node", &*outcome.name));
    std::iter::once(counted(counts, facts, 0)).chain(rebooted).collect()
}

fn of_checks(Outcomes { targets, counts }: &Outcomes) -> Vec<Value> {
    let mut sorted: Vec<&TargetOutcome> = targets.iter().collect();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    let (healthy, failed): (Vec<&TargetOutcome>, Vec<&TargetOutcome>) =
        sorted.iter().copied().partition(|outcome| outcome.succeeded);
    let shown: Vec<Value> = failed.iter().chain(&healthy).take(SHOWN).map(|outcome| check(outcome)).collect();
    let names = |of: &[&TargetOutcome]| -> Vec<String> { of.iter().map(|outcome| outcome.name.clone()).collect() };
    let (mut failed, mut healthy) = (names(&failed), names(&healthy));
    // Failed nodes matter more, so they get room first.
    let unnamed = counts.total.saturating_sub(targets.len());
    let left_out = unnamed + shorten(&mut failed, VALUE - 1_024);
    let room = (VALUE - 1_024).saturating_sub(failed.iter().map(|name| name.len() + 3).sum());
    let left_out = left_out + shorten(&mut healthy, room);
    let result = match left_out {
        0 => json!({"failed_nodes": failed, "healthy_nodes": healthy}),
        _ => json!({"failed_nodes": failed, "healthy_nodes": healthy, "left_out": left_out}),
    };
    vec![output("result", result.to_string()), output("nodes", json!(shown).to_string())]
}

fn check(outcome: &TargetOutcome) -> Value {
    let TargetOutcome { name, succeeded, reason, message, exit_code, .. } = outcome;
    let exit_code = exit_code.as_ref().and_then(|code| code.parse::<i64>().ok());
    json!({"node": name, "passed": succeeded, "exitCode": exit_code, "reason": reason, "message": message})
}

/// Removes the names that do not fit into `room` bytes. Returns their number.
fn shorten(names: &mut Vec<String>, mut room: usize) -> usize {
    let fitting = names.iter().take_while(|name| {
        let fits = name.len() + 3 <= room;
        room = room.saturating_sub(name.len() + 3);
        fits
    });
    let fitting = fitting.count();
    let left_out = names.len() - fitting;
    names.truncate(fitting);
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::reads::KeptObjects;

    fn outcome(name: &str, reason: &str) -> TargetOutcome {
        TargetOutcome {
            name: name.into(),
            succeeded: reason.is_empty(),
            reason: reason.into(),
            ..TargetOutcome::default()
        }
    }

    fn value(outputs: &[Value], name: &str) -> Value {
        let found = outputs.iter().find(|output| output["name"] == name).unwrap();
        serde_json::from_str(found["value"].as_str().unwrap()).unwrap()
    }

    /// Returns outcomes in which all targets have names.
    fn all(targets: Vec<TargetOutcome>) -> Outcomes {
        let count = |is: fn(&TargetOutcome) -> bool| targets.iter().filter(|target| is(target)).count();
        let counts = TargetCounts {
            total: targets.len(),
            succeeded: count(|target| target.succeeded),
            failed: count(TargetOutcome::failed),
            ..TargetCounts::default()
        };
        Outcomes { targets, counts }
    }

    #[test]
    fn details_are_read_from_the_status_and_from_records_and_counts_from_the_status() {
        let child = json!({"status": {"totalPodCount": 3, "succeededPodCount": 2, "failedPodCount": 1,
            "targetDetails": [{"name": "a", "progress": "Succeeded", "extraInfo": {"ExitCode": "0"}}]}});
        let failed = r#"{"name":"b","progress":"Failed","error":{"reason":"Skipped","message":"m"}}"#;
        let read = Outcomes::read(&child, &[json!({"targets": [failed, "no JSON", 7]})]);
        assert_eq!(read.targets.iter().map(|outcome| outcome.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(read.targets[0].exit_code.as_deref(), Some("0"));
        assert_eq!(read.counts, TargetCounts { total: 3, succeeded: 2, skipped: 1, ..TargetCounts::default() });
    }

    #[test]
    fn outcomes_need_records_only_if_the_child_has_some_and_no_other_child_has_them() {
        let job = OpsJobView { name: "j".into(), ..OpsJobView::default() };
        let found = |child: Option<Value>| {
            let (mut answers, mut reads) = (Answers::default(), Vec::new());
            loop {
                let needed = match stored_outcomes(&job, "u", &answers) {
                    Err(Pending::Reads(needed)) => needed,
                    result => return (result.unwrap().map(|(_, outcomes)| outcomes.targets.len()), reads),
                };
                for read in needed {
                    let records = vec![json!({"targets": [r#"{"name":"b","progress":"Succeeded"}"#]})];
                    let found = if read.kind == Kind::job() { child.iter().cloned().collect() } else { records };
                    reads.push(read.selected.clone());
                    answers.insert(read.clone(), Ok(KeptObjects::of(&read, found)));
                }
            }
        };
        let child =
            |uid: &str, records: i64| json!({"metadata": {"uid": uid}, "status": {"records": {"count": records}}});
        assert_eq!((found(None).0, found(Some(child("other", 1)))), (None, (None, found(None).1)));
        assert_eq!((found(Some(child("u", 0))).0, found(Some(child("u", 0))).1.len()), (Some(0), 1));
        let (targets, reads) = found(Some(child("u", 1)));
        let (namespace, labels) = (Some(job.child_namespace().to_owned()), Some(format!("{JOB_UID}=u")));
        assert_eq!((targets, reads.last()), (Some(1), Some(&Selected::All { namespace, labels, fields: None })));
    }

    #[test]
    fn a_record_that_is_lost_costs_the_names_of_its_targets_and_no_count() {
        let child = json!({"status": {"totalPodCount": 9, "succeededPodCount": 7, "failedPodCount": 2,
            "targetDetails": [{"name": "a", "progress": "Succeeded"}]}});
        let read = Outcomes::read(&child, &[]);
        assert_eq!((read.counts.succeeded, read.counts.failed), (7, 2));
        let result = value(&outputs(OpsType::Preflight, &read, &OutputFacts::default()), "result");
        assert_eq!(result, json!({"failed_nodes": [], "healthy_nodes": ["a"], "left_out": 8}));
    }

    #[test]
    fn targets_that_were_in_work_when_their_job_was_ended_have_not_failed_and_say_what_may_have_been_done() {
        let task = json!({"state": "Running", "pod": "u"}).to_string();
        let child = json!({"status": {"totalPodCount": 3, "targetDetails": [
            {"name": "a", "progress": "Processing", "error": {"reason": "EvictionBlocked", "message": "m"}},
            {"name": "b", "progress": "Processing", "extraInfo": {"Task/step-0": task}},
            {"name": "c", "progress": "Processing"},
            {"name": "d", "progress": "Failed", "error": {"reason": "ScriptFailed", "message": "m"}}]}});
        let read = Outcomes::read(&child, &[]);
        let ran = format!("its task step-0 {UNFINISHED}");
        let expected = [
            ("d", "ScriptFailed", "m"),
            ("a", INTERRUPTED, "it waited when the job was ended: EvictionBlocked: m"),
            ("b", INTERRUPTED, &*ran),
            ("c", INTERRUPTED, "the host worked on this target when the job was ended"),
        ];
        assert_eq!(explained(&read.targets).collect::<Vec<_>>(), expected);
        assert_eq!(read.targets.iter().filter(|target| target.failed()).count(), 1);
        let nodes = value(&outputs(OpsType::Addon, &read, &OutputFacts::default()), "nodes");
        assert_eq!((&nodes[1]["node"], &nodes[1]["steps"][0]["output"]), (&json!("b"), &json!(UNFINISHED)));
    }

    #[test]
    fn healthy_and_failed_nodes_are_together_the_targets_and_sorted() {
        let all =
            all(vec![outcome("b", ""), outcome("a", ""), outcome("c", "CheckFailed"), outcome("d", "JobDeleted")]);
        let result = value(&outputs(OpsType::Preflight, &all, &OutputFacts::default()), "result");
        assert_eq!(result, json!({"failed_nodes": ["c", "d"], "healthy_nodes": ["a", "b"]}));
        let nodes = value(&outputs(OpsType::Preflight, &all, &OutputFacts::default()), "nodes");
        assert_eq!(nodes[0]["node"], "c", "failed ones come first");
    }

    #[test]
    fn an_addon_says_of_each_node_what_became_of_each_step() {
        let task =
            |exit: Value, output: &str| json!({"state": "Failed", "exitCode": exit, "output": output}).to_string();
        let extra = json!({"Task/step-1": task(json!(3), "no disk"), "Task/step-0": task(json!(0), "done"),
            "Task/step-2": json!({"state": "Failed", "message": "lost: its pod is gone"}).to_string(), "Task/other": "x"});
        let child = json!({"status": {"totalPodCount": 1, "failedPodCount": 1, "targetDetails": [
            {"name": "a", "progress": "Failed", "error": {"reason": "ScriptFailed", "message": "m"}, "extraInfo": extra}]}});
        let nodes = value(&outputs(OpsType::Addon, &Outcomes::read(&child, &[]), &OutputFacts::default()), "nodes");
        let steps = json!([{"step": 0, "exitCode": 0, "output": "done"}, {"step": 1, "exitCode": 3, "output": "no disk"},
            {"step": 2, "exitCode": null, "output": "lost: its pod is gone"}]);
        let expected =
            json!([{"node": "a", "passed": false, "reason": "ScriptFailed", "message": "m", "steps": steps}]);
        assert_eq!(nodes, expected);
    }

    #[test]
    fn nodes_that_were_left_out_count_as_skipped_in_a_result() {
        let facts = OutputFacts { left_out: 2, ..OutputFacts::default() };
        let all = all(vec![outcome("a", ""), outcome("b", "ScriptFailed")]);
        let counts = TargetCounts { total: 3, skipped: 1, ..all.counts };
        let all = Outcomes { counts, ..all };
        for kind in [OpsType::Addon, OpsType::Reboot] {
            let result = value(&outputs(kind, &all, &facts), "result");
            assert_eq!((&result["failed"], &result["skipped"]), (&json!(1), &json!(3)), "{kind:?}");
        }
    }

    #[test]
    fn an_exported_image_has_a_name_that_the_host_gave_it_whatever_a_node_says() {
        let (own, other) = ("reg/custom/commits/d/app:1".to_owned(), "reg/custom/commits/d/app:2".to_owned());
        let digest = format!("sha256:{}", "a".repeat(64));
        let told = |said: &str, digest: &str, images: &[&String]| {
            let copied = ExportedTo { target: said.into(), digest: digest.into(), ..ExportedTo::default() };
            let all = all(vec![TargetOutcome { copied, ..outcome("a", "") }]);
            let facts = OutputFacts { images: images.iter().map(|name| (*name).clone()).collect(), left_out: 0 };
            let outputs = outputs(OpsType::Exportimage, &all, &facts);
            let value = |name: &str| outputs.iter().find(|one| one["name"] == name).map(|one| one["value"].clone());
            (value("target").unwrap(), value("digest").unwrap())
        };
        for said in [own.as_str(), "", "artifact:other/app.log", "reg/custom/library/busybox:1"] {
            assert_eq!(told(said, &digest, &[&own]), (json!(own), json!(digest)), "{said}");
        }
        // The host itself reports which of its two names a copy got.
        assert_eq!(told(&other, &digest, &[&own, &other]).0, json!(other));
        assert_eq!(told("", &digest, &[&own, &other]).0, json!(""));
        assert_eq!(told(&own, "artifact:other/app.log", &[&own]).1, json!(""));
    }

    #[test]
    fn a_report_names_every_node_failed_ones_first() {
        let all = all((0..300)
            .map(|number| outcome(&format!("{number:03}"), if number == 7 { "Bad" } else { "" }))
            .collect());
        let job = OpsJobView { name: "check".into(), uid: "0b9d-1".into(), ..OpsJobView::default() };
        let report = report(&job, &all);
        assert_eq!((&report["jobId"], report_file("0b9d-1")), (&json!("check"), "report-0b9d.json".to_owned()));
        assert_eq!(report["nodes"].as_array().unwrap().len(), 300);
        let first = json!({"node": "007", "passed": false, "exitCode": null, "reason": "Bad", "message": ""});
        assert_eq!((&report["nodes"][0], &report["nodes"][1]["node"]), (&first, &json!("000")));
    }

    #[test]
    fn a_value_of_many_long_names_says_how_many_it_leaves_out() {
        let all = all((0..5_000).map(|number| outcome(&format!("{number:0253}"), "")).collect());
        for kind in [OpsType::Preflight, OpsType::Reboot, OpsType::Addon] {
            let outputs = outputs(kind, &all, &OutputFacts::default());
            assert!(json!(outputs).to_string().len() < ALL + 1_024);
            assert!(outputs.iter().all(|output| output["value"].as_str().unwrap().len() <= VALUE));
        }
        assert_eq!(
            value(&outputs(OpsType::Addon, &all, &OutputFacts::default()), "result")["left_out"],
            json!(5_000 - SHOWN)
        );
        let result = value(&outputs(OpsType::Preflight, &all, &OutputFacts::default()), "result");
        let shown = result["healthy_nodes"].as_array().unwrap().len();
        assert_eq!(result["left_out"], json!(5_000 - shown));
    }
}
