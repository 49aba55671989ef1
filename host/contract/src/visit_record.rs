//! The record of one visit: its inputs and outputs, as one line of JSON in the format [`FORMAT`].
//!
//! A record has everything that a plugin's answer depends on, so a plugin can decide again without a cluster. It never has the contents of
//! Secrets and of objects like them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::limits::PluginLimits;
use crate::names::shown;
use crate::object_key::{Kind, ObjectKey};
use crate::proposal::{CallFailure, Mutation, Proposal, Relation, Report};

/// The format of a record. Each record names it.
pub const FORMAT: &str = "oarlock.dev/visit.v1";
/// The version of the contract whose answers this host records and replays.
pub const CONTRACT: &str = "oarlock:action@1.0.0";
/// The bytes of the longest record. The host drops a longer record and counts it.
pub const MAX_RECORD_BYTES: usize = 256 * 1024;
/// The most different reads of a record. The host drops a record with more reads and counts it.
pub const MAX_READS: usize = 256;

/// The reason why a text is not a record that this host replays.
#[derive(Debug, Error)]
pub enum VisitRecordError {
    /// The text is longer than [`MAX_RECORD_BYTES`].
    #[error("the record is longer than {} KiB, and no host writes such a record", MAX_RECORD_BYTES / 1024)]
    TooLong,
    /// The text ends in the middle of the record.
    #[error("the record is truncated after {bytes} bytes; take it from the host again with `oarlock plugin record`")]
    Truncated {
        /// The length of the text.
        bytes: usize,
    },
    /// The text is not JSON, or has no `format`.
    #[error("the text is not a record of a visit: {why}; take records from `oarlock plugin record`")]
    NotARecord {
        /// The problem and its place.
        why: String,
    },
    /// The record has another format.
    #[error(
        "the record has the format {format:?}, and this oarlock reads {FORMAT}; replay it with the version that recorded it"
    )]
    OtherFormat {
        /// The format of the record.
        format: String,
    },
    /// The record is about another version of the contract.
    #[error(
        "the record is of the contract {contract:?}, and this oarlock replays {CONTRACT}; replay it with the version that recorded it"
    )]
    OtherContract {
        /// The contract of the record.
        contract: String,
    },
    /// A field is missing, unknown or wrong.
    #[error("the record is invalid: {why}; if a later oarlock recorded it, replay it with that version")]
    Invalid {
        /// The problem and its place.
        why: String,
    },
}

/// One visit, with its inputs and its outputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VisitRecord {
    /// Always [`FORMAT`].
    pub format: String,
    /// The version of the contract, [`CONTRACT`].
    pub contract: String,
    /// The plugin that was called.
    pub plugin: RecordedPlugin,
    /// The job.
    pub job: VisitJob,
    /// The target.
    pub target: RecordedTarget,
    /// The functions of the visit.
    pub calls: RecordedCalls,
    /// The number of calls that the instance had made before. It is 0 for a fresh instance.
    pub position: u32,
    /// The reads, in the order in which the plugin made them first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<RecordedRead>,
    /// The objects of the target and of the reads, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<RecordedObject>,
    /// The fields of each kind that the objects show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<RecordedFields>,
    /// The answer of the plugin.
    pub answer: RecordedAnswer,
    /// The costs of the visit.
    pub cost: VisitCost,
    /// The host's decision on the answer.
    pub verdict: RecordedVerdict,
    /// The number of the recorded round in the host's process. All visits of one round have the same number.
    pub round: u64,
}

/// The plugin of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedPlugin {
    /// The name of the plugin.
    pub name: String,
    /// The version of the plugin.
    pub version: String,
    /// The digest of the component, `sha256:...`.
    pub digest: String,
    /// The limits of a call.
    pub limits: PluginLimits,
    /// The digest of the operator's settings, `sha256:...`. A record never has the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
    /// The relations that `setup` declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relations: Vec<Relation>,
}

/// The job of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VisitJob {
    /// The namespace of the job.
    pub namespace: String,
    /// The name of the job.
    pub name: String,
    /// The UID of the job.
    pub uid: String,
    /// The action that the job asks for.
    pub action: String,
    /// The time of the round, in milliseconds since 1970.
    pub now_ms: u64,
    /// The parameters.
    pub parameters: Value,
    /// The number of targets.
    pub target_count: u32,
    /// True if the user cancelled the job.
    pub cancelled: bool,
}

/// The target of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedTarget {
    /// The name of the target.
    pub name: String,
    /// The index of the target, from 0.
    pub index: u32,
    /// `Pod` or `Node`.
    pub kind: String,
    /// The recorded UID of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The index of the target's object among the objects of the record. `None` if the object is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<usize>,
    /// The containers that the job asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
    /// The extras.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extras: BTreeMap<String, String>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The number of this try of the call, from 1.
    pub call_try: u32,
    /// The time when the target started, in milliseconds since 1970.
    pub started_ms: u64,
    /// The deadline of the target, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The tasks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, RecordedTask>,
}

