//! Holds of pods: which of them are the host's, whatever others write, and what becomes of those of an earlier host.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::cluster::object::{Object, ObjectKey};
use oarlock_core::cluster::writes::Write;
use oarlock_core::plugin::proposal::{MetadataChange, ObjectRef};
use oarlock_core::shared::holds::{change, held, holders, let_go};
use oarlock_kube::lease::Fence;
use oarlock_kube::{Cluster, HOLD_SECRET, HoldKeysError, KEYS_MADE_WITHIN, OLD_POLICY};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::scene::{Scene, meta, pods, port};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRET: &str = "/api/v1/namespaces/default/secrets/oarlock-holds";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// A port that proves holds, with the pods `a` and `b`.
async fn scene() -> Scene {
    let scene = Scene::bare().await;
    scene.cluster.prove_holds_in("default");
    scene.cluster.keep_hold_keys().await.unwrap();
    scene.declare(pods(&[])).await;
    for name in ["a", "b"] {
        scene.pod(name).await;
        shown(&scene, &scene.cluster, name).await;
    }
    scene
}

/// A pod as this port shows it, once it shows what is stored.
async fn shown(scene: &Scene, cluster: &Cluster, name: &str) -> Arc<Object> {
    let stored = scene.get(&format!("{PODS}/{name}")).await.unwrap();
    let version = meta(&stored, "resourceVersion");
    let key = ObjectKey::pod("default", name);
    let is_there = || cluster.store().get(&key).is_some_and(|pod| pod.resource_version == version);
    while !is_there() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    cluster.store().get(&key).unwrap()
}

/// The host has job `j` hold a pod by a label.
async fn hold(scene: &Scene, name: &str) {
    let pod = shown(scene, &scene.cluster, name).await;
    let wanted = MetadataChange {
        object: ObjectRef { key: pod.key.clone(), uid: None },
        set_labels: vec![("mark".to_owned(), "true".to_owned())],
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: vec![],
        remove_finalizers: vec![],
        keep: false,
    };
    let (body, _) = change(&pod, &wanted, "j").unwrap();
    let failed = scene.cluster.clean_up(vec![Write::patch(&pod.key, body)], &Fence::open()).await;
    assert!(failed.is_empty());
}

async fn text(scene: &Scene, name: &str, job: &str) -> Option<String> {
    let stored = scene.get(&format!("{PODS}/{name}")).await.unwrap();
    let text = stored["metadata"]["annotations"][format!("hold.oarlock.dev/{job}")].as_str();
    text.map(str::to_owned)
}

