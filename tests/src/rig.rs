//! A cluster, a world and a host with the real component in it, for scenarios that run on both clusters.
//!
//! Takes where the cluster is; yields handles a scenario works with: an admin's client, the world, and a host that can
//! be started and stopped. In memory everything is in one process under tokio's paused time; on the real control plane
//! time is real. May not know what a scenario is about.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::SignedDuration;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_bed::install::{self, Way};
use oarlock_sim::world::{self, History, Seedbed, World};
use oarlock_wasm::Plugins;
use serde_json::{Value, json};

use crate::hosts::Running;
use crate::invariants::breaches;
use crate::jobs::{self, Told};
use crate::wire::Wire;

/// How long a scenario waits for anything: far longer than it takes, for it only ends tests that fail.
const PATIENCE: Duration = Duration::from_secs(300);

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
    pub(crate) wires: Vec<Wire>,
    /// How far the clocks of usual hosts are ahead of the API server's.
    pub clock_ahead: SignedDuration,
    history: History,
    meddled: bool,
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
        let client = plane.client(Account::Admin).await?;
        let clock = Arc::new(oarlock_sim::RealClock);
        let options =
            world::WorldOptions { namespaces: vec![namespace.to_owned()], ..world::WorldOptions::new(1, clock) };
        let world = World::start(plane.client(Account::World).await?, options).await?;
        may_lead(&client, namespace).await?;
        Self::stand(Ground::Real(plane), client, namespace, world).await
    }

    async fn stand(ground: Ground, client: Client, namespace: &str, world: World) -> anyhow::Result<Self> {
        let seedbed = Seedbed::namespace(client.clone(), namespace).await?;
        let kinds = vec![jobs::resource(), kube::api::ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())];
        let history = History::record(&client, kinds);
        let namespace = namespace.to_owned();
        let (running, wires) = (Vec::new(), Vec::new());
        let clock_ahead = SignedDuration::ZERO;
        Ok(Self { ground, client, namespace, world, seedbed, running, wires, clock_ahead, history, meddled: false })
    }

    /// Ends the scenario: stops hosts and looks over everything that happened.
    ///
    /// # Errors
    /// Names what must never happen and did.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        while !self.running.is_empty() {
            self.stop_host().await?;
        }
        let versions: Vec<_> =
            self.history.versions().into_iter().filter(|version| version.namespace == self.namespace).collect();
        let found = breaches(&versions, self.meddled);
        anyhow::ensure!(found.is_empty(), "never may this happen:\n{}", found.join("\n"));
        let empty: Vec<_> = self.wires.iter().flat_map(Wire::writes).filter(|sent| sent.empty).collect();
        anyhow::ensure!(empty.is_empty(), "writes that changed nothing: {empty:?}");
        Ok(())
    }

    /// Every version of job and pods so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The scenario writes statuses itself or kills the server: what its history shows of statuses is not judged.
    pub fn meddles(&mut self) {
        self.meddled = true;
    }

    /// Lets virtual time pass; real time is never waited for.
    pub async fn pass(&self, time: Duration) {
        if let Ground::Sim(_) = self.ground {
            tokio::time::sleep(time).await;
        }
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

    /// Waits until `job` is as `which` wants it.
    ///
    /// # Errors
    /// Shows the job as it is when patience ends.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        which: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<DynamicObject> {
        let mut seen = None;
        let waited = patiently(what, async || {
            seen = self.jobs().get_opt(name).await?;
            Ok(seen.as_ref().is_some_and(&which))
        })
        .await;
        match (waited, seen) {
            (Ok(()), Some(job)) => Ok(job),
            (waited, seen) => {
                let shown = seen.map(|job| serde_json::to_string_pretty(&job)).transpose()?;
                let shown = shown.unwrap_or_else(|| "gone".to_owned());
                anyhow::bail!(
                    "{name} is {shown}\n{:#}\n{}",
                    waited.err().unwrap_or_else(|| anyhow::anyhow!("gone")),
                    self.told().await
                )
            }
        }
    }

    /// Ledger and events, for whoever has to find out why a scenario failed.
    async fn told(&self) -> String {
        let ledger: Vec<String> =
            self.world.ledger().entries().iter().rev().take(40).rev().map(ToString::to_string).collect();
        let events = self.events().await.unwrap_or_default();
        let events: Vec<String> = events
            .iter()
            .map(|event| format!("{} {}", word(event.reason.as_ref()), word(event.note.as_ref())))
            .collect();
        let writes: Vec<String> = self
            .wires
            .iter()
            .flat_map(Wire::writes)
            .map(|sent| format!("{} {} {:?}", sent.method, sent.path, sent.status))
            .collect();
        let writes = writes.get(writes.len().saturating_sub(30)..).unwrap_or_default();
        format!("ledger:\n{}\nevents:\n{}\nwrites:\n{}", ledger.join("\n"), events.join("\n"), writes.join("\n"))
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
    /// If it is still there when patience ends.
    pub async fn until_gone(&self, name: &str) -> anyhow::Result<()> {
        patiently("the job is gone", async || Ok(self.jobs().get_opt(name).await?.is_none())).await
    }

    /// Waits until the pod is as `which` wants it.
    ///
    /// # Errors
    /// If it is not when patience ends.
    pub async fn until_pod(
        &self,
        name: &str,
        what: &str,
        which: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<()> {
        let pods: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &kube::api::ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
        );
        patiently(what, async || Ok(pods.get_opt(name).await?.as_ref().is_some_and(&which))).await
    }

    /// Waits until nothing of ours is left on any pod.
    ///
    /// # Errors
    /// Names what is left when patience ends.
    pub async fn until_nothing_is_left(&self) -> anyhow::Result<()> {
        let waited = patiently("nothing is left", async || Ok(self.leftovers().await?.is_empty())).await;
        anyhow::ensure!(waited.is_ok(), "left behind: {:?}", self.leftovers().await?);
        Ok(())
    }

    /// The events of the namespace, oldest first as the server lists them.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn events(&self) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(events.list(&ListParams::default()).await?.items)
    }

    /// How often a reason was told.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn told_times(&self, reason: &str) -> anyhow::Result<usize> {
        let events = self.events().await?;
        Ok(events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count())
    }

    /// Waits until a reason was told so often.
    ///
    /// # Errors
    /// If it was not when patience ends.
    pub async fn until_told(&self, reason: &str, times: usize) -> anyhow::Result<()> {
        let what = format!("{reason} is told {times} times");
        let waited = patiently(&what, async || Ok(self.told_times(reason).await? >= times)).await;
        anyhow::ensure!(waited.is_ok(), "never: {what}\n{}", self.told().await);
        Ok(())
    }

    /// What is left of ours on any pod of the namespace: holds, finalizers, replace labels.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn leftovers(&self) -> anyhow::Result<Vec<String>> {
        let mut left = Vec::new();
        for pod in self.pods().list(&ListParams::default()).await? {
            let meta = &pod.metadata;
            let name = meta.name.clone().unwrap_or_default();
            let annotations = meta
                .annotations
                .iter()
                .flatten()
                .map(|(key, _)| key)
                .filter(|key| key.starts_with("hold.oarlock.dev/"));
            let finalizers = meta.finalizers.iter().flatten().filter(|key| key.contains("operationjob.kusionstack.io"));
            let labels = meta
                .labels
                .iter()
                .flatten()
                .map(|(key, _)| key)
                .filter(|key| *key == "collaset.kusionstack.io/to-replace");
            left.extend(annotations.chain(finalizers).chain(labels).map(|mark| format!("{name}: {mark}")));
        }
        Ok(left)
    }
}

