//! The writes of a JobFlow or DaemonJob: its children, its JobRecords and the object itself.

use serde_json::{Value, json};

use crate::attempts::build::{JOB_TTL, OPERATION_TTL, OWNER_UID};
use crate::attempts::parent::{Parent, record_key};
use crate::attempts::plan::{ChildChange, Create};
use crate::attempts::status::{lines_of, record_name};
use crate::attempts::unit::Unit;
use crate::attempts::view::{ChildKind, ChildView};
use crate::object::api_object::ObjectKey;
use crate::object::fields::{list, text};
use crate::requests::writes::{Lane, Write};

impl Create {
    /// Returns the create.
    pub fn write(&self, parent: &Parent) -> Write {
        let object = self.kind.key(&parent.namespace, &self.name);
        Write::Create { object, body: self.object.clone(), owner_uid: parent.uid.clone() }
    }

    /// Returns true if this child is the result of the create. A child without an annotation of its unit counts too.
    pub fn is_made_by(&self, child: &ChildView, parent: &Parent) -> bool {
        let is_same = child.unit.as_deref().is_none_or(|unit| unit == self.unit) && child.attempt == self.attempt;
        // Only the first of several owners of these kinds counts.
        is_same && !child.orphaned && parent.owns(child)
    }

    /// Returns why the create cannot succeed while this object has the name of the child.
    pub fn conflict_with(&self, stored: &Value, parent: &Parent) -> String {
        let owners = list(stored, "/metadata/ownerReferences").iter().map(|owner| {
            let named = |field: &str| text(owner, field).unwrap_or("?").to_owned();
            format!("{} {}", named("/kind"), named("/name"))
        });
        let owners: Vec<String> = owners.take(3).collect();
        let of = if owners.is_empty() { "nobody's".to_owned() } else { format!("owned by {}", owners.join(", ")) };
        let (_, kind) = self.kind.api();
        format!("{kind} {}/{} exists already and is {of}; delete or rename it", parent.namespace, self.name)
    }
}

impl ChildChange {
    /// Returns the write. It changes only the object with the UID that the host saw.
    pub fn write(&self, parent: &Parent) -> Write {
        match self {
            Self::Adopt(child) => adopt(child, parent),
            Self::Stop(child) => patch_child(child, json!({"spec": stopped(child)})),
            Self::SetTtl(child, seconds) => {
                let field = if child.kind == ChildKind::Job { JOB_TTL } else { OPERATION_TTL };
                patch_child(child, json!({"spec": {field: seconds}}))
            }
            Self::Delete(child) => Write::delete(key_of(child), &child.uid, None),
            // A user may resume the object meanwhile, so the host deletes only the version that it saw.
            Self::DeleteSelf => Write::delete(parent.key(), &parent.uid, Some(parent.version.clone())),
        }
    }

    /// Returns the limits that the write counts against. A Job is a workload, and a webhook on workloads may hang. OperationJobs and parents are records.
    pub fn lane(&self) -> Lane {
        let is_of_job = self.child().is_some_and(|child| child.kind == ChildKind::Job);
        if is_of_job { Lane::Change } else { Lane::Record }
    }
}

fn key_of(child: &ChildView) -> ObjectKey {
    child.kind.key(&child.namespace, &child.name)
}

/// Returns a merge patch that the API server applies only to the object with this UID.
fn patch_child(child: &ChildView, mut body: Value) -> Write {
    if let Some(fields) = body.as_object_mut() {
        fields.insert("metadata".to_owned(), json!({"uid": child.uid}));
    }
    Write::patch(&key_of(child), body)
}

fn adopt(child: &ChildView, parent: &Parent) -> Write {
    let place = format!("/metadata/ownerReferences/{}", child.owner_index);
    let body = json!([
        {"op": "test", "path": "/metadata/uid", "value": child.uid},
        {"op": "test", "path": format!("{place}/uid"), "value": parent.uid},
        {"op": "add", "path": format!("{place}/controller"), "value": true},
        {"op": "add", "path": format!("{place}/blockOwnerDeletion"), "value": true},
    ]);
    Write::patch(&key_of(child), body)
}

/// Returns the fields that end a Job but keep it. A suspended Job must start, without pods, because only then its deadline begins.
fn stopped(child: &ChildView) -> Value {
    match child.suspended {
        true => json!({"activeDeadlineSeconds": 1, "suspend": false, "parallelism": 0}),
        false => json!({"activeDeadlineSeconds": 1}),
    }
}

/// The units of one JobRecord.
#[derive(Clone, Copy, Debug)]
pub struct RecordUnits<'a> {
    /// The number of the record.
    pub number: usize,
    /// The units of the record.
    pub units: &'a [Unit],
}

/// The desired state of a JobRecord.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// Key of the record.
    pub key: ObjectKey,
    /// Number of the record.
    pub number: usize,
    /// The units of the record, as they are stored.
    pub units: Value,
    /// The label that finds the record. With `owners`, the next write restores it if a user removed it.
    labels: Value,
    owners: Value,
    owner_uid: String,
}

impl JobRecord {
    /// Returns the record of an object with these units.
    pub fn of(parent: &Parent, units: RecordUnits<'_>) -> Self {
        let RecordUnits { number, units } = units;
        Self {
            key: record_key(&parent.namespace, record_name(parent, number)),
            number,
            units: lines_of(units).into(),
            labels: json!({OWNER_UID: parent.uid}),
            owners: json!([parent.owner_reference()]),
            owner_uid: parent.uid.clone(),
        }
    }

    /// Returns the change of the stored record at the version that the host saw. A late write cannot change a newer version.
    pub fn patch(&self, version: &str) -> Write {
        let Self { key, number, units, labels, owners, .. } = self;
        let metadata = json!({"resourceVersion": version, "labels": labels, "ownerReferences": owners});
        Write::patch(key, json!({"metadata": metadata, "shard": number, "units": units}))
    }

    /// Returns the create of the record.
    pub fn create(&self) -> Write {
        let Self { key: object, number, units, labels, owners, owner_uid } = self;
        let ObjectKey { kind, namespace, name } = object;
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owners});
        let body = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "shard": number,
            "units": units});
        Write::Create { object: object.clone(), body, owner_uid: owner_uid.clone() }
    }
}
