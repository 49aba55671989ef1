//! One turn of a target: what a plugin is told and may read, and what it answered.
//!
//! `core` builds a [`Visit`], `oarlock-wasm` calls the plugin with it and yields an [`Answer`]. What the plugin reads
//! goes through [`Reads`], which answers from memory and notes the looks that are missing. May not wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::plugin::proposal::{CallFailure, Proposal, Report};

/// What a plugin is told of a job.
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
    /// When the round began, in milliseconds since 1970.
    pub now_ms: u64,
    /// The parameters, a JSON object.
    pub parameters: Value,
    /// How many targets the job has.
    pub target_count: u32,
    /// Whether someone asked for the job to stop.
    pub cancelled: bool,
}

/// What a plugin is told of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetFacts {
    /// Its name.
    pub name: String,
    /// Its position, from 0.
    pub index: u32,
    /// `Pod` or `Node`.
    pub kind: String,
    /// The object of the recorded UID; `None` where it is gone.
    pub object: Option<Arc<Object>>,
    /// The containers asked for; empty means all.
    pub containers: Vec<String>,
    /// Extras as last durably stored.
    pub extras: BTreeMap<String, String>,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The try of this call, from 1.
    pub call_try: u32,
    /// When it started, in milliseconds since 1970.
    pub started_ms: u64,
    /// When the host gives up, in milliseconds since 1970.
    pub deadline_ms: Option<u64>,
}

/// Which functions a visit calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `operate`, and `progress` where it proposes no mutation.
    OperateThenProgress,
    /// `progress` alone: at the deadline, or while nothing may be begun.
    Progress,
    /// `release`.
    Release,
}

/// One turn of a target.
#[derive(Clone)]
pub struct Visit {
    /// The job.
    pub job: Arc<JobFacts>,
    /// The target.
    pub target: TargetFacts,
    /// What is called.
    pub call: Call,
    /// What else the plugin may read.
    pub reads: Arc<dyn Reads>,
}

/// What a plugin may read beside its job and target. Gives the same answer each time within one visit.
pub trait Reads: Send + Sync {
    /// The objects of a declared relation. `live` asks for what the API server has in this round.
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal>;
    /// One object by name; `None` where there is none. Whether its kind is declared was checked by the caller.
    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal>;
    /// Whether the cluster serves a kind.
    fn serves(&self, kind: &Kind) -> bool;
}

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRefusal {
    /// The plugin did not declare it; the sentence names it.
    NotDeclared(String),
    /// A look is needed first; it has been noted.
    Unavailable,
}

/// What came of a visit.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `operate` or `release` proposed this, and nothing else was called.
    Proposed(Proposal),
    /// `operate`, where it was called, proposed no mutation but perhaps extras and events; `progress` reported this.
    Reported {
        /// What `operate` proposed beside mutations.
        operate: Proposal,
        /// What `progress` found.
        report: Report,
    },
    /// A call could not give an answer.
    Failed(CallFailure),
    /// A call trapped or exceeded a limit.
    Trapped(Trap),
}

/// How a call broke off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// `PluginTrapped` or `PluginLimitExceeded`.
    pub reason: &'static str,
    /// Which function and how, in one sentence.
    pub message: String,
}
