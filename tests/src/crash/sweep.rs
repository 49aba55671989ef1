//! What must hold at every version of the whole cluster while a Replace job runs, whatever crashes.
//!
//! Takes the history of pods and jobs; yields each version that broke a property (S1, S3, S5 to S7, L3). Source:
//! docs/operationjob.md 9. Judges by what the API server stored alone. May not know when the host was killed.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_sim::world::{History, Snapshot, Version, labels};
use serde_json::Value;

const PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";
const HOLD: &str = "hold.oarlock.dev/";
/// What a hold lists on a pod that is nobody's target: it only says who may not take that pod.
const BARRED: &str = "[\"barred\"]";

/// Sweeps the properties over a history, for the job `job` of a namespace.
#[must_use]
pub fn sweep(history: &History, namespace: &str, job: &str) -> Vec<String> {
    let sweep = Sweep { namespace, job };
    let breaches = history.sweep(|before, version, _| sweep.check(before, version));
    breaches.iter().map(ToString::to_string).collect()
}

struct Sweep<'a> {
    namespace: &'a str,
    job: &'a str,
}

impl Sweep<'_> {
    fn check(&self, before: &Snapshot, version: &Version) -> Result<(), String> {
        if version.namespace != self.namespace {
            return Ok(());
        }
        let key = (version.plural.clone(), version.namespace.clone(), version.name.clone());
        let previous = before.get(&key).filter(|known| known.uid == version.uid);
        match version.plural.as_str() {
            "pods" => self.pod(before, previous, version),
            "operationjobs" if version.name == self.job => self.job(before, previous, version),
            _ => Ok(()),
        }
    }

    /// S5, S7: nothing happens to a pod before it is durably a target in flight, under this very UID, and S3: nothing
    /// after its outcome. S7 again: no guard goes before what it waits for is durable.
    fn pod(&self, before: &Snapshot, previous: Option<&Version>, pod: &Version) -> Result<(), String> {
        let Some(previous) = previous.filter(|_| !pod.is_end) else { return Ok(()) };
        let place = ("operationjobs".to_owned(), self.namespace.to_owned(), self.job.to_owned());
        let Some(job) = before.get(&place) else { return Ok(()) };
        let target = detail(job, &pod.name);
        let taken = !holds(previous, &job.uid) && holds(pod, &job.uid);
        let evicted = !is_evicted(previous) && is_evicted(pod);
        if taken || evicted {
            let what = if taken { "held" } else { "evicted" };
            let stored = (text(target, "/progress"), text(target, "/uid"));
            if stored != ("Processing", pod.uid.as_str()) {
                return Err(format!("{what} while its target is stored as {stored:?}, and its UID is {}", pod.uid));
            }
        }
        let unguarded = finalizers(previous).contains(PROTECTED) && !finalizers(pod).contains(PROTECTED);
        let unmarked =
            holds(previous, &job.uid) && previous.at(&label(labels::TO_REPLACE)) != pod.at(&label(labels::TO_REPLACE));
        let recorded = is_terminal(target) || !text(target, "/extraInfo/NewPod").is_empty();
        if (unguarded || unmarked) && !recorded {
            return Err(format!("let go while its target is stored as {target}"));
        }
        Ok(())
    }

    fn job(&self, before: &Snapshot, previous: Option<&Version>, job: &Version) -> Result<(), String> {
        if job.is_end {
            let left: Vec<&str> =
                pods(before).filter(|pod| holds(pod, &job.uid)).map(|pod| pod.name.as_str()).collect();
            return if left.is_empty() { Ok(()) } else { Err(format!("L3: the job is gone and still holds {left:?}")) };
        }
        let new_pods: Vec<&str> = details(job)
            .values()
            .map(|target| text(target, "/extraInfo/NewPod"))
            .filter(|name| !name.is_empty())
            .collect();
        if new_pods.iter().collect::<BTreeSet<_>>().len() < new_pods.len() {
            return Err(format!("two targets have the same NewPod: {new_pods:?}"));
        }
        let epoch = |version: &Version| version.at("/status/epoch").as_i64().unwrap_or(0);
        if previous.is_some_and(|previous| epoch(previous) > epoch(job)) {
            return Err("S6: its epoch fell".to_owned());
        }
        let known = previous.map(details).unwrap_or_default();
        for (name, target) in details(job) {
            let old = known.get(name).copied().unwrap_or(&Value::Null);
            if is_terminal(old) {
                if text(old, "/progress") != text(target, "/progress") {
                    return Err(format!("S3: the outcome of {name} changed from {old} to {target}"));
                }
            } else if text(target, "/progress") == "Succeeded" {
                verified(before, self.namespace, name, target)?;
            }
        }
        Ok(())
    }
}

/// S3: a target may be told to have succeeded once its pod is gone and the new one serves.
fn verified(before: &Snapshot, namespace: &str, name: &str, target: &Value) -> Result<(), String> {
    let pod = |name: &str| before.get(&("pods".to_owned(), namespace.to_owned(), name.to_owned()));
    if pod(name).is_some_and(|pod| pod.uid == text(target, "/uid")) {
        return Err(format!("S3: {name} is said to have succeeded, and its pod is there"));
    }
    match pod(text(target, "/extraInfo/NewPod")) {
        Some(new) if serves(new) => Ok(()),
        _ => Err(format!("S3: {name} is said to have succeeded, and no new pod serves: {target}")),
    }
}

fn serves(pod: &Version) -> bool {
    if !pod.at("/metadata/deletionTimestamp").is_null() {
        return false;
    }
    if !pod.at(&label(labels::INSTANCE_ID)).is_null() {
        return !pod.at(&label(labels::SERVICE_AVAILABLE)).is_null();
    }
    condition(pod, "Ready").is_some_and(|ready| text(ready, "/status") == "True")
}

fn is_evicted(pod: &Version) -> bool {
    condition(pod, labels::DISRUPTION_TARGET).is_some_and(|found| text(found, "/reason") == labels::EVICTED_BY_API)
}

fn condition<'a>(pod: &'a Version, kind: &str) -> Option<&'a Value> {
    pod.at("/status/conditions").as_array()?.iter().find(|condition| text(condition, "/type") == kind)
}

fn holds(pod: &Version, job_uid: &str) -> bool {
    let held = pod.at("/metadata/annotations").get(format!("{HOLD}{job_uid}")).and_then(Value::as_str);
    held.is_some_and(|marks| marks != BARRED)
}

fn finalizers(pod: &Version) -> BTreeSet<&str> {
    pod.at("/metadata/finalizers").as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn pods(cluster: &Snapshot) -> impl Iterator<Item = &Version> {
    cluster.values().filter(|version| version.plural == "pods")
}

fn details(job: &Version) -> BTreeMap<&str, &Value> {
    let list = job.at("/status/targetDetails").as_array().into_iter().flatten();
    list.map(|target| (text(target, "/name"), target)).collect()
}

fn detail<'a>(job: &'a Version, name: &str) -> &'a Value {
    let mut list = job.at("/status/targetDetails").as_array().into_iter().flatten();
    list.find(|target| text(target, "/name") == name).unwrap_or(&Value::Null)
}

fn is_terminal(target: &Value) -> bool {
    matches!(text(target, "/progress"), "Succeeded" | "Failed")
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The JSON pointer of a label.
fn label(key: &str) -> String {
    format!("/metadata/labels/{}", key.replace('~', "~0").replace('/', "~1"))
}
