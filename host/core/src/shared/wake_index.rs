//! Which targets an object concerns.
//!
//! Takes the targets that jobs wait for and the changes of objects; yields job keys and indexes. An object concerns the
//! target of its name, the target that claimed it, those to whom a label points, and, while nobody claimed it, the
//! targets of its controller that wait longest. Jobs that have ended are not in it. Source: spec/operationjob.md §3.1.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;

use crate::cluster::object::Object;
use crate::cluster::store::{Change, Store};
use crate::cluster::writes::JobKey;
use crate::job::state::{Progress, TargetState};
use crate::plugin::proposal::{Registration, RelationKey};
use crate::shared::claims::Claims;

/// Most targets that an unclaimed object wakes: the one that waits longest may find it too old for itself.
const WOKEN: usize = 4;

/// A target in its job.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The job.
    pub job: &'a JobKey,
    /// UID of the job.
    pub job_uid: &'a str,
    /// Its position there.
    pub index: u32,
    /// Its name.
    pub name: &'a str,
}

type Waiter = (Option<Timestamp>, JobKey, u32);

/// The targets that wait for something, by what they wait for.
#[derive(Debug, Default)]
pub struct Interest {
    by_name: HashMap<(String, String), BTreeSet<(JobKey, u32)>>,
    by_owner: HashMap<String, BTreeSet<Waiter>>,
    jobs: HashMap<JobKey, BTreeMap<u32, Entry>>,
    labels: BTreeSet<String>,
    uids: HashMap<JobKey, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    names: BTreeSet<String>,
    owner: Option<(String, Option<Timestamp>)>,
}

impl Interest {
    /// Labels by which a plugin's relations point to targets.
    pub fn relate(&mut self, registration: &Registration) {
        let labels = registration.relations.iter().filter_map(|relation| match &relation.by {
            RelationKey::Label(label) => Some(label.clone()),
            _ => None,
        });
        self.labels.extend(labels);
    }

    /// What a target waits for from now on. A pending target waits for nothing: what it needs is looked at.
    pub fn set(&mut self, place: Place<'_>, state: &TargetState, registration: Option<&Registration>) {
        let Place { job, job_uid, index, name } = place;
        let entry = match state.progress {
            Progress::Processing => Some(in_flight(name, state, registration)),
            Progress::Failed if state.owes_release() => Some(Entry { names: [name.to_owned()].into(), owner: None }),
            _ => None,
        };
        let known = self.jobs.get(job).and_then(|targets| targets.get(&index));
        if known == entry.as_ref() {
            return;
        }
        self.clear(job, index);
        if let Some(entry) = entry {
            self.uids.entry(job.clone()).or_insert_with(|| job_uid.to_owned());
            self.insert(job, index, entry);
        }
    }

    fn insert(&mut self, job: &JobKey, index: u32, entry: Entry) {
        for name in &entry.names {
            let place = (job.namespace.clone(), name.clone());
            self.by_name.entry(place).or_default().insert((job.clone(), index));
        }
        if let Some((owner, since)) = &entry.owner {
            self.by_owner.entry(owner.clone()).or_default().insert((*since, job.clone(), index));
        }
        self.jobs.entry(job.clone()).or_default().insert(index, entry);
    }

