//! The simulated cluster as scheduler and node controller. Cordons, taints and selectors decide where pods run. A pod that fits no
//! node reports the reason.

#![cfg(test)]

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use oarlock_sim::world::{Effect, Entry, World, WorldOptions};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

struct Fixture {
    client: Client,
    world: World,
}

impl Fixture {
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

    /// Creates a pod that runs a check for a second.
    async fn check(&self, name: &str) {
        let labels = json!({"oarlock.dev/task": "check", "oarlock.dev/task-kind": "check-pod"});
        let container = json!({"name": "task", "image": "i", "command": ["# sim: sleep 1"]});
        let pod = json!({"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}});
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

fn runs(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// Returns the message why the pod cannot be scheduled.
fn refusal(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let one = conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
    one.message.as_deref().filter(|_| one.reason.as_deref() == Some("Unschedulable"))
}

#[tokio::test(start_paused = true)]
async fn pod_runs_where_it_tolerates_the_taint_and_the_labels_are_right() {
    let fixture = Fixture::new().await;
    fixture.taint("node-0", "NoSchedule").await;
    fixture.cordon(&["node-1"], true).await;
    let here = json!({"kubernetes.io/hostname": "node-0"});
    fixture.pod("plain", json!({"nodeSelector": here})).await;
    fixture
        .pod("tolerant", json!({"nodeSelector": here, "tolerations": [{"key": "maintenance", "operator": "Exists"}]}))
        .await;
    fixture
        .pod(
            "critical",
            json!({"nodeSelector": {"kubernetes.io/hostname": "node-1"}, "tolerations": [{"operator": "Exists"}]}),
        )
        .await;
    fixture.until("it to run", "tolerant", runs).await;
    fixture.until("it to run", "critical", runs).await;
    fixture.until("its condition", "plain", |pod| refusal(pod).is_some()).await;
    let pod = fixture.pods().get("plain").await.unwrap();
    let wanted = "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated \
                  taint(s), 1 node(s) were unschedulable.";
    assert_eq!(refusal(&pod), Some(wanted));
}

#[tokio::test(start_paused = true)]
async fn pods_that_do_not_tolerate_an_expelling_taint_go_at_once_or_after_their_time() {
    let fixture = Fixture::new().await;
    fixture.cordon(&["node-1", "node-2"], true).await;
    let forever = json!({"key": "maintenance", "operator": "Exists", "effect": "NoExecute"});
    let a_while = json!({"key": "maintenance", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 20});
    fixture.pod("plain", json!({})).await;
    fixture.pod("patient", json!({"tolerations": [a_while]})).await;
    fixture.pod("faithful", json!({"tolerations": [forever]})).await;
    for name in ["plain", "patient", "faithful"] {
        fixture.until("it to run", name, runs).await;
    }
    let tainted = tokio::time::Instant::now();
    fixture.taint("node-0", "NoExecute").await;
    fixture.gone("plain").await;
    assert!(tainted.elapsed() < Duration::from_secs(10));
    fixture.gone("patient").await;
    assert!(tainted.elapsed() >= Duration::from_secs(20));
    assert!(fixture.pods().get("faithful").await.is_ok_and(|pod| pod.metadata.deletion_timestamp.is_none()));
}

/// Returns the state of a node in the API: whether it is Ready, its boot id and its uid.
async fn shown(fixture: &Fixture, name: &str) -> Option<(bool, String, String)> {
    let nodes: Api<Node> = Api::all(fixture.client.clone());
    let node = nodes.get_opt(name).await.unwrap()?;
    let status = node.status.unwrap();
    let ready = status.conditions.unwrap().iter().any(|one| one.type_ == "Ready" && one.status == "True");
    Some((ready, status.node_info.unwrap().boot_id, node.metadata.uid.unwrap()))
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_added_takes_pods_and_checks_on_it_end_as_a_scenario_wants() {
    let fixture = Fixture::new().await;
    fixture.cordon(&["node-0", "node-1", "node-2"], true).await;
    fixture.world.add_node("good").await.unwrap();
    fixture.check("on-good").await;
    fixture.world.fail_checks("bad", 3);
    fixture.until("it to run", "on-good", runs).await;
    fixture.cordon(&["good"], true).await;
    fixture.world.add_node("bad").await.unwrap();
    fixture.check("on-bad").await;
    let ended = |entries: &[Entry]| {
        let ended = entries.iter().filter_map(|entry| match entry.effect {
            Effect::PodEnded { exit_code } => Some((entry.name.clone(), exit_code)),
            _ => None,
        });
        ended.collect::<BTreeSet<_>>() == [("on-good".to_owned(), 0), ("on-bad".to_owned(), 3)].into()
    };
    fixture.world.ledger().until("the checks to end", SOON, ended).await.unwrap();
    assert!(shown(&fixture, "good").await.is_some_and(|(ready, boot, _)| ready && !boot.is_empty()));
}
