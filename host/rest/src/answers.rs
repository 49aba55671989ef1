//! The answers about OpsJobs. Every field is always present and has a fixed type. Source: docs/opsjob-rest.md 5 and 6.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::fields::{at, flag, list, number, object, text};
use oarlock_core::ops_job::gone::GoneBy;
use oarlock_core::ops_job::phases::Phase;
use oarlock_core::ops_job::spec::{Defaults, OpsType};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_history::JobRow;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The answer to a request that created a job.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Created {
    /// The id of the new job, which is the name of its OpsJob.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", example = "reboot-node-bcd245")]
    pub(crate) job_id: String,
}

/// The answer to a dry run, which creates no job.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rehearsed {
    /// Always empty, because a dry run creates no job.
    pub(crate) job_id: String,
    /// The nodes that the job would work on, in the order of work.
    pub(crate) targets: Vec<TargetItem>,
    /// The nodes that the job would leave out, each with the reason.
    pub(crate) skipped: Vec<SkippedItem>,
}

/// A target of a job: a Kubernetes object.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TargetItem {
    /// The name of the object.
    pub(crate) name: String,
    /// The namespace of the object. Empty for a node.
    pub(crate) namespace: String,
    /// The UID of the object.
    pub(crate) uid: String,
}

/// A node that the job leaves out.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SkippedItem {
    /// The name of the node.
    pub(crate) node: String,
    /// The reason in CamelCase, such as `NotReady`.
    pub(crate) reason: String,
}

/// One page of a list of jobs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Page {
    /// The number of matching jobs that the caller may see, on all pages together.
    pub(crate) total_count: usize,
    /// The jobs of this page, in the requested order.
    pub(crate) items: Vec<Item>,
}

/// A job in a list. Times have the form `YYYY-MM-DDTHH:MM:SS` in UTC. A time is empty until it is known.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    /// The id of the job, which is the name of its OpsJob.
    pub(crate) job_id: String,
    /// The name of the job, as the caller sent it.
    pub(crate) job_name: String,
    /// The id of the cluster that this server serves.
    pub(crate) cluster_id: String,
    /// The input `workspace`; otherwise the namespace of the first workload; otherwise the workspace that all nodes of the job share.
    /// Empty if there is no such workspace.
    pub(crate) workspace_id: String,
    /// The UID of the owner of the job. The name of the owner, if the owner has no UID. Empty if the job has no owner.
    pub(crate) user_id: String,
    /// The name of the owner of the job. Empty if the job has no owner.
    pub(crate) user_name: String,
    /// The type of the job: addon, preflight, dumplog, reboot or exportimage.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The phase of the job: Pending, Running, Succeeded or Failed.
    pub(crate) phase: String,
    /// The time at which the job was created.
    pub(crate) creation_time: String,
    /// The time at which work on the first target began.
    pub(crate) start_time: String,
    /// The time at which the job ended.
    pub(crate) end_time: String,
    /// The time at which the deletion of the job was requested.
    pub(crate) deletion_time: String,
    /// Seconds from the creation of the job until the host ends the job by force. No limit if 0 or less.
    pub(crate) timeout_second: i64,
    #[serde(skip)]
    pub(crate) created: Timestamp,
    #[serde(skip)]
    pub(crate) uid: String,
    #[serde(skip)]
    pub(crate) seq: i64,
    /// True if a user deleted the job. A list contains deleted jobs only if the query asks for them.
    #[serde(skip)]
    pub(crate) is_deleted: bool,
}

