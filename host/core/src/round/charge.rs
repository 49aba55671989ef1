//! What a plugin makes the host do, charged to its budget: writes once they were sent, live reads and events once they are
//! asked for. Source: docs/operationjob.md 3.4.5.

use std::collections::BTreeSet;

use crate::cluster::live_reads::LiveRead;
use crate::cluster::scripts::made_by;
use crate::plugin::proposal::PluginEvent;
use crate::round::context::Round;
use crate::round::judge::Verdict;
use crate::round::memory::JobMemory;
use crate::shared::budgets::{Limited, Payer};
use crate::shared::tables::Tables;

/// Whose budget a job uses: its plugin's in its namespace, also while that does not serve.
fn payer(round: &Round<'_>, memory: &JobMemory) -> Option<Payer> {
    let serving = round.serving().map(|plugin| &plugin.manifest.name);
    let plugin = serving.or(memory.state.plugin.as_ref().map(|plugin| &plugin.name)).cloned()?;
    Some(Payer { plugin, namespace: round.job.key.namespace.clone() })
}

/// Charges the writes whose results came back, and notes until when the plugin is in debt. Scripts are the host's own: each is
/// made once, however many tasks run it.
pub(super) fn charge_writes(round: &Round<'_>, memory: &mut JobMemory, tables: &mut Tables) {
    let Some(payer) = payer(round, memory) else { return };
    let results = memory.results.iter().filter(|result| result.sent.is_some() && result.entry.index.is_some());
    let sent = results.map(|result| {
        let sent = result.done.saturating_add(usize::from(result.stopped.is_some()));
        result.entry.writes.iter().take(sent).filter(|write| made_by(write).is_none()).count()
    });
    let sent = sent.fold(0, usize::saturating_add);
    tables.budgets.pay(&payer, Limited::Writes, sent, round.now);
    memory.debt = tables.budgets.in_debt_until(&payer, round.now);
}

/// Counts targets that wait for the plugin's debt.
pub(super) fn count_waiting(round: &Round<'_>, waiting: usize, memory: &JobMemory, tables: &mut Tables) {
    if let (Some(payer), Some((_, what))) = (payer(round, memory), memory.debt) {
        tables.budgets.note_limited(&payer, what, waiting);
    }
}

/// Charges the live reads and events that the plugin's answers ask for. Events are left out where there is no token.
pub(super) fn charge_answers(
    round: &Round<'_>,
    verdicts: &mut [(u32, Verdict)],
    memory: &JobMemory,
    tables: &mut Tables,
) {
    let Some(payer) = payer(round, memory) else { return };
    let reads: BTreeSet<&LiveRead> = verdicts.iter().flat_map(|(_, verdict)| &verdict.live_reads).collect();
    tables.budgets.pay(&payer, Limited::Reads, reads.len(), round.now);
    // Of a large job only the first hundred are told anyway.
    for (index, verdict) in verdicts.iter_mut().filter(|_| !memory.state.sharded()) {
        let attempt = verdict.state.as_ref().map_or(0, |state| state.attempt);
        let is_new = |event: &PluginEvent| {
            let note = round.events().about_target(event.clone(), *index, attempt);
            !memory.told.contains(&note.name)
        };
        let new = verdict.events.iter().filter(|event| is_new(event)).count();
        let mut paid = tables.budgets.pay_for_some(&payer, Limited::Events, new, round.now);
        if paid < new {
            verdict.events.retain(|event| !is_new(event) || paid.checked_sub(1).map(|left| paid = left).is_some());
        }
    }
}
