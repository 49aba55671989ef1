//! The events that follow a record.
//!
//! Takes the stored state and the decisions, before they are durable; adds to a [`Decision`] the events to emit once
//! they are. Source: docs/operationjob.md 8.

use oarlock_api::{Condition, OperationJobStatus};

use crate::operation_job::round::context::Round;
use crate::operation_job::round::decide::Decision;
use crate::operation_job::round::events::EventBuilder;
use crate::operation_job::round::memory::{Decisions, StoredState};
use crate::operation_job::round::selection::selected;
use crate::operation_job::state::Progress;
use crate::plugin::lookup::PluginLookup;
use crate::requests::writes::EventNote;

/// Returns the message for a job that continues with another plugin because the bound plugin is gone.
pub(super) fn rebound(round: &Round<'_>, stored: &StoredState) -> Option<String> {
    let bound = stored.state.plugin.as_ref().filter(|_| stored.state.end.is_none())?;
    let plugin = round.serving().filter(|plugin| plugin.digest != bound.digest)?;
    Some(format!(
        "plugin {} {} is no longer available; the job continues with {}",
        bound.name, bound.digest, plugin.digest
    ))
}

/// Adds the events that follow the record.
pub(super) fn job_events(round: &Round<'_>, stored: &StoredState, decisions: &Decisions, decision: &mut Decision) {
    let events = round.events();
    for (index, decided) in &decisions.decided {
        if decided.writes.is_empty() {
            decision.commit.events.extend(decided.events.iter().cloned());
        }
        let before = stored.state.target(*index).map_or(Progress::Pending, |target| target.progress);
        if !before.terminal() {
            decision.commit.events.extend(events.ended(stored.state.name(*index), *index, &decided.state));
        }
    }
    decision.commit.events.extend(rebound(round, stored).map(|text| events.about_job(false, "PluginRebound", text)));
    decision.commit.events.extend(about_job(round));
    let blocked =
        changed_condition("LifecycleBlocked", stored, decision.commit.status.as_ref()).filter(|(is_true, _)| *is_true);
    decision.commit.events.extend(blocked.map(|(_, now)| events.about_job(true, "LifecycleBlocked", now.message)));
    decision.commit.events.extend(selected(round, stored, &decisions.selecting));
    decision.commit.events.extend(paused_or_resumed(
        stored,
        decision.commit.status.as_ref(),
        events,
        round.generation(),
    ));
}

/// Returns the event of a job that the record pauses or resumes.
fn paused_or_resumed(
    stored: &StoredState,
    next: Option<&OperationJobStatus>,
    events: EventBuilder<'_>,
    generation: i64,
) -> Option<EventNote> {
    match changed_condition("Paused", stored, next)? {
        (true, now) => Some(events.of_generation("Paused", now.message, generation)),
        // The end of a paused job resumes nothing.
        (false, _) if next?.end_time.is_some() => None,
        (false, now) => Some(events.of_generation("Resumed", now.message, generation)),
    }
}

/// Returns the condition of this kind if its status changes with the record, and whether it is true from then on.
fn changed_condition(kind: &str, stored: &StoredState, next: Option<&OperationJobStatus>) -> Option<(bool, Condition)> {
    let of_kind = |all: &[Condition]| all.iter().find(|condition| condition.kind == kind).cloned();
    let before = of_kind(&stored.state.conditions).is_some_and(|condition| condition.status == "True");
    let now = of_kind(next?.conditions.as_deref()?)?;
    let is_true = now.status == "True";
    (before != is_true).then_some((is_true, now))
}

fn about_job(round: &Round<'_>) -> Option<EventNote> {
    let events = round.events();
    if let Some(invalid) = round.invalid() {
        let message = format!("{}: {}", invalid.reason, invalid.message);
        return Some(events.about_job(true, "InvalidSpec", message));
    }
    match round.plugin {
        PluginLookup::Serving(_) => None,
        PluginLookup::NotServing { message, .. } => Some(events.about_job(true, "OpsAction", message.clone())),
        PluginLookup::Unknown { loaded } => {
            let message = format!("no plugin for action {:?}; loaded: {}", round.action(), loaded.join(", "));
            Some(events.about_job(true, "OpsAction", message))
        }
    }
}