/// A job with its request, its progress and its outputs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobAnswer {
    #[serde(flatten)]
    pub(crate) item: Item,
    /// The conditions of the job, as in the status of its OpsJob.
    pub(crate) conditions: Vec<ConditionItem>,
    /// The inputs of the request, and the inputs that the host added.
    pub(crate) inputs: Vec<NamedValue>,
    /// The outputs of the job. Files are addresses that expire. An address is empty if the caller may not read the file.
    pub(crate) outputs: Vec<NamedValue>,
    /// Environment variables of a preflight.
    pub(crate) env: BTreeMap<String, String>,
    /// Resources that a preflight requests: texts, and `replica` as a number.
    #[schema(value_type = Object)]
    pub(crate) resource: Map<String, Value>,
    /// The container image of a preflight.
    pub(crate) image: String,
    /// The script of a preflight, in Base64.
    pub(crate) entry_point: String,
    /// True if cordoned and tainted nodes are targets too.
    pub(crate) is_tolerate_all: bool,
    /// Absolute paths of node directories that a preflight mounts.
    pub(crate) hostpath: Vec<String>,
    /// Names and hosts of nodes that the job must leave out.
    pub(crate) excluded_nodes: Vec<String>,
    /// Seconds that the job stays after its end. A negative value keeps the job forever.
    pub(crate) ttl_seconds_after_finished: i64,
    /// The most nodes that the job works on at once. 0 means all nodes.
    pub(crate) batch_count: i64,
    /// The share of nodes that must succeed: above 0 and up to 1.
    pub(crate) available_ratio: f64,
    /// addon: true if the job waits for each node until no pod of a workload is on it.
    /// preflight: true if the job leaves out nodes with such pods.
    pub(crate) security_upgrade: bool,
    /// Another name of `securityUpgrade`, with the same value.
    pub(crate) security_operation: bool,
    /// The number of targets in each state.
    pub(crate) progress: ProgressItem,
    /// The targets of the job, in the order of work. Nodes, or the pods of a dumplog or an exportimage.
    pub(crate) targets: Vec<TargetItem>,
    /// Messages about the conditions that the job waits for now.
    pub(crate) waiting_for: Vec<String>,
}

/// The number of targets in each state. `total` is the number of all targets.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ProgressItem {
    /// All targets of the job.
    pub(crate) total: i64,
    /// Targets that succeeded.
    pub(crate) succeeded: i64,
    /// Targets that failed.
    pub(crate) failed: i64,
    /// Targets that the job works on now.
    pub(crate) processing: i64,
    /// Targets that wait for their turn.
    pub(crate) pending: i64,
    /// Targets that the job did not work on and will not work on.
    pub(crate) skipped: i64,
}

/// A name and its value.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct NamedValue {
    /// The name.
    pub(crate) name: String,
    /// The value of this name.
    pub(crate) value: String,
}

/// A condition of a job, with the fields of a Kubernetes condition.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionItem {
    /// The type of the condition, such as `Succeeded`.
    #[serde(rename = "type")]
    kind: String,
    /// The status of the condition: True, False or Unknown.
    status: String,
    /// The reason in CamelCase, for programs.
    reason: String,
    /// Details in plain text, for people.
    message: String,
    /// The time of the last change of the status, in RFC 3339 with `Z`.
    last_transition_time: String,
}

/// Returns a time in the format of answers, or an empty text if there is none.
pub(crate) fn shown(time: Option<Timestamp>) -> String {
    time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S").to_string()).unwrap_or_default()
}

impl Item {
    /// Returns the list item of a stored job.
    pub(crate) fn of(job: &StoredOps, cluster: &str) -> Self {
        let (view, summary) = (&job.view, &job.summary);
        Self {
            job_id: view.name.clone(),
            job_name: summary.job_name.clone(),
            cluster_id: cluster.to_owned(),
            workspace_id: summary.workspace.clone(),
            user_id: summary.user_id.clone(),
            user_name: summary.user_name.clone(),
            kind: summary.kind.clone(),
            phase: view.status.phase.unwrap_or(Phase::Pending).word().to_owned(),
            creation_time: shown(view.created),
            start_time: shown(view.status.started),
            end_time: shown(view.status.finished),
            deletion_time: shown(summary.deleted),
            timeout_second: summary.timeout,
            created: view.created.unwrap_or_default(),
            uid: view.uid.clone(),
            seq: view.place_in_second(),
            is_deleted: job.gone_by == Some(GoneBy::Deletion),
        }
    }
}

impl Item {
    /// Returns the list item of a row of the history.
    pub(crate) fn of_row(row: JobRow, cluster: &str) -> Self {
        Self {
            cluster_id: cluster.to_owned(),
            creation_time: shown(Some(row.created)),
            start_time: shown(row.started),
            end_time: shown(row.ended),
            deletion_time: shown(row.deleted),
            timeout_second: row.timeout,
            created: row.created,
            seq: row.seq,
            is_deleted: row.gone_by == Some(GoneBy::Deletion),
            job_id: row.job_id,
            job_name: row.job_name,
            workspace_id: row.workspace_id,
            user_id: row.user_id,
            user_name: row.user_name,
            kind: row.kind,
            phase: row.phase,
            uid: row.uid,
        }
    }
}

