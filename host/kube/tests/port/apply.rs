//! Writes and their results.

use std::time::Duration;

use http::Method;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::writes::{BatchResult, Stopped, Write};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::watch::objects::{Author, WatchEvent};
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::fixture::{Fixture, job, meta, owned_by, pod, workload};
use crate::lease::{leads, stand};

pub(crate) fn label(name: &str, uid: &str) -> Write {
    Write::patch(&pod(name), json!({"metadata": {"uid": uid, "labels": {"marked": "true"}}}))
}

pub(crate) fn evict(name: &str, uid: &str, version: Option<String>) -> Write {
    Write::Evict { pod: pod(name), uid: uid.into(), resource_version: version, grace_seconds: None }
}

pub(crate) fn stopped(results: &[BatchResult]) -> Option<Stopped> {
    results.first().unwrap().stopped.clone()
}

#[tokio::test(start_paused = true)]
async fn a_write_that_met_a_server_error_is_sent_once_and_its_outcome_is_unknown() {
    let fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    let uid = meta(&stored, "uid");
    let down = || Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    fixture.faults.plan(Method::POST, "/eviction", (5, down()));
    fixture.faults.plan(Method::PATCH, "/pods/a", (5, down()));
    let results = fixture.apply(vec![evict("a", &uid, None), label("a", &uid)], &Fence::open()).await;
    for results in &results {
        assert_eq!(results.stopped, Some(Stopped::Unknown { message: "down".into() }));
    }
    assert_eq!(fixture.faults.count(Method::POST, "/eviction"), 1);
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_a_reply_is_given_up_in_time_and_its_outcome_is_unknown() {
    let fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    fixture.faults.plan(Method::PATCH, "/pods/a", (1, Then::Hang));
    let begun = tokio::time::Instant::now();
    let results = fixture.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert!(matches!(stopped(&results), Some(Stopped::Unknown { .. })));
    assert_eq!(begun.elapsed().as_secs(), oarlock_kube::REQUEST_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn the_reply_to_a_write_is_seen_before_the_watch_shows_it() {
    let mut fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    fixture.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    fixture.cluster.stop(Duration::ZERO).await;
    fixture.heard();
    fixture.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(fixture.shown("a").unwrap().labels.get("marked"), Some("true"));
    let heard = fixture.heard();
    let author = Author { job_uid: fixture.cluster.job_uid(&job("j")).unwrap(), index: 0 };
    assert!(matches!(heard.as_slice(), [WatchEvent::Object { by: Some(by), .. }] if *by == author), "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_stops_its_target_and_no_other() {
    let fixture = Fixture::without_pods().await;
    let stored = fixture.pod("a").await;
    let uid = meta(&stored, "uid");
    let failing = fixture.entry(0, vec![label("a", "another"), label("a", &uid)]);
    let good = fixture.entry(1, vec![label("a", &uid), label("a", &uid)]);
    let results = fixture.apply_entries(vec![failing, good], &Fence::open()).await;
    assert_eq!((results[0].done, results[0].stopped.clone()), (0, Some(Stopped::Conflict)));
    assert_eq!((results[1].done, results[1].stopped.clone()), (2, None));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_writes_of_a_namespace_go_out_and_never_more_than_twenty_four_at_once() {
    let fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    fixture.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Delay(Duration::from_millis(50))));
    let writes = (0..1_000).map(|_| label("a", &meta(&stored, "uid"))).collect();
    let results = fixture.apply(writes, &Fence::open()).await;
    assert!(results.iter().all(|result| result.stopped.is_none()));
    assert_eq!(results.len(), 1_000);
    assert_eq!(fixture.faults.most_writes_in_flight(), 24);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_once_the_term_is_over() {
    let fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    let fence = elector.fence();
    let uid = meta(&stored, "uid");
    assert_eq!(stopped(&fixture.apply(vec![label("a", &uid)], &fence).await), None);
    elector.resign().await.unwrap();
    assert_eq!(stopped(&fixture.apply(vec![label("a", &uid)], &fence).await), Some(Stopped::LostLease));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_ours_that_exists_already_counts_as_created() {
    let fixture = Fixture::with_job().await;
    let (us, them) = (fixture.pod("us").await, fixture.pod("them").await);
    let create = |owner: &Value| {
        let kind = Kind::new("apps/v1", "ReplicaSet");
        let object = ObjectKey { kind, namespace: Some("default".into()), name: "r".into() };
        vec![Write::Create {
            object,
            body: workload("ReplicaSet", "r", owned_by(owner)),
            owner_uid: meta(owner, "uid"),
        }]
    };
    assert_eq!(stopped(&fixture.apply(create(&us), &Fence::open()).await), None);
    assert_eq!(stopped(&fixture.apply(create(&us), &Fence::open()).await), None);
    let refused = stopped(&fixture.apply(create(&them), &Fence::open()).await);
    assert!(matches!(&refused, Some(Stopped::Refused { message }) if message.contains("another owner")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_given_fewer_writes() {
    let fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    // A real API server sends this answer as plain text, unlike all its other answers, which are a Status.
    let busy = json!("Too many requests, please try again later.");
    fixture.faults.plan(Method::PATCH, "/pods/a", (1, Then::Answer(429, busy)));
    let results = fixture.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(stopped(&results), Some(Stopped::Throttled { retry_after: None }));
    assert_eq!(fixture.cluster.writes_allowed(), 16);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_answers_that_it_is_busy_takes_no_place_of_others() {
    let fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    let message = "admission webhook \"w.example.com\" denied the request: Too many requests, please try again later.";
    let mut busy = status(429, "TooManyRequests", message);
    busy["details"] = json!({"retryAfterSeconds": 1});
    fixture.faults.plan(Method::PATCH, "/pods/a", (1, Then::Answer(429, busy)));
    let results = fixture.apply(vec![label("a", &meta(&stored, "uid"))], &Fence::open()).await;
    assert_eq!(stopped(&results), Some(Stopped::Throttled { retry_after: Some(1) }));
    assert_eq!(fixture.cluster.writes_allowed(), 32);
}
