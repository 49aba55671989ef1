//! The status of a job, and the records that hold the detail of a large one. The only place that builds a status.
//!
//! Empty values and zero counts are absent, times are whole seconds, and a field that did not change is not written.
//! Source: docs/operationjob.md 2.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use oarlock_api::{
    Condition, Failure, OperationJobStatus, OperationRecord, OperationRecordSpec, PluginBinding, Ranges, RecordedJob,
    RecordsSummary, Selection,
};
use serde_json::{Map, Value, json};

use crate::cluster::writes::ShardWrite;
use crate::job::bound::{fitting, shown_cause};
use crate::job::key::JobRef;
use crate::job::progress::{Counts, ProgressSets};
use crate::job::ranges;
use crate::job::state::SHARD;
use crate::job::time::write_time;
use crate::round::memory::JobMemory;
use crate::round::shards::{indexes_of, labelled, shard_labels, shard_name};

/// Longest text of `ranges.processing`, in bytes. Starts wait if it would be longer.
pub const PROCESSING_BYTES: usize = 16 * 1024;
/// Longest text of `ranges.succeeded`, of `.failed` and of all `failures`, in bytes.
const SUCCEEDED_BYTES: usize = 12 * 1024;
const FAILED_BYTES: usize = 8 * 1024;
const FAILURES_BYTES: usize = 16 * 1024;
/// Most entries of `failures`.
const FAILURES: usize = 100;

/// The inputs of a status beside the targets.
pub struct Summary {
    /// Generation of the job.
    pub generation: i64,
    /// The epoch to store.
    pub epoch: i64,
    /// The bound plugin.
    pub plugin: Option<PluginBinding>,
    /// The frozen selection.
    pub selection: Option<Selection>,
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// What holds the whole job back, in a word or two.
    pub waits_for: Option<String>,
    /// Numbers of targets by progress.
    pub counts: Counts,
    /// Time at which the round began.
    pub now: Timestamp,
}

/// The status of `memory`, decisions included, and `summary`.
pub fn status(memory: &JobMemory, summary: Summary) -> OperationJobStatus {
    let counts = summary.counts;
    let progress = counts.progress();
    let ended = progress.terminal() && counts.total > 0;
    // Also where another client removed it.
    let last = || {
        let all = 0..u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX);
        all.filter_map(|index| memory.latest(index)?.end).max()
    };
    let end = memory.state.end.or_else(|| ended.then(|| last().unwrap_or(summary.now)));
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
        done: (counts.total > 0).then(|| format!("{}/{}", counts.ended(), counts.total)),
        waits_for: summary.waits_for,
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
    let latest = &memory.latest;
    let (processing, cut_processing) = ranges::format(&latest.processing, PROCESSING_BYTES);
    let (succeeded, cut_succeeded) = ranges::format(&latest.succeeded, SUCCEEDED_BYTES);
    let (failed, cut_failed) = ranges::format(&latest.failed, FAILED_BYTES);
    let shards = i32::try_from(memory.state.targets.len().div_ceil(SHARD)).unwrap_or(i32::MAX);
    status.records = Some(RecordsSummary { count: shards, size: i32::try_from(SHARD).unwrap_or(i32::MAX) });
    status.ranges = Some(Ranges { processing, succeeded, failed });
    status.ranges_truncated = (cut_processing || cut_succeeded || cut_failed).then_some(true);
    status.failures = Some(failures(memory)).filter(|failures| !failures.is_empty());
}

fn failures(memory: &JobMemory) -> Vec<Failure> {
    let entry = |index: &u32| {
        let error = memory.latest(*index)?.error.clone().unwrap_or_default();
        let message = shown_cause(&error.message, 120);
        let name = memory.state.name(*index).to_owned();
        Some(Failure { index: i32::try_from(*index).unwrap_or(i32::MAX), name, reason: error.reason, message })
    };
    let entries = memory.latest.failed.iter().filter_map(entry);
    let entries = entries.filter(|failure| failure.reason != "Skipped").take(FAILURES);
    let bytes = |failure: &Failure| failure.name.len() + failure.reason.len() + failure.message.len() + 60;
    fitting(entries, FAILURES_BYTES, bytes).collect()
}

/// True if the stored status differs from `memory` in progress, end, numbers or ranges.
pub fn differs(memory: &JobMemory, stored: Option<&OperationJobStatus>) -> bool {
    let Some(stored) = stored.filter(|stored| stored.start_time.is_some()) else { return false };
    let counts = memory.counts();
    let numbers = [counts.total, counts.pending, counts.processing, counts.succeeded, counts.failed].map(count);
    let said = [
        stored.total_pod_count,
        stored.pending_pod_count,
        stored.processing_pod_count,
        stored.succeeded_pod_count,
        stored.failed_pod_count,
    ];
    let mut shown = OperationJobStatus::default();
    if memory.state.sharded() {
        shard_fields(memory, &mut shown);
    }
    let ends = counts.total > 0 && counts.progress().terminal();
    numbers != said
        || stored.progress.as_deref() != Some(counts.progress().word())
        || ends != memory.state.end.is_some()
        || shown.ranges != stored.ranges
}

