//! Making a round's record durable.

use http::Method;
use oarlock_api::{OperationRecord, OperationRecordSpec, RecordedJob, TargetDetail};
use oarlock_core::cluster::writes::{Record, RecordWrite, TargetWrites, Write};
use oarlock_kube::lease::Fence;
use oarlock_kube::observe::Detail;
use oarlock_kube::record::{Decided, RecordError};
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::scene::{JOBS, Scene, job, meta, pod};

fn preconditions(stored: &Value) -> Value {
    json!({"uid": meta(stored, "uid"), "resourceVersion": meta(stored, "resourceVersion")})
}

fn decided(record: Record) -> Decided {
    let patch = Write::Patch { object: pod("a"), subresource: None, body: json!({"metadata": {"labels": {"x": "y"}}}) };
    let writes = vec![TargetWrites { target: Some(0), writes: vec![patch] }];
    Decided { job: job("j"), record, writes, events: Vec::new() }
}

fn shard(stored: &Value, succeeded: i32) -> OperationRecord {
    let uid = meta(stored, "uid");
    let owner = json!([{"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": "j", "uid": uid,
        "controller": true}]);
    let metadata = json!({"name": "j-0", "namespace": "default", "ownerReferences": owner,
        "labels": {"oarlock.dev/job-uid": uid, "oarlock.dev/shard": "0"}});
    OperationRecord {
        api_version: "oarlock.dev/v1alpha1".into(),
        kind: "OperationRecord".into(),
        metadata: serde_json::from_value(metadata).unwrap(),
        record: OperationRecordSpec {
            job: RecordedJob { name: "j".into(), uid },
            succeeded_pod_count: Some(succeeded),
            targets: vec![TargetDetail { name: "a".into(), ..TargetDetail::default() }],
            ..OperationRecordSpec::default()
        },
    }
}

fn record_write(stored: &Value, succeeded: i32, patch: Option<Value>) -> Record {
    let write = RecordWrite { name: "j-0".into(), record: shard(stored, succeeded), patch };
    Record { records: vec![write], ..Record::default() }
}

async fn stored_count(scene: &Scene) -> Option<i32> {
    let observed = scene.cluster.observe(&job("j"), &[], Detail::Records).await.unwrap();
    observed.records.unwrap().first()?.record.succeeded_pod_count
}

#[tokio::test(start_paused = true)]
async fn the_status_is_written_at_the_version_that_the_finalizer_made() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    let mut finalizer = json!({"metadata": preconditions(&stored)});
    finalizer["metadata"]["finalizers"] = json!(["finalizer.operating.kusionstack.io/protected"]);
    let status = json!({"metadata": preconditions(&stored), "status": {"progress": "Processing"}});
    let record = Record { finalizer: Some(finalizer), records: Vec::new(), status: Some(status) };
    scene.cluster.record(decided(record), &Fence::open()).await.unwrap();
    let now = scene.get(&format!("{JOBS}/j")).await.unwrap();
    assert_eq!(now["metadata"]["finalizers"][0], "finalizer.operating.kusionstack.io/protected");
    assert_eq!(now["status"]["progress"], "Processing");
}

#[tokio::test(start_paused = true)]
async fn nothing_can_be_applied_of_a_round_whose_record_was_refused() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    let forbidden = status(403, "Forbidden", "not you");
    scene.faults.plan(Method::PATCH, "/j/status", (1, Then::Answer(403, forbidden)));
    let status = json!({"metadata": preconditions(&stored), "status": {"progress": "Processing"}});
    let record = Record { status: Some(status), ..Record::default() };
    let error = scene.cluster.record(decided(record), &Fence::open()).await.unwrap_err();
    assert!(matches!(&error, RecordError::Refused { message, .. } if message == "not you"), "{error}");
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/"), 0);
}

#[tokio::test(start_paused = true)]
async fn records_are_written_before_the_status_and_found_by_the_next_round() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    scene.until("the job", |cluster| !cluster.jobs().is_empty()).await;
    scene.cluster.record(decided(record_write(&stored, 1, None)), &Fence::open()).await.unwrap();
    assert_eq!(stored_count(&scene).await, Some(1));
    let patch = json!({"succeededPodCount": 2});
    scene.cluster.record(decided(record_write(&stored, 2, Some(patch))), &Fence::open()).await.unwrap();
    assert_eq!(stored_count(&scene).await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_this_job_that_exists_already_is_brought_up_to_date() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    scene.until("the job", |cluster| !cluster.jobs().is_empty()).await;
    scene.cluster.record(decided(record_write(&stored, 1, None)), &Fence::open()).await.unwrap();
    scene.cluster.record(decided(record_write(&stored, 5, None)), &Fence::open()).await.unwrap();
    assert_eq!(stored_count(&scene).await, Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_somebody_removed_is_made_anew() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    scene.until("the job", |cluster| !cluster.jobs().is_empty()).await;
    let patch = Some(json!({"succeededPodCount": 4}));
    scene.cluster.record(decided(record_write(&stored, 4, patch)), &Fence::open()).await.unwrap();
    assert_eq!(stored_count(&scene).await, Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_the_same_name_that_is_not_ours_is_left_alone() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    let foreign = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OperationRecord", "metadata": {"name": "j-0"},
        "job": {"name": "x", "uid": "y"}, "shard": 0, "firstIndex": 0});
    scene.post("/apis/oarlock.dev/v1alpha1/namespaces/default/operationrecords", &foreign).await;
    let error = scene.cluster.record(decided(record_write(&stored, 1, None)), &Fence::open()).await.unwrap_err();
    assert!(error.to_string().contains("belongs to somebody else"), "{error}");
}
