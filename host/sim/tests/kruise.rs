//! ContainerRecreateRequests in the simulated world, on the in-memory API under paused time.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, ResourceExt};
use oarlock_sim::world::{Effect, History, Pause, Scope, World};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

#[cfg(test)]
#[path = "world/fresh.rs"]
mod fresh;

#[cfg(test)]
mod stage {
    use super::fresh::fresh;
    use super::*;

    /// One pod of two containers, on a cluster with Kruise.
    pub(super) struct Stage {
        pub(super) world: World,
        pub(super) name: String,
        pub(super) pods: Api<Pod>,
        pub(super) requests: Api<DynamicObject>,
        pub(super) history: History,
    }

    pub(super) fn kind() -> ApiResource {
        let gvk = GroupVersionKind::gvk("apps.kruise.io", "v1alpha1", "ContainerRecreateRequest");
        ApiResource::from_gvk_with_plural(&gvk, "containerrecreaterequests")
    }

    /// When a container began to run.
    pub(super) fn started(pod: &Pod, container: &str) -> Value {
        let statuses = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
        let status = serde_json::to_value(statuses.iter().find(|status| status.name == container).unwrap()).unwrap();
        status["state"]["running"]["startedAt"].clone()
    }

    impl Stage {
        pub(super) async fn new() -> Self {
            let (client, world, seedbed) = fresh(5).await;
            let requests: Api<DynamicObject> = Api::namespaced_with(client.clone(), "demo", &kind());
            assert!(requests.list(&ListParams::default()).await.is_err(), "without Kruise, nobody serves the kind");
            world.install_kruise().await.unwrap();
            let web = seedbed.with_containers(&["app", "log"]).replica_set("web", 1).await.unwrap();
            world.settled(&web, SOON).await.unwrap();
            let name = world.pods()[0].name_any();
            let history = History::record(&client, vec![kind()]);
            Self { world, name, pods: Api::namespaced(client, "demo"), requests, history }
        }

        pub(super) async fn ask(&self, containers: &[&str]) {
            self.ask_as("again", containers).await;
        }

        /// Makes a request of this name.
        pub(super) async fn ask_as(&self, name: &str, containers: &[&str]) {
            let containers: Vec<Value> = containers.iter().map(|name| json!({ "name": name })).collect();
            let spec =
                json!({ "podName": self.name, "containers": containers, "strategy": { "failurePolicy": "Fail" } });
            let request = DynamicObject::new(name, &kind()).data(json!({ "spec": spec }));
            self.requests.create(&PostParams::default(), &request).await.unwrap();
        }

        /// The status of the request once it has ended.
        pub(super) async fn end(&self) -> Value {
            let mut last = Value::Null;
            let ended = |versions: &[oarlock_sim::world::Version]| {
                last = versions.last().map_or(Value::Null, |version| version.at("/status").clone());
                last["phase"] == "Completed"
            };
            self.history.until("the end of the request", SOON, ended).await.unwrap();
            last
        }

        pub(super) fn restarts(&self) -> Vec<(String, i32)> {
            let restart = |entry: oarlock_sim::world::Entry| match entry.effect {
                Effect::ContainerRestarted { container, count } => Some((container, count)),
                _ => None,
            };
            self.world.ledger().entries().into_iter().filter_map(restart).collect()
        }
    }
}

#[cfg(test)]
use stage::{Stage, started};

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| &status.conditions).flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[tokio::test(start_paused = true)]
async fn a_container_is_restarted_once_in_a_pod_that_stays() {
    let stage = Stage::new().await;
    let before = stage.world.pods().remove(0);
    // Kubernetes counts in whole seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    stage.ask(&["app"]).await;
    stage.world.until("a pod that is not ready", SOON, |pods| !is_ready(&pods[0])).await.unwrap();
    let status = stage.end().await;
    assert_eq!(status["containerRecreateStates"], json!([{ "name": "app", "phase": "Succeeded" }]));
    let after = stage.world.pods().remove(0);
    assert_eq!((after.uid(), is_ready(&after)), (before.uid(), true));
    assert_ne!(started(&after, "app"), started(&before, "app"));
    assert_eq!(started(&after, "log"), started(&before, "log"));
    assert_eq!(stage.restarts(), [("app".to_owned(), 1)]);
    let phases: Vec<Value> =
        stage.history.versions().iter().map(|version| version.at("/status/phase").clone()).collect();
    let mut seen = phases;
    seen.dedup();
    assert_eq!(seen, [Value::Null, "Pending".into(), "Recreating".into(), "Completed".into()]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(stage.restarts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_broken_container_fails_with_its_message_in_a_request_that_is_complete() {
    let stage = Stage::new().await;
    stage.world.break_container(("demo", &stage.name), "log", "no such process");
    stage.ask(&["app", "log"]).await;
    let status = stage.end().await;
    let states = status["containerRecreateStates"].as_array().unwrap();
    assert_eq!(states[1], json!({ "name": "log", "phase": "Failed", "message": "no such process" }));
    assert_eq!(stage.restarts(), [("app".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_complete_while_kruise_restarts_nothing() {
    let stage = Stage::new().await;
    stage.world.hold(Pause::Restart, Scope::World);
    stage.ask(&["app"]).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let request = stage.requests.get("again").await.unwrap();
    assert_eq!((&request.data["status"]["phase"], stage.restarts().len()), (&json!("Pending"), 0));
    stage.world.release(Pause::Restart, Scope::World);
    stage.end().await;
    assert_eq!(stage.restarts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_requests_for_a_pod_the_second_is_pending_until_the_first_has_ended() {
    let stage = Stage::new().await;
    stage.world.hold(Pause::Restart, Scope::World);
    stage.ask_as("first", &["app"]).await;
    // Kubernetes counts in whole seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    stage.ask_as("second", &["log"]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    stage.world.release(Pause::Restart, Scope::World);
    let ended = |versions: &[oarlock_sim::world::Version]| {
        versions.iter().filter(|version| version.at("/status/phase") == "Completed").count() == 2
    };
    stage.history.until("the end of both", SOON * 2, ended).await.unwrap();
    let versions = stage.history.versions();
    let when = |name: &str, phase: &str| {
        versions.iter().position(|version| version.name == name && version.at("/status/phase") == phase).unwrap()
    };
    assert!(when("second", "Pending") < when("first", "Completed"), "it was seen meanwhile");
    assert!(when("first", "Completed") < when("second", "Recreating"), "it waited");
    assert_eq!(stage.restarts(), [("app".to_owned(), 1), ("log".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_request_ends_when_its_pod_goes() {
    let stage = Stage::new().await;
    stage.world.hold(Pause::Restart, Scope::World);
    stage.ask(&["app"]).await;
    let taken =
        |versions: &[oarlock_sim::world::Version]| versions.iter().any(|one| one.at("/status/phase") == "Pending");
    stage.history.until("the request to be seen", SOON, taken).await.unwrap();
    stage.pods.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    let gone = |pods: &[Arc<Pod>]| pods.iter().all(|pod| pod.name_any() != stage.name);
    stage.world.until("the pod to go", SOON, gone).await.unwrap();
    assert_eq!(stage.end().await["message"], "pod has gone");
    assert_eq!(stage.restarts(), []);
}
