//! Writes as data: the record, the writes that may follow it, and the results.
//!
//! `core` builds a [`Record`] and the [`Entry`]s that follow it; `oarlock-kube` carries them out. Only a [`Recorded`]
//! can be applied, and it exists only once its record is durable. All policy is here; the executor has none.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationRecord;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::cluster::object::{Object, ObjectKey};
use crate::job::key::{JobRef, name_prefix};

/// The documents that must be durable before anything else is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// A merge patch that adds the job's finalizer, if it is missing.
    pub finalizer: Option<Value>,
    /// The OperationRecords that changed, in order. Written before the status.
    pub shards: Vec<ShardWrite>,
    /// The job is deleted with its namespace: a shard that the API server no longer accepts is skipped.
    pub best_effort_shards: bool,
    /// A merge patch of the job's `status`, with `metadata.uid` and `metadata.resourceVersion`.
    pub status: Option<Value>,
}

impl Record {
    /// True if there is nothing to make durable.
    pub fn is_empty(&self) -> bool {
        self.finalizer.is_none() && self.shards.is_empty() && self.status.is_none()
    }

    /// Returns the proof, with the entries that may be applied now. Called by `oarlock-kube` alone, after the last
    /// write of the record was accepted; it takes the record, so that one record allows one application.
    pub fn confirmed(self, entries: Vec<Entry>, shards: BTreeMap<u32, StoredShard>) -> Recorded {
        Recorded { entries, shards }
    }
}

/// One OperationRecord to write.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardWrite {
    /// Its number.
    pub shard: u32,
    /// Its name.
    pub name: String,
    /// The whole record, to create it with.
    pub record: OperationRecord,
    /// A merge patch with preconditions, if the record exists already.
    pub patch: Option<Value>,
    /// More of its targets are in flight than before. It is written once those that have fewer are durable, so that no
    /// crash between two of them leaves more in flight than the job allows.
    pub grows: bool,
}

/// One stored record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoredShard {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// The epoch in it.
    pub epoch: i64,
}

/// The proof that a [`Record`] is durable, with the entries that may be applied now; only [`Record::confirmed`] makes
/// one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recorded {
    /// The writes of each target, independent of each other.
    pub entries: Vec<Entry>,
    /// The shards that were written, as they are stored now.
    pub shards: BTreeMap<u32, StoredShard>,
}

/// The order in which entries are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Bumps, which must precede the ends that wait for them.
    Bump,
    /// Writes of targets that started in an earlier round, also the first ones after a delay, and of the job itself.
    Operated,
    /// Writes of targets that start in the same round.
    First,
}

/// The writes of one target, or of the job itself, in order, up to the first that fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The job.
    pub job: JobRef,
    /// Index of the target; `None` for writes of the job itself.
    pub index: Option<u32>,
    /// UID of the target, empty for the job itself.
    pub target_uid: String,
    /// Attempt of the target.
    pub attempt: u32,
    /// Epoch of the term that decided it.
    pub epoch: i64,
    /// Its place in the order.
    pub priority: Priority,
    /// The writes.
    pub writes: Vec<Write>,
    /// Events that follow if all writes were done.
    pub events: Vec<EventNote>,
    /// Time at which the host heard of the change that led to it.
    pub since: Option<Timestamp>,
    /// The API server only checks the writes, each on the objects as they are, and makes none of them.
    pub dry_run: bool,
}

impl Entry {
    /// Notes that its first `done` writes were made, the last of which left its object at `version`: the writes after it
    /// are made on that. So an entry that comes back has its preconditions as they were sent. In a dry run nothing moved.
    pub fn made(&mut self, done: usize, version: &str) {
        if self.dry_run {
            return;
        }
        let Some((before, after)) = self.writes.split_at_mut_checked(done) else { return };
        let Some(object) = before.last().map(Write::object) else { return };
        after.iter_mut().filter(|write| write.object() == object).for_each(|write| write.move_version(version));
    }
}

