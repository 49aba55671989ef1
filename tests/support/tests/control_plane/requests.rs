//! The answers that clients of the control plane get.

use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Request;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use oarlock_support::accounts::Account;
use oarlock_support::install;
use serde_json::{Value, json};

use crate::shared;

fn post(path: &str, body: &Value) -> Request<Vec<u8>> {
    Request::post(path).header("content-type", "application/json").body(body.to_string().into_bytes()).unwrap()
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
           "spec": {"containers": [{"name": "main", "image": "none"}]}})
}

#[tokio::test]
async fn watch_delivers_a_pod_that_is_created_after_it_began() {
    let client = shared().await.unwrap().client(Account::World).await.unwrap();
    let watch = Request::get("/api/v1/namespaces/default/pods?watch=true").body(Vec::new()).unwrap();
    let mut events = client.request_stream(watch).await.unwrap().lines();
    client.request::<Value>(post("/api/v1/namespaces/default/pods", &pod("watched"))).await.unwrap();
    while let Some(line) = events.next().await {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if event["type"] == "ADDED" && event["object"]["metadata"]["name"] == "watched" {
            return;
        }
    }
    panic!("the watch ended");
}

#[tokio::test]
async fn accounts_have_their_own_rights_and_names() {
    let plane = shared().await.unwrap();
    for account in [Account::Host, Account::Visitor] {
        let client = plane.client(account).await.unwrap();
        let refused = client.request::<Value>(post("/api/v1/namespaces/default/pods", &pod("forbidden"))).await;
        let kube::Error::Api(status) = refused.unwrap_err() else { panic!("no answer") };
        assert_eq!(status.code, 403);
        assert!(status.message.contains(account.user()), "{}", status.message);
    }
}

#[tokio::test]
async fn roles_and_crds_are_in_force_once_installed() {
    let plane = shared().await.unwrap();
    let admin = plane.client(Account::Admin).await.unwrap();
    let documents = install::documents(
        "apiVersion: apiextensions.k8s.io/v1\n\
         kind: CustomResourceDefinition\n\
         metadata: {name: probes.test.oarlock.dev}\n\
         spec:\n\
         \x20 group: test.oarlock.dev\n\
         \x20 scope: Namespaced\n\
         \x20 names: {plural: probes, singular: probe, kind: Probe, listKind: ProbeList}\n\
         \x20 versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n\
         ---\n\
         apiVersion: test.oarlock.dev/v1\n\
         kind: Probe\n\
         metadata: {name: first, namespace: default}\n",
    );
    install::install(&admin, &documents.unwrap(), install::Way::Apply).await.unwrap();
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("test.oarlock.dev", "v1", "Probe"), "probes");
    let probes: Api<DynamicObject> = Api::namespaced_with(admin, "default", &resource);
    assert!(probes.get("first").await.is_ok());
}

#[tokio::test]
async fn api_server_says_who_wrote_what() {
    let plane = shared().await.unwrap();
    let client = plane.client(Account::World).await.unwrap();
    client.request::<Value>(post("/api/v1/namespaces/default/pods", &pod("audited"))).await.unwrap();
    let entries = plane.audited().unwrap();
    let entry = entries.iter().find(|entry| entry.resource == "pods" && entry.name == "audited").unwrap();
    assert_eq!((entry.user.as_str(), entry.verb.as_str(), entry.code), ("world", "create", 201));
    let totals = plane.request_totals().await.unwrap();
    assert!(
        totals.iter().any(|total| total.verb == "POST" && total.resource == "pods" && total.count > 0),
        "{totals:?}"
    );
}

#[tokio::test]
async fn kubectl_of_the_same_version_reads_the_version_of_the_server() {
    let plane = shared().await.unwrap();
    let output = plane.kubectl(Account::Admin).unwrap().args(["version", "-o", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let versions: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(versions["serverVersion"]["gitVersion"], controlplane::KUBERNETES_VERSION);
    assert_eq!(versions["clientVersion"]["gitVersion"], controlplane::KUBERNETES_VERSION);
}
