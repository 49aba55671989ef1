//! The targets that a change of an object wakes.
//!
//! An object wakes the target of its name, the target that claimed it, and the targets to which a label, a field or an
//! owner reference points. An unclaimed object also wakes targets that wait for a pod of its controller, unless one of
//! its labels or fields points to such a target. Targets whose own object is gone come first, then those that have
//! waited longest. Objects that come all at once wake the same targets, so a round that moves the line counts the free
//! objects again (`tables.rs`). Jobs that have ended are not in the index. Source: docs/operationjob.md 3.1.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::cache::store::{Change, NODE_NAME, Store};
use crate::object::api_object::{Kind, Object, ObjectKey, Owner};
use crate::object::key::{JobKey, JobRef};
use crate::object::task_pod::{JOB_UID, TARGET_INDEX};
use crate::operation_job::shared::claims::{ClaimedObject, Claims};
use crate::operation_job::shared::wakers::{ReplacementStage, Waits, Wakers, owner_key_of};
use crate::operation_job::state::TargetState;
use crate::plugin::proposal::{Registration, RelationKey};

/// Most targets that an unclaimed object wakes. The target that has waited longest may not want the object.
const WOKEN: usize = 4;

/// A target in its job.
pub type TargetId = (Arc<JobRef>, u32);

/// A target that waits for an object of a controller, with the start of its wait.
type Waiter = (Option<Timestamp>, TargetId);

/// The targets that wait for a change, by the objects that wake them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WakeIndex {
    /// Targets by namespace and name of the object. The namespace is empty for an object that is in none.
    by_name: BTreeMap<String, BTreeMap<String, BTreeSet<TargetId>>>,
    by_owner: BTreeMap<ReplacementStage, BTreeMap<String, BTreeSet<Waiter>>>,
    by_job: BTreeMap<String, BTreeSet<TargetId>>,
    /// The targets of `by_owner`, by namespace.
    owned_in: BTreeMap<String, BTreeSet<TargetId>>,
    /// Targets that drain a node, by name of the node. The pods on the node wake them.
    draining: BTreeMap<String, BTreeSet<TargetId>>,
    /// Targets with tasks, by UID of their job.
    by_task: BTreeMap<String, BTreeMap<u32, TargetId>>,
    jobs: BTreeMap<JobKey, JobTargets>,
    labels: BTreeSet<String>,
    fields: BTreeMap<Kind, BTreeSet<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct JobTargets {
    job: Arc<JobRef>,
    targets: BTreeMap<u32, Wakers>,
}

impl WakeIndex {
    /// Adds the labels and fields by which a plugin's relations point to targets.
    pub fn relate(&mut self, registration: &Registration) {
        for relation in &registration.relations {
            match &relation.by {
                RelationKey::Label(label) if !self.labels.contains(label) => drop(self.labels.insert(label.clone())),
                RelationKey::Field(pointer) => {
                    self.fields.entry(relation.kind.clone()).or_default().insert(pointer.clone());
                }
                _ => {}
            }
        }
    }

    /// Updates the reasons that wake a target. Returns true if the reasons have changed.
    pub fn set(&mut self, job: &JobRef, index: u32, state: &TargetState, target: Waits<'_>) -> bool {
        let wakers = Wakers::of(&job.key.namespace, state, target);
        let known = self.jobs.get(&job.key).and_then(|known| known.targets.get(&index));
        if known == wakers.as_ref() {
            return false;
        }
        self.clear(&job.key, index);
        if let Some(wakers) = wakers {
            self.insert(job, index, wakers);
        }
        true
    }

