//! The status of a job, and the records that hold the details of a large job. Only this module builds a status.
//!
//! The host leaves out empty values and zero counts, writes times in whole seconds, and does not write a field that did
//! not change. Source: docs/operationjob.md 2.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use oarlock_api::{
    Condition, Failure, OperationJobStatus, OperationRecord, OperationRecordSpec, PluginBinding, Ranges, RecordedJob,
    RecordsSummary, Selection,
};
use serde_json::{Map, Value, json};

use crate::object::bound::{fitting, shown_cause};
use crate::object::key::JobRef;
use crate::object::ranges;
use crate::object::time::write_time;
use crate::operation_job::progress::{Counts, ProgressSets};
use crate::operation_job::round::memory::{Decisions, StoredState};
use crate::operation_job::round::operation_records::{
    indexes_of, labelled, operation_record_labels, operation_record_name,
};
use crate::operation_job::state::SHARD;
use crate::requests::writes::OperationRecordWrite;

/// Longest text of `ranges.processing`, in bytes. Starts wait if the text would be longer.
pub const PROCESSING_BYTES: usize = 16 * 1024;
/// Longest text of `ranges.succeeded`, in bytes. The next two limits are for `ranges.failed` and for all `failures`.
const SUCCEEDED_BYTES: usize = 12 * 1024;
const FAILED_BYTES: usize = 8 * 1024;
const FAILURES_BYTES: usize = 16 * 1024;
/// Most entries of `failures`.
const FAILURES: usize = 100;

/// The inputs of a status apart from the targets.
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
    /// The reason that holds the whole job back, in a word or two.
    pub waits_for: Option<String>,
    /// Counts of targets by progress.
    pub counts: Counts,
    /// Time at which the round began.
    pub now: Timestamp,
}

