//! A separate cluster for one contender of the scenario `beside-bare`.
//!
//! It has a new control plane with what `oarlock manifests` prints, a CollaSet whose pods do not ask to be replaced yet, and the
//! CollaSet's controller. Dropping it ends the cluster.

use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use oarlock_sim::world::{Seedbed, SetKey, collaset_crd};
use oarlock_support::accounts::Account;
use oarlock_support::install::{self, Way};
use tokio::time::sleep;

use super::admission::PolicyNames;
use super::controller::{Controller, as_controller};
use super::pods;
use super::verdict::{PairVerdict, judge};
use crate::arguments::On;
use crate::backend::Backend;
use crate::children::manifests;
use crate::usage::Usage;

/// The namespace of the pods.
pub(crate) const NAMESPACE: &str = "beside-bare";
/// Pods that are created at once.
const CREATED_AT_ONCE: usize = 16;
/// An API server is quiet once it uses less CPU time than this in a second. A newly started server has work of its own.
const QUIET: Duration = Duration::from_millis(60);
/// How many seconds the API server may take to become quiet.
const QUIET_WITHIN: u32 = 60;
const SECOND: Duration = Duration::from_secs(1);

/// A cluster that is ready for a contender.
pub(crate) struct PreparedCluster {
    pub(crate) backend: Backend,
    /// The bench's own client.
    pub(crate) client: Client,
    pub(crate) controller: Controller,
    /// Names and UIDs of the origins.
    pub(crate) targets: Vec<(String, String)>,
    /// The policies that the API server evaluates for writes of pods.
    pub(crate) policies: PolicyNames,
    /// The size in bytes of an origin as the API server shows it, with the API server's additions.
    pub(crate) pod_bytes: usize,
}

impl PreparedCluster {
    /// Starts a cluster.
    ///
    /// # Errors
    /// If the cluster cannot be started, or the server refuses an object.
    pub(crate) async fn start(on: On, targets: usize) -> anyhow::Result<Self> {
        let backend = Backend::for_contenders(on).await?;
        let client = backend.client(Account::Admin).await?;
        let (owner, targets) = plant(&client, targets).await?;
        let first = targets.first().map(|(name, _)| name.as_str()).context("there are no targets")?;
        let pod_bytes = read(&client, first).await?.len();
        let policies = PolicyNames::of(&manifests().await?);
        if on == On::Real {
            let mut probe = pods::origin(&owner, targets.len());
            probe.metadata.namespace = Some(NAMESPACE.to_owned());
            policies.until_in_force(&client, probe).await?;
        }
        // The probe had the id after the last origin's.
        let next_id = targets.len() + 1;
        let controller = Controller::start(backend.client(Account::World).await?, NAMESPACE, owner, next_id).await?;
        Ok(Self { backend, client, controller, targets, policies, pod_bytes })
    }