    fn clear(&mut self, job: &JobKey, index: u32) {
        let Some(entry) = self.jobs.get_mut(job).and_then(|targets| targets.remove(&index)) else { return };
        for name in entry.names {
            let place = (job.namespace.clone(), name);
            if let Some(targets) = self.by_name.get_mut(&place) {
                targets.remove(&(job.clone(), index));
                if targets.is_empty() {
                    self.by_name.remove(&place);
                }
            }
        }
        if let Some((owner, since)) = entry.owner
            && let Some(waiters) = self.by_owner.get_mut(&owner)
        {
            waiters.remove(&(since, job.clone(), index));
            if waiters.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }

    /// Forgets a job.
    pub fn forget(&mut self, job: &JobKey) {
        let indexes: Vec<u32> = self.jobs.get(job).into_iter().flat_map(|targets| targets.keys().copied()).collect();
        indexes.into_iter().for_each(|index| self.clear(job, index));
        self.jobs.remove(job);
        self.uids.remove(job);
    }

    /// The jobs, with their UIDs, that have a target in flight to which an object of the controller could belong that
    /// was made at this time.
    pub fn waiting(&self, owner: &str, made: Option<Timestamp>) -> impl Iterator<Item = (&JobKey, &str)> {
        let jobs: BTreeSet<&JobKey> = self.waiters(owner, made).map(|(_, job, _)| job).collect();
        jobs.into_iter().filter_map(|job| Some((job, self.uids.get(job)?.as_str())))
    }

    /// Those who wait for an object of the controller and started before it was made, longest first: those that started
    /// later come last, and it is none of theirs.
    fn waiters(&self, owner: &str, made: Option<Timestamp>) -> impl Iterator<Item = &Waiter> {
        let waiters = self.by_owner.get(owner).into_iter().flatten();
        waiters.take_while(move |(since, _, _)| made.is_none() || *since <= made)
    }

    /// The targets that a change concerns.
    pub fn concerned(&self, change: &Change, claims: &Claims, store: &Store) -> BTreeSet<(JobKey, u32)> {
        let views = change.old.iter().chain(&change.new);
        let mut found = BTreeSet::new();
        for object in views {
            self.by_names(object, &mut found);
            self.by_controller(object, claims, store, &mut found);
        }
        found
    }

    fn by_names(&self, object: &Object, found: &mut BTreeSet<(JobKey, u32)>) {
        let namespace = object.key.namespace.clone().unwrap_or_default();
        let pointed = self.labels.iter().filter_map(|label| object.labels.get(label));
        let owners = object.owners.iter().map(|owner| owner.name.as_str());
        for name in pointed.chain(owners).chain([object.key.name.as_str()]) {
            found.extend(self.by_name.get(&(namespace.clone(), name.to_owned())).into_iter().flatten().cloned());
        }
    }

    fn by_controller(&self, object: &Object, claims: &Claims, store: &Store, found: &mut BTreeSet<(JobKey, u32)>) {
        if self.by_owner.is_empty() || object.terminating() {
            return;
        }
        let namespace = object.key.namespace.as_deref().unwrap_or_default();
        if claims.holder(namespace, &object.key.name).is_some() {
            return;
        }
        match store.root(object) {
            Ok(Some(root)) => {
                let waiters = self.waiters(&root.uid, object.created).take(WOKEN);
                found.extend(waiters.map(|(_, job, index)| (job.clone(), *index)));
            }
            Ok(None) => {}
            // Whose it is shows a look, which the first who waits in this namespace asks for.
            Err(_) => {
                let waiters = self.by_owner.values().flatten().filter(|(_, job, _)| job.namespace == namespace);
                found.extend(waiters.take(1).map(|(_, job, index)| (job.clone(), *index)));
            }
        }
    }
}

fn in_flight(name: &str, state: &TargetState, registration: Option<&Registration>) -> Entry {
    let mut names: BTreeSet<String> = [name.to_owned()].into();
    let Some(registration) = registration else { return Entry { names, owner: None } };
    let by_extra = registration.relations.iter().filter_map(|relation| match &relation.by {
        RelationKey::Extra(key) => Some(key),
        _ => None,
    });
    names.extend(by_extra.chain(&registration.exclusive_extras).filter_map(|key| state.extra.get(key).cloned()));
    let chosen = registration.exclusive_extras.iter().any(|key| state.extra.contains_key(key));
    let owner = registration.same_controller().filter(|_| !chosen).and_then(|_| state.owner_uid());
    Entry { names, owner: owner.map(|uid| (uid.to_owned(), state.start)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::object::Kind;
    use crate::plugin::proposal::Relation;

    fn registration() -> Registration {
        Registration {
            relations: vec![Relation { name: "s".into(), kind: Kind::pod(), by: RelationKey::SameController }],
            exclusive_extras: vec!["NewPod".into()],
        }
    }

    fn waiting(start: &str, extra: &[(&str, &str)]) -> TargetState {
        TargetState {
            progress: Progress::Processing,
            uid: Some("u".into()),
            start: Some(start.parse().unwrap()),
            extra: extra.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..TargetState::default()
        }
    }

    fn pod(name: &str) -> Change {
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "own", "controller": true}]}});
        Change { old: None, new: Some(std::sync::Arc::new(Object::slim(&document, &Kind::pod(), &[]).unwrap())) }
    }

    #[test]
    fn a_pod_that_is_older_than_a_targets_start_does_not_wake_it() {
        let job = JobKey { namespace: "d".into(), name: "j".into() };
        let mut interest = Interest::default();
        let owner = ("Owner", "StatefulSet/s/own");
        for (index, start) in [(0, "2026-01-01T00:00:00Z"), (1, "2026-01-01T00:00:05Z")] {
            let place = Place { job: &job, job_uid: "j", index, name: &format!("t{index}") };
            interest.set(place, &waiting(start, &[owner]), Some(&registration()));
        }
        let made = |time: &str| {
            let mut change = pod("x");
            std::sync::Arc::make_mut(change.new.as_mut().unwrap()).created = Some(time.parse().unwrap());
            interest.concerned(&change, &Claims::default(), &Store::default()).len()
        };
        assert_eq!(made("2025-12-31T23:59:59Z"), 0);
        assert_eq!(made("2026-01-01T00:00:00Z"), 1);
        assert_eq!(made("2026-01-01T00:00:05Z"), 2);
    }

    #[test]
    fn an_unclaimed_pod_wakes_those_of_its_controller_that_wait() {
        let job = JobKey { namespace: "d".into(), name: "j".into() };
        let mut interest = Interest::default();
        let owner = ("Owner", "StatefulSet/s/own");
        let [a, b] = [(0, "a"), (1, "b")].map(|(index, name)| Place { job: &job, job_uid: "j", index, name });
        interest.set(a, &waiting("2026-01-01T00:00:00Z", &[owner, ("NewPod", "n")]), Some(&registration()));
        interest.set(b, &waiting("2026-01-01T00:00:01Z", &[owner]), Some(&registration()));
        let (claims, store) = (Claims::default(), Store::default());
        assert_eq!(interest.concerned(&pod("x"), &claims, &store), [(job.clone(), 1)].into());
        assert_eq!(interest.concerned(&pod("n"), &claims, &store), [(job.clone(), 0), (job.clone(), 1)].into());
        assert_eq!(interest.concerned(&pod("b"), &claims, &store), [(job.clone(), 1)].into());
        interest.forget(&job);
        assert!(interest.concerned(&pod("b"), &claims, &store).is_empty());
    }
}
