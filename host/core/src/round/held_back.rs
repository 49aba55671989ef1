//! What holds a job back, in two words for a column and in a sentence for its conditions.
//!
//! Takes the round and the targets with their decisions; yields the one thing that keeps the whole job from going on. A job
//! of which some target goes on is not held back. Source: docs/operationjob.md 2.1, 2.6.

use crate::cluster::writes::{budget_of, budgets_of};
use crate::job::bound::shown_cause;
use crate::job::progress::{Counts, targets};
use crate::job::state::{Progress, SHARD, TargetState, extras};
use crate::job::time::write_time;
use crate::plugin::lookup::PluginLookup;
use crate::round::context::Round;
use crate::round::memory::JobMemory;

/// Extra of KusionStack's API: the pod whose replacement the target itself is.
const IS_REPLACEMENT_OF: &str = "NotAllowedToReplaceNewPod";
/// The word for targets that wait for their next attempt.
const RETRY: &str = "Retry";
/// Names of obstacles that are shown; a job can meet as many as it has targets in flight.
const SHOWN: usize = 2;

/// What keeps a whole job from going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldBack {
    /// A word or two, such as `Budget web`.
    pub(crate) word: String,
    /// A sentence that names the next step.
    pub(crate) sentence: String,
}

impl HeldBack {
    fn new(word: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { word: word.into(), sentence: sentence.into() }
    }
}

/// What holds the job back, if all of it waits.
pub(crate) fn held_back(round: &Round<'_>, memory: &JobMemory) -> Option<HeldBack> {
    let counts = memory.counts();
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
            .or_else(|| no_start(round, memory, counts))
            .or_else(|| unavailable(round, memory)),
        PluginLookup::Serving(_) => match in_flight(memory, counts) {
            Some(held) if held.word == RETRY => Some(paused(round).unwrap_or(held)),
            held => held,
        },
    }
}

/// Says that the namespace lacks the label for jobs on nodes.
fn unlabelled(round: &Round<'_>) -> Option<HeldBack> {
    round
        .unlabelled
        .as_ref()
        .map(|_| HeldBack::new("Grant", "nothing starts in this namespace; see the condition Valid"))
}

/// Says that nothing may start.
pub(crate) fn paused(round: &Round<'_>) -> Option<HeldBack> {
    if round.brakes.paused {
        let sentence =
            "spec.paused is true: nothing starts, and no plugin is asked to go on; set it to false to resume";
        return Some(HeldBack::new("Paused", sentence));
    }
    round.brakes.too_many_failed.then(|| {
        let sentence = "more targets have failed than spec.failurePolicy.maxFailures tolerates: nothing starts; raise it or set \
            the type to Continue to resume";
        HeldBack::new("Failures", sentence)
    })
}

/// Says that too many targets are unavailable already.
fn unavailable(round: &Round<'_>, memory: &JobMemory) -> Option<HeldBack> {
    let bound = round.valid()?.policy.most_unavailable(memory.state.targets.len())?;
    let now = memory.unavailable();
    (now >= bound).then(|| {
        let sentence = format!(
            "no target is in flight; {} unavailable, and spec.maxUnavailable allows {bound}: the next start once one is Ready",
            if now == 1 { "1 target is".to_owned() } else { format!("{} are", targets(now)) }
        );
        HeldBack::new("Unavailable", sentence)
    })
}

/// Why nothing starts though nothing is in flight. Where nothing bounds starts, the next round makes some.
fn no_start(round: &Round<'_>, memory: &JobMemory, counts: Counts) -> Option<HeldBack> {
    let started = counts.total.saturating_sub(counts.pending);
    let partition = round.valid().and_then(|spec| spec.partition);
    if partition.is_some_and(|most| started >= most as usize) {
        return Some(HeldBack::new("Partition", "no target is in flight; raise spec.partition to start more"));
    }
    if let Some(held) = held_by_another(memory).or_else(|| busy(memory)) {
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

/// Says whose end the first target waits for whose object another job has.
fn held_by_another(memory: &JobMemory) -> Option<HeldBack> {
    let (index, job) = memory.targets.iter().find_map(|(index, known)| Some((index, known.waits_for_job.as_ref()?)))?;
    let kind = memory.state.kind.noun();
    let sentence = format!(
        "no target is in flight; {kind} {} is held by job {job}: the next start once that lets go",
        memory.state.name(*index)
    );
    Some(HeldBack::new("Other jobs", sentence))
}

/// Says what is under way on the pod of the first target that waits for the end of that.
fn busy(memory: &JobMemory) -> Option<HeldBack> {
    let pending = |index: &u32| memory.latest(*index).is_some_and(|state| state.progress == Progress::Pending);
    let mut waiting = memory.targets.iter().filter(|(index, known)| known.waits_for_object && pending(index));
    let busy = waiting.find_map(|(_, known)| known.busy.as_ref())?;
    let sentence = format!("no target is in flight; {busy}: the next start once that ends");
    Some(HeldBack::new("Lifecycle", sentence))
}

/// The obstacles of the targets in flight, if each of them meets one. Of very many, the first ones speak for all.
fn in_flight(memory: &JobMemory, counts: Counts) -> Option<HeldBack> {
    let mut obstacles: Vec<HeldBack> = Vec::new();
    for index in memory.latest.processing.iter().take(SHARD) {
        let name = memory.state.name(*index);
        let blocked = memory
            .lifecycle
            .get(index)
            .map(|wait| HeldBack::new("Lifecycle", format!("{} of {name}: {}", wait.awaited.reason(), wait.message)));
        let found = blocked.or_else(|| obstacle(memory.latest(*index)?, name))?;
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
        if counts.processing == 1 { "1 target is".to_owned() } else { format!("{} are", targets(counts.processing)) },
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
