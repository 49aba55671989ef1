//! One term of leadership: what all jobs share while this process leads.
//!
//! Born with empty memory each time the process begins to lead; views are kept only as caches of the Cluster port. May
//! not outlive its term.

use std::sync::{Arc, PoisonError, RwLock};

use oarlock_core::cluster::object::Object;
use oarlock_core::cluster::store::{Change, Store};
use oarlock_core::job::key::JobKey;
use oarlock_core::plugin::lookup::Found;
use oarlock_core::shared::claims::Claims;
use oarlock_core::shared::wake_index::Interest;
use oarlock_kube::lease::Fence;

/// What all jobs share in one term.
pub struct Term {
    /// Closes once this process no longer leads.
    pub fence: Fence,
    /// Who holds what.
    pub claims: Arc<RwLock<Claims>>,
    interest: RwLock<Interest>,
}

impl Term {
    /// A term in which nothing was read yet.
    pub fn new(fence: Fence) -> Self {
        Self { fence, claims: Arc::default(), interest: RwLock::default() }
    }

    /// Looks at or changes the table of claims.
    pub fn claims<T>(&self, with: impl FnOnce(&mut Claims) -> T) -> T {
        with(&mut self.claims.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at or changes what targets wait for.
    pub fn interest<T>(&self, with: impl FnOnce(&mut Interest) -> T) -> T {
        with(&mut self.interest.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The targets that a change concerns.
    pub fn concerned(&self, change: &Change, store: &Store) -> Vec<(JobKey, u32)> {
        let claims = self.claims.read().unwrap_or_else(PoisonError::into_inner);
        let interest = self.interest.read().unwrap_or_else(PoisonError::into_inner);
        interest.concerned(change, &claims, store).into_iter().collect()
    }

    /// An object that is gone, or made anew under its name, takes what was claimed of it along.
    pub fn heard(&self, change: &Change) {
        let uid = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.uid.clone());
        if let Some(old) = change.old.as_ref().filter(|_| uid(&change.old) != uid(&change.new)) {
            let namespace = old.key.namespace.as_deref().unwrap_or_default();
            self.claims(|claims| claims.vanished(namespace, &old.key.name));
        }
    }

    /// The labels by which a plugin's relations point to targets matter from now on.
    pub fn relate(&self, found: &Found) {
        if let Found::Serving(plugin) = found {
            self.interest(|interest| interest.relate(&plugin.registration));
        }
    }

    /// Forgets a job that is gone.
    pub fn forget(&self, key: &JobKey) {
        self.claims(|claims| claims.forget(key));
        self.interest(|interest| interest.forget(key));
    }
}
