//! OperationRecord: the detail of up to 250 targets of a job that has more than its status can hold.
//!
//! Source: docs/operationjob.md 2.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::TargetDetail;

/// The detail of one shard of a job's targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationRecord {
    /// `oarlock.dev/v1alpha1`.
    pub api_version: String,
    /// `OperationRecord`.
    pub kind: String,
    /// Standard object metadata; the job is the controller owner.
    pub metadata: ObjectMeta,
    /// The fields of the record, inlined: it has no spec and no status.
    #[serde(flatten)]
    pub record: OperationRecordSpec,
}

/// The fields of a record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OperationRecordSpec {
    /// The job it belongs to.
    pub job: RecordedJob,
    /// Its number, from 0.
    pub shard: i32,
    /// Index of its first target: 250 times the shard.
    pub first_index: i32,
    /// The job's epoch when the record was last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
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
    /// The targets, in spec order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetDetail>,
}

/// The job a record belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RecordedJob {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}
