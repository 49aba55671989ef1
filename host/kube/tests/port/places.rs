//! The places on the wire: writes that hang in one namespace leave places to the others, and to the records of jobs.

use std::time::Duration;

use http::Method;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::plan::Create;
use oarlock_core::child::view::ChildKind;
use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::cluster::writes::{Entry, Record, Write};
use oarlock_core::job::key::{JobKey, JobRef};
use oarlock_kube::apply::Outbox;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::Fence;
use serde_json::json;
use tokio::time::Instant;

use crate::apply::label;
use crate::faults::Then;
use crate::scene::{JOBS, Results, Scene, job, meta};

/// A webhook that never answers: each request to the pod `a` of `default` uses up its time.
async fn hanging(scene: &Scene) -> (Outbox, Results) {
    let uid = meta(&scene.pod("a").await, "uid");
    scene.faults.plan(Method::PATCH, "/namespaces/default/pods/a", (10_000, Then::Hang));
    let entries = (0..200).map(|index| scene.entry(index, vec![label("a", &uid)])).collect();
    scene.outbox(entries, &Fence::open()).await
}

/// A job and a pod in the namespace `other`; yields one write to that pod.
async fn elsewhere(scene: &Scene) -> Entry {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    scene.post("/api/v1/namespaces", &namespace).await;
    let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "k"},
        "spec": {"action": "Replace", "targets": [{"name": "b"}]}});
    let stored = scene.post(&JOBS.replace("default", "other"), &job).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"},
        "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
    let pod = scene.post("/api/v1/namespaces/other/pods", &pod).await;
    let (key, uid) = (JobKey { namespace: "other".into(), name: "k".into() }, meta(&stored, "uid"));
    scene.until("the job", |cluster| cluster.job_uid(&key).as_deref() == Some(&uid)).await;
    let body = json!({"metadata": {"uid": meta(&pod, "uid"), "labels": {"marked": "true"}}});
    let writes = vec![Write::patch(&ObjectKey::pod("other", "b"), body)];
    Entry { job: JobRef { key, uid }, ..scene.entry(0, writes) }
}

#[tokio::test(start_paused = true)]
async fn writes_that_hang_in_one_namespace_leave_places_to_another() {
    let scene = Scene::with_job().await;
    let entry = elsewhere(&scene).await;
    let (outbox, mut results) = hanging(&scene).await;
    // At once, and after each of several waves of time-outs.
    for wait in [1, 15, 60] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let begun = Instant::now();
        outbox.apply(scene.recorded(vec![entry.clone()], &Fence::open()).await);
        let result = loop {
            let result = results.next(1).await.remove(0);
            if result.entry.job.key.namespace == "other" {
                break result;
            }
        };
        assert_eq!(result.stopped, None);
        assert!(begun.elapsed() < Duration::from_secs(1), "made after {:?}, {wait} s later", begun.elapsed());
        outbox.taken(&result);
    }
}

#[tokio::test(start_paused = true)]
async fn never_more_than_thirty_two_writes_of_all_namespaces_begin_at_once_and_some_places_are_left_to_the_next_one() {
    let scene = Scene::with_job().await;
    let entry = elsewhere(&scene).await;
    scene.faults.plan(Method::PATCH, "/namespaces/other/pods/b", (10_000, Then::Hang));
    let (outbox, _results) = hanging(&scene).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let more = (0..40).map(|index| Entry { index: Some(index), ..entry.clone() }).collect();
    outbox.apply(scene.recorded(more, &Fence::open()).await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(scene.faults.most_writes_in_flight(), 24 + 6);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        scene.faults.most_writes_in_flight(),
        24 + 24,
        "those that take long keep no place, but their own share"
    );
}

#[tokio::test(start_paused = true)]
async fn creates_of_flows_that_hang_in_one_namespace_leave_places_to_writes_in_another() {
    let scene = Scene::with_job().await;
    for crd in oarlock_api::FLOW_CRDS {
        scene.install(crd).await;
    }
    let flows = Flows::watch(scene.cluster.clone());
    flows.synced().await;
    let flow = json!({"metadata": {"name": "f", "namespace": "default", "uid": "u", "resourceVersion": "1"}});
    let parent = Parent::read(ParentKind::Flow, flow).unwrap();
    scene.faults.plan(Method::POST, "/namespaces/default/jobs", (10_000, Then::Hang));
    // As many as the rounds of 64 flows make at once.
    for number in 0..2_000 {
        let (flows, parent, name) = (flows.clone(), parent.clone(), format!("f-{number}"));
        let object =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}});
        let (unit, revision) = (name.clone(), String::new());
        let create = Create { unit, kind: ChildKind::Job, name, attempt: 0, revision, follows: false, object };
        tokio::spawn(async move { flows.create(&parent, &create, &Fence::open()).await });
    }
    let entry = elsewhere(&scene).await;
    let (outbox, mut results) = scene.outbox(Vec::new(), &Fence::open()).await;
    for wait in [1, 15, 60] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let begun = Instant::now();
        outbox.apply(scene.recorded(vec![entry.clone()], &Fence::open()).await);
        let result = results.next(1).await.remove(0);
        assert_eq!(result.stopped, None);
        assert!(begun.elapsed() < Duration::from_secs(1), "made after {:?}, {wait} s later", begun.elapsed());
        outbox.taken(&result);
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_job_is_written_while_all_writes_of_pods_hang() {
    let scene = Scene::with_job().await;
    let (_outbox, _results) = hanging(&scene).await;
    for wait in [1, 15, 60] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let begun = Instant::now();
        let stored = scene.get(&format!("{JOBS}/j")).await.unwrap();
        let metadata = json!({"uid": meta(&stored, "uid"), "resourceVersion": meta(&stored, "resourceVersion")});
        let status = json!({"metadata": metadata, "status": {"progress": "Processing"}});
        let record = Record { status: Some(status), ..Record::default() };
        scene.cluster.record(&job("j"), record, Vec::new(), &Fence::open()).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "written after {:?}, {wait} s later", begun.elapsed());
    }
}