    fn insert(&mut self, job: &JobRef, index: u32, wakers: Wakers) {
        let fresh = || JobTargets { job: Arc::new(job.clone()), targets: BTreeMap::new() };
        let known = self.jobs.entry(job.key.clone()).or_insert_with(fresh);
        let id: TargetId = (known.job.clone(), index);
        for (namespace, name) in wakers.namespaced_names(&job.key.namespace) {
            let names = self.by_name.entry(namespace.to_owned()).or_default();
            names.entry(name.clone()).or_default().insert(id.clone());
        }
        if let Some((owner, stage, since)) = &wakers.owner {
            let waiters = self.by_owner.entry(*stage).or_default();
            waiters.entry(owner.clone()).or_default().insert((*since, id.clone()));
            self.owned_in.entry(job.key.namespace.clone()).or_default().insert(id.clone());
        }
        if let Some(node) = &wakers.drains {
            self.draining.entry(node.clone()).or_default().insert(id.clone());
        }
        if wakers.tasks {
            self.by_task.entry(job.uid.clone()).or_default().insert(index, id.clone());
        }
        if wakers.owned_by_job {
            self.by_job.entry(job.uid.clone()).or_default().insert(id);
        }
        known.targets.insert(index, wakers);
    }

    fn clear(&mut self, job: &JobKey, index: u32) {
        let Some(known) = self.jobs.get_mut(job) else { return };
        let Some(wakers) = known.targets.remove(&index) else { return };
        let id: TargetId = (known.job.clone(), index);
        for (namespace, name) in wakers.namespaced_names(&job.namespace) {
            if let Some(names) = self.by_name.get_mut(namespace) {
                remove_from(names, name, &id);
            }
        }
        if let Some((owner, stage, since)) = wakers.owner {
            remove_from(self.by_owner.entry(stage).or_default(), &owner, &(since, id.clone()));
            remove_from(&mut self.owned_in, &job.namespace, &id);
        }
        if let Some(node) = &wakers.drains {
            remove_from(&mut self.draining, node, &id);
        }
        if wakers.tasks
            && let Some(of_job) = self.by_task.get_mut(&id.0.uid)
        {
            of_job.remove(&index);
            if of_job.is_empty() {
                self.by_task.remove(&id.0.uid);
            }
        }
        if wakers.owned_by_job {
            remove_from(&mut self.by_job, &id.0.uid, &id);
        }
    }

    /// Forgets a job.
    pub fn forget(&mut self, job: &JobKey) {
        let indexes: Vec<u32> =
            self.jobs.get(job).into_iter().flat_map(|known| known.targets.keys().copied()).collect();
        indexes.into_iter().for_each(|index| self.clear(job, index));
        self.jobs.remove(job);
    }

    /// Returns the jobs with a target in flight to which an object of this root controller could belong.
    pub fn waiting(&self, object: &Object, root: &Owner) -> BTreeSet<&Arc<JobRef>> {
        let (owner_key, made) = (owner_key_of(object, root), object.created);
        let waiters = self.by_owner.values().filter_map(|waiters| waiters.get(&owner_key)).flatten();
        waiters.filter(|(since, _)| made.is_none() || *since <= made).map(|(_, (job, _))| job).collect()
    }

    /// Returns the targets that could claim `count` objects of the controller, made at this time. These are the longest
    /// waiting targets that have no object of their own any more, or else the first of the other targets.
    pub fn in_line(&self, owner: &str, made: Option<Timestamp>, count: usize) -> impl Iterator<Item = &TargetId> {
        let all = self.by_owner.iter().flat_map(move |(stage, waiters)| {
            let waiters = waiters.get(owner).into_iter().flatten();
            waiters.take_while(move |(since, _)| made.is_none() || *since <= made).map(move |(_, id)| (*stage, id))
        });
        let all = all.take(count).enumerate();
        all.take_while(|(owner_key, (stage, _))| *owner_key == 0 || *stage == ReplacementStage::Gone)
            .map(|(_, (_, id))| id)
    }

    /// Returns the start of the longest wait of a target that has no object of its own any more.
    pub fn waits_since(&self, owner_key: &str) -> Option<Timestamp> {
        self.by_owner.get(&ReplacementStage::Gone)?.get(owner_key)?.first()?.0
    }

    /// Returns the targets that an object wakes by its name.
    pub fn of_object(&self, object: &ObjectKey) -> impl Iterator<Item = &TargetId> {
        let names = self.by_name.get(object.namespace.as_deref().unwrap_or_default());
        names.and_then(|names| names.get(&object.name)).into_iter().flatten()
    }

