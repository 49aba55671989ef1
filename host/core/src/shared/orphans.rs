//! Holds whose job is gone.
//!
//! A hold counts as orphaned only if two sweeps in a row found no job for it: a cache may lag behind a new job, but not
//! for the time between two sweeps. Source: docs/operationjob.md 3.7.

use std::collections::BTreeSet;

use crate::cluster::object::Kind;
use crate::cluster::store::Store;
use crate::cluster::writes::Write;
use crate::shared::holds::let_go;

/// The jobs, by UID, that have holds and that the last sweep did not find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    suspected: BTreeSet<String>,
}

impl Orphans {
    /// The patches that remove orphaned holds. `jobs` are the UIDs of all jobs that exist.
    pub fn sweep(&mut self, store: &Store, jobs: &BTreeSet<String>) -> Vec<Write> {
        let missing: BTreeSet<String> = store.holders(&Kind::pod()).difference(jobs).cloned().collect();
        let writes = missing.intersection(&self.suspected).flat_map(|uid| held_by(store, uid)).collect();
        self.suspected = missing;
        writes
    }
}

/// The patches that remove all holds of a job.
pub fn held_by(store: &Store, job_uid: &str) -> Vec<Write> {
    let pods = store.held_by(&Kind::pod(), job_uid);
    pods.iter().filter_map(|pod| Some(Write::patch(&pod.key, let_go(pod, job_uid)?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::object::Object;
    use crate::cluster::store::Indexed;

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
