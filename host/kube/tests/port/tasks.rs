//! Scripts and pods of tasks: the port creates each once, does not accept namesakes, and removes leftovers.

use std::time::Duration;

use http::Method;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_core::requests::scripts;
use oarlock_core::requests::writes::{BatchResult, Stopped, Write};
use oarlock_kube::lease::fence::Fence;
use serde_json::{Value, json};

use crate::faults::Then;
use crate::fixture::{Fixture, PODS};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Returns a fixture with a job, whose tasks run in the namespace `default`.
async fn fixture() -> Fixture {
    let fixture = Fixture::with_job().await;
    fixture.cluster.make_tasks(TaskSettings { namespace: "default".into(), ..TaskSettings::default() });
    fixture
}

fn script() -> Write {
    scripts::create("echo hello", "default", "job")
}

fn script_path() -> String {
    format!("{MAPS}/{}", script().object().name)
}

/// Returns the write of a task's pod on node `n` that mounts the script.
fn pod(name: &str) -> Write {
    let labels =
        json!({"oarlock.dev/job-uid": "job", "oarlock.dev/task": "run", "oarlock.dev/script": script().object().name});
    let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": "n", "containers": [{"name": "task", "image": "i"}]}});
    Write::Create { object: ObjectKey::pod("default", name), body, owner_uid: "job".into() }
}

fn ends(results: &[BatchResult]) -> Vec<Option<Stopped>> {
    results.iter().map(|result| result.stopped.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_script_is_made_once_for_all_the_pods_that_mount_it() {
    let fixture = fixture().await;
    let task = |index: u32| fixture.entry(index, vec![script(), pod(&format!("p-{index}"))]);
    let (write_sender, mut results) = fixture.write_sender(vec![task(0)], &Fence::open()).await;
    assert_eq!(ends(&results.next(1).await), [None]);
    write_sender.apply(fixture.recorded(vec![task(1), task(2)], &Fence::open()).await);
    assert_eq!(ends(&results.next(2).await), [None, None]);
    assert_eq!(
        (fixture.faults.count(Method::POST, "/configmaps"), fixture.faults.count(Method::POST, "/pods")),
        (1, 3)
    );
    // The next term knows no script. It asks the API server and accepts the existing script.
    drop(write_sender);
    assert_eq!(ends(&fixture.apply_entries(vec![task(3)], &Fence::open()).await), [None]);
    let stored = fixture.get(&script_path()).await.unwrap();
    assert_eq!((&stored["data"], &stored["immutable"]), (&json!({"script": "echo hello"}), &json!(true)));
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_made_beside_another_text_by_the_name_of_its_script() {
    let fixture = fixture().await;
    for wrong in [
        json!({"data": {"script": "reboot"}, "immutable": true}),
        json!({"data": {"script": "echo hello"}, "immutable": false}),
        json!({"data": {"script": "echo hello", "more": "x"}, "immutable": true}),
    ] {
        let Write::Create { body, .. } = script() else { panic!("it is a create") };
        let mut map = body;
        map.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        fixture.post(MAPS, &map).await;
        let result = fixture.apply_entries(vec![fixture.entry(0, vec![script(), pod("p")])], &Fence::open()).await;
        let [Some(Stopped::Refused { message })] = &ends(&result)[..] else { panic!("{result:?}") };
        assert!(message.contains(&script().object().name) && message.contains("another text"), "{message}");
        assert_eq!(fixture.faults.count(Method::POST, "/pods"), 0);
        fixture.delete(&script_path(), &json!({})).await;
    }
    let result = fixture.apply_entries(vec![fixture.entry(0, vec![script(), pod("p")])], &Fence::open()).await;
    assert_eq!(ends(&result), [None]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_that_name_on_another_node_or_of_a_kubelet_is_refused_by_its_name_and_stops_no_other() {
    let fixture = fixture().await;
    let Write::Create { body, .. } = pod("p") else { panic!("it is a create") };
    for forged in [
        json!({"spec": {"nodeName": "m"}}),
        json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
        json!({"metadata": {"labels": {"oarlock.dev/job-uid": "other"}}}),
    ] {
        let mut there = body.clone();
        merge(&mut there, &forged);
        fixture.post(PODS, &there).await;
        let entries = vec![fixture.entry(0, vec![pod("p")]), fixture.entry(1, vec![pod("q")])];
        let result = fixture.apply_entries(entries, &Fence::open()).await;
        let [Some(Stopped::Refused { message }), None] = &ends(&result)[..] else { panic!("{result:?}") };
        assert!(message.contains("\"p\"") && message.contains("not the task's"), "{message}");
        for name in ["p", "q"] {
            fixture.delete(&format!("{PODS}/{name}"), &json!({"gracePeriodSeconds": 0})).await;
        }
    }
    // The task's own pod, whose reply was lost, counts as created.
    let own = |index: u32| fixture.entry(index, vec![pod("p")]);
    assert_eq!(ends(&fixture.apply_entries(vec![own(0)], &Fence::open()).await), [None]);
    assert_eq!(ends(&fixture.apply_entries(vec![own(1)], &Fence::open()).await), [None]);
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.iter().for_each(|(key, value)| merge(into.entry(key.clone()).or_insert(Value::Null), value));
        }
        (into, more) => *into = more.clone(),
    }
}

async fn sweep(fixture: &Fixture) {
    fixture.cluster.remove_idle_scripts(&Fence::open()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_script_goes_once_no_pod_mounts_it_and_none_is_made_while_it_goes() {
    let fixture = fixture().await;
    let task = |index: u32| fixture.entry(index, vec![script(), pod(&format!("p-{index}"))]);
    let (write_sender, mut results) = fixture.write_sender(vec![task(0)], &Fence::open()).await;
    results.next(1).await;
    fixture.post(MAPS, &json!({"metadata": {"name": "somebodys"}, "data": {"script": "x"}})).await;
    for _ in 0..5 {
        sweep(&fixture).await;
    }
    assert!(fixture.get(&script_path()).await.is_some(), "a pod mounts it");
    fixture.delete(&format!("{PODS}/p-0"), &json!({"gracePeriodSeconds": 0})).await;
    fixture
        .until("that the pod is gone", |cluster| cluster.store().get(&ObjectKey::pod("default", "p-0")).is_none())
        .await;
    sweep(&fixture).await;
    sweep(&fixture).await;
    // The deletion is slow. A task that needs the script meanwhile is retried later.
    fixture.faults.plan(Method::DELETE, "/configmaps", (1, Then::Delay(Duration::from_secs(5))));
    let last = sweep(&fixture);
    let begins = async {
        fixture.until("the deletion", |_| fixture.faults.count(Method::DELETE, "/configmaps") == 1).await;
        write_sender.apply(fixture.recorded(vec![task(1)], &Fence::open()).await);
        ends(&results.next(1).await)
    };
    let ((), begun) = tokio::join!(last, begins);
    assert_eq!(begun, [Some(Stopped::Throttled { retry_after: Some(1) })]);
    assert!(fixture.get(&script_path()).await.is_none());
    write_sender.apply(fixture.recorded(vec![task(2)], &Fence::open()).await);
    assert_eq!(ends(&results.next(1).await), [None]);
    assert!(fixture.get(&script_path()).await.is_some() && fixture.get(&format!("{MAPS}/somebodys")).await.is_some());
}
