//! The tables that the jobs of one term share. One lock guards all of them. The lock's owner may call the cache, and no
//! code under the cache's lock takes this lock, so the order of the two locks is fixed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;

use crate::cache::store::{Change, Store};
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::object::key::JobKey;
use crate::object::quota_key::QuotaKey;
use crate::operation_job::shared::budgets::Budgets;
use crate::operation_job::shared::claims::Claims;
use crate::operation_job::shared::disrupted::DisruptedObjects;
use crate::operation_job::shared::exclusive::ExclusiveObjects;
use crate::operation_job::shared::successors::RootController;
use crate::operation_job::shared::wake_index::{TargetId, WakeIndex, claimed};
use crate::operation_job::shared::wakers::owner_key;
use crate::plugin::manifest::TargetKind;
use crate::status::record_rate_limit::RecordRateLimit;

/// The tables that the jobs of one term share. Plain data, like the memory of a job.
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
    /// The budgets for requests that plugins cause.
    pub budgets: Budgets,
    /// The rate limits, over all jobs of an owner, for records that nothing waits for.
    pub record_rate_limit: RecordRateLimit,
    in_flight: BTreeMap<String, BTreeMap<JobKey, usize>>,
    /// The quota keys of jobs that do not use the quota of their namespace. Dependents of OpsJobs use the quota of the
    /// requester.
    owners: BTreeMap<JobKey, QuotaKey>,
    /// The jobs with targets that would start if other jobs of their plugin had fewer in flight.
    waiting: BTreeMap<String, BTreeSet<JobKey>>,
}

/// The targets that other jobs of a plugin have in flight, as seen by a job that is about to start targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightElsewhere {
    /// Number of targets of all other jobs.
    pub of_all: usize,
    /// Number of these targets whose jobs use the same quota: that of the namespace, or of the requester of OpsJobs.
    pub beside: usize,
    /// True if a job with another quota waits for capacity.
    pub others_wait: bool,
}

impl InFlightElsewhere {
    /// Returns the number of targets that a job with `own` in flight may start, if all jobs together may have `most`.
    /// The jobs of one quota have at most three quarters of the capacity that the others leave. The next job then finds
    /// capacity, however long these targets take. While a job with another quota waits, they have at most half of
    /// `most`. While none waits, a job with no target in flight may start one target all the same, unless that takes
    /// the last capacity. Source: docs/operationjob.md 3.4.3.
    pub fn room(&self, own: usize, most: usize) -> usize {
        let here = self.beside.saturating_add(own);
        let free = most.saturating_sub(own).saturating_sub(self.of_all);
        let share = free.saturating_mul(3).saturating_sub(here).div_ceil(4);
        let half = if self.others_wait { most.div_ceil(2).saturating_sub(here) } else { usize::MAX };
        let least = usize::from(own == 0 && free > 1);
        share.max(least).min(half).min(free)
    }
}

/// The tables of one term, for all its rounds.
pub type SharedTables = Arc<Mutex<Tables>>;

