//! A host at work on nodes, for the scenarios `reboots` and `checks`.
//!
//! The cluster has the rights of a plugin for nodes. A setup has Ready nodes, a host that leads, and a record of every version of
//! the objects that a scenario observes. It runs one job from its creation to its end and reads each node's result from the status.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use oarlock_api::{OperationJob, OperationRecord, TargetDetail};
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_sim::world::{History, OperationTimings, Span, Timings, WorldOptions};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::arguments::Operations;
use crate::backend::Backend;
use crate::bench_cluster::{BenchCluster, longest, quick};
use crate::children::{Dropped, HostProcess};
use crate::cleanup;
use crate::job_watch::{JobWatch, Version, Versions, resource};
use crate::meter::Meter;

/// The name of the job.
const JOB: &str = "bench";
/// The label of a namespace in which jobs may work on nodes.
const ALLOWED: &str = "oarlock.dev/node-operations";
/// How long the server may refuse the job after the namespace got its label. The server usually sees the label within a second or
/// two.
const ALLOWED_WITHIN: Duration = Duration::from_secs(60);
/// The longest wait for a watch to catch up. A watch is behind by far less.
const RECORDED_WITHIN: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The number of nodes in a setup, and the plugin that works on them.
#[derive(Clone)]
pub(crate) struct NodeSetupOptions<'a> {
    pub(crate) nodes: usize,
    pub(crate) components: &'a Path,
    pub(crate) dropped: Dropped,
    pub(crate) timings: OperationTimings,
    /// The kind whose versions are recorded.
    pub(crate) recorded: ApiResource,
}

/// The time that the pod of a task takes to start, as the simulated cluster is configured.
pub(crate) const TASK_START: Span = Span::millis(20, 60);

/// Nodes, and a host that works on them.
pub(crate) struct NodeSetup<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) cluster: BenchCluster,
    pub(crate) nodes: Vec<String>,
    pub(crate) host: HostProcess,
    pub(crate) history: History,
    watch: JobWatch,
}

/// The result of one job.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// The time from the job's creation until a watch delivered its end, or until the bench gave up.
    pub(crate) took: Duration,
    /// The number of kills, or the usage and writes of a host that was never killed, and the gaps of the history.
    pub(crate) figures: Map<String, Value>,
}

impl<'a> NodeSetup<'a> {
    /// Prepares a setup in a fresh namespace with this name.
    ///
    /// # Errors
    /// If the server refuses a node, or the host does not start.
    pub(crate) async fn set(
        backend: &'a Backend,
        namespace: &str,
        options: NodeSetupOptions<'_>,
    ) -> anyhow::Result<Self> {
        let timings = Timings { start: TASK_START, ..quick() };
        let usual = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
        let world = WorldOptions { timings, operations: options.timings, nodes: 0, ..usual };
        let cluster = BenchCluster::in_world(backend, namespace, world).await?;
        let body = Patch::Merge(json!({"metadata": {"labels": {ALLOWED: "true"}}}));
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        namespaces.patch(namespace, &PatchParams::default(), &body).await?;
        // Node names must be new, because a name of an earlier setup would bring its boot ids back.
        let nodes = cluster.add_nodes(options.nodes).await?;
        let host = HostProcess::start(&backend.kubeconfig()?, options.components, options.dropped).await?;
        let watch = JobWatch::start(cluster.client.clone(), namespace);
        let history = History::record(&cluster.client, vec![options.recorded]);
        Ok(Self { backend, cluster, nodes, host, history, watch })
    }

