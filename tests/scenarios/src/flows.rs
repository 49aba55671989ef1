//! Functions for scenarios that create and read JobFlows, JobTemplates, DaemonJobs and their Jobs.

use http::{Method, StatusCode};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use oarlock_support::install::Way;
use oarlock_support::interception::{Interceptor, WriteRecord};
use serde_json::{Value, json};

use crate::test_cluster::{Backend, TestCluster, furnish_flows, patiently, until_stored};

/// Starts a host with flows on a cluster that has the flow kinds.
///
/// # Errors
/// If the flow kinds cannot be installed, or if the host does not start.
pub async fn begin(cluster: &mut TestCluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    cluster.start_host().await
}

/// Installs the flow kinds on the cluster. Starts no host.
///
/// # Errors
/// If the flow kinds cannot be installed.
pub async fn prepare(cluster: &mut TestCluster) -> anyhow::Result<()> {
    if let Backend::Sim(_) = cluster.backend {
        furnish_flows(&cluster.client, Way::CreateMissing).await?;
    }
    cluster.with_flows = true;
    Ok(())
}

/// Returns the spec of a Job with one container that runs a script.
pub fn work(script: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "c", "image": "busybox", "command": ["sh", "-c", script]}]}}})
}

/// Returns a step that runs a script after these dependencies.
pub fn step(name: &str, script: &str, dependencies: &[&str]) -> Value {
    json!({"name": name, "dependencies": dependencies, "jobTemplate": work(script)})
}

/// Returns a step whose Job is deleted as soon as it has ended.
pub fn expiring(name: &str, dependencies: &[&str]) -> Value {
    let mut step = step(name, "true", dependencies);
    if let Some(job) = step.get_mut("jobTemplate").and_then(Value::as_object_mut) {
        job.insert("ttlSecondsAfterFinished".to_owned(), json!(0));
    }
    step
}

/// Returns the API resource of a flow kind.
pub fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("api.practice.com", "v1alpha1", kind))
}

impl TestCluster {
    /// Returns the objects of a flow kind.
    pub fn flows(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    /// Returns the batch Jobs of the namespace.
    pub fn batch_jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates an object of a flow kind.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn create_flow(&self, kind: &str, name: &str, spec: Value) -> anyhow::Result<DynamicObject> {
        let object = DynamicObject::new(name, &resource(kind)).within(&self.namespace).data(json!({ "spec": spec }));
        Ok(self.flows(kind).create(&PostParams::default(), &object).await?)
    }

    /// Merges a patch into an object of a flow kind.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn patch_flow(&self, kind: &str, name: &str, patch: Value) -> anyhow::Result<()> {
        self.flows(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until `which` returns true for an object.
    ///
    /// # Errors
    /// If the time is over. The error shows the object as it is then.
    pub async fn until_flow(
        &self,
        (kind, name): (&str, &str),
        what: &str,
        which: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        until_stored(self.flows(kind), name, what, which).await
    }

    /// Waits until an object has this state.
    ///
    /// # Errors
    /// If the time is over. The error shows the object as it is then.
    pub async fn until_state(&self, kind: &str, name: &str, state: &str) -> anyhow::Result<Value> {
        let is = |object: &Value| object.pointer("/status/state").is_some_and(|is| is == state);
        self.until_flow((kind, name), state, is).await
    }

    /// Waits until an object has its completion time.
    ///
    /// # Errors
    /// If the time is over. The error shows the object as it is then.
    pub async fn until_completed(&self, kind: &str, name: &str) -> anyhow::Result<Value> {
        let is = |object: &Value| object.pointer("/status/completionTime").is_some();
        self.until_flow((kind, name), "completed", is).await
    }

    /// Returns the names of the batch Jobs, sorted.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn batch_job_names(&self) -> anyhow::Result<Vec<String>> {
        let jobs = self.batch_jobs().list(&ListParams::default()).await?;
        let mut names: Vec<String> = jobs.items.into_iter().filter_map(|job| job.metadata.name).collect();
        names.sort();
        Ok(names)
    }

    /// Returns the number of Jobs with a pod that succeeded.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn succeeded_jobs(&self) -> anyhow::Result<usize> {
        let jobs = self.batch_jobs().list(&ListParams::default()).await?.items;
        let succeeded = |job: &Job| job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0) > 0;
        Ok(jobs.iter().filter(|job| succeeded(job)).count())
    }

    /// Returns the writes of all hosts whose path ends so, each with the status of its answer.
    pub fn writes_to(&self, path: &str) -> Vec<String> {
        let sent = self.interceptors.iter().flat_map(Interceptor::records).filter(|sent| sent.path.ends_with(path));
        sent.map(|sent| format!("{} {} {:?}", sent.verb, sent.path, sent.status)).collect()
    }

    /// Returns the number of batch Jobs that all hosts have created so far.
    pub fn children_made(&self) -> usize {
        let sent = self.interceptors.iter().flat_map(Interceptor::records);
        let makes = |sent: &WriteRecord| sent.verb == Method::POST && sent.path.ends_with("/jobs");
        sent.filter(|sent| makes(sent) && sent.status == Some(StatusCode::CREATED)).count()
    }

    /// Deletes a batch Job and waits until the Job is gone.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn delete_batch_job(&self, name: &str) -> anyhow::Result<()> {
        self.batch_jobs().delete(name, &DeleteParams::background()).await?;
        patiently("the Job is gone", async || Ok(self.batch_jobs().get_opt(name).await?.is_none())).await
    }
}

/// Returns the state of a unit, with its reason if it has one: `Failed/JobDeleted`.
pub fn unit(object: &Value, name: &str) -> String {
    let tables = ["/status/steps", "/status/nodes"].into_iter().filter_map(|table| object.pointer(table)?.as_array());
    let mut units = tables.flatten();
    let unit = units.find(|unit| unit.get("name").is_some_and(|is| is == name));
    let text = |field: &str| unit.and_then(|unit| unit.get(field)?.as_str()).unwrap_or_default();
    match text("reason") {
        "" => text("state").to_owned(),
        reason => format!("{}/{reason}", text("state")),
    }
}

/// Returns true if the object has a condition of this type with status True.
pub fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions
        .into_iter()
        .any(|one| one.get("type").is_some_and(|is| is == kind) && one.get("status").is_some_and(|is| is == "True"))
}
