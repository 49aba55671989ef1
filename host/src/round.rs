//! One round: one reconcile of one job, which records once and then acts. The only file that sees all steps; read it
//! first.
//!
//! A write waits for its record, and its result comes back as news to a later round. A crash between any two lines
//! costs one repetition and nothing else. No step calls an earlier one, and `?` is only for "this round cannot be
//! judged".

use k8s_openapi::jiff::Timestamp;
use oarlock_core::job::key::JobKey;
use oarlock_core::round::context::Round;
use oarlock_core::round::decide::{commit, conclude};
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::prepare;
use oarlock_core::round::refresh::{Refresh, refresh};
use oarlock_core::round::results::last_events;
use oarlock_core::round::unlisted::wait_for_kinds;
use oarlock_kube::observe::Detail;
use thiserror::Error;

use crate::call_plugin::call_plugin;
use crate::ports::Ports;
use crate::term::Term;

/// Due time of a job's next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Never: the job is gone.
    Gone,
    /// At a change, or at this time.
    At(Option<Timestamp>),
    /// At once, with the stored records: this round was none without them.
    WithRecords,
}

/// A round failed, and is repeated.
#[derive(Debug, Error)]
pub enum RoundError {
    /// Nothing was read.
    #[error("failed to observe the job")]
    Observe(#[source] oarlock_kube::observe::ObserveError),
    /// Nothing was applied.
    #[error("failed to record the decisions of the round")]
    Record(#[source] oarlock_kube::record::RecordError),
}

/// Runs one round for the job `key`.
///
/// # Errors
///
/// If the job cannot be read or its record cannot be written; the round is repeated.
pub async fn round(ports: &Ports, term: &Term, key: &JobKey, memory: &mut JobMemory) -> Result<Next, RoundError> {
    // observe (I/O)
    let detail = if memory.shards.wanted { Detail::Records } else { Detail::Status };
    let observed = ports.cluster.observe(key, &memory.live_reads(), detail).await.map_err(RoundError::Observe)?;
    let Some(job) = observed.job.clone() else {
        ports.cluster.emit(last_events(memory));
        return Ok(term.leave(key));
    };

    // refresh, look up, check (pure)
    let refreshed = refresh(memory, &job, &observed);
    match refreshed {
        Refresh::NeedsRecords => return Ok(Next::WithRecords),
        // Who may edit a status or a record may not end a term: only the lease says who leads.
        Refresh::Overtaken if !term.fence.confirm().await => return Ok(Next::At(None)),
        Refresh::Unchanged | Refresh::Reloaded | Refresh::Overtaken => {}
    }
    let Some(plugin) = ports.plugin_for(&job, memory) else {
        return Ok(Next::At(wait_for_kinds(key, memory, &term.tables, observed.now)));
    };
    let Some(round) = Round::begin(key, &observed, &plugin, ports.cluster.store(), memory) else {
        return Ok(Next::Gone);
    };

    // plan (pure), call the plugin (sandboxed), decide (pure)
    let (plan, news) = term.outbox.queue(|queue| prepare(&round, memory, refreshed, &term.tables, queue));
    ports.cluster.emit(news);
    let verdicts = call_plugin(ports, term, &round, &plan, memory).await;
    let mut decision = conclude(&round, plan, verdicts, memory, &term.tables);
    ports.count_limited(&term.tables);

    // record, then apply (I/O)
    let began = ports.clock();
    let recorded = ports.cluster.record(key, decision.record, decision.entries, &term.fence).await;
    let recorded = recorded.inspect_err(|error| ports.tell_refused(&round.job, round.action(), error, memory));
    let recorded = recorded.map_err(RoundError::Record)?;
    ports.count(key, &job, &decision.commit, memory);
    decision.commit.shards.clone_from(&recorded.shards);
    let events = commit(&round, decision.commit, memory, &term.tables, (began, ports.clock()));
    ports.cluster.emit(events);
    term.outbox.apply(recorded);
    ports.show(key, &job, memory);
    Ok(Next::At(memory.next(decision.requeue, decision.rests)))
}