    /// Creates a job on all nodes, and waits until it has ended. With `kill_every`, the host is killed after each such time and
    /// started again at once. A job that does not end is not an error.
    ///
    /// # Errors
    /// If the server refuses the job, or the host cannot be started.
    pub(crate) async fn run(&mut self, mut spec: Value, kill_every: Option<Duration>) -> anyhow::Result<Course> {
        let targets: Vec<Value> = self.nodes.iter().map(|name| json!({ "name": name })).collect();
        if let Some(spec) = spec.as_object_mut() {
            spec.insert("targetKind".to_owned(), json!("Node"));
            spec.insert("targets".to_owned(), targets.into());
        }
        let mut meter = Meter::start(self.backend, self.host.id())?;
        let begun = self.create(&DynamicObject::new(JOB, &resource()).data(json!({ "spec": spec }))).await?;
        let latest = begun + longest(self.nodes.len());
        let mut kills = 0u32;
        while Instant::now() < latest {
            let rest = latest.saturating_duration_since(Instant::now());
            let life = kill_every.unwrap_or(rest).min(rest);
            if timeout(life, self.until_ended(rest)).await.is_ok_and(|ended| ended.is_ok()) {
                break;
            }
            if kill_every.is_some() {
                self.host.kill_and_start()?;
                kills = kills.saturating_add(1);
            }
        }
        let ended = self.watch.of(JOB).last().filter(|version| version.is_last()).map(|version| version.at);
        let took = ended.unwrap_or_else(Instant::now).saturating_duration_since(begun);
        let mut figures = Map::new();
        figures.insert("gaps".to_owned(), self.history.gaps().len().into());
        if kill_every.is_some() {
            figures.insert("kills".to_owned(), kills.into());
        } else {
            meter.read()?;
            figures.extend(meter.figures(self.nodes.len())?);
        }
        Ok(Course { took, figures })
    }

    /// Creates the job once the server has seen the label of its namespace. Returns the moment of the successful request.
    async fn create(&self, job: &DynamicObject) -> anyhow::Result<Instant> {
        let latest = Instant::now() + ALLOWED_WITHIN;
        loop {
            let begun = Instant::now();
            match self.cluster.jobs().create(&PostParams::default(), job).await {
                Ok(_) => return Ok(begun),
                Err(refused) if Instant::now() > latest => return Err(refused).context("cannot create the job"),
                Err(_) => sleep(ASK_EVERY).await,
            }
        }
    }

    async fn until_ended(&self, longest: Duration) -> anyhow::Result<()> {
        let ended = |all: &Versions| all.get(JOB).and_then(|versions| versions.last()).is_some_and(Version::is_last);
        self.watch.until("the end of the job", longest, ended).await
    }

    /// Returns the details of each node in the status, by name.
    ///
    /// # Errors
    /// If the job or its records cannot be read.
    pub(crate) async fn details(&self) -> anyhow::Result<BTreeMap<String, TargetDetail>> {
        let job = self.cluster.jobs().get(JOB).await.context("cannot read the job")?;
        let job: OperationJob = serde_json::from_value(serde_json::to_value(&job)?)?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OperationRecord"));
        let records: Api<DynamicObject> =
            Api::namespaced_with(self.cluster.client.clone(), &self.cluster.namespace, &kind);
        let mut details = job.status.and_then(|status| status.target_details).unwrap_or_default();
        for record in records.list(&ListParams::default()).await.context("cannot read the records")? {
            let record: OperationRecord = serde_json::from_value(serde_json::to_value(&record)?)?;
            details.extend(record.record.targets);
        }
        Ok(details.into_iter().map(|detail| (detail.name.clone(), detail)).collect())
    }

    /// Waits until the history satisfies a condition that must hold soon, because the host has already seen the cause.
    pub(crate) async fn until_recorded(&self, seen: impl FnMut(&[oarlock_sim::world::Version]) -> bool) {
        // A timeout is ignored, because the figures show the result.
        let _ = self.history.until("what the host has seen", RECORDED_WITHIN, seen).await;
    }

    /// Stops the host and removes everything, the nodes included.
    ///
    /// # Errors
    /// If the host does not stop, or the server refuses a deletion.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        let client = self.cluster.client.clone();
        drop((self.watch, self.history));
        // A host that was killed a moment ago may not have started yet.
        self.host.leads().await?;
        self.host.stop().await?;
        self.cluster.remove().await?;
        cleanup::remove_nodes(&client, TASKS_NAMESPACE).await
    }
}

/// Returns how many nodes the job works on at once: the requested number, else a tenth of the nodes.
pub(crate) fn at_once(asked: &Operations, nodes: usize) -> u32 {
    asked.parallelism.unwrap_or_else(|| u32::try_from(nodes / 10).unwrap_or(u32::MAX).max(1))
}