fn count(n: usize) -> Option<i32> {
    i32::try_from(n).ok().filter(|n| *n > 0)
}

/// The merge patch that turns the stored status into `next`, with preconditions. `None` if they are equal.
pub fn patch(
    stored: Option<&OperationJobStatus>,
    next: &OperationJobStatus,
    job: &JobRef,
    resource_version: &str,
) -> Option<Value> {
    let before = stored.map(fields).unwrap_or_default();
    let changes = difference(&before, &fields(next));
    if changes.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"uid": job.uid, "resourceVersion": resource_version}, "status": changes}))
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

/// The writes of these shards, at `epoch`.
pub fn shard_writes(memory: &JobMemory, shards: &BTreeSet<u32>, job: &JobRef, epoch: i64) -> Vec<ShardWrite> {
    let write = |shard: &u32| {
        let record = record(memory, *shard, job, epoch);
        let stored = memory.shards.stored.get(shard);
        let patch = stored.map(|stored| {
            let spec = &record.record;
            let counts = [
                ("succeededPodCount", spec.succeeded_pod_count),
                ("failedPodCount", spec.failed_pod_count),
                ("pendingPodCount", spec.pending_pod_count),
                ("processingPodCount", spec.processing_pod_count),
            ];
            let mut body = Map::new();
            let mut metadata = Map::new();
            metadata.insert("uid".into(), json!(stored.uid));
            metadata.insert("resourceVersion".into(), json!(stored.resource_version));
            body.insert("epoch".into(), json!(epoch));
            body.extend(counts.map(|(field, count)| (field.to_owned(), json!(count))));
            if memory.shards.rewrite.contains(shard) {
                metadata.insert("labels".into(), json!(record.metadata.labels));
                body.insert("job".into(), json!(spec.job));
                body.insert("firstIndex".into(), json!(spec.first_index));
            }
            body.insert("metadata".into(), Value::Object(metadata));
            body.insert("targets".into(), fields(spec).remove("targets").unwrap_or_default());
            Value::Object(body)
        });
        let in_flight = |sets: &ProgressSets| sets.processing.range(indexes_of(*shard)).count();
        let grows = in_flight(&memory.latest) > in_flight(&memory.durable);
        ShardWrite { shard: *shard, name: shard_name(job, *shard), record, patch, grows }
    };
    shards.iter().map(write).collect()
}

/// True if a stored record agrees with `memory`, whichever process wrote it.
pub fn says(stored: &OperationRecord, memory: &JobMemory, job: &JobRef) -> bool {
    let Ok(shard) = u32::try_from(stored.record.shard) else { return false };
    labelled(stored) && record(memory, shard, job, stored.record.epoch.unwrap_or(0)).record == stored.record
}

fn record(memory: &JobMemory, shard: u32, job: &JobRef, epoch: i64) -> OperationRecord {
    let indexes = indexes_of(shard);
    let first = indexes.start;
    let last = indexes.end.min(u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX));
    let mut sets = crate::job::progress::Counts::default();
    let mut targets = Vec::with_capacity(SHARD);
    for (index, target) in (first..last).filter_map(|index| Some((index, memory.latest(index)?))) {
        sets.add(target.progress);
        targets.push(target.detail(memory.state.name(index)));
    }
    let labels = shard_labels(&job.uid, i32::try_from(shard).unwrap_or(i32::MAX));
    let owner = OwnerReference {
        api_version: oarlock_api::OPERATION_JOB_API_VERSION.to_owned(),
        kind: "OperationJob".to_owned(),
        name: job.key.name.clone(),
        uid: job.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    OperationRecord {
        api_version: oarlock_api::OPERATION_RECORD_API_VERSION.to_owned(),
        kind: "OperationRecord".to_owned(),
        metadata: ObjectMeta {
            name: Some(shard_name(job, shard)),
            namespace: Some(job.key.namespace.clone()),
            labels: Some(labels),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        record: OperationRecordSpec {
            job: RecordedJob { name: job.key.name.clone(), uid: job.uid.clone() },
            shard: i32::try_from(shard).unwrap_or(i32::MAX),
            first_index: i32::try_from(first).unwrap_or(i32::MAX),
            epoch: Some(epoch),
            succeeded_pod_count: count(sets.succeeded),
            failed_pod_count: count(sets.failed),
            pending_pod_count: count(sets.pending),
            processing_pod_count: count(sets.processing),
            targets,
        },
    }
}
