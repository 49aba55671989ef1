//! Holds and pods of tasks whose job is gone.
//!
//! A hold counts as orphaned only if two sweeps in a row found no job for it: a cache may lag behind a new job, but not
//! for the time between two sweeps. Source: docs/operationjob.md 3.7.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::object::{Kind, Object};
use crate::cluster::store::Store;
use crate::cluster::task_pod::JOB_UID;
use crate::cluster::writes::Write;
use crate::plugin::manifest::TargetKind;
use crate::shared::holds::let_go;

/// The jobs, by UID, that have holds and that the last sweep did not find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    suspected: BTreeSet<String>,
    /// The same, of jobs that have pods of tasks.
    suspected_of_tasks: BTreeSet<String>,
}

impl Orphans {
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
        let delete = |pod: &Arc<Object>| Write::Delete {
            object: pod.key.clone(),
            uid: pod.uid.clone(),
            resource_version: None,
            grace_seconds: None,
            propagation: None,
        };
        let writes = known.map(delete).collect();
        self.suspected_of_tasks = missing;
        writes
    }
}

/// The patches that remove all holds of a job.
pub fn held_by(store: &Store, job_uid: &str) -> Vec<Write> {
    let held = TargetKind::ALL.iter().flat_map(|kind| store.held_by(&kind.kind(), job_uid));
    held.filter_map(|object| Some(Write::patch(&object.key, let_go(&object, job_uid)?))).collect()
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
