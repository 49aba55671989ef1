//! Manages OpsJobs by the Kubernetes API.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use oarlock_core::ops_job::body::{Body, FieldValidation};
use oarlock_core::ops_job::job_id::job_id;
use oarlock_core::ops_job::names::{API_VERSION, OPS_KIND};
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::summary::OpsSummary;
use oarlock_core::ops_job::workload::WorkloadName;
use serde_json::{Value, json};

use super::ListFilter;
use crate::commands::jobs::follow::Followed as _;
use crate::commands::jobs::ops::OpsClient;

/// The OpsJobs of a cluster.
pub(super) struct Cluster {
    pub(super) client: OpsClient,
}

impl Cluster {
    pub(super) fn new(client: OpsClient) -> Self {
        Self { client }
    }

    /// Creates the job that a body describes. Returns its id.
    pub(super) async fn create(&self, body: &str) -> anyhow::Result<String> {
        let body = Body::read(body.as_bytes(), FieldValidation::Strict, Defaults::default());
        let Body { name, spec, asked, .. } = body.map_err(|refusal| anyhow::anyhow!(refusal.message))?;
        // Without the REST server, nothing finds a workload by a shorter name.
        if let Some(words) = asked.scope.workloads.iter().find(|words| WorkloadName::read(words).is_none()) {
            anyhow::bail!("workload {words}: write it as namespace/kind/name, such as default/deployment/web");
        }
        // The API server chooses the rest of the name.
        let id = job_id(&name, [0; 6]);
        let begin = id.rsplit_once('-').map_or("", |(begin, _)| begin);
        let document = json!({"apiVersion": API_VERSION, "kind": OPS_KIND,
            "metadata": {"generateName": format!("{begin}-")}, "spec": spec});
        let document: DynamicObject = serde_json::from_value(document)?;
        let made = self.client.objects().create(&PostParams::default(), &document).await;
        Ok(made.map_err(|cause| self.client.explained(cause, "create", &name))?.name_any())
    }

    /// Returns the matching jobs, the newest first.
    pub(super) async fn list(&self, filters: &[ListFilter], limit: u32) -> anyhow::Result<Vec<Value>> {
        let listed = self.client.objects().list(&ListParams::default()).await;
        let listed = listed.map_err(|cause| self.client.explained(cause, "list", ""))?;
        let mut jobs: Vec<DynamicObject> = listed.items;
        jobs.sort_by_key(|job| std::cmp::Reverse((job.creation_timestamp().map(|time| time.0), job.name_any())));
        let documents = jobs.into_iter().filter_map(|job| serde_json::to_value(job).ok());
        Ok(documents.filter(|job| matches(job, filters)).take(limit as usize).map(|job| item(&job)).collect())
    }

    pub(super) async fn stop(&self, id: &str) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"stop": true}}));
        let stopped = self.client.objects().patch(id, &PatchParams::default(), &patch).await;
        stopped.map(drop).map_err(|cause| self.client.explained(cause, "stop", id))
    }

    pub(super) async fn delete(&self, id: &str) -> anyhow::Result<()> {
        let deleted = self.client.objects().delete(id, &DeleteParams::default()).await;
        deleted.map(drop).map_err(|cause| self.client.explained(cause, "delete", id))
    }
}

/// Returns a job in the form of the REST API's list.
fn item(job: &Value) -> Value {
    let summary = OpsSummary::read(job);
    let own = |pointer: &str| job.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let time = |pointer: &str| own(pointer).trim_end_matches('Z').to_owned();
    let phase = Some(own("/status/phase")).filter(|phase| !phase.is_empty()).unwrap_or("Pending");
    json!({"jobId": own("/metadata/name"), "jobName": summary.job_name, "workspaceId": summary.workspace,
        "userId": summary.user_id, "userName": summary.user_name, "type": summary.kind, "phase": phase,
        "creationTime": time("/metadata/creationTimestamp"), "startTime": time("/status/startedAt"),
        "endTime": time("/status/finishedAt"), "deletionTime": time("/metadata/deletionTimestamp"),
        "timeoutSecond": summary.timeout})
}

fn matches(job: &Value, filters: &[ListFilter]) -> bool {
    let summary = OpsSummary::read(job);
    let phase = job.pointer("/status/phase").and_then(Value::as_str).unwrap_or("Pending");
    let id = job.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let has = |text: &str, part: &str| text.to_ascii_lowercase().contains(&part.to_ascii_lowercase());
    filters.iter().all(|ListFilter { name, value }| match *name {
        "type" => summary.kind == *value,
        "phase" => phase == value,
        "userName" => has(&summary.user_name, value),
        "jobName" => has(&summary.job_name, value) || has(id, value),
        _ => summary.workspace == *value,
    })
}
