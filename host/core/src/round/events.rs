//! Events about a job and its targets.
//!
//! Takes durable transitions; yields notes with deterministic names, so that each appears at most once however often a
//! round is repeated. Above 250 targets one `Progress` event for each tenth replaces the Normal ones, and Warnings stop
//! after 100. Source: spec/operationjob.md §8.

use sha2::{Digest, Sha256};

use crate::cluster::object::{Kind, ObjectKey};
use crate::cluster::writes::{EventNote, JobKey};
use crate::job::state::{Progress, SHARD, TargetState};
use crate::plugin::proposal::PluginEvent;
use crate::round::memory::{Counts, JobMemory};

/// Most Warnings about targets of a job with more than 250.
const WARNINGS: usize = 100;

/// Whom events are about.
pub struct Teller<'a> {
    /// The job.
    pub key: &'a JobKey,
    /// Its UID.
    pub uid: &'a str,
    /// `spec.action`.
    pub action: &'a str,
}

impl Teller<'_> {
    /// An event on the job. `index` and `attempt` make it one of its own; `u32::MAX` where it is about no target.
    pub fn note(&self, event: PluginEvent, index: u32, attempt: u32) -> EventNote {
        let text = format!("{}/{}/{index}/{attempt}", self.uid, event.reason);
        let hash: String = Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let name: String = self.key.name.chars().take(200).collect();
        EventNote {
            name: format!("{name}.{hash}"),
            regarding: ObjectKey {
                kind: Kind::new(oarlock_api::OPERATION_JOB_API_VERSION, "OperationJob"),
                namespace: Some(self.key.namespace.clone()),
                name: self.key.name.clone(),
            },
            regarding_uid: self.uid.to_owned(),
            warning: event.warning,
            reason: event.reason,
            // The API server takes no event without an action.
            action: if self.action.is_empty() { "Unknown".to_owned() } else { self.action.to_owned() },
            message: event.message,
        }
    }

    /// An event on the job as a whole.
    pub fn job(&self, warning: bool, reason: &str, message: String) -> EventNote {
        self.note(PluginEvent { warning, reason: reason.to_owned(), message }, u32::MAX, 0)
    }

    /// What is told of a target that comes to its end.
    pub fn ended(&self, name: &str, index: u32, target: &TargetState) -> Vec<EventNote> {
        let Some(error) = target.error.as_ref().filter(|_| target.progress == Progress::Failed) else {
            return Vec::new();
        };
        let mut told = Vec::new();
        if error.reason == "DeadlineExceeded" {
            let message = format!("{name}: {}", error.message);
            told.push(PluginEvent { warning: false, reason: "Timeout".into(), message });
        }
        if error.reason != "Skipped" && error.reason != "JobDeleted" {
            let message = format!("{name}: {}: {}", error.reason, error.message);
            told.push(PluginEvent { warning: true, reason: "TargetFailed".into(), message });
        }
        told.into_iter().map(|event| self.note(event, index, target.attempt)).collect()
    }

    /// What is told of the whole job: each tenth of a large one, and its end.
    pub fn progress(&self, before: Counts, after: Counts) -> Vec<EventNote> {
        let done = |counts: Counts| (counts.succeeded + counts.failed) * 10 / counts.total.max(1);
        let mut told = Vec::new();
        let tenth = u32::try_from(done(after)).unwrap_or(0);
        if after.total > SHARD && done(after) > done(before) {
            let message =
                format!("{}0 %: {} succeeded, {} failed of {}", tenth, after.succeeded, after.failed, after.total);
            let event = PluginEvent { warning: false, reason: "Progress".into(), message };
            told.push(self.note(event, u32::MAX, tenth));
        }
        if !before.progress().terminal() && after.progress() == Progress::Succeeded {
            told.push(self.job(false, "Completed", format!("all {} targets succeeded", after.total)));
        }
        if !before.progress().terminal() && after.progress() == Progress::Failed {
            told.push(self.job(true, "JobFailed", format!("{} of {} targets failed", after.failed, after.total)));
        }
        told
    }
}

/// Of `notes`, those that are still to be told.
pub fn untold(notes: Vec<EventNote>, memory: &mut JobMemory) -> Vec<EventNote> {
    let large = memory.state.sharded();
    let mut kept = Vec::new();
    for note in notes {
        let about_job = ["Progress", "Completed", "JobFailed", "OpsAction", "InvalidSpec", "TTL", "PluginRebound"];
        if large && !about_job.contains(&note.reason.as_str()) {
            if !note.warning || memory.warnings >= WARNINGS {
                continue;
            }
            memory.warnings += 1;
        }
        if memory.told.insert(note.name.clone()) {
            kept.push(note);
        }
    }
    kept
}
