//! The objects that no two jobs may work on at once, and the targets that wait for them. These objects are nodes and
//! the pods of exclusive plugins.
//!
//! A target takes its object before its start is recorded. Another job may begin with the object at the same moment,
//! and the cache shows a hold only later. Source: docs/operationjob.md 3.4.3.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::key::JobKey;
use crate::operation_job::shared::wake_index::TargetId;

/// The objects that no two jobs may work on at once, by UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExclusiveObjects {
    had_by: BTreeMap<String, JobKey>,
    of_job: BTreeMap<JobKey, BTreeMap<u32, String>>,
    waiting: BTreeMap<String, BTreeSet<TargetId>>,
}

impl ExclusiveObjects {
    /// Gives the object with this UID to a target. Returns false if another job has the object; the target then waits
    /// for it.
    pub fn take(&mut self, uid: &str, target: &TargetId) -> bool {
        let (job, index) = target;
        if self.had_by.get(uid).is_some_and(|by| *by != job.key) {
            self.waiting.entry(uid.to_owned()).or_default().insert(target.clone());
            return false;
        }
        self.have(uid, &job.key, *index);
        true
    }

    /// Records that a target has the object with this UID, unless another job has the object.
    pub fn have(&mut self, uid: &str, job: &JobKey, index: u32) {
        if self.had_by.get(uid).is_none_or(|by| by == job) {
            self.had_by.insert(uid.to_owned(), job.clone());
            self.of_job.entry(job.clone()).or_default().insert(index, uid.to_owned());
        }
    }

    /// Returns the job that has the object with this UID.
    pub fn holder(&self, uid: &str) -> Option<&JobKey> {
        self.had_by.get(uid)
    }

    /// Takes the object of a target back. Returns the targets that wait for the object.
    pub fn give_back(&mut self, job: &JobKey, index: u32) -> BTreeSet<TargetId> {
        let Some(own) = self.of_job.get_mut(job) else { return BTreeSet::new() };
        let uid = own.remove(&index);
        if own.is_empty() {
            self.of_job.remove(job);
        }
        uid.map(|uid| self.free(&uid)).unwrap_or_default()
    }

    /// Takes back all objects of a job, and forgets the job's waiting targets. Returns the targets that wait for these
    /// objects.
    pub fn forget(&mut self, job: &JobKey) -> BTreeSet<TargetId> {
        self.waiting.retain(|_, targets| {
            targets.retain(|(waiting, _)| waiting.key != *job);
            !targets.is_empty()
        });
        let own = self.of_job.remove(job).unwrap_or_default();
        own.into_values().flat_map(|uid| self.free(&uid)).collect()
    }

    fn free(&mut self, uid: &str) -> BTreeSet<TargetId> {
        self.had_by.remove(uid);
        self.waiting.remove(uid).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::object::key::JobRef;

    fn target(job: &str, index: u32) -> TargetId {
        let key = JobKey { namespace: "d".into(), name: job.into() };
        (Arc::new(JobRef { key, uid: job.into() }), index)
    }

    #[test]
    fn one_job_has_a_pod_and_the_others_are_told_when_it_is_free() {
        let mut pods = ExclusiveObjects::default();
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
