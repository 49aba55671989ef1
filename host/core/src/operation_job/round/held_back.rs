//! The reason that holds a job back: in a few words for a column, and in a sentence for its conditions.
//!
//! Takes the round and the targets with their decisions; yields the one reason that keeps the whole job from going on.
//! A job is not held back if one of its targets goes on. Source: docs/operationjob.md 2.1, 2.6.

use crate::object::bound::shown_cause;
use crate::object::time::write_time;
use crate::operation_job::progress;
use crate::operation_job::round::context::Round;
use crate::operation_job::round::memory::{Decisions, StoredState, Targets};
use crate::operation_job::state::{Progress, SHARD, TargetState, extras};
use crate::plugin::lookup::PluginLookup;
use crate::requests::writes::{budget_of, budgets_of};

/// Extra of KusionStack's API: the pod that the target itself replaces.
const IS_REPLACEMENT_OF: &str = "NotAllowedToReplaceNewPod";
/// The word for targets that wait for their next attempt.
const RETRY: &str = "Retry";
/// Most obstacles that a sentence names. A job can have as many obstacles as it has targets in flight.
const SHOWN: usize = 2;

/// The reason that keeps a whole job from going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldBack {
    /// A few words, such as `Budget web`; for targets with different obstacles, the first two, such as `Budget web, Drain`.
    pub(crate) word: String,
    /// A sentence that names the next step.
    pub(crate) sentence: String,
}

impl HeldBack {
    fn new(word: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { word: word.into(), sentence: sentence.into() }
    }
}

/// Returns the reason that holds the job back, if all of the job waits.
pub(crate) fn held_back(
    round: &Round<'_>,
    stored: &StoredState,
    decisions: &Decisions,
    targets: &Targets,
) -> Option<HeldBack> {
    let counts = decisions.counts();
    if counts.progress().terminal() {
        return None;
    }
    if let Err(invalid) = &round.spec {
        let word = if invalid.reason == "NamespaceNotAllowed" { "Grant" } else { "InvalidSpec" };
        return Some(HeldBack::new(word, "the spec cannot be acted on; see the condition Valid"));
    }
    match round.plugin {
        PluginLookup::Unknown { .. } => {
            Some(HeldBack::new("NoPlugin", "no plugin serves the action; see the condition ActionAvailable"))
        }
        PluginLookup::NotServing { reason, .. } => {
            let word = if *reason == "AwaitingGrant" { "Grant" } else { reason };
            Some(HeldBack::new(word, "the plugin of the action does not serve; see the condition ActionAvailable"))
        }
        PluginLookup::Serving(_) if counts.processing == 0 => unlabelled(round)
            .or_else(|| paused(round))
            .or_else(|| no_start(round, stored, decisions, targets))
            .or_else(|| unavailable(round, stored, decisions, targets)),
        PluginLookup::Serving(_) => match in_flight(stored, decisions, targets) {
            Some(held) if held.word == RETRY => Some(paused(round).unwrap_or(held)),
            held => held,
        },
    }
}

/// Returns the reason if the namespace lacks the label for jobs on nodes.
fn unlabelled(round: &Round<'_>) -> Option<HeldBack> {
    round
        .unlabelled
        .as_ref()
        .map(|_| HeldBack::new("Grant", "nothing starts in this namespace; see the condition Valid"))
}

/// Returns the reason if a pause or too many failures let nothing start.
pub(crate) fn paused(round: &Round<'_>) -> Option<HeldBack> {
    if round.pause_state.paused {
        let sentence =
            "spec.paused is true: nothing starts, and no plugin is asked to go on; set it to false to resume";
        return Some(HeldBack::new("Paused", sentence));
    }
    round.pause_state.too_many_failed.then(|| {
        let sentence = "more targets have failed than spec.failurePolicy.maxFailures tolerates: nothing starts; raise it or set \
            the type to Continue to resume";
        HeldBack::new("Failures", sentence)
    })
}

/// Returns the reason if too many targets are unavailable already.
fn unavailable(round: &Round<'_>, stored: &StoredState, decisions: &Decisions, targets: &Targets) -> Option<HeldBack> {
    let bound = round.valid()?.policy.most_unavailable(stored.state.targets.len())?;
    let now = targets.unavailable(decisions);
    (now >= bound).then(|| {
        let sentence = format!(
            "no target is in flight; {} unavailable, and spec.maxUnavailable allows {bound}: the next start once one is Ready",
            if now == 1 { "1 target is".to_owned() } else { format!("{} are", progress::targets(now)) }
        );
        HeldBack::new("Unavailable", sentence)
    })
}

/// Returns the reason why nothing starts although nothing is in flight. Returns `None` if no bound applies: the next
/// round then starts targets, unless `unavailable` returns a reason.
fn no_start(round: &Round<'_>, stored: &StoredState, decisions: &Decisions, targets: &Targets) -> Option<HeldBack> {
    let counts = decisions.counts();
    let started = counts.total.saturating_sub(counts.pending);
    let partition = round.valid().and_then(|spec| spec.partition);
    if partition.is_some_and(|most| started >= most as usize) {
        return Some(HeldBack::new("Partition", "no target is in flight; raise spec.partition to start more"));
    }
    if let Some(held) = held_by_another(stored, targets).or_else(|| busy(stored, decisions, targets)) {
        return Some(held);
    }
    let plugin = round.serving()?;
    let bounds = [plugin.manifest.limits.targets_in_flight, plugin.grant.limits.targets_in_flight];
    let shares = round.is_exclusive() || bounds.iter().any(Option::is_some);
    (shares && !round.dry_run).then(|| {
        let sentence = format!(
            "no target is in flight; the next start once other jobs of plugin {} leave room (limits.targetsInFlight) or let \
             go of their {}s",
            plugin.manifest.name,
            round.kind.noun()
        );
        HeldBack::new("Other jobs", sentence)
    })
}

