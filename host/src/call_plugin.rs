//! Calls the plugin for the targets of a round, one after the other, so that each call sees the claims of the earlier
//! ones.
//!
//! A round makes calls for a limited time, so that a slow plugin does not delay other jobs. The next rounds call the
//! plugin for the remaining targets.

use std::time::Duration;

use oarlock_contract::visit_record::RecordedVerdict;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::operation_job::round::context::Round;
use oarlock_core::operation_job::round::memory::{StoredState, Targets};
use oarlock_core::operation_job::round::open_round::OpenRound;
use oarlock_core::operation_job::round::visit::TargetUpdate;
use oarlock_core::plugin::trap_budget::NotedVisit;
use oarlock_core::plugin::visit::Answer;
use oarlock_core::plugin::visit_note::{BegunNote, VisitOutputs};
use oarlock_core::plugin::visit_recorder::RECORD;
use tokio::time::Instant;

use crate::log_share::LogDecision;
use crate::metrics::VisitOutcome;
use crate::ports::Ports;

/// The time that a round may spend in plugin calls. The call that exceeds this time still finishes.
const ROUND_TIME: Duration = Duration::from_millis(200);

/// Makes the planned calls until the round's time is used up. Returns their number.
pub(crate) async fn call_plugin(
    ports: &Ports,
    round: &Round<'_>,
    open: &mut OpenRound<'_>,
    stored: &StoredState,
    targets: &mut Targets,
) -> u32 {
    let mut calls = 0;
    if !open.has_visits() {
        return calls;
    }
    let _calling = ports.calling.begin(&round.job.key);
    let _turn = match round.serving() {
        Some(plugin) => Some(ports.shares.call_slot(&plugin.manifest.name).await),
        None => None,
    };
    let mut session = round.serving().and_then(|plugin| ports.plugins.wave(&plugin.digest));
    let recorder = round.serving().and_then(|plugin| ports.recorder.round(plugin, asks_for_records(round)));
    let owner = round.owner().unwrap_or_else(|| QuotaKey::Namespace(round.job.key.namespace.clone()));
    let began = Instant::now();
    while open.updates().is_empty() || began.elapsed() < ROUND_TIME {
        let Some(mut next) = open.next_visit(stored, targets, session.is_some()) else { break };
        let (Some(session), Some(mut visit)) = (session.as_mut(), next.visit.take()) else {
            open.judge(next, None, stored, targets);
            continue;
        };
        let begun = recorder.as_ref().map(|_| BegunNote::begin(&mut visit));
        let began = Instant::now();
        let answer = session.call(visit).await;
        calls += 1;
        let (index, took, failure) = (next.index, began.elapsed(), failure(&answer));
        note_traps(ports, round, &owner, &failure);
        let noted = begun.map(|begun| (begun, answer.clone()));
        let Some(update) = open.judge(next, Some(answer), stored, targets) else { continue };
        let trouble = match failure {
            // The visit repeats after the live reads that it asks for, so this failure is not final.
            Some(Trouble { outcome: VisitOutcome::Failed, why }) if !update.live_reads.is_empty() => {
                Some(Trouble::new(VisitOutcome::Deferred, why))
            }
            failure => failure.or_else(|| denial(update)),
        };
        if let (Some(recorder), Some((begun, answer))) = (&recorder, noted) {
            let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            let verdict = verdict(trouble.as_ref());
            recorder.end(begun, VisitOutputs { answer, cost: session.last_use(), microseconds, verdict });
        }
        note(ports, round, stored.state.name(index), trouble, took);
    }
    calls
}

/// Counts a visit in the budget of traps of its plugin's version.
fn note_traps(ports: &Ports, round: &Round<'_>, owner: &QuotaKey, failure: &Option<Trouble>) {
    let Some(plugin) = round.serving() else { return };
    let is_trap = |failure: &Trouble| matches!(failure.outcome, VisitOutcome::Trapped | VisitOutcome::LimitExceeded);
    let job = &round.job.key;
    let trapped = failure.as_ref().is_some_and(is_trap);
    ports.plugins.note_visit(&plugin.digest, NotedVisit { job, owner, trapped, now: ports.clock() });
}

/// A visit that did not succeed.
struct Trouble {
    outcome: VisitOutcome,
    why: String,
}

impl Trouble {
    fn new(outcome: VisitOutcome, why: String) -> Self {
        Self { outcome, why }
    }
}

fn failure(answer: &Answer) -> Option<Trouble> {
    match answer {
        Answer::Proposed(_) | Answer::Reported { .. } => None,
        Answer::Failed(failure) => {
            Some(Trouble::new(VisitOutcome::Failed, format!("{}: {}", failure.reason, failure.message)))
        }
        Answer::Trapped(trap) if trap.reason == "PluginLimitExceeded" => {
            Some(Trouble::new(VisitOutcome::LimitExceeded, trap.message.clone()))
        }
        Answer::Trapped(trap) => Some(Trouble::new(VisitOutcome::Trapped, trap.message.clone())),
    }
}

/// Returns true if the job has the annotation that turns on the recording of its visits.
fn asks_for_records(round: &Round<'_>) -> bool {
    let annotations = round.object.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(RECORD)).is_some_and(|value| value == "true")
}

fn verdict(trouble: Option<&Trouble>) -> RecordedVerdict {
    match trouble {
        None => RecordedVerdict::Taken,
        Some(Trouble { outcome: VisitOutcome::Denied, why }) => RecordedVerdict::Denied(why.clone()),
        Some(Trouble { outcome: VisitOutcome::Deferred, .. }) => RecordedVerdict::Deferred,
        Some(_) => RecordedVerdict::Failed,
    }
}

fn denial(update: &TargetUpdate) -> Option<Trouble> {
    update.denied.clone().map(|denied| Trouble::new(VisitOutcome::Denied, denied))
}

/// Counts a visit. Logs a visit that did not succeed, if its plugin has not used up its share of the log.
fn note(ports: &Ports, round: &Round<'_>, target: &str, trouble: Option<Trouble>, took: Duration) {
    let plugin = round.serving().map_or("", |plugin| plugin.manifest.name.as_str());
    let outcome = trouble.as_ref().map_or(VisitOutcome::Answered, |trouble| trouble.outcome);
    ports.metrics.visited(plugin, outcome, took);
    let (job, took_ms) = (&round.job.key, took.as_millis());
    let Some(Trouble { why, .. }) = trouble.filter(|_| outcome != VisitOutcome::Deferred) else {
        return tracing::debug!(%job, target, plugin, ?outcome, took_ms, "visited");
    };
    let (left_out, others) = match ports.log_share.of(plugin, outcome, Instant::now()) {
        LogDecision::LeftOut => return,
        LogDecision::Full { left_out } => (Some(left_out).filter(|number| *number > 0), None),
        LogDecision::Last => (None, Some("left out for some seconds; plugin_visits_total counts them")),
    };
    if outcome == VisitOutcome::Failed {
        tracing::info!(%job, target, plugin, why, took_ms, left_out, others, "the plugin reports a failure");
    } else {
        tracing::warn!(%job, target, plugin, ?outcome, why, took_ms, left_out, others, "the plugin broke its bounds");
    }
}
