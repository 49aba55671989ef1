//! Answers of a real API server to writes, and their results in the port.

use oarlock_core::requests::writes::{OperationRecordWrite, Record, Stopped, Write};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::persist::record::RecordError;
use oarlock_kube::read::observe::Detail;
use serde_json::{Value, json};

use crate::fixture::{Fixture, meta};

fn evict(fixture: &Fixture, uid: &str, resource_version: Option<String>) -> Vec<Write> {
    vec![Write::Evict { pod: fixture.at("a"), uid: uid.into(), resource_version, grace_seconds: None }]
}

fn label(fixture: &Fixture, uid: &str) -> Vec<Write> {
    let body = json!({"metadata": {"uid": uid, "labels": {"marked": "true"}}});
    vec![Write::Patch { object: fixture.at("a"), subresource: None, body }]
}

async fn stopped(fixture: &Fixture, writes: Vec<Write>) -> Option<Stopped> {
    fixture.apply(writes).await.remove(0).stopped
}

#[tokio::test]
async fn an_eviction_names_its_pod_by_uid_and_version() {
    let fixture = Fixture::without_pods("evict").await;
    let old = fixture.pod("a", json!({})).await;
    let new = fixture.patch(&format!("{}/a", fixture.core("pods")), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let uid = meta(&new, "uid");
    assert_eq!(stopped(&fixture, evict(&fixture, "another", None)).await, Some(Stopped::Conflict));
    let outdated = evict(&fixture, &uid, Some(meta(&old, "resourceVersion")));
    assert_eq!(stopped(&fixture, outdated).await, Some(Stopped::Conflict));
    assert!(fixture.get(&format!("{}/a", fixture.core("pods"))).await.is_some());
    let fresh = evict(&fixture, &uid, Some(meta(&new, "resourceVersion")));
    assert_eq!(stopped(&fixture, fresh).await, None);
    fixture.gone(&format!("{}/a", fixture.core("pods"))).await;
    assert_eq!(stopped(&fixture, evict(&fixture, &uid, None)).await, Some(Stopped::Gone));
}

#[tokio::test]
async fn a_disruption_budget_blocks_an_eviction_and_two_of_them_do_too() {
    let fixture = Fixture::set("budget").await;
    let pod = fixture.pod("a", json!({"labels": {"app": "x"}})).await;
    let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", fixture.namespace);
    let budget = |name: &str| json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    fixture.post(&budgets, &budget("first")).await;
    let blocked = stopped(&fixture, evict(&fixture, &meta(&pod, "uid"), None)).await;
    assert!(
        matches!(&blocked, Some(Stopped::Blocked { message, .. }) if message.contains("disruption budget")),
        "{blocked:?}"
    );
    fixture.post(&budgets, &budget("second")).await;
    let blocked = stopped(&fixture, evict(&fixture, &meta(&pod, "uid"), None)).await;
    assert!(
        matches!(&blocked, Some(Stopped::Blocked { message, .. }) if message.contains("more than one")),
        "{blocked:?}"
    );
}

#[tokio::test]
async fn a_patch_names_its_object_by_uid() {
    let fixture = Fixture::without_pods("patch-uid").await;
    fixture.pod("a", json!({})).await;
    assert_eq!(stopped(&fixture, label(&fixture, "another")).await, Some(Stopped::Conflict));
}

#[tokio::test]
async fn the_reply_to_a_patch_is_seen_at_once() {
    let fixture = Fixture::set("patch").await;
    let pod = fixture.pod("a", json!({})).await;
    fixture.job("j").await;
    let version = meta(&pod, "resourceVersion");
    let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&fixture.at("a"));
    fixture.until("the pod", |cluster| shown(cluster).is_some_and(|pod| pod.resource_version == version)).await;
    fixture.cluster.stop(std::time::Duration::ZERO).await;
    assert_eq!(stopped(&fixture, label(&fixture, &meta(&pod, "uid"))).await, None);
    assert!(shown(&fixture.cluster).unwrap().labels.contains_key("marked"));
    fixture.delete(&format!("{}/a", fixture.core("pods"))).await;
    assert_eq!(stopped(&fixture, label(&fixture, &meta(&pod, "uid"))).await, Some(Stopped::Gone));
    assert!(shown(&fixture.cluster).is_none(), "the answer says that it is gone");
}

#[tokio::test]
async fn the_second_write_to_an_object_carries_the_version_that_the_first_reply_showed() {
    let fixture = Fixture::set("two-writes").await;
    let pod = fixture.pod("a", json!({})).await;
    fixture.job("j").await;
    let (uid, version) = (meta(&pod, "uid"), meta(&pod, "resourceVersion"));
    let shown = |cluster: &oarlock_kube::Cluster| cluster.store().get(&fixture.at("a"));
    fixture.until("the pod", |cluster| shown(cluster).is_some_and(|pod| pod.resource_version == version)).await;
    let body = json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {"marked": "true"}}});
    let mut entry = fixture.entry(Some(0), Write::patch(&fixture.at("a"), body));
    entry.writes.extend(evict(&fixture, &uid, Some(version)));
    let result = fixture.apply_entries(vec![entry]).await.remove(0);
    assert_eq!((result.done, result.stopped), (2, None));
    fixture.gone(&format!("{}/a", fixture.core("pods"))).await;
}

