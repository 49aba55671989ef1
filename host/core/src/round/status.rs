//! The status of a job, and the records that hold the detail of a large one. The only place that builds a status.
//!
//! Takes what a round decided; yields the documents to store. Empty values and zero counts are absent, times are whole
//! seconds, and what did not change is not written. Source: spec/operationjob.md §2.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use oarlock_api::{
    Condition, Failure, OperationJobStatus, OperationRecord, OperationRecordSpec, PluginBinding, Ranges, RecordedJob,
    RecordsSummary, Selection,
};
use serde_json::{Map, Value, json};

use crate::cluster::writes::{JobKey, RecordWrite};
use crate::job::ranges;
use crate::job::state::{Progress, SHARD, TargetState, indexes, write_time};
use crate::round::memory::{Counts, JobMemory};
use crate::round::target::cut;

/// Longest text of `ranges.processing`, `.succeeded` and `.failed`, and of all `failures`, in bytes.
const PROCESSING_BYTES: usize = 16 * 1024;
const SUCCEEDED_BYTES: usize = 12 * 1024;
const FAILED_BYTES: usize = 8 * 1024;
const FAILURES_BYTES: usize = 16 * 1024;
/// Most entries of `failures`.
const FAILURES: usize = 100;

/// What a status is made from beside the targets.
pub struct Summary {
    /// Generation of the job.
    pub generation: i64,
    /// The epoch to store.
    pub epoch: i64,
    /// The bound plugin.
    pub plugin: Option<PluginBinding>,
    /// What was frozen.
    pub selection: Option<Selection>,
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// How many targets are how far.
    pub counts: Counts,
    /// When the round began.
    pub now: Timestamp,
}

/// The status that `memory`, with what is decided, and `summary` show.
pub fn status(memory: &JobMemory, summary: Summary) -> OperationJobStatus {
    let counts = summary.counts;
    let progress = counts.progress();
    let ended = progress.terminal() && counts.total > 0;
    let end = memory.state.end.or(ended.then_some(summary.now));
    let mut status = OperationJobStatus {
        observed_generation: Some(summary.generation),
        progress: Some(progress.word().to_owned()),
        start_time: Some(write_time(memory.state.start.unwrap_or(summary.now))),
        end_time: end.map(write_time),
        total_pod_count: count(counts.total),
        succeeded_pod_count: count(counts.succeeded),
        failed_pod_count: count(counts.failed),
        pending_pod_count: count(counts.pending),
        processing_pod_count: count(counts.processing),
        plugin: summary.plugin,
        selection: summary.selection,
        epoch: Some(summary.epoch),
        conditions: Some(summary.conditions),
        ..OperationJobStatus::default()
    };
    if memory.state.sharded() {
        shard_fields(memory, &mut status);
    } else if !memory.state.targets.is_empty() {
        let all = 0..u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX);
        let details = all.filter_map(|index| Some(memory.latest(index)?.detail(memory.state.name(index))));
        status.target_details = Some(details.collect());
    }
    status
}

fn shard_fields(memory: &JobMemory, status: &mut OperationJobStatus) {
    let latest: Vec<TargetState> = (0..).map_while(|index| memory.latest(index).cloned()).collect();
    let of = |progress| indexes(&latest, |target| target.progress == progress);
    let (processing, _) = ranges::format(&of(Progress::Processing), PROCESSING_BYTES);
    let (succeeded, cut_succeeded) = ranges::format(&of(Progress::Succeeded), SUCCEEDED_BYTES);
    let (failed, cut_failed) = ranges::format(&of(Progress::Failed), FAILED_BYTES);
    let shards = i32::try_from(latest.len().div_ceil(SHARD)).unwrap_or(i32::MAX);
    status.records = Some(RecordsSummary { count: shards, size: i32::try_from(SHARD).unwrap_or(i32::MAX) });
    status.ranges = Some(Ranges { processing, succeeded, failed });
    status.ranges_truncated = (cut_succeeded || cut_failed).then_some(true);
    status.failures = Some(failures(memory, &latest)).filter(|failures| !failures.is_empty());
}

fn failures(memory: &JobMemory, latest: &[TargetState]) -> Vec<Failure> {
    let mut room = FAILURES_BYTES;
    let failed = (0u32..).zip(latest).filter(|(_, target)| target.progress == Progress::Failed);
    let entry = |(index, target): (u32, &TargetState)| {
        let error = target.error.clone().unwrap_or_default();
        let message = cut(&error.message, 120);
        let name = memory.state.name(index).to_owned();
        Failure { index: i32::try_from(index).unwrap_or(i32::MAX), name, reason: error.reason, message }
    };
    let entries = failed.map(entry).filter(|failure| failure.reason != "Skipped").take(FAILURES);
    entries
        .take_while(|failure| {
            let size = failure.name.len() + failure.reason.len() + failure.message.len() + 60;
            room = room.saturating_sub(size);
            room > 0
        })
        .collect()
}

