//! Holds of pods: the port tells the host's own holds from forged ones and from those of an earlier host.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::object::api_object::{Object, ObjectKey};
use oarlock_core::operation_job::holds::{change, held, holders, release};
use oarlock_core::plugin::proposal::{MetadataChange, ObjectRef};
use oarlock_core::requests::writes::Write;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::{Cluster, HOLD_SECRET, HoldKeysError, KEYS_MADE_WITHIN, OLD_POLICY};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{Fixture, meta, pods, port};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRET: &str = "/api/v1/namespaces/default/secrets/oarlock-holds";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Returns a fixture whose port proves holds, with the pods `a` and `b`.
async fn fixture() -> Fixture {
    let fixture = Fixture::bare().await;
    fixture.cluster.prove_holds_in("default");
    fixture.cluster.keep_hold_keys().await.unwrap();
    fixture.declare(pods(&[])).await;
    for name in ["a", "b"] {
        fixture.pod(name).await;
        shown(&fixture, &fixture.cluster, name).await;
    }
    fixture
}

/// Waits until the port shows the stored version of a pod, and returns the pod.
async fn shown(fixture: &Fixture, cluster: &Cluster, name: &str) -> Arc<Object> {
    let stored = fixture.get(&format!("{PODS}/{name}")).await.unwrap();
    let version = meta(&stored, "resourceVersion");
    let key = ObjectKey::pod("default", name);
    let is_there = || cluster.store().get(&key).is_some_and(|pod| pod.resource_version == version);
    while !is_there() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    cluster.store().get(&key).unwrap()
}

/// Puts a hold of job `j` with a label on a pod, as the host does.
async fn hold(fixture: &Fixture, name: &str) {
    let pod = shown(fixture, &fixture.cluster, name).await;
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
    let failed = fixture.cluster.clean_up(vec![Write::patch(&pod.key, body)], &Fence::open()).await;
    assert!(failed.is_empty());
}

async fn text(fixture: &Fixture, name: &str, job: &str) -> Option<String> {
    let stored = fixture.get(&format!("{PODS}/{name}")).await.unwrap();
    let text = stored["metadata"]["annotations"][format!("hold.oarlock.dev/{job}")].as_str();
    text.map(str::to_owned)
}

