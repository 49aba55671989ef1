//! Pods without a node, finished pods and deletions without grace go at once; a binding names the node.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

fn pods() -> Api<Pod> {
    Api::default_namespaced(Client::new(Cluster::new(Options::default()).service(), "default"))
}

async fn create(pods: &Api<Pod>, name: &str, node: Option<&str>) {
    let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
    let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

async fn finish(pods: &Api<Pod>, name: &str) {
    let status = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status(name, &PatchParams::default(), &status).await.unwrap();
}

/// As the host posts it: `Api::evict` misspells the field of its options, and servers ignore it.
async fn evict(pods: &Api<Pod>, options: &DeleteParams) {
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": options});
    let one = PostParams::default();
    pods.create_subresource::<_, Value>("eviction", "p", &one, &eviction).await.unwrap();
}

async fn bind(pods: &Api<Pod>, name: &str, node: &str) -> kube::Result<Value> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
    pods.create_subresource("binding", name, &PostParams::default(), &binding).await
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_node_or_life_or_grace_goes_with_the_reply() {
    let pods = pods();
    for deletion in ["unscheduled", "finished", "no grace"] {
        for evicted in [false, true] {
            create(&pods, "p", (deletion != "unscheduled").then_some("n")).await;
            if deletion == "finished" {
                finish(&pods, "p").await;
            }
            let grace = (deletion == "no grace").then_some(0);
            let options = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
            if evicted {
                evict(&pods, &options).await;
            } else {
                pods.delete("p", &options).await.unwrap();
            }
            assert!(pods.get_opt("p").await.unwrap().is_none(), "{deletion}, evicted: {evicted}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_holds_a_pod_without_a_node() {
    let pods = pods();
    create(&pods, "p", None).await;
    let finalizers = |list: Value| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    pods.patch("p", &PatchParams::default(), &finalizers(json!(["example.com/guard"]))).await.unwrap();
    let held = pods.delete("p", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(held.metadata.deletion_grace_period_seconds, Some(0));
    pods.patch("p", &PatchParams::default(), &finalizers(Value::Null)).await.unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_binding_names_the_node_once_and_then_a_deletion_takes_its_grace() {
    let pods = pods();
    create(&pods, "p", None).await;
    bind(&pods, "p", "n").await.unwrap();
    let refused = bind(&pods, "p", "other").await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 409));
    let bound = pods.get("p").await.unwrap();
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n"));
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    assert_eq!(pods.get("p").await.unwrap().metadata.deletion_grace_period_seconds, Some(30));
}
