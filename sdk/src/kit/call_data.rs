//! The surroundings of a visit in a test: its job, its target and a cluster.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use oarlock_contract::extras::{NODE, OWNER};
use oarlock_contract::manifest::TargetKind;
use oarlock_contract::object_key::{Kind, ObjectKey, Owner};
use oarlock_contract::proposal::Registration;
use oarlock_contract::sighting::Sighting;
use oarlock_contract::successors::keeps_node;
use oarlock_contract::visit_record::{PluginRead, RecordedObject, VisitRecord};
use serde_json::Value;

use super::answer::Rules;
use super::memory::Object;
use super::relation;
use crate::backend::ReadError;
use crate::wit::{Freshness, TaskStatus};

/// Everything that a call can read.
#[derive(Debug, Clone)]
pub(crate) struct CallData {
    pub(super) rules: Rules,
    pub(super) registration: Registration,
    pub(super) job: JobFacts,
    pub(super) target: TargetFacts,
    /// The objects that the host watches.
    pub(super) watched: Vec<Value>,
    /// The objects that the API server has.
    pub(super) live: Vec<Value>,
    /// True if the host has already done the live reads.
    pub(super) looked: bool,
    /// The names that other targets hold.
    pub(super) claimed: Vec<String>,
    pub(super) unserved: Vec<String>,
    pub(super) config: Value,
    /// The record that answers all reads, if the visit is from a record.
    pub(super) record: Option<Rc<VisitRecord>>,
    /// The number of calls of host functions and of returned objects in this
    /// call.
    pub(super) host_calls: Cell<u32>,
    /// The objects that this call has looked up by name.
    pub(super) read: RefCell<BTreeSet<ObjectKey>>,
}

/// The panic that ends a call after it exceeded a limit, as the engine of the
/// host does.
pub(super) struct Exceeded(pub(super) String);

/// The panic that ends a call that needs a value that the test does not set.
pub(super) struct Lacks(pub(super) String);

/// The facts about the job.
#[derive(Debug, Clone)]
pub(super) struct JobFacts {
    pub(super) uid: String,
    pub(super) now_ms: u64,
    pub(super) parameters: Value,
    pub(super) cancelled: bool,
}

/// The facts about the target.
#[derive(Debug, Clone)]
pub(super) struct TargetFacts {
    pub(super) name: String,
    /// The UID that the host recorded when the target started. `None` if the
    /// test does not set it.
    pub(super) uid: Option<String>,
    pub(super) object: Option<Value>,
    /// True if the test says which controller the target had, or that it had
    /// none.
    pub(super) controller_known: bool,
    pub(super) containers: Vec<String>,
    pub(super) extras: BTreeMap<String, String>,
    pub(super) attempt: u32,
    pub(super) call_try: u32,
    pub(super) started_ms: u64,
    pub(super) deadline_ms: Option<u64>,
    pub(super) tasks: BTreeMap<String, TaskStatus>,
}

impl CallData {
    /// Counts calls of host functions, and ends the plugin's call if there are
    /// too many.
    pub(super) fn count(&self, calls: usize) {
        let calls = self.host_calls.get().saturating_add(u32::try_from(calls).unwrap_or(u32::MAX));
        self.host_calls.set(calls);
        let limits = &self.rules.limits;
        if calls > limits.host_calls {
            std::panic::resume_unwind(Box::new(Exceeded(limits.too_many_host_calls())));
        }
    }

    /// Returns the objects that a read of this freshness sees.
    pub(super) fn objects(&self, freshness: Freshness) -> Result<&[Value], ReadError> {
        match freshness {
            Freshness::Watched => Ok(&self.watched),
            Freshness::Live if self.looked => Ok(&self.live),
            Freshness::Live => Err(ReadError {
                reason: "Unavailable".to_owned(),
                message: "The host looks first, and then repeats the call.".to_owned(),
            }),
        }
    }

    /// Returns the key of the target. Without an object, its kind is the first
    /// kind that the plugin accepts.
    pub(super) fn target_key(&self) -> ObjectKey {
        let key = self.target.object.as_ref().map(key_of);
        let takes = |kind: &TargetKind| self.rules.manifest.takes(*kind);
        let kind = TargetKind::ALL.into_iter().find(takes).unwrap_or_default();
        let kind = match self.record.as_ref().map(|record| record.target.kind.as_str()) {
            Some("Node") => TargetKind::Node,
            Some(_) => TargetKind::Pod,
            None => kind,
        };
        key.unwrap_or_else(|| kind.object(self.namespace(), &self.target.name))
    }

