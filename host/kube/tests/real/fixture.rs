//! A separate namespace for each test on one shared control plane, and a port in it.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Request;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::requests::writes::{BatchResult, Priority, Record, Write, WriteBatch};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::transport::client::{Source, connect};
use oarlock_kube::watch::objects::{WatchedKind, WatchedKinds};
use oarlock_kube::{Cluster, Setup};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane, Options};
use oarlock_support::install;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::sync::mpsc::unbounded_channel;

/// The longest wait for a step that takes milliseconds on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The namespace, the port and the client of a test.
pub(crate) struct Fixture {
    pub(crate) namespace: &'static str,
    pub(crate) cluster: Cluster,
    admin: kube::Client,
}

/// Starts a control plane with the custom resources installed.
pub(crate) async fn plane() -> anyhow::Result<ControlPlane> {
    let plane = control_plane::start(Options::default()).await?;
    let admin = plane.client(Account::Admin).await?;
    let crds = install::documents(&oarlock_api::CRDS.join("\n---\n"))?;
    install::install(&admin, &crds, install::Way::Apply).await?;
    Ok(plane)
}

async fn shared() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED.get_or_try_init(plane).await.unwrap()
}

impl Fixture {
    /// Creates a fresh namespace on the shared control plane, and a port that watches jobs and pods.
    pub(crate) async fn set(namespace: &'static str) -> Self {
        Self::on(shared().await, namespace).await
    }

    /// Creates the fixture of [`Fixture::set`] on a separate control plane.
    pub(crate) async fn on(plane: &ControlPlane, namespace: &'static str) -> Self {
        let fixture = Self::watching(plane, namespace, pods()).await;
        fixture.cluster.synced(&[Kind::pod()]).await;
        fixture
    }

    /// Creates a fixture whose port watches only jobs. The cache stops no write to a pod, so that the API server has to.
    pub(crate) async fn without_pods(namespace: &'static str) -> Self {
        Self::watching(shared().await, namespace, WatchedKinds::default()).await
    }

    async fn watching(plane: &ControlPlane, namespace: &'static str, declared: WatchedKinds) -> Self {
        let admin = plane.client(Account::Admin).await.unwrap();
        let path = plane.kubeconfig(Account::Admin).unwrap();
        let (client, _server) = connect(&Source::Kubeconfig { path, context: None }).await.unwrap();
        let clock = std::sync::Arc::new(Timestamp::now);
        let (cluster, _events) = Cluster::open(Setup { client, clock, identity: "host-0".into() });
        let fixture = Self { namespace, cluster, admin };
        fixture.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
        fixture.cluster.declare(declared).await;
        fixture.cluster.synced(&[]).await;
        fixture
    }

    /// Returns the path of objects of the core group.
    pub(crate) fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// Returns the path of the jobs.
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

    /// Waits until the API server has no object at this path.
    pub(crate) async fn gone(&self, path: &str) {
        let poll = async {
            while self.get(path).await.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, poll).await.unwrap_or_else(|_| panic!("still there: {path}"));
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        self.admin.request(request.body(body.to_string().into_bytes()).unwrap()).await
    }

    /// Creates a pod that counts as running for the API server.
    pub(crate) async fn pod(&self, name: &str, mut metadata: Value) -> Value {
        metadata["name"] = json!(name);
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "none"}],
            "terminationGracePeriodSeconds": 0}});
        self.post(&self.core("pods"), &pod).await;
        let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        self.patch(&format!("{}/{name}/status", self.core("pods")), &ready).await
    }

    /// Creates a job and waits until the port knows it.
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

    /// Waits until `seen` returns true for the port.
    pub(crate) async fn until(&self, what: &str, seen: impl Fn(&Cluster) -> bool) {
        let poll = async {
            while !seen(&self.cluster) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, poll).await.unwrap_or_else(|_| panic!("never seen: {what}"));
    }

    /// Applies `writes`, each for its own target of the job `j`. Creates the job if it is missing. Returns the result of each write.
    pub(crate) async fn apply(&self, writes: Vec<Write>) -> Vec<BatchResult> {
        if self.cluster.job_uid(&self.key("j")).is_none() {
            self.job("j").await;
        }
        let entries = (0..).zip(writes).map(|(index, write)| self.entry(Some(index), write)).collect();
        self.apply_entries(entries).await
    }

    /// Returns a batch of the job `j` with this write.
    pub(crate) fn entry(&self, index: Option<u32>, write: Write) -> WriteBatch {
        let key = self.key("j");
        let uid = self.cluster.job_uid(&key).expect("the job is known");
        WriteBatch {
            job: JobRef { key, uid },
            index,
            target_uid: String::new(),
            attempt: 1,
            epoch: 1,
            priority: Priority::First,
            writes: vec![write],
            made_as: None,
            events: Vec::new(),
            since: None,
            dry_run: false,
        }
    }

    /// Applies these batches. Returns their results in the order of their targets.
    pub(crate) async fn apply_entries(&self, entries: Vec<WriteBatch>) -> Vec<BatchResult> {
        let (fence, count) = (Fence::open(), entries.len());
        let recorded = self.cluster.record(&self.key("j"), Record::default(), entries, &fence).await.unwrap();
        let (results, mut returned) = unbounded_channel();
        let write_sender = self.cluster.write_sender(&fence, results);
        write_sender.apply(recorded);
        let mut all = Vec::new();
        while all.len() < count {
            let result = tokio::time::timeout(DEADLINE, returned.recv()).await.expect("a result comes in time");
            all.push(result.expect("each entry has a result"));
        }
        all.sort_by_key(|result| result.entry.index);
        all
    }
}

fn pods() -> WatchedKinds {
    let declared = WatchedKind {
        fields: BTreeSet::from(["/status/phase".to_owned()]),
        labels_indexed: BTreeSet::from(["app".to_owned()]),
        ..WatchedKind::default()
    };
    WatchedKinds { kinds: [(Kind::pod(), declared)].into(), ..WatchedKinds::default() }
}

/// Returns a text of a stored object's metadata.
pub(crate) fn meta(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap().to_owned()
}
