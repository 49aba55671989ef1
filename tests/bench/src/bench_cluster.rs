//! A namespace with a simulated cluster in it.
//!
//! A scenario creates sets and jobs there, judges the outcome, and removes everything, so that the next contender does not carry
//! what this one left behind.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt as _};
use oarlock_sim::world::{Seedbed, SetKey, Span, Timings, World, WorldOptions};
use oarlock_support::accounts::Account;

use crate::arguments::Mode;
use crate::backend::Backend;
use crate::cleanup;
use crate::job_watch;

/// Nodes that are created at once.
const NODES_AT_ONCE: usize = 16;

/// A namespace with a simulated cluster in it.
pub(crate) struct BenchCluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) world: World,
    pub(crate) seedbed: Seedbed,
}

/// A set of pods that serve.
pub(crate) struct ServingPods {
    pub(crate) set: SetKey,
    /// Names and UIDs of the pods, as the verdict of the event log needs them.
    pub(crate) targets: Vec<(String, String)>,
}

impl ServingPods {
    /// Returns the names of the pods.
    pub(crate) fn names(&self) -> Vec<String> {
        self.targets.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// Returns the longest time that work on this many targets may take. It is far more than the work needs.
pub(crate) fn longest(targets: usize) -> Duration {
    Duration::from_secs(300) + Duration::from_millis(500) * u32::try_from(targets).unwrap_or(u32::MAX)
}

/// Returns the timings of a simulated cluster that reacts at once, so that the figures show the contender and the server.
pub(crate) fn quick() -> Timings {
    let soon = Span::millis(1, 10);
    Timings { react: soon, start: soon, ready: soon, available: soon, terminate: soon }
}

impl BenchCluster {
    /// Creates a fresh namespace with this name, in a simulated cluster with these timings.
    ///
    /// # Errors
    /// If the simulated cluster does not start.
    pub(crate) async fn fresh(backend: &Backend, namespace: &str, timings: Timings) -> anyhow::Result<Self> {
        let options = WorldOptions { timings, ..WorldOptions::new(1, Arc::new(oarlock_sim::RealClock)) };
        Self::in_world(backend, namespace, options).await
    }

    /// Creates a fresh namespace with this name, in a simulated cluster that manages this namespace and the namespaces of the
    /// options.
    ///
    /// # Errors
    /// If the simulated cluster does not start.
    pub(crate) async fn in_world(backend: &Backend, namespace: &str, options: WorldOptions) -> anyhow::Result<Self> {
        let client = backend.client(Account::Admin).await?;
        let namespaces = options.namespaces.iter().map(String::as_str).chain([namespace]).map(str::to_owned).collect();
        let options = WorldOptions { namespaces, ..options };
        let world = World::start(backend.client(Account::World).await?, options).await?;
        let seedbed = Seedbed::namespace(client.clone(), namespace).await?;
        Ok(Self { client, namespace: namespace.to_owned(), world, seedbed })
    }

    /// Creates this many nodes and returns their names, which begin with the name of the namespace.
    ///
    /// # Errors
    /// If the server refuses a node.
    pub(crate) async fn add_nodes(&self, nodes: usize) -> anyhow::Result<Vec<String>> {
        let names: Vec<String> = (0..nodes).map(|index| format!("{}-{index:04}", self.namespace)).collect();
        let made = stream::iter(&names).map(|name| self.world.add_node(name)).buffer_unordered(NODES_AT_ONCE);
        made.try_collect::<Vec<()>>().await.context("cannot make the nodes")?;
        Ok(names)
    }

    /// Creates a set of this many pods, and waits until all of them serve.
    ///
    /// # Errors
    /// If the pods do not serve in time.
    pub(crate) async fn plant(&self, mode: Mode, pods: usize) -> anyhow::Result<ServingPods> {
        let set = match mode {
            Mode::Evict => self.seedbed.deployment("set", pods).await?,
            Mode::CollaSet => self.seedbed.collaset("set", pods).await?,
        };
        self.world.settled(&set, longest(pods)).await?;
        let identity = |pod: &Arc<k8s_openapi::api::core::v1::Pod>| (pod.name_any(), pod.uid().unwrap_or_default());
        let targets = self.world.pods().iter().map(identity).collect();
        Ok(ServingPods { set, targets })
    }

    /// Creates a Replace job.
    ///
    /// # Errors
    /// If the server refuses the job.
    pub(crate) async fn create(&self, job: &DynamicObject) -> anyhow::Result<()> {
        self.jobs().create(&PostParams::default(), job).await.map(drop).context("cannot create the job")
    }

    /// Returns the API for the jobs of the namespace.
    pub(crate) fn jobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &job_watch::resource())
    }

    /// Returns the simulated cluster's verdict of the operation, once the cluster has settled: `clean`, or what is wrong.
    ///
    /// # Errors
    /// If the cluster does not settle.
    pub(crate) async fn verdict(&self, serving: &ServingPods) -> anyhow::Result<String> {
        self.world.settled(&serving.set, longest(serving.targets.len())).await?;
        let verdict = self.world.ledger().verdict(&serving.targets);
        Ok(if verdict.is_clean() { "clean".to_owned() } else { verdict.to_string() })
    }

    /// Removes everything in the namespace, and the namespace. The host must have ended.
    ///
    /// # Errors
    /// If the server refuses a deletion.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        self.world.stop().await;
        cleanup::remove(&self.client, &self.namespace).await
    }
}
