//! A host at work on nodes: what the scenarios `reboots` and `checks` begin and end with.
//!
//! Takes a cluster with the rights of a plugin that works on nodes; yields nodes that are Ready, a host that leads, every version
//! of the objects that a scenario looks at, one job from its creation to its end, and what its status says of each node.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use oarlock_api::{OperationJob, OperationRecord, TargetDetail};
use oarlock_core::cluster::own::TASKS_NAMESPACE;
use oarlock_sim::world::{History, OperationTimings, Span, Timings, WorldOptions};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::arguments::Operations;
use crate::children::{Dropped, HostProcess};
use crate::cleanup;
use crate::ground::Ground;
use crate::job_watch::{JobWatch, Version, Versions, resource};
use crate::meter::Meter;
use crate::site::{Site, longest, quick};

/// The job of a scene.
const JOB: &str = "bench";
/// The label of a namespace in which jobs may work on nodes.
const ALLOWED: &str = "oarlock.dev/node-operations";
/// A server sees a new label of a namespace within a second or two, and refuses the job until then.
const ALLOWED_WITHIN: Duration = Duration::from_secs(60);
/// A watch is behind by far less than this.
const RECORDED_WITHIN: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// How many nodes a scene has, and what works on them.
#[derive(Clone)]
pub(crate) struct NodeCast<'a> {
    pub(crate) nodes: usize,
    pub(crate) components: &'a Path,
    pub(crate) dropped: Dropped,
    pub(crate) timings: OperationTimings,
    /// The kind whose versions are recorded.
    pub(crate) recorded: ApiResource,
}

/// The time that the pod of a task takes to start, as the world is configured.
pub(crate) const TASK_START: Span = Span::millis(20, 60);

/// Nodes, and a host that works on them.
pub(crate) struct NodeScene<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) site: Site,
    pub(crate) nodes: Vec<String>,
    pub(crate) host: HostProcess,
    pub(crate) history: History,
    watch: JobWatch,
}

/// How one job went.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// From its creation until a watch brought its end, or until it was given up.
    pub(crate) took: Duration,
    /// How often its host was killed meanwhile; what the host used and wrote, if it never was; where the history has gaps.
    pub(crate) figures: Map<String, Value>,
}

impl<'a> NodeScene<'a> {
    /// Sets one in a fresh namespace of this name.
    ///
    /// # Errors
    /// If a node is refused or the host does not start.
    pub(crate) async fn set(ground: &'a Ground, namespace: &str, cast: NodeCast<'_>) -> anyhow::Result<Self> {
        let timings = Timings { start: TASK_START, ..quick() };
        let usual = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
        let options = WorldOptions { timings, operations: cast.timings, nodes: 0, ..usual };
        let site = Site::in_world(ground, namespace, options).await?;
        let body = Patch::Merge(json!({"metadata": {"labels": {ALLOWED: "true"}}}));
        let namespaces: Api<Namespace> = Api::all(site.client.clone());
        namespaces.patch(namespace, &PatchParams::default(), &body).await?;
        // A name of an earlier scene would bring its boot ids back.
        let nodes = site.add_nodes(cast.nodes).await?;
        let host = HostProcess::start(&ground.kubeconfig()?, cast.components, cast.dropped).await?;
        let watch = JobWatch::start(site.client.clone(), namespace);
        let history = History::record(&site.client, vec![cast.recorded]);
        Ok(Self { ground, site, nodes, host, history, watch })
    }

    /// Creates a job on all nodes, and waits until it has ended; meanwhile the host is killed each time that it has lived for
    /// `kill_every`, and started again at once. A job that does not end is no error.
    ///
    /// # Errors
    /// If the server refuses the job, or the host cannot be started.
    pub(crate) async fn run(&mut self, mut spec: Value, kill_every: Option<Duration>) -> anyhow::Result<Course> {
        let targets: Vec<Value> = self.nodes.iter().map(|name| json!({ "name": name })).collect();
        if let Some(spec) = spec.as_object_mut() {
            spec.insert("targetKind".to_owned(), json!("Node"));
            spec.insert("targets".to_owned(), targets.into());
        }
        let mut meter = Meter::start(self.ground, self.host.id())?;
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

    /// Creates the job once the server has seen the label of its namespace; yields when it had.
    async fn create(&self, job: &DynamicObject) -> anyhow::Result<Instant> {
        let latest = Instant::now() + ALLOWED_WITHIN;
        loop {
            let begun = Instant::now();
            match self.site.jobs().create(&PostParams::default(), job).await {
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

    /// What the status says of each node, by name.
    ///
    /// # Errors
    /// If the job or its records cannot be read.
    pub(crate) async fn details(&self) -> anyhow::Result<BTreeMap<String, TargetDetail>> {
        let job = self.site.jobs().get(JOB).await.context("cannot read the job")?;
        let job: OperationJob = serde_json::from_value(serde_json::to_value(&job)?)?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OperationRecord"));
        let records: Api<DynamicObject> = Api::namespaced_with(self.site.client.clone(), &self.site.namespace, &kind);
        let mut details = job.status.and_then(|status| status.target_details).unwrap_or_default();
        for record in records.list(&ListParams::default()).await.context("cannot read the records")? {
            let record: OperationRecord = serde_json::from_value(serde_json::to_value(&record)?)?;
            details.extend(record.record.targets);
        }
        Ok(details.into_iter().map(|detail| (detail.name.clone(), detail)).collect())
    }

    /// Waits until the history satisfies a condition, which something that the host has seen already calls for.
    pub(crate) async fn until_recorded(&self, seen: impl FnMut(&[oarlock_sim::world::Version]) -> bool) {
        // Whether it does or not, the figures say how things stand.
        let _ = self.history.until("what the host has seen", RECORDED_WITHIN, seen).await;
    }

    /// Stops the host and removes everything, the nodes too.
    ///
    /// # Errors
    /// If the host does not stop or the server refuses.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        let client = self.site.client.clone();
        drop((self.watch, self.history));
        // One that was killed a moment ago may not even have begun.
        self.host.leads().await?;
        self.host.stop().await?;
        self.site.remove().await?;
        cleanup::remove_nodes(&client, TASKS_NAMESPACE).await
    }
}

/// How many nodes are worked on at once: as many as are asked for, else a tenth of them.
pub(crate) fn at_once(asked: &Operations, nodes: usize) -> u32 {
    asked.parallelism.unwrap_or_else(|| u32::try_from(nodes / 10).unwrap_or(u32::MAX).max(1))
}
