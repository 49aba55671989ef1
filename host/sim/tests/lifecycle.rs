//! The PodOpsLifecycle in the simulated world, on the in-memory API under paused time: a test plays the host's half.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use oarlock_sim::world::{Pause, Scope, SetKey, World, labels};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(120);
const ID: &str = "job";
const PROT: &str = "prot.podopslifecycle.kusionstack.io/lb";

#[cfg(test)]
#[path = "world/fresh.rs"]
mod fresh;

#[cfg(test)]
mod stage {
    use super::fresh::fresh;
    use super::*;

    /// One serving pod of a CollaSet, and what a job does to it.
    pub(super) struct Stage {
        pub(super) world: World,
        pub(super) set: SetKey,
        pub(super) name: String,
        pods: Api<Pod>,
    }

    impl Stage {
        pub(super) async fn new() -> Self {
            let (client, world, seedbed) = fresh(5).await;
            let set = seedbed.collaset("foo", 1).await.unwrap();
            world.settled(&set, SOON).await.unwrap();
            let name = world.pods()[0].name_any();
            Self { world, set, name, pods: Api::namespaced(client, "demo") }
        }

        pub(super) async fn patch(&self, metadata: Value) {
            let body = Patch::Merge(json!({ "metadata": metadata }));
            self.pods.patch(&self.name, &PatchParams::default(), &body).await.unwrap();
        }

        pub(super) async fn label(&self, word: &str, value: Option<&str>) {
            self.patch(json!({ "labels": { key(word): value } })).await;
        }

        pub(super) async fn begin(&self) {
            let labels = json!({ key("operating"): "1", key("operation-type"): "Restart" });
            self.patch(json!({ "labels": labels })).await;
        }

        pub(super) async fn until(&self, what: &str, condition: impl Fn(&Pod) -> bool) {
            self.world.until(what, SOON, |pods: &[Arc<Pod>]| condition(&pods[0])).await.unwrap();
        }

        pub(super) async fn until_bears(&self, word: &str) {
            self.until(word, |pod| pod.labels().contains_key(&key(word))).await;
        }

        pub(super) fn pod(&self) -> Arc<Pod> {
            self.world.pods().remove(0)
        }
    }
}

#[cfg(test)]
use stage::Stage;

fn key(word: &str) -> String {
    format!("{word}.podopslifecycle.kusionstack.io/{ID}")
}

/// Labels of an operation, whatever its ID.
fn marks(pod: &Pod) -> Vec<&String> {
    pod.labels().keys().filter(|key| key.contains(".podopslifecycle.kusionstack.io/")).collect()
}

fn serves(pod: &Pod) -> bool {
    pod.labels().contains_key(labels::SERVICE_AVAILABLE)
}

fn is_service_ready(pod: &Pod) -> Option<bool> {
    let mut conditions = pod.status.iter().flat_map(|status| &status.conditions).flatten();
    conditions.find(|condition| condition.type_ == labels::SERVICE_READY).map(|condition| condition.status == "True")
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_out_of_service_is_operated_on_and_serves_again() {
    let stage = Stage::new().await;
    stage.patch(json!({ "finalizers": [PROT, "example.com/guard"] })).await;
    stage.begin().await;
    stage.until_bears("operate").await;
    let pod = stage.pod();
    assert_eq!((serves(&pod), is_service_ready(&pod)), (false, Some(false)));
    assert_eq!(pod.finalizers(), ["example.com/guard"]);
    let nanoseconds = pod.labels()[&key("operate")].parse::<i64>().unwrap();
    assert!(nanoseconds > 1_000_000_000_000_000_000, "{nanoseconds} are no nanoseconds since 1970");
    // Nothing more happens by itself.
    tokio::time::sleep(LONG).await;
    assert_eq!(stage.pod().metadata.resource_version, pod.metadata.resource_version);
    stage.label("operating", None).await;
    stage.until("service-available", serves).await;
    let pod = stage.pod();
    assert_eq!((marks(&pod), is_service_ready(&pod)), (vec![], Some(true)));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_undone_leaves_a_pod_that_serves() {
    let stage = Stage::new().await;
    stage.begin().await;
    stage.until_bears("operate").await;
    stage.label("undo-operation-type", Some("Restart")).await;
    stage.until("service-available", serves).await;
    let pod = stage.pod();
    assert_eq!((marks(&pod), is_service_ready(&pod)), (vec![], Some(true)));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_takes_its_labels_off_at_once_leaves_a_pod_that_serves() {
    let stage = Stage::new().await;
    stage.begin().await;
    stage.until_bears("operate").await;
    let labels = json!({ key("operating"): null, key("operation-type"): null, key("undo-operation-type"): null });
    stage.patch(json!({ "labels": labels })).await;
    stage.until("service-available", serves).await;
    assert_eq!(marks(&stage.pod()), Vec::<&String>::new());
}

#[tokio::test(start_paused = true)]
async fn where_nobody_listens_only_the_labels_of_the_job_are_there() {
    let stage = Stage::new().await;
    stage.world.hold(Pause::Lifecycle, Scope::World);
    stage.begin().await;
    tokio::time::sleep(LONG).await;
    assert_eq!((marks(&stage.pod()).len(), serves(&stage.pod())), (2, true));
    stage.label("undo-operation-type", Some("Restart")).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(marks(&stage.pod()).len(), 3);
    stage.world.release(Pause::Lifecycle, Scope::World);
    stage.until("an end", |pod| marks(pod).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_rules_do_not_pass_serves_and_waits() {
    let stage = Stage::new().await;
    stage.world.hold(Pause::Rules, Scope::Set(stage.set.clone()));
    stage.begin().await;
    stage.until_bears("pre-check").await;
    tokio::time::sleep(LONG).await;
    let pod = stage.pod();
    assert!(serves(&pod) && !pod.labels().contains_key(&key("pre-checked")));
    stage.world.release(Pause::Rules, Scope::Set(stage.set.clone()));
    stage.until_bears("operate").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nobody_drains_is_prepared_for_ever() {
    let stage = Stage::new().await;
    stage.patch(json!({ "finalizers": [PROT] })).await;
    stage.world.hold(Pause::Draining, Scope::Pod("demo".into(), stage.name.clone()));
    stage.begin().await;
    stage.until_bears("preparing").await;
    tokio::time::sleep(LONG).await;
    let pod = stage.pod();
    assert!(!serves(&pod) && pod.labels().contains_key(&key("preparing")) && pod.finalizers() == [PROT]);
    stage.world.release(Pause::Draining, Scope::Pod("demo".into(), stage.name.clone()));
    stage.until_bears("operate").await;
}
