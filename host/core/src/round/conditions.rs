//! The conditions of a job. Messages name the next step. Source: docs/operationjob.md 2.6.

use oarlock_api::Condition;

use crate::cluster::lifecycle::Awaited;
use crate::job::conditions::{Said, say};
use crate::job::progress::{Counts, targets};
use crate::job::state::Progress;
use crate::plugin::lookup::PluginLookup;
use crate::round::context::Round;
use crate::round::held_back::{self, HeldBack};
use crate::round::memory::JobMemory;

/// The inputs of conditions: the round, the numbers of targets, and what holds the job back.
#[derive(Clone, Copy)]
struct Facts<'a> {
    round: &'a Round<'a>,
    counts: Counts,
    held_back: Option<&'a HeldBack>,
}

/// Most pods that a condition names.
const NAMED: usize = 5;

/// The conditions of a round, with the times of those that are stored.
pub(crate) fn conditions(round: &Round<'_>, memory: &JobMemory, held_back: Option<&HeldBack>) -> Vec<Condition> {
    let counts = memory.counts();
    let before = &memory.state.conditions;
    let facts = &Facts { round, counts, held_back };
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
    let said = words.into_iter().chain(lifecycle_blocked(memory));
    said.map(|said| said.stamped(round.generation(), before, round.now)).collect()
}

/// True if a condition that does not follow from the counts alone differs from the stored one.
pub fn moved(round: &Round<'_>, memory: &JobMemory) -> bool {
    let before = &memory.state.conditions;
    let facts = &Facts { round, counts: Counts::default(), held_back: None };
    // Whether it has ended is in the counts.
    let paused = paused(facts, Progress::Processing);
    let words = [action_available(facts), valid(facts), paused];
    words.iter().chain(&lifecycle_blocked(memory)).any(|said| said.is_news(before))
}

fn complete(facts: &Facts<'_>, progress: Progress) -> Said {
    let Counts { total, succeeded, .. } = facts.counts;
    match progress {
        Progress::Succeeded if facts.round.dry_run => {
            let message = format!("the plan of {} is in their extra Plan; nothing was changed", targets(total));
            say("Complete", true, "DryRunComplete", message)
        }
        Progress::Succeeded => {
            say("Complete", true, "AllTargetsSucceeded", format!("{succeeded} of {} succeeded", targets(total)))
        }
        Progress::Failed => say("Complete", false, "JobFailed", format!("{succeeded} of {} succeeded", targets(total))),
        _ => say("Complete", false, "InProgress", format!("{succeeded} of {} succeeded so far", targets(total))),
    }
}

fn failed(facts: &Facts<'_>, progress: Progress) -> Said {
    let Counts { total, failed, .. } = facts.counts;
    let message = format!(
        "{failed} of {} failed; see the errors in status.targetDetails or the OperationRecords",
        targets(total)
    );
    match progress {
        Progress::Succeeded => say("Failed", false, "JobSucceeded", "no target failed"),
        Progress::Failed if facts.round.brakes.skips => say("Failed", true, "FailFast", message),
        Progress::Failed => say("Failed", true, "TargetsFailed", message),
        _ if failed == 0 => say("Failed", false, "InProgress", "no target failed so far"),
        _ => say("Failed", false, "InProgress", message),
    }
}

fn paused(facts: &Facts<'_>, progress: Progress) -> Said {
    match held_back::paused(facts.round).filter(|_| !progress.terminal()) {
        Some(held) if facts.round.brakes.paused => say("Paused", true, "PausedBySpec", held.sentence),
        Some(held) => say("Paused", true, "FailureThreshold", held.sentence),
        None => say("Paused", false, "NotPaused", "targets may start"),
    }
}

/// Says which targets the lifecycle of their pods has kept from going on for long; absent until there was one.
fn lifecycle_blocked(memory: &JobMemory) -> Option<Said> {
    let kind = "LifecycleBlocked";
    let Some((_, first)) = memory.lifecycle.first_key_value() else {
        let stored = memory.state.conditions.iter().find(|condition| condition.kind == kind)?;
        if !memory.epoch_raised && stored.status == "True" {
            // This term has visited nobody yet.
            return Some(say(
                kind,
                true,
                Awaited::ALL.map(Awaited::reason).into_iter().find(|own| *own == stored.reason)?,
                &stored.message,
            ));
        }
        return Some(say(kind, false, "NotBlocked", "the lifecycle of no pod holds a target up"));
    };
    let named = memory.lifecycle.iter().take(NAMED);
    let named: Vec<String> =
        named.map(|(index, wait)| format!("{} ({})", memory.state.name(*index), wait.message)).collect();
    let more = if memory.lifecycle.len() > NAMED { ", ..." } else { "" };
    let (count, next) = (targets(memory.lifecycle.len()), first.awaited.next_step());
    let message = format!("{count} for more than a minute: {}{more}; {next}", named.join(", "));
    Some(say(kind, true, first.awaited.reason(), message))
}