/// Returns a JSON Patch as the host uses it to release a terminating object.
fn unmark(fixture: &Fixture, seen: &str) -> Vec<Write> {
    let body = json!([
        {"op": "test", "path": "/metadata/annotations/hold", "value": seen},
        {"op": "remove", "path": "/metadata/annotations/hold"},
    ]);
    vec![Write::Patch { object: fixture.at("a"), subresource: None, body }]
}

#[tokio::test]
async fn a_json_patch_holds_though_the_object_moved_and_is_a_conflict_where_its_test_fails() {
    let fixture = Fixture::set("json-patch").await;
    fixture.pod("a", json!({"annotations": {"hold": "x"}})).await;
    fixture.until("the pod", |cluster| cluster.store().get(&fixture.at("a")).is_some()).await;
    fixture.patch(&format!("{}/a", fixture.core("pods")), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(stopped(&fixture, unmark(&fixture, "another")).await, Some(Stopped::Conflict));
    assert_eq!(stopped(&fixture, unmark(&fixture, "x")).await, None);
    assert_eq!(stopped(&fixture, unmark(&fixture, "x")).await, Some(Stopped::Conflict), "it is gone already");
    fixture.delete(&format!("{}/a", fixture.core("pods"))).await;
    assert_eq!(stopped(&fixture, unmark(&fixture, "x")).await, Some(Stopped::Gone));
}

#[tokio::test]
async fn a_record_goes_finalizer_first_and_is_seen_by_the_next_round() {
    let fixture = Fixture::set("record").await;
    let stored = fixture.job("j").await;
    let (uid, version) = (meta(&stored, "uid"), meta(&stored, "resourceVersion"));
    let owner = json!([{"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": "j", "uid": uid,
        "controller": true}]);
    let shard = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OperationRecord", "shard": 0, "firstIndex": 0,
        "job": {"name": "j", "uid": uid}, "targets": [r#"{"name": "a", "progress": "Processing"}"#],
        "metadata": {"name": "j-0", "ownerReferences": owner, "labels": {"oarlock.dev/job-uid": uid}}});
    let record = Record {
        finalizer: Some(json!({"metadata": {"uid": uid, "resourceVersion": version,
            "finalizers": ["finalizer.operating.kusionstack.io/protected"]}})),
        operation_records: vec![OperationRecordWrite {
            record_number: 0,
            name: "j-0".into(),
            record: serde_json::from_value(shard).unwrap(),
            patch: None,
            grows: false,
        }],
        best_effort_records: false,
        status: Some(json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"epoch": 1}})),
    };
    let recorded = fixture.cluster.record(&fixture.key("j"), record.clone(), Vec::new(), &Fence::open()).await.unwrap();
    let path = format!("/apis/oarlock.dev/v1alpha1/namespaces/{}/operationrecords/j-0", fixture.namespace);
    let shard = fixture.get(&path).await.unwrap();
    let now = &recorded.operation_records[&0];
    assert_eq!((&now.uid, &now.resource_version), (&meta(&shard, "uid"), &meta(&shard, "resourceVersion")));
    let observed = fixture.cluster.observe(&fixture.key("j"), &[], Detail::Records).await.unwrap();
    let job = observed.job.unwrap();
    assert_eq!(job.status.as_ref().unwrap().epoch, Some(1));
    assert_eq!(job.metadata.finalizers.as_ref().unwrap().len(), 1);
    assert_eq!(observed.records.unwrap()[0].record.targets[0].name, "a");

    let outdated = Record { finalizer: None, ..record };
    let error = fixture.cluster.record(&fixture.key("j"), outdated, Vec::new(), &Fence::open()).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "status", .. }), "{error}");

    // A leader that was superseded writes a record at the version that it knew.
    fixture.patch(&path, &json!({"epoch": 2})).await;
    let patch = json!({"metadata": {"uid": now.uid, "resourceVersion": now.resource_version}, "epoch": 1});
    let record = serde_json::from_value(shard).unwrap();
    let write = OperationRecordWrite { record_number: 0, name: "j-0".into(), record, patch: Some(patch), grows: false };
    let superseded = Record { operation_records: vec![write], ..Record::default() };
    let error = fixture.cluster.record(&fixture.key("j"), superseded, Vec::new(), &Fence::open()).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "records", .. }), "{error}");
    assert_eq!(fixture.get(&path).await.unwrap()["epoch"], 2);
}

#[tokio::test]
async fn a_job_is_deleted_at_the_version_that_was_judged_and_at_no_other() {
    let fixture = Fixture::set("delete").await;
    let old = fixture.job("j").await;
    // Without the watch, the cache does not show the edit, so that the API server has to refuse.
    fixture.cluster.stop(std::time::Duration::ZERO).await;
    let new =
        fixture.patch(&format!("{}/j", fixture.jobs()), &json!({"spec": {"TTLSecondsAfterFinished": 86_400}})).await;
    let delete = async |stored: &Value| {
        let resource_version = Some(meta(stored, "resourceVersion"));
        let (uid, propagation) = (meta(stored, "uid"), Some("Background".into()));
        let object = fixture.key("j").object();
        let write = Write::Delete { object, uid, resource_version, grace_seconds: None, propagation };
        fixture.apply_entries(vec![fixture.entry(None, write)]).await.remove(0).stopped
    };
    assert_eq!(delete(&old).await, Some(Stopped::Conflict));
    fixture.cluster.observe(&fixture.key("j"), &[], Detail::Status).await.unwrap();
    assert_eq!(delete(&old).await, Some(Stopped::NotSent));
    assert_eq!(delete(&new).await, None);
    assert!(!fixture.cluster.jobs().contains(&fixture.key("j")), "the reply says that it is gone");
}
