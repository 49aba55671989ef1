//! Reads from a real API server.

use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::Kind;
use oarlock_kube::observe::Detail;
use oarlock_kube::watch::watches::{WatchedKind, WatchedKinds};
use serde_json::{Value, json};

use crate::stage::{Stage, meta};

#[tokio::test]
async fn pods_are_seen_as_they_come_change_and_go() {
    let stage = Stage::set("watch").await;
    stage.pod("a", json!({"labels": {"app": "x"}})).await;
    let shown = |name: &str| stage.cluster.store().get(&stage.at(name));
    stage
        .until("it running", |_| shown("a").is_some_and(|pod| pod.text("/status/phase").as_deref() == Some("Running")))
        .await;
    assert!(shown("a").unwrap().fields.value().get("spec").is_none(), "only what was declared is kept");
    stage.delete(&format!("{}/a", stage.core("pods"))).await;
    stage.until("it gone", |_| shown("a").is_none()).await;
}

#[tokio::test]
async fn live_reads_are_answered_by_the_api_server() {
    let stage = Stage::set("reads").await;
    let template = json!({"metadata": {"labels": {"app": "w"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]}});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "w"}}, "template": template});
    let sets = format!("/apis/apps/v1/namespaces/{}", stage.namespace);
    let body = |name: &str, owners: Value| json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": spec});
    let deployment = stage.post(&format!("{sets}/deployments"), &body("w", json!([]))).await;
    let owner = |object: &Value, kind: &str| {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": meta(object, "name"), "uid": meta(object, "uid"),
            "controller": true}])
    };
    let set = stage.post(&format!("{sets}/replicasets"), &body("w-1", owner(&deployment, "Deployment"))).await;
    stage.pod("a", json!({"ownerReferences": owner(&set, "ReplicaSet"), "labels": {"app": "w"}})).await;
    stage.until("the pod", |cluster| cluster.store().get(&stage.at("a")).is_some()).await;

    let namespace = stage.namespace.to_owned();
    let unserved = LiveRead::All { kind: Kind::new("example.dev/v1", "Nothing"), namespace: namespace.clone() };
    let label =
        LiveRead::Labelled { kind: Kind::pod(), namespace: namespace.clone(), label: "app".into(), value: "w".into() };
    let reads = [
        LiveRead::Object(stage.at("a")),
        LiveRead::Object(stage.at("absent")),
        label,
        LiveRead::All { kind: Kind::pod(), namespace: namespace.clone() },
        LiveRead::Controllers { namespace },
        unserved.clone(),
    ];
    let observed = stage.cluster.observe(&stage.key("j"), &reads, Detail::Status).await.unwrap();
    assert_eq!(observed.live.failed.keys().collect::<Vec<_>>(), [&unserved]);
    assert_eq!(observed.live.answered.len(), 5);
    assert_eq!(observed.live.objects[&stage.at("absent")], None);
    let pod = observed.live.objects[&stage.at("a")].clone().unwrap();
    let root = stage.cluster.store().root(&pod).unwrap().unwrap();
    assert_eq!((root.kind.kind, root.uid), ("Deployment".to_owned(), meta(&deployment, "uid")));
    assert!(stage.cluster.clock().offset().abs().as_secs() < 2, "both clocks are this machine's");
}

#[tokio::test]
async fn kinds_that_no_host_knows_by_itself_are_discovered() {
    let stage = Stage::set("discover").await;
    let policies = Kind::new("networking.k8s.io/v1", "NetworkPolicy");
    let declared = WatchedKinds {
        kinds: [(policies.clone(), WatchedKind::default()), (Kind::new("a.dev/v1", "B"), WatchedKind::default())]
            .into(),
        ..WatchedKinds::default()
    };
    stage.cluster.declare(declared).await;
    stage.cluster.synced(&[policies.clone(), Kind::new("a.dev/v1", "B")]).await;
    assert!(stage.cluster.serves(&policies) && !stage.cluster.serves(&Kind::new("a.dev/v1", "B")));
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", stage.namespace);
    stage.post(&path, &json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}}})).await;
    stage.until("the policy", |cluster| cluster.store().count(&policies) == 1).await;
}
