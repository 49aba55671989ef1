//! The API server of a model: one job and a few pods, each at its version, and the effects of writes.
//!
//! Versions count per name, so that two paths to the same objects lead to the same state.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationJob;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::time::after_seconds;
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::{Value, json};

use crate::part::Part;
use crate::patch;
use crate::scenario::{Scenario, at, before_all, pod_key};

/// Grace period of an evicted pod, in seconds.
const GRACE: i64 = 1;

/// The stored job.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// The job as a JSON document.
    pub document: Value,
    /// The job as its type.
    pub job: OperationJob,
}

impl std::hash::Hash for StoredJob {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.document.hash(state);
    }
}

impl StoredJob {
    fn new(document: Value) -> Self {
        let job = serde_json::from_value(document.clone()).unwrap();
        Self { document, job }
    }

    /// Returns the version of the job.
    pub fn version(&self) -> u64 {
        self.job.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A pod is new or has changed.
    Pod(Part<Object>),
    /// A pod is gone. The event has its last view.
    PodGone(Part<Object>),
    /// The job has changed.
    Job(Part<StoredJob>),
    /// The job is gone.
    JobGone,
}

/// The reply to a write.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The pod after the write.
    Pod(Part<Object>),
    /// The job after the write.
    Job(Part<StoredJob>),
    /// The write removed the job.
    JobGone,
    /// The reply to an eviction, which shows nothing of the pod.
    Eviction,
}

/// The objects of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Api {
    /// The job; `None` once it is gone.
    pub job: Option<Part<StoredJob>>,
    /// The pods, by name.
    pub pods: BTreeMap<String, Part<Object>>,
    /// The newest version of each pod name.
    versions: BTreeMap<String, u64>,
}

impl Api {
    /// Creates the objects of the start of a scenario.
    pub fn new(scenario: &Scenario) -> Self {
        let job = Some(Part::new(StoredJob::new(scenario.job())));
        let mut api = Self { job, pods: BTreeMap::new(), versions: BTreeMap::new() };
        for name in scenario.pods {
            api.make(scenario, name, name, before_all());
        }
        api
    }

