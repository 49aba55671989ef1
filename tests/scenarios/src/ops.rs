//! Functions for scenarios that create and read OpsJobs, and the properties that must hold of them at every moment.

use std::collections::BTreeMap;

use anyhow::ensure;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use oarlock::manifests::{HostAccount, ops_manifests};
use oarlock_sim::world::{History, Version};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use crate::jobs;
use crate::test_cluster::{Backend, TestCluster, until_stored};

/// The namespace of the child OperationJobs.
pub const CHILDREN: &str = "oarlock-ops";

/// Returns the API resource of OpsJob.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OpsJob"))
}

/// Installs OpsJobs on a cluster without a host. Returns the history of all their versions from now on.
///
/// # Errors
/// If the manifests cannot be installed.
pub async fn prepare(cluster: &mut TestCluster) -> anyhow::Result<History> {
    let way = if let Backend::Sim(_) = cluster.backend { Way::CreateMissing } else { Way::Apply };
    let documents = install::documents(&ops_manifests(&HostAccount::default()))?;
    install::install(&cluster.client, &documents, way).await?;
    cluster.with_ops = true;
    Ok(History::record(&cluster.client, vec![resource()]))
}

impl TestCluster {
    /// Returns the OpsJobs.
    pub fn ops(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource())
    }

    /// Returns the OperationJobs that belong to OpsJobs.
    pub fn ops_children(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), CHILDREN, &jobs::resource())
    }

    /// Creates an OpsJob.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn create_ops(&self, name: &str, spec: Value) -> Result<DynamicObject, kube::Error> {
        let object = DynamicObject::new(name, &resource()).data(json!({ "spec": spec }));
        self.ops().create(&PostParams::default(), &object).await
    }

    /// Merges a patch into an OpsJob.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn patch_ops(&self, name: &str, patch: Value) -> Result<(), kube::Error> {
        self.ops().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Deletes an OpsJob, without waiting until it is gone.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn delete_ops(&self, name: &str) -> Result<(), kube::Error> {
        self.ops().delete(name, &DeleteParams::default()).await.map(drop)
    }

    /// Waits until `which` returns true for an OpsJob.
    ///
    /// # Errors
    /// If the time is over. The error shows the OpsJob as it is then.
    pub async fn until_ops(&self, name: &str, what: &str, which: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        until_stored(self.ops(), name, what, which).await
    }

    /// Waits until an OpsJob has ended with this phase and this reason.
    ///
    /// # Errors
    /// If the time is over, or if the phase or the reason differs. The error shows the OpsJob as it is then.
    pub async fn until_ops_ended(&self, name: &str, phase: &str, reason: &str) -> anyhow::Result<Value> {
        let job = self.until_ops(name, phase, |job| job.pointer("/status/finishedAt").is_some()).await?;
        ensure!(condition(&job, phase).is_some_and(|one| one["reason"] == reason), "{job:#}");
        ensure!(job.pointer("/status/phase").is_some_and(|is| is == phase), "{job:#}");
        Ok(job)
    }
}

/// Returns the condition of a type.
pub fn condition<'a>(job: &'a Value, kind: &str) -> Option<&'a Value> {
    job.pointer("/status/conditions")?.as_array()?.iter().find(|one| one["type"] == kind)
}

/// Returns the message of a condition.
pub fn said(job: &Value, kind: &str) -> String {
    condition(job, kind).and_then(|one| one["message"].as_str()).unwrap_or_default().to_owned()
}

/// Returns the value of an output as JSON.
pub fn output(job: &Value, name: &str) -> Value {
    let outputs = job.pointer("/status/outputs").and_then(Value::as_array).into_iter().flatten();
    let found = outputs.into_iter().find(|output| output["name"] == name).and_then(|output| output["value"].as_str());
    found.map_or(Value::Null, |text| serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
}

fn phase(version: &Version) -> usize {
    let words = ["Pending", "Running", "Succeeded", "Failed"];
    version
        .at("/status/phase")
        .as_str()
        .and_then(|word| words.iter().position(|one| *one == word))
        .map_or(0, |at| at + 1)
}

/// Returns the UIDs of the nodes that a job claims at a version.
fn held(version: &Version) -> Vec<String> {
    let conditions = version.at("/status/conditions").as_array().into_iter().flatten();
    let mut resolved = conditions.filter(|one| one["type"] == "TargetsResolved" && one["status"] == "True");
    let finalizers = version.at("/metadata/finalizers").as_array().into_iter().flatten();
    let is_kept = finalizers.into_iter().any(|one| one == "oarlock.dev/opsjob");
    if version.is_end || !is_kept || resolved.next().is_none() {
        return Vec::new();
    }
    let targets = version.at("/spec/targets").as_array().into_iter().flatten();
    targets.filter_map(|target| target["uid"].as_str().map(str::to_owned)).collect()
}

/// Returns the violations of the OpsJob invariants. Source: docs/opsjob.md 4.
pub fn judge(history: &History) -> Vec<String> {
    let mut breaches: Vec<String> = Vec::new();
    let mut before: BTreeMap<String, Version> = BTreeMap::new();
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for version in history.versions().into_iter().filter(|version| version.plural == "opsjobs") {
        let name = version.name.clone();
        if let Some(old) = before.get(&version.uid).filter(|_| !version.is_end) {
            let (was, is) = (phase(old), phase(&version));
            if was > is || was > 2 && was != is {
                breaches.push(format!(
                    "I2: {name} goes from {} to {}",
                    old.at("/status/phase"),
                    version.at("/status/phase")
                ));
            }
            let outcome = |version: &Version| {
                ["/status/phase", "/status/finishedAt", "/status/outputs", "/status/conditions", "/status/progress"]
                    .map(|pointer| version.at(pointer).clone())
            };
            if was > 2 && outcome(old) != outcome(&version) {
                breaches.push(format!(
                    "I1: {name} changes after its end: {:?} to {:?}",
                    outcome(old),
                    outcome(&version)
                ));
            }
        }
        if (phase(&version) > 2) == version.at("/status/finishedAt").is_null() {
            breaches.push(format!(
                "I2: {name} is {} and ended at {}",
                version.at("/status/phase"),
                version.at("/status/finishedAt")
            ));
        }
        holders.values_mut().for_each(|jobs| jobs.retain(|uid| *uid != version.uid));
        for node in held(&version) {
            let jobs = holders.entry(node.clone()).or_default();
            jobs.push(version.uid.clone());
            if jobs.len() > 1 {
                breaches.push(format!("I7: {name} holds node {node} beside another job"));
            }
        }
        before.insert(version.uid.clone(), version);
    }
    breaches
}
