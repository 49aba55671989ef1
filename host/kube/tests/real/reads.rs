//! Reads from a real API server.

use oarlock_core::object::api_object::Kind;
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_kube::read::observe::Detail;
use oarlock_kube::watch::objects::{WatchedKind, WatchedKinds};
use serde_json::{Value, json};

use crate::fixture::{Fixture, meta};

#[tokio::test]
async fn pods_are_seen_as_they_come_change_and_go() {
    let fixture = Fixture::set("watch").await;
    fixture.pod("a", json!({"labels": {"app": "x"}})).await;
    let shown = |name: &str| fixture.cluster.store().get(&fixture.at(name));
    fixture
        .until("it running", |_| shown("a").is_some_and(|pod| pod.text("/status/phase").as_deref() == Some("Running")))
        .await;
    assert!(shown("a").unwrap().fields.value().get("spec").is_none(), "only what was declared is kept");
    fixture.delete(&format!("{}/a", fixture.core("pods"))).await;
    fixture.until("it gone", |_| shown("a").is_none()).await;
}

#[tokio::test]
async fn live_reads_are_answered_by_the_api_server() {
    let fixture = Fixture::set("reads").await;
    let template = json!({"metadata": {"labels": {"app": "w"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]}});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "w"}}, "template": template});
    let sets = format!("/apis/apps/v1/namespaces/{}", fixture.namespace);
    let body = |name: &str, owners: Value| json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": spec});
    let deployment = fixture.post(&format!("{sets}/deployments"), &body("w", json!([]))).await;
    let owner = |object: &Value, kind: &str| {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": meta(object, "name"), "uid": meta(object, "uid"),
            "controller": true}])
    };
    let set = fixture.post(&format!("{sets}/replicasets"), &body("w-1", owner(&deployment, "Deployment"))).await;
    fixture.pod("a", json!({"ownerReferences": owner(&set, "ReplicaSet"), "labels": {"app": "w"}})).await;
    fixture.until("the pod", |cluster| cluster.store().get(&fixture.at("a")).is_some()).await;

    let namespace = fixture.namespace.to_owned();
    let unserved = LiveRead::All { kind: Kind::new("example.dev/v1", "Nothing"), namespace: namespace.clone() };
    let label =
        LiveRead::Labelled { kind: Kind::pod(), namespace: namespace.clone(), label: "app".into(), value: "w".into() };
    let reads = [
        LiveRead::Object(fixture.at("a")),
        LiveRead::Object(fixture.at("absent")),
        label,
        LiveRead::All { kind: Kind::pod(), namespace: namespace.clone() },
        LiveRead::Controllers { namespace },
        unserved.clone(),
    ];
    let observed = fixture.cluster.observe(&fixture.key("j"), &reads, Detail::Status).await.unwrap();
    assert_eq!(observed.live.failed.keys().collect::<Vec<_>>(), [&unserved]);
    assert_eq!(observed.live.answered.len(), 5);
    assert_eq!(observed.live.objects[&fixture.at("absent")], None);
    let pod = observed.live.objects[&fixture.at("a")].clone().unwrap();
    let root = fixture.cluster.store().root(&pod).unwrap().unwrap();
    assert_eq!((root.kind.kind, root.uid), ("Deployment".to_owned(), meta(&deployment, "uid")));
    assert!(fixture.cluster.clock().offset().abs().as_secs() < 2, "both clocks are this machine's");
}

#[tokio::test]
async fn kinds_that_no_host_knows_by_itself_are_discovered() {
    let fixture = Fixture::set("discover").await;
    let policies = Kind::new("networking.k8s.io/v1", "NetworkPolicy");
    let declared = WatchedKinds {
        kinds: [(policies.clone(), WatchedKind::default()), (Kind::new("a.dev/v1", "B"), WatchedKind::default())]
            .into(),
        ..WatchedKinds::default()
    };
    fixture.cluster.declare(declared).await;
    fixture.cluster.synced(&[policies.clone(), Kind::new("a.dev/v1", "B")]).await;
    assert!(fixture.cluster.serves(&policies) && !fixture.cluster.serves(&Kind::new("a.dev/v1", "B")));
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", fixture.namespace);
    fixture.post(&path, &json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}}})).await;
    fixture.until("the policy", |cluster| cluster.store().count(&policies) == 1).await;
}
