//! The pods that targets of exclusive plugins work on, and the targets that wait for them.
//!
//! A target has its pod before its start is recorded, since another job may begin on that pod in the same moment, and a hold
//! is seen only later. Source: docs/operationjob.md 3.4.3.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::job::key::JobKey;
use crate::shared::wake_index::TargetId;

/// The pods that targets of exclusive plugins work on, by UID.
#[derive(Debug, Default)]
pub struct ExclusivePods {
    had_by: HashMap<String, JobKey>,
    of_job: HashMap<JobKey, BTreeMap<u32, String>>,
    waiting: HashMap<String, BTreeSet<TargetId>>,
}

impl ExclusivePods {
    /// Gives the pod of this UID to a target. `false` if another job has it: then the target waits for it.
    pub fn take(&mut self, pod_uid: &str, target: &TargetId) -> bool {
        let (job, index) = target;
        if self.had_by.get(pod_uid).is_some_and(|by| *by != job.key) {
            self.waiting.entry(pod_uid.to_owned()).or_default().insert(target.clone());
            return false;
        }
        self.had_by.insert(pod_uid.to_owned(), job.key.clone());
        self.of_job.entry(job.key.clone()).or_default().insert(*index, pod_uid.to_owned());
        true
    }

    /// Takes the pod of a target back. Returns the targets that wait for it.
    pub fn give_back(&mut self, job: &JobKey, index: u32) -> BTreeSet<TargetId> {
        let Some(own) = self.of_job.get_mut(job) else { return BTreeSet::new() };
        let pod_uid = own.remove(&index);
        if own.is_empty() {
            self.of_job.remove(job);
        }
        pod_uid.map(|pod_uid| self.free(&pod_uid)).unwrap_or_default()
    }

    /// Takes back all pods of a job, and forgets what it waits for. Returns the targets that wait for them.
    pub fn forget(&mut self, job: &JobKey) -> BTreeSet<TargetId> {
        self.waiting.retain(|_, targets| {
            targets.retain(|(waiting, _)| waiting.key != *job);
            !targets.is_empty()
        });
        let own = self.of_job.remove(job).unwrap_or_default();
        own.into_values().flat_map(|pod_uid| self.free(&pod_uid)).collect()
    }

    fn free(&mut self, pod_uid: &str) -> BTreeSet<TargetId> {
        self.had_by.remove(pod_uid);
        self.waiting.remove(pod_uid).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::job::key::JobRef;

    fn target(job: &str, index: u32) -> TargetId {
        let key = JobKey { namespace: "d".into(), name: job.into() };
        (Arc::new(JobRef { key, uid: job.into() }), index)
    }

    #[test]
    fn one_job_has_a_pod_and_the_others_are_told_when_it_is_free() {
        let mut pods = ExclusivePods::default();
        let [a, b, c] = ["a", "b", "c"].map(|job| target(job, 0));
        assert!(pods.take("pod", &a) && pods.take("pod", &a) && !pods.take("pod", &b) && !pods.take("pod", &c));
        pods.forget(&c.0.key);
        assert_eq!(pods.give_back(&a.0.key, 7), [].into(), "it has no such target");
        assert_eq!(pods.give_back(&a.0.key, 0), [b.clone()].into());
        assert!(pods.take("pod", &b) && !pods.take("pod", &a));
        assert_eq!(pods.forget(&b.0.key), [a].into());
        assert!(pods.had_by.is_empty() && pods.of_job.is_empty() && pods.waiting.is_empty());
    }
}
