//! The plugin calls of a round, in order: a claim of one target is visible to the next. They end with the round's time, so
//! that a slow plugin keeps no other job waiting; the targets that are left come in the next rounds.

use std::time::Duration;

use oarlock_core::plugin::visit::Answer;
use oarlock_core::round::calls::PlannedCall;
use oarlock_core::round::context::Round;
use oarlock_core::round::judge::Verdict;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::Plan;
use oarlock_core::shared::tables::lock;
use tokio::time::Instant;

use crate::log_share::Line;
use crate::metrics::VisitOutcome;
use crate::ports::Ports;
use crate::term::Term;

/// Time that the calls of one round may take, the last one not counted.
const ROUND_TIME: Duration = Duration::from_millis(200);

/// Makes the planned calls, as many as the round has time for. Returns a verdict for each target.
pub(crate) async fn call_plugin(
    ports: &Ports,
    term: &Term,
    round: &Round<'_>,
    plan: &Plan,
    memory: &mut JobMemory,
) -> Vec<(u32, Verdict)> {
    if plan.visits.is_empty() {
        plan.visits_made(0, memory);
        return Vec::new();
    }
    let _calling = ports.calling.begin(&round.job.key);
    let _turn = match round.serving() {
        Some(plugin) => Some(ports.shares.turn(&plugin.manifest.name).await),
        None => None,
    };
    let mut session = round.serving().and_then(|plugin| ports.plugins.wave(&plugin.digest));
    let facts = round.job_facts(memory);
    let mut verdicts = Vec::with_capacity(plan.visits.len());
    let began = Instant::now();
    for (index, planned) in &plan.visits {
        if !verdicts.is_empty() && began.elapsed() >= ROUND_TIME {
            break;
        }
        let mut known = memory.targets.remove(index).unwrap_or_default();
        let Some(target) = round.target(*index, memory) else { continue };
        let call = PlannedCall { target, planned };
        let verdict = match session.as_mut().filter(|_| call.wants_plugin(&known)) {
            Some(session) => {
                let (input, reads) = call.input(&facts, memory, &known, &term.tables);
                let began = Instant::now();
                let answer = session.call(input).await;
                let (took, failure) = (began.elapsed(), failure(&answer));
                let verdict = call.judge(Some((answer, &reads)), &mut known, &mut lock(&term.tables));
                let trouble = match failure {
                    // It is called again once it has what it lacks.
                    Some((VisitOutcome::Failed, why)) if !verdict.live_reads.is_empty() => {
                        Some((VisitOutcome::Deferred, why))
                    }
                    failure => failure.or_else(|| denial(&verdict)),
                };
                note(ports, round, call.target.name, trouble, took);
                verdict
            }
            None => call.judge(None, &mut known, &mut lock(&term.tables)),
        };
        verdicts.push((*index, verdict));
        memory.targets.insert(*index, known);
    }
    plan.visits_made(verdicts.len(), memory);
    verdicts
}

/// A visit that is not as it should be, and what the plugin or the host says of it.
type Trouble = (VisitOutcome, String);

fn failure(answer: &Answer) -> Option<Trouble> {
    match answer {
        Answer::Proposed(_) | Answer::Reported { .. } => None,
        Answer::Failed(failure) => Some((VisitOutcome::Failed, format!("{}: {}", failure.reason, failure.message))),
        Answer::Trapped(trap) if trap.reason == "PluginLimitExceeded" => {
            Some((VisitOutcome::LimitExceeded, trap.message.clone()))
        }
        Answer::Trapped(trap) => Some((VisitOutcome::Trapped, trap.message.clone())),
    }
}

fn denial(verdict: &Verdict) -> Option<Trouble> {
    verdict.denied.clone().map(|denied| (VisitOutcome::Denied, denied))
}

/// Counts a visit, and logs one that is not as it should be, as far as its plugin has a share of the log left.
fn note(ports: &Ports, round: &Round<'_>, target: &str, trouble: Option<Trouble>, took: Duration) {
    let plugin = round.serving().map_or("", |plugin| plugin.manifest.name.as_str());
    let outcome = trouble.as_ref().map_or(VisitOutcome::Answered, |(outcome, _)| *outcome);
    ports.metrics.visited(plugin, outcome, took);
    let (job, took_ms) = (&round.job.key, took.as_millis());
    let Some((_, why)) = trouble.filter(|_| outcome != VisitOutcome::Deferred) else {
        return tracing::debug!(%job, target, plugin, ?outcome, took_ms, "visited");
    };
    let (left_out, others) = match ports.log_share.of(plugin, outcome, Instant::now()) {
        Line::LeftOut => return,
        Line::Full { left_out } => (Some(left_out).filter(|number| *number > 0), None),
        Line::Last => (None, Some("left out for some seconds; plugin_visits_total counts them")),
    };
    if outcome == VisitOutcome::Failed {
        tracing::info!(%job, target, plugin, why, took_ms, left_out, others, "the plugin reports a failure");
    } else {
        tracing::warn!(%job, target, plugin, ?outcome, why, took_ms, left_out, others, "the plugin broke its bounds");
    }
}
