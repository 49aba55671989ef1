//! Evictions and disruption budgets, with the real server's responses.

use http::Request;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

async fn ready_pods(client: &Client, count: usize) -> Api<Pod> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for index in 0..count {
        let name = format!("p{index}");
        let pod = json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
    pods
}

fn budget(name: &str, spec: Value) -> PodDisruptionBudget {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

/// Posts an Eviction as the host does: raw, with preconditions.
async fn evict(client: &Client, pod: &str, options: Value) -> Result<Value, Box<kube::core::Status>> {
    let body =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}, "deleteOptions": options});
    let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&body).unwrap())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(value) => Ok(value),
        Err(kube::Error::Api(status)) => Err(status),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_counted_spent_and_named_when_it_refuses() {
    let client = Client::new(Cluster::new(Options::default()).service(), "default");
    let pods = ready_pods(&client, 3).await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    budgets.create(&PostParams::default(), &budget("b", json!({"minAvailable": 2}))).await.unwrap();
    let status = budgets.get("b").await.unwrap().status.unwrap();
    assert_eq!(
        (status.current_healthy, status.desired_healthy, status.expected_pods, status.disruptions_allowed),
        (3, 2, 3, 1)
    );
    let done = evict(&client, "p0", json!({})).await.unwrap();
    assert_eq!((done["status"].as_str(), done["code"].as_u64()), (Some("Success"), Some(201)));
    let going = pods.get("p0").await.unwrap();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    let conditions = going.status.unwrap().conditions.unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one.type_ == "DisruptionTarget" && one.reason.as_deref() == Some("EvictionByEvictionAPI"))
    );
    let refused = evict(&client, "p1", json!({})).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(refused.message, "Cannot evict pod as it would violate the pod's disruption budget.");
    let cause = &refused.details.unwrap().causes[0];
    assert_eq!(cause.reason, "DisruptionBudget");
    assert_eq!(cause.message, "The disruption budget b needs 2 healthy pods and has 2 currently");
}

#[tokio::test(start_paused = true)]
async fn a_stale_eviction_is_a_conflict_and_spends_the_budget_for_two_minutes() {
    let client = Client::new(Cluster::new(Options::default()).service(), "default");
    let pods = ready_pods(&client, 2).await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    budgets.create(&PostParams::default(), &budget("b", json!({"minAvailable": 1}))).await.unwrap();
    let stale = evict(&client, "p0", json!({"preconditions": {"uid": "another"}})).await.unwrap_err();
    assert_eq!((stale.code, stale.reason.as_str()), (409, "Conflict"));
    assert!(pods.get("p0").await.unwrap().metadata.deletion_timestamp.is_none());
    let status = budgets.get("b").await.unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, 0);
    assert!(status.disrupted_pods.unwrap().contains_key("p0"));
    assert_eq!(evict(&client, "p0", json!({})).await.unwrap_err().code, 429);
    tokio::time::advance(std::time::Duration::from_secs(121)).await;
    evict(&client, "p0", json!({})).await.unwrap();
}
