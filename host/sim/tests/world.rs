//! The simulated world on the in-memory API under paused time: pods live, sets replace, the ledger tells the truth.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, EvictParams, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use oarlock_sim::world::{Cause, Effect, History, Pause, Scope, Seedbed, SetKey, SetKind, World, WorldOptions, labels};
use oarlock_sim::{Cluster, Options, Verb};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

#[cfg(test)]
#[path = "world/fresh.rs"]
mod fresh;

/// A world on a fresh in-memory API, with what a test asks of both.
#[cfg(test)]
mod stage {
    use super::fresh::fresh;
    use super::*;

    pub(super) struct Stage {
        pub(super) client: Client,
        pub(super) world: World,
        pub(super) seedbed: Seedbed,
    }

    impl Stage {
        pub(super) async fn new(seed: u64) -> Self {
            let (client, world, seedbed) = fresh(seed).await;
            Self { client, world, seedbed }
        }

        pub(super) async fn with_collaset(replicas: usize) -> (Self, SetKey) {
            let stage = Self::new(7).await;
            let set = stage.seedbed.collaset("foo", replicas).await.unwrap();
            stage.world.settled(&set, SOON).await.unwrap();
            (stage, set)
        }

        pub(super) fn pods(&self) -> Api<Pod> {
            Api::namespaced(self.client.clone(), "demo")
        }

        pub(super) async fn patch(&self, name: &str, body: serde_json::Value) {
            self.pods().patch(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
        }

        pub(super) async fn mark(&self, name: &str, value: Option<&str>) {
            self.patch(name, json!({ "metadata": { "labels": { labels::TO_REPLACE: value } } })).await;
        }

        /// Names and uids of all pods in the demo namespace.
        pub(super) fn targets(&self) -> Vec<(String, String)> {
            self.world.pods().iter().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect()
        }

        pub(super) fn effects(&self, uid: &str) -> Vec<Effect> {
            self.world
                .ledger()
                .entries()
                .into_iter()
                .filter(|entry| entry.uid == uid)
                .map(|entry| entry.effect)
                .collect()
        }
    }
}

#[cfg(test)]
use stage::Stage;

fn named<'a>(pods: &'a [Arc<Pod>], name: &str) -> Option<&'a Arc<Pod>> {
    pods.iter().find(|pod| pod.name_any() == name)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

