//! The conditions of a job. Messages name the next step. Source: docs/operationjob.md 2.6.

use oarlock_api::Condition;

use crate::operation_job::lifecycle::Awaited;
use crate::operation_job::progress::{self, Counts};
use crate::operation_job::round::context::Round;
use crate::operation_job::round::held_back::{self, HeldBack};
use crate::operation_job::round::memory::{Decisions, StoredState, Targets};
use crate::operation_job::state::Progress;
use crate::plugin::lookup::PluginLookup;
use crate::status::conditions::{NewCondition, new_condition};

/// The inputs of conditions: the round, the counts of targets, and the reason that holds the job back.
#[derive(Clone, Copy)]
struct ConditionInputs<'a> {
    round: &'a Round<'a>,
    counts: Counts,
    held_back: Option<&'a HeldBack>,
}

/// Most pods that a condition names.
const NAMED: usize = 5;

/// Returns the conditions of a round, with the times of the stored conditions.
pub(crate) fn conditions(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &Targets,
    held_back: Option<&HeldBack>,
) -> Vec<Condition> {
    let counts = decisions.counts();
    let before = &stored.state.conditions;
    let facts = &ConditionInputs { round, counts, held_back };
    let progress = counts.progress();
    let words = [
        complete(facts, progress),
        failed(facts, progress),
        paused(facts, progress),
        action_available(facts),
        valid(facts),
        reconciling(facts, progress),
        stalled(facts, progress),
    ];
    let said = words.into_iter().chain(lifecycle_blocked(stored, targets));
    said.map(|said| said.stamped(round.generation(), before, round.now)).collect()
}

/// Returns true if a condition differs from the stored one, apart from conditions that follow from the counts alone.
pub fn moved(round: &Round<'_>, stored: &StoredState, targets: &Targets) -> bool {
    let before = &stored.state.conditions;
    let facts = &ConditionInputs { round, counts: Counts::default(), held_back: None };
    // The counts show whether the job has ended.
    let paused = paused(facts, Progress::Processing);
    let words = [action_available(facts), valid(facts), paused];
    words.iter().chain(&lifecycle_blocked(stored, targets)).any(|said| said.differs_from(before))
}

fn complete(facts: &ConditionInputs<'_>, progress: Progress) -> NewCondition {
    let Counts { total, succeeded, .. } = facts.counts;
    match progress {
        Progress::Succeeded if facts.round.dry_run => {
            let message =
                format!("the plan of {} is in their extra Plan; nothing was changed", progress::targets(total));
            new_condition("Complete", true, "DryRunComplete", message)
        }
        Progress::Succeeded => new_condition(
            "Complete",
            true,
            "AllTargetsSucceeded",
            format!("{succeeded} of {} succeeded", progress::targets(total)),
        ),
        Progress::Failed => new_condition(
            "Complete",
            false,
            "JobFailed",
            format!("{succeeded} of {} succeeded", progress::targets(total)),
        ),
        _ => new_condition(
            "Complete",
            false,
            "InProgress",
            format!("{succeeded} of {} succeeded so far", progress::targets(total)),
        ),
    }
}

fn failed(facts: &ConditionInputs<'_>, progress: Progress) -> NewCondition {
    let Counts { total, failed, .. } = facts.counts;
    let message = format!(
        "{failed} of {} failed; see the errors in status.targetDetails or the OperationRecords",
        progress::targets(total)
    );
    match progress {
        Progress::Succeeded => new_condition("Failed", false, "JobSucceeded", "no target failed"),
        Progress::Failed if facts.round.pause_state.skips => new_condition("Failed", true, "FailFast", message),
        Progress::Failed => new_condition("Failed", true, "TargetsFailed", message),
        _ if failed == 0 => new_condition("Failed", false, "InProgress", "no target failed so far"),
        _ => new_condition("Failed", false, "InProgress", message),
    }
}

fn paused(facts: &ConditionInputs<'_>, progress: Progress) -> NewCondition {
    match held_back::paused(facts.round).filter(|_| !progress.terminal()) {
        Some(held) if facts.round.pause_state.paused => new_condition("Paused", true, "PausedBySpec", held.sentence),
        Some(held) => new_condition("Paused", true, "FailureThreshold", held.sentence),
        None => new_condition("Paused", false, "NotPaused", "targets may start"),
    }
}

