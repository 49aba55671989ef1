//! A view of one job at one time, made from the objects that the cluster stores.
//!
//! A view takes an OperationJob and its readable OperationRecords, and is the model for every way to show the job. It trusts no field of
//! these objects: a status may be absent, cut, of another version, or wrong. Source: docs/operationjob.md 2.
//! docs/operationjob.md 2.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{
    Condition, IntOrPercent, OperationJob, OperationJobSpec, OperationJobStatus, OperationRecord, PluginBinding,
    RecordsSummary,
};
use serde::Serialize;

use crate::ops_view::{ShownInput, ShownOutput};
use crate::shown_progress::{ShownCounts, ShownProgress};
use crate::target_accounts::TargetAccounts;
use crate::target_view::TargetView;

/// The conditions that explain why a job waits or failed, with the status in which they do.
const TELLING: [(&str, &str); 5] = [
    ("Valid", "False"),
    ("ActionAvailable", "False"),
    ("Paused", "True"),
    ("LifecycleBlocked", "True"),
    ("Failed", "True"),
];

/// A condition that the user should read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// The type of the condition.
    pub condition: String,
    /// The status: `True` or `False`.
    pub status: String,
    /// The reason, a CamelCase word.
    pub reason: String,
    /// The message, one sentence.
    pub message: String,
}

/// A view of one job at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobView {
    /// True for an OpsJob, and false for an OperationJob.
    pub(crate) is_ops: bool,
    /// The namespace of the job. It is empty for an OpsJob.
    pub namespace: String,
    /// The name of the job.
    pub name: String,
    /// The UID of the job.
    pub uid: String,
    /// The action of the job.
    pub action: String,
    /// The plugin to which the job is bound.
    pub plugin: Option<PluginBinding>,
    /// The progress of the job.
    pub progress: ShownProgress,
    /// The number of targets in each progress.
    pub counts: ShownCounts,
    /// The creation time of the job.
    pub created: Option<Timestamp>,
    /// The time of the first status.
    pub started: Option<Timestamp>,
    /// The end time of the job.
    pub ended: Option<Timestamp>,
    /// The reason why the whole job waits, in a word or two.
    pub waits_for: Option<String>,
    /// The reason why the whole job waits, in a sentence.
    pub waiting: Option<String>,
    /// The conditions that explain why the job waits or failed.
    pub notices: Vec<Notice>,
    /// All conditions of the job, in the order of its status.
    pub conditions: Vec<Notice>,
    /// The limits that the spec sets, such as `parallelism 10`.
    pub bounds: Vec<String>,
    /// The limit on the targets that may start.
    pub partition: Option<usize>,
    /// True if the targets are nodes, and false if they are pods.
    pub has_nodes: bool,
    /// True for a dry run.
    pub dry_run: bool,
    /// True if the job was deleted and is still releasing its targets.
    pub is_deleting: bool,
    /// The inputs of an OpsJob.
    pub inputs: Vec<ShownInput>,
    /// The outputs of an OpsJob.
    pub outputs: Vec<ShownOutput>,
    /// True if the OpsJob has had an OperationJob, which has the name of the OpsJob.
    pub has_child: bool,
    /// The number of the job's records.
    pub(crate) records: usize,
    /// The number of unread records with targets that have ended.
    pub(crate) missing_records: usize,
    pub(crate) targets: Vec<TargetView>,
    /// The indexes of `targets`. Targets that need attention come first.
    pub(crate) order: Vec<usize>,
    /// The times at which targets ended, in order.
    pub(crate) ends: Vec<Timestamp>,
}