/// Returns the reason if another job has the object of a target. The sentence names the first such target and the job.
fn held_by_another(stored: &StoredState, targets: &Targets) -> Option<HeldBack> {
    let (index, job) = targets.known.iter().find_map(|(index, known)| Some((index, known.waits_for_job.as_ref()?)))?;
    let kind = stored.state.kind.noun();
    let sentence = format!(
        "no target is in flight; {kind} {} is held by job {job}: the next start once that lets go",
        stored.state.name(*index)
    );
    Some(HeldBack::new("Other jobs", sentence))
}

/// Returns the reason if an operation on its pod keeps a pending target waiting. The sentence names the first such
/// operation.
fn busy(stored: &StoredState, decisions: &Decisions, targets: &Targets) -> Option<HeldBack> {
    let pending =
        |index: &u32| decisions.latest(stored, *index).is_some_and(|state| state.progress == Progress::Pending);
    let mut waiting = targets.known.iter().filter(|(index, known)| known.waits_for_object && pending(index));
    let busy = waiting.find_map(|(_, known)| known.busy.as_ref())?;
    let sentence = format!("no target is in flight; {busy}: the next start once that ends");
    Some(HeldBack::new("Lifecycle", sentence))
}

/// Returns the obstacles of the targets in flight, if each target has one. If there are very many targets, the first
/// ones speak for all.
fn in_flight(stored: &StoredState, decisions: &Decisions, targets: &Targets) -> Option<HeldBack> {
    let counts = decisions.counts();
    let mut obstacles: Vec<HeldBack> = Vec::new();
    for index in decisions.latest.processing.iter().take(SHARD) {
        let name = stored.state.name(*index);
        let blocked = targets
            .lifecycle
            .get(index)
            .map(|wait| HeldBack::new("Lifecycle", format!("{} of {name}: {}", wait.awaited.reason(), wait.message)));
        let found = blocked.or_else(|| obstacle(decisions.latest(stored, *index)?, name))?;
        if !obstacles.iter().any(|known| known.word == found.word) {
            obstacles.push(found);
        }
    }
    let more = if obstacles.len() > SHOWN { ", ..." } else { "" };
    let listed = |of: fn(&HeldBack) -> &String, between: &str| {
        let first: Vec<&str> = obstacles.iter().take(SHOWN).map(|one| of(one).as_str()).collect();
        format!("{}{more}", first.join(between))
    };
    let sentence = format!(
        "{} in flight, and {}",
        if counts.processing == 1 {
            "1 target is".to_owned()
        } else {
            format!("{} are", progress::targets(counts.processing))
        },
        listed(|one| &one.sentence, "; ")
    );
    Some(HeldBack { word: listed(|one| &one.word, ", "), sentence })
}

fn obstacle(target: &TargetState, name: &str) -> Option<HeldBack> {
    if let Some(time) = target.next_attempt {
        let reason = target.error.as_ref().map_or("unknown", |error| error.reason.as_str());
        let sentence = format!(
            "attempt {} of {name} has failed ({reason}); the next begins at {}",
            target.attempt,
            write_time(time)
        );
        return Some(HeldBack::new(RETRY, sentence));
    }
    if let Some(error) = &target.error {
        return Some(match error.reason.as_str() {
            "EvictionBlocked" if target.extra.contains_key(extras::DRAIN) => {
                HeldBack::new("Drain", format!("{name}: {}", error.message))
            }
            "EvictionBlocked" => match budget_of(&error.message) {
                Some(budget) => HeldBack::new(
                    format!("Budget {budget}"),
                    format!("disruption budget {budget} allows no eviction now"),
                ),
                None if budgets_of(&error.message).is_some() => {
                    let budgets = budgets_of(&error.message).unwrap_or_default();
                    let sentence = format!("disruption budgets {budgets} select {name}, and an eviction takes one");
                    HeldBack::new("Budget", shown_cause(&sentence, 200))
                }
                None if error.message.starts_with("admission webhook ") => HeldBack::new(
                    "Webhook",
                    format!("{name} may not be evicted now: {}", shown_cause(&error.message, 200)),
                ),
                None => {
                    HeldBack::new("Budget", format!("a disruption budget allows no eviction now: {}", error.message))
                }
            },
            "NamespaceNotAllowed" => HeldBack::new("Grant", error.message.clone()),
            reason => HeldBack::new(reason, format!("{reason} of {name}: {}", shown_cause(&error.message, 120))),
        });
    }
    if let Some((word, sentence)) = target.waits_for() {
        return Some(HeldBack::new(word, format!("{name} waits: {}", shown_cause(&sentence, 200))));
    }
    target.extra.get(IS_REPLACEMENT_OF).map(|origin| {
        let sentence = format!("{name} is itself the new pod of {origin}, whose replacement has to end first");
        HeldBack::new(format!("Replacement of {origin}"), sentence)
    })
}
