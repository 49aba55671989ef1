//! A namespace in which Jobs run, and the nodes of it.
//!
//! Takes a cluster; yields a fresh namespace whose Jobs are carried out at once, watches of what happens there, and its removal,
//! so that the next contender does not carry what this one left behind.

use std::sync::Arc;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use oarlock_bed::accounts::Account;
use oarlock_core::child::parent::{API_VERSION, ParentKind};
use oarlock_sim::world::{World, WorldOptions};
use serde_json::{Value, json};

use crate::cleanup;
use crate::flows::kubelet::Kubelet;
use crate::flows::loads::wide_spec;
use crate::flows::watch::FlowWatch;
use crate::ground::Ground;
use crate::site::quick;

/// Requests in flight.
const IN_FLIGHT: usize = 32;

/// A namespace in which Jobs run.
pub(crate) struct Yard {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) watch: FlowWatch,
    /// Who ends pods: the whole world in memory, beside a real controller of Jobs a kubelet alone.
    world: Option<World>,
    kubelet: Option<Kubelet>,
}

impl Yard {
    /// A fresh namespace of this name.
    ///
    /// # Errors
    /// If the server refuses it.
    pub(crate) async fn fresh(ground: &Ground, namespace: &str, kind: ParentKind) -> anyhow::Result<Self> {
        let client = ground.client(Account::Admin).await?;
        let of_world = ground.client(Account::World).await?;
        let made: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &made).await.context("cannot create the namespace")?;
        let (world, kubelet) = match ground {
            Ground::Sim(_) => {
                let usual = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
                let namespaces = vec![namespace.to_owned()];
                let options = WorldOptions { timings: quick(), nodes: 0, namespaces, ..usual };
                (Some(World::start(of_world, options).await?), None)
            }
            Ground::Real(_) => (None, Some(Kubelet::start(of_world, namespace))),
        };
        let watch = FlowWatch::start(&client, namespace, kind);
        Ok(Self { client, namespace: namespace.to_owned(), watch, world, kubelet })
    }

    /// Creates nodes that are Ready.
    ///
    /// # Errors
    /// If the server refuses one.
    pub(crate) async fn add_nodes(&self, names: &[String]) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let made = stream::iter(names).map(|name| add_node(&nodes, name)).buffer_unordered(IN_FLIGHT);
        made.try_collect::<Vec<()>>().await.context("cannot create the nodes").map(drop)
    }

    /// Creates JobFlows or DaemonJobs, all at once.
    ///
    /// # Errors
    /// If the server refuses one.
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

    /// A JobFlow that owns the Jobs of a bare client: its account may create no others, and the garbage collector finds it.
    ///
    /// # Errors
    /// If the server refuses it.
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
    /// If the server refuses.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        drop((self.watch, self.kubelet));
        if let Some(world) = self.world {
            world.stop().await;
        }
        cleanup::remove(&self.client, &self.namespace).await?;
        cleanup::remove_nodes(&self.client, &self.namespace).await
    }
}

/// What a heartbeat says.
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
/// If the server refuses it.
pub(crate) async fn beat(nodes: &Api<Node>, name: &str) -> anyhow::Result<()> {
    let body = Patch::Strategic(json!({"status": {"conditions": [heartbeat()]}}));
    nodes.patch_status(name, &PatchParams::default(), &body).await?;
    Ok(())
}
