//! The tokens of service accounts expire, and become invalid with the objects that they are bound to.

use std::time::Duration;

use http::Request;
use kube::Client;
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

const CORE: &str = "/api/v1/namespaces/default";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

async fn post(client: &Client, path: &str, body: Value) -> Value {
    let request = Request::post(path).header("content-type", "application/json");
    client.request(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap()
}

async fn account() -> Client {
    let client = Client::new(Cluster::new(Options::default()).service(), "default");
    post(&client, &format!("{CORE}/serviceaccounts"), json!({"metadata": {"name": "robot"}})).await;
    client
}

async fn token(client: &Client, spec: Value) -> String {
    let path = format!("{CORE}/serviceaccounts/robot/token");
    post(client, &path, json!({"spec": spec})).await["status"]["token"].as_str().unwrap().to_owned()
}

async fn review(client: &Client, token: &str) -> Value {
    post(client, REVIEWS, json!({"spec": {"token": token}})).await["status"].take()
}

#[tokio::test(start_paused = true)]
async fn a_token_is_believed_until_a_minute_after_its_end() {
    let client = account().await;
    let token = token(&client, json!({"expirationSeconds": 600})).await;
    tokio::time::advance(Duration::from_secs(660)).await;
    assert_eq!(review(&client, &token).await["authenticated"], true);
    tokio::time::advance(Duration::from_secs(1)).await;
    let wanted = json!({"user": {}, "error": "[invalid bearer token, service account token has expired]"});
    assert_eq!(review(&client, &token).await, wanted);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_believed_for_a_minute_after_the_deletion_of_its_account_began() {
    let client = account().await;
    let token = token(&client, json!({})).await;
    let path = format!("{CORE}/serviceaccounts/robot");
    let held = Request::patch(&path).header("content-type", "application/merge-patch+json");
    let held = held.body(json!({"metadata": {"finalizers": ["a.example/x"]}}).to_string().into_bytes()).unwrap();
    client.request::<Value>(held).await.unwrap();
    client.request::<Value>(Request::delete(&path).body(Vec::new()).unwrap()).await.unwrap();
    assert_eq!(review(&client, &token).await["authenticated"], true);
    tokio::time::advance(Duration::from_secs(61)).await;
    let error = &review(&client, &token).await["error"];
    assert_eq!(error, "[invalid bearer token, service account default/robot has been deleted]");
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_cluster_is_refuted() {
    let (own, other) = (account().await, account().await);
    let error = &review(&own, &token(&other, json!({})).await).await["error"];
    assert_eq!(error, "[invalid bearer token, go-jose/go-jose: error in cryptographic primitive]");
}
