//! An in-memory cluster with a simulated cluster in it, which `dev` uses instead of a real one.
//!
//! The cluster holds the documents that `oarlock manifests` prints, the namespace of tasks on nodes, a CollaSet `foo`
//! and a Deployment `web`. The simulation runs in real time, because users watch it. `host` never uses it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use oarlock_sim::world::{Seedbed, World, WorldOptions};
use oarlock_sim::{Cluster, ImageRegistry, RealClock};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::images::ExportRegistry;
use crate::manifests::{self, HostAccount};

/// The namespace of the sets.
pub(super) const NAMESPACE: &str = "default";

/// The longest wait for all pods of a set. A simulated pod is ready within a second or two.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// The numbers of pods of the CollaSet `foo` and of the Deployment `web`.
const FOO: usize = 4;
const WEB: usize = 3;

/// An in-memory cluster with running controllers and pods.
pub(super) struct InMemory {
    /// The API server.
    pub(super) cluster: Cluster,
    /// A client of the API server.
    pub(super) client: Client,
    /// The simulated cluster, which runs the pods and keeps the event log.
    pub(super) world: World,
}

impl InMemory {
    /// Creates the cluster, installs the manifests, starts the simulation and waits until both sets have their pods.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let clock = Arc::new(RealClock);
        let cluster = Cluster::new(oarlock_sim::Options { clock: clock.clone(), ..oarlock_sim::Options::default() });
        let client = Client::new(cluster.service(), NAMESPACE);
        // The manifests of tasks too: plugins may come later, and nobody applies manifests again.
        let account = HostAccount::default();
        let served = [manifests::ops_manifests, manifests::rest_manifests, manifests::page_manifests];
        let of_host = [crate::manifests()?, manifests::task_manifests()?, manifests::flow_manifests()?];
        let parts: Vec<String> = of_host.into_iter().chain(served.map(|documents| documents(&account))).collect();
        for document in serde_saphyr::from_multiple(&parts.join("---\n")).context("the manifests are not YAML")? {
            create(&client, &document).await?;
        }
        let options = WorldOptions::new(1, clock);
        let world = World::start(client.clone(), options).await.context("the simulated world did not start")?;
        let seedbed = Seedbed::namespace(client.clone(), NAMESPACE).await?;
        let sets = [seedbed.collaset("foo", FOO).await?, seedbed.deployment("web", WEB).await?];
        let started = Self { cluster, client, world };
        for set in &sets {
            started.world.settled(set, SETTLED_WITHIN).await?;
        }
        Ok(started)
    }

    /// Serves the API on a port of this machine until `stop`. Returns the address.
    pub(super) async fn serve(&self, port: u16, stop: CancellationToken) -> anyhow::Result<SocketAddr> {
        let taken = || format!("cannot listen on port {port}: choose another with --port, or 0 for a free one");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.with_context(taken)?;
        let address = listener.local_addr().with_context(taken)?;
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            tokio::select! {
                served = cluster.serve(listener) => if let Err(error) = served {
                    tracing::error!(%error, "the in-memory API has stopped");
                },
                () = stop.cancelled() => {}
            }
        });
        Ok(address)
    }

    /// Serves a registry until `stop`. Nodes pull images from it, and OpsJobs export images to it.
    pub(super) async fn serve_images(&self, stop: CancellationToken) -> anyhow::Result<ExportRegistry> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen for a registry")?;
        let registry = listener.local_addr().context("cannot listen for a registry")?.to_string();
        tokio::spawn(async move {
            tokio::select! {
                served = ImageRegistry::default().serve(listener) => if let Err(error) = served {
                    tracing::error!(%error, "the in-memory registry has stopped");
                },
                () = stop.cancelled() => {}
            }
        });
        Ok(ExportRegistry::in_memory(registry))
    }
}

/// Creates one object of any kind.
pub(super) async fn create(client: &Client, document: &Value) -> anyhow::Result<()> {
    let object: DynamicObject =
        serde_json::from_value(document.clone()).context("a document is no Kubernetes object")?;
    let types = object.types.clone().context("a document has no apiVersion and kind")?;
    let described =
        format!("cannot create {} {}", types.kind, object.metadata.name.as_deref().unwrap_or("without a name"));
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::try_from(&types).context("a document has an invalid apiVersion")?);
    let api: Api<DynamicObject> = match object.metadata.namespace.as_deref() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.create(&PostParams::default(), &object).await.map(drop).context(described)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::ListParams;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_in_memory_takes_the_manifests_and_fills_its_sets() {
        let furnished = InMemory::start().await.unwrap();
        let pods: Api<Pod> = Api::namespaced(furnished.client.clone(), NAMESPACE);
        assert_eq!(pods.list(&ListParams::default().labels("app=foo")).await.unwrap().items.len(), FOO);
        assert_eq!(pods.list(&ListParams::default().labels("app=web")).await.unwrap().items.len(), WEB);

        let job = |targets: &[&str]| {
            let targets: Vec<Value> = targets.iter().map(|name| json!({"name": name})).collect();
            json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
                   "metadata": {"name": "j", "namespace": NAMESPACE}, "spec": {"action": "Replace", "targets": targets}})
        };
        let refused = create(&furnished.client, &job(&["p4/status"])).await.unwrap_err();
        assert!(format!("{refused:#}").contains("spec.targets"), "{refused:#}");
        create(&furnished.client, &job(&["p4"])).await.unwrap();
    }
}
