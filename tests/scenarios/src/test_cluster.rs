//! A test cluster for scenarios, in memory or real, with simulated controllers and a host that runs the real components.
//!
//! Takes the place of the cluster; yields the handles that a scenario uses: an admin's client, the simulated controllers,
//! and hosts that can be started and stopped. In memory everything runs in one process under tokio's paused time. On the
//! real control plane time is real. May not know what a scenario is about.

mod furnishing;
mod questions;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use oarlock::images::ExportRegistry;
use oarlock_history::HistoryPlace;
use oarlock_sim::world::{self, History, Seedbed, World};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::ControlPlane;
use oarlock_support::install::Way;
use oarlock_support::interception::Interceptor;
use serde_json::{Value, json};

use self::furnishing::{UNCHECKED, furnish, may_lead};
pub(crate) use self::furnishing::{furnish_flows, lease_name, tasks_namespace};
pub use self::furnishing::{published, real_plane};
pub use self::questions::patiently;
pub(crate) use self::questions::until_stored;
use crate::hosts::{Running, WatchKind};
use crate::jobs;
use crate::ops::CHILDREN;
use crate::oracle::{self, Meddling};

/// The longest wait on a real control plane when a scenario lets time pass. It is long enough to observe an immediate effect, wanted or not.
const MOST_REAL_TIME: Duration = Duration::from_secs(3);

/// The kinds of clusters that a test cluster uses.
pub enum Backend {
    /// The in-memory API.
    Sim(oarlock_sim::Cluster),
    /// A real control plane.
    Real(Arc<ControlPlane>),
}

/// A cluster with simulated controllers and, once started, hosts.
pub struct TestCluster {
    /// The cluster.
    pub backend: Backend,
    /// An admin's client.
    pub client: Client,
    /// The namespace of the scenario.
    pub namespace: String,
    /// The simulated controllers and kubelets.
    pub world: World,
    /// Creates workloads in the namespace.
    pub seedbed: Seedbed,
    /// The running hosts.
    pub(crate) running: Vec<Running>,
    /// The interceptors of all hosts so far.
    pub(crate) interceptors: Vec<Interceptor>,
    /// The time by which the clocks of usual hosts are ahead of the API server's clock.
    pub clock_ahead: SignedDuration,
    /// True if hosts also serve JobFlows, JobTemplates and DaemonJobs.
    pub with_flows: bool,
    /// True if hosts also serve OpsJobs. Such a test cluster needs its own control plane, because OpsJobs are cluster-scoped.
    pub with_ops: bool,
    /// The kinds that hosts serve in addition. Such a test cluster needs its own control plane.
    pub kinds: Vec<WatchKind>,
    /// The folder in which the hosts keep the files of OpsJobs.
    pub files: Option<PathBuf>,
    /// The registry to which the hosts export images.
    pub exports: Option<ExportRegistry>,
    /// The place of the history that the hosts write. `None` on an in-memory cluster, because the history needs real time.
    pub rows: Option<HistoryPlace>,
    history: History,
    /// The writes of the scenario itself.
    meddling: Meddling,
}

/// Returns the kinds whose versions the history records.
fn recorded_kinds() -> Vec<ApiResource> {
    vec![jobs::resource(), jobs::records(), ApiResource::erase::<Pod>(&())]
}

impl TestCluster {
    /// Returns a test cluster on the in-memory API, with CRDs and policies and without a host. Must be called under paused time.
    ///
    /// # Errors
    /// If the CRDs and policies cannot be installed.
    pub async fn sim(seed: u64) -> anyhow::Result<Self> {
        Self::sim_in(seed, "scenario").await
    }

    async fn sim_in(seed: u64, namespace: &str) -> anyhow::Result<Self> {
        let clock = Arc::new(oarlock_sim::VirtualClock::default());
        let options = oarlock_sim::Options { clock: clock.clone(), seed, ..oarlock_sim::Options::default() };
        let cluster = oarlock_sim::Cluster::new(options);
        let client = Client::new(cluster.service(), "default");
        furnish(&client, Way::CreateMissing).await?;
        let world = World::start(client.clone(), world::WorldOptions::new(seed, clock)).await?;
        Self::stand(Backend::Sim(cluster), client, namespace, world).await
    }

    /// Returns a test cluster in its own namespace on a real control plane.
    ///
    /// # Errors
    /// If the CRDs and policies cannot be installed.
    pub async fn real(plane: Arc<ControlPlane>, namespace: &str) -> anyhow::Result<Self> {
        Self::hurried(plane, namespace, 1.0).await
    }

    /// Returns a test cluster on a real control plane where the sleeps of Jobs take `sleep_factor` of their time.
    ///
    /// # Errors
    /// If the CRDs and policies cannot be installed.
    pub async fn hurried(plane: Arc<ControlPlane>, namespace: &str, sleep_factor: f64) -> anyhow::Result<Self> {
        let client = plane.client(Account::Admin).await?;
        let clock = Arc::new(oarlock_sim::RealClock);
        // OpsJobs run their tasks through OperationJobs, which are all in one namespace.
        let namespaces = vec![namespace.to_owned(), tasks_namespace(namespace), CHILDREN.to_owned()];
        let options =
            world::WorldOptions { namespaces, sleep_factor, runs_jobs: false, ..world::WorldOptions::new(1, clock) };
        let world = World::start(plane.client(Account::World).await?, options).await?;
        may_lead(&client, namespace).await?;
        Self::stand(Backend::Real(plane), client, namespace, world).await
    }

