//! The API server of a model of OpsJobs: the OpsJobs and their OperationJobs, each at its version, and the effects of
//! writes.
//!
//! Versions count per object name, so that two paths to the same objects lead to the same state.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_core::ops_job::names::ops_kind;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::view::OpsChild;
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::{Value, json};

use crate::ops::scenario::Task;
use crate::part::Part;
use crate::patch;
use crate::scenario::at;

/// The finalizer that keeps an OperationJob until it has released its node.
const HOLDS: &str = "model/holds-its-node";

/// A stored OpsJob.
#[derive(Clone, Debug, PartialEq)]
pub struct OpsDocument {
    /// The OpsJob as a JSON document.
    pub document: Value,
    /// The OpsJob as the host reads it.
    pub job: Arc<StoredOps>,
}

impl std::hash::Hash for OpsDocument {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.document.hash(state);
    }
}

impl OpsDocument {
    fn new(document: Value) -> Self {
        let job = StoredOps::read(&document, Defaults::default()).unwrap();
        Self { document, job: Arc::new(job) }
    }

    /// Returns the version of the OpsJob.
    pub fn version(&self) -> u64 {
        self.job.view.version.parse().unwrap()
    }

    /// Returns the name of the OpsJob.
    pub fn name(&self) -> &str {
        &self.job.view.name
    }

    /// Returns true if a user has stopped or deleted the OpsJob.
    pub fn is_stopped(&self) -> bool {
        self.job.view.stops || self.job.view.deleting
    }
}

/// A stored OperationJob.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildDocument {
    /// The OperationJob as a JSON document.
    pub document: Value,
    /// The UID of its OpsJob.
    pub owner: String,
    /// The OperationJob as the host reads it.
    pub child: Arc<OpsChild>,
}

impl std::hash::Hash for ChildDocument {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.document.hash(state);
    }
}

impl ChildDocument {
    fn new(document: Value) -> Self {
        let child = OpsChild::read(&document).unwrap();
        Self { document, owner: child.owner_uid.clone(), child: Arc::new(child) }
    }

    /// Returns true if the OperationJob has taken its node. It has not released the node as long as it exists.
    pub fn has_started(&self) -> bool {
        self.document.pointer("/status/progress").is_some()
    }

    /// Returns the UID of the node of the OperationJob.
    pub fn node(&self) -> &str {
        self.document.pointer("/spec/targets/0/uid").and_then(Value::as_str).unwrap()
    }
}

/// The object of an event, by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// The OpsJob of this name.
    Job(String),
    /// The OperationJob of this name.
    Child(String),
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpsEvent {
    /// An OpsJob is new or has changed.
    Job(Part<OpsDocument>),
    /// An OpsJob is gone. The event has its last view.
    JobGone(Part<OpsDocument>),
    /// An OperationJob is new or has changed.
    Child(Part<ChildDocument>),
    /// An OperationJob is gone. The event has its last view.
    ChildGone(Part<ChildDocument>),
}

impl OpsEvent {
    /// Returns the object of the event.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Job(job) | Self::JobGone(job) => Subject::Job(job.name().to_owned()),
            Self::Child(child) | Self::ChildGone(child) => Subject::Child(child.child.key.name.clone()),
        }
    }
}

/// The reply to a write.
#[derive(Clone, Debug)]
pub enum OpsReply {
    /// The OpsJob after the write.
    Job(Part<OpsDocument>),
    /// The OperationJob after the write.
    Child(Part<ChildDocument>),
    /// The write removed the OperationJob.
    ChildGone,
}

/// The result of a write: the reply, and an event if the write changed an object.
pub type Served = Result<(OpsReply, Option<OpsEvent>), Stopped>;

/// The objects of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpsApi {
    /// The OpsJobs, by name.
    pub jobs: BTreeMap<String, Part<OpsDocument>>,
    /// The OperationJobs, by name. An OperationJob has the name of its OpsJob.
    pub children: BTreeMap<String, Part<ChildDocument>>,
    /// The newest version of each name of OperationJobs, and how many OperationJobs had the name.
    made: BTreeMap<String, (u64, u64)>,
}

impl OpsApi {
    /// Returns the OpsJob with this UID.
    pub fn owner(&self, uid: &str) -> Option<&Part<OpsDocument>> {
        self.jobs.values().find(|job| job.job.view.uid == uid)
    }

    /// Creates an OpsJob, as its user does.
    pub fn create_job(&mut self, task: &Task) -> OpsEvent {
        let job = Part::new(OpsDocument::new(task.document()));
        self.jobs.insert(task.name.to_owned(), job.clone());
        OpsEvent::Job(job)
    }

    /// Makes a write if its preconditions hold.
    ///
    /// # Errors
    /// If the object is gone or a precondition does not hold.
    pub fn write(&mut self, write: &Write, now: u32) -> Served {
        let name = &write.object().name;
        let is_job = write.object().kind == ops_kind();
        match write {
            Write::Patch { body, .. } if is_job => {
                let operations = body.as_array().unwrap();
                self.edit_job(name, |document| patch::apply(document, operations))
            }
            Write::Patch { body, .. } => {
                let uid = text(body, "/metadata/uid");
                self.fits(name, uid, None)?;
                Ok(self.edit_child(name, |document| patch::merge(&mut document["spec"], &body["spec"])))
            }
            Write::Create { body, owner_uid, .. } => self.create_child(name, body, owner_uid),
            Write::Delete { uid, resource_version, .. } => {
                self.fits(name, Some(uid), resource_version.as_deref())?;
                Ok(self.delete_child(name, now))
            }
            Write::Evict { .. } => Err(Stopped::Gone),
        }
    }