/// The status of a task in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedTask {
    /// The state of the task.
    pub state: TaskState,
    /// The exit code of the task, if it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The end of the task's output.
    pub output: String,
    /// Why the task waits or failed.
    pub message: String,
}

/// The states of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// The task has not begun.
    Waiting,
    /// The task runs.
    Running,
    /// The task succeeded.
    Succeeded,
    /// The task failed.
    Failed,
}

impl TaskState {
    /// Returns the state with this word of the contract. An unknown word is `Waiting`.
    pub fn of(word: &str) -> Self {
        let all = [Self::Running, Self::Succeeded, Self::Failed];
        all.into_iter().find(|state| state.word() == word).unwrap_or(Self::Waiting)
    }

    /// Returns the word of the contract.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// The functions that a visit calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordedCalls {
    /// `operate`, and then `progress` if `operate` proposed no mutation.
    OperateThenProgress,
    /// Only `progress`.
    Progress,
    /// Only `release`.
    Release,
}

/// A read of a plugin, with the answer of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedRead {
    /// The read.
    pub read: PluginRead,
    /// The answer.
    pub answer: ReadAnswer,
}

/// A read of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum PluginRead {
    /// The objects of a relation.
    Related {
        /// The name of the relation.
        name: String,
        /// True for the API server's answer.
        live: bool,
    },
    /// One object by name.
    Get {
        /// The object.
        object: ObjectKey,
        /// True for the API server's answer.
        live: bool,
    },
    /// The question whether the cluster serves a kind.
    Serves {
        /// The kind.
        kind: Kind,
    },
}

impl std::fmt::Display for PluginRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let freshness = |live: &bool| if *live { "live" } else { "watched" };
        match self {
            Self::Related { name, live } => write!(f, "related({:?}, {})", shown(name), freshness(live)),
            Self::Get { object, live } => {
                let Kind { api_version, .. } = &object.kind;
                write!(f, "get({} {}, {})", shown(api_version), shown(&object.to_string()), freshness(live))
            }
            Self::Serves { kind } => write!(f, "serves({} {})", shown(&kind.api_version), shown(&kind.kind)),
        }
    }
}

/// The host's answer to a read. Objects are indexes into the objects of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReadAnswer {
    /// The objects of a relation, in the order in which the plugin saw them.
    Objects(Vec<usize>),
    /// One object, or `None` if it does not exist.
    Object(Option<usize>),
    /// True if the cluster serves the kind.
    Served(bool),
    /// The plugin did not declare the read. The text is the message of the refusal.
    NotDeclared(String),
    /// The grant of the plugin did not allow the read. The text is the message of the refusal.
    NotGranted(String),
    /// The host had to ask the API server first.
    Unavailable,
}

/// An object of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordedObject {
    /// The document with its kind, metadata and the fields that the plugin declared.
    Shown(Value),
    /// The key of an object whose contents no record has, see [`is_secret`].
    Withheld(ObjectKey),
}

/// The fields of one kind that the objects of a record show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedFields {
    /// The kind.
    pub kind: Kind,
    /// The fields that the plugin's manifest declared, as JSON Pointers, possibly with a `*` at the end.
    pub pointers: BTreeSet<String>,
}

/// The answer of a plugin to a visit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum RecordedAnswer {
    /// `operate` or `release` made this proposal.
    Proposed(Proposal),
    /// `progress` made this report, after `operate` proposed extras and events.
    Reported {
        /// The proposal of `operate`.
        operate: Proposal,
        /// The report of `progress`.
        report: Report,
    },
    /// A function failed.
    Failed(CallFailure),
    /// A function trapped or exceeded a limit.
    Trapped {
        /// `PluginTrapped` or `PluginLimitExceeded`.
        reason: String,
        /// The function and the problem, in one sentence.
        message: String,
    },
}

/// The costs of a visit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VisitCost {
    /// The calls of host functions and the passed objects.
    pub host_calls: u32,
    /// The time of the visit on the wall clock.
    pub microseconds: u64,
    /// The memory of the instance after the visit.
    pub memory_bytes: u64,
}

/// The host's decision on an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordedVerdict {
    /// The host took the answer.
    Taken,
    /// The host refused the proposal, with this sentence.
    Denied(String),
    /// The host reads objects live first, and then repeats the visit.
    Deferred,
    /// The answer was a failure, a trap or an exceeded limit.
    Failed,
}

/// The fields that a reader needs first.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    contract: String,
}

