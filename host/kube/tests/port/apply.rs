//! Carrying out what was recorded.

use std::time::Duration;

use http::Method;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Record, Stopped, TargetWrites, Write};
use oarlock_kube::lease::{LeaseConfig, LeaderElector, Fence};
use oarlock_kube::record::Decided;
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::scene::{JOBS, PODS, Scene, job, meta, owned_by, pod, workload};

fn label(name: &str, uid: &str) -> Write {
    let body = json!({"metadata": {"uid": uid, "labels": {"marked": "true"}}});
    Write::Patch { object: pod(name), subresource: None, body }
}

fn evict(name: &str, uid: &str, version: Option<String>) -> Write {
    Write::Evict { pod: pod(name), uid: uid.into(), resource_version: version, grace_seconds: None }
}

fn stopped(applied: &[oarlock_core::cluster::writes::Applied]) -> Option<Stopped> {
    applied.first().unwrap().stopped.clone()
}

#[tokio::test(start_paused = true)]
async fn an_eviction_of_another_uid_is_a_conflict_and_evicts_nobody() {
    let scene = Scene::watching().await;
    scene.pod("a").await;
    let applied = scene.apply(vec![evict("a", "another", None)], &Fence::open()).await;
    assert_eq!(stopped(&applied), Some(Stopped::Conflict));
    let pod = scene.get(&format!("{PODS}/a")).await.unwrap();
    assert!(pod["metadata"].get("deletionTimestamp").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_json_patch_holds_though_the_object_moved_and_is_a_conflict_where_its_test_fails() {
    let scene = Scene::watching().await;
    scene.pod("a").await;
    let unmark = |seen: &str| {
        let path = "/metadata/labels/held";
        let body = json!([{"op": "test", "path": path, "value": seen}, {"op": "remove", "path": path}]);
        vec![Write::Patch { object: pod("a"), subresource: None, body }]
    };
    scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"held": "x"}}})).await;
    assert_eq!(stopped(&scene.apply(unmark("another"), &Fence::open()).await), Some(Stopped::Conflict));
    assert_eq!(stopped(&scene.apply(unmark("x"), &Fence::open()).await), None);
    assert_eq!(stopped(&scene.apply(unmark("x"), &Fence::open()).await), Some(Stopped::Conflict));
}

