//! The objects that targets in flight of any job may make unavailable, before the cache shows that.
//!
//! A job with `maxUnavailable` counts its targets that another job works on. None of these objects replaces a target
//! that started later. The host records a target when it plans the start, under the lock that guards the count. Source:
//! docs/operationjob.md 3.4.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use crate::object::api_object::ObjectKey;
use crate::object::key::JobKey;
use crate::operation_job::shared::wake_index::TargetId;

/// The objects that targets in flight work on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DisruptedObjects {
    by_object: BTreeMap<ObjectKey, BTreeMap<(JobKey, u32), Timestamp>>,
    of_job: BTreeMap<JobKey, BTreeMap<u32, ObjectKey>>,
    uncertain: BTreeMap<JobKey, BTreeSet<u32>>,
}

impl DisruptedObjects {
    /// Records that a target works on an object, which existed when the target started at `since`. Returns true if that
    /// is new.
    pub fn take(&mut self, job: &JobKey, index: u32, object: &ObjectKey, since: Timestamp) -> bool {
        self.of_job.entry(job.clone()).or_default().insert(index, object.clone());
        self.by_object.entry(object.clone()).or_default().insert((job.clone(), index), since).is_none()
    }

    /// Returns true if a target in flight that started by `time` works on the object, so that the object existed by
    /// then.
    pub fn was_there(&self, object: &ObjectKey, time: Timestamp) -> bool {
        self.by_object.get(object).into_iter().flatten().any(|(_, since)| *since <= time)
    }

    /// Records that a target no longer works on its object. Returns the object.
    pub fn give_back(&mut self, job: &JobKey, index: u32) -> Option<ObjectKey> {
        let own = self.of_job.get_mut(job)?;
        let object = own.remove(&index)?;
        if own.is_empty() {
            self.of_job.remove(job);
        }
        self.drop_from(job, index, &object);
        Some(object)
    }

    /// Forgets the objects that the targets of a job work on. Returns the objects.
    pub fn forget(&mut self, job: &JobKey) -> Vec<ObjectKey> {
        self.uncertain.remove(job);
        let own = self.of_job.remove(job).unwrap_or_default();
        own.iter().for_each(|(index, object)| self.drop_from(job, *index, object));
        own.into_values().collect()
    }

    /// Returns true if a target of another job works on the object.
    pub fn elsewhere(&self, job: &JobKey, object: &ObjectKey) -> bool {
        let by = self.by_object.get(object).into_iter().flatten();
        by.map(|((by, _), _)| by).any(|by| by != job)
    }

    /// Marks the availability of these targets as uncertain.
    pub fn mark_uncertain(&mut self, targets: &BTreeSet<TargetId>) {
        for (job, index) in targets {
            self.uncertain.entry(job.key.clone()).or_default().insert(*index);
        }
    }

    /// Returns the targets of a job whose availability was marked as uncertain since the last call.
    pub fn take_uncertain(&mut self, job: &JobKey) -> BTreeSet<u32> {
        self.uncertain.remove(job).unwrap_or_default()
    }

    fn drop_from(&mut self, job: &JobKey, index: u32, object: &ObjectKey) {
        if let Some(by) = self.by_object.get_mut(object) {
            by.remove(&(job.clone(), index));
            if by.is_empty() {
                self.by_object.remove(object);
            }
        }
    }
}
