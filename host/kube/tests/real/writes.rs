//! Answers of a real API server to writes, and their results in the port.

use oarlock_core::cluster::writes::{Record, ShardWrite, Stopped, Write};
use oarlock_kube::lease::Fence;
use oarlock_kube::observe::Detail;
use oarlock_kube::record::RecordError;
use serde_json::{Value, json};

use crate::stage::{Stage, meta};

fn evict(stage: &Stage, uid: &str, resource_version: Option<String>) -> Vec<Write> {
    vec![Write::Evict { pod: stage.at("a"), uid: uid.into(), resource_version, grace_seconds: None }]
}

fn label(stage: &Stage, uid: &str) -> Vec<Write> {
    let body = json!({"metadata": {"uid": uid, "labels": {"marked": "true"}}});
    vec![Write::Patch { object: stage.at("a"), subresource: None, body }]
}

async fn stopped(stage: &Stage, writes: Vec<Write>) -> Option<Stopped> {
    stage.apply(writes).await.remove(0).stopped
}

#[tokio::test]
async fn an_eviction_names_its_pod_by_uid_and_version() {
    let stage = Stage::without_pods("evict").await;
    let old = stage.pod("a", json!({})).await;
    let new = stage.patch(&format!("{}/a", stage.core("pods")), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let uid = meta(&new, "uid");
    assert_eq!(stopped(&stage, evict(&stage, "another", None)).await, Some(Stopped::Conflict));
    let outdated = evict(&stage, &uid, Some(meta(&old, "resourceVersion")));
    assert_eq!(stopped(&stage, outdated).await, Some(Stopped::Conflict));
    assert!(stage.get(&format!("{}/a", stage.core("pods"))).await.is_some());
    let fresh = evict(&stage, &uid, Some(meta(&new, "resourceVersion")));
    assert_eq!(stopped(&stage, fresh).await, None);
    stage.gone(&format!("{}/a", stage.core("pods"))).await;
    assert_eq!(stopped(&stage, evict(&stage, &uid, None)).await, Some(Stopped::Gone));
}

#[tokio::test]
async fn a_disruption_budget_blocks_an_eviction_and_two_of_them_do_too() {
    let stage = Stage::set("budget").await;
    let pod = stage.pod("a", json!({"labels": {"app": "x"}})).await;
    let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", stage.namespace);
    let budget = |name: &str| json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    stage.post(&budgets, &budget("first")).await;
    let blocked = stopped(&stage, evict(&stage, &meta(&pod, "uid"), None)).await;
    assert!(
        matches!(&blocked, Some(Stopped::Blocked { message, .. }) if message.contains("disruption budget")),
        "{blocked:?}"
    );
    stage.post(&budgets, &budget("second")).await;
    let blocked = stopped(&stage, evict(&stage, &meta(&pod, "uid"), None)).await;
    assert!(
        matches!(&blocked, Some(Stopped::Blocked { message, .. }) if message.contains("more than one")),
        "{blocked:?}"
    );
}

#[tokio::test]
async fn a_patch_names_its_object_by_uid() {
    let stage = Stage::without_pods("patch-uid").await;
    stage.pod("a", json!({})).await;
    assert_eq!(stopped(&stage, label(&stage, "another")).await, Some(Stopped::Conflict));
}

#[tokio::test]
async fn the_reply_to_a_patch_is_seen_at_once() {
    let stage = Stage::set("patch").await;
    let pod = stage.pod("a", json!({})).await;
    stage.job("j").await;
    let version = meta(&pod, "resourceVersion");
    let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&stage.at("a"));
    stage.until("the pod", |cluster| shown(cluster).is_some_and(|pod| pod.resource_version == version)).await;
    stage.cluster.stop(std::time::Duration::ZERO).await;
    assert_eq!(stopped(&stage, label(&stage, &meta(&pod, "uid"))).await, None);
    assert!(shown(&stage.cluster).unwrap().labels.contains_key("marked"));
    stage.delete(&format!("{}/a", stage.core("pods"))).await;
    assert_eq!(stopped(&stage, label(&stage, &meta(&pod, "uid"))).await, Some(Stopped::Gone));
    assert!(shown(&stage.cluster).is_none(), "the answer says that it is gone");
}

#[tokio::test]
async fn the_second_write_to_an_object_carries_the_version_that_the_first_reply_showed() {
    let stage = Stage::set("two-writes").await;
    let pod = stage.pod("a", json!({})).await;
    stage.job("j").await;
    let (uid, version) = (meta(&pod, "uid"), meta(&pod, "resourceVersion"));
    let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&stage.at("a"));
    stage.until("the pod", |cluster| shown(cluster).is_some_and(|pod| pod.resource_version == version)).await;
    let body = json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {"marked": "true"}}});
    let mut entry = stage.entry(Some(0), Write::patch(&stage.at("a"), body));
    entry.writes.extend(evict(&stage, &uid, Some(version)));
    let result = stage.apply_entries(vec![entry]).await.remove(0);
    assert_eq!((result.done, result.stopped), (2, None));
    stage.gone(&format!("{}/a", stage.core("pods"))).await;
}

/// As the host lets a terminating object go.
fn unmark(stage: &Stage, seen: &str) -> Vec<Write> {
    let body = json!([
        {"op": "test", "path": "/metadata/annotations/hold", "value": seen},
        {"op": "remove", "path": "/metadata/annotations/hold"},
    ]);
    vec![Write::Patch { object: stage.at("a"), subresource: None, body }]
}

