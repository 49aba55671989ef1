//! What a round begins with.

use http::Method;
use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::writes::Record;
use oarlock_core::plugin::visit::LiveRead;
use oarlock_kube::lease::Fence;
use oarlock_kube::observe::Detail;
use oarlock_kube::record::{Decided, RecordError};
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::scene::{JOBS, PODS, Scene, job, meta, owned_by, pod};

/// A record that raises the epoch of `stored`.
fn epoch(stored: &Value, epoch: i64) -> Decided {
    let status = json!({"metadata": {"uid": meta(stored, "uid"), "resourceVersion": meta(stored, "resourceVersion")},
        "status": {"epoch": epoch}});
    let record = Record { status: Some(status), ..Record::default() };
    Decided { job: job(&meta(stored, "name")), record, writes: Vec::new(), events: Vec::new() }
}

async fn seen_epoch(scene: &Scene, name: &str) -> Option<i64> {
    let observed = scene.cluster.observe(&job(name), &[], Detail::Status).await.unwrap();
    observed.job.and_then(|job| job.status.as_ref()?.epoch)
}

#[tokio::test(start_paused = true)]
async fn a_round_sees_its_own_status_write_before_any_watch_does() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    scene.until("the job", |cluster| !cluster.jobs().is_empty()).await;
    scene.faults.plan(Method::GET, "operationjobs", (1_000, Then::Hang));
    scene.cluster.record(epoch(&stored, 1), &Fence::open()).await.unwrap();
    assert_eq!(seen_epoch(&scene, "j").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_job_is_read_anew_after_a_conflict() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    scene.until("the job", |cluster| !cluster.jobs().is_empty()).await;
    scene.patch(&format!("{JOBS}/j/status"), &json!({"status": {"epoch": 7}})).await;
    let error = scene.cluster.record(epoch(&stored, 1), &Fence::open()).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { .. }), "{error}");
    assert_eq!(seen_epoch(&scene, "j").await, Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_status_write_whose_reply_was_lost_is_seen_by_the_next_round() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    scene.until("the job", |cluster| !cluster.jobs().is_empty()).await;
    scene.faults.plan(Method::PATCH, "/j/status", (1, Then::LoseReply));
    let error = scene.cluster.record(epoch(&stored, 3), &Fence::open()).await.unwrap_err();
    assert!(matches!(error, RecordError::Unknown { .. }), "{error}");
    assert_eq!(seen_epoch(&scene, "j").await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_round_is_not_begun_while_nobody_knows_what_became_of_the_last_write() {
    let scene = Scene::watching().await;
    let stored = scene.job("j").await;
    scene.until("the job", |cluster| !cluster.jobs().is_empty()).await;
    let down = || Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    scene.faults.plan(Method::PATCH, "/j/status", (1, down()));
    scene.faults.plan(Method::GET, "/operationjobs/j", (1, down()));
    scene.cluster.record(epoch(&stored, 3), &Fence::open()).await.unwrap_err();
    let error = scene.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap_err();
    assert!(error.to_string().contains("down"), "{error}");
    assert_eq!(seen_epoch(&scene, "j").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_look_shows_what_the_watch_has_not_shown_yet() {
    let scene = Scene::watching().await;
    scene.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    scene.pod("late").await;
    let (late, absent) = (LiveRead::Object(pod("late")), LiveRead::Object(pod("absent")));
    let observed = scene.cluster.observe(&job("j"), &[late.clone(), absent.clone()], Detail::Status).await.unwrap();
    assert!(observed.looked.has(&late) && observed.looked.has(&absent));
    assert!(observed.looked.objects[&pod("late")].is_some());
    assert_eq!(observed.looked.objects[&pod("absent")], None);
    assert!(scene.shown("late").is_some());
}

#[tokio::test(start_paused = true)]
async fn what_a_look_finds_gone_is_gone_though_the_watch_still_shows_it() {
    let mut scene = Scene::watching().await;
    scene.pod("a").await;
    scene.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    scene.heard();
    let observed = scene.cluster.observe(&job("j"), &[LiveRead::Object(pod("a"))], Detail::Status).await.unwrap();
    assert_eq!(observed.looked.objects[&pod("a")], None);
    assert!(scene.shown("a").is_none());
    assert_eq!(scene.heard().len(), 1, "other jobs are told");
}

#[tokio::test(start_paused = true)]
async fn a_list_answers_many_looks_and_drops_what_is_gone() {
    let scene = Scene::watching().await;
    for n in 0..12 {
        scene.pod(&format!("p{n}")).await;
    }
    scene.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 12).await;
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.delete(&format!("{PODS}/p3"), &json!({"gracePeriodSeconds": 0})).await;
    let before = scene.cluster.requests().count("pods", "get");
    let looks: Vec<LiveRead> = (0..30).map(|n| LiveRead::Object(pod(&format!("p{n}")))).collect();
    let observed = scene.cluster.observe(&job("j"), &looks, Detail::Status).await.unwrap();
    assert_eq!(scene.cluster.requests().count("pods", "get"), before);
    assert_eq!(observed.looked.answered.len(), 30);
    assert_eq!(observed.looked.objects.values().filter(|object| object.is_some()).count(), 11);
    assert!(scene.shown("p3").is_none() && scene.shown("p4").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_label_that_was_taken_away_is_noticed_by_a_look() {
    let scene = Scene::watching().await;
    scene.pod_with("a", json!({"labels": {"app": "x"}})).await;
    scene.pod_with("b", json!({"labels": {"app": "x"}})).await;
    scene.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 2).await;
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"app": "y"}}})).await;
    let look =
        LiveRead::Labelled { kind: Kind::pod(), namespace: "default".into(), label: "app".into(), value: "x".into() };
    let observed = scene.cluster.observe(&job("j"), std::slice::from_ref(&look), Detail::Status).await.unwrap();
    assert!(observed.looked.has(&look));
    assert_eq!(scene.cluster.store().labelled(&Kind::pod(), "default", "app", "x").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_deployment_of_a_replica_set_is_learned_by_a_look() {
    let scene = Scene::watching().await;
    let deployment = scene.workload("Deployment", "w", json!([])).await;
    let set = scene.workload("ReplicaSet", "w-1", owned_by(&deployment)).await;
    let bare = scene.workload("ReplicaSet", "bare", json!([])).await;
    scene.pod_with("a", json!({"ownerReferences": owned_by(&set)})).await;
    scene.pod_with("b", json!({"ownerReferences": owned_by(&bare)})).await;
    scene.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 2).await;
    assert!(scene.cluster.store().unresolved(&Kind::pod(), "default"));
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.delete("/apis/apps/v1/namespaces/default/replicasets/bare", &json!({})).await;
    let look = LiveRead::Controllers { namespace: "default".into() };
    let observed = scene.cluster.observe(&job("j"), &[look], Detail::Status).await.unwrap();
    assert!(observed.looked.failed.is_empty(), "{:?}", observed.looked.failed);
    let root = |name: &str| scene.cluster.store().root(&scene.shown(name).unwrap()).unwrap().unwrap();
    assert_eq!((root("a").kind.kind.as_str(), root("a").uid), ("Deployment", meta(&deployment, "uid")));
    assert_eq!(root("b").uid, meta(&bare, "uid"), "a set that is gone is not looked for again");
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_data_and_the_round_goes_on() {
    let scene = Scene::watching().await;
    let forbidden = status(403, "Forbidden", "pods \"a\" is forbidden");
    scene.faults.plan(Method::GET, "/pods/a", (1, Then::Answer(403, forbidden)));
    let unserved = LiveRead::All { kind: Kind::new("example.dev/v1", "Nothing"), namespace: "default".into() };
    let looks = [LiveRead::Object(pod("a")), unserved.clone()];
    let observed = scene.cluster.observe(&job("j"), &looks, Detail::Status).await.unwrap();
    assert!(observed.looked.failed[&looks[0]].contains("is forbidden"));
    assert!(observed.looked.failed[&unserved].contains("does not serve"));
}

#[tokio::test(start_paused = true)]
async fn the_time_is_the_api_servers_where_the_hosts_clock_is_wrong() {
    let scene = Scene::bare().await;
    let wrong = scene.sim.now() + std::time::Duration::from_secs(600);
    let client = scene.faults.client(scene.sim.service());
    let setup = oarlock_kube::Setup { client, clock: std::sync::Arc::new(move || wrong), identity: "h".into() };
    let (cluster, _news) = oarlock_kube::Cluster::open(setup);
    let observed = cluster.observe(&job("j"), &[LiveRead::Object(pod("a"))], Detail::Status).await.unwrap();
    assert!(observed.now.duration_since(scene.sim.now()).abs().as_secs() <= 1);
}