/// Writes a hold as a tenant who may patch pods.
async fn forge(fixture: &Fixture, name: &str, job: &str, text: &str) {
    let metadata =
        json!({"labels": {"oarlock.dev/held": "true"}, "annotations": {format!("hold.oarlock.dev/{job}"): text}});
    fixture.patch(&format!("{PODS}/{name}"), &json!({ "metadata": metadata })).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_counts_on_its_pod_for_its_job_with_its_marks_and_nowhere_else() {
    let fixture = fixture().await;
    hold(&fixture, "a").await;
    let own = text(&fixture, "a", "j").await.unwrap();
    assert!(own.starts_with(r#"["label:mark","mac:"#), "{own}");
    let pod = shown(&fixture, &fixture.cluster, "a").await;
    assert_eq!(holders(&pod).collect::<Vec<_>>(), ["j"]);
    // A hold that the host wrote on one pod does not count on other pods, for other jobs, or with more marks.
    let longer = own.replacen("label:mark", "finalizer:theirs\",\"label:mark", 1);
    for (name, job, text) in [("b", "j", &own), ("a", "k", &own), ("b", "gone", &r#"["label:app"]"#.to_owned())] {
        forge(&fixture, name, job, text).await;
        let pod = shown(&fixture, &fixture.cluster, name).await;
        assert!(!held(&pod, job) && release(&pod, job).is_none(), "{name} {job}");
    }
    forge(&fixture, "a", "j", &longer).await;
    let pod = shown(&fixture, &fixture.cluster, "a").await;
    assert!(!held(&pod, "j"), "a hold that somebody changed is one that somebody took off");
    // A replay on the same pod reaches only what the host had put there for this job.
    forge(&fixture, "a", "j", &own).await;
    let pod = shown(&fixture, &fixture.cluster, "a").await;
    let body = release(&pod, "j").unwrap();
    assert_eq!(body["metadata"]["labels"], json!({"mark": null, "oarlock.dev/held": null}));
    assert_eq!(body["metadata"].get("finalizers"), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_key_makes_every_hold_nobodys_and_a_host_that_knows_it_stores_it_again() {
    let fixture = fixture().await;
    hold(&fixture, "a").await;
    let stored = fixture.get(SECRET).await.unwrap();
    fixture.delete(SECRET, &json!({})).await;
    let (standby, _events) = port(&fixture.sim, &fixture.faults, "host-2");
    standby.prove_holds_in("default");
    assert_eq!(standby.load_hold_keys().await, Err(HoldKeysError::NotMade), "a host that does not lead makes none");
    fixture.cluster.keep_hold_keys().await.unwrap();
    assert_eq!(fixture.get(SECRET).await.unwrap()["data"], stored["data"], "{HOLD_SECRET}");
    assert_eq!(standby.load_hold_keys().await, Ok(()));
    let view = async || {
        let (cluster, _events) = port(&fixture.sim, &fixture.faults, "host-1");
        cluster.prove_holds_in("default");
        cluster.keep_hold_keys().await.unwrap();
        cluster.declare(pods(&[])).await;
        let pod = shown(&fixture, &cluster, "a").await;
        (held(&pod, "j"), cluster)
    };
    assert!(view().await.0, "another host has the same keys");
    fixture.delete(SECRET, &json!({})).await;
    let (is_held, other) = view().await;
    assert!(!is_held, "nobody can prove it any more");
    assert_eq!(fixture.cluster.load_hold_keys().await, Err(HoldKeysError::Changed));
    let data = fixture.get(SECRET).await.unwrap()["data"].clone();
    assert!(other.load_hold_keys().await.is_ok());
    let turned = json!({"data": {"previous": data["key"], "key": "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="}});
    hold_by(&fixture, &other).await;
    fixture.patch(SECRET, &turned).await;
    assert_eq!(other.load_hold_keys().await, Err(HoldKeysError::Changed));
    assert!(view().await.0, "the key before is believed still");
}

/// A host of an earlier version leads until the next host is ready, and makes no key.
#[tokio::test(start_paused = true)]
async fn a_host_that_waits_for_a_key_that_nobody_makes_makes_it_after_a_minute() {
    let fixture = Fixture::bare().await;
    let (standby, _events) = port(&fixture.sim, &fixture.faults, "host-1");
    standby.prove_holds_in("default");
    let begun = Instant::now();
    standby.await_hold_keys().await;
    assert!(begun.elapsed() >= KEYS_MADE_WITHIN && !standby.lacks_hold_keys(), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < KEYS_MADE_WITHIN + Duration::from_secs(5), "{:?}", begun.elapsed());
    let (other, _events) = port(&fixture.sim, &fixture.faults, "host-2");
    other.prove_holds_in("default");
    let begun = Instant::now();
    other.await_hold_keys().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "it is there");
}

/// Writes the hold of `j` on pod `a` again, as the host with this port.
async fn hold_by(fixture: &Fixture, cluster: &Cluster) {
    let pod = shown(fixture, cluster, "a").await;
    let body = json!({"metadata": {"uid": pod.uid, "annotations": {"hold.oarlock.dev/j": "[\"label:mark\"]"}}});
    assert!(cluster.clean_up(vec![Write::patch(&pod.key, body)], &Fence::open()).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_no_key_is_refused_with_words_and_never_replaced() {
    let fixture = Fixture::bare().await;
    for (data, words) in
        [(json!({"key": "c2hvcnQ="}), "key: write 32 random bytes"), (json!({"previous": "x"}), "previous: write 32")]
    {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": HOLD_SECRET}, "data": data});
        fixture.post("/api/v1/namespaces/default/secrets", &secret).await;
        fixture.cluster.prove_holds_in("default");
        let Err(HoldKeysError::Unknown(why)) = fixture.cluster.load_hold_keys().await else { panic!("{data}") };
        assert!(why.contains(words), "{why}");
        assert_eq!(fixture.get(SECRET).await.unwrap()["data"], data);
        fixture.delete(SECRET, &json!({})).await;
    }
    assert!(fixture.cluster.lacks_hold_keys());
}

#[tokio::test(start_paused = true)]
async fn holds_of_an_earlier_host_are_proved_while_its_policy_is_bound_and_never_after() {
    let fixture = fixture().await;
    forge(&fixture, "a", "old", r#"["label:app"]"#).await;
    let stray = json!({"metadata": {"annotations": {"hold.oarlock.dev/never": "[]"}}});
    fixture.patch(&format!("{PODS}/b"), &stray).await;
    let adopted = async || fixture.cluster.adopt_holds(&Fence::open()).await;
    assert_eq!(adopted().await, Ok(None), "without the policy anybody may have written it");
    assert!(
        !held(&*shown(&fixture, &fixture.cluster, "a").await, "old") && fixture.cluster.old_hold_policy().is_none()
    );
    let documents: Vec<Value> = serde_saphyr::from_multiple(oarlock_api::HOLD_ADMISSION).unwrap();
    fixture.post(&format!("{ADMISSION}/validatingadmissionpolicies"), &documents[0]).await;
    assert_eq!(adopted().await, Ok(None), "a policy that is not bound keeps nobody from anything");
    assert!(!held(&*shown(&fixture, &fixture.cluster, "a").await, "old"));
    fixture.post(&format!("{ADMISSION}/validatingadmissionpolicybindings"), &documents[1]).await;
    assert_eq!(adopted().await, Ok(None));
    let pod = shown(&fixture, &fixture.cluster, "a").await;
    assert!(held(&pod, "old") && text(&fixture, "a", "old").await.unwrap().contains("mac:"));
    assert!(!held(&*shown(&fixture, &fixture.cluster, "b").await, "never"), "without the label it was none");
    let advice = fixture.cluster.old_hold_policy().unwrap();
    assert!(advice.contains("kubectl delete") && advice.contains(OLD_POLICY), "{advice}");
}
