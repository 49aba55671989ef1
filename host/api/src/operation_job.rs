//! OperationJob: the operation that a user asks for, and its status as the host reports it.
//!
//! Every field is optional on reading, so that one odd stored object never hides the others; `oarlock-core` checks the
//! values. JSON names are exactly KusionStack's.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A one-shot operation on a list of targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationJob {
    /// `apps.kusionstack.io/v1alpha1`.
    pub api_version: String,
    /// `OperationJob`.
    pub kind: String,
    /// Standard object metadata.
    pub metadata: ObjectMeta,
    /// The operation. Objects stored before a rule may lack it.
    pub spec: Option<OperationJobSpec>,
    /// The state of the job, written by the host.
    pub status: Option<OperationJobStatus>,
    /// Why its spec was not read. Not stored.
    #[serde(skip)]
    pub unread: Option<UnreadSpec>,
}

/// Why a spec was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadSpec {
    /// Reason of the condition `Valid`.
    pub reason: &'static str,
    /// The sentence for the owner.
    pub message: String,
}

impl UnreadSpec {
    /// A spec that is too large, has no room or is of other types.
    #[must_use]
    pub fn new(message: String) -> Self {
        Self { reason: "Unreadable", message }
    }
}

/// The operation that a user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationJobSpec {
    /// Names the plugin; immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// 1 to 10,000; immutable, order too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<TargetRef>>,
    /// Bound on targets ever started; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Seconds between permission and the first `operate`; at most 0 means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_delay_seconds: Option<i32>,
    /// Seconds each target has from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i32>,
    /// Seconds the job stays after its end.
    #[serde(rename = "TTLSecondsAfterFinished", skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// `Pod` (default) or `Node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_kind: Option<String>,
    /// Chooses targets once instead of naming them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<TargetSelector>,
    /// Given to the plugin; a JSON object that fits its schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Targets in `Processing` at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<IntOrPercent>,
    /// Targets of the job that may be unavailable at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// Effect of failures on the rest of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Further attempts for each target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<RetryPolicy>,
    /// Starts nothing new while true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Plans only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// One target as the user names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetRef {
    /// Name of the pod (or node).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// UID of the object that is meant; absent means whichever has the name when the target starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Names of containers; empty or absent means all regular ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containers: Option<Vec<String>>,
}

/// Chooses targets by label or by owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetSelector {
    /// By label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// By controller; pods only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_ref: Option<OwnerSelector>,
}

/// Names a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerSelector {
    /// `apiVersion` of the controller.
    pub api_version: String,
    /// `kind` of the controller.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// An integer or a percentage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// A count.
    Int(i64),
    /// A percentage such as `25%`.
    Percent(String),
}

/// Effect of failures on the rest of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FailurePolicy {
    /// `Continue`, `FailFast` or `Pause`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Failures that are tolerated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<IntOrPercent>,
}

/// Further attempts for each target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RetryPolicy {
    /// Number of further attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i32>,
    /// Seconds before the second attempt; doubles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_seconds: Option<i32>,
    /// Bound on the wait, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff_seconds: Option<i32>,
}

/// The state of a job, written by the host. Empty values and zero counts are absent; times are RFC 3339, UTC, whole
/// seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationJobStatus {
    /// The generation this was computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Pending`, `Processing`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Time of the first status write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// Time at which it became terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    /// Number of targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_pod_count: Option<i32>,
    /// Targets that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded_pod_count: Option<i32>,
    /// Targets that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_pod_count: Option<i32>,
    /// Targets not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_pod_count: Option<i32>,
    /// Targets started and not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processing_pod_count: Option<i32>,
    /// Targets that have ended, of all: `3/10`. For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<String>,
    /// What holds the whole job back, in a word or two. For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Up to 250 targets, in spec order; absent above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_details: Option<Vec<TargetDetail>>,
    /// The plugin the job is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginBinding>,
    /// The list of targets as frozen at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// Raised by one by each term of leadership.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// Conditions, one of each type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Number and size of the OperationRecords, above 250 targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<RecordsSummary>,
    /// Target indexes by progress, above 250 targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Ranges>,
    /// True if `ranges.succeeded` or `.failed` was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges_truncated: Option<bool>,
    /// The first failures by index, above 250 targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<Vec<Failure>>,
}

/// One target's detail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetDetail {
    /// Its name.
    pub name: String,
    /// `Pending`, `Processing`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Time of its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// Time of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    /// Extras of the plugin and of the host; at most 1 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_info: Option<BTreeMap<String, String>>,
    /// The reason why it failed or waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TargetError>,
    /// UID of the selected object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The attempt; absent means the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// End of the wait before the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<String>,
}

/// The reason why a target failed or waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetError {
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people, at most 256 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The plugin a job is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PluginBinding {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Digest of the component, `sha256:...`.
    pub digest: String,
}

/// The list of targets as frozen at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selection {
    /// `Targets` or `Selector`.
    pub source: String,
    /// Time of the freeze.
    pub time: String,
    /// Digest over the frozen list and the immutable fields.
    pub digest: String,
    /// `Node` if the targets are nodes; absent if they are pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A condition as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// The type, unique in the list.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The generation it was computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last change of `status`.
    pub last_transition_time: String,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

/// Number and size of the OperationRecords of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RecordsSummary {
    /// Number of records.
    pub count: i32,
    /// Targets in each.
    pub size: i32,
}

/// Zero-based index ranges, ascending and merged, such as `0-249,251`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ranges {
    /// Started and not ended; always complete.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub processing: String,
    /// Succeeded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub succeeded: String,
    /// Failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failed: String,
}

/// One failure in a job's summary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Failure {
    /// Zero-based index of the target.
    pub index: i32,
    /// Its name.
    pub name: String,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people, at most 120 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