/// Returns the status of a job: its targets, decisions included, and `summary`.
pub fn status(stored: &StoredState, decisions: &Decisions, summary: Summary) -> OperationJobStatus {
    let counts = summary.counts;
    let progress = counts.progress();
    let ended = progress.terminal() && counts.total > 0;
    // The end also comes from the targets if another client removed it from the status.
    let last = || {
        let all = 0..u32::try_from(stored.state.targets.len()).unwrap_or(u32::MAX);
        all.filter_map(|index| decisions.latest(stored, index)?.end).max()
    };
    let end = stored.state.end.or_else(|| ended.then(|| last().unwrap_or(summary.now)));
    let mut status = OperationJobStatus {
        observed_generation: Some(summary.generation),
        progress: Some(progress.word().to_owned()),
        start_time: Some(write_time(stored.state.start.unwrap_or(summary.now))),
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
    if stored.state.uses_records() {
        operation_record_fields(stored, decisions, &mut status);
    } else if !stored.state.targets.is_empty() {
        let all = 0..u32::try_from(stored.state.targets.len()).unwrap_or(u32::MAX);
        let details = all.filter_map(|index| Some(decisions.latest(stored, index)?.detail(stored.state.name(index))));
        status.target_details = Some(details.collect());
    }
    status
}

fn operation_record_fields(stored: &StoredState, decisions: &Decisions, status: &mut OperationJobStatus) {
    let latest = &decisions.latest;
    let (processing, cut_processing) = ranges::format(&latest.processing, PROCESSING_BYTES);
    let (succeeded, cut_succeeded) = ranges::format(&latest.succeeded, SUCCEEDED_BYTES);
    let (failed, cut_failed) = ranges::format(&latest.failed, FAILED_BYTES);
    let operation_records = i32::try_from(stored.state.targets.len().div_ceil(SHARD)).unwrap_or(i32::MAX);
    status.records = Some(RecordsSummary { count: operation_records, size: i32::try_from(SHARD).unwrap_or(i32::MAX) });
    status.ranges = Some(Ranges { processing, succeeded, failed });
    status.ranges_truncated = (cut_processing || cut_succeeded || cut_failed).then_some(true);
    status.failures = Some(failures(stored, decisions)).filter(|failures| !failures.is_empty());
}

fn failures(stored: &StoredState, decisions: &Decisions) -> Vec<Failure> {
    let entry = |index: &u32| {
        let error = decisions.latest(stored, *index)?.error.clone().unwrap_or_default();
        let message = shown_cause(&error.message, 120);
        let name = stored.state.name(*index).to_owned();
        Some(Failure { index: i32::try_from(*index).unwrap_or(i32::MAX), name, reason: error.reason, message })
    };
    let entries = decisions.latest.failed.iter().filter_map(entry);
    let entries = entries.filter(|failure| failure.reason != "Skipped").take(FAILURES);
    let bytes = |failure: &Failure| failure.name.len() + failure.reason.len() + failure.message.len() + 60;
    fitting(entries, FAILURES_BYTES, bytes).collect()
}

/// Returns true if the status that was read differs from the targets, decisions included, in progress, end, counts or
/// ranges.
pub fn differs(stored: &StoredState, decisions: &Decisions, status: Option<&OperationJobStatus>) -> bool {
    let Some(status) = status.filter(|status| status.start_time.is_some()) else { return false };
    let counts = decisions.counts();
    let numbers = [counts.total, counts.pending, counts.processing, counts.succeeded, counts.failed].map(count);
    let said = [
        status.total_pod_count,
        status.pending_pod_count,
        status.processing_pod_count,
        status.succeeded_pod_count,
        status.failed_pod_count,
    ];
    let mut shown = OperationJobStatus::default();
    if stored.state.uses_records() {
        operation_record_fields(stored, decisions, &mut shown);
    }
    let ends = counts.total > 0 && counts.progress().terminal();
    numbers != said
        || status.progress.as_deref() != Some(counts.progress().word())
        || ends != stored.state.end.is_some()
        || shown.ranges != status.ranges
}

fn count(n: usize) -> Option<i32> {
    i32::try_from(n).ok().filter(|n| *n > 0)
}

/// Returns the merge patch that turns the stored status into `next`, with preconditions. `None` if they are equal.
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

/// Returns the writes of the records `operation_records` at `epoch`.
pub fn operation_record_writes(
    stored: &StoredState,
    decisions: &Decisions,
    operation_records: &BTreeSet<u32>,
    job: &JobRef,
    epoch: i64,
) -> Vec<OperationRecordWrite> {
    let write = |record_number: &u32| {
        let record = record(stored, decisions, *record_number, job, epoch);
        let known = stored.operation_records.stored.get(record_number);
        let patch = known.map(|known| {
            let spec = &record.record;
            let counts = [
                ("succeededPodCount", spec.succeeded_pod_count),
                ("failedPodCount", spec.failed_pod_count),
                ("pendingPodCount", spec.pending_pod_count),
                ("processingPodCount", spec.processing_pod_count),
            ];
            let mut body = Map::new();
            let mut metadata = Map::new();
            metadata.insert("uid".into(), json!(known.uid));
            metadata.insert("resourceVersion".into(), json!(known.resource_version));
            body.insert("epoch".into(), json!(epoch));
            body.extend(counts.map(|(field, count)| (field.to_owned(), json!(count))));
            if stored.operation_records.rewrite.contains(record_number) {
                metadata.insert("labels".into(), json!(record.metadata.labels));
                body.insert("job".into(), json!(spec.job));
                body.insert("firstIndex".into(), json!(spec.first_index));
            }
            body.insert("metadata".into(), Value::Object(metadata));
            body.insert("targets".into(), fields(spec).remove("targets").unwrap_or_default());
            Value::Object(body)
        });
        let in_flight = |sets: &ProgressSets| sets.processing.range(indexes_of(*record_number)).count();
        let grows = in_flight(&decisions.latest) > in_flight(&stored.durable);
        OperationRecordWrite {
            record_number: *record_number,
            name: operation_record_name(job, *record_number),
            record,
            patch,
            grows,
        }
    };
    operation_records.iter().map(write).collect()
}

/// Returns true if a record that was read agrees with the targets, decisions included, whichever process wrote it.
pub fn says(read: &OperationRecord, stored: &StoredState, decisions: &Decisions, job: &JobRef) -> bool {
    let Ok(record_number) = u32::try_from(read.record.shard) else { return false };
    labelled(read)
        && record(stored, decisions, record_number, job, read.record.epoch.unwrap_or(0)).record == read.record
}

fn record(
    stored: &StoredState,
    decisions: &Decisions,
    record_number: u32,
    job: &JobRef,
    epoch: i64,
) -> OperationRecord {
    let indexes = indexes_of(record_number);
    let first = indexes.start;
    let last = indexes.end.min(u32::try_from(stored.state.targets.len()).unwrap_or(u32::MAX));
    let mut sets = crate::operation_job::progress::Counts::default();
    let mut targets = Vec::with_capacity(SHARD);
    for (index, target) in (first..last).filter_map(|index| Some((index, decisions.latest(stored, index)?))) {
        sets.add(target.progress);
        targets.push(target.detail(stored.state.name(index)));
    }
    let labels = operation_record_labels(&job.uid, i32::try_from(record_number).unwrap_or(i32::MAX));
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
            name: Some(operation_record_name(job, record_number)),
            namespace: Some(job.key.namespace.clone()),
            labels: Some(labels),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        record: OperationRecordSpec {
            job: RecordedJob { name: job.key.name.clone(), uid: job.uid.clone() },
            shard: i32::try_from(record_number).unwrap_or(i32::MAX),
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
