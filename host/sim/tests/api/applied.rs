//! Server-side apply: field owners, conflicts, and the removal of fields that a manager no longer sends.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

fn maps() -> Api<ConfigMap> {
    Api::default_namespaced(Client::new(Cluster::new(Options::default()).service(), "default"))
}

fn config(data: Value) -> Patch<Value> {
    Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}))
}

fn data(map: &ConfigMap) -> Vec<(&str, &str)> {
    map.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_manager_no_longer_says_goes_unless_somebody_else_says_it() {
    let maps = maps();
    let (one, two) = (PatchParams::apply("one"), PatchParams::apply("two"));
    maps.patch("a", &one, &config(json!({"x": "1", "y": "1", "z": "1"}))).await.unwrap();
    maps.patch("a", &two, &config(json!({"y": "1"}))).await.unwrap();
    let after = maps.patch("a", &one, &config(json!({"z": "1"}))).await.unwrap();
    assert_eq!(data(&after), [("y", "1"), ("z", "1")]);
}

#[tokio::test(start_paused = true)]
async fn applying_the_same_again_writes_nothing() {
    let maps = maps();
    let one = PatchParams::apply("one");
    let first = maps.patch("a", &one, &config(json!({"x": "1"}))).await.unwrap();
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    let second = maps.patch("a", &one, &config(json!({"x": "1"}))).await.unwrap();
    assert_eq!(first.metadata.resource_version, second.metadata.resource_version);
}

#[tokio::test(start_paused = true)]
async fn a_plain_write_takes_over_what_it_changes() {
    let maps = maps();
    let one = PatchParams::apply("one");
    maps.patch("a", &one, &config(json!({"x": "1"}))).await.unwrap();
    let other = PatchParams { field_manager: Some("other".into()), ..PatchParams::default() };
    maps.patch("a", &other, &Patch::Merge(json!({"data": {"x": "9"}}))).await.unwrap();
    let refused = maps.patch("a", &one, &config(json!({"x": "1"}))).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused:?}") };
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"other\" using v1: .data.x");
}
