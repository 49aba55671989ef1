//! Events.

use std::time::Duration;

use http::Method;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::EventNote;
use serde_json::Value;

use crate::faults::{Then, status};
use crate::scene::{Scene, meta, pod};

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

async fn stored(scene: &Scene) -> Vec<Value> {
    scene.get(EVENTS).await.unwrap()["items"].as_array().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn an_event_appears_once_however_often_it_is_emitted() {
    let scene = Scene::bare().await;
    let uid = meta(&scene.pod("a").await, "uid");
    scene.cluster.emit(vec![note("j.1", &uid), note("j.1", &uid)]);
    scene.cluster.stop(Duration::from_secs(5)).await;
    let events = stored(&scene).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["reportingController"], "operationjob-controller");
    assert_eq!(events[0]["reportingInstance"], "host-0");
    assert_eq!(events[0]["regarding"]["uid"], Value::from(uid));
    assert_eq!(scene.cluster.events().emitted, 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_from_the_controller_of_the_kind_that_it_is_about() {
    let scene = Scene::bare().await;
    let on = |kind: &str| {
        let regarding = ObjectKey { kind: Kind::new("api.practice.com/v1alpha1", kind), ..pod("a") };
        EventNote { regarding, ..note(&kind.to_lowercase(), "u") }
    };
    scene.cluster.emit(vec![on("JobFlow"), on("DaemonJob"), note("pod", "u")]);
    scene.cluster.stop(Duration::from_secs(5)).await;
    let mut from: Vec<Value> = stored(&scene).await.iter().map(|event| event["reportingController"].clone()).collect();
    from.sort_by_key(Value::to_string);
    assert_eq!(from, ["daemonjob-controller", "jobflow-controller", "operationjob-controller"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_survives_a_short_outage_but_not_a_refusal() {
    let scene = Scene::bare().await;
    let down = status(503, "ServiceUnavailable", "down");
    scene.faults.plan(Method::POST, "/events", (2, Then::Answer(503, down)));
    scene.cluster.emit(vec![note("j.1", "u")]);
    scene.until("the event", |cluster| cluster.events().emitted == 1).await;
    scene.faults.plan(Method::POST, "/events", (9, Then::Answer(403, status(403, "Forbidden", "no"))));
    scene.cluster.emit(vec![note("j.2", "u")]);
    scene.until("the failure", |cluster| cluster.events().failed == 1).await;
    assert_eq!(scene.faults.count(Method::POST, "/events"), 4);
}

#[tokio::test(start_paused = true)]
async fn events_leave_a_slow_server_to_other_requests_for_two_thirds_of_the_time() {
    let scene = Scene::bare().await;
    scene.faults.plan(Method::POST, "/events", (40, Then::Delay(Duration::from_millis(100))));
    let begun = tokio::time::Instant::now();
    scene.cluster.emit((0..40).map(|index| note(&format!("j.{index}"), "u")).collect());
    scene.until("all events", |cluster| cluster.events().emitted == 40).await;
    // Ten one after the other in each of four places, with nine rests of 200 ms between them.
    assert!(begun.elapsed() >= Duration::from_millis(2_800), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_queued_events_only_so_long() {
    let scene = Scene::bare().await;
    scene.faults.plan(Method::POST, "/events", (9, Then::Hang));
    scene.cluster.emit(vec![note("j.1", "u")]);
    let begun = tokio::time::Instant::now();
    scene.cluster.stop(Duration::from_secs(3)).await;
    assert_eq!(begun.elapsed().as_secs(), 3);
    scene.cluster.emit(vec![note("j.2", "u")]);
    assert_eq!(scene.cluster.events().dropped, 1);
}
