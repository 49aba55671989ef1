//! Charges for the requests that a plugin causes, to the plugin's budget. The host charges writes once it has sent
//! them, and live reads and events once the plugin asks for them. Source: docs/operationjob.md 3.4.5.

use std::collections::BTreeSet;

use crate::operation_job::round::context::Round;
use crate::operation_job::round::memory::{Reports, RoundWork, StoredState};
use crate::operation_job::round::visit::TargetUpdate;
use crate::operation_job::shared::budgets::{Limited, Payer};
use crate::operation_job::shared::tables::Tables;
use crate::plugin::proposal::PluginEvent;
use crate::requests::live_reads::LiveRead;
use crate::requests::scripts::made_by;

/// Returns the payer of a job: its plugin in its namespace, even while the plugin does not serve.
fn payer(round: &Round<'_>, stored: &StoredState) -> Option<Payer> {
    let serving = round.serving().map(|plugin| &plugin.manifest.name);
    let plugin = serving.or(stored.state.plugin.as_ref().map(|plugin| &plugin.name)).cloned()?;
    Some(Payer { plugin, namespace: round.job.key.namespace.clone() })
}

/// Charges the writes whose results came back, and stores until when the plugin is over budget. Scripts are free: the
/// host makes each script once, however many tasks run it.
pub(super) fn charge_writes(round: &Round<'_>, stored: &StoredState, work: &mut RoundWork, tables: &mut Tables) {
    let Some(payer) = payer(round, stored) else { return };
    let results = work.results.iter().filter(|result| result.sent.is_some() && result.entry.index.is_some());
    let sent = results.map(|result| {
        let sent = result.done.saturating_add(usize::from(result.stopped.is_some()));
        result.entry.writes.iter().take(sent).filter(|write| made_by(write).is_none()).count()
    });
    let sent = sent.fold(0, usize::saturating_add);
    tables.budgets.pay(&payer, Limited::Writes, sent, round.now);
    work.over_budget = tables.budgets.over_budget_until(&payer, round.now);
}

/// Counts the targets that wait because the plugin is over budget.
pub(super) fn count_waiting(
    round: &Round<'_>,
    waiting: usize,
    stored: &StoredState,
    work: &RoundWork,
    tables: &mut Tables,
) {
    if let (Some(payer), Some((_, what))) = (payer(round, stored), work.over_budget) {
        tables.budgets.note_limited(&payer, what, waiting);
    }
}

/// Charges the live reads and events that the plugin's answers ask for. The host drops events for which there is no
/// token.
pub(super) fn charge_answers(
    round: &Round<'_>,
    updates: &mut [(u32, TargetUpdate)],
    stored: &StoredState,
    reports: &Reports,
    tables: &mut Tables,
) {
    let Some(payer) = payer(round, stored) else { return };
    let reads: BTreeSet<&LiveRead> = updates.iter().flat_map(|(_, update)| &update.live_reads).collect();
    tables.budgets.pay(&payer, Limited::Reads, reads.len(), round.now);
    // A large job emits only its first hundred warnings anyway.
    for (index, update) in updates.iter_mut().filter(|_| !stored.state.uses_records()) {
        let attempt = update.state.as_ref().map_or(0, |state| state.attempt);
        let is_new = |event: &PluginEvent| {
            let note = round.events().about_target(event.clone(), *index, attempt);
            !reports.emitted_events.contains(&note.name)
        };
        let new = update.events.iter().filter(|event| is_new(event)).count();
        let mut paid = tables.budgets.pay_for_some(&payer, Limited::Events, new, round.now);
        if paid < new {
            update.events.retain(|event| !is_new(event) || paid.checked_sub(1).map(|left| paid = left).is_some());
        }
    }
}
