//! OperationRecord: the details of up to 250 targets of a job whose status cannot hold all its targets.
//!
//! Source: docs/operationjob.md 2.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::TargetDetail;

/// The details of one part of a job's targets.
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
    /// The OperationJob of this record.
    pub job: RecordedJob,
    /// The number of this record, from 0.
    pub shard: i32,
    /// Index of the first target of this record: 250 times `shard`.
    pub first_index: i32,
    /// The epoch of the job when the host last wrote this record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
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
    /// The targets, in spec order. Stored as one line of JSON each.
    #[serde(with = "lines", skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetDetail>,
}

/// The job to which a record belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RecordedJob {
    /// Name of the job.
    pub name: String,
    /// UID of the job.
    pub uid: String,
}

/// Stores details as lines of JSON. Typed fields cost the API server three times as much, because it decodes, prunes, validates and
/// compares each field for each write.
mod lines {
    use serde::ser::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use serde_json::Value;

    use crate::TargetDetail;

    pub(super) fn serialize<S: Serializer>(targets: &[TargetDetail], serializer: S) -> Result<S::Ok, S::Error> {
        let lines: Result<Vec<String>, _> = targets.iter().map(serde_json::to_string).collect();
        serializer.collect_seq(lines.map_err(S::Error::custom)?)
    }

    /// Reads the lines. An invalid line becomes an empty detail and does not affect the other lines.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TargetDetail>, D::Error> {
        let lines = Vec::<Value>::deserialize(deserializer)?;
        let detail = |line: &Value| line.as_str().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        Ok(lines.iter().map(detail).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails loudly")]

    use serde_json::json;

    use super::*;

    #[test]
    fn each_target_is_stored_as_a_line_of_json_and_read_back() {
        let detail = TargetDetail { name: "a".into(), progress: Some("Processing".into()), ..TargetDetail::default() };
        let spec = OperationRecordSpec { targets: vec![detail.clone()], ..OperationRecordSpec::default() };
        let stored = serde_json::to_value(&spec).unwrap();
        let line = stored["targets"][0].as_str().unwrap();
        assert_eq!(serde_json::from_str::<TargetDetail>(line).unwrap(), detail);
        assert_eq!(serde_json::from_value::<OperationRecordSpec>(stored).unwrap(), spec);
    }

    #[test]
    fn a_line_that_is_no_detail_costs_no_other_its_own() {
        let stored = json!({"targets": ["{\"name\": \"a\"}", "{", 5, "{\"name\": 5}", "{\"name\": \"b\"}"]});
        let read: OperationRecordSpec = serde_json::from_value(stored).unwrap();
        let names: Vec<&str> = read.targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["a", "", "", "", "b"]);
    }
}