fn action_available(facts: &Facts<'_>) -> Said {
    let kind = "ActionAvailable";
    if facts.round.object.unread.is_some() {
        return say(
            kind,
            false,
            "InvalidSpec",
            "its spec is not read, so nobody knows its action: see the condition Valid",
        );
    }
    match facts.round.plugin {
        PluginLookup::Serving(plugin) => {
            let name =
                format!("plugin {} {} serves {}", plugin.manifest.name, plugin.manifest.version, facts.round.action());
            say(kind, true, "Serving", name)
        }
        PluginLookup::NotServing { reason, message } => say(kind, false, reason, message.clone()),
        PluginLookup::Unknown { loaded } if loaded.is_empty() => {
            let message = format!(
                "no plugin for action {:?}: none is loaded; drop one into the plugin directory",
                facts.round.action()
            );
            say(kind, false, "NoPlugin", message)
        }
        PluginLookup::Unknown { loaded } => {
            let loaded = loaded.join(", ");
            let message = format!(
                "no plugin for action {:?}; loaded: {loaded}; drop one into the plugin directory",
                facts.round.action()
            );
            say(kind, false, "NoPlugin", message)
        }
    }
}

fn valid(facts: &Facts<'_>) -> Said {
    match facts.round.invalid() {
        Some(invalid) => say("Valid", false, invalid.reason, invalid.message.clone()),
        None => say("Valid", true, "Accepted", "the spec is accepted"),
    }
}

/// What has to be changed before the job goes on: its spec, its plugin or a grant.
fn stuck(facts: &Facts<'_>) -> Option<&'static str> {
    match (facts.round.spec.as_ref().err(), facts.round.plugin) {
        (Some(invalid), _) => Some(invalid.reason),
        (None, PluginLookup::NotServing { reason, .. }) => Some(reason),
        (None, PluginLookup::Unknown { .. }) => Some("NoPlugin"),
        (None, PluginLookup::Serving(_)) if facts.counts.processing > 0 => None,
        (None, PluginLookup::Serving(_)) => facts.round.unlabelled.as_ref().map(|invalid| invalid.reason),
    }
}

fn reconciling(facts: &Facts<'_>, progress: Progress) -> Said {
    if progress.terminal() {
        return say("Reconciling", false, "Ended", "the job has ended");
    }
    match (stuck(facts), facts.held_back) {
        (Some(reason), held) => say("Reconciling", false, reason, sentence(held)),
        (None, Some(_)) if facts.round.brakes.pause() => say("Reconciling", true, "Paused", sentence(facts.held_back)),
        (None, Some(_)) => say("Reconciling", true, "Waiting", sentence(facts.held_back)),
        (None, None) if facts.counts.processing == 0 => {
            say("Reconciling", true, "Working", "the next targets are about to start")
        }
        (None, None) => say("Reconciling", true, "Working", format!("{} in flight", targets(facts.counts.processing))),
    }
}

fn stalled(facts: &Facts<'_>, progress: Progress) -> Said {
    match (progress, stuck(facts)) {
        (Progress::Failed, _) => say("Stalled", true, "TargetsFailed", "the job has failed"),
        (Progress::Succeeded, _) => say("Stalled", false, "Ended", "the job has ended"),
        (_, Some(reason)) => say("Stalled", true, reason, sentence(facts.held_back)),
        (_, None) if facts.held_back.is_some() => say("Stalled", false, "Waiting", sentence(facts.held_back)),
        (_, None) => say("Stalled", false, "Working", "nothing blocks the job"),
    }
}

fn sentence(held_back: Option<&HeldBack>) -> String {
    held_back.map_or_else(|| "nothing blocks the job".to_owned(), |held| held.sentence.clone())
}
