//! Holds, pods and outputs of tasks whose job is gone.
//!
//! A hold counts as orphaned only if two lists of jobs in a row lack its job, the first of which may be the cache, which may lag
//! behind a new job. The second one was begun after the hold was seen: a job is stored before it holds anything, so one that
//! is not stored then is gone. Source: docs/operationjob.md 3.7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_contract::authorize::{may_be_put, printable, printable_line};

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::cluster::store::Store;
use crate::cluster::task_pod::{JOB_UID, TASK};
use crate::cluster::writes::{EventNote, Write};
use crate::plugin::grant::Grant;
use crate::plugin::manifest::TargetKind;
use crate::shared::holds::{let_go, let_go_of_orphan};

/// Objects that were read live, by name.
pub type SeenObjects = BTreeMap<ObjectKey, Option<Arc<Object>>>;

/// The jobs, by UID, that have holds and that the last list of jobs did not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    suspected: BTreeSet<String>,
    /// The same, of jobs that have pods of tasks.
    suspected_of_tasks: BTreeSet<String>,
}

/// The changes that a sweep asks for.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// The patches that remove orphaned holds.
    pub writes: Vec<Write>,
    /// The events on objects whose hold lists marks that no plugin may put there. These marks stay.
    pub events: Vec<EventNote>,
}

impl Orphans {
    /// Suspects the jobs that have something and are not among `jobs`, which may be an old view. True if there are any.
    pub fn suspect(&mut self, store: &Store, jobs: &BTreeSet<String>, namespace: &str) -> bool {
        *self = Self::default();
        drop(self.sweep(store, jobs, &[]));
        drop(self.sweep_tasks(store, jobs, namespace));
        !(self.suspected.is_empty() && self.suspected_of_tasks.is_empty())
    }

    /// Sweeps holds. `jobs` are the UIDs of all jobs that exist. An orphaned hold of a pod is proved, so all of its marks go, whatever is
    /// granted today. A hold of a node loses only the marks that a plugin under `grants` may have put there: its forger would have the
    /// host take off the others.
    pub fn sweep(&mut self, store: &Store, jobs: &BTreeSet<String>, grants: &[Grant]) -> Swept {
        let holders: BTreeSet<String> = TargetKind::ALL.iter().flat_map(|kind| store.holders(&kind.kind())).collect();
        let missing: BTreeSet<String> = holders.difference(jobs).cloned().collect();
        let mut swept = Swept::default();
        for uid in missing.intersection(&self.suspected) {
            for object in objects_held_by(store, uid) {
                let is_proved = object.key.kind == Kind::pod();
                // Without grants nobody can say which marks may be ours, and a later one may name them.
                if !is_proved && grants.is_empty() {
                    continue;
                }
                let may_be_ours = |mark: &str| is_proved || may_be_put(mark, &object.key.kind, grants);
                let Some((body, foreign)) = let_go_of_orphan(&object, uid, may_be_ours) else { continue };
                swept.writes.push(Write::patch(&object.key, body));
                swept
                    .events
                    .extend(Some(foreign).filter(|marks| !marks.is_empty()).map(|marks| left(&object, uid, &marks)));
            }
        }
        self.suspected = missing;
        swept
    }

    /// The deletions of orphaned pods of tasks in their namespace. `jobs` are the UIDs of all jobs that exist.
    pub fn sweep_tasks(&mut self, store: &Store, jobs: &BTreeSet<String>, namespace: &str) -> Vec<Write> {
        let of_kind = |kind: Kind| store.all(&kind, Some(namespace));
        let mut pods = [of_kind(Kind::pod()), of_kind(Kind::host_task())].concat();
        pods.retain(|pod| pod.task.is_some() && pod.labels.get(JOB_UID).is_some_and(|uid| !jobs.contains(uid)));
        let of_job = |pod: &Object| pod.labels.get(JOB_UID).unwrap_or_default().to_owned();
        let missing: BTreeSet<String> = pods.iter().map(|pod| of_job(pod)).collect();
        let known = pods.iter().filter(|pod| !pod.terminating() && self.suspected_of_tasks.contains(&of_job(pod)));
        let writes = known.map(|pod| deletion(pod)).collect();
        self.suspected_of_tasks = missing;
        writes
    }
}

/// The patches that remove all holds of a job.
pub fn held_by(store: &Store, job_uid: &str) -> Vec<Write> {
    let held = objects_held_by(store, job_uid);
    held.filter_map(|object| Some(Write::patch(&object.key, let_go(&object, job_uid)?))).collect()
}

/// The writes that remove what a job that is gone has beside the holds that the views show: pods of its tasks in their namespace,
/// and of what was read live, holds on objects of which no view is kept, and outputs of tasks.
pub fn beside_holds(job_uid: &str, store: &Store, tasks: &str, seen: &SeenObjects) -> Vec<Write> {
    let of_kind = |kind: Kind| store.labelled(&kind, tasks, JOB_UID, job_uid);
    let pods = [of_kind(Kind::pod()), of_kind(Kind::host_task())].concat();
    let pods = pods.iter().filter(|pod| pod.task.is_some() && !pod.terminating()).map(|pod| deletion(pod));
    let unwatched = seen.values().flatten().filter(|object| !store.keeps(&object.key.kind) && !object.terminating());
    let unwatched = unwatched.filter_map(|object| {
        let is_of_tasks = object.key.namespace.as_deref() == Some(tasks) && object.labels.get(TASK).is_some();
        if is_of_tasks {
            return (object.labels.get(JOB_UID) == Some(job_uid)).then(|| deletion(object));
        }
        Some(Write::patch(&object.key, let_go(object, job_uid)?))
    });
    pods.chain(unwatched).collect()
}

