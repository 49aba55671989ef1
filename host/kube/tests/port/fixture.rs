//! A cluster in memory, a port whose requests can fail, and a client whose requests never fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::requests::writes::{BatchResult, Priority, Record, Recorded, Write, WriteBatch};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::send::apply::WriteSender;
use oarlock_kube::watch::objects::{WatchEvent, WatchedKind, WatchedKinds};
use oarlock_kube::{Cluster, Setup};
use oarlock_sim::Options;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::faults::Faults;

/// A wait longer than any pause of the port. Paused time makes it free.
const DEADLINE: Duration = Duration::from_secs(600);

/// The cluster, the port and the clients of a test.
pub(crate) struct Fixture {
    pub(crate) sim: oarlock_sim::Cluster,
    pub(crate) faults: Faults,
    pub(crate) cluster: Cluster,
    pub(crate) events: UnboundedReceiver<WatchEvent>,
    /// A client whose requests never fail.
    pub(crate) admin: kube::Client,
}

impl Fixture {
    /// Returns a fixture with the custom resources installed and nothing watched.
    pub(crate) async fn bare() -> Self {
        let sim = oarlock_sim::Cluster::new(Options::default());
        let faults = Faults::default();
        let (cluster, events) = port(&sim, &faults, "host-0");
        let admin = kube::Client::new(sim.service(), "default");
        let fixture = Self { sim, faults, cluster, events, admin };
        for crd in oarlock_api::CRDS {
            fixture.install(crd).await;
        }
        fixture
    }

    /// Returns [`Fixture::bare`] with jobs and pods watched.
    pub(crate) async fn watching() -> Self {
        let fixture = Self::bare().await;
        fixture.declare(pods(&["/spec/nodeName", "/status/conditions"])).await;
        fixture
    }

    /// Returns [`Fixture::watching`] with the job `j`.
    pub(crate) async fn with_job() -> Self {
        let fixture = Self::watching().await;
        fixture.known_job("j").await;
        fixture
    }

    /// Returns a fixture with the job `j` that watches only jobs. The cache stops no write to a pod, so that the API server has to.
    pub(crate) async fn without_pods() -> Self {
        let fixture = Self::bare().await;
        fixture.cluster.declare(WatchedKinds::default()).await;
        fixture.known_job("j").await;
        fixture
    }

    /// Watches these kinds and waits until they are listed.
    pub(crate) async fn declare(&self, declared: WatchedKinds) {
        let kinds: Vec<Kind> = declared.kinds.keys().cloned().collect();
        self.cluster.declare(declared).await;
        tokio::time::timeout(DEADLINE, self.cluster.synced(&kinds)).await.expect("synced in time");
    }

