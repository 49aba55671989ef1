//! Events that the port emits.

use std::time::Duration;

use http::Method;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::writes::EventNote;
use serde_json::Value;

use crate::faults::{Then, status};
use crate::fixture::{Fixture, meta, pod};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn note(name: &str, uid: &str) -> EventNote {
    EventNote {
        name: name.into(),
        regarding: pod("a"),
        regarding_uid: uid.into(),
        warning: false,
        reason: "EvictedPod".into(),
        action: "Replace".into(),
        message: "evicted".into(),
    }
}

async fn stored(fixture: &Fixture) -> Vec<Value> {
    fixture.get(EVENTS).await.unwrap()["items"].as_array().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn an_event_appears_once_however_often_it_is_emitted() {
    let fixture = Fixture::bare().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    fixture.cluster.emit(vec![note("j.1", &uid), note("j.1", &uid)]);
    fixture.cluster.stop(Duration::from_secs(5)).await;
    let events = stored(&fixture).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["reportingController"], "operationjob-controller");
    assert_eq!(events[0]["reportingInstance"], "host-0");
    assert_eq!(events[0]["regarding"]["uid"], Value::from(uid));
    assert_eq!(fixture.cluster.events().emitted, 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_from_the_controller_of_the_kind_that_it_is_about() {
    let fixture = Fixture::bare().await;
    let on = |kind: &str| {
        let regarding = ObjectKey { kind: Kind::new("api.practice.com/v1alpha1", kind), ..pod("a") };
        EventNote { regarding, ..note(&kind.to_lowercase(), "u") }
    };
    fixture.cluster.emit(vec![on("JobFlow"), on("DaemonJob"), note("pod", "u")]);
    fixture.cluster.stop(Duration::from_secs(5)).await;
    let mut from: Vec<Value> =
        stored(&fixture).await.iter().map(|event| event["reportingController"].clone()).collect();
    from.sort_by_key(Value::to_string);
    assert_eq!(from, ["daemonjob-controller", "jobflow-controller", "operationjob-controller"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_survives_a_short_outage_but_not_a_refusal() {
    let fixture = Fixture::bare().await;
    let down = status(503, "ServiceUnavailable", "down");
    fixture.faults.plan(Method::POST, "/events", (2, Then::Answer(503, down)));
    fixture.cluster.emit(vec![note("j.1", "u")]);
    fixture.until("the event", |cluster| cluster.events().emitted == 1).await;
    fixture.faults.plan(Method::POST, "/events", (9, Then::Answer(403, status(403, "Forbidden", "no"))));
    fixture.cluster.emit(vec![note("j.2", "u")]);
    fixture.until("the failure", |cluster| cluster.events().failed == 1).await;
    assert_eq!(fixture.faults.count(Method::POST, "/events"), 4);
}

#[tokio::test(start_paused = true)]
async fn events_leave_a_slow_server_to_other_requests_for_seven_eighths_of_the_time() {
    let fixture = Fixture::bare().await;
    fixture.faults.plan(Method::POST, "/events", (40, Then::Delay(Duration::from_millis(100))));
    let begun = tokio::time::Instant::now();
    fixture.cluster.emit((0..40).map(|index| note(&format!("j.{index}"), "u")).collect());
    fixture.until("all events", |cluster| cluster.events().emitted == 40).await;
    // Each of four slots sends ten events one after the other, with nine pauses of 700 ms between them.
    assert!(begun.elapsed() >= Duration::from_millis(7_300), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_queued_events_only_so_long() {
    let fixture = Fixture::bare().await;
    fixture.faults.plan(Method::POST, "/events", (9, Then::Hang));
    fixture.cluster.emit(vec![note("j.1", "u")]);
    let begun = tokio::time::Instant::now();
    fixture.cluster.stop(Duration::from_secs(3)).await;
    assert_eq!(begun.elapsed().as_secs(), 3);
    assert_eq!(fixture.cluster.events().dropped, 1);
    fixture.cluster.emit(vec![note("j.2", "u")]);
    assert_eq!(fixture.cluster.events().dropped, 2);
}

#[tokio::test(start_paused = true)]
async fn stopping_sends_queued_events_without_the_pauses_between_them() {
    let fixture = Fixture::bare().await;
    fixture.faults.plan(Method::POST, "/events", (40, Then::Delay(Duration::from_millis(100))));
    fixture.cluster.emit((0..40).map(|index| note(&format!("j.{index}"), "u")).collect());
    fixture.until("the first events", |cluster| cluster.events().emitted >= 4).await;
    fixture.cluster.stop(Duration::from_secs(3)).await;
    assert_eq!(fixture.cluster.events().emitted, 40);
}
