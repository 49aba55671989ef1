//! Writes as data: the record, the writes that may follow it, and the results.
//!
//! `core` builds a [`Record`] and the [`WriteBatch`]s that follow it, and `oarlock-kube` carries them out. Only a [`Recorded`] can be applied, and it
//! exists only once its record is durable. All policy is in `core`; the executor has none. The executor only adds the proofs of holds
//! (`object/hold_keys.rs`) to the patches of pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationRecord;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::object::api_object::{Object, ObjectKey};
use crate::object::key::{JobRef, name_prefix};

/// The documents that must be durable before the host writes anything else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// A merge patch that adds the job's finalizer, if the finalizer is missing.
    pub finalizer: Option<Value>,
    /// The OperationRecords that changed, in order. The host writes them before the status.
    pub operation_records: Vec<OperationRecordWrite>,
    /// True if the job's namespace is being deleted. The host then skips a record that the API server no longer accepts.
    pub best_effort_records: bool,
    /// A merge patch of the job's `status`, with `metadata.uid` and `metadata.resourceVersion`.
    pub status: Option<Value>,
}

impl Record {
    /// Returns true if the record has nothing to write.
    pub fn is_empty(&self) -> bool {
        self.finalizer.is_none() && self.operation_records.is_empty() && self.status.is_none()
    }

    /// Returns the proof, with the entries that may be applied now. Only `oarlock-kube` calls it, after the API server accepted the last write of the
    /// record. It consumes the record, so that one record allows one application.
    pub fn confirmed(
        self,
        entries: Vec<WriteBatch>,
        operation_records: BTreeMap<u32, StoredOperationRecord>,
    ) -> Recorded {
        Recorded { then: entries, operation_records }
    }
}

/// One OperationRecord to write.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationRecordWrite {
    /// Number of the OperationRecord.
    pub record_number: u32,
    /// Name of the OperationRecord.
    pub name: String,
    /// The whole OperationRecord, for its create.
    pub record: OperationRecord,
    /// A merge patch with preconditions, if the OperationRecord already exists.
    pub patch: Option<Value>,
    /// True if more targets of this OperationRecord are in flight than before. The host writes it after the OperationRecords with fewer targets in
    /// flight are durable. So a crash between two writes never leaves more targets in flight than the job allows.
    pub grows: bool,
}

/// One stored OperationRecord.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoredOperationRecord {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// The epoch in the stored OperationRecord.
    pub epoch: i64,
}

/// The proof that a record is durable, with what may follow it. Only [`Record::confirmed`] and [`NewStatus::confirmed`] make it.
///
/// [`NewStatus::confirmed`]: crate::kind::plan::NewStatus::confirmed
#[derive(Debug)]
#[non_exhaustive]
pub struct Recorded<T = Vec<WriteBatch>> {
    /// The steps that may follow. For an OperationJob, these are the writes of each target, independent of each other.
    pub then: T,
    /// The OperationRecords that were written, as they are stored now.
    pub operation_records: BTreeMap<u32, StoredOperationRecord>,
}

/// The order in which the host sends entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Writes that only move a resourceVersion. Such writes must precede the ends that wait for them.
    Invalidate,
    /// Writes of the job itself and of targets that started in an earlier round, also the first writes of a target after `operationDelaySeconds`.
    Operated,
    /// Writes of targets that start in this round.
    First,
}

/// The writes of one target or of the job itself, in order. The first failed write ends the batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WriteBatch {
    /// The job.
    pub job: JobRef,
    /// Index of the target. `None` for writes of the job itself.
    pub index: Option<u32>,
    /// UID of the target. Empty for writes of the job itself.
    pub target_uid: String,
    /// Attempt of the target.
    pub attempt: u32,
    /// Epoch of the term that decided on the writes.
    pub epoch: i64,
    /// Priority of the entry in the order of sending.
    pub priority: Priority,
    /// The writes.
    pub writes: Vec<Write>,
    /// The writes that the host makes as the account of the plugin. `None` if it makes all of them as itself.
    pub made_as: Option<MadeAs>,
    /// Events that follow if all writes succeed.
    pub events: Vec<EventNote>,
    /// The time at which the host received the change that led to this entry.
    pub since: Option<Timestamp>,
    /// True if the API server only checks the writes and makes none of them. It checks each write on the objects as they are.
    pub dry_run: bool,
}

