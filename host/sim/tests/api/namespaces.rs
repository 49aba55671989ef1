//! Deletion of namespaces: refusals, the order in which the content is deleted, and finalizers that delay the deletion.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams},
    core::Status,
};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

/// A namespace `n` with a ConfigMap `m` and a pod `p` on a node.
struct Content {
    namespaces: Api<Namespace>,
    maps: Api<ConfigMap>,
    pods: Api<Pod>,
}

impl Content {
    async fn new() -> Self {
        let client = Client::new(Cluster::new(Options::default()).service(), "n");
        let content = Self {
            namespaces: Api::all(client.clone()),
            maps: Api::default_namespaced(client.clone()),
            pods: Api::default_namespaced(client),
        };
        let namespace = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        content.namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        content.maps.create(&PostParams::default(), &map("m")).await.unwrap();
        let pod =
            json!({"metadata": {"name": "p"}, "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}});
        content.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        content
    }

    async fn delete(&self) -> Namespace {
        self.namespaces.delete("n", &DeleteParams::default()).await.unwrap().left().unwrap()
    }

    async fn end_pod(&self) {
        self.pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn finalizers(list: Value) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"finalizers": list}}))
}

fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> Box<Status> {
    match result.unwrap_err() {
        kube::Error::Api(status) => status,
        other => panic!("not a Status: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminating_namespace_refuses_new_content_and_evictions() {
    let content = Content::new().await;
    let deleted = content.delete().await;
    assert!(deleted.metadata.deletion_timestamp.is_some());
    assert_eq!(deleted.metadata.deletion_grace_period_seconds, None);
    assert_eq!(deleted.spec.unwrap().finalizers, Some(vec!["kubernetes".to_owned()]));
    assert_eq!(deleted.status.unwrap().phase.as_deref(), Some("Terminating"));
    let refused = [
        refusal(content.maps.create(&PostParams::default(), &map("b")).await),
        refusal(content.pods.evict("p", &EvictParams::default()).await),
    ];
    for (status, subject) in refused.iter().zip(["configmaps \"b\"", "pods \"p\""]) {
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        let why = "unable to create new content in namespace n because it is being terminated";
        assert_eq!(status.message, format!("{subject} is forbidden: {why}"));
        assert_eq!(status.details.as_ref().unwrap().causes[0].reason, "NamespaceTerminating");
    }
}

#[tokio::test(start_paused = true)]
async fn other_kinds_are_deleted_after_the_last_pod_and_then_the_namespace_goes() {
    let content = Content::new().await;
    content.delete().await;
    assert!(content.pods.get("p").await.unwrap().metadata.deletion_timestamp.is_some());
    assert!(content.maps.get("m").await.unwrap().metadata.deletion_timestamp.is_none());
    content.end_pod().await;
    assert_eq!(refusal(content.maps.get("m").await).code, 404);
    assert_eq!(refusal(content.namespaces.get("n").await).code, 404);
}

#[tokio::test(start_paused = true)]
async fn content_with_a_finalizer_holds_the_namespace() {
    let content = Content::new().await;
    let one = PatchParams::default();
    content.maps.patch("m", &one, &finalizers(json!(["example.com/guard"]))).await.unwrap();
    content.delete().await;
    content.end_pod().await;
    assert!(content.maps.get("m").await.unwrap().metadata.deletion_timestamp.is_some());
    assert!(content.namespaces.get("n").await.is_ok());
    content.maps.patch("m", &one, &finalizers(Value::Null)).await.unwrap();
    assert_eq!(refusal(content.namespaces.get("n").await).code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_neither_before_its_content_nor_before_its_own_finalizers() {
    let one = PatchParams::default();
    let content = Content::new().await;
    content.namespaces.patch("n", &one, &finalizers(json!(["example.com/guard"]))).await.unwrap();
    content.delete().await;
    content.namespaces.patch("n", &one, &finalizers(Value::Null)).await.unwrap();
    assert!(content.namespaces.get("n").await.is_ok(), "a pod is left");
    content.end_pod().await;
    assert_eq!(refusal(content.namespaces.get("n").await).code, 404);

    let content = Content::new().await;
    content.namespaces.patch("n", &one, &finalizers(json!(["example.com/guard"]))).await.unwrap();
    content.delete().await;
    content.end_pod().await;
    assert_eq!(content.namespaces.get("n").await.unwrap().spec.unwrap().finalizers, None);
    content.namespaces.patch("n", &one, &finalizers(Value::Null)).await.unwrap();
    assert_eq!(refusal(content.namespaces.get("n").await).code, 404);
}
