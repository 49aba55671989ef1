//! Events about a job and its targets.
//!
//! The names of events are deterministic, so that each event appears at most once, however often a round is repeated.
//! Above 250 targets, one `Progress` event for each tenth replaces the Normal events, and Warnings stop after 100. An
//! event counts as emitted once the change that it reports is durable. Source: docs/operationjob.md 8.

use crate::object::key::JobRef;
use crate::operation_job::holds;
use crate::operation_job::progress::{Counts, targets};
use crate::operation_job::round::context::{Round, Target};
use crate::operation_job::round::decided::JobSummary;
use crate::operation_job::round::memory::{Reports, StoredState};
use crate::operation_job::round::visit::PlannedVisit;
use crate::operation_job::state::{Progress, SHARD, TargetState};
use crate::plugin::manifest::TargetKind;
use crate::plugin::proposal::PluginEvent;
use crate::requests::writes::{EventNote, Write};

/// Most Warnings about targets of a job with more than 250 targets.
const WARNINGS: usize = 100;

/// Builds the events of one job.
#[derive(Clone, Copy, Debug)]
pub struct EventBuilder<'a> {
    /// The job that the events are about.
    pub job: &'a JobRef,
    /// `spec.action`.
    pub action: &'a str,
}

impl EventBuilder<'_> {
    /// Returns an event on the job about one target.
    pub fn about_target(&self, event: PluginEvent, index: u32, attempt: u32) -> EventNote {
        self.note(event, &format!("{index}/{attempt}"))
    }

    /// Returns an event on the object of a target.
    pub fn on_object(&self, event: PluginEvent, target: &Target<'_>, uid: &str, attempt: u32) -> EventNote {
        let note = self.about_target(event, target.index, attempt);
        EventNote { regarding: target.key.clone(), regarding_uid: uid.to_owned(), ..note }
    }

    /// Returns an event on the job as a whole.
    pub fn about_job(&self, warning: bool, reason: &str, message: String) -> EventNote {
        self.note(PluginEvent { warning, reason: reason.to_owned(), message }, "")
    }

    /// Returns an event on the job as a whole. Each edit of the job's spec may bring the event again.
    pub fn of_generation(&self, reason: &str, message: String, generation: i64) -> EventNote {
        let event = PluginEvent { warning: false, reason: reason.to_owned(), message };
        self.note(event, &format!("generation {generation}"))
    }

    fn note(&self, event: PluginEvent, place: &str) -> EventNote {
        let text = format!("{}/{}/{place}", self.job.uid, event.reason);
        EventNote {
            name: EventNote::name_of(&self.job.key.name, &text),
            regarding: self.job.key.object(),
            regarding_uid: self.job.uid.clone(),
            warning: event.warning,
            reason: event.reason,
            // The API server refuses an event without an action.
            action: if self.action.is_empty() { "Unknown".to_owned() } else { self.action.to_owned() },
            message: event.message,
        }
    }

    /// Returns the events of a target that comes to its end.
    pub fn ended(&self, name: &str, index: u32, target: &TargetState) -> Vec<EventNote> {
        let Some(error) = target.error.as_ref().filter(|_| target.progress == Progress::Failed) else {
            return Vec::new();
        };
        let mut told = Vec::new();
        if error.reason == "DeadlineExceeded" {
            let message = format!("{name}: {}", error.message);
            told.push(PluginEvent { warning: false, reason: "Timeout".into(), message });
        }
        if !["Skipped", "JobDeleted", "NamespaceTerminating"].contains(&error.reason.as_str()) {
            let message = format!("{name}: {}: {}", error.reason, error.message);
            told.push(PluginEvent { warning: true, reason: "TargetFailed".into(), message });
        }
        told.into_iter().map(|event| self.about_target(event, index, target.attempt)).collect()
    }

    /// Returns the events of the whole job: each tenth of a large job, and the job's end once the end is stored.
    pub fn progress(&self, before: JobSummary, after: JobSummary) -> Vec<EventNote> {
        let done = |counts: Counts| (counts.succeeded + counts.failed) * 10 / counts.total.max(1);
        let ends = after.ended && !before.ended;
        let (before, after) = (before.counts, after.counts);
        let mut told = Vec::new();
        let tenth = u32::try_from(done(after)).unwrap_or(0);
        if after.total > SHARD && done(after) > done(before) {
            let message =
                format!("{}0 %: {} succeeded, {} failed of {}", tenth, after.succeeded, after.failed, after.total);
            let event = PluginEvent { warning: false, reason: "Progress".into(), message };
            told.push(self.note(event, &format!("tenth {tenth}")));
        }
        if ends && after.progress() == Progress::Succeeded {
            told.push(self.about_job(
                false,
                "Completed",
                format!("{} of {} succeeded", after.succeeded, targets(after.total)),
            ));
        }
        if ends && after.progress() == Progress::Failed {
            told.push(self.about_job(
                true,
                "JobFailed",
                format!("{} of {} failed", after.failed, targets(after.total)),
            ));
        }
        told
    }
}

impl Target<'_> {
    /// Returns the event on a node that these writes begin to hold. A person who looks at a cordoned node sees the job
    /// that holds it.
    pub(super) fn begins_to_hold(&self, planned: &PlannedVisit, writes: &[Write]) -> Option<PluginEvent> {
        let uid = &self.round.job.uid;
        let is_new = planned.object.as_ref().is_some_and(|object| !holds::held(object, uid));
        let puts = is_new && writes.iter().any(|write| holds::is_put_by(write, &self.key, uid));
        puts.then(|| self.on_node("OperationBegan", "begins on"))?
    }

    /// Returns the event on a node that the job releases.
    pub(super) fn records_release(&self, planned: &PlannedVisit) -> Option<PluginEvent> {
        let held = planned.object.as_ref().is_some_and(|object| holds::held(object, &self.round.job.uid));
        held.then(|| self.on_node("OperationEnded", "lets go of"))?
    }

    fn on_node(&self, reason: &str, what: &str) -> Option<PluginEvent> {
        let message = format!("{} {what} this node for OperationJob {}", self.round.action(), self.round.job.key);
        let event = PluginEvent { warning: false, reason: reason.to_owned(), message };
        (self.round.kind == TargetKind::Node).then_some(event)
    }
}

impl Round<'_> {
    /// Returns the builder of events about this round's job.
    pub(super) fn events(&self) -> EventBuilder<'_> {
        EventBuilder { job: &self.job, action: self.action() }
    }
}

/// Returns the events among `notes` that were not emitted before, and marks them as emitted. All changes that they
/// report are durable.
pub fn new_events(notes: Vec<EventNote>, stored: &StoredState, reports: &mut Reports) -> Vec<EventNote> {
    let large = stored.state.uses_records();
    let mut kept = Vec::new();
    for note in notes {
        let about_job = [
            "Selected",
            "Progress",
            "Paused",
            "Resumed",
            "Completed",
            "JobFailed",
            "OpsAction",
            "InvalidSpec",
            "StatusRefused",
            "TTL",
            "PluginRebound",
        ];
        let about_target = large && !about_job.contains(&note.reason.as_str());
        if about_target && (!note.warning || reports.warnings >= WARNINGS) || !reports.note_emitted(&note.name) {
            continue;
        }
        reports.warnings = reports.warnings.saturating_add(usize::from(about_target));
        kept.push(note);
    }
    kept
}
