//! One round: one pass of the pipeline for one job. The only file that sees all steps; read it first.
//!
//! Takes the key of a job and what this term remembers of it; yields when to come back. A round records once, then
//! acts: whatever a mutation waits for is durable before it is sent, and only what was recorded can be applied. A crash
//! between any two lines costs one repetition and nothing else. No step calls an earlier one, and `?` is only for
//! "this round cannot be judged".

use k8s_openapi::jiff::SignedDuration;
use oarlock_core::job::key::JobKey;
use oarlock_core::round::decide::decide;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::plan;
use oarlock_core::round::refresh::{Reflection, check, reflect};
use oarlock_core::round::results::{Sent, absorb};
use oarlock_core::round::standing::{Means, Standing, gate};
use oarlock_kube::observe::Detail;
use oarlock_kube::record::Decided;
use thiserror::Error;

use crate::host::Host;
use crate::steps::{Rest, farewell, keep, remember, visit};
use crate::term::Term;

/// How soon to come back while what a plugin declares is being listed.
const LISTING: SignedDuration = SignedDuration::from_millis(100);

/// A round could not be judged, and is made again.
#[derive(Debug, Error)]
pub enum RoundError {
    /// Nothing was read.
    #[error("failed to observe the job")]
    Observe(#[source] oarlock_kube::observe::ObserveError),
    /// Nothing was applied.
    #[error("failed to record what the round decided")]
    Record(#[source] oarlock_kube::record::RecordError),
}

/// Makes one round for the job `key`.
pub async fn round(host: &Host, term: &Term, key: &JobKey, memory: &mut JobMemory) -> Result<Rest, RoundError> {
    let detail = if memory.wants_records { Detail::Records } else { Detail::Status };
    let observed = host.cluster.observe(key, &memory.looks(), detail).await.map_err(RoundError::Observe)?;
    let Some(job) = observed.job.clone() else { return Ok(Rest::Gone) };
    let reflection = reflect(memory, &job, observed.records.as_deref(), observed.now);
    if reflection == Reflection::NeedsRecords {
        return Ok(Rest::Until(Some(observed.now)));
    }
    let Some(found) = host.find(&job, memory) else { return Ok(Rest::Until(Some(observed.now + LISTING))) };
    if reflection == Reflection::Adopted {
        keep(host, term, key, memory, &found);
    }

    let checked = check(key, memory, &job, &found);
    let means = Means { checked: &checked, found: &found, store: host.cluster.store() };
    let standing = Standing::new(key, &job, &observed, means);
    let gate = term.claims(|claims| gate(claims, &standing, memory));
    let planned = plan(memory, &standing.common(), gate);
    let (planned, verdicts) = visit(host, term, &standing, planned, memory).await;
    let decision = decide(planned, verdicts, memory, &standing.grounds(&|| farewell(term, &standing)));
    remember(term, key, memory, &found);

    let sent = Sent::note(&decision.writes, host.cluster.store());
    let decided =
        Decided { job: key.clone(), record: decision.record, writes: decision.writes, events: decision.events };
    let recording = host.clock();
    let recorded = host.cluster.record(decided, &term.fence).await.map_err(RoundError::Record)?;
    host.count(&job, &decision.commit);
    memory.committed(decision.commit, recording, host.clock());

    let applied = host.cluster.apply(recorded, &term.fence).await;
    let warnings = absorb(&applied, &sent, memory, key, standing.uid());
    host.tell(&applied, decision.target_events, warnings);
    host.show(key, &job, memory);
    Ok(Rest::Until(memory.next(decision.requeue)))
}
