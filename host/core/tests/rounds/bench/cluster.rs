//! Changes that others make to pods and to the job, and the watch events that the host receives.

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cache::store::{Change, Indexed};
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::requests::live_reads::FoundTarget;
use oarlock_core::requests::selector::TargetQuery;
use serde_json::{Value, json};

use crate::bench::patch::merge;
use crate::bench::{Bench, JOB_UID};

impl Bench {
    /// Adds a pod to the store without an event.
    pub(crate) fn pod(&mut self, name: &str, uid: &str) {
        self.version += 1;
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": uid, "creationTimestamp": self.now.to_string(),
            "resourceVersion": self.version.to_string(), "ownerReferences": [{"apiVersion": "apps/v1", "kind": "CloneSet",
                "name": "s", "uid": "set", "controller": true}]}});
        self.store.apply(Object::slim(&document, &Kind::pod(), &[]).unwrap());
    }

    /// Returns the objects that a query finds, sorted by name. Among label selectors, only those of one label with one value are supported.
    pub(crate) fn selects(&self, kind: &Kind, namespace: Option<&str>, query: &TargetQuery) -> Vec<FoundTarget> {
        let matches = |pod: &Object| match query {
            TargetQuery::Labels(labels) => {
                labels.split_once('=').is_some_and(|(key, value)| pod.labels.get(key) == Some(value))
            }
            TargetQuery::Controller { .. } => pod.owners.iter().any(|owner| query.is_controller(owner)),
        };
        let pods = self.store.all(kind, namespace);
        let found = pods.iter().filter(|pod| !pod.terminating() && matches(pod));
        let mut found: Vec<_> =
            found.map(|pod| FoundTarget { name: pod.key.name.clone(), uid: pod.uid.clone() }).collect();
        found.sort();
        found
    }

    /// Watches this kind and adds an object of it to the store without an event.
    pub(crate) fn other(&mut self, kind: &Kind, name: &str) {
        self.store.keep(kind, Indexed::default());
        self.version += 1;
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": name,
            "resourceVersion": self.version.to_string()}});
        self.store.apply(Object::slim(&document, kind, &[]).unwrap());
    }

    /// Removes a pod from the store without an event.
    pub(crate) fn gone(&mut self, name: &str) {
        let object = self.store.get(&ObjectKey::pod("d", name)).unwrap();
        self.version += 1;
        self.store.remove(Object { resource_version: self.version.to_string(), ..Object::clone(&object) });
    }

    /// Adds or changes a pod, from a document without a version, and requeues the targets that it concerns.
    pub(crate) fn show(&mut self, document: Value) {
        self.show_of(&Kind::pod(), document);
    }

    /// Adds or changes an object of this kind, and requeues the targets that it concerns.
    pub(crate) fn show_of(&mut self, kind: &Kind, mut document: Value) {
        self.version += 1;
        document["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let fields = ["/status/conditions", "/spec/nodeName", "/spec/volumes", "/status/phase"].map(str::to_owned);
        let Some(object) = Object::slim(&document, kind, &fields) else { return };
        if let Some(known) = self.store.get(&object.key).filter(|known| known.uid != object.uid) {
            let removed = self.store.remove(Object::clone(&known));
            self.hear(removed);
        }
        let change = self.store.apply(object);
        self.hear(change);
    }

    /// Removes a pod and requeues the targets that it concerns.
    pub(crate) fn vanish(&mut self, name: &str) {
        self.vanish_of(&ObjectKey::pod("d", name));
    }

    /// Removes any object and requeues the targets that it concerns.
    pub(crate) fn vanish_of(&mut self, key: &ObjectKey) {
        let Some(object) = self.store.get(key) else { return };
        self.version += 1;
        let last = Object { resource_version: self.version.to_string(), ..Object::clone(&object) };
        let change = self.store.remove(last);
        self.hear(change);
    }

    /// Handles a change as `Lead::hear_object` does.
    fn hear(&mut self, change: Option<Change>) {
        let Some(change) = change else { return };
        let woken = {
            let mut tables = lock(&self.tables);
            tables.note_gone(&change);
            tables.concerned(&change, &self.store)
        };
        for (job, index) in woken.into_iter().filter(|(job, _)| job.uid == JOB_UID) {
            debug_assert_eq!(job.key, Self::key());
            let views = [&change.new, &change.old].into_iter().flatten();
            let asked = views.filter_map(|object| Some((object.uid.clone(), object.asked_to_go()?))).next();
            match change.is_of_version_only() {
                true => self.memory.work.requeue_on_new_version(index, &mut self.memory.targets),
                false => self.requeue(index),
            }
            if let Some((uid, time)) = asked
                && self
                    .memory
                    .decisions
                    .latest(&self.memory.stored, index)
                    .is_some_and(|target| target.uid.as_ref() == Some(&uid))
            {
                self.memory.targets.memory_of(index).expects.asked_to_go(time);
            }
            self.next = Some(Timestamp::UNIX_EPOCH);
        }
    }

    /// Changes the job as another client would, and makes the job due.
    pub(crate) fn edit(&mut self, patch: &Value) {
        merge(&mut self.job, patch);
        self.moved();
        self.next = Some(Timestamp::UNIX_EPOCH);
    }

    pub(crate) fn moved(&mut self) {
        self.version += 1;
        self.job["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let meta = &self.job["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if meta["deletionTimestamp"].is_string() && !held {
            self.job_is_gone = true;
        }
    }
}