    /// Returns the targets that a change concerns.
    pub fn concerned(&self, change: &Change, claims: &Claims, store: &Store) -> BTreeSet<TargetId> {
        let mut found = BTreeSet::new();
        for object in change.old.iter().chain(&change.new) {
            self.named(object, &mut found);
            self.on_node(object, &mut found);
            found.extend(self.of_task(object));
            // An object that points to a target tells itself whose it is, so no other target has to look at it.
            if !self.pointed_to(object, &mut found) {
                self.by_controller(object, claims, store, &mut found);
            }
        }
        found
    }

    /// Returns the target to whose task a pod belongs.
    fn of_task(&self, object: &Object) -> Option<TargetId> {
        object.task.as_ref()?;
        let index = object.labels.get(TARGET_INDEX)?.parse().ok()?;
        self.by_task.get(object.labels.get(JOB_UID)?)?.get(&index).cloned()
    }

    fn named(&self, object: &Object, found: &mut BTreeSet<TargetId>) {
        let namespace = object.key.namespace.as_deref().unwrap_or_default();
        if let Some(names) = self.by_name.get(namespace) {
            let own = std::iter::once(&object.key.name).chain(object.owners.iter().map(|owner| &owner.name));
            found.extend(own.filter_map(|name| names.get(name)).flatten().cloned());
        }
        if !self.by_job.is_empty() {
            let owners = object.owners.iter().filter_map(|owner| self.by_job.get(&owner.uid));
            found.extend(owners.flatten().cloned());
        }
    }

    /// Adds the targets that drain the node of a pod.
    fn on_node(&self, object: &Object, found: &mut BTreeSet<TargetId>) {
        if !self.draining.is_empty() && object.key.kind == Kind::pod() {
            let node = object.text(NODE_NAME);
            found.extend(node.and_then(|node| self.draining.get(&node)).into_iter().flatten().cloned());
        }
    }

    /// Adds the targets to which a label or a field points. Returns true if one of them waits for an object of a
    /// controller. A label of another plugin does not tell whose the object is.
    fn pointed_to(&self, object: &Object, found: &mut BTreeSet<TargetId>) -> bool {
        let namespace = object.key.namespace.as_deref().unwrap_or_default();
        let Some(names) = self.by_name.get(namespace) else { return false };
        let mut any = false;
        let mut wake = |name: &str| {
            let targets = names.get(name).into_iter().flatten();
            found.extend(targets.inspect(|target| any |= self.waits_by_owner(target)).cloned());
        };
        self.labels.iter().filter_map(|label| object.labels.get(label)).for_each(&mut wake);
        let fields = self.fields.get(&object.key.kind).into_iter().flatten();
        fields.filter_map(|pointer| object.text(pointer)).for_each(|name| wake(&name));
        any
    }

    fn waits_by_owner(&self, target: &TargetId) -> bool {
        let (job, index) = target;
        let wakers = self.jobs.get(&job.key).and_then(|known| known.targets.get(index));
        wakers.is_some_and(|wakers| wakers.owner.is_some())
    }

    fn by_controller(&self, object: &Object, claims: &Claims, store: &Store, found: &mut BTreeSet<TargetId>) {
        if self.owned_in.is_empty() || object.terminating() || object.controller().is_none() {
            return;
        }
        let namespace = object.key.namespace.as_deref().unwrap_or_default();
        if claims.is_held(namespace, &claimed(object)) {
            return;
        }
        match store.root(object) {
            Ok(Some(root)) => {
                found.extend(self.in_line(&owner_key_of(object, &root), object.created, WOKEN).cloned());
            }
            Ok(None) => {}
            // The root owner is unknown until the host has read the ReplicaSet. One waiting target of the namespace
            // asks for that read.
            Err(_) => found.extend(self.owned_in.get(namespace).and_then(BTreeSet::first).cloned()),
        }
    }
}

/// Returns the object in the form that claims use.
pub fn claimed(object: &Object) -> ClaimedObject {
    ClaimedObject { kind: object.key.kind.kind.clone(), name: object.key.name.clone(), uid: object.uid.clone() }
}

