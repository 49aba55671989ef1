//! The slots for concurrent writes: writes that hang in one namespace leave slots to other namespaces and to the records of jobs.

use std::time::Duration;

use http::Method;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::Create;
use oarlock_core::attempts::view::ChildKind;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::requests::writes::{Record, Write, WriteBatch};
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::send::apply::WriteSender;
use serde_json::json;
use tokio::time::Instant;

use crate::apply::label;
use crate::faults::Then;
use crate::fixture::{Fixture, JOBS, Results, job, meta};

/// Sends 200 writes to the pod `a` of `default`, whose webhook never answers. Each request lasts until its timeout.
async fn hanging(fixture: &Fixture) -> (WriteSender, Results) {
    let uid = meta(&fixture.pod("a").await, "uid");
    fixture.faults.plan(Method::PATCH, "/namespaces/default/pods/a", (10_000, Then::Hang));
    let entries = (0..200).map(|index| fixture.entry(index, vec![label("a", &uid)])).collect();
    fixture.write_sender(entries, &Fence::open()).await
}

/// Creates a job and a pod in the namespace `other`. Returns one write to that pod.
async fn elsewhere(fixture: &Fixture) -> WriteBatch {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    fixture.post("/api/v1/namespaces", &namespace).await;
    let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "k"},
        "spec": {"action": "Replace", "targets": [{"name": "b"}]}});
    let stored = fixture.post(&JOBS.replace("default", "other"), &job).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"},
        "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
    let pod = fixture.post("/api/v1/namespaces/other/pods", &pod).await;
    let (key, uid) = (JobKey { namespace: "other".into(), name: "k".into() }, meta(&stored, "uid"));
    fixture.until("the job", |cluster| cluster.job_uid(&key).as_deref() == Some(&uid)).await;
    let body = json!({"metadata": {"uid": meta(&pod, "uid"), "labels": {"marked": "true"}}});
    let writes = vec![Write::patch(&ObjectKey::pod("other", "b"), body)];
    WriteBatch { job: JobRef { key, uid }, ..fixture.entry(0, writes) }
}

#[tokio::test(start_paused = true)]
async fn writes_that_hang_in_one_namespace_leave_places_to_another() {
    let fixture = Fixture::with_job().await;
    let entry = elsewhere(&fixture).await;
    let (write_sender, mut results) = hanging(&fixture).await;
    // The write goes through at once, and after each of several rounds of timeouts.
    for wait in [1, 15, 60] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let begun = Instant::now();
        write_sender.apply(fixture.recorded(vec![entry.clone()], &Fence::open()).await);
        let result = loop {
            let result = results.next(1).await.remove(0);
            if result.entry.job.key.namespace == "other" {
                break result;
            }
        };
        assert_eq!(result.stopped, None);
        assert!(begun.elapsed() < Duration::from_secs(1), "made after {:?}, {wait} s later", begun.elapsed());
        write_sender.acknowledge(&result);
    }
}

#[tokio::test(start_paused = true)]
async fn never_more_than_thirty_two_writes_of_all_namespaces_begin_at_once_and_some_places_are_left_to_the_next_one() {
    let fixture = Fixture::with_job().await;
    let entry = elsewhere(&fixture).await;
    fixture.faults.plan(Method::PATCH, "/namespaces/other/pods/b", (10_000, Then::Hang));
    let (write_sender, _results) = hanging(&fixture).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let more = (0..40).map(|index| WriteBatch { index: Some(index), ..entry.clone() }).collect();
    write_sender.apply(fixture.recorded(more, &Fence::open()).await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fixture.faults.most_writes_in_flight(), 24 + 6);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        fixture.faults.most_writes_in_flight(),
        24 + 24,
        "those that take long keep no place, but their own share"
    );
}

#[tokio::test(start_paused = true)]
async fn creates_of_flows_that_hang_in_one_namespace_leave_places_to_writes_in_another() {
    let fixture = Fixture::with_job().await;
    for crd in oarlock_api::FLOW_CRDS {
        fixture.install(crd).await;
    }
    let flows = Flows::watch(fixture.cluster.clone());
    flows.synced().await;
    let flow = json!({"metadata": {"name": "f", "namespace": "default", "uid": "u", "resourceVersion": "1"}});
    let parent = Parent::read(ParentKind::Flow, flow).unwrap();
    fixture.faults.plan(Method::POST, "/namespaces/default/jobs", (10_000, Then::Hang));
    // The rounds of 64 flows make as many creates at once.
    for number in 0..2_000 {
        let (flows, parent, name) = (flows.clone(), parent.clone(), format!("f-{number}"));
        let object =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}});
        let (unit, revision) = (name.clone(), String::new());
        let create = Create { unit, kind: ChildKind::Job, name, attempt: 0, revision, follows: false, object };
        tokio::spawn(async move { flows.create(&parent, &create, &Fence::open()).await });
    }
    let entry = elsewhere(&fixture).await;
    let (write_sender, mut results) = fixture.write_sender(Vec::new(), &Fence::open()).await;
    for wait in [1, 15, 60] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let begun = Instant::now();
        write_sender.apply(fixture.recorded(vec![entry.clone()], &Fence::open()).await);
        let result = results.next(1).await.remove(0);
        assert_eq!(result.stopped, None);
        assert!(begun.elapsed() < Duration::from_secs(1), "made after {:?}, {wait} s later", begun.elapsed());
        write_sender.acknowledge(&result);
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_job_is_written_while_all_writes_of_pods_hang() {
    let fixture = Fixture::with_job().await;
    let (_outbox, _results) = hanging(&fixture).await;
    for wait in [1, 15, 60] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let begun = Instant::now();
        let stored = fixture.get(&format!("{JOBS}/j")).await.unwrap();
        let metadata = json!({"uid": meta(&stored, "uid"), "resourceVersion": meta(&stored, "resourceVersion")});
        let status = json!({"metadata": metadata, "status": {"progress": "Processing"}});
        let record = Record { status: Some(status), ..Record::default() };
        fixture.cluster.record(&job("j"), record, Vec::new(), &Fence::open()).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "written after {:?}, {wait} s later", begun.elapsed());
    }
}
