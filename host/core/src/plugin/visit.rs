//! One visit: its input, its reads and its answer.
//!
//! `core` builds a [`Visit`], and `oarlock-wasm` calls the plugin with it and returns an [`Answer`]. The plugin reads
//! through [`Reads`], which answers from memory without waiting and notes the live reads that are missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::plugin::proposal::{CallFailure, Proposal, Report};

/// The job as the plugin sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The action asked for.
    pub action: String,
    /// Time at which the round began, in milliseconds since 1970.
    pub now_ms: u64,
    /// The parameters, a JSON object.
    pub parameters: Value,
    /// The number of the job's targets.
    pub target_count: u32,
    /// True if the job was asked to stop.
    pub cancelled: bool,
}

/// The target as the plugin sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetFacts {
    /// Its name.
    pub name: String,
    /// Its position, from 0.
    pub index: u32,
    /// `Pod` or `Node`.
    pub kind: String,
    /// The recorded UID.
    pub uid: Option<String>,
    /// The object of the recorded UID; `None` if it is gone.
    pub object: Option<Arc<Object>>,
    /// The containers asked for; empty means all.
    pub containers: Vec<String>,
    /// Extras as last durably stored.
    pub extras: BTreeMap<String, String>,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The try of this call, from 1.
    pub call_try: u32,
    /// Time of its start, in milliseconds since 1970.
    pub started_ms: u64,
    /// The deadline, in milliseconds since 1970.
    pub deadline_ms: Option<u64>,
    /// The tasks that were seen to begin, by name.
    pub tasks: BTreeMap<String, TaskStatus>,
}

/// How far a task is, as the plugin sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    /// `Waiting`, `Running`, `Succeeded` or `Failed`.
    pub state: &'static str,
    /// The exit code, where it has ended by itself.
    pub exit_code: Option<i32>,
    /// The end of its output.
    pub output: String,
    /// Why it waits or failed.
    pub message: String,
}

/// The functions that a visit calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `operate`, and `progress` if it proposes no mutation.
    OperateThenProgress,
    /// `progress` alone: at the deadline, or while nothing may be begun.
    Progress,
    /// `release`.
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

/// Reads of a plugin beside its job and target. Each gives the same answer throughout one visit.
pub trait Reads: Send + Sync {
    /// The objects of a declared relation. `live` asks for the API server's answer in this round.
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal>;
    /// One object by name; `None` if there is none. The caller has checked that its kind is declared.
    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal>;
    /// True if the cluster serves a kind; it need not be declared.
    fn serves(&self, kind: &Kind) -> Result<bool, ReadRefusal>;
}

/// The reason why a read was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRefusal {
    /// The plugin did not declare it; the sentence names it.
    NotDeclared(String),
    /// A live read is needed first; it has been noted.
    Unavailable,
}

/// The result of a visit.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `operate` or `release` proposed this, and nothing else was called.
    Proposed(Proposal),
    /// `operate`, if it was called, proposed no mutation but perhaps extras and events; `progress` reported this.
    Reported {
        /// Extras and events that `operate` proposed.
        operate: Proposal,
        /// The report of `progress`.
        report: Report,
    },
    /// A call gave no answer.
    Failed(CallFailure),
    /// A call trapped or exceeded a limit.
    Trapped(Trap),
}

/// The failure of a call that trapped or exceeded a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// `PluginTrapped` or `PluginLimitExceeded`.
    pub reason: &'static str,
    /// The function and the problem, in one sentence.
    pub message: String,
}
