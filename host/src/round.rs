//! One round: one reconcile of one job, which records once and then acts. Only this file shows all steps; read it
//! first.
//!
//! A write waits for its record. The result of a write comes back as an event to a later round. A crash between any two
//! lines costs one repetition and nothing else. No step calls an earlier one. `?` only means that this round cannot be
//! judged.

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::round::context::Round;
use oarlock_core::operation_job::round::decide::{WriteSpan, commit};
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::round::open_round::OpenRound;
use oarlock_core::operation_job::round::refresh::{Refresh, refresh};
use oarlock_core::operation_job::round::results::last_events;
use oarlock_core::operation_job::round::unlisted::wait_for_kinds;
use oarlock_kube::read::observe::Detail;
use thiserror::Error;
use tracing::Instrument as _;
use tracing::field::Empty;

use crate::call_plugin::call_plugin;
use crate::job_report::JobReport;
use crate::ports::Ports;
use crate::term::Term;
use crate::traces::SPANS;

/// The due time of a job's next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Never, because the job is deleted.
    Gone,
    /// At a change, or at this time.
    At(Option<Timestamp>),
    /// At once, with the stored records, because this round needs them.
    WithRecords,
}

/// The reason why a round failed. The round is repeated.
#[derive(Debug, Error)]
pub enum RoundError {
    /// The job could not be read.
    #[error("failed to observe the job")]
    Observe(#[source] oarlock_kube::read::observe::ObserveError),
    /// The record could not be written, so no decision was applied.
    #[error("failed to record the decisions of the round")]
    Record(#[source] oarlock_kube::persist::record::RecordError),
}

/// Runs one round for the job `key`.
///
/// # Errors
///
/// If the job cannot be read or its record cannot be written. The caller repeats the round.
pub async fn round(ports: &Ports, term: &Term, key: &JobKey, memory: &mut JobMemory) -> Result<Next, RoundError> {
    // observe (I/O)
    let detail = if memory.stored.operation_records.wanted { Detail::Records } else { Detail::Status };
    let observed = ports
        .cluster
        .observe(key, &memory.work.all_reads(&memory.decisions.selecting), detail)
        .instrument(tracing::trace_span!(target: SPANS, "observe"))
        .await
        .map_err(RoundError::Observe)?;
    let Some(job) = observed.job.clone() else {
        ports.cluster.emit(last_events(&mut memory.work));
        return Ok(term.leave(key));
    };

    // refresh, look up, check (pure)
    let refreshed = refresh(memory, &job, &observed);
    match refreshed {
        Refresh::NeedsRecords => return Ok(Next::WithRecords),
        // Only the lease says who leads. A user who may edit a status or a record must not be able to end a term.
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
    let report = JobReport { ports, key, job: &job };
    let (mut open, news) =
        term.write_sender.queue(|queue| OpenRound::open(&round, memory, refreshed, &term.tables, queue));
    ports.cluster.emit(news);
    let called = tracing::trace_span!(target: SPANS, "call-plugin", calls = Empty);
    let calls = call_plugin(ports, &round, &mut open, &memory.stored, &mut memory.targets);
    let calls = calls.instrument(called.clone()).await;
    // The collector gets an unsigned number as text.
    called.record("calls", i64::from(calls));
    let mut decision = open.conclude(memory);
    report.count_limited(&term.tables);

    // record (I/O), then apply (puts the writes into the queue)
    let began = ports.clock();
    let recording = ports.cluster.record(key, decision.record, decision.entries, &term.fence);
    let recorded = recording.instrument(tracing::trace_span!(target: SPANS, "record")).await;
    let recorded = recorded.inspect_err(|error| report.tell_refused(&round.job, error, memory));
    let recorded = recorded.map_err(RoundError::Record)?;
    report.count(&decision.commit, memory);
    decision.commit.operation_records.clone_from(&recorded.operation_records);
    let events = commit(&round, decision.commit, memory, &term.tables, WriteSpan { began, ended: ports.clock() });
    ports.cluster.emit(events);
    tracing::trace_span!(target: SPANS, "apply").in_scope(|| term.write_sender.apply(recorded));
    report.show(memory);
    Ok(Next::At(memory.next(decision.requeue_at, decision.must_wait)))
}
