//! One visit: its input, its reads and its answer.
//!
//! `core` builds a [`Visit`]. `oarlock-wasm` calls the plugin with it and returns an [`Answer`]. The plugin reads through [`Reads`], which answers
//! from memory without waiting and notes the live reads that are missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::plugin::proposal::{CallFailure, Proposal, Report};

/// The job as the plugin sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFacts {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub name: String,
    /// UID of the job.
    pub uid: String,
    /// The action that the job asks for.
    pub action: String,
    /// Time at which the round began, in milliseconds since 1970.
    pub now_ms: u64,
    /// The parameters, a JSON object.
    pub parameters: Value,
    /// The number of the job's targets.
    pub target_count: u32,
    /// True if the user cancelled the job.
    pub cancelled: bool,
}

/// The target as the plugin sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetFacts {
    /// Name of the target.
    pub name: String,
    /// Index of the target, from 0.
    pub index: u32,
    /// `Pod` or `Node`.
    pub kind: String,
    /// UID of the target, as recorded.
    pub uid: Option<String>,
    /// The object with the recorded UID. `None` if the object is gone.
    pub object: Option<Arc<Object>>,
    /// The containers that the job asks for. An empty list means all containers.
    pub containers: Vec<String>,
    /// Extras as they were last stored durably.
    pub extras: BTreeMap<String, String>,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Number of this try of the call, from 1.
    pub call_try: u32,
    /// Time at which the target started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Deadline of the target, in milliseconds since 1970.
    pub deadline_ms: Option<u64>,
    /// The tasks that the host has seen begin, by name.
    pub tasks: BTreeMap<String, TaskStatus>,
}

/// State of a task as the plugin sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    /// `Waiting`, `Running`, `Succeeded` or `Failed`.
    pub state: &'static str,
    /// Exit code of the task, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The end of the task's output.
    pub output: String,
    /// Why the task waits or failed.
    pub message: String,
}

/// The functions that a visit calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Calls `operate`, and then `progress` if `operate` proposes no mutation.
    OperateThenProgress,
    /// Calls only `progress`: at the deadline, or while no new work may begin.
    Progress,
    /// Calls only `release`.
    Release,
}

/// One visit: the plugin functions called for one target in one round.
#[derive(Clone)]
pub struct Visit {
    /// The job.
    pub job: Arc<JobFacts>,
    /// The target.
    pub target: TargetFacts,
    /// The functions to call.
    pub call: Call,
    /// The reads that the plugin may make.
    pub reads: Arc<dyn Reads>,
}

/// Reads of a plugin other than its job and target. Each read gives the same answer throughout one visit.
pub trait Reads: Send + Sync {
    /// Returns the objects of a declared relation. `live` asks for the API server's answer in this round.
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal>;
    /// Returns one object by name, or `None` if it does not exist. The caller has checked that the plugin declared the kind.
    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal>;
    /// Returns true if the cluster serves a kind. The plugin need not have declared the kind.
    fn serves(&self, kind: &Kind) -> Result<bool, ReadRefusal>;
    /// Notes a `get` that the caller refused before it reached these reads. Only a record needs it.
    fn note_refused(&self, _key: &ObjectKey, _live: bool, _refusal: &ReadRefusal) {}
    /// Returns true if `object` shows the field at `pointer`, or all fields that the plugin declares if `pointer` is `None`. Only a record may lack
    /// declared fields, because another version of the plugin declared them.
    fn shows(&self, _object: &Object, _pointer: Option<&str>) -> bool {
        true
    }
}

/// The reason why a read was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRefusal {
    /// The plugin did not declare the read. The text names the read.
    NotDeclared(String),
    /// The grant of the plugin does not allow the read. The text names the read.
    NotGranted(String),
    /// The read needs a live read first, which the host has noted.
    Unavailable,
    /// The record of a visit lacks the read, so the replay ends.
    Unrecorded,
}

/// The cost of a visit, and the age of the instance that answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VisitUse {
    /// The calls of host functions and the passed objects.
    pub host_calls: u32,
    /// The memory of the instance after the visit, in bytes.
    pub memory_bytes: u64,
    /// The size of the answer, in bytes.
    pub answer_bytes: u64,
    /// The number of calls that the instance had made before the visit.
    pub position: u32,
}

/// The result of a visit.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Answer {
    /// `operate` or `release` made this proposal. The host called nothing else.
    Proposed(Proposal),
    /// `progress` made this report. Before it, `operate` may have proposed extras and events, but no mutation.
    Reported {
        /// Extras and events that `operate` proposed.
        operate: Proposal,
        /// The report of `progress`.
        report: Report,
    },
    /// A call of the plugin gave no answer.
    Failed(CallFailure),
    /// A call of the plugin trapped or exceeded a limit.
    Trapped(Trap),
}

/// The failure of a call that trapped or exceeded a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trap {
    /// Either `PluginTrapped` or `PluginLimitExceeded`.
    pub reason: &'static str,
    /// The function and the problem, in one sentence.
    pub message: String,
}