impl JobAnswer {
    /// Returns the answer about a job, from its list item and its document.
    pub(crate) fn of(item: Item, document: &Value, defaults: Defaults) -> Self {
        let spec = document.get("spec").unwrap_or(&Value::Null);
        let status = document.get("status").unwrap_or(&Value::Null);
        let own = |field: &str| text(spec, field).unwrap_or_default().to_owned();
        let texts = |of: &Value, field: &str| {
            list(of, field).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        let mut inputs = named_values(spec, "/inputs");
        inputs.extend(named_values(status, "/addedInputs"));
        let mut resource = object(spec, "/resource").cloned().unwrap_or_default();
        resource.extend(at(spec, "/replica").map(|replica| ("replica".to_owned(), replica.clone())));
        let env = object(spec, "/env").into_iter().flatten();
        let security_upgrade = flag(spec, "/securityUpgrade");
        let is_check = item.kind == OpsType::Preflight.word();
        Self {
            item,
            conditions: list(status, "/conditions").iter().map(ConditionItem::read).collect(),
            inputs,
            outputs: named_values(status, "/outputs"),
            env: env.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect(),
            resource,
            image: own("/image"),
            entry_point: own("/entryPoint"),
            is_tolerate_all: flag(spec, "/isTolerateAll"),
            hostpath: texts(spec, "/hostpath"),
            excluded_nodes: texts(spec, "/excludedNodes"),
            ttl_seconds_after_finished: number(spec, "/ttlSecondsAfterFinished").unwrap_or(defaults.ttl),
            // A batch count of 0 means all nodes at once.
            batch_count: number(spec, "/batchCount").filter(|count| *count > 0).unwrap_or(i64::from(!is_check)),
            available_ratio: own("/availableRatio").parse().ok().filter(|ratio| *ratio > 0.0).unwrap_or(1.0),
            security_upgrade,
            security_operation: security_upgrade,
            progress: ProgressItem::read(status),
            targets: list(spec, "/targets").iter().map(TargetItem::read).collect(),
            waiting_for: texts(status, "/waitingFor"),
        }
    }
}

impl TargetItem {
    fn read(target: &Value) -> Self {
        let own = |field: &str| text(target, field).unwrap_or_default().to_owned();
        Self { name: own("/name"), namespace: own("/namespace"), uid: own("/uid") }
    }
}

impl ProgressItem {
    fn read(status: &Value) -> Self {
        let count = |field: &str| number(status, &format!("/progress/{field}")).unwrap_or(0);
        Self {
            total: count("total"),
            succeeded: count("succeeded"),
            failed: count("failed"),
            processing: count("processing"),
            pending: count("pending"),
            skipped: count("skipped"),
        }
    }
}

impl ConditionItem {
    fn read(condition: &Value) -> Self {
        let own = |field: &str| text(condition, field).unwrap_or_default().to_owned();
        Self {
            kind: own("/type"),
            status: own("/status"),
            reason: own("/reason"),
            message: own("/message"),
            last_transition_time: own("/lastTransitionTime"),
        }
    }
}

fn named_values(of: &Value, field: &str) -> Vec<NamedValue> {
    let own = |value: &Value, field: &str| text(value, field).unwrap_or_default().to_owned();
    list(of, field).iter().map(|value| NamedValue { name: own(value, "/name"), value: own(value, "/value") }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_is_there_with_its_type_and_none_is_null() {
        let document = json!({"metadata": {"name": "a-bcdfgh", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"type": "reboot", "inputs": [{"name": "node", "value": "n"}]}});
        let job = StoredOps::read(&document, Defaults::default()).unwrap();
        let detail = JobAnswer::of(Item::of(&job, "local"), &document, Defaults::default());
        let shown = serde_json::to_value(&detail).unwrap();
        let fields = shown.as_object().unwrap();
        assert_eq!(fields.len(), 31, "{fields:?}");
        assert!(fields.values().all(|value| !value.is_null()));
        assert_eq!((&shown["phase"], &shown["creationTime"]), (&json!("Pending"), &json!("2026-01-01T00:00:00")));
    }
}
