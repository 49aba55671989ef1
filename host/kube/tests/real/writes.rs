//! What a real API server answers to writes, and what the port makes of it.

use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Record, RecordWrite, Stopped, TargetWrites, Write};
use oarlock_kube::lease::Fence;
use oarlock_kube::observe::Detail;
use oarlock_kube::record::{Decided, RecordError};
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
    let stage = Stage::set("evict").await;
    let old = stage.pod("a", json!({})).await;
    let new = stage.patch(&format!("{}/a", stage.core("pods")), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let uid = meta(&new, "uid");
    assert_eq!(stopped(&stage, evict(&stage, "another", None)).await, Some(Stopped::Conflict));
    let outdated = evict(&stage, &uid, Some(meta(&old, "resourceVersion")));
    assert_eq!(stopped(&stage, outdated).await, Some(Stopped::Conflict));
    assert!(stage.get(&format!("{}/a", stage.core("pods"))).await.is_some());
    let fresh = evict(&stage, &uid, Some(meta(&new, "resourceVersion")));
    assert_eq!(stopped(&stage, fresh).await, None);
    stage.until("the pod gone", |cluster| cluster.store().get(&stage.at("a")).is_none()).await;
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
async fn a_patch_names_its_object_by_uid_and_its_reply_is_seen_at_once() {
    let stage = Stage::set("patch").await;
    let pod = stage.pod("a", json!({})).await;
    stage.until("the pod", |cluster| cluster.store().get(&stage.at("a")).is_some()).await;
    assert_eq!(stopped(&stage, label(&stage, "another")).await, Some(Stopped::Conflict));
    stage.cluster.stop(std::time::Duration::ZERO).await;
    assert_eq!(stopped(&stage, label(&stage, &meta(&pod, "uid"))).await, None);
    assert!(stage.cluster.store().get(&stage.at("a")).unwrap().labels.contains_key("marked"));
    stage.delete(&format!("{}/a", stage.core("pods"))).await;
    assert_eq!(stopped(&stage, label(&stage, &meta(&pod, "uid"))).await, Some(Stopped::Gone));
    assert!(stage.cluster.store().get(&stage.at("a")).is_none(), "the answer says that it is gone");
}

/// As a terminating object is let go.
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
        "job": {"name": "j", "uid": uid}, "targets": [{"name": "a", "progress": "Processing"}],
        "metadata": {"name": "j-0", "ownerReferences": owner, "labels": {"oarlock.dev/job-uid": uid}}});
    let record = Record {
        finalizer: Some(json!({"metadata": {"uid": uid, "resourceVersion": version,
            "finalizers": ["finalizer.operating.kusionstack.io/protected"]}})),
        records: vec![RecordWrite { name: "j-0".into(), record: serde_json::from_value(shard).unwrap(), patch: None }],
        status: Some(json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"epoch": 1}})),
    };
    let decided =
        |record: &Record| Decided { job: stage.key("j"), record: record.clone(), writes: vec![], events: vec![] };
    stage.cluster.record(decided(&record), &Fence::open()).await.unwrap();
    let observed = stage.cluster.observe(&stage.key("j"), &[], Detail::Records).await.unwrap();
    let job = observed.job.unwrap();
    assert_eq!(job.status.as_ref().unwrap().epoch, Some(1));
    assert_eq!(job.metadata.finalizers.as_ref().unwrap().len(), 1);
    assert_eq!(observed.records.unwrap()[0].record.targets[0].name, "a");

    let outdated = Record { finalizer: None, ..record };
    let error = stage.cluster.record(decided(&outdated), &Fence::open()).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "status", .. }), "{error}");
}

#[tokio::test]
async fn a_job_is_deleted_at_the_version_that_was_judged_and_at_no_other() {
    let stage = Stage::set("delete").await;
    let old = stage.job("j").await;
    let new = stage.patch(&format!("{}/j", stage.jobs()), &json!({"spec": {"TTLSecondsAfterFinished": 86_400}})).await;
    let delete = |stored: &Value| {
        let kind = Kind::new("apps.kusionstack.io/v1alpha1", "OperationJob");
        let object = ObjectKey { kind, namespace: Some(stage.namespace.into()), name: "j".into() };
        let resource_version = Some(meta(stored, "resourceVersion"));
        let propagation = Some("Background".into());
        vec![Write::Delete { object, uid: meta(stored, "uid"), resource_version, grace_seconds: None, propagation }]
    };
    assert_eq!(stopped(&stage, delete(&old)).await, Some(Stopped::Conflict));
    assert_eq!(stopped(&stage, delete(&new)).await, None);
    assert!(!stage.cluster.jobs().contains(&stage.key("j")), "the reply says that it is gone");
}

#[tokio::test]
async fn a_rehearsal_changes_nothing() {
    let stage = Stage::set("rehearse").await;
    let pod = stage.pod("a", json!({})).await;
    let uid = meta(&pod, "uid");
    let writes = label(&stage, &uid).into_iter().chain(evict(&stage, &uid, None)).collect();
    let targets = [TargetWrites { target: Some(0), writes }];
    let applied = stage.cluster.rehearse(&targets, &Fence::open()).await;
    assert_eq!((applied[0].done, applied[0].stopped.clone()), (2, None));
    let now = stage.get(&format!("{}/a", stage.core("pods"))).await.unwrap();
    assert_eq!(meta(&now, "resourceVersion"), meta(&pod, "resourceVersion"));
}
