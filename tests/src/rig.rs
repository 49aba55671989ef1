//! A cluster, a world and a host with the real component in it, for scenarios that run on both clusters.
//!
//! Takes where the cluster is; yields handles a scenario works with: an admin's client, the world, and a host that can
//! be started and stopped. In memory everything is in one process under tokio's paused time; on the real control plane
//! time is real. May not know what a scenario is about.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Resource as _};
use oarlock::controller::Controller;
use oarlock::host::Host;
use oarlock::metrics::Metrics;
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_bed::install::{self, Way};
use oarlock_bed::accounts::Account;
use oarlock_kube::lease::{Candidacy, Election};
use oarlock_kube::{Cluster, Setup};
use oarlock_sim::world::{self, Seedbed, Timings, World};
use oarlock_wasm::Plugins;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::components::{GRANTS, component};
use crate::jobs::{self, Told};

/// How long a scenario waits for anything: far longer than it takes, for it only ends tests that fail.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which cluster a rig stands on.
pub enum Ground {
    /// The in-memory API.
    Sim(oarlock_sim::Cluster),
    /// A real control plane.
    Real(Arc<ControlPlane>),
}

/// A running host.
pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
    cluster: Cluster,
    /// Its ports.
    pub host: Arc<Host>,
}

/// A cluster, a world and, once started, a host.
pub struct Rig {
    /// The cluster.
    pub ground: Ground,
    /// An admin's client.
    pub client: Client,
    /// The namespace of the scenario.
    pub namespace: String,
    /// The world.
    pub world: World,
    /// Plants workloads in the namespace.
    pub seedbed: Seedbed,
    running: Option<Running>,
}

impl Rig {
    /// A rig on the in-memory API, furnished and without a host. To be made under paused time.
    ///
    /// # Errors
    /// If the cluster cannot be furnished.
    pub async fn sim(seed: u64) -> anyhow::Result<Self> {
        let clock = Arc::new(oarlock_sim::VirtualClock::default());
        let options = oarlock_sim::Options { clock: clock.clone(), seed, ..oarlock_sim::Options::default() };
        let cluster = oarlock_sim::Cluster::new(options);
        let client = Client::new(cluster.service(), "default");
        let documents = install::documents(&oarlock::manifests())?;
        install::install(&client, &documents, Way::CreateMissing).await?;
        let world = World::start(client.clone(), world::Options { timings: Timings::default(), ..world::Options::new(seed, clock) }).await?;
        let seedbed = Seedbed::namespace(client.clone(), "default").await?;
        Ok(Self { ground: Ground::Sim(cluster), client, namespace: "default".to_owned(), world, seedbed, running: None })
    }

    /// A rig in a namespace of its own on a real control plane.
    ///
    /// # Errors
    /// If the control plane cannot be furnished.
    pub async fn real(plane: Arc<ControlPlane>, namespace: &str) -> anyhow::Result<Self> {
        let client = plane.client(Account::Admin).await?;
        let world_client = plane.client(Account::World).await?;
        let clock = Arc::new(oarlock_sim::RealClock);
        let options = world::Options { namespaces: vec![namespace.to_owned()], ..world::Options::new(1, clock) };
        let world = World::start(world_client, options).await?;
        let seedbed = Seedbed::namespace(client.clone(), namespace).await?;
        Ok(Self { ground: Ground::Real(plane), client, namespace: namespace.to_owned(), world, seedbed, running: None })
    }

    /// A client for a host: with exactly the host's rights where the cluster knows rights.
    async fn host_client(&self) -> anyhow::Result<Client> {
        match &self.ground {
            Ground::Sim(cluster) => Ok(Client::new(cluster.service(), "default")),
            Ground::Real(plane) => plane.client(Account::Host).await,
        }
    }

    /// Starts the host, with the Replace plugin published.
    ///
    /// # Errors
    /// If the component is missing or a host runs already.
    pub async fn start_host(&mut self) -> anyhow::Result<()> {
        let client = self.host_client().await?;
        self.start_host_with(client, &[component("replace")?], GRANTS).await
    }

    /// Starts a host that speaks through `client`, with these components published under these grants.
    ///
    /// # Errors
    /// If a component is refused or a host runs already.
    pub async fn start_host_with(&mut self, client: Client, components: &[Vec<u8>], grants: &str) -> anyhow::Result<()> {
        anyhow::ensure!(self.running.is_none(), "a host runs already");
        let clock: oarlock_kube::clock::Clock = match &self.ground {
            Ground::Sim(cluster) => {
                let cluster = cluster.clone();
                Arc::new(move || cluster.now())
            }
            Ground::Real(_) => Arc::new(k8s_openapi::jiff::Timestamp::now),
        };
        let identity = format!("host-{}", self.namespace);
        let (cluster, news) = Cluster::open(Setup { client, clock, identity: identity.clone() });
        let plugins = Plugins::start(oarlock_wasm::Options::in_memory()).await?;
        plugins.set_grants(oarlock_wasm::parse_grants(grants)?).await;
        for (number, bytes) in components.iter().enumerate() {
            plugins.publish(&format!("plugin-{number}"), bytes.clone()).await;
        }
        let metrics = Arc::new(Metrics::new(cluster.requests()));
        let host = Arc::new(Host::new(cluster.clone(), plugins, metrics));
        let candidacy =
            Candidacy { namespace: "oarlock-system".into(), name: format!("oarlock-{}", self.namespace), identity, duration: Duration::from_secs(15) };
        let election = Election::stand(&cluster, candidacy);
        let stop = CancellationToken::new();
        let task = tokio::spawn(Controller::new(host.clone(), news).run(election, stop.clone()));
        self.running = Some(Running { stop, task, cluster, host });
        Ok(())
    }