#[tokio::test(start_paused = true)]
async fn a_collaset_comes_to_life_and_reports_it() {
    let (stage, set) = Stage::with_collaset(3).await;
    let api: Api<kube::api::DynamicObject> =
        Api::namespaced_with(stage.client.clone(), "demo", &SetKind::CollaSet.resource());
    let pods = stage.pods().list(&Default::default()).await.unwrap().items;
    assert_eq!(pods.len(), 3);
    for pod in &pods {
        assert!(pod.labels().contains_key(labels::SERVICE_AVAILABLE) && pod.labels().contains_key(labels::INSTANCE_ID));
        assert!(pod.name_any().starts_with("foo-") && pod.status.as_ref().unwrap().pod_ip.is_some());
    }
    stage.world.scale(&set, 2).await.unwrap();
    stage.world.settled(&set, SOON).await.unwrap();
    let wait = |object: Option<&kube::api::DynamicObject>| {
        object.is_some_and(|object| object.data["status"]["availableReplicas"] == 2)
    };
    let reported = kube::runtime::wait::await_condition(api, "foo", wait);
    tokio::time::timeout(SOON, reported).await.unwrap().unwrap();
    assert!(stage.world.ledger().verdict(&[]).is_clean(), "a set that became smaller lost nothing");
    stage.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_marked_pod_of_a_collaset_is_replaced_once_and_then_goes() {
    let (stage, set) = Stage::with_collaset(2).await;
    let targets = stage.targets();
    stage.mark(&targets[0].0, Some("true")).await;
    let replaced = |pods: &[Arc<Pod>]| named(pods, &targets[0].0).is_none();
    stage.world.until("the origin to go", SOON, replaced).await.unwrap();
    stage.world.settled(&set, SOON).await.unwrap();
    let verdict = stage.world.ledger().verdict(&targets[..1]);
    assert!(verdict.is_clean(), "{verdict}");
    let [.., Effect::PodTerminating { cause: Cause::MarkedToDelete }, Effect::PodGone] =
        stage.effects(&targets[0].1)[..]
    else {
        panic!("{:?}", stage.effects(&targets[0].1))
    };
}

#[tokio::test(start_paused = true)]
async fn the_partner_serves_before_the_origin_is_told_to_go() {
    let (stage, set) = Stage::with_collaset(1).await;
    let targets = stage.targets();
    stage.world.hold(Pause::Readiness, Scope::Set(set.clone()));
    stage.mark(&targets[0].0, Some("true")).await;
    let paired = |pods: &[Arc<Pod>]| {
        let id = named(pods, &targets[0].0).and_then(|pod| pod.labels().get(labels::PAIR_NEW_ID));
        id.is_some() && pods.iter().any(|pod| pod.labels().get(labels::INSTANCE_ID) == id)
    };
    stage.world.until("a partner", SOON, paired).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(named(&stage.world.pods(), &targets[0].0).unwrap().metadata.deletion_timestamp.is_none());
    stage.world.release(Pause::Readiness, Scope::Set(set.clone()));
    stage.world.until("one pod", SOON, |pods| pods.len() == 1).await.unwrap();
    stage.world.settled(&set, SOON).await.unwrap();
    assert!(stage.world.ledger().verdict(&targets).is_clean());
}

#[tokio::test(start_paused = true)]
async fn taking_the_mark_away_deletes_the_partner_and_keeps_the_origin() {
    let (stage, set) = Stage::with_collaset(1).await;
    let targets = stage.targets();
    stage.world.hold(Pause::Readiness, Scope::Set(set.clone()));
    stage.mark(&targets[0].0, Some("true")).await;
    stage.world.until("a partner", SOON, |pods| pods.len() == 2).await.unwrap();
    stage.mark(&targets[0].0, None).await;
    stage.world.release(Pause::Readiness, Scope::Set(set.clone()));
    stage.world.settled(&set, SOON).await.unwrap();
    assert_eq!(stage.targets(), targets);
}

#[tokio::test(start_paused = true)]
async fn an_origin_with_a_finalizer_stays_until_the_finalizer_goes() {
    let (stage, set) = Stage::with_collaset(1).await;
    let targets = stage.targets();
    stage.patch(&targets[0].0, json!({ "metadata": { "finalizers": ["example.com/guard"] } })).await;
    stage.mark(&targets[0].0, Some("true")).await;
    let ended = |pods: &[Arc<Pod>]| {
        named(pods, &targets[0].0).is_some_and(|pod| pod.metadata.deletion_grace_period_seconds == Some(0))
    };
    stage.world.until("the kubelet's last word", SOON, ended).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(stage.world.pods().len(), 2);
    stage.patch(&targets[0].0, json!({ "metadata": { "finalizers": null } })).await;
    stage.world.settled(&set, SOON).await.unwrap();
    assert!(stage.world.ledger().verdict(&targets).is_clean());
}

#[tokio::test(start_paused = true)]
async fn evicted_pods_of_a_deployment_are_each_replaced_once() {
    let stage = Stage::new(3).await;
    let web = stage.seedbed.deployment("web", 6).await.unwrap();
    stage.world.settled(&web, SOON).await.unwrap();
    let targets = stage.targets();
    for (name, _) in &targets[..4] {
        stage.pods().evict(name, &EvictParams::default()).await.unwrap();
    }
    let gone = |pods: &[Arc<Pod>]| targets[..4].iter().all(|(name, _)| named(pods, name).is_none());
    stage.world.until("the evicted to go", SOON, gone).await.unwrap();
    stage.world.settled(&web, SOON).await.unwrap();
    let verdict = stage.world.ledger().verdict(&targets[..4]);
    assert!(verdict.is_clean(), "{verdict}");
    assert!(!stage.world.ledger().verdict(&targets[..3]).is_clean(), "the fourth would be a stranger");
    assert!(stage.effects(&targets[0].1).contains(&Effect::PodTerminating { cause: Cause::Evicted }));
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_makes_the_same_name_with_a_new_identity() {
    let stage = Stage::new(4).await;
    let db = stage.seedbed.stateful_set("db", 2).await.unwrap();
    stage.world.settled(&db, SOON).await.unwrap();
    let before = stage.targets();
    stage.pods().delete("db-1", &DeleteParams::default()).await.unwrap();
    let renewed = |pods: &[Arc<Pod>]| named(pods, "db-1").is_some_and(|pod| pod.uid().as_ref() != Some(&before[1].1));
    stage.world.until("another db-1", SOON, renewed).await.unwrap();
    stage.world.settled(&db, SOON).await.unwrap();
    let verdict = stage.world.ledger().verdict(&before[1..]);
    assert!(verdict.is_clean(), "{verdict}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_made_anew_under_its_name_is_no_loss_to_its_set() {
    let stage = Stage::new(5).await;
    let set = stage.seedbed.replica_set("web", 2).await.unwrap();
    stage.world.settled(&set, SOON).await.unwrap();
    let before = stage.targets();
    let uid = stage.world.recreate_same_name("demo", &before[0].0).await.unwrap();
    stage.world.settled(&set, SOON).await.unwrap();
    let after = stage.targets();
    assert_eq!(after, [(before[0].0.clone(), uid), before[1].clone()]);
    assert!(stage.world.ledger().verdict(&before[..1]).is_clean());
}

#[tokio::test(start_paused = true)]
async fn failing_health_takes_readiness_away_until_it_is_released() {
    let stage = Stage::new(6).await;
    let set = stage.seedbed.replica_set("web", 1).await.unwrap();
    stage.world.settled(&set, SOON).await.unwrap();
    stage.world.hold(Pause::Health, Scope::Set(set.clone()));
    let unready = |pods: &[Arc<Pod>]| pods.len() == 1 && !is_ready(&pods[0]);
    stage.world.until("failure", SOON, unready).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(unready(&stage.world.pods()));
    stage.world.release(Pause::Health, Scope::Set(set.clone()));
    stage.world.settled(&set, SOON).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_held_creation_makes_no_pod_until_it_is_released() {
    let (stage, set) = Stage::with_collaset(2).await;
    stage.world.hold(Pause::Creation, Scope::Set(set.clone()));
    let targets = stage.targets();
    stage.pods().delete(&targets[0].0, &DeleteParams::default()).await.unwrap();
    stage.world.until("the pod to go", SOON, |pods| pods.len() == 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(stage.world.pods().len(), 1);
    stage.world.release(Pause::Creation, Scope::Set(set.clone()));
    stage.world.settled(&set, SOON).await.unwrap();
    assert!(stage.world.ledger().verdict(&targets[..1]).is_clean());
}

#[tokio::test(start_paused = true)]
async fn pods_wait_without_a_node_while_scheduling_is_held_and_end_at_once() {
    let stage = Stage::new(10).await;
    stage.world.hold(Pause::Scheduling, Scope::World);
    let web = stage.seedbed.deployment("web", 3).await.unwrap();
    stage.world.until("three pods", SOON, |pods| pods.len() == 3).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let waits = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.spec.as_ref().unwrap().node_name.is_none() && phase == Some("Pending")
    };
    assert!(stage.world.pods().iter().all(|pod| waits(pod)));
    let targets = stage.targets();
    stage.pods().delete(&targets[0].0, &DeleteParams::default()).await.unwrap();
    stage.pods().evict(&targets[1].0, &EvictParams::default()).await.unwrap();
    for (name, _) in &targets[..2] {
        assert!(stage.pods().get_opt(name).await.unwrap().is_none(), "{name} takes no grace");
    }
    let replaced =
        |pods: &[Arc<Pod>]| pods.len() == 3 && targets[..2].iter().all(|(name, _)| named(pods, name).is_none());
    stage.world.until("others in their place", SOON, replaced).await.unwrap();
    assert!(stage.world.pods().iter().all(|pod| waits(pod)));
    stage.world.release(Pause::Scheduling, Scope::World);
    stage.world.settled(&web, SOON).await.unwrap();
    assert!(stage.world.ledger().verdict(&targets[..2]).is_clean());
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_ledger() {
    let mut ledgers = Vec::new();
    for seed in [11, 11, 12] {
        let stage = Stage::new(seed).await;
        let set = stage.seedbed.collaset("foo", 5).await.unwrap();
        stage.world.settled(&set, SOON).await.unwrap();
        let targets = stage.targets();
        stage.mark(&targets[0].0, Some("true")).await;
        stage.world.until("the origin to go", SOON, |pods| named(pods, &targets[0].0).is_none()).await.unwrap();
        stage.world.settled(&set, SOON).await.unwrap();
        ledgers.push(stage.world.ledger().entries().iter().map(ToString::to_string).collect::<Vec<_>>());
        stage.world.stop().await;
    }
    assert_eq!(ledgers[0], ledgers[1]);
    assert_ne!(ledgers[0], ledgers[2]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_evicted_pods_are_replaced_with_four_writes_each() {
    let options = Options { seed: 9, ..Options::default() };
    let clock = options.clock.clone();
    let cluster = Cluster::new(options);
    let client = Client::new(cluster.service(), "demo");
    let world = World::start(client.clone(), WorldOptions::new(9, clock)).await.unwrap();
    let seedbed = Seedbed::namespace(client.clone(), "demo").await.unwrap();
    let web = seedbed.deployment("web", 1000).await.unwrap();
    world.settled(&web, Duration::from_secs(300)).await.unwrap();
    let targets: Vec<_> = world.pods().iter().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect();
    let pods: Api<Pod> = Api::namespaced(client, "demo");
    for (name, _) in &targets {
        pods.evict(name, &EvictParams::default()).await.unwrap();
    }
    let uids: HashSet<&String> = targets.iter().map(|(_, uid)| uid).collect();
    let gone = |pods: &[Arc<Pod>]| pods.iter().all(|pod| !uids.contains(pod.metadata.uid.as_ref().unwrap()));
    world.until("all to go", Duration::from_secs(300), gone).await.unwrap();
    world.settled(&web, Duration::from_secs(300)).await.unwrap();
    let verdict = world.ledger().verdict(&targets);
    assert!(verdict.is_clean(), "{verdict}");
    let written = |resource: &str| {
        let counts = cluster.requests().into_iter().filter(|(kind, _)| kind.resource == resource && kind.code < 300);
        counts.filter(|(kind, _)| !matches!(kind.verb, Verb::List | Verb::Watch)).map(|(_, count)| count).sum::<u64>()
    };
    // 2,000 pods are created, start and become ready; 1,000 are evicted and end.
    assert_eq!(written("pods"), 2000 * 3 + 1000 * 2);
    let statuses = written("replicasets.apps") + written("deployments.apps");
    assert!(statuses < 400, "{statuses} status writes for 1,000 replacements");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_finds_the_version_at_which_two_pods_were_unready() {
    let stage = Stage::new(8).await;
    let pods = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    let history = History::record(&stage.client, vec![pods]);
    let set = stage.seedbed.replica_set("web", 2).await.unwrap();
    stage.world.settled(&set, SOON).await.unwrap();
    let ready = |versions: &[oarlock_sim::world::Version]| {
        let names: BTreeMap<_, _> = versions.iter().map(|version| (&version.name, version)).collect();
        names.len() == 2 && names.values().all(|version| version.at("/status/phase") == "Running")
    };
    history.until("both to run", SOON, ready).await.unwrap();
    let versions = history.versions();
    assert!(versions.windows(2).all(|pair| pair[0].resource_version < pair[1].resource_version));
    let pending = |version: &oarlock_sim::world::Version| version.at("/status/phase") == "Pending";
    let breaches = history.sweep(|_, _, after| {
        if after.values().filter(|version| pending(version)).count() > 1 { Err("two wait".to_owned()) } else { Ok(()) }
    });
    assert_eq!(breaches.first().map(|breach| breach.reason.as_str()), Some("two wait"));
    assert!(
        history
            .sweep(|before, _, after| {
                if before.len().abs_diff(after.len()) > 1 { Err("a leap".to_owned()) } else { Ok(()) }
            })
            .is_empty()
    );
}