/// Locks the tables.
pub fn lock(tables: &SharedTables) -> MutexGuard<'_, Tables> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    /// Records that an object is gone, or that another object of its name replaced it.
    pub fn note_gone(&mut self, change: &Change) {
        let uid = change.new.as_ref().map(|new| &new.uid);
        if let Some(old) = change.old.as_ref().filter(|old| Some(&old.uid) != uid) {
            self.claims.gone(old.key.namespace.as_deref().unwrap_or_default(), &claimed(old));
        }
    }

    /// Returns the targets that a change concerns.
    pub fn concerned(&self, change: &Change, store: &Store) -> Vec<TargetId> {
        self.wake.concerned(change, &self.claims, store).into_iter().collect()
    }

    /// Returns the targets that wait longest for an object of a controller, as many as it has free objects that are
    /// young enough.
    pub fn in_line_for_free(&self, controller: &RootController, kind: &Kind, store: &Store) -> Vec<TargetId> {
        let owner_key = owner_key(controller);
        let Some(since) = self.wake.waits_since(&owner_key) else { return Vec::new() };
        let is_free = |object: &Arc<Object>| {
            let namespace = object.key.namespace.as_deref().unwrap_or_default();
            !object.terminating() && !self.claims.is_held(namespace, &claimed(object))
        };
        let free = controller.made_since(store, kind, since, |all| all.into_iter().filter(is_free).collect());
        let made = free.iter().filter_map(|object| object.created).max();
        self.wake.in_line(&owner_key, made, free.len()).cloned().collect()
    }

    /// Records whose quota a job uses; `None` for the quota of its namespace.
    pub fn note_owner(&mut self, job: &JobKey, owner: Option<QuotaKey>) {
        match owner {
            Some(owner) => drop(self.owners.insert(job.clone(), owner)),
            None => drop(self.owners.remove(job)),
        }
    }

    /// Returns the quota key of a job: that of its OpsJob's requester, or its namespace.
    pub fn owner_of(&self, job: &JobKey) -> QuotaKey {
        self.owners.get(job).cloned().unwrap_or_else(|| QuotaKey::Namespace(job.namespace.clone()))
    }

    /// Returns true if two jobs use the same quota.
    fn is_of_one_owner(&self, one: &JobKey, other: &JobKey) -> bool {
        let is_in = |owner: &QuotaKey, job: &JobKey| matches!(owner, QuotaKey::Namespace(namespace) if *namespace == job.namespace);
        match (self.owners.get(one), self.owners.get(other)) {
            (None, None) => one.namespace == other.namespace,
            (Some(owner), None) => is_in(owner, other),
            (None, Some(owner)) => is_in(owner, one),
            (Some(one), Some(other)) => one == other,
        }
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

    /// Records that a target has worked on its object since it started at `since`.
    pub fn note_disrupted(&mut self, job: &JobKey, index: u32, object: &ObjectKey, since: Timestamp) {
        if self.disrupted.take(job, index, object, since) {
            let others = self.others_of(job, object);
            self.disrupted.mark_uncertain(&others);
        }
    }

    /// Records that a target no longer works on its object. Returns the targets of other jobs that may start because of
    /// that.
    pub fn note_undisrupted(&mut self, job: &JobKey, index: u32) -> BTreeSet<TargetId> {
        let others =
            self.disrupted.give_back(job, index).map(|object| self.others_of(job, &object)).unwrap_or_default();
        self.disrupted.mark_uncertain(&others);
        others
    }

    fn others_of(&self, job: &JobKey, object: &ObjectKey) -> BTreeSet<TargetId> {
        self.wake.of_object(object).filter(|(other, _)| other.key != *job).cloned().collect()
    }

    /// Returns the targets that other jobs have in flight on a plugin.
    pub fn in_flight_elsewhere(&self, plugin: &str, job: &JobKey) -> InFlightElsewhere {
        let is_beside = |other: &JobKey| self.is_of_one_owner(job, other);
        let mut waiting = self.waiting.get(plugin).into_iter().flatten();
        let others_wait = waiting.any(|other| !is_beside(other));
        let mut elsewhere = InFlightElsewhere { others_wait, ..InFlightElsewhere::default() };
        for (other, count) in self.in_flight.get(plugin).into_iter().flatten().filter(|(other, _)| *other != job) {
            elsewhere.of_all = elsewhere.of_all.saturating_add(*count);
            let beside = if is_beside(other) { *count } else { 0 };
            elsewhere.beside = elsewhere.beside.saturating_add(beside);
        }
        elsewhere
    }

    /// Records that targets of a job wait until other jobs of their plugin have fewer in flight.
    pub fn waits_for_capacity(&mut self, plugin: &str, job: &JobKey) {
        self.waiting.entry(plugin.to_owned()).or_default().insert(job.clone());
    }

    /// Records that no target of a job waits for other jobs of its plugin.
    pub fn needs_no_capacity(&mut self, job: &JobKey) {
        self.waiting.retain(|_, jobs| {
            jobs.remove(job);
            !jobs.is_empty()
        });
    }

    /// Forgets a deleted job. Returns the targets of other jobs that wait for its objects.
    pub fn forget(&mut self, job: &JobKey, store: &Store) -> BTreeSet<TargetId> {
        self.claims.forget(job, |object| {
            // Claims name no API group, so an object of any other kind may still be there.
            let kind = TargetKind::ALL.into_iter().find(|kind| kind.word() == object.kind);
            kind.is_none_or(|kind| {
                let shown = store.get(&kind.object(&job.namespace, &object.name));
                shown.is_some_and(|shown| object.uid.is_empty() || shown.uid == object.uid)
            })
        });
        self.wake.forget(job);
        self.owners.remove(job);
        for jobs in self.in_flight.values_mut() {
            jobs.remove(job);
        }
        self.needs_no_capacity(job);
        let mut woken = self.exclusive.forget(job);
        woken.extend(self.forget_disrupted(job));
        woken
    }

    /// Forgets the objects that the targets of a job work on. Returns the targets of other jobs that may start because
    /// of that.
    pub fn forget_disrupted(&mut self, job: &JobKey) -> BTreeSet<TargetId> {
        let mut woken = BTreeSet::new();
        for object in self.disrupted.forget(job) {
            woken.extend(self.others_of(job, &object));
        }
        self.disrupted.mark_uncertain(&woken);
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(namespace: &str) -> JobKey {
        JobKey { namespace: namespace.into(), name: "j".into() }
    }

    /// Returns the numbers of targets that a job may start in each of these namespaces, one after the other, if no
    /// target ends.
    fn started(tables: &mut Tables, namespaces: &[&str], most: usize) -> Vec<usize> {
        let start = |namespace: &&str| {
            let room = tables.in_flight_elsewhere("p", &job(namespace)).room(0, most);
            tables.note_in_flight("p", &job(namespace), room);
            room
        };
        namespaces.iter().map(start).collect()
    }

    #[test]
    fn a_namespace_whose_targets_never_end_leaves_room_for_the_next_one() {
        assert_eq!(started(&mut Tables::default(), &["a", "b", "c"], 20), [15, 4, 1]);
        assert_eq!(started(&mut Tables::default(), &["a", "b"], 4), [3, 1]);
        assert_eq!(started(&mut Tables::default(), &["a", "b"], 1), [1, 0], "there is no half of one");
        assert!(started(&mut Tables::default(), &["a"], usize::MAX)[0] > 1_000_000);
    }

    /// Returns a job in the namespace of all jobs on nodes, requested by `user`.
    fn asked_for(tables: &mut Tables, name: &str, user: &str) -> JobKey {
        let job = JobKey { namespace: "oarlock-ops".into(), name: name.into() };
        tables.note_owner(&job, Some(QuotaKey::of(user)));
        job
    }

    #[test]
    fn jobs_on_nodes_take_the_shares_of_whoever_asked_for_them() {
        let mut tables = Tables::default();
        let account = |name: &str| format!("system:serviceaccount:team-a:{name}");
        let jobs = [("1", account("x")), ("2", account("y")), ("3", "alice".to_owned())];
        let started = jobs.map(|(name, user)| {
            let job = asked_for(&mut tables, name, &user);
            let room = tables.in_flight_elsewhere("p", &job).room(0, 20);
            tables.note_in_flight("p", &job, room);
            room
        });
        assert_eq!(started, [15, 1, 3], "the second job of a namespace gets one");
        assert!(tables.in_flight_elsewhere("p", &job("team-a")).beside == 16, "as jobs in that namespace do");
        assert_eq!(tables.in_flight_elsewhere("p", &job("team-a")).room(0, 20), 0, "the last one is for others");
        let another = asked_for(&mut tables, "4", "bob");
        assert_eq!(tables.in_flight_elsewhere("p", &another).room(0, 20), 1);
        tables.waits_for_capacity("p", &another);
        assert!(tables.in_flight_elsewhere("p", &job("team-a")).others_wait);
        tables.forget(&another, &Store::default());
        assert!(tables.owners.len() == 3 && tables.waiting.is_empty());
    }

    #[test]
    fn a_namespace_over_its_half_starts_nothing_while_another_one_waits() {
        let mut tables = Tables::default();
        tables.note_in_flight("p", &job("a"), 12);
        let room = |tables: &Tables, namespace| tables.in_flight_elsewhere("p", &job(namespace)).room(0, 20);
        let other = JobKey { name: "other".into(), ..job("a") };
        assert_eq!(tables.in_flight_elsewhere("p", &other).room(0, 20), 3, "nobody waits");
        tables.waits_for_capacity("p", &other);
        assert_eq!(
            tables.in_flight_elsewhere("p", &other).room(0, 20),
            3,
            "another job of the namespace counts for nothing"
        );
        tables.waits_for_capacity("p", &job("b"));
        assert_eq!((tables.in_flight_elsewhere("p", &other).room(0, 20), room(&tables, "b")), (0, 6));
        tables.note_in_flight("p", &job("a"), 8);
        assert_eq!(tables.in_flight_elsewhere("p", &other).room(0, 20), 2, "it is under its half");
        tables.needs_no_capacity(&job("b"));
        assert_eq!(tables.in_flight_elsewhere("p", &other).room(0, 20), 7);
    }
}
