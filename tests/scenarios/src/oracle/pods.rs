//! Checks the changes of a pod, given the state that was durable before.
//!
//! Takes a version of a pod and the version before; yields the broken properties of the step between them.

use std::collections::BTreeSet;

use oarlock_sim::world::{Version, labels};
use serde_json::Value;

use super::{Job, Seen};

/// The finalizer that keeps an original pod until its new pod is recorded.
const PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";
const HOLD: &str = "hold.oarlock.dev/";
/// The text between the operation and the job name in a lifecycle label.
const OPERATION: &str = ".podopslifecycle.kusionstack.io/";
/// The prefix of a hold on a pod that is no target. Such a hold only marks the pod as nobody's successor.
const BARRED: &str = "[\"barred\"";

impl Seen<'_> {
    /// Checks S5 and S7: a pod changes only after a job has stored it, by UID, as a target in flight. Checks S3: no change
    /// follows the outcome. Checks S7 again: a guard goes only after the data it waits for is durable.
    pub(super) fn pod(&self, pod: &Version) -> Vec<String> {
        let before = self.pods.get(&pod.name).filter(|before| before.uid == pod.uid && !before.is_end);
        let mut wrong = Vec::new();
        let known: BTreeSet<&str> = before.map(holders).into_iter().flatten().collect();
        for uid in holders(pod).into_iter().filter(|uid| !known.contains(uid)) {
            let Some(job) = self.jobs.get(uid) else { continue };
            if job.dry_run {
                wrong.push(format!("S3: held by the dry run {}", job.name));
            }
            if stored(job, pod) != "Processing" {
                wrong.push(format!("S7: held while its target of {} is stored as {:?}", job.name, stored(job, pod)));
            }
        }
        wrong.extend(self.begun_by_a_dry_run(before, pod));
        let begun = |job: &Job| !job.dry_run && !matches!(stored(job, pod), "" | "Pending");
        let drained = |job: &Job| !job.dry_run && drains(job, pod);
        let allowed = self.jobs.values().any(|job| begun(job) || drained(job));
        if is_evicted(pod) && !before.is_some_and(is_evicted) && !allowed {
            wrong.push("S5: evicted while no job in earnest has it stored as a target in flight, by UID".to_owned());
        }
        wrong.extend(before.into_iter().flat_map(|before| self.released(before, pod)));
        wrong
    }

    /// Checks S3: a dry run has no effect, so no operation of the PodOpsLifecycle has its name.
    fn begun_by_a_dry_run(&self, before: Option<&Version>, pod: &Version) -> Option<String> {
        let labels = |pod: &Version| pod.at("/metadata/labels").as_object().cloned().unwrap_or_default();
        let known = before.map(labels).unwrap_or_default();
        let new: Vec<String> =
            labels(pod).into_iter().map(|(key, _)| key).filter(|key| !known.contains_key(key)).collect();
        let names = |job: &&Job| new.iter().any(|key| key.split_once(OPERATION).is_some_and(|(_, id)| id == job.name));
        let job = self.jobs.values().filter(|job| job.dry_run).find(names)?;
        Some(format!("S3: an operation of the dry run {} begins", job.name))
    }

    /// Checks S7: the guard of an original pod goes only after its new pod is durable, after its target or the attempt has
    /// ended, or after its job is gone.
    fn released(&self, before: &Version, pod: &Version) -> Vec<String> {
        let unguarded = kept(before) && (pod.is_end || !kept(pod));
        let mark = label(labels::TO_REPLACE);
        let unmarked = !pod.is_end && before.at(&mark) != pod.at(&mark);
        if !unguarded && !unmarked {
            return Vec::new();
        }
        let holds = holders(before).into_iter().filter_map(|uid| self.jobs.get(uid));
        let owes = |job: &&Job| {
            let target = job.targets.get(&pod.name).filter(|target| target.uid == pod.uid);
            target.is_some_and(|target| !target.may_let_go() && target.new_pod.is_empty())
        };
        // A second job may still hold a pod that the first job rightly released. The pod stays marked for the second job.
        holds.filter(owes).map(|job| format!("S7: released before {} had stored its new pod", job.name)).collect()
    }
}

/// Returns the progress that a job has stored for exactly this pod.
fn stored<'a>(job: &'a Job, pod: &Version) -> &'a str {
    job.targets.get(&pod.name).filter(|target| target.uid == pod.uid).map_or("", |target| &target.progress)
}

/// Returns true if a job has stored that it drains the node of this pod, and the node is a target in flight.
fn drains(job: &Job, pod: &Version) -> bool {
    let node = pod.at("/spec/nodeName").as_str().and_then(|node| job.targets.get(node));
    node.is_some_and(|target| target.draining && target.progress == "Processing" && !target.waits)
}

/// Returns the UIDs of the jobs that hold a pod. Holds that only mark a pod as nobody's successor do not count.
pub(super) fn holders(pod: &Version) -> Vec<&str> {
    let annotations = pod.at("/metadata/annotations").as_object().into_iter().flatten();
    let held = annotations.filter(|(_, marks)| marks.as_str().is_some_and(|marks| !marks.starts_with(BARRED)));
    held.filter_map(|(key, _)| key.strip_prefix(HOLD)).collect()
}

/// Returns true if a pod serves.
pub(super) fn serves(pod: &Version) -> bool {
    if pod.is_end || !pod.at("/metadata/deletionTimestamp").is_null() {
        return false;
    }
    if !pod.at(&label(labels::INSTANCE_ID)).is_null() {
        return !pod.at(&label(labels::SERVICE_AVAILABLE)).is_null();
    }
    condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}

fn is_evicted(pod: &Version) -> bool {
    condition(pod, labels::DISRUPTION_TARGET).is_some_and(|found| found["reason"] == labels::EVICTED_BY_API)
}

fn condition<'a>(pod: &'a Version, kind: &str) -> Option<&'a Value> {
    pod.at("/status/conditions").as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn kept(pod: &Version) -> bool {
    pod.at("/metadata/finalizers").as_array().is_some_and(|all| all.iter().any(|one| one == PROTECTED))
}

/// Returns the JSON pointer of a label.
fn label(key: &str) -> String {
    format!("/metadata/labels/{}", key.replace('~', "~0").replace('/', "~1"))
}
