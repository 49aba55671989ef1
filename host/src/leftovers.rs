//! Removes the leftovers of deleted jobs, outside of rounds: their holds, and objects from before this term.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::time::too_late_for;
use oarlock_core::operation_job::cleanup::{OrphanCleanup, Orphans, SeenObjects, beside_holds, held_by};
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::{BatchResult, Stopped, Write};
use tokio::time::sleep;

use crate::ports::Ports;
use crate::term::Term;

/// The number of attempts, because a cached object may be stale.
const TRIES: usize = 3;

/// A deleted job with leftovers.
pub(crate) struct JobLeftovers {
    pub(crate) job_uid: String,
    /// The writes that are known to be needed.
    pub(crate) writes: Vec<Write>,
    /// Live reads of objects that the cache may not show.
    pub(crate) reads: Vec<LiveRead>,
}

/// Removes the leftovers of a deleted job. The sweep retries failed writes.
pub(crate) async fn remove_leftovers(ports: Arc<Ports>, term: Arc<Term>, leftovers: JobLeftovers) {
    let JobLeftovers { job_uid, mut writes, mut reads } = leftovers;
    for _ in 0..TRIES {
        if !writes.is_empty() {
            tracing::warn!(job_uid, objects = writes.len(), "removing the leftovers of a deleted job");
        }
        let failed = ports.cluster.clean_up(writes, &term.fence).await;
        reads.extend(failed.into_iter().map(LiveRead::Object));
        let seen = ports.cluster.read_anew(&std::mem::take(&mut reads)).await;
        writes = left_by(&ports, &job_uid, &seen);
        if writes.is_empty() {
            return;
        }
    }
}

/// Removes the effect of a write of a deleted job. If the outcome is unknown, removes it again after the time in which
/// the write could still take effect.
pub(crate) async fn undo_late_write(ports: Arc<Ports>, term: Arc<Term>, result: BatchResult) {
    let job_uid = &result.entry.job.uid;
    let objects: BTreeSet<ObjectKey> = result.entry.writes.iter().map(|write| write.object().clone()).collect();
    let reads: Vec<LiveRead> = objects.iter().cloned().map(LiveRead::Object).collect();
    let look = async || {
        let seen = ports.cluster.read_anew(&reads).await;
        let mut writes = left_by(&ports, job_uid, &seen);
        writes.retain(|write| objects.contains(write.object()));
        ports.cluster.clean_up(writes, &term.fence).await;
    };
    look().await;
    if let (Some(Stopped::Unknown { .. }), Some(sent)) = (&result.stopped, result.sent) {
        let late = too_late_for(sent).duration_since(ports.clock());
        sleep(Duration::try_from(late).unwrap_or_default()).await;
        look().await;
    }
}

/// Returns the writes that remove the observed leftovers of a deleted job.
fn left_by(ports: &Ports, job_uid: &str, seen: &SeenObjects) -> Vec<Write> {
    let store = ports.cluster.store();
    let mut writes = held_by(store, job_uid);
    writes.extend(beside_holds(job_uid, store, &ports.cluster.tasks().namespace, seen));
    writes
}

/// Removes the leftovers of jobs that were deleted before this term observed them.
pub(crate) async fn sweep(ports: Arc<Ports>, term: Arc<Term>) {
    let (store, tasks) = (ports.cluster.store(), ports.cluster.tasks());
    let mut orphans = Orphans::default();
    if !orphans.suspect(store, &ports.cluster.job_uids(), &tasks.namespace) {
        return;
    }
    // The order matters: the objects were observed before this list. So a job that is not in the list is deleted.
    let jobs: BTreeSet<String> = match ports.cluster.list_jobs().await {
        Ok(jobs) => jobs.into_iter().map(|job| job.uid).collect(),
        Err(error) => return tracing::warn!(error, "failed to list the jobs that hold objects"),
    };
    let OrphanCleanup { mut writes, events } = orphans.sweep(store, &jobs, &ports.plugins.grants().unwrap_or_default());
    ports.cluster.emit(events);
    writes.extend(orphans.sweep_tasks(store, &jobs, &tasks.namespace));
    if !writes.is_empty() {
        tracing::warn!(objects = writes.len(), "removing the holds of deleted jobs");
        ports.cluster.clean_up(writes, &term.fence).await;
    }
}

/// Removes outputs of tasks whose job is deleted, and unused scripts.
pub(crate) async fn sweep_outputs(ports: Arc<Ports>, term: Arc<Term>) {
    match ports.cluster.orphaned_outputs().await {
        Ok(writes) => drop(ports.cluster.clean_up(writes, &term.fence).await),
        Err(error) => tracing::warn!(error, "failed to list the task outputs of deleted jobs"),
    }
    if let Err(error) = ports.cluster.remove_idle_scripts(&term.fence).await {
        tracing::warn!(error, "failed to remove unused scripts");
    }
}
