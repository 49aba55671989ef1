//! The plugin calls of one round of a preview. It makes all planned calls, because no other job waits.

use std::collections::BTreeSet;

use oarlock_core::operation_job::round::memory::{StoredState, Targets};
use oarlock_core::operation_job::round::open_round::OpenRound;
use oarlock_core::plugin::proposal::Mutation;
use oarlock_core::plugin::visit::Answer;

use crate::preview::PreviewSetup;

/// The results of the calls of one round.
#[derive(Default)]
pub(super) struct Called {
    /// The targets whose plugin needed no further live read.
    pub(super) answered: BTreeSet<u32>,
    /// The proposed mutations that become writes, by target.
    pub(super) mutations: Vec<(u32, Vec<Mutation>)>,
}

/// Makes all planned calls.
pub(super) async fn call_plugin(
    stage: &PreviewSetup,
    open: &mut OpenRound<'_>,
    stored: &StoredState,
    targets: &mut Targets,
) -> Called {
    let mut session = stage.plugins.wave(&stage.plugin.digest);
    let mut called = Called::default();
    while let Some(mut next) = open.next_visit(stored, targets, session.is_some()) {
        let index = next.index;
        let answer = match (session.as_mut(), next.visit.take()) {
            (Some(session), Some(visit)) => Some(session.call(visit).await),
            _ => None,
        };
        let mutations = answer.as_ref().map(|answer| proposed(answer).to_vec());
        let Some(update) = open.judge(next, answer, stored, targets) else { continue };
        called.mutations.extend(mutations.filter(|_| !update.writes.is_empty()).map(|own| (index, own)));
        if update.live_reads.is_empty() {
            called.answered.insert(index);
        }
    }
    called
}

/// Returns the mutations of an answer.
fn proposed(answer: &Answer) -> &[Mutation] {
    match answer {
        Answer::Proposed(proposal) => &proposal.mutations,
        Answer::Reported { report, .. } => &report.proposal.mutations,
        Answer::Failed(_) | Answer::Trapped(_) => &[],
    }
}
