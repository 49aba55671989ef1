//! What must never happen, asked of every version of every job and pod.
//!
//! Takes the versions of one scenario in order; yields what is wrong, with the property that it breaks. Source:
//! docs/operationjob.md 9. Knows jobs whose targets are in the job's status; those above 250 targets are left to their
//! scenarios.

use std::collections::BTreeMap;

use oarlock_sim::world::Version;
use serde_json::Value;

const FINALIZER: &str = "finalizer.operationjob.kusionstack.io/replace-protected";
const HOLD: &str = "hold.oarlock.dev/";

/// What is wrong in these versions. A scenario that meddles writes statuses itself, or kills the server, so that versions
/// are missing: what depends on each version of a status is not judged then.
pub fn breaches(versions: &[Version], meddled: bool) -> Vec<String> {
    let mut seen: BTreeMap<(String, String), &Version> = BTreeMap::new();
    let mut found = Vec::new();
    for version in versions {
        let key = (version.plural.clone(), version.uid.clone());
        let before = seen.get(&key).copied();
        let jobs: Vec<&Version> = seen.values().copied().filter(|other| other.plural == "operationjobs").collect();
        let wrong = match version.plural.as_str() {
            "operationjobs" if !meddled => before.map(|before| terminal_is_sticky(before, version)).unwrap_or_default(),
            "pods" if !meddled => {
                [intent_comes_first(before, version, &jobs), new_pod_comes_first(before, version, &jobs)].concat()
            }
            _ => Vec::new(),
        };
        let about =
            |wrong: String| format!("at {} {} {}: {wrong}", version.resource_version, version.plural, version.name);
        found.extend(wrong.into_iter().map(about));
        seen.insert(key, version);
    }
    found
}

/// S2, S3: an end stays as it was recorded.
fn terminal_is_sticky(before: &Version, after: &Version) -> Vec<String> {
    let mut wrong = Vec::new();
    if before.at("/status/endTime").is_string() {
        for field in ["progress", "startTime", "endTime"] {
            let pointer = format!("/status/{field}");
            if before.at(&pointer) != after.at(&pointer) {
                wrong.push(format!("S2: {field} of an ended job changed to {}", after.at(&pointer)));
            }
        }
    }
    let ended = targets(before).filter(|target| is_terminal(target));
    for old in ended {
        let now = targets(after).find(|target| target.get("name") == old.get("name"));
        if now.and_then(|now| now.get("progress")) != old.get("progress") {
            wrong.push(format!("S2: the outcome of {} changed", text(old, "name")));
        }
    }
    wrong
}

/// S5, S7: whoever is held or evicted is, by UID, what a job has durably started.
fn intent_comes_first(before: Option<&Version>, pod: &Version, jobs: &[&Version]) -> Vec<String> {
    let mut wrong = Vec::new();
    for uid in holders(pod).into_iter().filter(|uid| before.is_none_or(|before| !holders(before).contains(uid))) {
        let Some(job) = jobs.iter().find(|job| job.uid == uid) else { continue };
        let bars = pod
            .at("/metadata/annotations")
            .get(format!("{HOLD}{uid}"))
            .and_then(Value::as_str)
            .is_some_and(|list| list.contains("barred"));
        if !(bars || large(job) || started(job, pod)) {
            wrong.push(format!("S7: held by {} before it had started, by UID", job.name));
        }
    }
    let evicted = |version: &Version| {
        version
            .at("/status/conditions")
            .as_array()
            .is_some_and(|list| list.iter().any(|one| text(one, "reason") == "EvictionByEvictionAPI"))
    };
    let newly = evicted(pod) && !before.is_some_and(evicted);
    if newly && !jobs.iter().any(|job| large(job) || started(job, pod)) {
        wrong.push("S5: evicted although no job had started it, by UID".to_owned());
    }
    wrong
}

/// S7: the finalizer that keeps the origin goes only once the new pod is durable, the target has ended, or its job is
/// gone.
fn new_pod_comes_first(before: Option<&Version>, pod: &Version, jobs: &[&Version]) -> Vec<String> {
    let kept = |version: &Version| {
        version.at("/metadata/finalizers").as_array().is_some_and(|list| list.iter().any(|one| one == FINALIZER))
    };
    let Some(before) = before.filter(|before| kept(before)) else { return Vec::new() };
    if kept(pod) && !pod.is_end {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for uid in holders(before) {
        let Some(job) = jobs.iter().find(|job| job.uid == uid && !large(job)) else { continue };
        let target = targets(job).find(|target| text(target, "name") == pod.name);
        let may = target.is_none_or(|target| is_terminal(target) || target.pointer("/extraInfo/NewPod").is_some());
        if !(may || job.is_end) {
            wrong.push(format!("S7: let go before {} had stored the new pod", job.name));
        }
    }
    wrong
}

fn targets(job: &Version) -> impl Iterator<Item = &Value> {
    job.at("/status/targetDetails").as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn is_terminal(target: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&text(target, "progress"))
}

fn large(job: &Version) -> bool {
    job.at("/status/records").is_object()
}

/// Whether the job has durably started this very pod.
fn started(job: &Version, pod: &Version) -> bool {
    targets(job).any(|target| {
        text(target, "name") == pod.name && text(target, "uid") == pod.uid && text(target, "progress") != "Pending"
    })
}

/// UIDs of the jobs that hold a pod.
fn holders(pod: &Version) -> Vec<String> {
    let annotations = pod.at("/metadata/annotations").as_object().into_iter().flatten();
    annotations.filter_map(|(key, _)| Some(key.strip_prefix(HOLD)?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn version(number: u64, plural: &str, uid: &str, object: Value) -> Version {
        let (namespace, name) = ("d".to_owned(), uid.to_owned());
        let (plural, uid) = (plural.to_owned(), uid.to_owned());
        Version { resource_version: number, plural, namespace, name, uid, object: Arc::new(object), is_end: false }
    }

    fn job(number: u64, progress: &str, more: Value) -> Version {
        let mut target = json!({"name": "p", "uid": "p", "progress": progress});
        target.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        version(number, "operationjobs", "j", json!({"status": {"targetDetails": [target]}}))
    }

    fn held(number: u64, finalizers: Value) -> Version {
        version(
            number,
            "pods",
            "p",
            json!({"metadata": {"annotations": {"hold.oarlock.dev/j": "[]"}, "finalizers": finalizers}}),
        )
    }

    #[test]
    fn a_hold_before_the_intent_is_a_breach_and_after_it_is_none() {
        let pending = job(1, "Pending", json!({}));
        let started = job(2, "Processing", json!({}));
        assert_eq!(breaches(&[pending.clone(), held(3, json!([]))], false).len(), 1);
        assert!(breaches(&[pending, started, held(3, json!([]))], false).is_empty());
    }

    #[test]
    fn letting_go_before_the_new_pod_is_stored_is_a_breach() {
        let (started, stored) =
            (job(1, "Processing", json!({})), job(3, "Processing", json!({"extraInfo": {"NewPod": "n"}})));
        let (kept, free) = (held(2, json!([FINALIZER])), held(4, json!([])));
        assert_eq!(breaches(&[started.clone(), kept.clone(), free.clone()], false).len(), 1);
        assert!(breaches(&[started, kept, stored, free], false).is_empty());
    }

    #[test]
    fn an_outcome_that_changes_is_a_breach() {
        assert_eq!(breaches(&[job(1, "Failed", json!({})), job(2, "Succeeded", json!({}))], false).len(), 1);
    }
}
