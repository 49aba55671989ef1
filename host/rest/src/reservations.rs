//! Reserves the targets of jobs that are being made. Source: docs/opsjob-rest.md 4.
//!
//! Only the controller decides which job has a target. This module refuses the loser at once, if this process knows of the conflict.

use std::collections::{HashMap, HashSet};

use oarlock_core::kind::locks::{TargetLock, TargetLocked};
use oarlock_kube::ops::Ops;
use parking_lot::Mutex;

/// The locks of jobs that this process is making, by the names of the jobs.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<HashMap<TargetLock, String>>);

/// Reserved locks. They are released on drop. By then, the job is in the cache or was not made.
pub(crate) struct Reservation<'a> {
    reservations: &'a Reservations,
    locks: Vec<TargetLock>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut held = self.reservations.0.lock();
        self.locks.iter().for_each(|lock| drop(held.remove(lock)));
    }
}

impl Reservations {
    /// Reserves these locks for a job of this name. Fails with the first lock that another job holds.
    pub(crate) fn take(&self, job: &str, locks: Vec<TargetLock>, ops: &Ops) -> Result<Reservation<'_>, TargetLocked> {
        let mut held = self.0.lock();
        // The same job id can arrive twice, because a client may repeat its idempotency key.
        let other = |lock: &TargetLock| held.get(lock).filter(|holder| *holder != job).cloned();
        let claimed = locks.iter().find_map(|lock| Some((lock.clone(), other(lock)?)));
        if let Some((lock, holder)) = claimed.or_else(|| holder(job, &locks, ops)) {
            return Err(TargetLocked { target: lock, holder });
        }
        held.extend(locks.iter().map(|lock| (lock.clone(), job.to_owned())));
        Ok(Reservation { reservations: self, locks })
    }
}

/// Returns the first of these locks that another live job holds, with the name of that job.
fn holder(own: &str, locks: &[TargetLock], ops: &Ops) -> Option<(TargetLock, String)> {
    let wanted: HashSet<&TargetLock> = locks.iter().collect();
    ops.jobs().into_iter().filter(|job| job.is_live() && job.view.name != own).find_map(|job| {
        let lock = job.view.locks().into_iter().find(|lock| wanted.contains(lock))?;
        Some((lock, job.view.name.clone()))
    })
}
