//! OperationJob: the operation that a user requests, and its status from the host.
//!
//! Every field is optional when it is read, so that one invalid object never hides the others. `oarlock-core` checks the values. The JSON
//! names are those of KusionStack.

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
    /// The reason why the host could not read the spec. The reason is not stored.
    #[serde(skip)]
    pub unread: Option<UnreadSpec>,
}

/// The reason why a spec was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadSpec {
    /// The reason of the condition `Valid`.
    pub reason: &'static str,
    /// The message for the owner.
    pub message: String,
}

impl UnreadSpec {
    /// Returns the reason for a spec that is too large, has no room or has fields of other types.
    #[must_use]
    pub fn new(message: String) -> Self {
        Self { reason: "Unreadable", message }
    }
}

/// The operation that a user requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationJobSpec {
    /// The action, which names the plugin. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The targets, 1 to 10,000. The list and its order are immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<TargetRef>>,
    /// The number of targets that may start. Absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Seconds between the permission for a target and its first `operate`. 0 or less means no wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_delay_seconds: Option<i32>,
    /// Seconds that each target may take from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i32>,
    /// Seconds that the job stays after its end.
    #[serde(rename = "TTLSecondsAfterFinished", skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// The kind of the targets: `Pod` (default) or `Node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_kind: Option<String>,
    /// Selects the targets once, instead of a list in `targets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<TargetSelector>,
    /// Settings for the plugin: a JSON object that fits the plugin's schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// The most targets in `Processing` at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<IntOrPercent>,
    /// The most targets that may be unavailable at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// The effect of failures on the other targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Further attempts for each target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<RetryPolicy>,
    /// While true, the host starts no target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// If true, the host only shows the first change to each target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// One target in the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetRef {
    /// Name of the pod (or node).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// UID of the object. Absent means the object that has the name when the target starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Names of containers; empty or absent means all regular ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containers: Option<Vec<String>>,
}

/// A selector that chooses targets by label or by owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetSelector {
    /// Selects pods by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Selects the pods of a controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_ref: Option<OwnerSelector>,
}

/// A reference to a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerSelector {
    /// `apiVersion` of the controller.
    pub api_version: String,
    /// `kind` of the controller.
    pub kind: String,
    /// Name of the controller.
    pub name: String,
}

/// An integer or a percentage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// A number of targets.
    Int(i64),
    /// A percentage such as `25%`.
    Percent(String),
}

/// The effect of failures on the rest of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FailurePolicy {
    /// `Continue`, `FailFast` or `Pause`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The tolerated failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<IntOrPercent>,
}

/// The further attempts for each target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RetryPolicy {
    /// Number of further attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i32>,
    /// Seconds before the second attempt, doubled for each further attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_seconds: Option<i32>,
    /// The longest wait between attempts, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff_seconds: Option<i32>,
}

/// The state of a job, written by the host. Empty values and zero counts are absent. Times are RFC 3339 in UTC, with whole seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationJobStatus {
    /// The generation that this status was computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Pending`, `Processing`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Time of the first status write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// Time at which the job ended.
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
    /// Targets that have not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_pod_count: Option<i32>,
    /// Targets that have started and not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processing_pod_count: Option<i32>,
    /// Ended targets, of all targets, such as `3/10`. For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<String>,
    /// The reason why the whole job waits, in one or two words. For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The targets, in spec order. Absent if there are more than 250 targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_details: Option<Vec<TargetDetail>>,
    /// The plugin the job is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginBinding>,
    /// The list of targets, frozen at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// A number that each term of leadership raises by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// Conditions, one of each type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Number and size of the OperationRecords. Only for more than 250 targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<RecordsSummary>,
    /// Target indexes by progress. Only for more than 250 targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Ranges>,
    /// True if `ranges.succeeded` or `ranges.failed` is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges_truncated: Option<bool>,
    /// The first failures, by index. Only for more than 250 targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<Vec<Failure>>,
}

/// The detail of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetDetail {
    /// Name of the target.
    pub name: String,
    /// `Pending`, `Processing`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Time at which the target started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// Time at which the target ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    /// Extras of the plugin and of the host; at most 1 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_info: Option<BTreeMap<String, String>>,
    /// The reason why the target failed or waits.
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

/// The plugin to which a job is bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PluginBinding {
    /// Name of the plugin.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Digest of the component, `sha256:...`.
    pub digest: String,
}

/// The list of targets, frozen at the start of the job.
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

/// A condition, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// The type, unique in the list.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The generation that the condition was computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last change of `status`.
    pub last_transition_time: String,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

/// The number and the size of the OperationRecords of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RecordsSummary {
    /// Number of records.
    pub count: i32,
    /// Targets in each record.
    pub size: i32,
}

/// Ranges of zero-based indexes, ascending and merged, such as `0-249,251`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ranges {
    /// Targets that have started and not ended. Always complete.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub processing: String,
    /// Targets that succeeded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub succeeded: String,
    /// Targets that failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failed: String,
}

/// One failure in the summary of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Failure {
    /// Zero-based index of the target.
    pub index: i32,
    /// Name of the target.
    pub name: String,
    /// A CamelCase word for programs.
    pub reason: String,
    /// One sentence for people, at most 120 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
