//! Nodes: what is watched and kept of them, what a selector finds, and how their holds are written.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::{Kind, Object, ObjectKey};
use oarlock_core::cluster::writes::{EventNote, Stopped, Write};
use oarlock_core::job::selector::TargetQuery;
use oarlock_core::shared::holds::{let_go, schedulable};
use oarlock_kube::lease::Fence;
use oarlock_kube::observe::Detail;
use oarlock_kube::watch::watches::{WatchedKind, WatchedKinds};
use serde_json::{Value, json};

use crate::apply::stopped;
use crate::scene::{Scene, job, meta};

const NODES: &str = "/api/v1/nodes";

/// The kinds of a host with a plugin for nodes.
fn watched() -> WatchedKinds {
    let kinds = [Kind::pod(), Kind::namespace(), Kind::node()].map(|kind| (kind, WatchedKind::default()));
    WatchedKinds { kinds: kinds.into(), ..WatchedKinds::default() }
}

async fn scene() -> Scene {
    let scene = Scene::watching().await;
    scene.declare(watched()).await;
    scene.known_job("j").await;
    scene
}

async fn node(scene: &Scene, name: &str, spec: Value) -> Arc<Object> {
    let metadata = json!({"name": name, "labels": {"pool": "x"}});
    let stored =
        scene.post(NODES, &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})).await;
    shown_at(scene, name, &meta(&stored, "resourceVersion")).await
}

/// The node once the port shows this version of it.
async fn shown_at(scene: &Scene, name: &str, version: &str) -> Arc<Object> {
    let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&ObjectKey::node(name));
    scene.until("the node", |cluster| shown(cluster).is_some_and(|node| node.resource_version == version)).await;
    shown(&scene.cluster).unwrap()
}

#[tokio::test(start_paused = true)]
async fn cordon_and_taints_of_a_watched_node_are_kept_though_no_plugin_declares_them() {
    let scene = scene().await;
    let taint = json!({"key": "x.io/a", "value": "v", "effect": "NoSchedule"});
    let seen = node(&scene, "n", json!({"unschedulable": true, "taints": [taint], "podCIDR": "10.0.0.0/24"})).await;
    let spec = seen.node.as_deref().unwrap();
    assert!(spec.cordoned && spec.taint("x.io/a", "NoSchedule").is_some() && seen.text("/spec/podCIDR").is_none());
    let changed = scene.patch(&format!("{NODES}/n"), &json!({"spec": {"unschedulable": null}})).await;
    let seen = shown_at(&scene, "n", &meta(&changed, "resourceVersion")).await;
    assert!(!seen.node.as_deref().unwrap().cordoned);
}

#[tokio::test(start_paused = true)]
async fn a_hold_on_a_node_is_written_with_its_version_and_is_a_conflict_on_an_older_one() {
    let scene = scene().await;
    let old = node(&scene, "n", json!({})).await;
    let patch = |body: Value| vec![Write::patch(&ObjectKey::node("n"), body)];
    let (cordon, _) = schedulable(&old, false, "uid-1").unwrap();
    assert_eq!(stopped(&scene.apply(patch(cordon.clone()), &Fence::open()).await), None);
    let stored = scene.get(&format!("{NODES}/n")).await.unwrap();
    assert_eq!(
        (&stored["spec"]["unschedulable"], &stored["metadata"]["annotations"]["hold.oarlock.dev/uid-1"]),
        (&json!(true), &json!("[\"cordon\"]"))
    );
    let seen = scene.cluster.store().get(&ObjectKey::node("n")).unwrap();
    assert!(seen.node.as_deref().unwrap().cordoned, "the reply is in the cache");
    // A port that watches no nodes leaves it to the API server.
    scene
        .declare(WatchedKinds { kinds: [(Kind::pod(), WatchedKind::default())].into(), ..WatchedKinds::default() })
        .await;
    assert_eq!(stopped(&scene.apply(patch(cordon), &Fence::open()).await), Some(Stopped::Conflict));
    let body = let_go(&seen, "uid-1").unwrap();
    assert_eq!(stopped(&scene.apply(patch(body), &Fence::open()).await), None);
    let stored = scene.get(&format!("{NODES}/n")).await.unwrap();
    assert!(
        stored["spec"].get("unschedulable").is_none() && stored["metadata"].get("annotations").is_none(),
        "{stored}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_watched_is_read_live_with_its_cordon() {
    let scene = Scene::watching().await;
    scene
        .post(
            NODES,
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"unschedulable": true}}),
        )
        .await;
    let reads = ["n", "m"].map(|name| LiveRead::Object(ObjectKey::node(name)));
    let live = scene.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap().live;
    let found = live.objects[&ObjectKey::node("n")].clone().unwrap();
    assert!(found.node.as_deref().unwrap().cordoned);
    assert_eq!(live.objects[&ObjectKey::node("m")], None);
}

#[tokio::test(start_paused = true)]
async fn a_label_selector_finds_nodes_whatever_the_namespace() {
    let scene = scene().await;
    let (b, a) = (node(&scene, "b", json!({})).await, node(&scene, "a", json!({})).await);
    let query = Box::new(TargetQuery::Labels("pool=x".into()));
    let read = LiveRead::Selection { kind: Kind::node(), namespace: None, query };
    let live = scene.cluster.observe(&job("j"), std::slice::from_ref(&read), Detail::Status).await.unwrap().live;
    let found: Vec<_> = live.selections[&read].iter().map(|found| (&found.name, &found.uid)).collect();
    assert_eq!(found, [(&a.key.name, &a.uid), (&b.key.name, &b.uid)]);
}

#[tokio::test(start_paused = true)]
async fn a_round_knows_whether_its_namespace_has_the_label_for_nodes() {
    let scene = scene().await;
    for (value, allowed) in [(json!("true"), true), (json!("yes"), false), (json!("true"), true), (Value::Null, false)]
    {
        let changed = json!({"metadata": {"labels": {"oarlock.dev/node-operations": value}}});
        let stored = scene.patch("/api/v1/namespaces/default", &changed).await;
        let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&ObjectKey::namespace("default"));
        let version = meta(&stored, "resourceVersion");
        scene
            .until("the namespace", |cluster| shown(cluster).is_some_and(|seen| seen.resource_version == version))
            .await;
        let observed = scene.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap();
        assert_eq!(observed.node_operations, allowed, "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_on_a_node_is_in_the_namespace_default() {
    let scene = Scene::bare().await;
    let note = EventNote {
        name: "j.1".into(),
        regarding: ObjectKey::node("n"),
        regarding_uid: "u".into(),
        warning: false,
        reason: "OperationBegan".into(),
        action: "Reboot".into(),
        message: "m".into(),
    };
    scene.cluster.emit(vec![note]);
    scene.cluster.stop(Duration::from_secs(5)).await;
    let events = scene.get("/apis/events.k8s.io/v1/namespaces/default/events").await.unwrap();
    assert_eq!(
        (&events["items"][0]["regarding"]["kind"], &events["items"][0]["regarding"]["name"]),
        (&json!("Node"), &json!("n"))
    );
}
