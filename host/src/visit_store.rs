//! Stores the records of visits as compressed JSON lines, in the folder or bucket of the host.
//!
//! Rounds do not wait for the store. If the store is slow or down, the host drops the oldest records and counts them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use oarlock_artefacts::{Artefacts, VisitsOf};
use oarlock_core::plugin::visit_note::VisitNote;

use crate::ports::Ports;

/// The time between two writes to the store.
const EVERY: Duration = Duration::from_secs(5);
/// The most compressed bytes that one process stores for one job. Later records of the job stay in memory only.
const MOST_OF_JOB: usize = 4 << 20;
/// The most jobs whose stored bytes are counted.
const MOST_JOBS: usize = 10_000;

/// A job with its namespace.
type JobName = (String, String);

/// Stores the records until the task is aborted.
pub(crate) async fn store_visits(ports: Arc<Ports>, artefacts: Artefacts) {
    let mut ticks = tokio::time::interval(EVERY);
    let mut stored = BTreeMap::new();
    let mut number = 0;
    loop {
        ticks.tick().await;
        store_finished(&ports, &artefacts, &mut stored, &mut number).await;
    }
}

/// Stores the records that no call has stored yet.
async fn store_finished(ports: &Ports, artefacts: &Artefacts, stored: &mut BTreeMap<JobName, usize>, number: &mut u64) {
    let notes = ports.recorder.take_finished();
    if notes.is_empty() {
        return;
    }
    let Ok(files) = tokio::task::spawn_blocking(move || compressed(&notes)).await else { return };
    if stored.len() > MOST_JOBS {
        stored.clear();
    }
    for ((namespace, job), file) in files {
        let bytes = stored.entry((namespace.clone(), job.clone())).or_default();
        if *bytes + file.len() > MOST_OF_JOB {
            continue;
        }
        *bytes += file.len();
        *number += 1;
        let of = VisitsOf { namespace: &namespace, job: &job };
        if let Err(error) = artefacts.put_visits(of, file, ports.clock(), *number).await {
            tracing::warn!(error = %error, namespace, job, "failed to store records of visits; they are lost");
        }
    }
}

/// Returns a compressed file of JSON lines for each job.
pub(crate) fn compressed(notes: &[Arc<VisitNote>]) -> BTreeMap<JobName, Vec<u8>> {
    let mut files: BTreeMap<JobName, GzEncoder<Vec<u8>>> = BTreeMap::new();
    for note in notes {
        let (namespace, job) = note.job();
        let Some(line) = note.record().line() else { continue };
        let file = files.entry((namespace.to_owned(), job.to_owned()));
        let file = file.or_insert_with(|| GzEncoder::new(Vec::new(), Compression::default()));
        // Writing to memory cannot fail.
        let _ = writeln!(file, "{line}");
    }
    files.into_iter().filter_map(|(job, file)| Some((job, file.finish().ok()?))).collect()
}
