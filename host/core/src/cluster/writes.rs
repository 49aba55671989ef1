//! What a round wants written, and what came of it.
//!
//! `core` builds a [`Record`] (what must be durable first) and [`TargetWrites`] (what is done to the cluster then);
//! `oarlock-kube` carries them out. Only a [`Recorded`] can be applied: it exists only once the record is durable. Data
//! only; no policy is left to whoever executes it.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};
use serde_json::Value;

use crate::cluster::object::ObjectKey;
use crate::plugin::visit::Looked;

/// Names one job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a round begins with.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The host's clock, corrected by the API server's.
    pub now: Timestamp,
    /// The job as stored, never older than the host's own last write to it. `None`: it is gone.
    pub job: Option<std::sync::Arc<OperationJob>>,
    /// The records of the job, where they were asked for, by shard.
    pub records: Option<Vec<OperationRecord>>,
    /// What the looks found.
    pub looked: Looked,
}

/// What must be durable before anything else is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// A merge patch of the job that adds its finalizer, where it is missing.
    pub finalizer: Option<Value>,
    /// The OperationRecords that changed, in order. Written before the status.
    pub records: Vec<RecordWrite>,
    /// A merge patch of the job's `status`, as a document with `metadata.uid`, `metadata.resourceVersion` and
    /// `status`.
    pub status: Option<Value>,
}

impl Record {
    /// Whether there is nothing to make durable.
    pub fn is_empty(&self) -> bool {
        self.finalizer.is_none() && self.records.is_empty() && self.status.is_none()
    }

    /// Yields what may be applied now. Called by `oarlock-kube` alone, after the last write of the record was accepted;
    /// it takes the record, so that one record allows one application.
    pub fn confirmed(self, writes: Vec<TargetWrites>, events: Vec<EventNote>) -> Recorded {
        Recorded { writes, events }
    }
}

/// One OperationRecord to write.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordWrite {
    /// Its name.
    pub name: String,
    /// The whole record, to create it with.
    pub record: OperationRecord,
    /// A merge patch, where it exists already.
    pub patch: Option<Value>,
}

/// The proof that a [`Record`] is durable, with what may be applied now; only [`Record::confirmed`] makes one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recorded {
    /// The writes of each target, independent of each other.
    pub writes: Vec<TargetWrites>,
    /// Events that follow what was recorded.
    pub events: Vec<EventNote>,
}

/// The writes of one target, or of the job itself, in order, up to the first that fails.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetWrites {
    /// Index of the target; `None` for writes to the job itself.
    pub target: Option<u32>,
    /// The writes.
    pub writes: Vec<Write>,
}

/// One request that changes the cluster.
#[derive(Clone, Debug, PartialEq)]
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
        /// UID of the owner by which an existing one is known as ours.
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
}

/// What came of the writes of one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// Index of the target; `None` for the job itself.
    pub target: Option<u32>,
    /// How many of its writes were done.
    pub done: usize,
    /// What stopped it; `None` where all were done.
    pub stopped: Option<Stopped>,
    /// When its last reply came, or was given up.
    pub at: Timestamp,
}

/// Why a write was not done, or is not known to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// 404: there is no such object.
    Gone,
    /// 409, or 422 on `metadata.uid`: the view was old.
    Conflict,
    /// 429 with cause `DisruptionBudget`, or 500 for several budgets: the server's sentence, and seconds to wait
    /// where it names them.
    Blocked {
        /// The server's sentence.
        message: String,
        /// Seconds to wait, where it names them.
        retry_after: Option<u32>,
    },
    /// 429 for other causes: not done, for the server is busy.
    Throttled {
        /// Seconds to wait, where it names them.
        retry_after: Option<u32>,
    },
    /// Timeout, a broken connection or 5xx: it may have been done.
    Unknown {
        /// What was seen.
        message: String,
    },
    /// 403 and the rest: refused, and not done.
    Refused {
        /// The server's sentence.
        message: String,
    },
    /// The term of leadership was over; nothing was sent.
    Fenced,
}

/// An event to emit, best effort.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What was done, as `action` of events.k8s.io.
    pub action: String,
    /// One sentence for people, at most 1,024 bytes.
    pub message: String,
}