/// The writes of a batch that the host makes as the account of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MadeAs {
    /// The account.
    pub account: PluginAccount,
    /// The positions of these writes in the batch.
    pub writes: BTreeSet<usize>,
}

/// The account of a plugin, as its grant names it. The host knows the namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PluginAccount {
    /// The name of the plugin.
    pub plugin: String,
    /// The name of the ServiceAccount.
    pub name: String,
}

impl WriteBatch {
    /// Returns the account as which the host makes the write at this position; `None` for the host's own account.
    pub fn account(&self, position: usize) -> Option<&PluginAccount> {
        self.made_as.as_ref().filter(|made_as| made_as.writes.contains(&position)).map(|made_as| &made_as.account)
    }

    /// Notes that the first `done` writes were made, and that the last one left its object at `version`. Later writes of the same object then expect
    /// this version, so that the batch in the result shows the preconditions that were sent. A dry run moves no version.
    pub fn made(&mut self, done: usize, version: &str) {
        if self.dry_run {
            return;
        }
        let Some((before, after)) = self.writes.split_at_mut_checked(done) else { return };
        let Some(object) = before.last().map(Write::object) else { return };
        after.iter_mut().filter(|write| write.object() == object).for_each(|write| write.move_version(version));
    }
}

/// The result of a [`WriteBatch`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchResult {
    /// The entry as it was sent.
    pub entry: WriteBatch,
    /// Time of the first request, by the clock that is compared with the API server's. `None` if nothing was sent.
    pub sent: Option<Timestamp>,
    /// Time of the last reply, or the time at which the host gave up waiting for it.
    pub at: Timestamp,
    /// The number of writes that succeeded.
    pub done: usize,
    /// The reason why the entry stopped. `None` if all writes succeeded.
    pub stopped: Option<Stopped>,
}

/// One request that changes the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// A PATCH with its preconditions in the body. An object is a JSON Merge Patch (RFC 7396) with `metadata.uid` and `metadata.resourceVersion`. An
    /// array is a JSON Patch (RFC 6902) with `test` operations.
    Patch {
        /// The object to patch.
        object: ObjectKey,
        /// The subresource, such as `status`.
        subresource: Option<String>,
        /// The patch.
        body: Value,
    },
    /// A POST of an Eviction.
    Evict {
        /// The pod to evict.
        pod: ObjectKey,
        /// The API server evicts only the pod with this UID.
        uid: String,
        /// The API server evicts the pod only at this resourceVersion.
        resource_version: Option<String>,
        /// Overrides the grace period.
        grace_seconds: Option<u32>,
    },
    /// A POST of an object with a deterministic name. AlreadyExists under the same controller is success.
    Create {
        /// The object to create.
        object: ObjectKey,
        /// Body of the object.
        body: Value,
        /// UID of the owner. It marks an existing object as this job's.
        owner_uid: String,
    },
    /// A DELETE.
    Delete {
        /// The object to delete.
        object: ObjectKey,
        /// The API server deletes only the object with this UID.
        uid: String,
        /// The API server deletes the object only at this resourceVersion.
        resource_version: Option<String>,
        /// Overrides the grace period.
        grace_seconds: Option<u32>,
        /// `Background`, `Foreground` or `Orphan`.
        propagation: Option<String>,
    },
}

impl Write {
    /// Returns a patch of the object itself.
    pub fn patch(object: &ObjectKey, body: Value) -> Self {
        Self::Patch { object: object.clone(), subresource: None, body }
    }

    /// Returns a JSON Patch (RFC 6902) of the object itself with these operations, which the API server makes only at this version.
    pub fn patch_at(version: &str, object: ObjectKey, operations: impl IntoIterator<Item = Value>) -> Self {
        Self::Patch { object, subresource: None, body: at_version(version, operations) }
    }

    /// Returns the patch that adds a finalizer to an object at the version that the host saw. Returns `None` if the object has the finalizer, or if the host
    /// does not keep the whole object.
    pub fn add_finalizer(object: &Object, name: &str) -> Option<Self> {
        if !object.is_whole() || object.finalizers.iter().any(|has| has == name) {
            return None;
        }
        let operation = match object.finalizers.is_empty() {
            true => json!({"op": "add", "path": "/metadata/finalizers", "value": [name]}),
            false => json!({"op": "add", "path": "/metadata/finalizers/-", "value": name}),
        };
        Some(Self::patch_at(&object.resource_version, object.key.clone(), [operation]))
    }