#[tokio::test(start_paused = true)]
async fn an_eviction_on_an_old_view_is_a_conflict_and_one_on_a_fresh_view_evicts() {
    let scene = Scene::watching().await;
    let old = scene.pod("a").await;
    let new = scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let at = |pod: &Value| vec![evict("a", &meta(pod, "uid"), Some(meta(pod, "resourceVersion")))];
    assert_eq!(stopped(&scene.apply(at(&old), &Fence::open()).await), Some(Stopped::Conflict));
    assert_eq!(stopped(&scene.apply(at(&new), &Fence::open()).await), None);
    let gone = |cluster: &oarlock_kube::Cluster| cluster.store().get(&pod("a")).is_none_or(|pod| pod.terminating());
    scene.until("the pod terminating or gone", gone).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_met_a_server_error_is_sent_once_and_its_outcome_is_unknown() {
    let scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    let uid = meta(&stored, "uid");
    let down = || Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    scene.faults.plan(Method::POST, "/eviction", (5, down()));
    scene.faults.plan(Method::PATCH, "/pods/a", (5, down()));
    let applied = scene.apply(vec![evict("a", &uid, None), label("a", &uid)], &Fence::open()).await;
    for applied in &applied {
        assert_eq!(applied.stopped, Some(Stopped::Unknown { message: "down".into() }));
    }
    assert_eq!(scene.faults.count(Method::POST, "/eviction"), 1);
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_a_reply_is_given_up_in_time_and_its_outcome_is_unknown() {
    let scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    scene.faults.plan(Method::PATCH, "/pods/a", (1, Then::Hang));
    let begun = tokio::time::Instant::now();
    let applied = scene.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert!(matches!(stopped(&applied), Some(Stopped::Unknown { .. })));
    assert_eq!(begun.elapsed().as_secs(), oarlock_kube::cluster::REQUEST_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_patch_of_another_uid_is_a_conflict_and_of_nobody_gone() {
    let scene = Scene::watching().await;
    scene.pod("a").await;
    assert_eq!(stopped(&scene.apply(vec![label("a", "another")], &Fence::open()).await), Some(Stopped::Conflict));
    assert_eq!(stopped(&scene.apply(vec![label("b", "any")], &Fence::open()).await), Some(Stopped::Gone));
}

#[tokio::test(start_paused = true)]
async fn the_reply_to_a_write_is_seen_before_the_watch_shows_it() {
    let mut scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    scene.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    scene.cluster.stop(Duration::ZERO).await;
    scene.heard();
    scene.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(scene.shown("a").unwrap().labels.get("marked"), Some("true"));
    assert_eq!(scene.heard().len(), 1, "other jobs are told");
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_stops_its_target_and_no_other() {
    let scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    let uid = meta(&stored, "uid");
    let failing = TargetWrites { target: Some(0), writes: vec![label("a", "another"), label("a", &uid)] };
    let good = TargetWrites { target: Some(1), writes: vec![label("a", &uid), label("a", &uid)] };
    let decided = Decided { job: job("j"), record: Record::default(), writes: vec![failing, good], events: Vec::new() };
    let fence = Fence::open();
    let recorded = scene.cluster.record(decided, &fence).await.unwrap();
    let applied = scene.cluster.apply(recorded, &fence).await;
    assert_eq!((applied[0].done, applied[0].stopped.clone()), (0, Some(Stopped::Conflict)));
    assert_eq!((applied[1].done, applied[1].stopped.clone()), (2, None));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_writes_go_out_and_never_more_than_thirty_two_at_once() {
    let scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    let writes = (0..1_000).map(|_| label("a", &meta(&stored, "uid"))).collect();
    let applied = scene.apply(writes, &Fence::open()).await;
    assert!(applied.iter().all(|applied| applied.stopped.is_none()));
    assert_eq!(applied.len(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_once_the_term_is_over() {
    let scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    let candidacy = LeaseConfig {
        namespace: "default".into(),
        name: "oarlock".into(),
        identity: "host-0".into(),
        duration: Duration::from_secs(15),
    };
    let election = LeaderElector::stand(&scene.cluster, candidacy);
    election.leadership().wait_for(|now| now.leading).await.unwrap();
    let fence = election.fence();
    let uid = meta(&stored, "uid");
    assert_eq!(stopped(&scene.apply(vec![label("a", &uid)], &fence).await), None);
    election.resign().await;
    assert_eq!(stopped(&scene.apply(vec![label("a", &uid)], &fence).await), Some(Stopped::Fenced));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_ours_that_exists_already_counts_as_created() {
    let scene = Scene::watching().await;
    let (us, them) = (scene.pod("us").await, scene.pod("them").await);
    let create = |owner: &Value| {
        let kind = Kind::new("apps/v1", "ReplicaSet");
        let object = ObjectKey { kind, namespace: Some("default".into()), name: "r".into() };
        vec![Write::Create {
            object,
            body: workload("ReplicaSet", "r", owned_by(owner)),
            owner_uid: meta(owner, "uid"),
        }]
    };
    assert_eq!(stopped(&scene.apply(create(&us), &Fence::open()).await), None);
    assert_eq!(stopped(&scene.apply(create(&us), &Fence::open()).await), None);
    let refused = stopped(&scene.apply(create(&them), &Fence::open()).await);
    assert!(matches!(&refused, Some(Stopped::Refused { message }) if message.contains("somebody else")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_edited_meanwhile_is_not_deleted() {
    let scene = Scene::watching().await;
    let old = scene.job("j").await;
    let new = scene.patch(&format!("{JOBS}/j"), &json!({"spec": {"TTLSecondsAfterFinished": 86_400}})).await;
    let delete = |stored: &Value| {
        let object = ObjectKey {
            kind: Kind::new("apps.kusionstack.io/v1alpha1", "OperationJob"),
            namespace: Some("default".into()),
            name: "j".into(),
        };
        let resource_version = Some(meta(stored, "resourceVersion"));
        let propagation = Some("Background".into());
        vec![Write::Delete { object, uid: meta(stored, "uid"), resource_version, grace_seconds: None, propagation }]
    };
    assert_eq!(stopped(&scene.apply(delete(&old), &Fence::open()).await), Some(Stopped::Conflict));
    assert_eq!(stopped(&scene.apply(delete(&new), &Fence::open()).await), None);
    assert!(scene.cluster.jobs().is_empty(), "the reply says that it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_rehearsal_is_checked_by_the_server_and_changes_nothing() {
    let scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    let uid = meta(&stored, "uid");
    let writes = [
        TargetWrites { target: Some(0), writes: vec![label("a", &uid), evict("a", &uid, None)] },
        TargetWrites { target: Some(1), writes: vec![label("b", "any")] },
    ];
    let applied = scene.cluster.rehearse(&writes, &Fence::open()).await;
    assert_eq!((applied[0].stopped.clone(), applied[1].stopped.clone()), (None, Some(Stopped::Gone)));
    assert_eq!(scene.get(&format!("{PODS}/a")).await.unwrap(), stored);
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_given_fewer_writes() {
    let scene = Scene::watching().await;
    let stored = scene.pod("a").await;
    let mut busy = status(429, "TooManyRequests", "slow down");
    busy["details"] = json!({"retryAfterSeconds": 1});
    scene.faults.plan(Method::PATCH, "/pods/a", (1, Then::Answer(429, busy)));
    let applied = scene.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(stopped(&applied), Some(Stopped::Throttled { retry_after: Some(1) }));
    assert_eq!(scene.cluster.writes_allowed(), 16);
}
