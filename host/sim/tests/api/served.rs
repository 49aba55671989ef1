//! The in-memory API on a port, in real time, as kubectl uses it.

use futures::TryStreamExt;
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{PostParams, WatchEvent, WatchParams},
};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

/// A client on a port, and the server behind it, which ends with the test.
async fn served() -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let cluster = Cluster::new(Options::default());
    tokio::spawn(async move { cluster.serve(listener).await });
    Client::try_from(Config::new(address.parse().unwrap())).unwrap()
}

async fn get(client: &Client, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}

#[tokio::test]
async fn a_watch_over_a_port_tells_what_happens() {
    let client = served().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let events = pods.watch(&WatchParams::default(), "1").await.unwrap();
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let mut events = std::pin::pin!(events);
    let first = events.try_next().await.unwrap();
    assert!(matches!(first, Some(WatchEvent::Added(pod)) if pod.metadata.name.as_deref() == Some("a")));
}

#[tokio::test]
async fn documents_explain_the_kinds_and_say_what_patches_take() {
    let client = served().await;
    let index = get(&client, "/openapi/v3", "application/json").await;
    let address = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let core = get(&client, &address, "application/json").await;
    let pod = &core["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
    assert!(pod["description"].as_str().unwrap().starts_with("Pod is a collection of containers"));
    let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|one| one["name"] == "fieldValidation"));
}

#[tokio::test]
async fn discovery_is_there_in_both_forms() {
    let client = served().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let whole = get(&client, "/apis", accept).await;
    assert_eq!(whole["kind"], "APIGroupDiscoveryList");
    let apps = whole["items"].as_array().unwrap().iter().find(|group| group["metadata"]["name"] == "apps").unwrap();
    assert!(apps["versions"][0]["resources"].as_array().unwrap().iter().any(|one| one["resource"] == "deployments"));
    let parts = get(&client, "/apis/apps/v1", "application/json").await;
    assert!(parts["resources"].as_array().unwrap().iter().any(|one| one["name"] == "deployments/scale"));
}
