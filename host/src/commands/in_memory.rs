//! A cluster in memory with a world in it, which `dev` and `demo` use instead of a real one.
//!
//! It holds the documents that `oarlock manifests` prints, the namespace of tasks on nodes, a CollaSet `foo` and a Deployment
//! `web`. It runs in real time, for people watch it; `host` never uses it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use oarlock_sim::world::{self, Seedbed, SetKey, Timings, World};
use oarlock_sim::{Cluster, ImageRegistry, RealClock};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::images::ExportRegistry;
use crate::manifests::{self, HostAccount};

/// The namespace of the sets.
pub(crate) const NAMESPACE: &str = "default";

/// Pods of this world are ready within a second or two.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// Settings of a cluster in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Furnishing {
    /// Durations of the stages of a pod's life.
    pub(crate) timings: Timings,
    /// Pods of the CollaSet `foo`.
    pub(crate) foo: usize,
    /// Pods of the Deployment `web`.
    pub(crate) web: usize,
    /// Nodes, named `node-0` and so on.
    pub(crate) nodes: usize,
    /// How long the command of a Job's pod sleeps, as a multiple of what it says.
    pub(crate) sleep_factor: f64,
}

/// A cluster in memory with a world in it.
pub(crate) struct InMemory {
    /// The API server.
    pub(crate) cluster: Cluster,
    /// A client on it.
    pub(crate) client: Client,
    /// The world, which runs the pods and keeps the ledger.
    pub(crate) world: World,
}

impl InMemory {
    /// Makes the cluster, installs the manifests, starts the world and waits until both sets have their pods.
    pub(crate) async fn start(furnishing: Furnishing) -> anyhow::Result<Self> {
        let clock = Arc::new(RealClock);
        let cluster = Cluster::new(oarlock_sim::Options { clock: clock.clone(), ..oarlock_sim::Options::default() });
        let client = Client::new(cluster.service(), NAMESPACE);
        // Those of tasks too: plugins come later here, and nobody applies manifests again.
        let account = HostAccount::default();
        let (ops, rest) = (manifests::ops_manifests(&account), manifests::rest_manifests(&account));
        let parts = [crate::manifests()?, manifests::task_manifests()?, manifests::flow_manifests()?, ops, rest];
        for document in serde_saphyr::from_multiple(&parts.join("---\n")).context("the manifests are not YAML")? {
            create(&client, &document).await?;
        }
        let Furnishing { timings, nodes, sleep_factor, .. } = furnishing;
        let options = world::WorldOptions { timings, nodes, sleep_factor, ..world::WorldOptions::new(1, clock) };
        let world = World::start(client.clone(), options).await.context("the simulated world did not start")?;
        let seedbed = Seedbed::namespace(client.clone(), NAMESPACE).await?;
        let sets = [seedbed.collaset("foo", furnishing.foo).await?, seedbed.deployment("web", furnishing.web).await?];
        let started = Self { cluster, client, world };
        for set in &sets {
            started.settle(set).await?;
        }
        Ok(started)
    }

    /// Serves the API on a port of this machine until `stop`; returns its address.
    pub(crate) async fn serve(&self, port: u16, stop: CancellationToken) -> anyhow::Result<SocketAddr> {
        let taken = || format!("cannot listen on port {port}: choose another with --port, or 0 for a free one");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.with_context(taken)?;
        let address = listener.local_addr().with_context(taken)?;
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            tokio::select! {
                served = cluster.serve(listener) => if let Err(error) = served {
                    tracing::error!(%error, "the API in memory is no longer served");
                },
                () = stop.cancelled() => {}
            }
        });
        Ok(address)
    }

    /// Serves a registry until `stop`, from which images are pulled, and to which they are exported.
    pub(crate) async fn serve_images(&self, stop: CancellationToken) -> anyhow::Result<ExportRegistry> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen for a registry")?;
        let registry = listener.local_addr().context("cannot listen for a registry")?.to_string();
        tokio::spawn(async move {
            tokio::select! {
                served = ImageRegistry::default().serve(listener) => if let Err(error) = served {
                    tracing::error!(%error, "the registry in memory is no longer served");
                },
                () = stop.cancelled() => {}
            }
        });
        Ok(ExportRegistry::in_memory(registry))
    }

    /// Waits until a set has all its pods and each of them serves.
    pub(crate) async fn settle(&self, set: &SetKey) -> anyhow::Result<()> {
        Ok(self.world.settled(set, SETTLED_WITHIN).await?)
    }
}

/// Creates one object of any kind.
pub(crate) async fn create(client: &Client, document: &Value) -> anyhow::Result<()> {
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
    use oarlock_sim::world::Span;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_in_memory_takes_the_manifests_and_fills_its_sets() {
        let soon = Span::millis(1, 5);
        let timings = Timings { react: soon, start: soon, ready: soon, available: soon, terminate: soon };
        let furnished =
            InMemory::start(Furnishing { timings, foo: 2, web: 3, nodes: 3, sleep_factor: 1.0 }).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(furnished.client.clone(), NAMESPACE);
        assert_eq!(pods.list(&ListParams::default().labels("app=foo")).await.unwrap().items.len(), 2);
        assert_eq!(pods.list(&ListParams::default().labels("app=web")).await.unwrap().items.len(), 3);

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
