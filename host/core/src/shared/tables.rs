//! The tables that the jobs of one term share. One lock holds them all. Its owner may call the store, and no code under
//! the store's lock takes it, so the two are never taken in two orders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::cluster::store::{Change, Store};
use crate::job::key::JobKey;
use crate::plugin::manifest::TargetKind;
use crate::shared::budgets::Budgets;
use crate::shared::claims::Claims;
use crate::shared::disrupted::DisruptedObjects;
use crate::shared::exclusive::ExclusiveObjects;
use crate::shared::record_pace::RecordPace;
use crate::shared::successors::RootController;
use crate::shared::wake_index::{TargetId, WakeIndex, claimed};
use crate::shared::wakers::place;

/// The tables that the jobs of one term share. Plain data, as the memory is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tables {
    /// The target that each replacement belongs to.
    pub claims: Claims,
    /// The targets that a change wakes.
    pub wake: WakeIndex,
    /// The objects that no two jobs may work on at once.
    pub exclusive: ExclusiveObjects,
    /// The objects that targets in flight work on.
    pub disrupted: DisruptedObjects,
    /// What the plugins may make the host do.
    pub budgets: Budgets,
    /// How fast all jobs together write records that nothing waits for.
    pub record_pace: RecordPace,
    in_flight: BTreeMap<String, BTreeMap<JobKey, usize>>,
}

/// The tables of one term, for all its rounds.
pub type SharedTables = Arc<Mutex<Tables>>;

/// Locks the tables.
pub fn lock(tables: &SharedTables) -> MutexGuard<'_, Tables> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    /// Notes that an object is gone, or was replaced by another of its name.
    pub fn heard(&mut self, change: &Change) {
        let uid = change.new.as_ref().map(|new| &new.uid);
        if let Some(old) = change.old.as_ref().filter(|old| Some(&old.uid) != uid) {
            self.claims.gone(old.key.namespace.as_deref().unwrap_or_default(), &claimed(old));
        }
    }

    /// The targets that a change concerns.
    pub fn concerned(&self, change: &Change, store: &Store) -> Vec<TargetId> {
        self.wake.concerned(change, &self.claims, store).into_iter().collect()
    }

    /// The targets that wait longest for an object of a controller, as many as it has free ones that are young enough.
    pub fn in_line_for_free(&self, controller: &RootController, kind: &Kind, store: &Store) -> Vec<TargetId> {
        let place = place(controller);
        let Some(since) = self.wake.waits_since(&place) else { return Vec::new() };
        let is_free = |object: &Arc<Object>| {
            let namespace = object.key.namespace.as_deref().unwrap_or_default();
            !object.terminating() && !self.claims.is_held(namespace, &claimed(object))
        };
        let free = controller.made_since(store, kind, since, |all| all.into_iter().filter(is_free).collect());
        let made = free.iter().filter_map(|object| object.created).max();
        self.wake.in_line(&place, made, free.len()).cloned().collect()
    }

    /// Sets the number of targets of a job that are in flight on a plugin.
    pub fn note_in_flight(&mut self, plugin: &str, job: &JobKey, count: usize) {
        for (name, jobs) in &mut self.in_flight {
            if name != plugin || count == 0 {
                jobs.remove(job);
            }
        }
        if count > 0 {
            self.in_flight.entry(plugin.to_owned()).or_default().insert(job.clone(), count);
        }
        self.in_flight.retain(|_, jobs| !jobs.is_empty());
    }

    /// Notes that a target works on its object since it started at `since`.
    pub fn note_disrupted(&mut self, job: &JobKey, index: u32, object: &ObjectKey, since: Timestamp) {
        if self.disrupted.take(job, index, object, since) {
            let others = self.others_of(job, object);
            self.disrupted.doubt(&others);
        }
    }

    /// Notes that a target works on its object no more. Returns the targets of other jobs that may start for it.
    pub fn note_undisrupted(&mut self, job: &JobKey, index: u32) -> BTreeSet<TargetId> {
        let others =
            self.disrupted.give_back(job, index).map(|object| self.others_of(job, &object)).unwrap_or_default();
        self.disrupted.doubt(&others);
        others
    }

    fn others_of(&self, job: &JobKey, object: &ObjectKey) -> BTreeSet<TargetId> {
        self.wake.of_object(object).filter(|(other, _)| other.key != *job).cloned().collect()
    }

    /// The number of targets of other jobs that are in flight on a plugin.
    pub fn in_flight_elsewhere(&self, plugin: &str, job: &JobKey) -> usize {
        let jobs = self.in_flight.get(plugin).into_iter().flatten();
        jobs.filter(|(other, _)| *other != job).map(|(_, count)| count).sum()
    }

    /// Forgets a deleted job. Returns the targets of others that wait for what it had.
    pub fn forget(&mut self, job: &JobKey, store: &Store) -> BTreeSet<TargetId> {
        self.claims.forget(job, |object| {
            // Claims name no group: what is no target's kind may be there.
            let kind = TargetKind::ALL.into_iter().find(|kind| kind.word() == object.kind);
            kind.is_none_or(|kind| {
                let shown = store.get(&kind.object(&job.namespace, &object.name));
                shown.is_some_and(|shown| object.uid.is_empty() || shown.uid == object.uid)
            })
        });
        self.wake.forget(job);
        for jobs in self.in_flight.values_mut() {
            jobs.remove(job);
        }
        let mut woken = self.exclusive.forget(job);
        woken.extend(self.forget_disrupted(job));
        woken
    }

    /// Forgets what the targets of a job work on. Returns the targets of other jobs that may start for it.
    pub fn forget_disrupted(&mut self, job: &JobKey) -> BTreeSet<TargetId> {
        let mut woken = BTreeSet::new();
        for object in self.disrupted.forget(job) {
            woken.extend(self.others_of(job, &object));
        }
        self.disrupted.doubt(&woken);
        woken
    }
}