    async fn stand(backend: Backend, client: Client, namespace: &str, world: World) -> anyhow::Result<Self> {
        let seedbed = Seedbed::namespace(client.clone(), namespace).await?;
        let history = History::record(&client, recorded_kinds());
        let namespace = namespace.to_owned();
        let (running, interceptors) = (Vec::new(), Vec::new());
        let clock_ahead = SignedDuration::ZERO;
        Ok(Self {
            backend,
            client,
            namespace,
            world,
            seedbed,
            running,
            interceptors,
            clock_ahead,
            with_flows: false,
            with_ops: false,
            kinds: Vec::new(),
            files: None,
            exports: None,
            rows: None,
            history,
            meddling: Meddling::default(),
        })
    }

    /// Ends the scenario: stops the hosts and checks everything that happened.
    ///
    /// # Errors
    /// If a property was broken, or if a write changed nothing. The error names each case.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        while !self.running.is_empty() {
            self.stop_host().await?;
        }
        self.catch_up().await;
        let found = oracle::judge(&self.history, &self.namespace, &self.meddling);
        anyhow::ensure!(found.is_empty(), "never may this happen:\n{}", found.join("\n"));
        let unexplained = Vec::from_iter(self.unexplained_reasons().await?);
        anyhow::ensure!(unexplained.is_empty(), "reasons that nobody explains:\n{}", unexplained.join("\n"));
        let empty: Vec<_> = self.interceptors.iter().flat_map(Interceptor::records).filter(|sent| sent.empty).collect();
        anyhow::ensure!(empty.is_empty(), "writes that changed nothing: {empty:?}");
        Ok(())
    }

    /// Returns every version of jobs, records and pods so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Announces that the scenario writes statuses itself or kills the server. Rules about statuses are not checked then.
    pub fn meddles(&mut self) {
        self.meddling.statuses = true;
    }

    /// Announces that the scenario deletes this record itself. The loss of its content is not checked then.
    pub fn removes_record(&mut self, name: &str) {
        self.meddling.removed.insert(name.to_owned());
    }

    /// Removes the finalizers of a job. The job may go then while it still holds something.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn strip(&mut self, job: &str) -> Result<(), kube::Error> {
        self.meddling.stripped.insert(job.to_owned());
        let body = json!({"metadata": {"finalizers": null}});
        self.jobs().patch(job, &PatchParams::default(), &Patch::Merge(body)).await.map(drop)
    }

    /// Removes the finalizers of a job and deletes the job before the host adds its finalizer again. The job is gone with all its holds.
    ///
    /// # Errors
    /// If the API server refuses a request, or if the job still exists when the time is over.
    pub async fn vanish(&mut self, job: &str) -> anyhow::Result<()> {
        self.strip(job).await?;
        self.delete_job(job).await?;
        self.until_gone(job).await
    }

    /// Lets virtual time pass. On a real control plane it waits for at most three seconds.
    pub async fn pass(&self, time: Duration) {
        let most = if let Backend::Sim(_) = self.backend { Duration::MAX } else { MOST_REAL_TIME };
        tokio::time::sleep(time.min(most)).await;
    }

    /// Switches the admission policy off in this namespace, as before its installation.
    ///
    /// # Errors
    /// If the policy still refuses jobs when the time is over.
    pub async fn lift_admission(&self) -> anyhow::Result<()> {
        self.admit_all(true).await
    }

    /// Switches the admission policy on again in this namespace.
    ///
    /// # Errors
    /// If the policy still admits everything when the time is over.
    pub async fn restore_admission(&self) -> anyhow::Result<()> {
        self.admit_all(false).await
    }

    async fn admit_all(&self, all: bool) -> anyhow::Result<()> {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.client.clone());
        let label = json!({"metadata": {"labels": {UNCHECKED: all.then_some("true")}}});
        namespaces.patch(&self.namespace, &PatchParams::default(), &Patch::Merge(label)).await?;
        let probe = PostParams { dry_run: true, ..PostParams::default() };
        let job = DynamicObject::new("probe", &jobs::resource()).within(&self.namespace);
        patiently("the policy is as wanted", async || Ok(self.jobs().create(&probe, &job).await.is_ok() == all)).await
    }

    /// Returns the OperationJobs of the namespace.
    pub fn jobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &jobs::resource())
    }

    /// Returns the pods of the namespace.
    pub fn pods(&self) -> Api<k8s_openapi::api::core::v1::Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a job with this spec.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn create_job(&self, name: &str, spec: Value) -> Result<DynamicObject, kube::Error> {
        let mut job = DynamicObject::new(name, &jobs::resource()).data(json!({ "spec": spec }));
        job.metadata.namespace = Some(self.namespace.clone());
        self.jobs().create(&PostParams::default(), &job).await
    }

    /// Changes the spec of a job.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn edit_job(&self, name: &str, spec: Value) -> Result<DynamicObject, kube::Error> {
        self.jobs().patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
    }

    /// Deletes a job.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn delete_job(&self, name: &str) -> Result<(), kube::Error> {
        self.jobs().delete(name, &DeleteParams::background()).await.map(drop)
    }

    /// Returns the names of the pods of a set, sorted.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn pod_names(&self, app: &str) -> anyhow::Result<Vec<String>> {
        let list = self.pods().list(&ListParams::default().labels(&format!("app={app}"))).await?;
        Ok(list.items.iter().filter_map(|pod| pod.metadata.name.clone()).collect())
    }
}