impl VisitRecord {
    /// Reads one record.
    ///
    /// # Errors
    ///
    /// If the text is not a record of this format and contract, with the fix.
    pub fn parse(text: &str) -> Result<Self, VisitRecordError> {
        let text = text.trim();
        if text.len() > MAX_RECORD_BYTES {
            return Err(VisitRecordError::TooLong);
        }
        let head: Head = serde_json::from_str(text).map_err(|error| match error.is_eof() {
            true => VisitRecordError::Truncated { bytes: text.len() },
            false => VisitRecordError::NotARecord { why: shown(&error.to_string()) },
        })?;
        if head.format.is_empty() {
            return Err(VisitRecordError::NotARecord { why: "it has no `format`".to_owned() });
        }
        if head.format != FORMAT {
            return Err(VisitRecordError::OtherFormat { format: shown(&head.format) });
        }
        if head.contract != CONTRACT {
            return Err(VisitRecordError::OtherContract { contract: shown(&head.contract) });
        }
        let invalid = |why: String| VisitRecordError::Invalid { why: shown(&why) };
        let record: Self = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        record.check().map_err(invalid)?;
        Ok(record)
    }

    /// Returns the record as one line of JSON, without the line break. Returns `None` if the line would be longer than
    /// [`MAX_RECORD_BYTES`].
    pub fn line(&self) -> Option<String> {
        // A record has only keys of text, so it can be written.
        serde_json::to_string(self).ok().filter(|line| line.len() <= MAX_RECORD_BYTES)
    }

    /// Returns the document of an object. Returns `None` for an index beyond the objects, or for an object that is withheld.
    pub fn document(&self, index: usize) -> Option<&Value> {
        match self.objects.get(index)? {
            RecordedObject::Shown(document) => Some(document),
            RecordedObject::Withheld(_) => None,
        }
    }

    /// Returns true if the recorded answer is an exceeded limit on time.
    pub fn is_timeout(&self) -> bool {
        let timed =
            |message: &str| message.contains("it ran longer than") || message.contains("it did not return within");
        matches!(&self.answer, RecordedAnswer::Trapped { message, .. } if timed(message))
    }

    /// Returns the job and the target as a short text, safe to show.
    pub fn subject(&self) -> String {
        let VisitJob { namespace, name, .. } = &self.job;
        shown(&format!("{namespace}/{name} {} (round {})", self.target.name, self.round))
    }

    fn check(&self) -> Result<(), String> {
        let in_reads = self.reads.iter().flat_map(|read| match &read.answer {
            ReadAnswer::Objects(indexes) => indexes.clone(),
            ReadAnswer::Object(index) => index.iter().copied().collect(),
            _ => Vec::new(),
        });
        let mut indexes = in_reads.chain(self.target.object);
        if let Some(index) = indexes.find(|index| *index >= self.objects.len()) {
            return Err(format!("it names the object {index}, and has only {}", self.objects.len()));
        }
        match self.objects.iter().position(|object| matches!(object, RecordedObject::Shown(own) if !is_object(own))) {
            Some(index) => Err(format!("the object {index} lacks a kind, a name or a UID")),
            None => Ok(()),
        }
    }
}

fn is_object(document: &Value) -> bool {
    ["/apiVersion", "/kind", "/metadata/name", "/metadata/uid"]
        .iter()
        .all(|pointer| document.pointer(pointer).is_some_and(Value::is_string))
}

/// Returns true for kinds whose contents no record may have: Secrets, and kinds of any group that are named after secrets, tokens,
/// credentials or passwords.
pub fn is_secret(kind: &Kind) -> bool {
    let name = kind.kind.to_ascii_lowercase();
    ["secret", "token", "credential", "password"].iter().any(|word| name.contains(word))
}

/// Removes the contents of Secrets from the mutations of a proposal. The names of the objects stay.
pub fn withhold(proposal: &mut Proposal) {
    for mutation in &mut proposal.mutations {
        match mutation {
            Mutation::Create(document) => {
                let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                if is_secret(&Kind::new(text("/apiVersion"), text("/kind"))) {
                    *document = named(document);
                }
            }
            Mutation::Patch { object, patch, .. } if is_secret(&object.key.kind) => *patch = json!({"withheld": true}),
            _ => {}
        }
    }
}

/// Returns the kind and the name of a document, and nothing else of it.
fn named(document: &Value) -> Value {
    let metadata = ["namespace", "name", "generateName"].into_iter();
    let metadata = metadata.filter_map(|field| Some((field.to_owned(), document.get("metadata")?.get(field)?.clone())));
    json!({"apiVersion": document.get("apiVersion"), "kind": document.get("kind"),
        "metadata": metadata.collect::<Map<String, Value>>(), "withheld": true})
}

#[cfg(test)]
#[path = "visit_record_tests.rs"]
mod tests;