    /// Returns the namespace of the job.
    pub(super) fn namespace(&self) -> &str {
        self.record.as_ref().map_or(relation::NAMESPACE, |record| &record.job.namespace)
    }

    /// Returns the owners of an object, if the host knows the object in this
    /// call.
    pub(super) fn sight(&self, key: &ObjectKey) -> Sighting<Vec<Owner>> {
        if let Some(record) = &self.record {
            return recorded_sight(record, key);
        }
        let known = match (self.watches(&key.kind), self.read.borrow().contains(key)) {
            (true, _) => &self.watched,
            (false, true) => &self.live,
            (false, false) => return Sighting::Unread,
        };
        known
            .iter()
            .find(|object| key_of(object) == *key)
            .map_or(Sighting::Absent, |object| Sighting::Found(owners_of(object)))
    }

    /// Returns the root controller of an object.
    pub(super) fn root_of(&self, object: &Value) -> Option<Owner> {
        root_of(&self.live, object)
    }

    /// Returns true if the host watches a kind: the kind of the target or of a
    /// relation.
    pub(super) fn watches(&self, kind: &Kind) -> bool {
        *kind == self.target_key().kind || self.registration.relations.iter().any(|relation| relation.kind == *kind)
    }
}

/// Returns the owners of an object of a record.
fn recorded_sight(record: &VisitRecord, key: &ObjectKey) -> Sighting<Vec<Owner>> {
    let documents = record.objects.iter().filter_map(|object| match object {
        RecordedObject::Shown(document) => Some(document),
        RecordedObject::Withheld(_) => None,
    });
    let found = documents.into_iter().find(|document| key_of(document) == *key);
    let is_read = |own: &PluginRead| matches!(own, PluginRead::Get { object, .. } if object == key);
    match found {
        Some(document) => Sighting::Found(owners_of(document)),
        None if record.reads.iter().any(|read| is_read(&read.read)) => Sighting::Absent,
        None => Sighting::Unread,
    }
}

/// Returns the key of an object.
pub(super) fn key_of(object: &Value) -> ObjectKey {
    let text = |path: &[&str]| Object::text(object, path).unwrap_or_default().to_owned();
    let namespace = Object::text(object, &["metadata", "namespace"]).map(str::to_owned);
    ObjectKey { kind: Kind::new(text(&["apiVersion"]), text(&["kind"])), namespace, name: text(&["metadata", "name"]) }
}

fn owners_of(object: &Value) -> Vec<Owner> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().map(owner).collect()
}

fn controller_of(object: &Value) -> Option<Owner> {
    owners_of(object).into_iter().find(|owner| owner.controller)
}

/// Returns the root controller of an object. For a ReplicaSet of a Deployment,
/// that is the Deployment.
fn root_of(live: &[Value], object: &Value) -> Option<Owner> {
    let controller = controller_of(object)?;
    let own = |object: &&Value| Object::text(object, &["metadata", "uid"]) == Some(&controller.uid);
    let found = live.iter().filter(|_| controller.kind.kind == "ReplicaSet").find(own);
    found.and_then(controller_of).or(Some(controller))
}

impl TargetFacts {
    /// Stores the extras that the host sets when a target starts.
    pub(super) fn note_start(&mut self, live: &[Value]) {
        let Some(object) = &self.object else { return };
        let Some(root) = root_of(live, object) else { return };
        let node = Object::text(object, &["spec", "nodeName"]).filter(|_| keeps_node(&root.kind.kind));
        let notes =
            [(NODE, node.map(str::to_owned)), (OWNER, Some(format!("{}/{}/{}", root.kind.kind, root.name, root.uid)))];
        for (key, value) in notes {
            if let Some(value) = value {
                self.extras.entry(key.to_owned()).or_insert(value);
            }
        }
    }
}

fn owner(reference: &Value) -> Owner {
    let text = |key: &str| Object::text(reference, &[key]).unwrap_or_default().to_owned();
    let controller = reference.get("controller").and_then(Value::as_bool).unwrap_or(false);
    Owner { kind: Kind::new(text("apiVersion"), text("kind")), name: text("name"), uid: text("uid"), controller }
}
