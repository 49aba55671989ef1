//! The world as scheduler and node controller: cordons, taints and selectors decide where pods run, and a pod that no node
//! takes says why.

#![cfg(test)]

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use oarlock_sim::world::{Effect, Entry, Return, Seedbed, World, WorldOptions};
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

    /// A pod that does a check for a second.
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

/// What the API shows of a node: whether it is Ready, its boot id and its UID.
async fn shown(stage: &Stage, name: &str) -> Option<(bool, String, String)> {
    let nodes: Api<Node> = Api::all(stage.client.clone());
    let node = nodes.get_opt(name).await.unwrap()?;
    let status = node.status.unwrap();
    let ready = status.conditions.unwrap().iter().any(|one| one.type_ == "Ready" && one.status == "True");
    Some((ready, status.node_info.unwrap().boot_id, node.metadata.uid.unwrap()))
}

/// Waits until the node is shown like this.
async fn until_shown(stage: &Stage, name: &str, condition: impl Fn(&Option<(bool, String, String)>) -> bool) {
    let end = tokio::time::Instant::now() + SOON;
    while !condition(&shown(stage, name).await) {
        assert!(tokio::time::Instant::now() < end, "{:?}", shown(stage, name).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn restarts(stage: &Stage) -> Vec<i32> {
    let pods = stage.world.pods();
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
    statuses.flatten().map(|status| status.restart_count).collect()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_reboots_is_not_ready_then_ready_with_a_new_boot_id_and_its_containers_were_restarted() {
    let stage = Stage::new().await;
    stage.cordon(&["node-1", "node-2"], true).await;
    stage.pod("p", json!({})).await;
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    };
    stage.until("it to be ready", "p", ready).await;
    let (_, before, uid) = shown(&stage, "node-0").await.unwrap();
    stage.world.reboot("node-0");
    until_shown(&stage, "node-0", |node| node.as_ref().is_some_and(|(ready, ..)| !ready)).await;
    stage.until("it to be unready", "p", |pod| !ready(pod)).await;
    assert_eq!(stage.world.ledger().reboots(), [("node-0".to_owned(), 1)].into());
    until_shown(&stage, "node-0", |node| node.as_ref().is_some_and(|(ready, ..)| *ready)).await;
    let (_, after, same) = shown(&stage, "node-0").await.unwrap();
    assert_eq!((before != after, uid == same), (true, true));
    let back = |entries: &[Entry]| entries.iter().any(|entry| entry.effect == Effect::NodeReady { count: 1 });
    stage.world.ledger().until("the ledger to tell of it", SOON, back).await.unwrap();
    stage.until("it to be ready again", "p", ready).await;
    assert_eq!(restarts(&stage), [1]);
    stage.world.reboot("node-0");
    until_shown(&stage, "node-0", |node| node.as_ref().is_some_and(|(_, boot, _)| *boot != after)).await;
    assert_eq!(stage.world.ledger().reboots(), [("node-0".to_owned(), 2)].into());
}

#[tokio::test(start_paused = true)]
async fn a_node_comes_back_as_a_scenario_wants_it_or_not_at_all() {
    let stage = Stage::new().await;
    let (_, before, uid) = shown(&stage, "node-0").await.unwrap();
    let away = |node: &Option<(bool, String, String)>| node.as_ref().is_some_and(|(ready, ..)| !ready);
    stage.world.returns("node-0", Return::SameBootId);
    stage.world.reboot("node-0");
    until_shown(&stage, "node-0", away).await;
    until_shown(&stage, "node-0", |node| node.as_ref().is_some_and(|(ready, ..)| *ready)).await;
    assert_eq!(shown(&stage, "node-0").await.unwrap().1, before);
    stage.world.returns("node-0", Return::NotReady);
    stage.world.reboot("node-0");
    until_shown(&stage, "node-0", |node| node.as_ref().is_some_and(|(ready, boot, _)| !ready && *boot != before)).await;
    stage.world.returns("node-0", Return::MadeAnew);
    stage.world.reboot("node-0");
    until_shown(&stage, "node-0", |node| node.as_ref().is_some_and(|(ready, _, now)| *ready && *now != uid)).await;
    stage.world.returns("node-1", Return::Deleted);
    stage.world.reboot("node-1");
    until_shown(&stage, "node-1", Option::is_none).await;
    stage.world.returns("node-2", Return::Never);
    stage.world.reboot("node-2");
    until_shown(&stage, "node-2", away).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!shown(&stage, "node-2").await.unwrap().0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_added_takes_pods_and_checks_on_it_end_as_a_scenario_wants() {
    let stage = Stage::new().await;
    stage.cordon(&["node-0", "node-1", "node-2"], true).await;
    stage.world.add_node("good").await.unwrap();
    stage.check("on-good").await;
    stage.world.fail_checks("bad", 3);
    stage.until("it to run", "on-good", runs).await;
    stage.cordon(&["good"], true).await;
    stage.world.add_node("bad").await.unwrap();
    stage.check("on-bad").await;
    let ended = |entries: &[Entry]| {
        let ended = entries.iter().filter_map(|entry| match entry.effect {
            Effect::PodEnded { exit_code } => Some((entry.name.clone(), exit_code)),
            _ => None,
        });
        ended.collect::<BTreeSet<_>>() == [("on-good".to_owned(), 0), ("on-bad".to_owned(), 3)].into()
    };
    stage.world.ledger().until("the checks to end", SOON, ended).await.unwrap();
    assert!(shown(&stage, "good").await.is_some_and(|(ready, boot, _)| ready && !boot.is_empty()));
}