/// The result of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryResult {
    /// The entry, as it was sent.
    pub entry: Entry,
    /// Time of its first request, by the clock that is compared with the API server's; `None` if nothing was sent.
    pub sent: Option<Timestamp>,
    /// Time of its last reply, or of giving up on one.
    pub at: Timestamp,
    /// The number of writes that succeeded.
    pub done: usize,
    /// The reason why it stopped; `None` if all writes succeeded.
    pub stopped: Option<Stopped>,
}

/// One request that changes the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// A PATCH; its preconditions are in its body. An object is a JSON Merge Patch (RFC 7396), with `metadata.uid` and
    /// `metadata.resourceVersion`; an array is a JSON Patch (RFC 6902), with `test` operations.
    Patch {
        /// The object.
        object: ObjectKey,
        /// Such as `status`.
        subresource: Option<String>,
        /// The patch.
        body: Value,
    },
    /// A POST of an Eviction.
    Evict {
        /// The pod.
        pod: ObjectKey,
        /// Only the pod of this UID.
        uid: String,
        /// Only at this resourceVersion.
        resource_version: Option<String>,
        /// Overrides the grace period.
        grace_seconds: Option<u32>,
    },
    /// A POST of an object with a deterministic name. AlreadyExists under the same controller is success.
    Create {
        /// The object.
        object: ObjectKey,
        /// Its body.
        body: Value,
        /// UID of the owner that marks an existing object as this job's.
        owner_uid: String,
    },
    /// A DELETE.
    Delete {
        /// The object.
        object: ObjectKey,
        /// Only the object of this UID.
        uid: String,
        /// Only at this resourceVersion.
        resource_version: Option<String>,
        /// Overrides the grace period.
        grace_seconds: Option<u32>,
        /// `Background`, `Foreground` or `Orphan`.
        propagation: Option<String>,
    },
}

impl Write {
    /// A patch of an object itself.
    pub fn patch(object: &ObjectKey, body: Value) -> Self {
        Self::Patch { object: object.clone(), subresource: None, body }
    }

    /// A patch that replaces the status of an object at this version.
    pub fn status(object: ObjectKey, version: &str, status: &Value) -> Self {
        let body = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": status},
        ]);
        Self::Patch { object, subresource: Some("status".to_owned()), body }
    }

    /// A deletion that leaves what the object owns to the garbage collector.
    pub fn delete(object: ObjectKey, uid: &str, resource_version: Option<String>) -> Self {
        let propagation = Some("Background".to_owned());
        Self::Delete { object, uid: uid.to_owned(), resource_version, grace_seconds: None, propagation }
    }

    /// The object it changes.
    pub fn object(&self) -> &ObjectKey {
        match self {
            Self::Patch { object, .. } | Self::Create { object, .. } | Self::Delete { object, .. } => object,
            Self::Evict { pod, .. } => pod,
        }
    }

    /// `patch`, `evict`, `create` or `delete`.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Patch { .. } => "patch",
            Self::Evict { .. } => "evict",
            Self::Create { .. } => "create",
            Self::Delete { .. } => "delete",
        }
    }

    /// The request in words, such as `evict pod web-1`.
    pub fn words(&self) -> String {
        let object = self.object();
        format!("{} {} {}", self.verb(), object.kind.kind.to_lowercase(), object.name)
    }

    /// True if it deletes or evicts its object.
    pub fn departs(&self) -> bool {
        matches!(self, Self::Evict { .. } | Self::Delete { .. })
    }

    /// The UID of the object it was decided on, if it names one.
    pub fn uid(&self) -> Option<&str> {
        match self {
            Self::Patch { body, .. } => body.pointer("/metadata/uid").and_then(Value::as_str),
            Self::Evict { uid, .. } | Self::Delete { uid, .. } => Some(uid),
            Self::Create { .. } => None,
        }
    }

    /// The resourceVersion it was decided on, if that is a precondition.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Patch { body, .. } => body.pointer("/metadata/resourceVersion").and_then(Value::as_str),
            Self::Evict { resource_version, .. } | Self::Delete { resource_version, .. } => resource_version.as_deref(),
            Self::Create { .. } => None,
        }
    }

    /// Makes `version` its precondition, if it has one: an earlier write of the same entry changed the object.
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

    /// True if `seen`, the newest known view of its object, is still the one it was decided on.
    pub fn fits(&self, seen: Option<&Object>) -> bool {
        let Some(seen) = seen else { return matches!(self, Self::Create { .. }) || self.version().is_none() };
        let same = |known: Option<&str>, now: &str| known.is_none_or(|known| known == now);
        same(self.uid(), &seen.uid) && same(self.version(), &seen.resource_version)
    }
}

