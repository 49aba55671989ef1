//! A namespace with a world in it.
//!
//! Takes a cluster; yields what a scenario does there: plant sets, create jobs, judge, and remove everything again, so that
//! the next contender does not carry what this one left behind.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt as _};
use oarlock_bed::accounts::Account;
use oarlock_sim::world::{Seedbed, SetKey, Span, Timings, World, WorldOptions};

use crate::arguments::Mode;
use crate::cleanup;
use crate::ground::Ground;
use crate::job_watch;

/// Nodes that are made at once.
const NODES_AT_ONCE: usize = 16;

/// A namespace with a world in it.
pub(crate) struct Site {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) world: World,
    pub(crate) seedbed: Seedbed,
}

/// A set of pods that serve.
pub(crate) struct Planted {
    pub(crate) set: SetKey,
    /// Names and UIDs of its pods, as the ledger's verdict wants them.
    pub(crate) targets: Vec<(String, String)>,
}

impl Planted {
    /// The names of the pods.
    pub(crate) fn names(&self) -> Vec<String> {
        self.targets.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// The longest that anything with this many targets may take: far more than it does.
pub(crate) fn longest(targets: usize) -> Duration {
    Duration::from_secs(300) + Duration::from_millis(500) * u32::try_from(targets).unwrap_or(u32::MAX)
}

/// A world that reacts at once: the figures are to be the contender's and the server's.
pub(crate) fn quick() -> Timings {
    let soon = Span::millis(1, 10);
    Timings { react: soon, start: soon, ready: soon, available: soon, terminate: soon }
}

impl Site {
    /// A fresh namespace of this name, in a world whose pods take so long.
    ///
    /// # Errors
    /// If the world does not start.
    pub(crate) async fn fresh(ground: &Ground, namespace: &str, timings: Timings) -> anyhow::Result<Self> {
        let options = WorldOptions { timings, ..WorldOptions::new(1, Arc::new(oarlock_sim::RealClock)) };
        Self::in_world(ground, namespace, options).await
    }

    /// A fresh namespace of this name, in such a world, which looks after it and what the options name.
    ///
    /// # Errors
    /// If the world does not start.
    pub(crate) async fn in_world(ground: &Ground, namespace: &str, options: WorldOptions) -> anyhow::Result<Self> {
        let client = ground.client(Account::Admin).await?;
        let namespaces = options.namespaces.iter().map(String::as_str).chain([namespace]).map(str::to_owned).collect();
        let options = WorldOptions { namespaces, ..options };
        let world = World::start(ground.client(Account::World).await?, options).await?;
        let seedbed = Seedbed::namespace(client.clone(), namespace).await?;
        Ok(Self { client, namespace: namespace.to_owned(), world, seedbed })
    }

    /// So many nodes, whose names begin with that of the namespace. Yields their names.
    ///
    /// # Errors
    /// If the server refuses one.
    pub(crate) async fn add_nodes(&self, nodes: usize) -> anyhow::Result<Vec<String>> {
        let names: Vec<String> = (0..nodes).map(|index| format!("{}-{index:04}", self.namespace)).collect();
        let made = stream::iter(&names).map(|name| self.world.add_node(name)).buffer_unordered(NODES_AT_ONCE);
        made.try_collect::<Vec<()>>().await.context("cannot make the nodes")?;
        Ok(names)
    }

    /// A set of as many pods, once all of them serve.
    ///
    /// # Errors
    /// If they never do.
    pub(crate) async fn plant(&self, mode: Mode, pods: usize) -> anyhow::Result<Planted> {
        let set = match mode {
            Mode::Evict => self.seedbed.deployment("set", pods).await?,
            Mode::CollaSet => self.seedbed.collaset("set", pods).await?,
        };
        self.world.settled(&set, longest(pods)).await?;
        let identity = |pod: &Arc<k8s_openapi::api::core::v1::Pod>| (pod.name_any(), pod.uid().unwrap_or_default());
        let targets = self.world.pods().iter().map(identity).collect();
        Ok(Planted { set, targets })
    }

    /// Creates a Replace job.
    ///
    /// # Errors
    /// If the server refuses it.
    pub(crate) async fn create(&self, job: &DynamicObject) -> anyhow::Result<()> {
        self.jobs().create(&PostParams::default(), job).await.map(drop).context("cannot create the job")
    }

    /// The jobs of the namespace.
    pub(crate) fn jobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &job_watch::resource())
    }

    /// What the world says of the operation, once it has come to rest: `clean`, or what is wrong.
    ///
    /// # Errors
    /// If it does not come to rest.
    pub(crate) async fn verdict(&self, planted: &Planted) -> anyhow::Result<String> {
        self.world.settled(&planted.set, longest(planted.targets.len())).await?;
        let verdict = self.world.ledger().verdict(&planted.targets);
        Ok(if verdict.is_clean() { "clean".to_owned() } else { verdict.to_string() })
    }

    /// Removes everything in the namespace, and the namespace. The host must have ended.
    ///
    /// # Errors
    /// If the server refuses.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        self.world.stop().await;
        cleanup::remove(&self.client, &self.namespace).await
    }
}
