//! A cluster, a world and a host with the real component in it, for scenarios that run on both clusters.
//!
//! Takes where the cluster is; yields handles a scenario works with: an admin's client, the world, and a host that can
//! be started and stopped. In memory everything is in one process under tokio's paused time; on the real control plane
//! time is real. May not know what a scenario is about.

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
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane::ControlPlane;
use oarlock_bed::install::Way;
use oarlock_bed::interception::Interceptor;
use oarlock_history::HistoryPlace;
use oarlock_sim::world::{self, History, Seedbed, World};
use serde_json::{Value, json};

use self::furnishing::{UNCHECKED, furnish, may_lead};
pub(crate) use self::furnishing::{furnish_flows, lease_name, tasks_namespace};
pub use self::furnishing::{published, real_plane};
pub use self::questions::patiently;
pub(crate) use self::questions::until_stored;
use crate::hosts::Running;
use crate::jobs;
use crate::ops::CHILDREN;
use crate::oracle::{self, Meddling};

/// What a scenario that lets time pass waits for on a real control plane: long enough to see what comes at once, as is what
/// nobody wants.
const MOST_REAL_TIME: Duration = Duration::from_secs(3);

/// Which cluster a rig stands on.
pub enum Ground {
    /// The in-memory API.
    Sim(oarlock_sim::Cluster),
    /// A real control plane.
    Real(Arc<ControlPlane>),
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
    /// Hosts that run.
    pub(crate) running: Vec<Running>,
    /// The wires of all hosts there were.
    pub(crate) wires: Vec<Interceptor>,
    /// How far the clocks of usual hosts are ahead of the API server's.
    pub clock_ahead: SignedDuration,
    /// Hosts have JobFlows, JobTemplates and DaemonJobs, too.
    pub with_flows: bool,
    /// Hosts have OpsJobs, too, and the control plane for themselves, for these are in no namespace.
    pub with_ops: bool,
    /// Where its hosts keep the files of OpsJobs.
    pub files: Option<PathBuf>,
    /// Where they export images to.
    pub exports: Option<ExportRegistry>,
    /// Where the history is that they write. A cluster in memory, whose time is played, has none.
    pub rows: Option<HistoryPlace>,
    history: History,
    /// What the scenario wrote itself.
    meddling: Meddling,
}

/// The kinds whose versions the history records.
fn recorded_kinds() -> Vec<ApiResource> {
    vec![jobs::resource(), jobs::records(), ApiResource::erase::<Pod>(&())]
}

impl Rig {
    /// A rig on the in-memory API, furnished and without a host. To be made under paused time.
    ///
    /// # Errors
    /// If the cluster cannot be furnished.
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
        Self::stand(Ground::Sim(cluster), client, namespace, world).await
    }

    /// A rig in a namespace of its own on a real control plane.
    ///
    /// # Errors
    /// If the control plane cannot be furnished.
    pub async fn real(plane: Arc<ControlPlane>, namespace: &str) -> anyhow::Result<Self> {
        Self::hurried(plane, namespace, 1.0).await
    }

    /// The same where the sleeps of Jobs take `sleep_factor` of their time.
    ///
    /// # Errors
    /// If the control plane cannot be furnished.
    pub async fn hurried(plane: Arc<ControlPlane>, namespace: &str, sleep_factor: f64) -> anyhow::Result<Self> {
        let client = plane.client(Account::Admin).await?;
        let clock = Arc::new(oarlock_sim::RealClock);
        // The tasks of OpsJobs are those of their OperationJobs, which are in one namespace.
        let namespaces = vec![namespace.to_owned(), tasks_namespace(namespace), CHILDREN.to_owned()];
        let options =
            world::WorldOptions { namespaces, sleep_factor, runs_jobs: false, ..world::WorldOptions::new(1, clock) };
        let world = World::start(plane.client(Account::World).await?, options).await?;
        may_lead(&client, namespace).await?;
        Self::stand(Ground::Real(plane), client, namespace, world).await
    }

    async fn stand(ground: Ground, client: Client, namespace: &str, world: World) -> anyhow::Result<Self> {
        let seedbed = Seedbed::namespace(client.clone(), namespace).await?;
        let history = History::record(&client, recorded_kinds());
        let namespace = namespace.to_owned();
        let (running, wires) = (Vec::new(), Vec::new());
        let clock_ahead = SignedDuration::ZERO;
        Ok(Self {
            ground,
            client,
            namespace,
            world,
            seedbed,
            running,
            wires,
            clock_ahead,
            with_flows: false,
            with_ops: false,
            files: None,
            exports: None,
            rows: None,
            history,
            meddling: Meddling::default(),
        })
    }

    /// Ends the scenario: stops hosts and looks over everything that happened.
    ///
    /// # Errors
    /// Names what must never happen and did.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        while !self.running.is_empty() {
            self.stop_host().await?;
        }
        self.catch_up().await;
        let found = oracle::judge(&self.history, &self.namespace, &self.meddling);
        anyhow::ensure!(found.is_empty(), "never may this happen:\n{}", found.join("\n"));
        let empty: Vec<_> = self.wires.iter().flat_map(Interceptor::records).filter(|sent| sent.empty).collect();
        anyhow::ensure!(empty.is_empty(), "writes that changed nothing: {empty:?}");
        Ok(())
    }

    /// Every version of job and pods so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The scenario writes statuses itself or kills the server: what its history shows of statuses is not judged.
    pub fn meddles(&mut self) {
        self.meddling.statuses = true;
    }

    /// The scenario deletes this record itself: that its lines are gone then is not judged.
    pub fn removes_record(&mut self, name: &str) {
        self.meddling.removed.insert(name.to_owned());
    }

    /// Takes the finalizers off a job, which may go then while it still holds something.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn strip(&mut self, job: &str) -> Result<(), kube::Error> {
        self.meddling.stripped.insert(job.to_owned());
        let body = json!({"metadata": {"finalizers": null}});
        self.jobs().patch(job, &PatchParams::default(), &Patch::Merge(body)).await.map(drop)
    }

    /// Takes the finalizers off a job and deletes it before the host puts its own on again: it is gone with all that it holds.
    ///
    /// # Errors
    /// What the API server says, or if the job is still there when patience ends.
    pub async fn vanish(&mut self, job: &str) -> anyhow::Result<()> {
        self.strip(job).await?;
        self.delete_job(job).await?;
        self.until_gone(job).await
    }

    /// Lets virtual time pass; of real time only a little is waited for.
    pub async fn pass(&self, time: Duration) {
        let most = if let Ground::Sim(_) = self.ground { Duration::MAX } else { MOST_REAL_TIME };
        tokio::time::sleep(time.min(most)).await;
    }

    /// From now on the admission policy lets everything pass in this namespace, as before it was installed.
    ///
    /// # Errors
    /// If it still refuses when patience ends.
    pub async fn lift_admission(&self) -> anyhow::Result<()> {
        self.admit_all(true).await
    }

    /// From now on the admission policy is there again.
    ///
    /// # Errors
    /// If it still lets everything pass when patience ends.
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
        let list = self.pods().list(&ListParams::default().labels(&format!("app={app}"))).await?;
        Ok(list.items.iter().filter_map(|pod| pod.metadata.name.clone()).collect())
    }
}
