//! The targets that a job's selector finds, read live.

use http::Method;
use oarlock_core::object::api_object::Kind;
use oarlock_core::requests::live_reads::{LiveRead, LiveReads};
use oarlock_core::requests::selector::TargetQuery;
use oarlock_kube::read::observe::Detail;
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::fixture::{Fixture, PODS, job, meta, owned_by};

fn read(query: TargetQuery) -> LiveRead {
    LiveRead::Selection { kind: Kind::pod(), namespace: Some("default".into()), query: Box::new(query) }
}

fn labelled(labels: &str) -> LiveRead {
    read(TargetQuery::Labels(labels.into()))
}

fn owned(api_version: &str, kind: &str, name: &str) -> LiveRead {
    read(TargetQuery::Controller { kind: Kind::new(api_version, kind), name: name.into() })
}

async fn observe(fixture: &Fixture, read: &LiveRead) -> LiveReads {
    fixture.cluster.observe(&job("j"), std::slice::from_ref(read), Detail::Status).await.unwrap().live
}

/// Returns the names and UIDs that a read finds.
async fn found(fixture: &Fixture, read: &LiveRead) -> Vec<(String, String)> {
    let live = observe(fixture, read).await;
    assert!(live.has(read), "{:?}", live.failed);
    live.selections[read].iter().map(|found| (found.name.clone(), found.uid.clone())).collect()
}

/// Returns the name and UID of a stored pod.
fn identity(pod: &Value) -> (String, String) {
    (meta(pod, "name"), meta(pod, "uid"))
}

#[tokio::test(start_paused = true)]
async fn a_label_selector_finds_pods_that_the_watch_does_not_show_by_name_and_none_that_terminates() {
    let fixture = Fixture::watching().await;
    fixture.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    let web = json!({"labels": {"app": "web", "tier": "front"}});
    let second = fixture.pod_with("b", web.clone()).await;
    let first = fixture.pod_with("a", web).await;
    fixture.pod_with("c", json!({"labels": {"app": "web"}})).await;
    let held = json!({"labels": {"app": "web", "tier": "front"}, "finalizers": ["example.dev/keep"]});
    fixture.pod_with("going", held).await;
    fixture.delete(&format!("{PODS}/going"), &json!({})).await;
    let expected = [identity(&first), identity(&second)];
    assert_eq!(found(&fixture, &labelled("app=web,tier in (front,back),!zone")).await, expected);
    assert_eq!(found(&fixture, &labelled("app=nobody")).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_deployment_are_those_of_its_replica_sets() {
    let fixture = Fixture::watching().await;
    let deployment = fixture.workload("Deployment", "w", json!([])).await;
    let [old, new] = ["w-1", "w-2"].map(|name| (name, owned_by(&deployment)));
    let old = fixture.workload("ReplicaSet", old.0, old.1).await;
    let new = fixture.workload("ReplicaSet", new.0, new.1).await;
    let bare = fixture.workload("ReplicaSet", "w", json!([])).await;
    let mut expected = Vec::new();
    for (name, set) in [("a", &old), ("b", &new)] {
        expected.push(identity(&fixture.pod_with(name, json!({"ownerReferences": owned_by(set)})).await));
    }
    let other = identity(&fixture.pod_with("c", json!({"ownerReferences": owned_by(&bare)})).await);
    fixture.pod("d").await;
    assert_eq!(found(&fixture, &owned("apps/v1", "Deployment", "w")).await, expected);
    assert_eq!(found(&fixture, &owned("apps/v1", "ReplicaSet", "w")).await, [other]);
    assert_eq!(found(&fixture, &owned("apps/v1", "Deployment", "x")).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_any_other_kind_are_those_it_controls_and_its_objects_are_not_read() {
    let fixture = Fixture::watching().await;
    let owner = |uid: &str, controller: bool| {
        json!({"ownerReferences": [{"apiVersion": "example.dev/v1", "kind": "CloneSet", "name": "s", "uid": uid,
            "controller": controller}]})
    };
    let own = identity(&fixture.pod_with("a", owner("u1", true)).await);
    fixture.pod_with("b", owner("u1", false)).await;
    let sets = owned("example.dev/v2", "CloneSet", "s");
    assert_eq!(found(&fixture, &sets).await, [own]);
    fixture.pod_with("c", owner("u2", true)).await;
    let live = observe(&fixture, &sets).await;
    let failure = &live.failed[&sets];
    assert!(failure.refused && failure.message.contains("an earlier one of this name"), "{}", failure.message);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_the_server_refuses_says_what_failed_and_why() {
    let fixture = Fixture::watching().await;
    let odd = labelled("app in (");
    let live = observe(&fixture, &odd).await;
    assert!(
        live.failed[&odd].refused && live.failed[&odd].message.contains("failed to list pods"),
        "{:?}",
        live.failed
    );
    let forbidden = || Then::Answer(403, status(403, "Forbidden", "pods is forbidden: the host may not list them"));
    fixture.faults.plan(Method::GET, "labelSelector", (1, forbidden()));
    let web = labelled("app=web");
    let live = observe(&fixture, &web).await;
    let failure = &live.failed[&web];
    assert!(failure.refused && !live.has(&web), "{failure:?}");
    assert!(failure.message.starts_with("failed to list pods: "), "{}", failure.message);
    assert!(failure.message.contains("may not list them"), "{}", failure.message);
}

#[tokio::test(start_paused = true)]
async fn a_list_goes_over_all_pages_until_more_were_found_than_a_job_may_have() {
    let fixture = Fixture::bare().await;
    let lists = || fixture.cluster.requests().count("pods", "list");
    let make = async |numbers: std::ops::Range<usize>| {
        for number in numbers {
            fixture.pod_with(&format!("p{number}"), json!({"labels": {"app": "web"}})).await;
        }
    };
    for (from, to, all, pages) in [(0, 1_010, 1_010, 3), (1_010, 11_100, 10_500, 21)] {
        make(from..to).await;
        let before = lists();
        assert_eq!(found(&fixture, &labelled("app=web")).await.len(), all);
        assert_eq!(lists() - before, pages);
    }
}
