//! Nodes: the fields that the port watches and keeps, the nodes that a selector finds, and the writes of holds on nodes.

use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::operation_job::holds::{release, schedulable};
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::selector::TargetQuery;
use oarlock_core::requests::writes::{Stopped, Write};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::read::observe::Detail;
use oarlock_kube::watch::objects::{WatchedKind, WatchedKinds};
use serde_json::{Value, json};

use crate::apply::stopped;
use crate::fixture::{Fixture, job, meta};

const NODES: &str = "/api/v1/nodes";

/// Returns the kinds of a host with a plugin for nodes.
fn watched() -> WatchedKinds {
    let kinds = [Kind::pod(), Kind::namespace(), Kind::node()].map(|kind| (kind, WatchedKind::default()));
    WatchedKinds { kinds: kinds.into(), ..WatchedKinds::default() }
}

async fn fixture() -> Fixture {
    let fixture = Fixture::watching().await;
    fixture.declare(watched()).await;
    fixture.known_job("j").await;
    fixture
}

async fn node(fixture: &Fixture, name: &str, spec: Value) -> Arc<Object> {
    let metadata = json!({"name": name, "labels": {"pool": "x"}});
    let stored =
        fixture.post(NODES, &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})).await;
    shown_at(fixture, name, &meta(&stored, "resourceVersion")).await
}

/// Waits until the port shows this version of the node, and returns the node.
async fn shown_at(fixture: &Fixture, name: &str, version: &str) -> Arc<Object> {
    let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&ObjectKey::node(name));
    fixture.until("the node", |cluster| shown(cluster).is_some_and(|node| node.resource_version == version)).await;
    shown(&fixture.cluster).unwrap()
}

#[tokio::test(start_paused = true)]
async fn cordon_and_taints_of_a_watched_node_are_kept_though_no_plugin_declares_them() {
    let fixture = fixture().await;
    let taint = json!({"key": "x.io/a", "value": "v", "effect": "NoSchedule"});
    let seen = node(&fixture, "n", json!({"unschedulable": true, "taints": [taint], "podCIDR": "10.0.0.0/24"})).await;
    let spec = seen.node.as_deref().unwrap();
    assert!(spec.cordoned && spec.taint("x.io/a", "NoSchedule").is_some() && seen.text("/spec/podCIDR").is_none());
    let changed = fixture.patch(&format!("{NODES}/n"), &json!({"spec": {"unschedulable": null}})).await;
    let seen = shown_at(&fixture, "n", &meta(&changed, "resourceVersion")).await;
    assert!(!seen.node.as_deref().unwrap().cordoned);
}

#[tokio::test(start_paused = true)]
async fn a_hold_on_a_node_is_written_with_its_version_and_is_a_conflict_on_an_older_one() {
    let fixture = fixture().await;
    let old = node(&fixture, "n", json!({})).await;
    let patch = |body: Value| vec![Write::patch(&ObjectKey::node("n"), body)];
    let (cordon, _) = schedulable(&old, false, "uid-1").unwrap();
    assert_eq!(stopped(&fixture.apply(patch(cordon.clone()), &Fence::open()).await), None);
    let stored = fixture.get(&format!("{NODES}/n")).await.unwrap();
    assert_eq!(
        (&stored["spec"]["unschedulable"], &stored["metadata"]["annotations"]["hold.oarlock.dev/uid-1"]),
        (&json!(true), &json!("[\"cordon\"]"))
    );
    let seen = fixture.cluster.store().get(&ObjectKey::node("n")).unwrap();
    assert!(seen.node.as_deref().unwrap().cordoned, "the reply is in the cache");
    // A port that watches no nodes leaves the check to the API server.
    fixture
        .declare(WatchedKinds { kinds: [(Kind::pod(), WatchedKind::default())].into(), ..WatchedKinds::default() })
        .await;
    assert_eq!(stopped(&fixture.apply(patch(cordon), &Fence::open()).await), Some(Stopped::Conflict));
    let body = release(&seen, "uid-1").unwrap();
    assert_eq!(stopped(&fixture.apply(patch(body), &Fence::open()).await), None);
    let stored = fixture.get(&format!("{NODES}/n")).await.unwrap();
    assert!(
        stored["spec"].get("unschedulable").is_none() && stored["metadata"].get("annotations").is_none(),
        "{stored}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_watched_is_read_live_with_its_cordon() {
    let fixture = Fixture::watching().await;
    fixture
        .post(
            NODES,
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"unschedulable": true}}),
        )
        .await;
    let reads = ["n", "m"].map(|name| LiveRead::Object(ObjectKey::node(name)));
    let live = fixture.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap().live;
    let found = live.objects[&ObjectKey::node("n")].clone().unwrap();
    assert!(found.node.as_deref().unwrap().cordoned);
    assert_eq!(live.objects[&ObjectKey::node("m")], None);
}

#[tokio::test(start_paused = true)]
async fn a_label_selector_finds_nodes_whatever_the_namespace() {
    let fixture = fixture().await;
    let (b, a) = (node(&fixture, "b", json!({})).await, node(&fixture, "a", json!({})).await);
    let query = Box::new(TargetQuery::Labels("pool=x".into()));
    let read = LiveRead::Selection { kind: Kind::node(), namespace: None, query };
    let live = fixture.cluster.observe(&job("j"), std::slice::from_ref(&read), Detail::Status).await.unwrap().live;
    let found: Vec<_> = live.selections[&read].iter().map(|found| (&found.name, &found.uid)).collect();
    assert_eq!(found, [(&a.key.name, &a.uid), (&b.key.name, &b.uid)]);
}

#[tokio::test(start_paused = true)]
async fn a_round_knows_whether_its_namespace_has_the_label_for_nodes() {
    let fixture = fixture().await;
    for (value, allowed) in [(json!("true"), true), (json!("yes"), false), (json!("true"), true), (Value::Null, false)]
    {
        let changed = json!({"metadata": {"labels": {"oarlock.dev/node-operations": value}}});
        let stored = fixture.patch("/api/v1/namespaces/default", &changed).await;
        let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&ObjectKey::namespace("default"));
        let version = meta(&stored, "resourceVersion");
        fixture
            .until("the namespace", |cluster| shown(cluster).is_some_and(|seen| seen.resource_version == version))
            .await;
        let observed = fixture.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap();
        assert_eq!(observed.node_operations, allowed, "{value}");
    }
}