    /// Returns the patch that removes a finalizer from an object at the version that the host saw. Returns `None` if the object lacks the finalizer.
    pub fn remove_finalizer(object: &Object, name: &str) -> Option<Self> {
        let place = object.finalizers.iter().position(|has| has == name)?;
        let operation = json!({"op": "remove", "path": format!("/metadata/finalizers/{place}")});
        Some(Self::patch_at(&object.resource_version, object.key.clone(), [operation]))
    }

    /// Returns a patch that replaces the status of an object at this version.
    pub fn status(object: ObjectKey, version: &str, status: &Value) -> Self {
        let body = at_version(version, [json!({"op": "add", "path": "/status", "value": status})]);
        Self::Patch { object, subresource: Some("status".to_owned()), body }
    }

    /// Returns a deletion that leaves the dependents of the object to the garbage collector.
    pub fn delete(object: ObjectKey, uid: &str, resource_version: Option<String>) -> Self {
        let propagation = Some("Background".to_owned());
        Self::Delete { object, uid: uid.to_owned(), resource_version, grace_seconds: None, propagation }
    }

    /// Returns the object that the write changes.
    pub fn object(&self) -> &ObjectKey {
        match self {
            Self::Patch { object, .. } | Self::Create { object, .. } | Self::Delete { object, .. } => object,
            Self::Evict { pod, .. } => pod,
        }
    }

    /// Returns `patch`, `evict`, `create` or `delete`.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Patch { .. } => "patch",
            Self::Evict { .. } => "evict",
            Self::Create { .. } => "create",
            Self::Delete { .. } => "delete",
        }
    }

    /// Returns the request in words, such as `evict pod web-1`.
    pub fn describe(&self) -> String {
        let object = self.object();
        format!("{} {} {}", self.verb(), object.kind.kind.to_lowercase(), object.name)
    }

    /// Returns true if the write deletes or evicts its object.
    pub fn departs(&self) -> bool {
        matches!(self, Self::Evict { .. } | Self::Delete { .. })
    }

    /// Returns the UID of the object that the decision was based on, if the write names it.
    pub fn uid(&self) -> Option<&str> {
        match self {
            Self::Patch { body, .. } => body.pointer("/metadata/uid").and_then(Value::as_str),
            Self::Evict { uid, .. } | Self::Delete { uid, .. } => Some(uid),
            Self::Create { .. } => None,
        }
    }

    /// Returns the resourceVersion that the decision was based on, if it is a precondition.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Patch { body, .. } => body.pointer("/metadata/resourceVersion").and_then(Value::as_str),
            Self::Evict { resource_version, .. } | Self::Delete { resource_version, .. } => resource_version.as_deref(),
            Self::Create { .. } => None,
        }
    }

    /// Makes `version` the precondition, if the write has a precondition on the version. An earlier write of the same entry changed the object.
    pub fn move_version(&mut self, version: &str) {
        match self {
            Self::Patch { body, .. } => {
                if let Some(slot) = body.pointer_mut("/metadata/resourceVersion") {
                    *slot = json!(version);
                }
            }
            Self::Evict { resource_version: Some(known), .. } | Self::Delete { resource_version: Some(known), .. } => {
                version.clone_into(known);
            }
            Self::Evict { .. } | Self::Delete { .. } | Self::Create { .. } => {}
        }
    }

    /// Returns true if `seen`, the newest known view of the object, is still the view that the decision was based on.
    pub fn fits(&self, seen: Option<&Object>) -> bool {
        let Some(seen) = seen else { return matches!(self, Self::Create { .. }) || self.version().is_none() };
        let same = |known: Option<&str>, now: &str| known.is_none_or(|known| known == now);
        same(self.uid(), &seen.uid) && same(self.version(), &seen.resource_version)
    }
}

/// Returns the body of a JSON Patch that applies only at this version.
fn at_version(version: &str, operations: impl IntoIterator<Item = Value>) -> Value {
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
    std::iter::once(test).chain(operations).collect()
}

