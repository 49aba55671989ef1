//! Objects are stored, listed, watched, patched and deleted as on a real server.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{ConfigMap, Namespace, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams},
};
use oarlock_sim::{Cluster, Options};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::new(Options { history: true, ..Options::default() });
    let client = Client::new(cluster.service(), "default");
    (cluster, client)
}

fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str) -> Pod {
    from(
        json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i:1"}]}}),
    )
}

fn refused<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String, String) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.reason, status.message),
        other => panic!("not a Status: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_created_pod_has_what_the_server_fills_in() {
    let (_, client) = cluster();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let made = pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    assert_eq!(made.metadata.namespace.as_deref(), Some("default"));
    assert!(made.metadata.uid.is_some() && made.metadata.resource_version.is_some());
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(made.spec.unwrap().termination_grace_period_seconds, Some(30));
    let again = refused(pods.create(&PostParams::default(), &pod("a")).await);
    assert_eq!(again, (409, "AlreadyExists".into(), "pods \"a\" already exists".into()));
    let absent = refused(pods.get("b").await);
    assert_eq!(absent, (404, "NotFound".into(), "pods \"b\" not found".into()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_every_change_once_and_in_order() {
    let (_, client) = cluster();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let start = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let events = pods.watch(&WatchParams::default().labels("app=web"), &start).await.unwrap();
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    pods.patch("a", &PatchParams::default(), &patch).await.unwrap();
    pods.patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"app": "web"}}})))
        .await
        .unwrap();
    pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    let told = events.take(5).try_collect::<Vec<_>>().await.unwrap();
    let kinds = told.iter().map(|event| match event {
        WatchEvent::Added(_) => "added",
        WatchEvent::Modified(_) => "modified",
        WatchEvent::Deleted(_) => "deleted",
        _ => "other",
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["added", "deleted", "added", "modified", "deleted"]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_waits_for_its_grace_period_and_its_finalizers() {
    let (_, client) = cluster();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let mut guarded = pod("a");
    guarded.metadata.finalizers = Some(vec!["example.com/guard".into()]);
    pods.create(&PostParams::default(), &guarded).await.unwrap();
    let marked = pods.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    assert_eq!(marked.metadata.generation, Some(2));
    pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(pods.get("a").await.unwrap().metadata.deletion_grace_period_seconds, Some(0));
    let added = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/guard", "example.com/late"]}}));
    let late = refused(pods.patch("a", &PatchParams::default(), &added).await);
    assert_eq!((late.0, late.1.as_str()), (422, "Invalid"));
    pods.patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
    assert_eq!(refused(pods.get("a").await).0, 404);
}

#[tokio::test(start_paused = true)]
async fn preconditions_guard_deletions_and_patches() {
    let (_, client) = cluster();
    let pods: Api<Pod> = Api::default_namespaced(client);
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    let wrong = Preconditions { uid: Some("other".into()), resource_version: None };
    let (code, reason, message) = refused(pods.delete("a", &DeleteParams::default().preconditions(wrong)).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert!(message.contains("the UID in the precondition (other) does not match the UID in record"), "{message}");
    let uid = Patch::Merge(json!({"metadata": {"uid": "other", "labels": {"x": "y"}}}));
    let (code, _, message) = refused(pods.patch("a", &PatchParams::default(), &uid).await);
    assert_eq!(code, 422);
    assert!(message.contains("metadata.uid: Invalid value: \"other\": field is immutable"), "{message}");
    let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}}));
    assert_eq!(refused(pods.patch("a", &PatchParams::default(), &stale).await).0, 409);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_keeps_the_resource_version() {
    let (cluster, client) = cluster();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let made = pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    let before = cluster.resource_version();
    let same =
        pods.patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"app": "web"}}}))).await;
    assert_eq!(same.unwrap().metadata.resource_version, made.metadata.resource_version);
    assert_eq!(cluster.resource_version(), before);
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_list_show_one_moment() {
    let (cluster, client) = cluster();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for index in 0..5 {
        maps.create(&PostParams::default(), &from(json!({"metadata": {"name": format!("m{index}")}}))).await.unwrap();
    }
    let first = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    maps.delete("m3", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = maps.list(&ListParams::default().continue_token(&token)).await.unwrap();
    let names = rest.items.iter().map(|map| map.metadata.name.clone().unwrap()).collect::<Vec<_>>();
    assert_eq!(names, ["m2", "m3", "m4"]);
    cluster.compact();
    assert_eq!(refused(maps.list(&ListParams::default().continue_token(&token)).await).0, 410);
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_owner() {
    let (_, client) = cluster();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let sets: Api<ReplicaSet> = Api::default_namespaced(client);
    let set = json!({"metadata": {"name": "s"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let set = sets.create(&PostParams::default(), &from(set)).await.unwrap();
    let mut owned = pod("a");
    owned.metadata.owner_references = Some(vec![from(
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "s", "uid": set.metadata.uid, "controller": true}),
    )]);
    owned.spec.as_mut().unwrap().node_name = None;
    pods.create(&PostParams::default(), &owned).await.unwrap();
    sets.delete("s", &DeleteParams::background()).await.unwrap();
    assert_eq!(refused(pods.get("a").await).0, 404);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_where_no_namespace_is() {
    let (_, client) = cluster();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "nowhere");
    let (code, _, message) = refused(pods.create(&PostParams::default(), &pod("a")).await);
    assert_eq!((code, message.as_str()), (404, "namespaces \"nowhere\" not found"));
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &from(json!({"metadata": {"name": "somewhere"}}))).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, "somewhere");
    maps.create(&PostParams::default(), &from(json!({"metadata": {"name": "m"}}))).await.unwrap();
    namespaces.delete("somewhere", &DeleteParams::default()).await.unwrap();
    assert_eq!(refused(namespaces.get("somewhere").await).0, 404);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_forgotten_version_is_told_410() {
    let (cluster, client) = cluster();
    let pods: Api<Pod> = Api::default_namespaced(client);
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    cluster.compact();
    let events = pods.watch(&WatchParams::default(), "1").await.unwrap();
    let told = events.try_collect::<Vec<_>>().await.unwrap();
    let [WatchEvent::Error(status)] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}
