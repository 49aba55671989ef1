//! What is taken off for a job that is gone, beside all rounds: what it had put on, and what it left before this term.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::cluster::writes::{EntryResult, Stopped, Write};
use oarlock_core::round::pace::too_late_for;
use oarlock_core::shared::orphans::{Orphans, SeenObjects, Swept, beside_holds, held_by};
use tokio::time::sleep;

use crate::ports::Ports;
use crate::term::Term;

/// How often it is decided what to take off, since the view of an object may be old.
const TRIES: usize = 3;

/// A job that is gone.
pub(crate) struct Vanished {
    pub(crate) job_uid: String,
    /// What is known to be due.
    pub(crate) writes: Vec<Write>,
    /// What shows more of it than the views do.
    pub(crate) reads: Vec<LiveRead>,
}

/// Takes off what a job that is gone had put on. What fails is left to the sweep.
pub(crate) async fn take_off(ports: Arc<Ports>, term: Arc<Term>, vanished: Vanished) {
    let Vanished { job_uid, mut writes, mut reads } = vanished;
    for _ in 0..TRIES {
        if !writes.is_empty() {
            tracing::warn!(job_uid, objects = writes.len(), "removing what a job that is gone had left");
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

/// Takes off what a write of a job that is gone has put on, also where nobody knows whether it takes effect later.
pub(crate) async fn take_back(ports: Arc<Ports>, term: Arc<Term>, result: EntryResult) {
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

/// The writes that take off what is seen of a job that is gone.
fn left_by(ports: &Ports, job_uid: &str, seen: &SeenObjects) -> Vec<Write> {
    let store = ports.cluster.store();
    let mut writes = held_by(store, job_uid);
    writes.extend(beside_holds(job_uid, store, &ports.cluster.tasks().namespace, seen));
    writes
}

/// Removes what jobs have left that were gone before this term heard of it.
pub(crate) async fn sweep(ports: Arc<Ports>, term: Arc<Term>) {
    let (store, tasks) = (ports.cluster.store(), ports.cluster.tasks());
    let mut orphans = Orphans::default();
    if !orphans.suspect(store, &ports.cluster.job_uids(), &tasks.namespace) {
        return;
    }
    // From here on: what was seen above, of a job that is not stored now, is of one that is gone.
    let jobs: BTreeSet<String> = match ports.cluster.list_jobs().await {
        Ok(jobs) => jobs.into_iter().map(|job| job.uid).collect(),
        Err(error) => return tracing::warn!(error, "failed to list the jobs that objects are held for"),
    };
    let Swept { mut writes, events } = orphans.sweep(store, &jobs, &ports.plugins.grants().unwrap_or_default());
    ports.cluster.emit(events);
    writes.extend(orphans.sweep_tasks(store, &jobs, &tasks.namespace));
    if !writes.is_empty() {
        tracing::warn!(objects = writes.len(), "removing holds of jobs that are gone");
        ports.cluster.clean_up(writes, &term.fence).await;
    }
}

/// Removes outputs of tasks whose job is gone, and idle scripts.
pub(crate) async fn sweep_outputs(ports: Arc<Ports>, term: Arc<Term>) {
    match ports.cluster.orphaned_outputs().await {
        Ok(writes) => drop(ports.cluster.clean_up(writes, &term.fence).await),
        Err(error) => tracing::warn!(error, "failed to look for outputs of tasks whose job is gone"),
    }
    if let Err(error) = ports.cluster.remove_idle_scripts(&term.fence).await {
        tracing::warn!(error, "failed to look for scripts that nothing uses");
    }
}