/// The reason why a write failed or has an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stopped {
    /// 404: the object does not exist.
    Gone,
    /// 409, or 422 on `metadata.uid`: the view was stale.
    Conflict,
    /// 429 with cause `DisruptionBudget`, or 500 for several budgets.
    Blocked {
        /// The server's message, after the name of the budget if the server names it ([`blocked_by`]).
        message: String,
        /// Seconds to wait, if the server names them.
        retry_after: Option<u32>,
    },
    /// 429 for other causes, or no connection could be opened. The API server did not make the write.
    Throttled {
        /// Seconds to wait, if the server names them.
        retry_after: Option<u32>,
    },
    /// Timeout, a broken connection or 5xx. The API server may have made the write.
    Unknown {
        /// The failure as the client saw it.
        message: String,
    },
    /// 403 and all other replies: the API server refused the write and did not make it.
    Refused {
        /// The server's message.
        message: String,
    },
    /// 403, because an account lacks a right. The API server did not make the write.
    Forbidden {
        /// The right that is missing.
        lacking: Lacking,
        /// The server's message, and what to do.
        message: String,
    },
    /// The host sent nothing, because the view was stale or the job was gone.
    NotSent,
    /// The host sent nothing, because its term was over.
    LostLease,
}

/// The right that the API server missed when the host made a write as the account of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lacking {
    /// The plugin's account may not make the write.
    PluginRight,
    /// The host may not make this write as the plugin's account.
    Impersonation,
}

impl Lacking {
    /// Returns the reason on the target whose write was refused.
    pub fn reason(self) -> &'static str {
        match self {
            Self::PluginRight => "MutationDenied",
            Self::Impersonation => "HostMayNotImpersonate",
        }
    }
}

impl Stopped {
    /// Returns true if the host must read the object before it decides anything else about it: the write may have been made, or the view was stale.
    pub fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Gone | Self::Conflict | Self::Unknown { .. })
    }
}

/// A write that failed or has an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedWrite {
    /// The write.
    pub write: Write,
    /// The reason.
    pub stopped: Stopped,
}

impl FailedWrite {
    /// Returns the message of the API server, if it refused the write.
    pub fn refusal(&self) -> Option<&str> {
        match &self.stopped {
            Stopped::Refused { message } | Stopped::Forbidden { message, .. } => Some(message),
            _ => None,
        }
    }
}

/// The limits that a write counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The limits of statuses and records. A hanging webhook on pods does not delay these writes.
    Record,
    /// The limits of all other writes.
    Change,
}

/// The prefix of a message about a blocked eviction. The budget's name follows it.
const BUDGET: &str = "disruption budget ";
/// The prefix of a message that names several budgets.
const BUDGETS: &str = "disruption budgets ";

/// Returns the message of an eviction that this budget blocks. `text` is the server's message.
pub fn blocked_by(budget: &str, text: &str) -> String {
    format!("{BUDGET}{budget}: {text}")
}

/// Returns true if the message says that several budgets select the pod. The API server does not evict such a pod.
pub fn is_of_several(message: &str) -> bool {
    message.contains("more than one PodDisruptionBudget")
}

/// Returns the message of an eviction that is blocked because these budgets select its pod. The eviction API allows only one budget.
pub fn blocked_by_several(mut budgets: Vec<String>, text: &str) -> String {
    budgets.sort();
    match budgets.split_last() {
        Some((last, others)) if !others.is_empty() => {
            format!("{BUDGETS}{} and {last} select the pod, and an eviction takes one: {text}", others.join(", "))
        }
        _ => text.to_owned(),
    }
}

/// Returns the budgets that a message of [`blocked_by_several`] names.
pub fn budgets_of(message: &str) -> Option<&str> {
    message.strip_prefix(BUDGETS)?.split_once(" select the pod").map(|(budgets, _)| budgets)
}

/// Returns the budget that a message of [`blocked_by`] names.
pub fn budget_of(message: &str) -> Option<&str> {
    message.strip_prefix(BUDGET)?.split_once(": ").map(|(budget, _)| budget)
}

/// An event to emit, best effort.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventNote {
    /// `metadata.name`. It is deterministic, so that the API server answers AlreadyExists to a repetition.
    pub name: String,
    /// The object that the event is about.
    pub regarding: ObjectKey,
    /// UID of the object that the event is about.
    pub regarding_uid: String,
    /// True for `Warning`, false for `Normal`.
    pub warning: bool,
    /// The CamelCase reason for programs.
    pub reason: String,
    /// The operation, as `action` of events.k8s.io.
    pub action: String,
    /// One sentence for people, of at most 1,024 bytes.
    pub message: String,
}

impl EventNote {
    /// Returns the name of an event on an object. Equal `text` gives equal names. `text` says what happened to which object.
    pub fn name_of(object: &str, text: &str) -> String {
        let hash: String = Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{hash}", name_prefix(object))
    }
}
