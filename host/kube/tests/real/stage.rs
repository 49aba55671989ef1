//! A namespace of a test's own on one shared control plane, and a port on it.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Request;
use k8s_openapi::jiff::Timestamp;
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane::{self, ControlPlane, Options};
use oarlock_bed::install;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Applied, JobKey, Record, TargetWrites, Write};
use oarlock_kube::transport::client::{Source, connect};
use oarlock_kube::watch::watches::{Declared, DeclaredKind};
use oarlock_kube::lease::Fence;
use oarlock_kube::record::Decided;
use oarlock_kube::{Cluster, Setup};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// How long something may take that takes milliseconds where nothing else runs.
const DEADLINE: Duration = Duration::from_secs(60);

/// Everything a test needs.
pub(crate) struct Stage {
    pub(crate) namespace: &'static str,
    pub(crate) cluster: Cluster,
    admin: kube::Client,
}

/// A control plane with the custom resources installed.
pub(crate) async fn plane() -> anyhow::Result<ControlPlane> {
    let plane = control_plane::start(Options::default()).await?;
    let admin = plane.client(Account::Admin).await?;
    let crds = install::documents(&oarlock_api::CRDS.join("\n---\n"))?;
    install::install(&admin, &crds, install::Way::Apply).await?;
    Ok(plane)
}

impl Stage {
    /// A fresh namespace on the control plane that tests share, and a port that watches jobs and pods.
    pub(crate) async fn set(namespace: &'static str) -> Self {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        Self::on(SHARED.get_or_try_init(plane).await.unwrap(), namespace).await
    }

    /// As [`Stage::set`], on a control plane of the test's own.
    pub(crate) async fn on(plane: &ControlPlane, namespace: &'static str) -> Self {
        let admin = plane.client(Account::Admin).await.unwrap();
        let path = plane.kubeconfig(Account::Admin).unwrap();
        let client = connect(&Source::Kubeconfig { path, context: None }).await.unwrap();
        let clock = std::sync::Arc::new(Timestamp::now);
        let (cluster, _news) = Cluster::open(Setup { client, clock, identity: "host-0".into() });
        let stage = Self { namespace, cluster, admin };
        stage.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
        stage.cluster.declare(pods()).await;
        stage
    }

    /// Where objects of the core group are.
    pub(crate) fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// Where the jobs are.
    pub(crate) fn jobs(&self) -> String {
        format!("/apis/apps.kusionstack.io/v1alpha1/namespaces/{}/operationjobs", self.namespace)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, body).await.unwrap()
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Value {
        self.send("PATCH", path, body).await.unwrap()
    }

    pub(crate) async fn delete(&self, path: &str) -> Value {
        self.send("DELETE", path, &json!({"gracePeriodSeconds": 0})).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        self.admin.request(Request::get(path).body(Vec::new()).unwrap()).await.ok()
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        self.admin.request(request.body(body.to_string().into_bytes()).unwrap()).await
    }

    /// Makes a pod that is running, as far as the API server is told.
    pub(crate) async fn pod(&self, name: &str, mut metadata: Value) -> Value {
        metadata["name"] = json!(name);
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "none"}],
            "terminationGracePeriodSeconds": 0}});
        self.post(&self.core("pods"), &pod).await;
        let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        self.patch(&format!("{}/{name}/status", self.core("pods")), &ready).await
    }

    /// Makes a job.
    pub(crate) async fn job(&self, name: &str) -> Value {
        let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": name}, "spec": {"action": "Replace", "targets": [{"name": "a"}]}});
        let stored = self.post(&self.jobs(), &job).await;
        self.until("the job", |cluster| cluster.jobs().contains(&self.key(name))).await;
        stored
    }

    pub(crate) fn key(&self, name: &str) -> JobKey {
        JobKey { namespace: self.namespace.into(), name: name.into() }
    }

    pub(crate) fn at(&self, name: &str) -> ObjectKey {
        ObjectKey::pod(self.namespace, name)
    }

    /// Waits until `seen` holds for the port.
    pub(crate) async fn until(&self, what: &str, seen: impl Fn(&Cluster) -> bool) {
        let poll = async {
            while !seen(&self.cluster) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, poll).await.unwrap_or_else(|_| panic!("never seen: {what}"));
    }

    /// Makes `record` durable and applies `writes`, each as a target of its own.
    pub(crate) async fn apply(&self, writes: Vec<Write>) -> Vec<Applied> {
        let targets = (0..).zip(writes).map(|(index, write)| TargetWrites { target: Some(index), writes: vec![write] });
        let writes = targets.collect();
        let decided = Decided { job: self.key("j"), record: Record::default(), writes, events: Vec::new() };
        let recorded = self.cluster.record(decided, &Fence::open()).await.unwrap();
        self.cluster.apply(recorded, &Fence::open()).await
    }
}

fn pods() -> Declared {
    let declared = DeclaredKind {
        fields: BTreeSet::from(["/status/phase".to_owned()]),
        labels_indexed: BTreeSet::from(["app".to_owned()]),
        ..DeclaredKind::default()
    };
    Declared { kinds: [(Kind::pod(), declared)].into() }
}

/// A string of a stored object's metadata.
pub(crate) fn meta(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap().to_owned()
}
