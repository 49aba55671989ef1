//! The plugin calls of a round, in order: a claim of one target is visible to the next.

use oarlock_core::round::calls::PlannedCall;
use oarlock_core::round::context::Round;
use oarlock_core::round::judge::Verdict;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::Plan;
use oarlock_core::shared::tables::lock;

use crate::ports::Ports;
use crate::term::Term;

/// Makes the planned calls. Returns a verdict for each target.
pub(crate) async fn call_plugin(
    ports: &Ports,
    term: &Term,
    round: &Round<'_>,
    plan: &Plan,
    memory: &mut JobMemory,
) -> Vec<(u32, Verdict)> {
    if plan.visits.is_empty() {
        return Vec::new();
    }
    let mut session = round.serving().and_then(|plugin| ports.plugins.wave(&plugin.digest));
    let facts = round.job_facts(memory);
    let mut verdicts = Vec::with_capacity(plan.visits.len());
    for (index, planned) in &plan.visits {
        let mut known = memory.targets.remove(index).unwrap_or_default();
        let Some(target) = round.target(*index, memory) else { continue };
        let call = PlannedCall { target, planned };
        let verdict = match session.as_mut().filter(|_| call.wants_plugin(&known)) {
            Some(session) => {
                let (input, reads) = call.input(&facts, memory, &known, &term.tables);
                let answer = session.call(input).await;
                ports.metrics.visited();
                call.judge(Some((answer, &reads)), &mut known, &mut lock(&term.tables))
            }
            None => call.judge(None, &mut known, &mut lock(&term.tables)),
        };
        verdicts.push((*index, verdict));
        memory.targets.insert(*index, known);
    }
    verdicts
}
