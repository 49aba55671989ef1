//! The answers about OpsJobs: every field is there, with its type. Source: docs/opsjob-rest.md 5 and 6.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::child::fields::{at, flag, list, number, object, text};
use oarlock_core::ops_job::gone::GoneBy;
use oarlock_core::ops_job::phases::Phase;
use oarlock_core::ops_job::spec::{Defaults, OpsType};
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_history::JobRow;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The answer to a request that made a job.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Created {
    /// The id of the job.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", example = "reboot-node-bcd245")]
    pub(crate) job_id: String,
}

/// The answer to a request that made nothing, for it was a rehearsal.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rehearsed {
    /// Empty.
    pub(crate) job_id: String,
    /// The nodes that it would work on.
    pub(crate) targets: Vec<TargetItem>,
    /// The nodes that it would leave out.
    pub(crate) skipped: Vec<SkippedItem>,
}

/// A target of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TargetItem {
    pub(crate) name: String,
    /// Empty for a node.
    pub(crate) namespace: String,
    pub(crate) uid: String,
}

/// A node that is left out.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SkippedItem {
    pub(crate) node: String,
    /// Such as `NotReady`.
    pub(crate) reason: String,
}

/// A page of jobs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Page {
    /// How many jobs there are, on all pages.
    pub(crate) total_count: usize,
    /// Those of this page.
    pub(crate) items: Vec<Item>,
}

/// A job in a list. Times are `YYYY-MM-DDTHH:MM:SS` in UTC, and empty while there is none.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    /// Its id, which is the name of its OpsJob.
    pub(crate) job_id: String,
    /// Its name, as it was sent.
    pub(crate) job_name: String,
    /// The id of this cluster.
    pub(crate) cluster_id: String,
    /// The workspace that it was for, else the namespace of its workload, else the workspace of all its nodes.
    pub(crate) workspace_id: String,
    /// Who asked for it, by UID or else by name.
    pub(crate) user_id: String,
    /// Who asked for it, by name.
    pub(crate) user_name: String,
    /// addon, preflight, dumplog, reboot or exportimage.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Pending, Running, Succeeded or Failed.
    pub(crate) phase: String,
    pub(crate) creation_time: String,
    pub(crate) start_time: String,
    pub(crate) end_time: String,
    pub(crate) deletion_time: String,
    /// Seconds from its creation to its end by force; none at most 0.
    pub(crate) timeout_second: i64,
    #[serde(skip)]
    pub(crate) created: Timestamp,
    #[serde(skip)]
    pub(crate) uid: String,
    #[serde(skip)]
    pub(crate) seq: i64,
    /// Somebody deleted it: a list has it only where such jobs are asked for.
    #[serde(skip)]
    pub(crate) is_deleted: bool,
}

/// A job with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobAnswer {
    #[serde(flatten)]
    pub(crate) item: Item,
    /// What became true of it, and when.
    pub(crate) conditions: Vec<ConditionItem>,
    /// What was asked for, and what the host added.
    pub(crate) inputs: Vec<NamedValue>,
    /// What came of it.
    pub(crate) outputs: Vec<NamedValue>,
    /// Variables of a preflight.
    pub(crate) env: BTreeMap<String, String>,
    /// What a preflight requests: texts, and `replica` as a number.
    #[schema(value_type = Object)]
    pub(crate) resource: Map<String, Value>,
    /// The image of a preflight.
    pub(crate) image: String,
    /// The script of a preflight, in Base64.
    pub(crate) entry_point: String,
    pub(crate) is_tolerate_all: bool,
    /// The directories of nodes that a preflight sees.
    pub(crate) hostpath: Vec<String>,
    pub(crate) excluded_nodes: Vec<String>,
    pub(crate) ttl_seconds_after_finished: i64,
    pub(crate) batch_count: i64,
    pub(crate) available_ratio: f64,
    pub(crate) security_upgrade: bool,
    /// The same as securityUpgrade.
    pub(crate) security_operation: bool,
    pub(crate) progress: ProgressItem,
    /// The nodes that it works on, in the order of their turn.
    pub(crate) targets: Vec<TargetItem>,
    /// What holds it now.
    pub(crate) waiting_for: Vec<String>,
}

/// How many targets are how far.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ProgressItem {
    pub(crate) total: i64,
    pub(crate) succeeded: i64,
    pub(crate) failed: i64,
    pub(crate) processing: i64,
    pub(crate) pending: i64,
    pub(crate) skipped: i64,
}

/// A name and a value.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct NamedValue {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// A condition, as Kubernetes has them.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionItem {
    #[serde(rename = "type")]
    kind: String,
    /// True, False or Unknown.
    status: String,
    reason: String,
    message: String,
    /// RFC 3339 with `Z`.
    last_transition_time: String,
}

/// A time as answers have it; empty where there is none.
pub(crate) fn shown(time: Option<Timestamp>) -> String {
    time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S").to_string()).unwrap_or_default()
}

impl Item {
    /// Of a job as it is held.
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
    /// Of a row of the history.
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
    /// Of a job, and the document that it was read from.
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
            // All at once is 0.
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