/// A tenant, who may patch pods, writes a hold.
async fn forge(scene: &Scene, name: &str, job: &str, text: &str) {
    let metadata =
        json!({"labels": {"oarlock.dev/held": "true"}, "annotations": {format!("hold.oarlock.dev/{job}"): text}});
    scene.patch(&format!("{PODS}/{name}"), &json!({ "metadata": metadata })).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_counts_on_its_pod_for_its_job_with_its_marks_and_nowhere_else() {
    let scene = scene().await;
    hold(&scene, "a").await;
    let own = text(&scene, "a", "j").await.unwrap();
    assert!(own.starts_with(r#"["label:mark","mac:"#), "{own}");
    let pod = shown(&scene, &scene.cluster, "a").await;
    assert_eq!(holders(&pod).collect::<Vec<_>>(), ["j"]);
    // A job on one's own pod is no licence for other pods, nor for another job, nor for more marks.
    let longer = own.replacen("label:mark", "finalizer:theirs\",\"label:mark", 1);
    for (name, job, text) in [("b", "j", &own), ("a", "k", &own), ("b", "gone", &r#"["label:app"]"#.to_owned())] {
        forge(&scene, name, job, text).await;
        let pod = shown(&scene, &scene.cluster, name).await;
        assert!(!held(&pod, job) && let_go(&pod, job).is_none(), "{name} {job}");
    }
    forge(&scene, "a", "j", &longer).await;
    let pod = shown(&scene, &scene.cluster, "a").await;
    assert!(!held(&pod, "j"), "a hold that somebody changed is one that somebody took off");
    // A replay on the same pod reaches only what the host had put there for this job.
    forge(&scene, "a", "j", &own).await;
    let pod = shown(&scene, &scene.cluster, "a").await;
    let body = let_go(&pod, "j").unwrap();
    assert_eq!(body["metadata"]["labels"], json!({"mark": null, "oarlock.dev/held": null}));
    assert_eq!(body["metadata"].get("finalizers"), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_key_makes_every_hold_nobodys_and_a_host_that_knows_it_stores_it_again() {
    let scene = scene().await;
    hold(&scene, "a").await;
    let stored = scene.get(SECRET).await.unwrap();
    scene.delete(SECRET, &json!({})).await;
    let (standby, _events) = port(&scene.sim, &scene.faults, "host-2");
    standby.prove_holds_in("default");
    assert_eq!(standby.load_hold_keys().await, Err(HoldKeysError::NotMade), "a host that does not lead makes none");
    scene.cluster.keep_hold_keys().await.unwrap();
    assert_eq!(scene.get(SECRET).await.unwrap()["data"], stored["data"], "{HOLD_SECRET}");
    assert_eq!(standby.load_hold_keys().await, Ok(()));
    let view = async || {
        let (cluster, _events) = port(&scene.sim, &scene.faults, "host-1");
        cluster.prove_holds_in("default");
        cluster.keep_hold_keys().await.unwrap();
        cluster.declare(pods(&[])).await;
        let pod = shown(&scene, &cluster, "a").await;
        (held(&pod, "j"), cluster)
    };
    assert!(view().await.0, "another host has the same keys");
    scene.delete(SECRET, &json!({})).await;
    let (is_held, other) = view().await;
    assert!(!is_held, "nobody can prove it any more");
    assert_eq!(scene.cluster.load_hold_keys().await, Err(HoldKeysError::Changed));
    let data = scene.get(SECRET).await.unwrap()["data"].clone();
    assert!(other.load_hold_keys().await.is_ok());
    let turned = json!({"data": {"previous": data["key"], "key": "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="}});
    hold_by(&scene, &other).await;
    scene.patch(SECRET, &turned).await;
    assert_eq!(other.load_hold_keys().await, Err(HoldKeysError::Changed));
    assert!(view().await.0, "the key before is believed still");
}

/// A host of an earlier version leads until the next one is ready, and makes no key.
#[tokio::test(start_paused = true)]
async fn a_host_that_waits_for_a_key_that_nobody_makes_makes_it_after_a_minute() {
    let scene = Scene::bare().await;
    let (standby, _events) = port(&scene.sim, &scene.faults, "host-1");
    standby.prove_holds_in("default");
    let begun = Instant::now();
    standby.await_hold_keys().await;
    assert!(begun.elapsed() >= KEYS_MADE_WITHIN && !standby.lacks_hold_keys(), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < KEYS_MADE_WITHIN + Duration::from_secs(5), "{:?}", begun.elapsed());
    let (other, _events) = port(&scene.sim, &scene.faults, "host-2");
    other.prove_holds_in("default");
    let begun = Instant::now();
    other.await_hold_keys().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "it is there");
}

/// The host with this port writes the hold of `j` on pod `a` anew.
async fn hold_by(scene: &Scene, cluster: &Cluster) {
    let pod = shown(scene, cluster, "a").await;
    let body = json!({"metadata": {"uid": pod.uid, "annotations": {"hold.oarlock.dev/j": "[\"label:mark\"]"}}});
    assert!(cluster.clean_up(vec![Write::patch(&pod.key, body)], &Fence::open()).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_no_key_is_refused_with_words_and_never_replaced() {
    let scene = Scene::bare().await;
    for (data, words) in
        [(json!({"key": "c2hvcnQ="}), "key: write 32 random bytes"), (json!({"previous": "x"}), "previous: write 32")]
    {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": HOLD_SECRET}, "data": data});
        scene.post("/api/v1/namespaces/default/secrets", &secret).await;
        scene.cluster.prove_holds_in("default");
        let Err(HoldKeysError::Unknown(why)) = scene.cluster.load_hold_keys().await else { panic!("{data}") };
        assert!(why.contains(words), "{why}");
        assert_eq!(scene.get(SECRET).await.unwrap()["data"], data);
        scene.delete(SECRET, &json!({})).await;
    }
    assert!(scene.cluster.lacks_hold_keys());
}

#[tokio::test(start_paused = true)]
async fn holds_of_an_earlier_host_are_proved_while_its_policy_is_bound_and_never_after() {
    let scene = scene().await;
    forge(&scene, "a", "old", r#"["label:app"]"#).await;
    let stray = json!({"metadata": {"annotations": {"hold.oarlock.dev/never": "[]"}}});
    scene.patch(&format!("{PODS}/b"), &stray).await;
    let adopted = async || scene.cluster.adopt_holds(&Fence::open()).await;
    assert_eq!(adopted().await, Ok(None), "without the policy anybody may have written it");
    assert!(!held(&*shown(&scene, &scene.cluster, "a").await, "old") && scene.cluster.old_hold_policy().is_none());
    let documents: Vec<Value> = serde_saphyr::from_multiple(oarlock_api::HOLD_ADMISSION).unwrap();
    scene.post(&format!("{ADMISSION}/validatingadmissionpolicies"), &documents[0]).await;
    assert_eq!(adopted().await, Ok(None), "a policy that is not bound keeps nobody from anything");
    assert!(!held(&*shown(&scene, &scene.cluster, "a").await, "old"));
    scene.post(&format!("{ADMISSION}/validatingadmissionpolicybindings"), &documents[1]).await;
    assert_eq!(adopted().await, Ok(None));
    let pod = shown(&scene, &scene.cluster, "a").await;
    assert!(held(&pod, "old") && text(&scene, "a", "old").await.unwrap().contains("mac:"));
    assert!(!held(&*shown(&scene, &scene.cluster, "b").await, "never"), "without the label it was none");
    let advice = scene.cluster.old_hold_policy().unwrap();
    assert!(advice.contains("kubectl delete") && advice.contains(OLD_POLICY), "{advice}");
}