fn count(n: usize) -> Option<i32> {
    i32::try_from(n).ok().filter(|n| *n > 0)
}

/// Whom a patch is for.
pub struct Address<'a> {
    /// The job.
    pub key: &'a JobKey,
    /// Its UID.
    pub uid: &'a str,
    /// Its resourceVersion as last seen.
    pub resource_version: &'a str,
}

/// The merge patch that turns the stored status into `next`, with preconditions. `None` where they are equal.
pub fn patch(stored: Option<&OperationJobStatus>, next: &OperationJobStatus, address: &Address<'_>) -> Option<Value> {
    let before = fields(&stored.cloned().unwrap_or_default());
    let after = fields(next);
    let changes = difference(&before, &after);
    if changes.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"uid": address.uid, "resourceVersion": address.resource_version}, "status": changes}))
}

fn fields(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut changes = Map::new();
    for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        match (before.get(key), after.get(key)) {
            (Some(_), None) => {
                changes.insert(key.clone(), Value::Null);
            }
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                let inner = difference(old, new);
                if !inner.is_empty() {
                    changes.insert(key.clone(), Value::Object(inner));
                }
            }
            (old, Some(new)) if old != Some(new) => {
                changes.insert(key.clone(), new.clone());
            }
            _ => {}
        }
    }
    changes
}

/// The record writes that the changed targets need. `stored` are the shards whose record exists.
pub fn records(
    memory: &JobMemory,
    changed: &BTreeMap<u32, TargetState>,
    stored: &BTreeSet<u32>,
    address: &Address<'_>,
) -> Vec<RecordWrite> {
    if !memory.state.sharded() {
        return Vec::new();
    }
    let size = u32::try_from(SHARD).unwrap_or(u32::MAX);
    let shards: BTreeSet<u32> = changed.keys().map(|index| index / size).collect();
    let write = |shard: u32| {
        let record = record(memory, shard, address);
        let patch = stored.contains(&shard).then(|| {
            let spec = &record.record;
            let counts = [
                ("succeededPodCount", spec.succeeded_pod_count),
                ("failedPodCount", spec.failed_pod_count),
                ("pendingPodCount", spec.pending_pod_count),
                ("processingPodCount", spec.processing_pod_count),
            ];
            let mut body = Map::new();
            body.extend(counts.map(|(field, count)| (field.to_owned(), json!(count))));
            body.insert("targets".into(), json!(spec.targets));
            Value::Object(body)
        });
        RecordWrite { name: record_name(address, shard), record, patch }
    };
    shards.into_iter().map(write).collect()
}

/// `<job name cut to 200>-<first 8 of job UID>-<shard>`.
fn record_name(address: &Address<'_>, shard: u32) -> String {
    let name: String = address.key.name.chars().take(200).collect();
    let uid: String = address.uid.chars().take(8).collect();
    format!("{name}-{uid}-{shard}")
}

fn record(memory: &JobMemory, shard: u32, address: &Address<'_>) -> OperationRecord {
    let size = u32::try_from(SHARD).unwrap_or(u32::MAX);
    let first = shard * size;
    let last = (first + size).min(u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX));
    let targets: Vec<_> =
        (first..last).filter_map(|index| Some(memory.latest(index)?.detail(memory.state.name(index)))).collect();
    let of =
        |progress: Progress| count(targets.iter().filter(|t| t.progress.as_deref() == Some(progress.word())).count());
    let labels = [("oarlock.dev/job-uid", address.uid.to_owned()), ("oarlock.dev/shard", shard.to_string())];
    let owner = OwnerReference {
        api_version: oarlock_api::OPERATION_JOB_API_VERSION.to_owned(),
        kind: "OperationJob".to_owned(),
        name: address.key.name.clone(),
        uid: address.uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    OperationRecord {
        api_version: oarlock_api::OPERATION_RECORD_API_VERSION.to_owned(),
        kind: "OperationRecord".to_owned(),
        metadata: ObjectMeta {
            name: Some(record_name(address, shard)),
            namespace: Some(address.key.namespace.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        record: OperationRecordSpec {
            job: RecordedJob { name: address.key.name.clone(), uid: address.uid.to_owned() },
            shard: i32::try_from(shard).unwrap_or(i32::MAX),
            first_index: i32::try_from(first).unwrap_or(i32::MAX),
            succeeded_pod_count: of(Progress::Succeeded),
            failed_pod_count: of(Progress::Failed),
            pending_pod_count: of(Progress::Pending),
            processing_pod_count: of(Progress::Processing),
            targets,
        },
    }
}
