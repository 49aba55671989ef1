//! What the memory of a job that is gone knows of that no view shows.

use crate::cluster::live_reads::LiveRead;
use crate::cluster::store::Store;
use crate::cluster::task_pod::JOB_UID;
use crate::job::key::JobKey;
use crate::round::memory::JobMemory;
use crate::round::tasks::{may_have_pods, output_kind};

/// The live reads that show what the job may have left: objects of a kind that is watched no more, and outputs of tasks, which
/// never are. None for a job that the host let go of before it went.
pub fn left_behind(memory: &JobMemory, job: &JobKey, store: &Store, tasks: &str) -> Vec<LiveRead> {
    let Some(version) = &memory.version else { return Vec::new() };
    let was_let_go = version.deleting && memory.outputs_go && memory.at_rest();
    let mut reads = Vec::new();
    if !store.keeps(&memory.state.kind.kind()) {
        let begun = memory.durable.processing.iter().chain(&memory.releasing);
        reads.extend(begun.map(|index| LiveRead::Object(memory.state.object(&job.namespace, *index))));
    }
    if !was_let_go && memory.state.targets.iter().any(may_have_pods) {
        let (namespace, label, value) = (tasks.to_owned(), JOB_UID.to_owned(), version.uid.clone());
        reads.push(LiveRead::Labelled { kind: output_kind(), namespace, label, value });
    }
    reads
}