/// The reason why a write failed or has an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stopped {
    /// 404: there is no such object.
    Gone,
    /// 409, or 422 on `metadata.uid`: the view was out of date.
    Conflict,
    /// 429 with cause `DisruptionBudget`, or 500 for several budgets.
    Blocked {
        /// The server's sentence, after the name of the budget where the server gives that ([`blocked_by`]).
        message: String,
        /// Seconds to wait, if it names them.
        retry_after: Option<u32>,
    },
    /// 429 for other causes: not done, because the server is busy.
    Throttled {
        /// Seconds to wait, if it names them.
        retry_after: Option<u32>,
    },
    /// Timeout, a broken connection or 5xx: the write may have been made.
    Unknown {
        /// The failure as seen by the client.
        message: String,
    },
    /// 403 and the rest: refused, and not done.
    Refused {
        /// The server's sentence.
        message: String,
    },
    /// Nothing was sent: the view was out of date, or the job was gone.
    NotSent,
    /// Nothing was sent: the term of leadership was over.
    LostLease,
}

/// The words that a message about a blocked eviction begins with, before the budget's name.
const BUDGET: &str = "disruption budget ";
/// The beginning of a message that names several budgets.
const BUDGETS: &str = "disruption budgets ";

/// The message of an eviction that this budget blocks, of which the server says `text`.
pub fn blocked_by(budget: &str, text: &str) -> String {
    format!("{BUDGET}{budget}: {text}")
}

/// Returns true for the words of an API server that evicts no pod which several budgets select.
pub fn is_of_several(message: &str) -> bool {
    message.contains("more than one PodDisruptionBudget")
}

/// Returns the message of an eviction that is blocked since these budgets select its pod: the eviction API takes one.
pub fn blocked_by_several(mut budgets: Vec<String>, text: &str) -> String {
    budgets.sort();
    match budgets.split_last() {
        Some((last, others)) if !others.is_empty() => {
            format!("{BUDGETS}{} and {last} select the pod, and an eviction takes one: {text}", others.join(", "))
        }
        _ => text.to_owned(),
    }
}

/// The budgets that a message of [`blocked_by_several`] names.
pub fn budgets_of(message: &str) -> Option<&str> {
    message.strip_prefix(BUDGETS)?.split_once(" select the pod").map(|(budgets, _)| budgets)
}

/// The budget that a message of [`blocked_by`] names.
pub fn budget_of(message: &str) -> Option<&str> {
    message.strip_prefix(BUDGET)?.split_once(": ").map(|(budget, _)| budget)
}

/// An event to emit, best effort.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventNote {
    /// `metadata.name`; deterministic, so that a repetition is AlreadyExists.
    pub name: String,
    /// The object it is about.
    pub regarding: ObjectKey,
    /// UID of that object.
    pub regarding_uid: String,
    /// `Warning` instead of `Normal`.
    pub warning: bool,
    /// A CamelCase word for programs.
    pub reason: String,
    /// The operation, as `action` of events.k8s.io.
    pub action: String,
    /// One sentence for people, at most 1,024 bytes.
    pub message: String,
}

impl EventNote {
    /// The name of an event on the object of this name: the same for the same `text`, which says what happened to whom.
    pub fn name_of(object: &str, text: &str) -> String {
        let hash: String = Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{hash}", name_prefix(object))
    }
}
