//! The simulated cluster on the in-memory API under paused time: pod lifecycles, replacements by sets, and the event log.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, EvictParams, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use oarlock_sim::world::{History, Pause, Scope, Seedbed, SetKey, SetKind, World, WorldOptions, labels};
use oarlock_sim::{Cluster, Options, Verb};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

#[cfg(test)]
#[path = "world/fresh.rs"]
mod fresh;

/// A simulated cluster on a new in-memory API, with the requests that the tests make.
#[cfg(test)]
mod fixture {
    use super::fresh::fresh;
    use super::*;

    pub(super) struct Fixture {
        pub(super) client: Client,
        pub(super) world: World,
        pub(super) seedbed: Seedbed,
    }

    impl Fixture {
        pub(super) async fn new(seed: u64) -> Self {
            let (client, world, seedbed) = fresh(seed).await;
            Self { client, world, seedbed }
        }

        pub(super) async fn with_collaset(replicas: usize) -> (Self, SetKey) {
            let fixture = Self::new(7).await;
            let set = fixture.seedbed.collaset("foo", replicas).await.unwrap();
            fixture.world.settled(&set, SOON).await.unwrap();
            (fixture, set)
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

        /// Returns names and uids of all pods.
        pub(super) fn targets(&self) -> Vec<(String, String)> {
            self.world.pods().iter().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect()
        }
    }
}

#[cfg(test)]
use fixture::Fixture;

fn named<'a>(pods: &'a [Arc<Pod>], name: &str) -> Option<&'a Arc<Pod>> {
    pods.iter().find(|pod| pod.name_any() == name)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

#[tokio::test(start_paused = true)]
async fn a_collaset_comes_to_life_and_reports_it() {
    let (fixture, set) = Fixture::with_collaset(3).await;
    let api: Api<kube::api::DynamicObject> =
        Api::namespaced_with(fixture.client.clone(), "demo", &SetKind::CollaSet.resource());
    let pods = fixture.pods().list(&Default::default()).await.unwrap().items;
    assert_eq!(pods.len(), 3);
    for pod in &pods {
        assert!(pod.labels().contains_key(labels::SERVICE_AVAILABLE) && pod.labels().contains_key(labels::INSTANCE_ID));
        assert!(pod.name_any().starts_with("foo-") && pod.status.as_ref().unwrap().pod_ip.is_some());
    }
    fixture.world.scale(&set, 2).await.unwrap();
    fixture.world.settled(&set, SOON).await.unwrap();
    let wait = |object: Option<&kube::api::DynamicObject>| {
        object.is_some_and(|object| object.data["status"]["availableReplicas"] == 2)
    };
    let reported = kube::runtime::wait::await_condition(api, "foo", wait);
    tokio::time::timeout(SOON, reported).await.unwrap().unwrap();
    assert!(fixture.world.ledger().verdict(&[]).is_clean(), "a set that became smaller lost nothing");
    fixture.world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_partner_serves_before_the_origin_is_told_to_go() {
    let (fixture, set) = Fixture::with_collaset(1).await;
    let targets = fixture.targets();
    fixture.world.hold(Pause::Readiness, Scope::Set(set.clone()));
    fixture.mark(&targets[0].0, Some("true")).await;
    let paired = |pods: &[Arc<Pod>]| {
        let id = named(pods, &targets[0].0).and_then(|pod| pod.labels().get(labels::PAIR_NEW_ID));
        id.is_some() && pods.iter().any(|pod| pod.labels().get(labels::INSTANCE_ID) == id)
    };
    fixture.world.until("a partner", SOON, paired).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(named(&fixture.world.pods(), &targets[0].0).unwrap().metadata.deletion_timestamp.is_none());
    fixture.world.release(Pause::Readiness, Scope::Set(set.clone()));
    fixture.world.until("one pod", SOON, |pods| pods.len() == 1).await.unwrap();
    fixture.world.settled(&set, SOON).await.unwrap();
    assert!(fixture.world.ledger().verdict(&targets).is_clean());
}

#[tokio::test(start_paused = true)]
async fn taking_the_mark_away_deletes_the_partner_and_keeps_the_origin() {
    let (fixture, set) = Fixture::with_collaset(1).await;
    let targets = fixture.targets();
    fixture.world.hold(Pause::Readiness, Scope::Set(set.clone()));
    fixture.mark(&targets[0].0, Some("true")).await;
    fixture.world.until("a partner", SOON, |pods| pods.len() == 2).await.unwrap();
    fixture.mark(&targets[0].0, None).await;
    fixture.world.release(Pause::Readiness, Scope::Set(set.clone()));
    fixture.world.settled(&set, SOON).await.unwrap();
    assert_eq!(fixture.targets(), targets);
}

#[tokio::test(start_paused = true)]
async fn failing_health_takes_readiness_away_until_it_is_released() {
    let fixture = Fixture::new(6).await;
    let set = fixture.seedbed.replica_set("web", 1).await.unwrap();
    fixture.world.settled(&set, SOON).await.unwrap();
    fixture.world.hold(Pause::Health, Scope::Set(set.clone()));
    let unready = |pods: &[Arc<Pod>]| pods.len() == 1 && !is_ready(&pods[0]);
    fixture.world.until("failure", SOON, unready).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(unready(&fixture.world.pods()));
    fixture.world.release(Pause::Health, Scope::Set(set.clone()));
    fixture.world.settled(&set, SOON).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_ledger() {
    let mut ledgers = Vec::new();
    for seed in [11, 11, 12] {
        let fixture = Fixture::new(seed).await;
        let set = fixture.seedbed.collaset("foo", 5).await.unwrap();
        fixture.world.settled(&set, SOON).await.unwrap();
        let targets = fixture.targets();
        fixture.mark(&targets[0].0, Some("true")).await;
        fixture.world.until("the origin to go", SOON, |pods| named(pods, &targets[0].0).is_none()).await.unwrap();
        fixture.world.settled(&set, SOON).await.unwrap();
        ledgers.push(fixture.world.ledger().entries().iter().map(ToString::to_string).collect::<Vec<_>>());
        fixture.world.stop().await;
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
    // 2,000 pods need three writes each: they are created, start and become ready. 1,000 pods need two: they are evicted and end.
    assert_eq!(written("pods"), 2000 * 3 + 1000 * 2);
    let statuses = written("replicasets.apps") + written("deployments.apps");
    assert!(statuses < 400, "{statuses} status writes for 1,000 replacements");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_finds_the_version_at_which_two_pods_were_unready() {
    let fixture = Fixture::new(8).await;
    let pods = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    let history = History::record(&fixture.client, vec![pods]);
    let set = fixture.seedbed.replica_set("web", 2).await.unwrap();
    fixture.world.settled(&set, SOON).await.unwrap();
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