    /// Creates a Ready pod of the controller. Returns the event.
    pub fn make(&mut self, scenario: &Scenario, name: &str, uid: &str, made: Timestamp) -> Event {
        let document = json!({"metadata": {"name": name, "namespace": "d", "uid": uid, "creationTimestamp": made.to_string(),
            "resourceVersion": self.next_version(name), "ownerReferences": [{"apiVersion": "apps/v1",
                "kind": scenario.controller(), "name": "s", "uid": "set", "controller": true}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        self.put(Object::slim(&document, &Kind::pod(), &[]).unwrap())
    }

    /// Returns the newest version of this pod name.
    pub fn version(&self, name: &str) -> u64 {
        self.versions.get(name).copied().unwrap_or_default()
    }

    fn next_version(&mut self, name: &str) -> String {
        let version = self.versions.entry(name.to_owned()).or_default();
        *version += 1;
        version.to_string()
    }

    fn put(&mut self, pod: Object) -> Event {
        let pod = Part::new(pod);
        self.pods.insert(pod.key.name.clone(), pod.clone());
        Event::Pod(pod)
    }

    /// Changes a pod. Returns the event.
    pub fn change(&mut self, name: &str, with: impl FnOnce(&mut Object)) -> Option<Event> {
        let mut pod = Object::clone(self.pods.get(name)?);
        with(&mut pod);
        pod.resource_version = self.next_version(name);
        Some(self.put(pod))
    }

    /// Makes a pod terminate. Returns the event.
    pub fn terminate(&mut self, name: &str, now: u32) -> Option<Event> {
        let deleted = after_seconds(at(now), GRACE);
        self.change(name, |pod| (pod.deleted, pod.grace_seconds) = (Some(deleted), Some(GRACE)))
    }

    /// Removes a pod. Returns the event.
    pub fn remove(&mut self, name: &str) -> Option<Event> {
        let pod = self.pods.remove(name)?;
        let resource_version = self.next_version(name);
        Some(Event::PodGone(Part::new(Object { resource_version, ..Object::clone(&pod) })))
    }

    /// Makes a write if its preconditions hold. Returns the reply, and an event if the write changed an object.
    pub fn write(&mut self, write: &Write, now: u32) -> Result<(Reply, Option<Event>), Stopped> {
        match write {
            Write::Patch { object, body, .. } if object.kind == Kind::pod() => self.patch_pod(object, body),
            Write::Patch { body, .. } => self.patch_job(body),
            Write::Evict { pod, uid, resource_version, .. } => {
                let seen = self.pods.get(&pod.name).ok_or(Stopped::Gone)?;
                fits(seen, Some(uid), resource_version.as_deref())?;
                if seen.terminating() {
                    return Ok((Reply::Eviction, None));
                }
                Ok((Reply::Eviction, self.terminate(&pod.name, now)))
            }
            Write::Delete { uid, resource_version, .. } => {
                let body = json!({"metadata": {"uid": uid, "resourceVersion": resource_version}});
                self.edit_job(&body, |document| {
                    document["metadata"]["deletionTimestamp"] = json!(at(now).to_string());
                })
            }
            Write::Create { .. } => Err(Stopped::Refused { message: "no scenario has creations".into() }),
        }
    }

    fn patch_pod(&mut self, key: &ObjectKey, body: &Value) -> Result<(Reply, Option<Event>), Stopped> {
        let seen = self.pods.get(&key.name).ok_or(Stopped::Gone)?;
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str);
        fits(seen, text("/metadata/uid"), text("/metadata/resourceVersion"))?;
        let mut document = json!({"metadata": {"labels": seen.labels, "annotations": seen.annotations,
            "finalizers": seen.finalizers, "name": key.name, "uid": seen.uid}});
        match body.as_array() {
            Some(operations) if !patch::apply(&mut document, operations) => return Err(Stopped::Conflict),
            Some(_) => {}
            None => patch::merge(&mut document, body),
        }
        let new = Object::slim(&document, &Kind::pod(), &[]).ok_or(Stopped::Conflict)?;
        let new = Object {
            labels: new.labels,
            annotations: new.annotations,
            finalizers: new.finalizers,
            ..Object::clone(seen)
        };
        if new == **seen {
            return Ok((Reply::Pod(seen.clone()), None));
        }
        let event = self.change(&key.name, |pod| *pod = new);
        let now = self.pods.get(&key.name).ok_or(Stopped::Gone)?;
        Ok((Reply::Pod(now.clone()), event))
    }

    fn patch_job(&mut self, body: &Value) -> Result<(Reply, Option<Event>), Stopped> {
        self.edit_job(body, |document| {
            let (uid, version) = (document["metadata"]["uid"].clone(), document["metadata"]["resourceVersion"].clone());
            patch::merge(document, body);
            (document["metadata"]["uid"], document["metadata"]["resourceVersion"]) = (uid, version);
        })
    }

    /// Edits the job at the version that `body` names. A deleted job without a finalizer disappears.
    pub fn edit_job(&mut self, body: &Value, with: impl FnOnce(&mut Value)) -> Result<(Reply, Option<Event>), Stopped> {
        let seen = self.job.as_ref().ok_or(Stopped::Gone)?;
        let version = body.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if version.is_some_and(|version| Some(version) != seen.job.metadata.resource_version.as_deref()) {
            return Err(Stopped::Conflict);
        }
        let mut document = seen.document.clone();
        with(&mut document);
        if document == seen.document {
            return Ok((Reply::Job(seen.clone()), None));
        }
        document["metadata"]["resourceVersion"] = json!((seen.version() + 1).to_string());
        let job = StoredJob::new(document);
        let meta = &job.job.metadata;
        let held = meta.finalizers.as_ref().is_some_and(|list| !list.is_empty());
        if meta.deletion_timestamp.is_some() && !held {
            self.job = None;
            return Ok((Reply::JobGone, Some(Event::JobGone)));
        }
        let job = Part::new(job);
        self.job = Some(job.clone());
        Ok((Reply::Job(job.clone()), Some(Event::Job(job))))
    }

    /// Returns true if there ever was a pod of this name.
    pub fn knew(&self, name: &str) -> bool {
        self.versions.contains_key(name)
    }

    /// Returns a pod, as a live read shows it.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Part<Object>> {
        self.pods.get(&key.name)
    }

    /// Returns the pods that may disappear next: they terminate and have no finalizer.
    pub fn ending(&self) -> impl Iterator<Item = &String> {
        let ends = self.pods.iter().filter(|(_, pod)| pod.terminating() && pod.finalizers.is_empty());
        ends.map(|(name, _)| name)
    }
}

fn fits(seen: &Object, uid: Option<&str>, version: Option<&str>) -> Result<(), Stopped> {
    let same = |named: Option<&str>, seen: &str| named.is_none_or(|named| named.is_empty() || named == seen);
    if same(uid, &seen.uid) && same(version, &seen.resource_version) { Ok(()) } else { Err(Stopped::Conflict) }
}

/// Returns the keys of all pods, as a list request shows them.
pub fn keys(api: &Api) -> Vec<ObjectKey> {
    api.pods.keys().map(|name| pod_key(name)).collect()
}
