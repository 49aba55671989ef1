//! The input of a round.

use http::Method;
use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::store::NODE_NAME;
use oarlock_core::cluster::writes::{Record, Recorded};
use oarlock_core::job::key::JobRef;
use oarlock_kube::lease::Fence;
use oarlock_kube::observe::Detail;
use oarlock_kube::record::RecordError;
use oarlock_kube::watch::watches::WatchedKinds;
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::scene::{JOBS, PODS, Scene, job, meta, owned_by, pod, pods};

/// Raises the epoch of `stored`.
async fn raise_epoch(scene: &Scene, stored: &Value, epoch: i64) -> Result<Recorded, RecordError> {
    let status = json!({"metadata": {"uid": meta(stored, "uid"), "resourceVersion": meta(stored, "resourceVersion")},
        "status": {"epoch": epoch}});
    let record = Record { status: Some(status), ..Record::default() };
    scene.cluster.record(&job(&meta(stored, "name")), record, Vec::new(), &Fence::open()).await
}

async fn seen_epoch(scene: &Scene, name: &str) -> Option<i64> {
    let observed = scene.cluster.observe(&job(name), &[], Detail::Status).await.unwrap();
    observed.job.and_then(|job| job.status.as_ref()?.epoch)
}

#[tokio::test(start_paused = true)]
async fn a_round_sees_its_own_status_write_before_any_watch_does() {
    let scene = Scene::watching().await;
    let stored = scene.known_job("j").await;
    scene.faults.plan(Method::GET, "operationjobs", (1_000, Then::Hang));
    raise_epoch(&scene, &stored, 1).await.unwrap();
    assert_eq!(seen_epoch(&scene, "j").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_job_is_read_anew_after_a_conflict() {
    let scene = Scene::watching().await;
    let stored = scene.known_job("j").await;
    scene.patch(&format!("{JOBS}/j/status"), &json!({"status": {"epoch": 7}})).await;
    let error = raise_epoch(&scene, &stored, 1).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { .. }), "{error}");
    assert_eq!(seen_epoch(&scene, "j").await, Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_status_write_whose_reply_was_lost_is_seen_by_the_next_round() {
    let scene = Scene::watching().await;
    let stored = scene.known_job("j").await;
    scene.faults.plan(Method::PATCH, "/j/status", (1, Then::DropConnection));
    let error = raise_epoch(&scene, &stored, 3).await.unwrap_err();
    assert!(matches!(error, RecordError::Unknown { .. }), "{error}");
    assert_eq!(seen_epoch(&scene, "j").await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_round_does_not_begin_while_the_outcome_of_the_last_write_is_unknown() {
    let scene = Scene::watching().await;
    let stored = scene.known_job("j").await;
    let down = || Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    scene.faults.plan(Method::PATCH, "/j/status", (1, down()));
    scene.faults.plan(Method::GET, "/operationjobs/j", (1, down()));
    raise_epoch(&scene, &stored, 3).await.unwrap_err();
    let error = scene.cluster.observe(&job("j"), &[], Detail::Status).await.err().unwrap();
    assert!(error.to_string().contains("down"), "{error}");
    assert_eq!(seen_epoch(&scene, "j").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_the_watch_does_not_show_is_listed() {
    let scene = Scene::bare().await;
    scene.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    scene.declare(pods(&[])).await;
    let stored = scene.job("unseen").await;
    assert!(scene.cluster.jobs().is_empty());
    // A term that counted the jobs by its cache would grant what this one has claimed.
    let listed = JobRef { key: job("unseen"), uid: meta(&stored, "uid") };
    assert_eq!(scene.cluster.list_jobs().await, Ok(vec![listed]));
}

#[tokio::test(start_paused = true)]
async fn a_live_read_shows_a_pod_before_the_watch_does() {
    let scene = Scene::watching().await;
    scene.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    scene.pod("late").await;
    let (late, absent) = (LiveRead::Object(pod("late")), LiveRead::Object(pod("absent")));
    let observed = scene.cluster.observe(&job("j"), &[late.clone(), absent.clone()], Detail::Status).await.unwrap();
    assert!(observed.live.has(&late) && observed.live.has(&absent));
    assert!(observed.live.objects[&pod("late")].is_some());
    assert_eq!(observed.live.objects[&pod("absent")], None);
    assert!(scene.shown("late").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_live_read_finds_gone_is_gone_though_the_watch_still_shows_it() {
    let mut scene = Scene::watching().await;
    scene.pod("a").await;
    scene.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    scene.heard();
    let observed = scene.cluster.observe(&job("j"), &[LiveRead::Object(pod("a"))], Detail::Status).await.unwrap();
    assert_eq!(observed.live.objects[&pod("a")], None);
    assert!(scene.shown("a").is_none());
    assert_eq!(scene.heard().len(), 1, "other jobs are told");
}

#[tokio::test(start_paused = true)]
async fn a_list_answers_many_reads_and_drops_absent_objects() {
    let scene = Scene::watching().await;
    for n in 0..12 {
        scene.pod(&format!("p{n}")).await;
    }
    scene.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 12).await;
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.delete(&format!("{PODS}/p3"), &json!({"gracePeriodSeconds": 0})).await;
    let before = scene.cluster.requests().count("pods", "get");
    let reads: Vec<LiveRead> = (0..30).map(|n| LiveRead::Object(pod(&format!("p{n}")))).collect();
    let observed = scene.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap();
    assert_eq!(scene.cluster.requests().count("pods", "get"), before);
    assert_eq!(observed.live.answered.len(), 30);
    assert_eq!(observed.live.objects.values().filter(|object| object.is_some()).count(), 11);
    assert!(scene.shown("p3").is_none() && scene.shown("p4").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_label_that_was_taken_away_is_noticed_by_a_live_read() {
    let scene = Scene::watching().await;
    scene.pod_with("a", json!({"labels": {"app": "x"}})).await;
    scene.pod_with("b", json!({"labels": {"app": "x"}})).await;
    scene.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 2).await;
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"app": "y"}}})).await;
    let read =
        LiveRead::Labelled { kind: Kind::pod(), namespace: "default".into(), label: "app".into(), value: "x".into() };
    let observed = scene.cluster.observe(&job("j"), std::slice::from_ref(&read), Detail::Status).await.unwrap();
    assert!(observed.live.has(&read));
    assert_eq!(scene.cluster.store().labelled(&Kind::pod(), "default", "app", "x").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_node_are_read_live_in_all_namespaces_and_those_that_are_gone_are_dropped() {
    let scene = Scene::watching().await;
    let mut declared = pods(&[]);
    declared.kinds.get_mut(&Kind::pod()).unwrap().fields_indexed.insert(NODE_NAME.to_owned());
    scene.declare(declared).await;
    scene.post("/api/v1/namespaces", &json!({"metadata": {"name": "far"}})).await;
    let pod = |namespace: &str, name: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
    };
    for (namespace, name, node) in [("default", "a", "n"), ("default", "b", "n"), ("default", "c", "m")] {
        scene.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod(namespace, name, node)).await;
    }
    scene.until("the pods", |cluster| cluster.store().on_node("n").len() == 2).await;
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    scene.post("/api/v1/namespaces/far/pods", &pod("far", "late", "n")).await;
    let read = LiveRead::OnNode { node: "n".into() };
    let observed = scene.cluster.observe(&job("j"), std::slice::from_ref(&read), Detail::Status).await.unwrap();
    assert!(observed.live.has(&read), "{:?}", observed.live.failed);
    let names: Vec<_> = scene.cluster.store().on_node("n").iter().map(|pod| pod.key.name.clone()).collect();
    assert_eq!(names, ["b", "late"]);
}

#[tokio::test(start_paused = true)]
async fn the_deployment_of_a_replica_set_is_learned_by_a_live_read() {
    let scene = Scene::watching().await;
    let deployment = scene.workload("Deployment", "w", json!([])).await;
    let set = scene.workload("ReplicaSet", "w-1", owned_by(&deployment)).await;
    let bare = scene.workload("ReplicaSet", "bare", json!([])).await;
    scene.pod_with("a", json!({"ownerReferences": owned_by(&set)})).await;
    scene.pod_with("b", json!({"ownerReferences": owned_by(&bare)})).await;
    scene.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 2).await;
    assert_eq!(scene.cluster.store().unresolved(&Kind::pod(), "default").len(), 2);
    scene.cluster.stop(std::time::Duration::ZERO).await;
    scene.delete("/apis/apps/v1/namespaces/default/replicasets/bare", &json!({})).await;
    let read = LiveRead::Controllers { namespace: "default".into() };
    let observed = scene.cluster.observe(&job("j"), &[read], Detail::Status).await.unwrap();
    assert!(observed.live.failed.is_empty(), "{:?}", observed.live.failed);
    let root = |name: &str| scene.cluster.store().root(&scene.shown(name).unwrap()).unwrap().unwrap();
    assert_eq!((root("a").kind.kind.as_str(), root("a").uid), ("Deployment", meta(&deployment, "uid")));
    assert_eq!(root("b").uid, meta(&bare, "uid"), "a set that is gone is not readed for again");
}

#[tokio::test(start_paused = true)]
async fn a_live_read_that_fails_is_data_and_the_round_goes_on() {
    let scene = Scene::watching().await;
    let forbidden = status(403, "Forbidden", "pods \"a\" is forbidden");
    scene.faults.plan(Method::GET, "/pods/a", (1, Then::Answer(403, forbidden)));
    let unserved = LiveRead::All { kind: Kind::new("example.dev/v1", "Nothing"), namespace: "default".into() };
    let reads = [LiveRead::Object(pod("a")), unserved.clone()];
    let observed = scene.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap();
    assert!(observed.live.failed[&reads[0]].message.contains("is forbidden"));
    assert!(observed.live.failed[&unserved].message.contains("does not serve"));
}

#[tokio::test(start_paused = true)]
async fn the_time_is_the_api_servers_where_the_hosts_clock_is_wrong() {
    let scene = Scene::bare().await;
    let wrong = scene.sim.now() + std::time::Duration::from_secs(600);
    let client = scene.faults.client(scene.sim.service());
    let setup = oarlock_kube::Setup { client, clock: std::sync::Arc::new(move || wrong), identity: "h".into() };
    let (cluster, _events) = oarlock_kube::Cluster::open(setup);
    let observe = async || cluster.observe(&job("j"), &[LiveRead::Object(pod("a"))], Detail::Status).await.unwrap();
    // One reply says little; a few that agree count.
    while cluster.requests().count("pods", "get") < 3 {
        observe().await;
    }
    assert!(observe().await.now.duration_since(scene.sim.now()).abs().as_secs() <= 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_only_read_shows_the_fields_that_were_declared_for_it_and_is_not_watched() {
    let scene = Scene::watching().await;
    let maps = Kind::new("v1", "ConfigMap");
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "colours"},
        "data": {"stamp": "blue"}, "immutable": true});
    scene.post("/api/v1/namespaces/default/configmaps", &body).await;
    let key = ObjectKey { kind: maps.clone(), namespace: Some("default".into()), name: "colours".into() };
    let read = async |key: &ObjectKey| {
        let read = LiveRead::Object(key.clone());
        let observed = scene.cluster.observe(&job("j"), &[read], Detail::Status).await.unwrap();
        observed.live.objects[key].as_ref().unwrap().fields.value()
    };
    let declared = WatchedKinds { read: [(maps.clone(), ["/data".to_owned()].into())].into(), ..pods(&[]) };
    scene.declare(declared).await;
    assert_eq!(read(&key).await, json!({"data": {"stamp": "blue"}}));
    assert!(!scene.cluster.store().keeps(&maps));
    scene.declare(pods(&[])).await;
    assert_eq!(read(&key).await, json!({}), "nobody declares it any more");
}

#[tokio::test(start_paused = true)]
async fn whether_a_kind_is_served_is_asked_for_and_told_and_asked_again_when_it_is_old() {
    let scene = Scene::watching().await;
    let (maps, nothing) = (Kind::new("v1", "ConfigMap"), Kind::new("example.dev/v1", "Nothing"));
    let [maps_read, nothing_read] = [&maps, &nothing].map(|kind| LiveRead::Served(kind.clone()));
    let first = scene.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap();
    assert!(!(first.served)(&maps), "nobody has asked");
    let reads = [maps_read.clone(), nothing_read.clone()];
    let asked = scene.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap();
    assert!(asked.live.has(&maps_read) && asked.live.has(&nothing_read), "{:?}", asked.live.failed);
    assert_eq!([&maps, &nothing].map(|kind| (asked.served)(kind)), [true, false]);
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    let later = scene.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap();
    assert!(!(later.served)(&maps), "an old answer does not count");
    let again = scene.cluster.observe(&job("j"), &[maps_read], Detail::Status).await.unwrap();
    assert!((again.served)(&maps));
}

#[tokio::test(start_paused = true)]
async fn the_targets_in_flight_of_a_job_with_a_selector_count_as_its_status_says() {
    let scene = Scene::watching().await;
    let made = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "s"},
        "spec": {"action": "Replace", "selector": {"labelSelector": {"matchLabels": {"app": "web"}}}}});
    scene.post(JOBS, &made).await;
    for (said, counted) in [(3, 3), (i32::MAX, 10_000)] {
        let status = json!({"status": {"plugin": {"name": "replace"}, "processingPodCount": said}});
        scene.patch(&format!("{JOBS}/s/status"), &status).await;
        let counts = Some(("replace".to_owned(), counted));
        scene.until("the status", |cluster| cluster.in_flight(&job("s")) == counts).await;
    }
}
