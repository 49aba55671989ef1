//! The unfinished jobs that are bound to each version of a plugin, in the current term.

use std::collections::HashMap;

use oarlock_core::object::key::JobKey;
use parking_lot::Mutex;

/// The digest of the plugin to which each unfinished job is bound.
#[derive(Debug, Default)]
pub(crate) struct BoundJobs(Mutex<HashMap<JobKey, String>>);

impl BoundJobs {
    /// Takes the binding of a job after a round. A job that has ended, or that is deleted, has no binding.
    pub(crate) fn note(&self, job: &JobKey, digest: Option<&str>) {
        let mut bound = self.0.lock();
        match digest {
            None => drop(bound.remove(job)),
            Some(digest) if bound.get(job).is_some_and(|known| known == digest) => {}
            Some(digest) => drop(bound.insert(job.clone(), digest.to_owned())),
        }
    }

    /// Forgets all jobs, because a process that does not lead has none.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Returns the number of jobs that are bound to the version with this digest.
    pub(crate) fn of(&self, digest: &str) -> u32 {
        let bound = self.0.lock().values().filter(|known| *known == digest).count();
        u32::try_from(bound).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_counts_for_the_version_that_it_is_bound_to_until_it_ends() {
        let (bound, key) = (BoundJobs::default(), JobKey { namespace: "a".to_owned(), name: "j".to_owned() });
        bound.note(&key, Some("sha256:1"));
        bound.note(&key, Some("sha256:2"));
        assert_eq!((bound.of("sha256:1"), bound.of("sha256:2")), (0, 1));
        bound.note(&key, None);
        assert_eq!(bound.of("sha256:2"), 0);
    }
}