    /// Returns the names of the origins.
    pub(crate) fn names(&self) -> Vec<String> {
        self.targets.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Waits until the API server is almost idle, and returns the CPU time that it used in the last second. Returns `None` if the
    /// API server is not a separate process.
    ///
    /// # Errors
    /// If the API server has ended.
    pub(crate) async fn until_quiet(&self) -> anyhow::Result<Option<Duration>> {
        let Some(server) = self.backend.api_server() else { return Ok(None) };
        let mut used = Duration::MAX;
        for _ in 0..QUIET_WITHIN {
            let before = Usage::of(server)?;
            sleep(SECOND).await;
            used = Usage::of(server)?.since(&before).cpu;
            if used < QUIET {
                return Ok(Some(used));
            }
        }
        eprintln!("the API server still uses {used:?} of CPU time in a second, with nothing to do");
        Ok(Some(used))
    }

    /// Judges the targets by the pods that exist now. The controller must have finished.
    ///
    /// # Errors
    /// If the pods cannot be listed.
    pub(crate) async fn verdict(&self) -> anyhow::Result<PairVerdict> {
        Ok(judge(&self.targets, &pods_of(&self.client).list_metadata(&ListParams::default()).await?.items))
    }
}

fn pods_of(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// Creates a CollaSet and its pods. Returns the owner reference of the CollaSet, and the names and UIDs of the pods.
async fn plant(client: &Client, count: usize) -> anyhow::Result<(OwnerReference, Vec<(String, String)>)> {
    install::install(client, &[collaset_crd()], Way::CreateMissing).await?;
    let seedbed = Seedbed::namespace(client.clone(), NAMESPACE).await?;
    let owner = as_owner(client, &seedbed.collaset("set", count).await?).await?;
    let targets = create_origins(client, &owner, count).await?;
    Ok((owner, targets))
}

/// Returns the owner reference of a CollaSet.
async fn as_owner(client: &Client, set: &SetKey) -> anyhow::Result<OwnerReference> {
    let resource = set.kind.resource();
    let sets: Api<DynamicObject> = Api::namespaced_with(client.clone(), &set.namespace, &resource);
    let uid = sets.get(&set.name).await?.uid().context("the CollaSet has no UID")?;
    let (controller, name) = (Some(true), set.name.clone());
    let (api_version, kind) = (resource.api_version, resource.kind);
    Ok(OwnerReference { api_version, kind, name, uid, controller, block_owner_deletion: Some(true) })
}

async fn create_origins(
    client: &Client,
    owner: &OwnerReference,
    count: usize,
) -> anyhow::Result<Vec<(String, String)>> {
    let (api, options) = (pods_of(client), as_controller());
    let (api, options) = (&api, &options);
    let created = stream::iter(0..count).map(|id| async move { api.create(options, &pods::origin(owner, id)).await });
    let created: Vec<Pod> = created.buffered(CREATED_AT_ONCE).try_collect().await.context("cannot create the pods")?;
    Ok(created.iter().map(|pod| (pod.name_any(), pod.uid().unwrap_or_default())).collect())
}

/// Returns a pod as the API server shows it.
async fn read(client: &Client, pod: &str) -> anyhow::Result<String> {
    let request = http::Request::get(format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}")).body(Vec::new())?;
    client.request_text(request).await.context("cannot read a pod")
}

#[cfg(test)]
mod tests {
    use kube::api::{Patch, PatchParams};
    use serde_json::json;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn controller_replaces_what_is_marked_and_waits_for_the_finalizer() {
        let client = Client::new(oarlock_sim::Cluster::new(oarlock_sim::Options::default()).service(), "default");
        let (owner, targets) = plant(&client, 3).await.unwrap();
        let mut controller = Controller::start(client.clone(), NAMESPACE, owner, 3).await.unwrap();
        let (pods, options) = (pods_of(&client), PatchParams::default());
        let asked =
            json!({"labels": {"collaset.kusionstack.io/to-replace": "true"}, "finalizers": ["example.com/held"]});
        for (name, _) in &targets[..2] {
            pods.patch(name, &options, &Patch::Merge(json!({ "metadata": asked }))).await.unwrap();
        }
        // The controller makes four writes for each target, and no more until the finalizers are gone.
        let deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        let all_deleted = async {
            while pods.list(&ListParams::default()).await.unwrap().iter().filter(|pod| deleted(pod)).count() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WITHIN, all_deleted).await.unwrap();
        assert_eq!(controller.done().progress.gone, 0);
        for (name, _) in &targets[..2] {
            pods.patch(name, &options, &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
        }
        controller.until_gone(2, WITHIN).await.unwrap();
        controller.until_finished(2, WITHIN).await.unwrap();
        assert_eq!(controller.done().writes, 10);
        let left = pods.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(judge(&targets[..2], &left).wrong, ["set-00002 takes no target's place"]);
        assert_eq!(judge(&targets, &left).wrong, ["set-00002 is not gone"]);
    }
}
