//! Tests of the write that makes a round's record durable.

use http::Method;
use oarlock_api::{OperationRecord, OperationRecordSpec, RecordedJob, TargetDetail};
use oarlock_core::requests::writes::{OperationRecordWrite, Record, Recorded, Write};
use oarlock_kube::Cluster;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::persist::record::RecordError;
use oarlock_kube::read::observe::Detail;
use serde_json::{Value, json};

use crate::faults::Faults;
use crate::faults::{Then, status};
use crate::fixture::{Fixture, JOBS, job, meta, pod, port};

fn preconditions(stored: &Value) -> Value {
    json!({"uid": meta(stored, "uid"), "resourceVersion": meta(stored, "resourceVersion")})
}

/// Makes the record of the job `j` durable.
async fn make_durable(cluster: &Cluster, record: Record) -> Result<Recorded, RecordError> {
    cluster.record(&job("j"), record, Vec::new(), &Fence::open()).await
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

fn shard_write(stored: &Value, succeeded: i32, patch: Option<Value>) -> Record {
    let write = OperationRecordWrite {
        record_number: 0,
        name: "j-0".into(),
        record: shard(stored, succeeded),
        patch,
        grows: false,
    };
    Record { operation_records: vec![write], ..Record::default() }
}

async fn stored_count(fixture: &Fixture) -> Option<i32> {
    let observed = fixture.cluster.observe(&job("j"), &[], Detail::Records).await.unwrap();
    observed.records.unwrap().first()?.record.succeeded_pod_count
}

#[tokio::test(start_paused = true)]
async fn a_record_with_more_in_flight_is_written_after_those_with_fewer() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    let shard = |number: u32, grows| {
        let mut write = shard_write(&stored, 1, None).operation_records.remove(0);
        let name = format!("j-{number}");
        (write.record_number, write.name, write.grows) = (number, name.clone(), grows);
        write.record.metadata.name = Some(name);
        write
    };
    let record = Record { operation_records: vec![shard(0, true), shard(1, false)], ..Record::default() };
    fixture.faults.plan(Method::POST, "/operationrecords", (1, Then::Answer(403, status(403, "Forbidden", "no"))));
    make_durable(&fixture.cluster, record.clone()).await.unwrap_err();
    assert_eq!(fixture.faults.count(Method::POST, "/operationrecords"), 1, "the other one is not made");
    make_durable(&fixture.cluster, record).await.unwrap();
    assert_eq!(fixture.faults.count(Method::POST, "/operationrecords"), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_can_be_applied_of_a_round_whose_record_was_refused() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    let forbidden = status(403, "Forbidden", "not you");
    fixture.faults.plan(Method::PATCH, "/j/status", (1, Then::Answer(403, forbidden)));
    let status = json!({"metadata": preconditions(&stored), "status": {"progress": "Processing"}});
    let record = Record { status: Some(status), ..Record::default() };
    let write = Write::patch(&pod("a"), json!({"metadata": {"labels": {"x": "y"}}}));
    let entries = vec![fixture.entry(0, vec![write])];
    let error = fixture.cluster.record(&job("j"), record, entries, &Fence::open()).await.unwrap_err();
    assert!(matches!(&error, RecordError::Refused { message, .. } if message == "not you"), "{error}");
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/"), 0);
}

#[tokio::test(start_paused = true)]
async fn records_are_written_before_the_status_and_found_by_the_next_round() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    make_durable(&fixture.cluster, shard_write(&stored, 1, None)).await.unwrap();
    assert_eq!(stored_count(&fixture).await, Some(1));
    let patch = json!({"succeededPodCount": 2});
    make_durable(&fixture.cluster, shard_write(&stored, 2, Some(patch))).await.unwrap();
    assert_eq!(stored_count(&fixture).await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_this_job_that_exists_already_is_brought_up_to_date() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    make_durable(&fixture.cluster, shard_write(&stored, 1, None)).await.unwrap();
    make_durable(&fixture.cluster, shard_write(&stored, 5, None)).await.unwrap();
    assert_eq!(stored_count(&fixture).await, Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_missing_is_made_anew() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    let patch = Some(json!({"succeededPodCount": 4}));
    make_durable(&fixture.cluster, shard_write(&stored, 4, patch)).await.unwrap();
    assert_eq!(stored_count(&fixture).await, Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_the_same_name_that_is_not_ours_is_left_alone() {
    let fixture = Fixture::watching().await;
    let stored = fixture.job("j").await;
    let foreign = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OperationRecord", "metadata": {"name": "j-0"},
        "job": {"name": "x", "uid": "y"}, "shard": 0, "firstIndex": 0});
    fixture.post("/apis/oarlock.dev/v1alpha1/namespaces/default/operationrecords", &foreign).await;
    let error = make_durable(&fixture.cluster, shard_write(&stored, 1, None)).await.unwrap_err();
    assert!(error.to_string().contains("another owner"), "{error}");
}

const SHARDS: &str = "/apis/oarlock.dev/v1alpha1/namespaces/default/operationrecords";

/// Returns a patch of a stored record as `core` builds it, with the UID and the version on which it was decided.
fn shard_patch(shard: &Value, succeeded: i32, epoch: i64) -> Value {
    json!({"metadata": preconditions(shard), "succeededPodCount": succeeded, "epoch": epoch})
}

#[tokio::test(start_paused = true)]
async fn a_patch_of_a_shard_that_another_one_replaced_or_changed_is_a_conflict() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    let recorded = make_durable(&fixture.cluster, shard_write(&stored, 1, None)).await.unwrap();
    let shard = fixture.get(&format!("{SHARDS}/j-0")).await.unwrap();
    let now = &recorded.operation_records[&0];
    assert_eq!((&now.uid, &now.resource_version), (&meta(&shard, "uid"), &meta(&shard, "resourceVersion")));

    let mut foreign = shard_patch(&shard, 2, 1);
    foreign["metadata"]["uid"] = json!("another");
    let error = make_durable(&fixture.cluster, shard_write(&stored, 2, Some(foreign))).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "records", .. }), "{error}");
    fixture.patch(&format!("{SHARDS}/j-0"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let outdated = shard_patch(&shard, 2, 1);
    let error = make_durable(&fixture.cluster, shard_write(&stored, 2, Some(outdated))).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "records", .. }), "{error}");
    assert_eq!(stored_count(&fixture).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn the_shard_write_of_a_superseded_leader_is_a_conflict_and_changes_nothing() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    make_durable(&fixture.cluster, shard_write(&stored, 1, None)).await.unwrap();
    let shard = fixture.get(&format!("{SHARDS}/j-0")).await.unwrap();
    let (successor, _events) = port(&fixture.sim, &Faults::default(), "host-1");
    let newer = shard_write(&stored, 7, Some(shard_patch(&shard, 7, 2)));
    let recorded = make_durable(&successor, newer).await.unwrap();
    assert_eq!(recorded.operation_records[&0].epoch, 2);

    let patch = shard_write(&stored, 3, Some(shard_patch(&shard, 3, 1)));
    let error = make_durable(&fixture.cluster, patch).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "records", .. }), "{error}");
    // A leader that does not know the record yet must not take it over either.
    let error = make_durable(&fixture.cluster, shard_write(&stored, 4, None)).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { step: "records", .. }), "{error}");
    assert_eq!(stored_count(&fixture).await, Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_refused_shard_fails_the_record_except_where_the_job_goes_with_its_namespace() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    let forbidden = || Then::Answer(403, status(403, "Forbidden", "the namespace is being terminated"));
    let with_status = |best_effort_records| {
        let status = json!({"metadata": {"uid": meta(&stored, "uid")}, "status": {"epoch": 1}});
        Record { status: Some(status), best_effort_records, ..shard_write(&stored, 1, None) }
    };
    fixture.faults.plan(Method::POST, "/operationrecords", (2, forbidden()));
    let error = make_durable(&fixture.cluster, with_status(false)).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert_eq!(fixture.faults.count(Method::PATCH, "/j/status"), 0, "the status never says what no shard says");

    let recorded = make_durable(&fixture.cluster, with_status(true)).await.unwrap();
    assert!(recorded.operation_records.is_empty());
    assert_eq!(fixture.get(&format!("{JOBS}/j")).await.unwrap()["status"]["epoch"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_shard_whose_outcome_is_unknown_fails_the_record_though_shards_are_best_effort() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    fixture.faults.plan(Method::POST, "/operationrecords", (1, Then::DropConnection));
    let record = Record { best_effort_records: true, ..shard_write(&stored, 1, None) };
    let error = make_durable(&fixture.cluster, record).await.unwrap_err();
    assert!(matches!(error, RecordError::Unknown { step: "records", .. }), "{error}");
}
