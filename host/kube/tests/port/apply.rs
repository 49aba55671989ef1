//! Writes and their results.

use std::time::Duration;

use http::Method;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Entry, EntryResult, Stopped, Write};
use oarlock_kube::lease::Fence;
use oarlock_kube::observe::Detail;
use oarlock_kube::watch::watches::{Author, WatchEvent};
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::lease::{leads, stand};
use crate::scene::{JOBS, PODS, Scene, job, meta, owned_by, pod, pods, workload};

pub(crate) fn label(name: &str, uid: &str) -> Write {
    Write::patch(&pod(name), json!({"metadata": {"uid": uid, "labels": {"marked": "true"}}}))
}

pub(crate) fn evict(name: &str, uid: &str, version: Option<String>) -> Write {
    Write::Evict { pod: pod(name), uid: uid.into(), resource_version: version, grace_seconds: None }
}

pub(crate) fn stopped(results: &[EntryResult]) -> Option<Stopped> {
    results.first().unwrap().stopped.clone()
}

#[tokio::test(start_paused = true)]
async fn an_eviction_of_another_uid_is_a_conflict_and_evicts_no_pod() {
    let scene = Scene::without_pods().await;
    scene.pod("a").await;
    let results = scene.apply(vec![evict("a", "another", None)], &Fence::open()).await;
    assert_eq!(stopped(&results), Some(Stopped::Conflict));
    let pod = scene.get(&format!("{PODS}/a")).await.unwrap();
    assert!(pod["metadata"].get("deletionTimestamp").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_json_patch_holds_though_the_object_moved_and_is_a_conflict_where_its_test_fails() {
    let scene = Scene::with_job().await;
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
    let scene = Scene::without_pods().await;
    let old = scene.pod("a").await;
    let new = scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let at = |pod: &Value| vec![evict("a", &meta(pod, "uid"), Some(meta(pod, "resourceVersion")))];
    assert_eq!(stopped(&scene.apply(at(&old), &Fence::open()).await), Some(Stopped::Conflict));
    assert_eq!(scene.faults.count(Method::POST, "/eviction"), 1, "the API server was asked");
    assert_eq!(stopped(&scene.apply(at(&new), &Fence::open()).await), None);
    scene.declare(pods(&[])).await;
    let gone = |cluster: &oarlock_kube::Cluster| cluster.store().get(&pod("a")).is_none_or(|pod| pod.terminating());
    scene.until("the pod terminating or gone", gone).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_met_a_server_error_is_sent_once_and_its_outcome_is_unknown() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    let uid = meta(&stored, "uid");
    let down = || Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    scene.faults.plan(Method::POST, "/eviction", (5, down()));
    scene.faults.plan(Method::PATCH, "/pods/a", (5, down()));
    let results = scene.apply(vec![evict("a", &uid, None), label("a", &uid)], &Fence::open()).await;
    for results in &results {
        assert_eq!(results.stopped, Some(Stopped::Unknown { message: "down".into() }));
    }
    assert_eq!(scene.faults.count(Method::POST, "/eviction"), 1);
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_a_reply_is_given_up_in_time_and_its_outcome_is_unknown() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    scene.faults.plan(Method::PATCH, "/pods/a", (1, Then::Hang));
    let begun = tokio::time::Instant::now();
    let results = scene.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert!(matches!(stopped(&results), Some(Stopped::Unknown { .. })));
    assert_eq!(begun.elapsed().as_secs(), oarlock_kube::cluster::REQUEST_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_patch_of_another_uid_is_a_conflict_and_of_an_absent_pod_gone() {
    let scene = Scene::without_pods().await;
    scene.pod("a").await;
    assert_eq!(stopped(&scene.apply(vec![label("a", "another")], &Fence::open()).await), Some(Stopped::Conflict));
    assert_eq!(stopped(&scene.apply(vec![label("b", "any")], &Fence::open()).await), Some(Stopped::Gone));
}

#[tokio::test(start_paused = true)]
async fn the_reply_to_a_write_is_seen_before_the_watch_shows_it() {
    let mut scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    scene.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    scene.cluster.stop(Duration::ZERO).await;
    scene.heard();
    scene.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(scene.shown("a").unwrap().labels.get("marked"), Some("true"));
    let heard = scene.heard();
    let author = Author { job_uid: scene.cluster.job_uid(&job("j")).unwrap(), index: 0 };
    assert!(matches!(heard.as_slice(), [WatchEvent::Object { by: Some(by), .. }] if *by == author), "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_stops_its_target_and_no_other() {
    let scene = Scene::without_pods().await;
    let stored = scene.pod("a").await;
    let uid = meta(&stored, "uid");
    let failing = scene.entry(0, vec![label("a", "another"), label("a", &uid)]);
    let good = scene.entry(1, vec![label("a", &uid), label("a", &uid)]);
    let results = scene.apply_entries(vec![failing, good], &Fence::open()).await;
    assert_eq!((results[0].done, results[0].stopped.clone()), (0, Some(Stopped::Conflict)));
    assert_eq!((results[1].done, results[1].stopped.clone()), (2, None));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_writes_of_a_namespace_go_out_and_never_more_than_twenty_four_at_once() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    scene.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Delay(Duration::from_millis(50))));
    let writes = (0..1_000).map(|_| label("a", &meta(&stored, "uid"))).collect();
    let results = scene.apply(writes, &Fence::open()).await;
    assert!(results.iter().all(|result| result.stopped.is_none()));
    assert_eq!(results.len(), 1_000);
    assert_eq!(scene.faults.most_writes_in_flight(), 24);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_once_the_term_is_over() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    let elector = stand(&scene.cluster, "host-0");
    leads(&elector).await;
    let fence = elector.fence();
    let uid = meta(&stored, "uid");
    assert_eq!(stopped(&scene.apply(vec![label("a", &uid)], &fence).await), None);
    elector.resign().await.unwrap();
    assert_eq!(stopped(&scene.apply(vec![label("a", &uid)], &fence).await), Some(Stopped::LostLease));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_ours_that_exists_already_counts_as_created() {
    let scene = Scene::with_job().await;
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
    assert!(matches!(&refused, Some(Stopped::Refused { message }) if message.contains("another owner")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_edited_meanwhile_is_not_deleted() {
    let scene = Scene::watching().await;
    let old = scene.known_job("j").await;
    // The watch does not show the edit, so that the API server has to refuse.
    scene.cluster.stop(Duration::ZERO).await;
    let new = scene.patch(&format!("{JOBS}/j"), &json!({"spec": {"TTLSecondsAfterFinished": 86_400}})).await;
    let delete = |stored: &Value| {
        let resource_version = Some(meta(stored, "resourceVersion"));
        let (uid, propagation) = (meta(stored, "uid"), Some("Background".into()));
        let object = job("j").object();
        let write = Write::Delete { object, uid, resource_version, grace_seconds: None, propagation };
        vec![Entry { index: None, ..scene.entry(0, vec![write]) }]
    };
    let result = stopped(&scene.apply_entries(delete(&old), &Fence::open()).await);
    assert_eq!((result, scene.faults.count(Method::DELETE, "/j")), (Some(Stopped::Conflict), 1));
    let observed = scene.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap();
    assert_eq!(observed.job.unwrap().metadata.resource_version, Some(meta(&new, "resourceVersion")));
    let result = stopped(&scene.apply_entries(delete(&old), &Fence::open()).await);
    assert_eq!((result, scene.faults.count(Method::DELETE, "/j")), (Some(Stopped::NotSent), 1));
    assert_eq!(stopped(&scene.apply_entries(delete(&new), &Fence::open()).await), None);
    assert!(scene.cluster.jobs().is_empty(), "the reply says that it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_given_fewer_writes() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    // As a real one says it: a text, where everything else that it says is a Status.
    let busy = json!("Too many requests, please try again later.");
    scene.faults.plan(Method::PATCH, "/pods/a", (1, Then::Answer(429, busy)));
    let results = scene.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(stopped(&results), Some(Stopped::Throttled { retry_after: None }));
    assert_eq!(scene.cluster.writes_allowed(), 16);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_answers_that_it_is_busy_takes_no_place_of_others() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    let message = "admission webhook \"w.example.com\" denied the request: Too many requests, please try again later.";
    let mut busy = status(429, "TooManyRequests", message);
    busy["details"] = json!({"retryAfterSeconds": 1});
    scene.faults.plan(Method::PATCH, "/pods/a", (1, Then::Answer(429, busy)));
    let results = scene.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(stopped(&results), Some(Stopped::Throttled { retry_after: Some(1) }));
    assert_eq!(scene.cluster.writes_allowed(), 32);
}