    /// Stops the host as SIGTERM would.
    ///
    /// # Errors
    /// If it panicked.
    pub async fn stop_host(&mut self) -> anyhow::Result<()> {
        let Some(Running { stop, task, cluster, .. }) = self.running.take() else { return Ok(()) };
        stop.cancel();
        task.await.context("the host panicked")?;
        cluster.stop(Duration::from_secs(5)).await;
        Ok(())
    }

    /// Stops the host where it stands, as SIGKILL would: nothing it has begun is finished.
    pub async fn kill_host(&mut self) {
        if let Some(Running { task, cluster, .. }) = self.running.take() {
            task.abort();
            drop(task.await);
            cluster.stop(Duration::ZERO).await;
        }
    }

    /// The running host.
    ///
    /// # Errors
    /// If none runs.
    pub fn host(&self) -> anyhow::Result<&Arc<Host>> {
        self.running.as_ref().map(|running| &running.host).context("no host runs")
    }

    /// The OperationJobs of the namespace.
    pub fn jobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &jobs::resource())
    }

    /// The pods of the namespace.
    pub fn pods(&self) -> Api<k8s_openapi::api::core::v1::Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a job with this spec.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn create_job(&self, name: &str, spec: Value) -> Result<DynamicObject, kube::Error> {
        let mut job = DynamicObject::new(name, &jobs::resource()).data(json!({ "spec": spec }));
        job.metadata.namespace = Some(self.namespace.clone());
        self.jobs().create(&PostParams::default(), &job).await
    }

    /// Changes the spec of a job.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn edit_job(&self, name: &str, spec: Value) -> Result<DynamicObject, kube::Error> {
        self.jobs().patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
    }

    /// Deletes a job.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn delete_job(&self, name: &str) -> Result<(), kube::Error> {
        self.jobs().delete(name, &DeleteParams::background()).await.map(drop)
    }

    /// Names of the pods of a set, sorted.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn pod_names(&self, app: &str) -> anyhow::Result<Vec<String>> {
        let list = self.pods().list(&kube::api::ListParams::default().labels(&format!("app={app}"))).await?;
        Ok(list.items.iter().filter_map(|pod| pod.meta().name.clone()).collect())
    }

    /// Waits until `job` is as `which` wants it.
    ///
    /// # Errors
    /// Shows the job as it is when patience ends.
    pub async fn until(&self, name: &str, what: &str, which: impl Fn(&DynamicObject) -> bool) -> anyhow::Result<DynamicObject> {
        let begun = tokio::time::Instant::now();
        loop {
            let job = self.jobs().get_opt(name).await?;
            if let Some(job) = job.as_ref().filter(|job| which(job)) {
                return Ok(job.clone());
            }
            if begun.elapsed() > PATIENCE {
                let shown = job.map(|job| serde_json::to_string_pretty(&job.data)).transpose()?;
                anyhow::bail!("{name}: never {what}; it is {}", shown.unwrap_or_else(|| "gone".to_owned()));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the job has this progress.
    ///
    /// # Errors
    /// Shows the job as it is when patience ends.
    pub async fn until_progress(&self, name: &str, progress: &str) -> anyhow::Result<DynamicObject> {
        self.until(name, progress, |job| job.progress() == progress).await
    }

    /// Waits until the job is gone.
    ///
    /// # Errors
    /// Shows the job as it is when patience ends.
    pub async fn until_gone(&self, name: &str) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        while let Some(job) = self.jobs().get_opt(name).await? {
            anyhow::ensure!(begun.elapsed() <= PATIENCE, "{name} is never gone: {}", serde_json::to_string_pretty(&job)?);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// What is left of ours on any pod of the namespace: holds, finalizers, replace labels.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn leftovers(&self) -> anyhow::Result<Vec<String>> {
        let mut left = Vec::new();
        for pod in self.pods().list(&kube::api::ListParams::default()).await? {
            let meta = &pod.metadata;
            let name = meta.name.clone().unwrap_or_default();
            let annotations = meta.annotations.iter().flatten().map(|(key, _)| key).filter(|key| key.starts_with("hold.oarlock.dev/"));
            let finalizers = meta.finalizers.iter().flatten().filter(|key| key.contains("operationjob.kusionstack.io"));
            let labels = meta.labels.iter().flatten().map(|(key, _)| key).filter(|key| *key == "collaset.kusionstack.io/to-replace");
            left.extend(annotations.chain(finalizers).chain(labels).map(|mark| format!("{name}: {mark}")));
        }
        Ok(left)
    }
}

/// A real control plane with everything installed that `oarlock manifests` prints.
///
/// # Errors
/// If it cannot be built or started: that is a failure, never a skip.
pub async fn real_plane(options: control_plane::Options) -> anyhow::Result<Arc<ControlPlane>> {
    let plane = control_plane::start(options).await?;
    let client = plane.client(Account::Admin).await?;
    install::install(&client, &install::documents(&oarlock::manifests())?, Way::Apply).await?;
    Ok(Arc::new(plane))
}
