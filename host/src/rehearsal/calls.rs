//! The plugin calls of one round of a rehearsal: all that are planned, for nobody else waits for their time.

use std::collections::BTreeSet;

use oarlock_core::plugin::proposal::Mutation;
use oarlock_core::plugin::visit::Answer;
use oarlock_core::round::calls::PlannedCall;
use oarlock_core::round::context::Round;
use oarlock_core::round::judge::Verdict;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::Plan;
use oarlock_core::shared::tables::{SharedTables, lock};

use crate::rehearsal::Stage;

/// The calls of one round.
#[derive(Default)]
pub(super) struct Called {
    /// Their verdicts.
    pub(super) verdicts: Vec<(u32, Verdict)>,
    /// Targets whose plugin lacked no live read.
    pub(super) answered: BTreeSet<u32>,
    /// What it proposed, where that becomes writes.
    pub(super) mutations: Vec<(u32, Vec<Mutation>)>,
}

/// Makes all planned calls.
pub(super) async fn call_plugin(
    stage: &Stage,
    round: &Round<'_>,
    plan: &Plan,
    memory: &mut JobMemory,
    tables: &SharedTables,
) -> Called {
    let mut session = stage.plugins.wave(&stage.plugin.digest);
    let facts = round.job_facts(memory);
    let mut called = Called::default();
    for (index, planned) in &plan.visits {
        let mut known = memory.targets.remove(index).unwrap_or_default();
        let Some(target) = round.target(*index, memory) else { continue };
        let call = PlannedCall { target, planned };
        let verdict = match session.as_mut().filter(|_| call.wants_plugin(&known)) {
            Some(session) => {
                let (input, reads) = call.input(&facts, memory, &known, tables);
                let answer = session.call(input).await;
                let mutations = proposed(&answer).to_vec();
                let verdict = call.judge(Some((answer, &reads)), &mut known, &mut lock(tables));
                called.mutations.extend((!verdict.writes.is_empty()).then_some((*index, mutations)));
                verdict
            }
            None => call.judge(None, &mut known, &mut lock(tables)),
        };
        if verdict.live_reads.is_empty() {
            called.answered.insert(*index);
        }
        called.verdicts.push((*index, verdict));
        memory.targets.insert(*index, known);
    }
    plan.visits_made(called.verdicts.len(), memory);
    called
}

/// The mutations of an answer.
fn proposed(answer: &Answer) -> &[Mutation] {
    match answer {
        Answer::Proposed(proposal) => &proposal.mutations,
        Answer::Reported { report, .. } => &report.proposal.mutations,
        Answer::Failed(_) | Answer::Trapped(_) => &[],
    }
}
