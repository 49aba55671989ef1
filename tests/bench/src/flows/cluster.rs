//! A namespace in which Jobs run, and its nodes.
//!
//! Jobs in the namespace are carried out at once, and watches record what happens. The namespace is removed at the end, so that the
//! next contender does not carry what this one left behind.

use std::sync::Arc;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use oarlock_core::attempts::parent::{API_VERSION, ParentKind};
use oarlock_sim::world::{World, WorldOptions};
use oarlock_support::accounts::Account;
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::bench_cluster::quick;
use crate::cleanup;
use crate::flows::kubelet::Kubelet;
use crate::flows::loads::wide_spec;
use crate::flows::watch::FlowWatch;

/// Requests in flight.
const IN_FLIGHT: usize = 32;

/// A namespace in which Jobs run.
pub(crate) struct FlowCluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) watch: FlowWatch,
    /// Ends the pods on an in-memory cluster, where the whole cluster is simulated. A real Job controller needs only a kubelet.
    world: Option<World>,
    kubelet: Option<Kubelet>,
}

impl FlowCluster {
    /// Creates a fresh namespace with this name.
    ///
    /// # Errors
    /// If the server refuses the namespace.
    pub(crate) async fn fresh(backend: &Backend, namespace: &str, kind: ParentKind) -> anyhow::Result<Self> {
        let client = backend.client(Account::Admin).await?;
        let of_world = backend.client(Account::World).await?;
        let made: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &made).await.context("cannot create the namespace")?;
        let (world, kubelet) = match backend {
            Backend::Sim(_) => {
                let usual = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
                let namespaces = vec![namespace.to_owned()];
                let options = WorldOptions { timings: quick(), nodes: 0, namespaces, ..usual };
                (Some(World::start(of_world, options).await?), None)
            }
            Backend::Real(_) => (None, Some(Kubelet::start(of_world, namespace))),
        };
        let watch = FlowWatch::start(&client, namespace, kind);
        Ok(Self { client, namespace: namespace.to_owned(), watch, world, kubelet })
    }

    /// Creates nodes that are Ready.
    ///
    /// # Errors
    /// If the server refuses a node.
    pub(crate) async fn add_nodes(&self, names: &[String]) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let made = stream::iter(names).map(|name| add_node(&nodes, name)).buffer_unordered(IN_FLIGHT);
        made.try_collect::<Vec<()>>().await.context("cannot create the nodes").map(drop)
    }

    /// Creates JobFlows or DaemonJobs, all at once.
    ///
    /// # Errors
    /// If the server refuses an object.
    pub(crate) async fn create(&self, kind: ParentKind, manifests: &[Value]) -> anyhow::Result<()> {
        let api = self.parents(kind);
        let create = |manifest: &Value| {
            let (api, object) = (api.clone(), serde_json::from_value::<DynamicObject>(manifest.clone()));
            async move { anyhow::Ok(api.create(&PostParams::default(), &object?).await.map(drop)?) }
        };
        let created: Vec<_> = manifests.iter().map(create).collect();
        stream::iter(created)
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<()>>()
            .await
            .context("cannot create one")?;
        Ok(())
    }

    /// Creates a JobFlow that owns the Jobs of a bare client. The bare client's account may create no other Jobs, and the garbage
    /// collector finds this owner.
    ///
    /// # Errors
    /// If the server refuses the JobFlow.
    pub(crate) async fn owner(&self) -> anyhow::Result<Value> {
        let wanted: DynamicObject =
            serde_json::from_value(json!({"apiVersion": API_VERSION, "kind": ParentKind::Flow.name(),
            "metadata": {"name": "owner"}, "spec": wide_spec(1)}))?;
        let made = self.parents(ParentKind::Flow).create(&PostParams::default(), &wanted).await;
        let made = made.context("cannot create the owner")?;
        Ok(json!({"apiVersion": API_VERSION, "kind": ParentKind::Flow.name(), "name": "owner", "uid": made.uid(),
            "controller": true, "blockOwnerDeletion": true}))
    }

    fn parents(&self, kind: ParentKind) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("api.practice.com", "v1alpha1", kind.name()));
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// Removes everything in the namespace, the namespace and all nodes. The contender must have ended.
    ///
    /// # Errors
    /// If the server refuses a deletion.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        drop((self.watch, self.kubelet));
        if let Some(world) = self.world {
            world.stop().await;
        }
        cleanup::remove(&self.client, &self.namespace).await?;
        cleanup::remove_nodes(&self.client, &self.namespace).await
    }
}

/// Returns the Ready condition of a heartbeat.
pub(crate) fn heartbeat() -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

async fn add_node(nodes: &Api<Node>, name: &str) -> anyhow::Result<()> {
    let metadata = json!({"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}});
    let node: Node = serde_json::from_value(json!({ "metadata": metadata }))?;
    nodes.create(&PostParams::default(), &node).await?;
    beat(nodes, name).await
}

/// Sends a heartbeat of a node.
///
/// # Errors
/// If the server refuses the heartbeat.
pub(crate) async fn beat(nodes: &Api<Node>, name: &str) -> anyhow::Result<()> {
    let body = Patch::Strategic(json!({"status": {"conditions": [heartbeat()]}}));
    nodes.patch_status(name, &PatchParams::default(), &body).await?;
    Ok(())
}
