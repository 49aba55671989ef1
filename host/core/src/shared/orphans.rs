//! Holds whose job is gone.
//!
//! Takes the objects and the jobs that exist; yields the patches that take orphaned holds away. A hold counts as
//! orphaned only when two sweeps in a row found no job for it: a cache may lag behind a job that is new, but not for as
//! long as lies between two sweeps. May not write. Source: spec/operationjob.md §3.7, "Holds".

use std::collections::BTreeSet;

use crate::cluster::object::Kind;
use crate::cluster::store::Store;
use crate::cluster::writes::{TargetWrites, Write};
use crate::shared::holds::{holders, let_go};

/// What earlier sweeps found: UIDs of jobs that hold something and do not exist.
#[derive(Debug, Default)]
pub struct Sweep {
    suspected: BTreeSet<String>,
}

impl Sweep {
    /// Sweeps once. `jobs` are the UIDs of all jobs that exist.
    pub fn sweep(&mut self, store: &Store, jobs: &BTreeSet<String>) -> Vec<TargetWrites> {
        let mut orphaned = BTreeSet::new();
        let mut writes = Vec::new();
        for pod in store.all(&Kind::pod(), None) {
            for uid in holders(&pod).filter(|uid| !jobs.contains(*uid)) {
                if self.suspected.contains(uid)
                    && let Some(body) = let_go(&pod, uid)
                {
                    let write = Write::Patch { object: pod.key.clone(), subresource: None, body };
                    writes.push(TargetWrites { target: None, writes: vec![write] });
                }
                orphaned.insert(uid.to_owned());
            }
        }
        self.suspected = orphaned;
        writes
    }
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
        let mut sweep = Sweep::default();
        let jobs = ["there".to_owned()].into();
        assert!(sweep.sweep(&store, &jobs).is_empty());
        let writes = sweep.sweep(&store, &jobs);
        assert_eq!(writes.len(), 1);
        assert!(format!("{writes:?}").contains("hold.oarlock.dev/gone"));
    }
}
