//! Write batches of dry runs: the API server checks each request, and neither the server nor the cache changes.

use http::Method;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::writes::{BatchResult, Stopped, Write, WriteBatch};
use oarlock_kube::lease::fence::Fence;
use serde_json::json;

use crate::apply::{evict, label};
use crate::faults::{Then, status};
use crate::fixture::{Fixture, PODS, meta, owned_by, pod, workload};

/// Sends these writes as one dry-run batch.
async fn tried(fixture: &Fixture, writes: Vec<Write>) -> BatchResult {
    let entry = WriteBatch { dry_run: true, ..fixture.entry(0, writes) };
    fixture.apply_entries(vec![entry], &Fence::open()).await.remove(0)
}

#[tokio::test(start_paused = true)]
async fn every_verb_is_accepted_and_nothing_is_made() {
    let mut fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    let (uid, version) = (meta(&stored, "uid"), meta(&stored, "resourceVersion"));
    fixture.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    let set = |name: &str| ObjectKey {
        kind: Kind::new("apps/v1", "ReplicaSet"),
        namespace: Some("default".into()),
        name: name.into(),
    };
    let there = fixture.workload("ReplicaSet", "there", json!([])).await;
    fixture.heard();
    let marks = |label: &str| json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {label: "x"}}});
    let writes = vec![
        Write::patch(&pod("a"), marks("first")),
        Write::patch(&pod("a"), marks("second")),
        Write::Patch {
            object: pod("a"),
            subresource: None,
            body: json!([{"op": "test", "path": "/metadata/uid", "value": uid}]),
        },
        evict("a", &uid, Some(version.clone())),
        Write::Delete {
            object: pod("a"),
            uid: uid.clone(),
            resource_version: Some(version.clone()),
            grace_seconds: Some(1),
            propagation: None,
        },
        Write::Delete {
            object: set("there"),
            uid: meta(&there, "uid"),
            resource_version: None,
            grace_seconds: None,
            propagation: Some("Background".into()),
        },
        Write::Create {
            object: set("new"),
            body: workload("ReplicaSet", "new", owned_by(&stored)),
            owner_uid: uid.clone(),
        },
    ];
    let result = tried(&fixture, writes.clone()).await;
    assert_eq!((result.done, result.stopped), (writes.len(), None));
    assert_eq!(result.entry.writes, writes, "they stay as they were decided");
    assert_eq!(fixture.get(&format!("{PODS}/a")).await.unwrap(), stored);
    let path = "/apis/apps/v1/namespaces/default/replicasets";
    assert_eq!(fixture.get(&format!("{path}/there")).await.unwrap()["metadata"], there["metadata"]);
    assert!(fixture.get(&format!("{path}/new")).await.is_none());
    assert_eq!(fixture.shown("a").unwrap().resource_version, version);
    assert!(fixture.shown("a").unwrap().labels.get("first").is_none());
    assert!(fixture.heard().is_empty(), "the cache changed nothing");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_in_earnest_is_refused_in_the_same_words() {
    let fixture = Fixture::without_pods().await;
    let old = fixture.pod("a").await;
    let new = fixture.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"app": "web"}}})).await;
    let uid = meta(&new, "uid");
    let outdated = evict("a", &uid, Some(meta(&old, "resourceVersion")));
    for write in [outdated, evict("a", "another", None), label("a", "another")] {
        assert_eq!(tried(&fixture, vec![write]).await.stopped, Some(Stopped::Conflict));
    }
    assert_eq!(tried(&fixture, vec![label("b", "any")]).await.stopped, Some(Stopped::Gone));
    let invalid = json!({"metadata": {"uid": uid, "labels": {"x": "no value!"}}});
    let earnest = fixture.apply(vec![Write::patch(&pod("a"), invalid.clone())], &Fence::open()).await.remove(0).stopped;
    assert!(matches!(&earnest, Some(Stopped::Refused { message }) if message.contains("no value!")), "{earnest:?}");
    assert_eq!(tried(&fixture, vec![Write::patch(&pod("a"), invalid)]).await.stopped, earnest);
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    fixture.patch(&format!("{PODS}/a/status"), &running).await;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    fixture.post(budgets, &budget).await;
    let blocked = tried(&fixture, vec![evict("a", &uid, None)]).await;
    assert!(
        matches!(&blocked.stopped, Some(Stopped::Blocked { message, .. }) if message.contains("disruption budget web")),
        "{blocked:?}"
    );
    assert_eq!(fixture.faults.count(Method::POST, "/eviction"), 3);
}

#[tokio::test(start_paused = true)]
async fn the_first_refusal_stops_the_entry_and_names_its_write() {
    let fixture = Fixture::without_pods().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    let denied = status(403, "Forbidden", "admission webhook \"w\" denied the request: not today");
    fixture.faults.plan(Method::POST, "/eviction", (1, Then::Answer(403, denied)));
    let result = tried(&fixture, vec![label("a", &uid), evict("a", &uid, None), label("a", &uid)]).await;
    let message = "admission webhook \"w\" denied the request: not today".to_owned();
    assert_eq!((result.done, result.stopped), (1, Some(Stopped::Refused { message })));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_a_dry_run_is_not_sent_on_an_old_view_or_for_a_job_that_is_gone() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    fixture.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    assert_eq!(tried(&fixture, vec![label("a", "another")]).await.stopped, Some(Stopped::NotSent));
    let entry = WriteBatch { dry_run: true, ..fixture.entry(0, vec![label("a", &uid)]) };
    let gone =
        WriteBatch { job: oarlock_core::object::key::JobRef { uid: "another".into(), ..entry.job.clone() }, ..entry };
    let result = fixture.apply_entries(vec![gone], &Fence::open()).await.remove(0);
    assert_eq!((result.stopped, fixture.faults.count(Method::PATCH, "/pods/a")), (Some(Stopped::NotSent), 0));
}
