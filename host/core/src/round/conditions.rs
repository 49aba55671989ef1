//! The conditions of a job. Messages name the next step. Source: docs/operationjob.md 2.6.

use oarlock_api::Condition;

use crate::job::progress::Counts;
use crate::job::state::Progress;
use crate::job::time::write_time;
use crate::plugin::lookup::PluginLookup;
use crate::round::context::Round;

/// The inputs of conditions: the round, and the numbers of targets.
#[derive(Clone, Copy)]
struct Facts<'a> {
    round: &'a Round<'a>,
    counts: Counts,
}

struct Word {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

/// The conditions of a round, with times from `before`.
pub fn conditions(round: &Round<'_>, counts: Counts, before: &[Condition]) -> Vec<Condition> {
    let facts = &Facts { round, counts };
    let progress = counts.progress();
    let words = [
        complete(facts, progress),
        failed(facts, progress),
        paused(),
        action_available(facts),
        valid(facts),
        reconciling(facts, progress),
        stalled(facts, progress),
    ];
    words.into_iter().map(|word| timed(word, facts, before)).collect()
}

/// True if a condition that does not follow from the counts alone differs from the stored one.
pub fn moved(round: &Round<'_>, before: &[Condition]) -> bool {
    let facts = &Facts { round, counts: Counts::default() };
    [action_available(facts), valid(facts)].iter().any(|now| {
        let old = before.iter().find(|old| old.kind == now.kind);
        old.is_none_or(|old| (old.reason.as_str(), &old.message) != (now.reason, &now.message))
    })
}

fn timed(word: Word, facts: &Facts<'_>, before: &[Condition]) -> Condition {
    let status = if word.status { "True" } else { "False" };
    let old = before.iter().find(|condition| condition.kind == word.kind);
    let since = old.filter(|old| old.status == status && !old.last_transition_time.is_empty());
    Condition {
        kind: word.kind.to_owned(),
        status: status.to_owned(),
        observed_generation: Some(facts.round.generation()),
        last_transition_time: since.map_or_else(|| write_time(facts.round.now), |old| old.last_transition_time.clone()),
        reason: word.reason.to_owned(),
        message: word.message,
    }
}

fn word(kind: &'static str, status: bool, reason: &'static str, message: impl Into<String>) -> Word {
    Word { kind, status, reason, message: message.into() }
}

fn complete(facts: &Facts<'_>, progress: Progress) -> Word {
    let Counts { total, succeeded, .. } = facts.counts;
    match progress {
        Progress::Succeeded => word("Complete", true, "AllTargetsSucceeded", format!("all {total} targets succeeded")),
        Progress::Failed => word("Complete", false, "JobFailed", format!("{succeeded} of {total} targets succeeded")),
        _ => word("Complete", false, "InProgress", format!("{succeeded} of {total} targets succeeded so far")),
    }
}

fn failed(facts: &Facts<'_>, progress: Progress) -> Word {
    let Counts { total, failed, .. } = facts.counts;
    let message =
        format!("{failed} of {total} targets failed; see their errors in status.targetDetails or the OperationRecords");
    match progress {
        Progress::Succeeded => word("Failed", false, "JobSucceeded", "no target failed"),
        Progress::Failed => word("Failed", true, "TargetsFailed", message),
        _ if failed == 0 => word("Failed", false, "InProgress", "no target failed so far"),
        _ => word("Failed", false, "InProgress", message),
    }
}

fn paused() -> Word {
    word("Paused", false, "NotPaused", "targets may start")
}

fn action_available(facts: &Facts<'_>) -> Word {
    let kind = "ActionAvailable";
    match facts.round.plugin {
        PluginLookup::Serving(plugin) => {
            let name =
                format!("plugin {} {} serves {}", plugin.manifest.name, plugin.manifest.version, facts.round.action());
            word(kind, true, "Serving", name)
        }
        PluginLookup::NotServing { reason, message } => word(kind, false, reason, message.clone()),
        PluginLookup::Unknown { loaded } if loaded.is_empty() => {
            let message = format!(
                "no plugin for action {:?}: none is loaded; drop one into the plugin directory",
                facts.round.action()
            );
            word(kind, false, "NoPlugin", message)
        }
        PluginLookup::Unknown { loaded } => {
            let loaded = loaded.join(", ");
            let message = format!(
                "no plugin for action {:?}; loaded: {loaded}; drop one into the plugin directory",
                facts.round.action()
            );
            word(kind, false, "NoPlugin", message)
        }
    }
}

fn valid(facts: &Facts<'_>) -> Word {
    match facts.round.spec.as_ref().err() {
        Some(invalid) => word("Valid", false, invalid.reason, invalid.message.clone()),
        None => word("Valid", true, "Accepted", "the spec is accepted"),
    }
}

fn stuck<'a>(facts: &'a Facts<'_>, progress: Progress) -> Option<(&'a str, &'static str)> {
    match (facts.round.spec.as_ref().err(), facts.round.plugin) {
        _ if progress.terminal() => None,
        (Some(invalid), _) => Some((&invalid.message, invalid.reason)),
        (None, PluginLookup::NotServing { reason, message }) => Some((message, reason)),
        (None, PluginLookup::Unknown { .. }) => Some(("no plugin serves the action; see ActionAvailable", "NoPlugin")),
        (None, PluginLookup::Serving(_)) => None,
    }
}

fn reconciling(facts: &Facts<'_>, progress: Progress) -> Word {
    let waiting = facts.counts.processing == 0;
    match (progress.terminal(), stuck(facts, progress)) {
        (true, _) => word("Reconciling", false, "Working", "the job has ended"),
        (false, Some((message, reason))) => word("Reconciling", false, reason, message),
        (false, None) if waiting => word("Reconciling", true, "Waiting", waits(facts)),
        (false, None) => {
            word("Reconciling", true, "Working", format!("{} targets are in flight", facts.counts.processing))
        }
    }
}

/// What a job waits for that has no target in flight, and nothing that stands in its way.
fn waits(facts: &Facts<'_>) -> String {
    let Counts { total, pending, .. } = facts.counts;
    let partition = facts.round.valid().and_then(|spec| spec.partition);
    match facts.round.serving() {
        Some(plugin) if partition.is_none_or(|most| total.saturating_sub(pending) < most as usize) => format!(
            "no target is in flight; the next start once other jobs of plugin {} leave room (limits.targetsInFlight) or let \
             go of their pods",
            plugin.manifest.name
        ),
        _ => "no target is in flight; raise spec.partition to start more".to_owned(),
    }
}

fn stalled(facts: &Facts<'_>, progress: Progress) -> Word {
    match (progress, stuck(facts, progress)) {
        (Progress::Failed, _) => word("Stalled", true, "TargetsFailed", "the job has failed"),
        (_, Some((message, reason))) => word("Stalled", true, reason, message),
        _ => word("Stalled", false, "Working", "nothing blocks the job"),
    }
}
