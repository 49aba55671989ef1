//! The locks of the objects of one kind, in one term: which object works on a target that allows only one at a time.
//!
//! A node belongs to one OpsJob at a time, and a pod to one OpsJob of each type. Source: docs/opsjob.md 3. The host restores the locks from the stored
//! statuses when a term begins. The table drops no lock by itself: a plan releases the locks of its object, and the engine those of an object that is gone.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;

/// A target that only one object of a kind may work on at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetLock {
    /// The name of the work. Works with other names on the same target do not exclude each other.
    pub scope: String,
    /// UID of the target. A target that is created again under its name is another target.
    pub uid: String,
}

impl TargetLock {
    /// Returns the lock of the target with this UID for this work.
    pub fn new(scope: impl Into<String>, uid: impl Into<String>) -> Self {
        Self { scope: scope.into(), uid: uid.into() }
    }
}

/// The holder of each target.
#[derive(Clone, Debug, Default)]
pub struct TargetLocks {
    /// UIDs of jobs by target.
    by_target: HashMap<TargetLock, String>,
    /// Name and targets of each job, by its UID.
    by_job: HashMap<String, (String, Vec<TargetLock>)>,
}

/// A target that another job holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetLocked {
    /// The first target that is taken.
    pub target: TargetLock,
    /// Name of the job that holds the target.
    pub holder: String,
}

/// The order in which a term restores the locks that stored statuses claim. If two objects claim a lock, the first one has it. Equal objects are in the
/// order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimOrder {
    /// True if the object cannot be at work with what it claims. Such objects come last.
    pub is_idle: bool,
    /// The time of creation. Older objects come first.
    pub created: Option<Timestamp>,
}

/// A change of the locks of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LockChange {
    /// The object keeps its locks.
    #[default]
    Keep,
    /// The object has exactly these locks from now on. [`TargetLocks::check`] has found them free.
    Take(Vec<TargetLock>),
    /// The object has no locks from now on.
    Release,
}

impl TargetLocks {
    /// Checks that no other job than the one with this UID holds one of the targets.
    ///
    /// # Errors
    /// If another job holds one of the targets. The error names the first one.
    pub fn check(&self, job: &str, targets: &[TargetLock]) -> Result<(), TargetLocked> {
        let locked =
            targets.iter().find_map(|target| Some((target, self.by_target.get(target)?)).filter(|(_, by)| *by != job));
        let Some((target, holder)) = locked else { return Ok(()) };
        let holder = self.by_job.get(holder).map_or_else(|| holder.clone(), |(name, _)| name.clone());
        Err(TargetLocked { target: target.clone(), holder })
    }

    /// Returns true if the locks of the job with this UID are as a change makes them.
    pub fn is_applied(&self, job: &str, change: &LockChange) -> bool {
        match change {
            LockChange::Keep => true,
            LockChange::Take(targets) => self.by_job.get(job).is_some_and(|(_, has)| has == targets),
            LockChange::Release => !self.by_job.contains_key(job),
        }
    }

    /// Makes a change of the locks of the job with this UID and name.
    ///
    /// # Errors
    /// If another job has taken one of the targets since the check. Nothing changes then.
    pub fn apply(&mut self, job: &str, name: &str, change: &LockChange) -> Result<(), TargetLocked> {
        match change {
            LockChange::Keep => Ok(()),
            LockChange::Take(targets) => self.take(job, name, targets),
            LockChange::Release => {
                self.release(job);
                Ok(())
            }
        }
    }

    /// Gives all of these targets to the job with this UID and name, or none of them.
    ///
    /// # Errors
    /// If another job holds one of the targets. The error names the first one.
    pub fn take(&mut self, job: &str, name: &str, targets: &[TargetLock]) -> Result<(), TargetLocked> {
        self.check(job, targets)?;
        self.release(job);
        self.by_target.extend(targets.iter().map(|target| (target.clone(), job.to_owned())));
        self.by_job.insert(job.to_owned(), (name.to_owned(), targets.to_vec()));
        Ok(())
    }

