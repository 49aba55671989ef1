//! The events that follow a record.
//!
//! Takes the memory with its decisions, before they are durable; adds to a [`Decision`] what is to be told once they are.
//! Source: docs/operationjob.md 8.

use oarlock_api::{Condition, OperationJobStatus};

use crate::cluster::writes::EventNote;
use crate::job::state::Progress;
use crate::plugin::lookup::PluginLookup;
use crate::round::context::Round;
use crate::round::decide::Decision;
use crate::round::events::EventBuilder;
use crate::round::memory::JobMemory;
use crate::round::selection::selected;

/// The message for a job that continues with another plugin because the bound one is gone.
pub(super) fn rebound(round: &Round<'_>, memory: &JobMemory) -> Option<String> {
    let bound = memory.state.plugin.as_ref().filter(|_| memory.state.end.is_none())?;
    let plugin = round.serving().filter(|plugin| plugin.digest != bound.digest)?;
    Some(format!(
        "plugin {} {} is no longer available; the job continues with {}",
        bound.name, bound.digest, plugin.digest
    ))
}

/// The events that follow the record.
pub(super) fn tell(round: &Round<'_>, memory: &JobMemory, decision: &mut Decision) {
    let events = round.events();
    for (index, decided) in &memory.decided {
        if decided.writes.is_empty() {
            decision.commit.events.extend(decided.events.iter().cloned());
        }
        let stored = memory.state.target(*index).map_or(Progress::Pending, |target| target.progress);
        if !stored.terminal() {
            decision.commit.events.extend(events.ended(memory.state.name(*index), *index, &decided.state));
        }
    }
    decision.commit.events.extend(rebound(round, memory).map(|text| events.about_job(false, "PluginRebound", text)));
    decision.commit.events.extend(about_job(round));
    let blocked = turned("LifecycleBlocked", memory, decision.commit.status.as_ref()).filter(|(is_true, _)| *is_true);
    decision.commit.events.extend(blocked.map(|(_, now)| events.about_job(true, "LifecycleBlocked", now.message)));
    decision.commit.events.extend(selected(round, memory));
    decision.commit.events.extend(paused_or_resumed(
        memory,
        decision.commit.status.as_ref(),
        events,
        round.generation(),
    ));
}

/// The event of a job that was paused, or goes on again, with the record.
fn paused_or_resumed(
    memory: &JobMemory,
    next: Option<&OperationJobStatus>,
    events: EventBuilder<'_>,
    generation: i64,
) -> Option<EventNote> {
    match turned("Paused", memory, next)? {
        (true, now) => Some(events.of_generation("Paused", now.message, generation)),
        // The end of a paused job resumes nothing.
        (false, _) if next?.end_time.is_some() => None,
        (false, now) => Some(events.of_generation("Resumed", now.message, generation)),
    }
}

/// A condition whose status changes with the record, and whether it is true from then on.
fn turned(kind: &str, memory: &JobMemory, next: Option<&OperationJobStatus>) -> Option<(bool, Condition)> {
    let of_kind = |all: &[Condition]| all.iter().find(|condition| condition.kind == kind).cloned();
    let before = of_kind(&memory.state.conditions).is_some_and(|condition| condition.status == "True");
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