fn remove_from<T: Ord>(index: &mut BTreeMap<String, BTreeSet<T>>, key: &str, item: &T) {
    if let Some(items) = index.get_mut(key) {
        items.remove(item);
        if items.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operation_job::state::Progress;
    use crate::plugin::manifest::TargetKind;
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
        pod_of("StatefulSet", name, "n0")
    }

    fn pod_of(controller: &str, name: &str, node: &str) -> Change {
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": controller, "name": "s", "uid": "own", "controller": true}]},
            "spec": {"nodeName": node}});
        let object = Object::slim(&document, &Kind::pod(), &["/spec/nodeName".into()]).unwrap();
        Change { old: None, new: Some(std::sync::Arc::new(object)) }
    }

    fn job() -> JobRef {
        JobRef { key: JobKey { namespace: "d".into(), name: "j".into() }, uid: "j".into() }
    }

    fn waits<'a>(name: &'a str, registration: &'a Registration) -> Waits<'a> {
        let kind = TargetKind::Pod;
        Waits {
            kind,
            name,
            registration: Some(registration),
            parameters: &[],
            watched: false,
            gone: true,
            releasing: false,
        }
    }

    fn woken(index: &WakeIndex, change: &Change) -> Vec<u32> {
        index.concerned(change, &Claims::default(), &Store::default()).into_iter().map(|(_, index)| index).collect()
    }

    const OWNER: (&str, &str) = ("Owner", "StatefulSet/s/own");

    #[test]
    fn a_pod_that_is_older_than_a_targets_start_does_not_wake_it() {
        let (registration, mut index) = (registration(), WakeIndex::default());
        for (at, start) in [(0, "2026-01-01T00:00:00Z"), (1, "2026-01-01T00:00:05Z")] {
            index.set(&job(), at, &waiting(start, &[OWNER]), waits(&format!("t{at}"), &registration));
        }
        let made = |time: &str| {
            let mut change = pod("x");
            std::sync::Arc::make_mut(change.new.as_mut().unwrap()).created = Some(time.parse().unwrap());
            woken(&index, &change).len()
        };
        assert_eq!(made("2025-12-31T23:59:59Z"), 0);
        assert_eq!(made("2026-01-01T00:00:00Z"), 1);
        assert_eq!(made("2026-01-01T00:00:05Z"), 2);
    }

    #[test]
    fn an_unclaimed_pod_wakes_those_of_its_controller_that_wait() {
        let (registration, mut index) = (registration(), WakeIndex::default());
        index.set(&job(), 0, &waiting("2026-01-01T00:00:00Z", &[OWNER, ("NewPod", "n")]), waits("a", &registration));
        index.set(&job(), 1, &waiting("2026-01-01T00:00:01Z", &[OWNER]), waits("b", &registration));
        assert_eq!(woken(&index, &pod("x")), [1]);
        assert_eq!(woken(&index, &pod("n")), [0, 1]);
        assert_eq!(woken(&index, &pod("b")), [1]);
        index.forget(&job().key);
        assert_eq!(woken(&index, &pod("b")), Vec::<u32>::new());
    }

    #[test]
    fn a_pod_whose_label_points_to_a_target_wakes_no_other_of_its_controller() {
        let (mut registration, mut index) = (registration(), WakeIndex::default());
        let by_label = Relation { name: "p".into(), kind: Kind::pod(), by: RelationKey::Label("replaces".into()) };
        registration.relations.push(by_label);
        index.relate(&registration);
        for at in 0..8 {
            index.set(&job(), at, &waiting("2026-01-01T00:00:00Z", &[OWNER]), waits(&format!("t{at}"), &registration));
        }
        let labelled = |name: &str| {
            let mut change = pod("x");
            let labels = [("replaces".to_owned(), name.to_owned())];
            std::sync::Arc::make_mut(change.new.as_mut().unwrap()).labels = labels.into_iter().collect();
            change
        };
        assert_eq!(woken(&index, &labelled("t5")), [5]);
        assert_eq!(woken(&index, &labelled("another")).len(), WOKEN, "that is no target: any may look at the pod");
        let other = Registration { relations: vec![], exclusive_extras: vec![] };
        index.set(&job(), 8, &waiting("2026-01-01T00:00:00Z", &[OWNER]), waits("another", &other));
        let woken = woken(&index, &labelled("another"));
        assert_eq!(woken.len(), WOKEN + 1, "a target that waits for no pod of its controller hides none: {woken:?}");
    }

    #[test]
    fn a_new_pod_wakes_those_whose_pod_is_gone_and_else_one_of_those_whose_pod_was_asked_to_go() {
        let (registration, mut index) = (registration(), WakeIndex::default());
        let asked = [OWNER, ("EvictedAt", "2026-01-01T00:00:03Z")];
        for at in 0..8 {
            let (extra, gone) = (if at < 2 { &asked[..1] } else { &asked[..] }, at > 3);
            let name = format!("t{at}");
            let waits = Waits { gone, ..waits(&name, &registration) };
            index.set(&job(), at, &waiting("2026-01-01T00:00:00Z", extra), waits);
        }
        assert_eq!(woken(&index, &pod("x")), [4, 5, 6, 7]);
        (4..8).for_each(|at| index.clear(&job().key, at));
        assert_eq!(woken(&index, &pod("x")), [2]);
        (2..4).for_each(|at| index.clear(&job().key, at));
        assert_eq!(woken(&index, &pod("x")), [0]);
    }

    #[test]
    fn a_pod_of_a_daemon_set_wakes_only_the_target_that_waits_on_its_node() {
        let (registration, mut index) = (registration(), WakeIndex::default());
        for at in 0..8 {
            // More targets wait than one pod may wake.
            let node = format!("n{at}");
            let extra = [("Owner", "DaemonSet/s/own"), ("Node", node.as_str())];
            let state = waiting("2026-01-01T00:00:00Z", &extra);
            index.set(&job(), at, &state, waits(&format!("t{at}"), &registration));
        }
        assert_eq!(woken(&index, &pod_of("DaemonSet", "x", "n7")), [7]);
    }

    #[test]
    fn a_node_wakes_the_target_of_its_name_in_every_namespace_and_no_pod_of_that_name_does_before_it_starts() {
        let (registration, mut index) = (Registration::default(), WakeIndex::default());
        let pending = TargetState::default();
        for (at, namespace) in [(0, "d"), (1, "far")] {
            let job = JobRef { key: JobKey { namespace: namespace.into(), name: "j".into() }, uid: namespace.into() };
            let waits = Waits { kind: TargetKind::Node, watched: true, ..waits("n", &registration) };
            assert!(index.set(&job, at, &pending, waits));
        }
        let node = Object::slim(&json!({"metadata": {"name": "n", "uid": "n"}}), &Kind::node(), &[]).unwrap();
        let change = Change { old: None, new: Some(Arc::new(node)) };
        assert_eq!(woken(&index, &change), [0, 1]);
        assert_eq!(woken(&index, &pod("n")), Vec::<u32>::new());
        index.forget(&job().key);
        assert_eq!(woken(&index, &change), [1]);
    }

    #[test]
    fn an_object_wakes_the_targets_that_its_field_or_its_owner_names() {
        let by = |by| Relation { name: "r".into(), kind: Kind::new("x/v1", "Recreate"), by };
        let relations = vec![by(RelationKey::Field("/spec/podName".into()))];
        let field = Registration { relations, exclusive_extras: vec![] };
        let owned = Registration { relations: vec![by(RelationKey::OwnerIsJob)], exclusive_extras: vec![] };
        let mut index = WakeIndex::default();
        index.relate(&field);
        index.set(&job(), 0, &waiting("2026-01-01T00:00:00Z", &[]), waits("a", &field));
        index.set(&job(), 1, &waiting("2026-01-01T00:00:00Z", &[]), waits("b", &owned));
        let object = json!({"metadata": {"name": "r", "namespace": "d", "uid": "r", "ownerReferences": [
            {"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": "j", "uid": "j"}]},
            "spec": {"podName": "a"}});
        let kind = Kind::new("x/v1", "Recreate");
        let object = Object::slim(&object, &kind, &["/spec/podName".into()]).unwrap();
        let change = Change { old: None, new: Some(std::sync::Arc::new(object)) };
        assert_eq!(woken(&index, &change), [0, 1]);
    }
}
