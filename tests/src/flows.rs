//! JobFlows, JobTemplates and DaemonJobs for scenarios: to make them, to look at them and at their Jobs.

use http::{Method, StatusCode};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use oarlock_bed::install::Way;
use oarlock_bed::interception::{Interceptor, WriteRecord};
use serde_json::{Value, json};

use crate::rig::{Ground, Rig, furnish_flows, patiently, until_stored};

/// A host with flows, on a cluster with their kinds.
///
/// # Errors
/// If they cannot be installed, or the host does not start.
pub async fn begin(rig: &mut Rig) -> anyhow::Result<()> {
    prepare(rig).await?;
    rig.start_host().await
}

/// A cluster with the kinds of flows, and no host yet.
///
/// # Errors
/// If they cannot be installed.
pub async fn prepare(rig: &mut Rig) -> anyhow::Result<()> {
    if let Ground::Sim(_) = rig.ground {
        furnish_flows(&rig.client, Way::CreateMissing).await?;
    }
    rig.with_flows = true;
    Ok(())
}

/// One container that runs a script.
pub fn work(script: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "c", "image": "busybox", "command": ["sh", "-c", script]}]}}})
}

/// A step that runs a script after these.
pub fn step(name: &str, script: &str, dependencies: &[&str]) -> Value {
    json!({"name": name, "dependencies": dependencies, "jobTemplate": work(script)})
}

/// A step whose Job goes as soon as it has ended.
pub fn expiring(name: &str, dependencies: &[&str]) -> Value {
    let mut step = step(name, "true", dependencies);
    if let Some(job) = step.get_mut("jobTemplate").and_then(Value::as_object_mut) {
        job.insert("ttlSecondsAfterFinished".to_owned(), json!(0));
    }
    step
}

/// The resource of a kind of flows.
pub fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("api.practice.com", "v1alpha1", kind))
}

impl Rig {
    /// The objects of a kind of flows.
    pub fn flows(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    /// The batch Jobs of the namespace.
    pub fn batch_jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates an object of a kind of flows.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn create_flow(&self, kind: &str, name: &str, spec: Value) -> anyhow::Result<DynamicObject> {
        let object = DynamicObject::new(name, &resource(kind)).within(&self.namespace).data(json!({ "spec": spec }));
        Ok(self.flows(kind).create(&PostParams::default(), &object).await?)
    }

    /// Merges a patch into an object of a kind of flows.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn patch_flow(&self, kind: &str, name: &str, patch: Value) -> anyhow::Result<()> {
        self.flows(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until an object is as `which` wants it.
    ///
    /// # Errors
    /// Shows the object as it is when patience ends.
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
    /// Shows the object as it is when patience ends.
    pub async fn until_state(&self, kind: &str, name: &str, state: &str) -> anyhow::Result<Value> {
        let is = |object: &Value| object.pointer("/status/state").is_some_and(|is| is == state);
        self.until_flow((kind, name), state, is).await
    }

    /// Waits until nothing of an object is active any more.
    ///
    /// # Errors
    /// Shows the object as it is when patience ends.
    pub async fn until_completed(&self, kind: &str, name: &str) -> anyhow::Result<Value> {
        let is = |object: &Value| object.pointer("/status/completionTime").is_some();
        self.until_flow((kind, name), "completed", is).await
    }

    /// The names of the batch Jobs, sorted.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn batch_job_names(&self) -> anyhow::Result<Vec<String>> {
        let jobs = self.batch_jobs().list(&ListParams::default()).await?;
        let mut names: Vec<String> = jobs.items.into_iter().filter_map(|job| job.metadata.name).collect();
        names.sort();
        Ok(names)
    }

    /// How many Jobs have a pod that succeeded.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn succeeded_jobs(&self) -> anyhow::Result<usize> {
        let jobs = self.batch_jobs().list(&ListParams::default()).await?.items;
        let succeeded = |job: &Job| job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0) > 0;
        Ok(jobs.iter().filter(|job| succeeded(job)).count())
    }

    /// The writes of all hosts so far whose path ends so, and how each was answered.
    pub fn writes_to(&self, path: &str) -> Vec<String> {
        let sent = self.wires.iter().flat_map(Interceptor::records).filter(|sent| sent.path.ends_with(path));
        sent.map(|sent| format!("{} {} {:?}", sent.verb, sent.path, sent.status)).collect()
    }

    /// How many batch Jobs all hosts so far have made.
    pub fn children_made(&self) -> usize {
        let sent = self.wires.iter().flat_map(Interceptor::records);
        let makes = |sent: &WriteRecord| sent.verb == Method::POST && sent.path.ends_with("/jobs");
        sent.filter(|sent| makes(sent) && sent.status == Some(StatusCode::CREATED)).count()
    }

    /// Deletes a batch Job and waits until it is gone.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn delete_batch_job(&self, name: &str) -> anyhow::Result<()> {
        self.batch_jobs().delete(name, &DeleteParams::background()).await?;
        patiently("the Job is gone", async || Ok(self.batch_jobs().get_opt(name).await?.is_none())).await
    }
}

/// The state of a unit, and its reason where it has one: `Failed/JobDeleted`.
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

/// True where a condition of this type is True.
pub fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions
        .into_iter()
        .any(|one| one.get("type").is_some_and(|is| is == kind) && one.get("status").is_some_and(|is| is == "True"))
}
