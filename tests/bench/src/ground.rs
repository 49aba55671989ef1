//! A namespace with a world in it, on either cluster.
//!
//! Takes a cluster; yields what a bench does there: plant sets, create jobs and wait. The host is another process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane::ControlPlane;
use oarlock_sim::world::{self, Seedbed, World};
use serde_json::{Value, json};

/// A namespace with a world in it.
pub(crate) struct Site {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) world: World,
    pub(crate) seedbed: Seedbed,
}

impl Site {
    pub(crate) async fn real(plane: &ControlPlane, namespace: &str) -> anyhow::Result<Self> {
        let client = plane.client(Account::Admin).await?;
        Self::on(client, plane.client(Account::World).await?, namespace).await
    }

    pub(crate) async fn sim(cluster: &oarlock_sim::Cluster, namespace: &str) -> anyhow::Result<Self> {
        let client = Client::new(cluster.service(), "default");
        Self::on(client.clone(), client, namespace).await
    }

    async fn on(client: Client, world_client: Client, namespace: &str) -> anyhow::Result<Self> {
        let clock = Arc::new(oarlock_sim::RealClock);
        let namespaces = vec![namespace.to_owned()];
        let options = world::WorldOptions {
            timings: crate::operations::quick(),
            namespaces,
            ..world::WorldOptions::new(1, clock)
        };
        let world = World::start(world_client, options).await?;
        let seedbed = Seedbed::namespace(client.clone(), namespace).await?;
        Ok(Self { client, namespace: namespace.to_owned(), world, seedbed })
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Names of the pods of a set.
    pub(crate) async fn pod_names(&self, app: &str) -> anyhow::Result<Vec<String>> {
        let list = self.pods().list(&ListParams::default().labels(&format!("app={app}"))).await?;
        Ok(list.items.iter().map(|pod| pod.name_any()).collect())
    }

    /// Names and UIDs, as the ledger's verdict wants them.
    pub(crate) async fn identities(&self, names: &[String]) -> anyhow::Result<Vec<(String, String)>> {
        let list = self.pods().list(&ListParams::default()).await?;
        let uids: std::collections::HashMap<String, String> =
            list.items.iter().map(|pod| (pod.name_any(), pod.uid().unwrap_or_default())).collect();
        Ok(names.iter().map(|name| (name.clone(), uids.get(name).cloned().unwrap_or_default())).collect())
    }

    fn jobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &job_resource())
    }

    pub(crate) async fn create_job(&self, name: &str, targets: &[String]) -> anyhow::Result<()> {
        let targets: Vec<Value> = targets.iter().map(|target| json!({ "name": target })).collect();
        let job =
            DynamicObject::new(name, &job_resource()).data(json!({"spec": {"action": "Replace", "targets": targets}}));
        self.jobs().create(&PostParams::default(), &job).await.map(drop).context("cannot create the job")
    }

    /// Waits until the job has ended.
    pub(crate) async fn until_ended(&self, name: &str, longest: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let job = self.jobs().get(name).await?;
            let progress = job.data.pointer("/status/progress").and_then(Value::as_str).unwrap_or_default();
            if ["Succeeded", "Failed"].contains(&progress) {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < longest, "the job never ends; it is {progress}: {}", job.data);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn job_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "OperationJob");
    ApiResource::from_gvk_with_plural(&kind, "operationjobs")
}