/// Returns the condition that names the targets which the lifecycle of their pods has held back for long. `None` until
/// there was such a target.
fn lifecycle_blocked(stored: &StoredState, targets: &Targets) -> Option<NewCondition> {
    let kind = "LifecycleBlocked";
    let Some((_, first)) = targets.lifecycle.first_key_value() else {
        let before = stored.state.conditions.iter().find(|condition| condition.kind == kind)?;
        if !stored.epoch_raised && before.status == "True" {
            // This term has not visited a target yet.
            return Some(new_condition(
                kind,
                true,
                Awaited::ALL.map(Awaited::reason).into_iter().find(|own| *own == before.reason)?,
                &before.message,
            ));
        }
        return Some(new_condition(kind, false, "NotBlocked", "the lifecycle of no pod holds a target up"));
    };
    let named = targets.lifecycle.iter().take(NAMED);
    let named: Vec<String> =
        named.map(|(index, wait)| format!("{} ({})", stored.state.name(*index), wait.message)).collect();
    let more = if targets.lifecycle.len() > NAMED { ", ..." } else { "" };
    let (count, next) = (progress::targets(targets.lifecycle.len()), first.awaited.next_step());
    let message = format!("{count} for more than a minute: {}{more}; {next}", named.join(", "));
    Some(new_condition(kind, true, first.awaited.reason(), message))
}

fn action_available(facts: &ConditionInputs<'_>) -> NewCondition {
    let kind = "ActionAvailable";
    if facts.round.object.unread.is_some() {
        return new_condition(
            kind,
            false,
            "InvalidSpec",
            "the host cannot read the spec, so the action is unknown: see the condition Valid",
        );
    }
    match facts.round.plugin {
        PluginLookup::Serving(plugin) => {
            let name =
                format!("plugin {} {} serves {}", plugin.manifest.name, plugin.manifest.version, facts.round.action());
            new_condition(kind, true, "Serving", name)
        }
        PluginLookup::NotServing { reason, message } => new_condition(kind, false, reason, message.clone()),
        PluginLookup::Unknown { loaded } if loaded.is_empty() => {
            let message = format!(
                "no plugin for action {:?}: none is loaded; drop one into the plugin directory",
                facts.round.action()
            );
            new_condition(kind, false, "NoPlugin", message)
        }
        PluginLookup::Unknown { loaded } => {
            let loaded = loaded.join(", ");
            let message = format!(
                "no plugin for action {:?}; loaded: {loaded}; drop one into the plugin directory",
                facts.round.action()
            );
            new_condition(kind, false, "NoPlugin", message)
        }
    }
}

fn valid(facts: &ConditionInputs<'_>) -> NewCondition {
    match facts.round.invalid() {
        Some(invalid) => new_condition("Valid", false, invalid.reason, invalid.message.clone()),
        None => new_condition("Valid", true, "Accepted", "the spec is accepted"),
    }
}

/// Returns the reason why the job cannot continue before a user changes its spec, its plugin or a grant.
fn stuck(facts: &ConditionInputs<'_>) -> Option<&'static str> {
    match (facts.round.spec.as_ref().err(), facts.round.plugin) {
        (Some(invalid), _) => Some(invalid.reason),
        (None, PluginLookup::NotServing { reason, .. }) => Some(reason),
        (None, PluginLookup::Unknown { .. }) => Some("NoPlugin"),
        (None, PluginLookup::Serving(_)) if facts.counts.processing > 0 => None,
        (None, PluginLookup::Serving(_)) => facts.round.unlabelled.as_ref().map(|invalid| invalid.reason),
    }
}

fn reconciling(facts: &ConditionInputs<'_>, progress: Progress) -> NewCondition {
    if progress.terminal() {
        return new_condition("Reconciling", false, "Ended", "the job has ended");
    }
    match (stuck(facts), facts.held_back) {
        (Some(reason), held) => new_condition("Reconciling", false, reason, sentence(held)),
        (None, Some(_)) if facts.round.pause_state.pause() => {
            new_condition("Reconciling", true, "Paused", sentence(facts.held_back))
        }
        (None, Some(_)) => new_condition("Reconciling", true, "Waiting", sentence(facts.held_back)),
        (None, None) if facts.counts.processing == 0 => {
            new_condition("Reconciling", true, "Working", "the next targets are about to start")
        }
        (None, None) => new_condition(
            "Reconciling",
            true,
            "Working",
            format!("{} in flight", progress::targets(facts.counts.processing)),
        ),
    }
}

fn stalled(facts: &ConditionInputs<'_>, progress: Progress) -> NewCondition {
    match (progress, stuck(facts)) {
        (Progress::Failed, _) => new_condition("Stalled", true, "TargetsFailed", "the job has failed"),
        (Progress::Succeeded, _) => new_condition("Stalled", false, "Ended", "the job has ended"),
        (_, Some(reason)) => new_condition("Stalled", true, reason, sentence(facts.held_back)),
        (_, None) if facts.held_back.is_some() => new_condition("Stalled", false, "Waiting", sentence(facts.held_back)),
        (_, None) => new_condition("Stalled", false, "Working", "nothing blocks the job"),
    }
}

fn sentence(held_back: Option<&HeldBack>) -> String {
    held_back.map_or_else(|| "nothing blocks the job".to_owned(), |held| held.sentence.clone())
}