impl JobView {
    /// Returns the view of `job`, with the details of those `records` that belong to it.
    pub fn new<'a>(job: &OperationJob, records: impl IntoIterator<Item = &'a OperationRecord>) -> Self {
        let spec = job.spec.clone().unwrap_or_default();
        let status = job.status.clone().unwrap_or_default();
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let records: Vec<&OperationRecord> =
            records.into_iter().filter(|record| uid.is_empty() || record.record.job.uid == uid).collect();
        let targets = TargetAccounts::new(&spec, &status, &records).views();
        let summary = status.records.clone().unwrap_or_default();
        let view = Self {
            namespace: job.metadata.namespace.clone().unwrap_or_default(),
            name: job.metadata.name.clone().unwrap_or_default(),
            uid,
            action: spec.action.clone().unwrap_or_default(),
            progress: ShownProgress::read(status.progress.as_deref()),
            counts: counts(&status, &targets),
            created: job.metadata.creation_timestamp.as_ref().map(|time| time.0),
            started: time(status.start_time.as_deref()),
            ended: time(status.end_time.as_deref()),
            waits_for: status.waits_for.clone().filter(|word| !word.is_empty()),
            waiting: waiting(&status),
            notices: conditions(&status).filter(tells).map(notice).collect(),
            conditions: conditions(&status).map(notice).collect(),
            bounds: bounds(&spec),
            partition: spec.partition.map(|most| usize::try_from(most).unwrap_or(0)),
            has_nodes: spec.target_kind.as_deref() == Some("Node"),
            dry_run: spec.dry_run.unwrap_or_default(),
            is_deleting: job.metadata.deletion_timestamp.is_some(),
            records: number(Some(summary.count)),
            missing_records: missing(&summary, &records, &targets),
            plugin: status.plugin,
            ..Self::default()
        };
        view.with_targets(targets)
    }

    /// Returns the view with these targets.
    pub(crate) fn with_targets(self, targets: Vec<TargetView>) -> Self {
        let mut order: Vec<usize> = (0..targets.len()).collect();
        order.sort_by_key(|index| targets.get(*index).map(TargetView::rank));
        let mut ends: Vec<Timestamp> = targets.iter().filter_map(|target| target.ended).collect();
        ends.sort_unstable();
        Self { targets, order, ends, ..self }
    }

    /// Returns the name of the job for people, such as `team/web` or `ops/reboot`.
    pub(crate) fn title(&self) -> String {
        let Self { namespace, name, .. } = self;
        if self.is_ops { format!("ops/{name}") } else { format!("{namespace}/{name}") }
    }

    /// Returns the targets, in the order of the job's list.
    pub fn targets(&self) -> &[TargetView] {
        &self.targets
    }

    /// Returns the targets. Targets that need attention come first.
    pub fn by_need(&self) -> impl Iterator<Item = &TargetView> {
        self.order.iter().filter_map(|index| self.targets.get(*index))
    }

    /// Returns true if the job says that nothing may start.
    pub fn is_paused(&self) -> bool {
        self.notices.iter().any(|notice| notice.condition == "Paused")
    }

    /// Returns the sentence about missing details, if any details are missing.
    pub fn missing_detail(&self) -> Option<String> {
        (self.missing_records > 0).then(|| {
            let (missing, count) = (self.missing_records, self.records);
            format!("{missing} of {count} OperationRecords not read: detail of their targets is missing")
        })
    }

    /// Returns true for an OpsJob, and false for an OperationJob.
    pub fn is_ops(&self) -> bool {
        self.is_ops
    }

    /// Returns the times at which targets ended, in order.
    pub fn ends(&self) -> &[Timestamp] {
        &self.ends
    }

    /// Returns the number of targets that ended after one time and not after another.
    pub(crate) fn ended_between(&self, after: Timestamp, until: Timestamp) -> usize {
        let before = |time: Timestamp| self.ends.partition_point(|end| *end <= time);
        before(until).saturating_sub(before(after))
    }
}

/// Returns the number of unread records that must exist because some of their targets have ended. The host writes a record with the first
/// outcome among its targets, and targets start earlier.
fn missing(summary: &RecordsSummary, records: &[&OperationRecord], targets: &[TargetView]) -> usize {
    let size = number(Some(summary.size));
    if size == 0 {
        return 0;
    }
    let is_there = |shard: usize| records.iter().any(|record| usize::try_from(record.record.shard) == Ok(shard));
    let has_detail = |target: &TargetView| target.progress.is_terminal() || target.progress == ShownProgress::Unknown;
    let shards = targets.chunks(size).take(number(Some(summary.count))).enumerate();
    shards.filter(|(shard, of_shard)| of_shard.iter().any(has_detail) && !is_there(*shard)).count()
}

/// Returns the numbers in the status, or counts the targets if the status has no numbers.
fn counts(status: &OperationJobStatus, targets: &[TargetView]) -> ShownCounts {
    if status.total_pod_count.is_some() {
        return ShownCounts {
            total: number(status.total_pod_count),
            succeeded: number(status.succeeded_pod_count),
            failed: number(status.failed_pod_count),
            in_flight: number(status.processing_pod_count),
            pending: number(status.pending_pod_count),
        };
    }
    let of = |progress| targets.iter().filter(|target| target.progress == progress).count();
    ShownCounts {
        total: targets.len(),
        succeeded: of(ShownProgress::Succeeded),
        failed: of(ShownProgress::Failed),
        in_flight: of(ShownProgress::Processing),
        pending: of(ShownProgress::Pending),
    }
}

fn conditions(status: &OperationJobStatus) -> impl Iterator<Item = &Condition> {
    status.conditions.as_deref().unwrap_or_default().iter()
}

/// Returns true for a condition that explains why the job waits or failed.
fn tells(condition: &&Condition) -> bool {
    TELLING.contains(&(condition.kind.as_str(), condition.status.as_str()))
}

fn notice(condition: &Condition) -> Notice {
    let Condition { kind, status, reason, message, .. } = condition.clone();
    Notice { condition: kind, status, reason, message }
}

/// Returns the message of the condition that is True while a job runs, if it says that the job waits.
fn waiting(status: &OperationJobStatus) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    let waits = |condition: &&Condition| condition.kind == "Reconciling" && condition.reason == "Waiting";
    conditions.find(waits).map(|condition| condition.message.clone()).filter(|message| !message.is_empty())
}

fn bounds(spec: &OperationJobSpec) -> Vec<String> {
    let amount = |amount: &IntOrPercent| match amount {
        IntOrPercent::Int(count) => count.to_string(),
        IntOrPercent::Percent(percent) => percent.clone(),
    };
    let policy = spec.failure_policy.as_ref().and_then(|policy| {
        let allowed = policy.max_failures.as_ref().map(|most| format!(" after {}", amount(most)));
        Some(format!("{}{}", policy.kind.as_deref()?, allowed.unwrap_or_default()))
    });
    let bounds = [
        spec.partition.map(|most| format!("partition {most}")),
        spec.parallelism.as_ref().map(|most| format!("parallelism {}", amount(most))),
        spec.max_unavailable.as_ref().map(|most| format!("max unavailable {}", amount(most))),
        policy,
        spec.retry_policy.as_ref().and_then(|policy| Some(format!("retries {}", policy.limit?))),
    ];
    bounds.into_iter().flatten().collect()
}

pub(crate) fn number(count: Option<i32>) -> usize {
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}

fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}
