//! The world as scheduler and node controller: cordons, taints and selectors decide where pods run, and a pod that no node
//! takes says why.

#![cfg(test)]

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use oarlock_sim::world::{Seedbed, World, WorldOptions};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

struct Stage {
    client: Client,
    world: World,
}

impl Stage {
    async fn new() -> Self {
        let options = Options::default();
        let clock = options.clock.clone();
        let client = Client::new(Cluster::new(options).service(), "default");
        let world = World::start(client.clone(), WorldOptions::new(1, clock)).await.unwrap();
        Self { client, world }
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    async fn node(&self, name: &str, change: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    async fn cordon(&self, names: &[&str], cordoned: bool) {
        for name in names {
            self.node(name, json!({"spec": {"unschedulable": cordoned}})).await;
        }
    }

    async fn taint(&self, name: &str, effect: &str) {
        self.node(name, json!({"spec": {"taints": [{"key": "maintenance", "value": "yes", "effect": effect}]}})).await;
    }

    async fn pod(&self, name: &str, spec: Value) {
        let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    async fn until(&self, what: &str, name: &str, condition: impl Fn(&Pod) -> bool) {
        let one = |pods: &[std::sync::Arc<Pod>]| pods.iter().any(|pod| pod.name_any() == name && condition(pod));
        self.world.until(what, SOON, one).await.unwrap();
    }

    async fn gone(&self, name: &str) {
        let none = |pods: &[std::sync::Arc<Pod>]| pods.iter().all(|pod| pod.name_any() != name);
        self.world.until("the pod to go", SOON, none).await.unwrap();
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn runs(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// The text of why it is not scheduled.
fn refusal(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let one = conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
    one.message.as_deref().filter(|_| one.reason.as_deref() == Some("Unschedulable"))
}

#[tokio::test(start_paused = true)]
async fn new_pods_of_a_set_keep_off_cordoned_nodes() {
    let stage = Stage::new().await;
    let seedbed = Seedbed::namespace(stage.client.clone(), "default").await.unwrap();
    let web = seedbed.deployment("web", 6).await.unwrap();
    stage.world.settled(&web, SOON).await.unwrap();
    stage.cordon(&["node-0", "node-1"], true).await;
    let old: BTreeSet<String> = stage.world.pods().iter().map(|pod| pod.name_any()).collect();
    stage.pods().delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let replaced = |pods: &[std::sync::Arc<Pod>]| {
        pods.len() == 6 && pods.iter().all(|pod| !old.contains(&pod.name_any()) && runs(pod))
    };
    stage.world.until("six new pods", SOON, replaced).await.unwrap();
    assert!(stage.world.pods().iter().all(|pod| node_of(pod) == Some("node-2")));
}

#[tokio::test(start_paused = true)]
async fn pod_that_no_node_takes_says_so_and_runs_once_one_does() {
    let stage = Stage::new().await;
    stage.cordon(&["node-0", "node-1"], true).await;
    stage.taint("node-2", "NoSchedule").await;
    stage.pod("p", json!({})).await;
    stage.until("its condition", "p", |pod| refusal(pod).is_some()).await;
    let pod = stage.pods().get("p").await.unwrap();
    let wanted = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) were unschedulable.";
    assert_eq!(refusal(&pod), Some(wanted));
    stage.cordon(&["node-1"], false).await;
    stage.until("it to run", "p", runs).await;
    let pod = stage.pods().get("p").await.unwrap();
    assert_eq!((node_of(&pod), refusal(&pod)), (Some("node-1"), None));
}

#[tokio::test(start_paused = true)]
async fn pod_runs_where_it_tolerates_the_taint_and_the_labels_are_right() {
    let stage = Stage::new().await;
    stage.taint("node-0", "NoSchedule").await;
    stage.cordon(&["node-1"], true).await;
    let here = json!({"kubernetes.io/hostname": "node-0"});
    stage.pod("plain", json!({"nodeSelector": here})).await;
    stage
        .pod("tolerant", json!({"nodeSelector": here, "tolerations": [{"key": "maintenance", "operator": "Exists"}]}))
        .await;
    stage
        .pod(
            "critical",
            json!({"nodeSelector": {"kubernetes.io/hostname": "node-1"}, "tolerations": [{"operator": "Exists"}]}),
        )
        .await;
    stage.until("it to run", "tolerant", runs).await;
    stage.until("it to run", "critical", runs).await;
    stage.until("its condition", "plain", |pod| refusal(pod).is_some()).await;
    let pod = stage.pods().get("plain").await.unwrap();
    let wanted = "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated \
                  taint(s), 1 node(s) were unschedulable.";
    assert_eq!(refusal(&pod), Some(wanted));
}

#[tokio::test(start_paused = true)]
async fn pods_that_do_not_tolerate_an_expelling_taint_go_at_once_or_after_their_time() {
    let stage = Stage::new().await;
    stage.cordon(&["node-1", "node-2"], true).await;
    let forever = json!({"key": "maintenance", "operator": "Exists", "effect": "NoExecute"});
    let a_while = json!({"key": "maintenance", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 20});
    stage.pod("plain", json!({})).await;
    stage.pod("patient", json!({"tolerations": [a_while]})).await;
    stage.pod("faithful", json!({"tolerations": [forever]})).await;
    for name in ["plain", "patient", "faithful"] {
        stage.until("it to run", name, runs).await;
    }
    let tainted = tokio::time::Instant::now();
    stage.taint("node-0", "NoExecute").await;
    stage.gone("plain").await;
    assert!(tainted.elapsed() < Duration::from_secs(10));
    stage.gone("patient").await;
    assert!(tainted.elapsed() >= Duration::from_secs(20));
    assert!(stage.pods().get("faithful").await.is_ok_and(|pod| pod.metadata.deletion_timestamp.is_none()));
}