    fn fits(&self, name: &str, uid: Option<&str>, version: Option<&str>) -> Result<(), Stopped> {
        let seen = self.children.get(name).ok_or(Stopped::Gone)?;
        let is_same = uid.is_none_or(|uid| uid == seen.child.uid)
            && version.is_none_or(|version| version == seen.child.version.to_string());
        if is_same { Ok(()) } else { Err(Stopped::Conflict) }
    }

    /// Edits an OpsJob. An OpsJob that is being deleted disappears with its last finalizer.
    ///
    /// # Errors
    /// If the OpsJob is gone, or `with` returns false because the edit does not fit.
    pub fn edit_job(&mut self, name: &str, with: impl FnOnce(&mut Value) -> bool) -> Served {
        let seen = self.jobs.get(name).ok_or(Stopped::Gone)?;
        let mut document = seen.document.clone();
        if !with(&mut document) {
            return Err(Stopped::Conflict);
        }
        if document == seen.document {
            return Ok((OpsReply::Job(seen.clone()), None));
        }
        document["metadata"]["resourceVersion"] = json!((seen.version() + 1).to_string());
        let job = Part::new(OpsDocument::new(document));
        if job.job.view.deleting && !job.job.view.has_ops_finalizer {
            self.jobs.remove(name);
            return Ok((OpsReply::Job(job.clone()), Some(OpsEvent::JobGone(job))));
        }
        self.jobs.insert(name.to_owned(), job.clone());
        Ok((OpsReply::Job(job.clone()), Some(OpsEvent::Job(job))))
    }

    fn next(&mut self, name: &str) -> u64 {
        let (version, _) = self.made.entry(name.to_owned()).or_default();
        *version += 1;
        *version
    }

    fn put_child(&mut self, mut document: Value, version: u64) -> (OpsReply, Option<OpsEvent>) {
        document["metadata"]["resourceVersion"] = json!(version.to_string());
        let child = Part::new(ChildDocument::new(document));
        self.children.insert(child.child.key.name.clone(), child.clone());
        (OpsReply::Child(child.clone()), Some(OpsEvent::Child(child)))
    }

    fn create_child(&mut self, name: &str, body: &Value, owner: &str) -> Served {
        if let Some(known) = self.children.get(name) {
            let is_ours = known.owner == owner;
            return if is_ours { Ok((OpsReply::Child(known.clone()), None)) } else { Err(Stopped::Conflict) };
        }
        let version = self.next(name);
        let (_, made) = self.made.entry(name.to_owned()).or_default();
        *made += 1;
        let mut document = body.clone();
        document["metadata"]["uid"] = json!(format!("{name}-{made}"));
        Ok(self.put_child(document, version))
    }

    /// Edits an OperationJob that exists.
    pub fn edit_child(&mut self, name: &str, with: impl FnOnce(&mut Value)) -> (OpsReply, Option<OpsEvent>) {
        let seen = self.children[name].clone();
        let mut document = seen.document.clone();
        with(&mut document);
        if document == seen.document {
            return (OpsReply::Child(seen), None);
        }
        let version = self.next(name);
        self.put_child(document, version)
    }

    /// Deletes an OperationJob that exists. If it has taken its node, it stays until it has released the node.
    pub fn delete_child(&mut self, name: &str, now: u32) -> (OpsReply, Option<OpsEvent>) {
        if !self.children[name].has_started() {
            return (OpsReply::ChildGone, self.remove_child(name));
        }
        self.edit_child(name, |document| {
            if let Some(fields) = document["metadata"].as_object_mut() {
                fields.entry("deletionTimestamp").or_insert_with(|| json!(at(now).to_string()));
            }
        })
    }

    /// Removes an OperationJob, which has released its node. Returns the event.
    pub fn remove_child(&mut self, name: &str) -> Option<OpsEvent> {
        let child = self.children.remove(name)?;
        self.next(name);
        Some(OpsEvent::ChildGone(child))
    }

    /// Makes an OperationJob take its node. Returns the event.
    pub fn start_child(&mut self, name: &str, now: u32) -> Option<OpsEvent> {
        let start = json!(at(now).to_string());
        let (_, event) = self.edit_child(name, |document| {
            let target = document["spec"]["targets"][0].clone();
            document["metadata"]["finalizers"] = json!([HOLDS]);
            document["status"] = json!({"progress": "Processing", "startTime": start, "totalPodCount": 1,
                "processingPodCount": 1, "targetDetails": [{"name": target["name"], "uid": target["uid"],
                    "progress": "Processing", "startTime": start}]});
        });
        event
    }

    /// Ends the work of an OperationJob. Returns the event.
    pub fn end_child(&mut self, name: &str) -> Option<OpsEvent> {
        let (_, event) = self.edit_child(name, |document| {
            let status = &mut document["status"];
            status["progress"] = json!("Succeeded");
            (status["processingPodCount"], status["succeededPodCount"]) = (json!(0), json!(1));
            status["targetDetails"][0]["progress"] = json!("Succeeded");
        });
        event
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}