#[tokio::test]
async fn a_json_patch_holds_though_the_object_moved_and_is_a_conflict_where_its_test_fails() {
    let stage = Stage::set("json-patch").await;
    stage.pod("a", json!({"annotations": {"hold": "x"}})).await;
    stage.until("the pod", |cluster| cluster.store().get(&stage.at("a")).is_some()).await;
    stage.patch(&format!("{}/a", stage.core("pods")), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(stopped(&stage, unmark(&stage, "another")).await, Some(Stopped::Conflict));
    assert_eq!(stopped(&stage, unmark(&stage, "x")).await, None);
    assert_eq!(stopped(&stage, unmark(&stage, "x")).await, Some(Stopped::Conflict), "it is gone already");
    stage.delete(&format!("{}/a", stage.core("pods"))).await;
    assert_eq!(stopped(&stage, unmark(&stage, "x")).await, Some(Stopped::Gone));
}

#[tokio::test]
async fn a_record_goes_finalizer_first_and_is_seen_by_the_next_round() {
    let stage = Stage::set("record").await;
    let stored = stage.job("j").await;
    let (uid, version) = (meta(&stored, "uid"), meta(&stored, "resourceVersion"));
    let owner = json!([{"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": "j", "uid": uid,
        "controller": true}]);
    let shard = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OperationRecord", "shard": 0, "firstIndex": 0,
        "job": {"name": "j", "uid": uid}, "targets": [r#"{"name": "a", "progress": "Processing"}"#],
        "metadata": {"name": "j-0", "ownerReferences": owner, "labels": {"oarlock.dev/job-uid": uid}}});
    let record = Record {
        finalizer: Some(json!({"metadata": {"uid": uid, "resourceVersion": version,
            "finalizers": ["finalizer.operating.kusionstack.io/protected"]}})),
        shards: vec![ShardWrite {
            shard: 0,
            name: "j-0".into(),
            record: serde_json::from_value(shard).unwrap(),
            patch: None,
            grows: false,
        }],
        best_effort_shards: false,
        status: Some(json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"epoch": 1}})),
    };
    let recorded = stage.cluster.record(&stage.key("j"), record.clone(), Vec::new(), &Fence::open()).await.unwrap();
    let path = format!("/apis/oarlock.dev/v1alpha1/namespaces/{}/operationrecords/j-0", stage.namespace);
    let shard = stage.get(&path).await.unwrap();
    let now = &recorded.shards[&0];
    assert_eq!((&now.uid, &now.resource_version), (&meta(&shard, "uid"), &meta(&shard, "resourceVersion")));
    let observed = stage.cluster.observe(&stage.key("j"), &[], Detail::Records).await.unwrap();
    let job = observed.job.unwrap();
    assert_eq!(job.status.as_ref().unwrap().epoch, Some(1));
    assert_eq!(job.metadata.finalizers.as_ref().unwrap().len(), 1);
    assert_eq!(observed.records.unwrap()[0].record.targets[0].name, "a");

    let outdated = Record { finalizer: None, ..record };
    let error = stage.cluster.record(&stage.key("j"), outdated, Vec::new(), &Fence::open()).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "status", .. }), "{error}");

    // A leader that was superseded writes a shard at the version that it knew.
    stage.patch(&path, &json!({"epoch": 2})).await;
    let patch = json!({"metadata": {"uid": now.uid, "resourceVersion": now.resource_version}, "epoch": 1});
    let record = serde_json::from_value(shard).unwrap();
    let write = ShardWrite { shard: 0, name: "j-0".into(), record, patch: Some(patch), grows: false };
    let superseded = Record { shards: vec![write], ..Record::default() };
    let error = stage.cluster.record(&stage.key("j"), superseded, Vec::new(), &Fence::open()).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "records", .. }), "{error}");
    assert_eq!(stage.get(&path).await.unwrap()["epoch"], 2);
}

#[tokio::test]
async fn a_job_is_deleted_at_the_version_that_was_judged_and_at_no_other() {
    let stage = Stage::set("delete").await;
    let old = stage.job("j").await;
    // The watch does not show the edit, so that the API server has to refuse.
    stage.cluster.stop(std::time::Duration::ZERO).await;
    let new = stage.patch(&format!("{}/j", stage.jobs()), &json!({"spec": {"TTLSecondsAfterFinished": 86_400}})).await;
    let delete = async |stored: &Value| {
        let resource_version = Some(meta(stored, "resourceVersion"));
        let (uid, propagation) = (meta(stored, "uid"), Some("Background".into()));
        let object = stage.key("j").object();
        let write = Write::Delete { object, uid, resource_version, grace_seconds: None, propagation };
        stage.apply_entries(vec![stage.entry(None, write)]).await.remove(0).stopped
    };
    assert_eq!(delete(&old).await, Some(Stopped::Conflict));
    stage.cluster.observe(&stage.key("j"), &[], Detail::Status).await.unwrap();
    assert_eq!(delete(&old).await, Some(Stopped::NotSent));
    assert_eq!(delete(&new).await, None);
    assert!(!stage.cluster.jobs().contains(&stage.key("j")), "the reply says that it is gone");
}
