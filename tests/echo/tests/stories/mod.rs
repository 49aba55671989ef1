//! The story that is played in memory and on a real control plane, with what every test of EchoJobs needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use oarlock::kinds::ServedKind;
use oarlock::manifests::{HostAccount, kind_manifests};
use oarlock_echo::job::echo_kind;
use oarlock_echo::kind::EchoJobs;
use oarlock_kube::Cluster;
use oarlock_kube::kinds::KindPort;
use oarlock_scenarios::test_cluster::{Backend, TestCluster, patiently};
use oarlock_sim::world::Seedbed;
use oarlock_support::faults::Plan;
use oarlock_support::install::{self, Way};
use oarlock_support::interception::Interceptor;
use serde_json::{Value, json};

/// A test cluster whose hosts serve EchoJobs.
pub(crate) struct EchoCluster {
    pub(crate) inner: TestCluster,
}

impl EchoCluster {
    /// Installs the kind, and makes two namespaces of team `a` and one of team `b`.
    pub(crate) async fn prepare(mut inner: TestCluster) -> anyhow::Result<Self> {
        let way = if let Backend::Sim(_) = inner.backend { Way::CreateMissing } else { Way::Apply };
        let documents = install::documents(&kind_manifests(&EchoJobs, &HostAccount::default())?)?;
        install::install(&inner.client, &documents, way).await?;
        let watch = |cluster: &Cluster| -> Arc<dyn ServedKind> {
            Arc::new(KindPort::watch(cluster.clone(), EchoJobs, Arc::new(())))
        };
        inner.kinds = vec![Arc::new(watch)];
        let cluster = Self { inner };
        let namespaces: Api<Namespace> = Api::all(cluster.inner.client.clone());
        for (suffix, team) in [("one", "a"), ("two", "a"), ("three", "b")] {
            let name = cluster.namespace(suffix);
            Seedbed::namespace(cluster.inner.client.clone(), &name).await?;
            let label = json!({"metadata": {"labels": {"team": team}}});
            namespaces.patch(&name, &PatchParams::default(), &Patch::Merge(label)).await?;
        }
        Ok(cluster)
    }

    /// Returns the name of a namespace of this cluster. Tests on one control plane have different names.
    pub(crate) fn namespace(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.inner.namespace)
    }

    /// Returns the names of the namespaces of team `a`, sorted.
    pub(crate) fn chosen(&self) -> [String; 2] {
        [self.namespace("one"), self.namespace("two")]
    }

    /// Starts a host with this plan of faults.
    pub(crate) async fn start(&mut self, plan: Plan) -> anyhow::Result<()> {
        let mut host = self.inner.host_named("host");
        (host.plugins, host.grants) = (Vec::new(), String::new());
        host.interceptor = Interceptor::new(plan, &["leases", "events"]);
        self.inner.start(host).await
    }

    /// Returns the EchoJobs.
    pub(crate) fn jobs(&self) -> Api<DynamicObject> {
        Api::all_with(self.inner.client.clone(), &resource())
    }

    /// Creates an EchoJob for team `a` with a deadline of a minute. Its pods run for this number of seconds.
    pub(crate) async fn create(&self, name: &str, seconds: u32) -> anyhow::Result<()> {
        let command = ["sh", "-c", &format!("sleep {seconds}")];
        let spec = json!({"namespaceSelector": "team=a", "image": "echo:1", "command": command,
            "activeDeadlineSeconds": 60});
        let job = DynamicObject::new(name, &resource()).data(json!({ "spec": spec }));
        self.jobs().create(&PostParams::default(), &job).await?;
        Ok(())
    }

    /// Returns the status of an EchoJob. `Null` stands for a missing job or status.
    pub(crate) async fn status(&self, name: &str) -> anyhow::Result<Value> {
        let job = self.jobs().get_opt(name).await?;
        Ok(job.and_then(|mut job| job.data.get_mut("status").map(Value::take)).unwrap_or_default())
    }

    /// Waits until an EchoJob has this phase. Returns its status.
    pub(crate) async fn until(&self, name: &str, phase: &str) -> anyhow::Result<Value> {
        patiently(phase, async || Ok(self.status(name).await?["phase"] == phase)).await?;
        self.status(name).await
    }

    /// Returns the phase of each pod of an EchoJob, by namespace.
    pub(crate) async fn pods(&self, job: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let pods: Api<Pod> = Api::all(self.inner.client.clone());
        let named = ListParams::default().fields(&format!("metadata.name=echo-{job}"));
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let listed = pods.list(&named).await?;
        Ok(listed.iter().map(|pod| (pod.metadata.namespace.clone().unwrap_or_default(), phase(pod))).collect())
    }

    /// Ends the pods of an EchoJob, as a kubelet does whose containers have succeeded.
    pub(crate) async fn end_pods(&self, job: &str) -> anyhow::Result<()> {
        for (namespace, phase) in self.pods(job).await? {
            let pods: Api<Pod> = Api::namespaced(self.inner.client.clone(), &namespace);
            let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
            let is_over = phase == "Succeeded";
            match pods.patch_status(&format!("echo-{job}"), &PatchParams::default(), &ended).await {
                _ if is_over => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// Waits until an EchoJob is gone. Fails if a pod is left then.
    pub(crate) async fn until_gone(&self, name: &str) -> anyhow::Result<()> {
        patiently("the job is gone", async || Ok(self.jobs().get_opt(name).await?.is_none())).await?;
        let left = self.pods(name).await?;
        ensure!(left.is_empty(), "pods are left: {left:?}");
        Ok(())
    }

    /// Checks that an EchoJob had one pod ever in each namespace of team `a`, and none in another.
    pub(crate) fn had_one_pod_each(&self, name: &str) -> anyhow::Result<()> {
        let versions = self.inner.history().versions();
        let pods = versions.iter().filter(|version| version.plural == "pods" && version.name == format!("echo-{name}"));
        let pods: BTreeSet<(&str, &str)> = pods.map(|pod| (pod.namespace.as_str(), pod.uid.as_str())).collect();
        let namespaces: Vec<&str> = pods.iter().map(|(namespace, _)| *namespace).collect();
        ensure!(namespaces == self.chosen(), "{pods:?}");
        Ok(())
    }
}

fn resource() -> ApiResource {
    let kind = echo_kind();
    let (group, version) = kind.api_version.split_once('/').unwrap_or_default();
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind.kind))
}

/// Plays a job from its creation to its deletion.
pub(crate) async fn a_job_runs_one_pod_in_each_namespace_and_cleans_up(inner: TestCluster) -> anyhow::Result<()> {
    let mut cluster = EchoCluster::prepare(inner).await?;
    cluster.start(Plan::none()).await?;
    cluster.create("j", 600).await?;
    let status = cluster.until("j", "Running").await?;
    ensure!(status["namespaces"] == json!(cluster.chosen()), "{status:#}");
    patiently("both pods", async || Ok(cluster.pods("j").await?.into_keys().eq(cluster.chosen()))).await?;
    cluster.end_pods("j").await?;
    let status = cluster.until("j", "Succeeded").await?;
    ensure!(status["finishedAt"].is_string() && status.get("message").is_none(), "{status:#}");
    ensure!(cluster.pods("j").await?.len() == 2, "the pods stay as long as the job");
    cluster.jobs().delete("j", &Default::default()).await?;
    cluster.until_gone("j").await?;
    cluster.had_one_pod_each("j")?;
    cluster.inner.finish().await
}