    /// Creates the CustomResourceDefinition in a YAML document.
    pub(crate) async fn install(&self, yaml: &str) {
        let crd: Value = serde_saphyr::from_str(yaml).unwrap();
        self.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await;
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Value {
        self.send("PATCH", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str, body: &Value) -> Value {
        self.send("DELETE", path, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let request = Request::get(path).body(Vec::new()).unwrap();
        self.admin.request(request).await.ok()
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        self.admin.request(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap()
    }

    /// Creates a pod and returns the stored object.
    pub(crate) async fn pod(&self, name: &str) -> Value {
        self.pod_with(name, json!({})).await
    }

    /// Creates a pod with more metadata and returns the stored object.
    pub(crate) async fn pod_with(&self, name: &str, mut metadata: Value) -> Value {
        metadata["name"] = json!(name);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
        self.post("/api/v1/namespaces/default/pods", &pod).await
    }

    /// Creates a Deployment or ReplicaSet and returns the stored object.
    pub(crate) async fn workload(&self, kind: &str, name: &str, owners: Value) -> Value {
        let path = format!("/apis/apps/v1/namespaces/default/{}s", kind.to_lowercase());
        self.post(&path, &workload(kind, name, owners)).await
    }

    /// Creates a job and returns the stored object.
    pub(crate) async fn job(&self, name: &str) -> Value {
        let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": name}, "spec": {"action": "Replace", "targets": [{"name": "a"}]}});
        self.post(JOBS, &job).await
    }

    /// Creates a job, waits until the port knows it, and returns the stored object.
    pub(crate) async fn known_job(&self, name: &str) -> Value {
        let stored = self.job(name).await;
        let uid = meta(&stored, "uid");
        self.until("the job", |cluster| cluster.job_uid(&job(name)).as_deref() == Some(&uid)).await;
        stored
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

    /// Returns the pod as the port shows it.
    pub(crate) fn shown(&self, name: &str) -> Option<Arc<Object>> {
        self.cluster.store().get(&pod(name))
    }

    /// Returns all events so far.
    pub(crate) fn heard(&mut self) -> Vec<WatchEvent> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// Returns a batch with these writes for a target of the job `j`.
    pub(crate) fn entry(&self, index: u32, writes: Vec<Write>) -> WriteBatch {
        let key = job("j");
        let uid = self.cluster.job_uid(&key).expect("the job is known");
        WriteBatch {
            job: JobRef { key, uid },
            index: Some(index),
            target_uid: String::new(),
            attempt: 1,
            epoch: 1,
            priority: Priority::First,
            writes,
            made_as: None,
            events: Vec::new(),
            since: None,
            dry_run: false,
        }
    }

    /// Returns the proof that lets these batches be applied. Nothing is written for it.
    pub(crate) async fn recorded(&self, entries: Vec<WriteBatch>, fence: &Fence) -> Recorded {
        self.cluster.record(&job("j"), Record::default(), entries, fence).await.unwrap()
    }

    /// Returns a write queue with these batches in it, and its results.
    pub(crate) async fn write_sender(&self, entries: Vec<WriteBatch>, fence: &Fence) -> (WriteSender, Results) {
        let (results, returned) = unbounded_channel();
        let write_sender = self.cluster.write_sender(fence, results);
        write_sender.apply(self.recorded(entries, fence).await);
        (write_sender, Results(returned))
    }

    /// Applies these batches. Returns their results in the order of their targets.
    pub(crate) async fn apply_entries(&self, entries: Vec<WriteBatch>, fence: &Fence) -> Vec<BatchResult> {
        let count = entries.len();
        let (write_sender, mut results) = self.write_sender(entries, fence).await;
        let mut returned = results.next(count).await;
        drop(write_sender);
        assert!(results.rest().await.is_empty(), "an entry has one result");
        returned.sort_by_key(|result| result.entry.index);
        returned
    }

    /// Applies these writes, each for its own target.
    pub(crate) async fn apply(&self, writes: Vec<Write>, fence: &Fence) -> Vec<BatchResult> {
        let entries = (0..).zip(writes).map(|(index, write)| self.entry(index, vec![write])).collect();
        self.apply_entries(entries, fence).await
    }
}

/// The results of a write queue.
pub(crate) struct Results(UnboundedReceiver<BatchResult>);

impl Results {
    /// Returns the next `count` results.
    pub(crate) async fn next(&mut self, count: usize) -> Vec<BatchResult> {
        let mut returned = Vec::new();
        while returned.len() < count {
            let result = tokio::time::timeout(DEADLINE, self.0.recv()).await.expect("a result comes in time");
            returned.push(result.expect("each entry has a result"));
        }
        returned
    }

    /// Returns all results until the write queue and its requests are gone.
    pub(crate) async fn rest(&mut self) -> Vec<BatchResult> {
        let mut returned = Vec::new();
        while let Some(result) = tokio::time::timeout(DEADLINE, self.0.recv()).await.expect("the write sender ends") {
            returned.push(result);
        }
        returned
    }
}

pub(crate) const JOBS: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/default/operationjobs";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

/// Opens a separate port on `sim`.
pub(crate) fn port(
    sim: &oarlock_sim::Cluster,
    faults: &Faults,
    identity: &str,
) -> (Cluster, UnboundedReceiver<WatchEvent>) {
    let begun = (sim.now(), tokio::time::Instant::now());
    let clock = Arc::new(move || -> Timestamp { begun.0 + begun.1.elapsed() });
    Cluster::open(Setup { client: faults.client(sim.service()), clock, identity: identity.to_owned() })
}

/// Returns a declaration that watches pods with these fields.
pub(crate) fn pods(fields: &[&str]) -> WatchedKinds {
    let fields: BTreeSet<String> = fields.iter().map(|field| (*field).to_owned()).collect();
    let labels_indexed = BTreeSet::from(["app".to_owned()]);
    let declared = WatchedKind { fields, labels_indexed, ..WatchedKind::default() };
    WatchedKinds { kinds: [(Kind::pod(), declared)].into(), ..WatchedKinds::default() }
}

pub(crate) fn pod(name: &str) -> ObjectKey {
    ObjectKey::pod("default", name)
}

pub(crate) fn job(name: &str) -> JobKey {
    JobKey { namespace: "default".into(), name: name.into() }
}

/// Returns a Deployment or ReplicaSet.
pub(crate) fn workload(kind: &str, name: &str, owners: Value) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": name, "namespace": "default", "ownerReferences": owners},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": "app:1"}]}}}})
}

/// Returns owner references that name a stored object as the controller.
pub(crate) fn owned_by(owner: &Value) -> Value {
    json!([{"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true}])
}

/// Returns a text of a stored object's metadata.
pub(crate) fn meta(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap().to_owned()
}