    /// Removes all targets of a job.
    pub fn release(&mut self, job: &str) {
        let (_, targets) = self.by_job.remove(job).unwrap_or_default();
        targets.iter().for_each(|target| drop(self.by_target.remove(target)));
    }

    /// Returns the UIDs of other jobs with this name that hold a target.
    pub fn others(&self, name: &str, uid: &str) -> Vec<String> {
        let others = self.by_job.iter().filter(|(job, (of, _))| of == name && *job != uid);
        others.map(|(job, _)| job.clone()).collect()
    }

    /// Returns the UID of the job that holds this target.
    pub fn holder(&self, target: &TargetLock) -> Option<&str> {
        self.by_target.get(target).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: u8) -> TargetLock {
        TargetLock::new("Node", number.to_string())
    }

    #[test]
    fn a_job_gets_all_of_its_nodes_or_none_and_its_own_again() {
        let mut target_locks = TargetLocks::default();
        assert_eq!(target_locks.take("a", "na", &[node(1), node(2)]), Ok(()));
        let busy = TargetLocked { target: node(2), holder: "na".to_owned() };
        assert_eq!(target_locks.take("b", "nb", &[node(3), node(2)]), Err(busy));
        assert_eq!(target_locks.holder(&node(3)), None);
        let again = LockChange::Take(vec![node(1), node(2)]);
        assert!(target_locks.is_applied("a", &again) && !target_locks.is_applied("b", &again));
        assert!(
            target_locks.is_applied("b", &LockChange::Release) && !target_locks.is_applied("a", &LockChange::Release)
        );
        // A new term reads the same targets from the status again.
        assert_eq!(target_locks.take("a", "na", &[node(1), node(2)]), Ok(()));
        target_locks.release("a");
        assert_eq!(target_locks.take("b", "nb", &[node(3), node(2)]), Ok(()));
    }

    #[test]
    fn those_of_a_name_that_have_something_are_known_by_uid() {
        let mut target_locks = TargetLocks::default();
        target_locks.take("a", "j", &[node(1)]).unwrap();
        target_locks.take("b", "j", &[node(2)]).unwrap();
        assert_eq!((target_locks.others("j", "b"), target_locks.others("k", "")), (vec!["a".to_owned()], vec![]));
    }

    #[test]
    fn a_target_is_for_one_job_of_each_work() {
        let mut target_locks = TargetLocks::default();
        let of = |work| [TargetLock::new(work, "p")];
        assert_eq!(
            (target_locks.take("a", "na", &of("dumplog")), target_locks.take("b", "nb", &of("exportimage"))),
            (Ok(()), Ok(()))
        );
        assert!(target_locks.take("c", "nc", &of("dumplog")).is_err());
    }

    proptest! {
        /// No sequence of takes and returns gives a target two holders, or leaves anything of a job that gave all targets back.
        #[test]
        fn no_place_has_two_holders(steps in prop::collection::vec((0u8..4, prop::collection::vec(0u8..6, 0..4)), 0..40)) {
            let mut target_locks = TargetLocks::default();
            let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
            for (job, nodes) in steps {
                let name = job.to_string();
                if nodes.is_empty() {
                    target_locks.release(&name);
                    model.remove(&job);
                    continue;
                }
                let is_free = model.iter().all(|(other, has)| *other == job || !has.iter().any(|node| nodes.contains(node)));
                let targets: Vec<TargetLock> = nodes.iter().map(|number| node(*number)).collect();
                prop_assert_eq!(target_locks.take(&name, &name, &targets).is_ok(), is_free);
                if is_free {
                    model.insert(job, nodes);
                }
                for number in 0..6 {
                    let holder = model.iter().find(|(_, has)| has.contains(&number)).map(|(job, _)| job.to_string());
                    prop_assert_eq!(target_locks.holder(&node(number)), holder.as_deref());
                }
            }
        }
    }
}
