//! Holds, pods and outputs of tasks whose job is gone.
//!
//! A hold counts as orphaned only if two lists of jobs in a row lack its job, the first of which may be the cache, which may lag
//! behind a new job. The second one was begun after the hold was seen: a job is stored before it holds anything, so one that
//! is not stored then is gone. Source: docs/operationjob.md 3.7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::cluster::store::Store;
use crate::cluster::task_pod::{JOB_UID, TASK};
use crate::cluster::writes::Write;
use crate::plugin::manifest::TargetKind;
use crate::shared::holds::let_go;

/// Objects that were read live, by name.
pub type SeenObjects = BTreeMap<ObjectKey, Option<Arc<Object>>>;

/// The jobs, by UID, that have holds and that the last list of jobs did not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    suspected: BTreeSet<String>,
    /// The same, of jobs that have pods of tasks.
    suspected_of_tasks: BTreeSet<String>,
}

impl Orphans {
    /// Suspects the jobs that have something and are not among `jobs`, which may be an old view. True if there are any.
    pub fn suspect(&mut self, store: &Store, jobs: &BTreeSet<String>, namespace: &str) -> bool {
        *self = Self::default();
        drop(self.sweep(store, jobs));
        drop(self.sweep_tasks(store, jobs, namespace));
        !(self.suspected.is_empty() && self.suspected_of_tasks.is_empty())
    }

    /// The patches that remove orphaned holds. `jobs` are the UIDs of all jobs that exist.
    pub fn sweep(&mut self, store: &Store, jobs: &BTreeSet<String>) -> Vec<Write> {
        let holders: BTreeSet<String> = TargetKind::ALL.iter().flat_map(|kind| store.holders(&kind.kind())).collect();
        let missing: BTreeSet<String> = holders.difference(jobs).cloned().collect();
        let writes = missing.intersection(&self.suspected).flat_map(|uid| held_by(store, uid)).collect();
        self.suspected = missing;
        writes
    }

    /// The deletions of orphaned pods of tasks in their namespace. `jobs` are the UIDs of all jobs that exist.
    pub fn sweep_tasks(&mut self, store: &Store, jobs: &BTreeSet<String>, namespace: &str) -> Vec<Write> {
        let mut pods = store.all(&Kind::pod(), Some(namespace));
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
    let held = TargetKind::ALL.iter().flat_map(|kind| store.held_by(&kind.kind(), job_uid));
    held.filter_map(|object| Some(Write::patch(&object.key, let_go(&object, job_uid)?))).collect()
}

/// The writes that remove what a job that is gone has beside the holds that the views show: pods of its tasks in their namespace,
/// and of what was read live, holds on objects of which no view is kept, and outputs of tasks.
pub fn beside_holds(job_uid: &str, store: &Store, tasks: &str, seen: &SeenObjects) -> Vec<Write> {
    let pods = store.labelled(&Kind::pod(), tasks, JOB_UID, job_uid);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        assert!(orphans.sweep(&store, &BTreeSet::new()).is_empty());
        let writes = orphans.sweep(&store, &BTreeSet::new());
        assert!(
            matches!(writes.as_slice(), [Write::Patch { body, .. }] if body["spec"] == json!({"unschedulable": null}))
        );
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
        assert!(orphans.sweep(&store, &jobs).is_empty());
        let writes = orphans.sweep(&store, &jobs);
        assert_eq!(writes.len(), 1);
        assert!(format!("{writes:?}").contains("hold.oarlock.dev/gone"));
    }
}
