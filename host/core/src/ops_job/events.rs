//! Events about an OpsJob. An event follows each condition that becomes True for the first time. Source: docs/opsjob.md 9.

use oarlock_api::Condition;

use crate::object::bound::shown_cause;
use crate::ops_job::names::ops_key;
use crate::ops_job::phases::{OpsStatus, Phase};
use crate::ops_job::view::OpsJobView;
use crate::requests::writes::EventNote;

/// The most bytes of an event's message.
const MESSAGE: usize = 1_024;
/// The most targets that get an event at once.
const TARGETS: usize = 10;
/// The phases whose conditions get an event.
const TOLD: [Phase; 4] = [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed];

/// Returns the events of a status that replaced the status of `job`.
pub fn events(job: &OpsJobView, status: &OpsStatus) -> Vec<EventNote> {
    let is_new = |kind: &str| status.is(kind) && !job.status.is(kind);
    let mut notes = Vec::new();
    for phase in TOLD.into_iter().filter(|phase| is_new(phase.word())) {
        let condition = status.condition(phase.word());
        let (reason, message) = condition.map(|one| (one.reason.as_str(), one.message.as_str())).unwrap_or_default();
        notes.push(note(job, phase == Phase::Failed, reason, message));
    }
    let skipped = job.targets.as_ref().map_or(0, |resolved| resolved.skipped.len());
    if status.has_locked_targets() && !job.status.has_locked_targets() && skipped > 0 {
        let message = format!("{skipped} nodes are left out; the output `skipped` says why");
        notes.push(note(job, true, "NodesSkipped", &message));
    }
    // The name of a target's condition is in lower case. All other conditions begin with a capital.
    let is_of_target = |one: &&Condition| one.kind.starts_with(|first: char| !first.is_ascii_uppercase());
    let failed = status.conditions.iter().filter(is_of_target).filter(|one| !job.status.has(&one.kind));
    for condition in failed.take(TARGETS) {
        let message = format!("{}: {}: {}", condition.kind, condition.reason, condition.message);
        notes.push(note(job, true, "TargetFailed", &message));
    }
    notes
}

fn note(job: &OpsJobView, warning: bool, reason: &str, message: &str) -> EventNote {
    EventNote {
        name: EventNote::name_of(&job.name, &format!("{}/{reason}/{message}", job.uid)),
        regarding: ops_key(&job.name),
        regarding_uid: job.uid.clone(),
        warning,
        reason: reason.to_owned(),
        action: "Reconcile".to_owned(),
        message: shown_cause(message, MESSAGE),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::ops_job::names::RESOLVED;
    use crate::ops_job::phases::PhaseReason;
    use crate::ops_job::targets::{Resolved, SkipReason, Skipped};

    #[test]
    fn each_phase_is_told_once_and_a_failure_as_a_warning() {
        let skipped = vec![Skipped { node: "b".to_owned(), reason: SkipReason::Excluded }];
        let targets = Some(Resolved { skipped, ..Resolved::default() });
        let mut job = OpsJobView { name: "j".into(), uid: "u".into(), targets, ..OpsJobView::default() };
        let mut status = OpsStatus::default();
        let now = Timestamp::UNIX_EPOCH;
        status.enter(Phase::Pending, &PhaseReason::new("Created", ""), None, now);
        status.set_condition(RESOLVED, true, &PhaseReason::new("Resolved", ""), now);
        let told = |job: &OpsJobView, status: &OpsStatus| -> Vec<(bool, String)> {
            events(job, status).into_iter().map(|note| (note.warning, note.reason)).collect()
        };
        assert_eq!(told(&job, &status), [(false, "Created".to_owned()), (true, "NodesSkipped".to_owned())]);
        job.status = status.clone();
        status.enter(Phase::Failed, &PhaseReason::new("Stopped", "it was stopped"), Some(now), now);
        assert_eq!(told(&job, &status), [(false, "Started".to_owned()), (true, "Stopped".to_owned())]);
        job.status = status.clone();
        assert!(told(&job, &status).is_empty());
        (0..12).for_each(|number| status.set_target_condition(&format!("n{number}"), "NotReady", "m", now));
        let told = told(&job, &status);
        assert!(told.len() == TARGETS && told.iter().all(|(warning, reason)| *warning && reason == "TargetFailed"));
    }
}