/// These components, compiled and published under these grants. Clones share what was compiled, so that many hosts, one
/// after the other, cost one compilation.
///
/// # Errors
/// If the engine does not start or the grants cannot be read.
pub async fn published(components: &[Vec<u8>], grants: &str) -> anyhow::Result<Plugins> {
    let plugins = Plugins::start(oarlock_wasm::Options::in_memory()).await?;
    plugins.set_grants(oarlock_wasm::parse_grants(grants)?).await;
    for (number, bytes) in components.iter().enumerate() {
        plugins.publish(&format!("plugin-{number}"), bytes.clone()).await;
    }
    Ok(plugins)
}

/// A real control plane with everything installed that `oarlock manifests` prints.
///
/// # Errors
/// If it cannot be built or started: that is a failure, never a skip.
pub async fn real_plane(options: control_plane::Options) -> anyhow::Result<Arc<ControlPlane>> {
    let plane = control_plane::start(options).await?;
    furnish(&plane.client(Account::Admin).await?, Way::Apply).await?;
    Ok(Arc::new(plane))
}

/// Namespaces with this label are spared by the admission policy, so that a scenario can store what predates it.
const UNCHECKED: &str = "scenarios.test/unchecked";

async fn furnish(client: &Client, way: Way) -> anyhow::Result<()> {
    let mut documents = install::documents(&oarlock::manifests()?)?;
    for document in &mut documents {
        if document.get("kind").and_then(Value::as_str) == Some("ValidatingAdmissionPolicyBinding")
            && let Some(spec) = document.get_mut("spec").and_then(Value::as_object_mut)
        {
            let spared = json!({"matchExpressions": [{"key": UNCHECKED, "operator": "DoesNotExist"}]});
            spec.insert("matchResources".to_owned(), json!({"namespaceSelector": spared}));
        }
    }
    install::install(client, &documents, way).await
}

/// Scenarios that share a control plane have a lease each, and the role of the manifests names only one.
async fn may_lead(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let lease = lease_name(namespace);
    for mut document in install::documents(&oarlock::manifests()?)? {
        let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut put = |pointer: &str| document.pointer_mut(pointer).map(|found| *found = json!(lease)).is_some();
        let named = match kind.as_str() {
            "Role" => put("/metadata/name") && put("/rules/0/resourceNames/0"),
            "RoleBinding" => put("/metadata/name") && put("/roleRef/name"),
            _ => continue,
        };
        anyhow::ensure!(named, "the {kind} of the lease has another shape");
        install::apply(client, &document).await?;
    }
    Ok(())
}

/// The lease of the hosts of a scenario.
pub(crate) fn lease_name(namespace: &str) -> String {
    format!("oarlock-{namespace}")
}

fn word(text: Option<&String>) -> &str {
    text.map(String::as_str).unwrap_or_default()
}

/// Asks until the answer is yes.
///
/// # Errors
/// What the question met, or `what` never was.
pub async fn patiently(what: &str, mut question: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    while !question().await? {
        anyhow::ensure!(begun.elapsed() <= PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