fn deletion(object: &Object) -> Write {
    Write::Delete {
        object: object.key.clone(),
        uid: object.uid.clone(),
        resource_version: None,
        grace_seconds: None,
        propagation: None,
    }
}

fn objects_held_by(store: &Store, job_uid: &str) -> impl Iterator<Item = Arc<Object>> {
    TargetKind::ALL.iter().flat_map(move |kind| store.held_by(&kind.kind(), job_uid))
}

/// The event that marks of a hold were left on an object.
fn left(object: &Object, job_uid: &str, marks: &[String]) -> EventNote {
    let text = format!("{}/{job_uid}/HoldRefused", object.uid);
    let message = format!(
        "removed a hold of job {}, which is gone, and left {}: no plugin is granted to put that there; see who wrote the hold, and take off what is not wanted",
        printable(job_uid),
        printable_line(&marks.join(", "))
    );
    EventNote {
        name: EventNote::name_of(&object.key.name, &text),
        regarding: object.key.clone(),
        regarding_uid: object.uid.clone(),
        warning: true,
        reason: "HoldRefused".to_owned(),
        action: "Sweep".to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::store::Indexed;

    #[test]
    fn a_hold_on_a_node_goes_with_its_cordon() {
        let store = Store::default();
        store.keep(&Kind::node(), Indexed::default());
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1",
            "annotations": {"hold.oarlock.dev/gone": "[\"cordon\"]"}}, "spec": {"unschedulable": true}});
        store.apply(Object::slim(&node, &Kind::node(), &[]).unwrap());
        let mut orphans = Orphans::default();
        let grants = grants(&json!([{"verb": "schedulable", "apiVersion": "v1", "kind": "Node"}]));
        assert!(orphans.sweep(&store, &BTreeSet::new(), &grants).writes.is_empty());
        let swept = orphans.sweep(&store, &BTreeSet::new(), &grants);
        let [Write::Patch { body, .. }] = swept.writes.as_slice() else { panic!("{swept:?}") };
        assert_eq!((&body["spec"], swept.events.len()), (&json!({"unschedulable": null}), 0));
    }

    #[test]
    fn a_forged_hold_of_a_job_that_never_was_takes_off_nothing_that_no_plugin_may_put_there() {
        let store = Store::default();
        store.keep(&Kind::node(), Indexed::default());
        let forged = json!(["cordon", "label:node-restriction.kubernetes.io/team", "taint:quarantine:NoExecute"]);
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1",
            "labels": {"node-restriction.kubernetes.io/team": "a"},
            "annotations": {"hold.oarlock.dev/never": forged.to_string()}},
            "spec": {"unschedulable": true, "taints": [{"key": "quarantine", "effect": "NoExecute"}]}});
        store.apply(Object::slim(&node, &Kind::node(), &[]).unwrap());
        let grants =
            grants(&json!([{"verb": "metadata", "apiVersion": "v1", "kind": "Node", "labels": ["example.com/*"]}]));
        let mut orphans = Orphans::default();
        orphans.sweep(&store, &BTreeSet::new(), &grants);
        let swept = orphans.sweep(&store, &BTreeSet::new(), &grants);
        let [Write::Patch { body, .. }] = swept.writes.as_slice() else { panic!("{swept:?}") };
        let only_the_hold = json!({"annotations": {"hold.oarlock.dev/never": null, "left.oarlock.dev/never": forged.to_string()},
            "uid": "u", "resourceVersion": "1"});
        assert_eq!(*body, json!({"metadata": only_the_hold}), "exclusive jobs may come, and nothing else is different");
        let [event] = swept.events.as_slice() else { panic!("{swept:?}") };
        assert_eq!((event.reason.as_str(), &event.regarding), ("HoldRefused", &ObjectKey::node("n")));
        assert!(event.message.contains("taint:quarantine:NoExecute"), "{}", event.message);
    }

    fn grants(writes: &Value) -> [Grant; 1] {
        [serde_json::from_value(json!({"namespaces": ["*"], "writes": writes})).unwrap()]
    }

    #[test]
    fn a_hold_goes_when_its_job_is_gone_in_two_sweeps_and_not_before() {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed::default());
        let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "1", "finalizers": ["f"],
            "labels": {"oarlock.dev/held": "true"},
            "annotations": {"hold.oarlock.dev/gone": "[\"finalizer:f\"]", "hold.oarlock.dev/there": "[]"}}});
        store.apply(Object::slim(&pod, &Kind::pod(), &[]).unwrap());
        let mut orphans = Orphans::default();
        let jobs = ["there".to_owned()].into();
        assert!(orphans.sweep(&store, &jobs, &[]).writes.is_empty());
        let swept = orphans.sweep(&store, &jobs, &[]);
        let [Write::Patch { body, .. }] = swept.writes.as_slice() else { panic!("{swept:?}") };
        let metadata = json!({"annotations": {"hold.oarlock.dev/gone": null}, "finalizers": [], "uid": "u", "resourceVersion": "1"});
        assert_eq!(
            (body, swept.events.len()),
            (&json!({ "metadata": metadata }), 0),
            "a narrowed grant leaves nothing behind"
        );
    }
}
