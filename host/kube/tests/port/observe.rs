//! The observations of a round.

use http::Method;
use oarlock_core::cache::store::NODE_NAME;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::JobRef;
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::{Record, Recorded};
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::persist::record::RecordError;
use oarlock_kube::read::observe::Detail;
use oarlock_kube::watch::objects::WatchedKinds;
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::fixture::{Fixture, JOBS, PODS, job, meta, owned_by, pod, pods};

/// Raises the epoch of the job `stored`.
async fn raise_epoch(fixture: &Fixture, stored: &Value, epoch: i64) -> Result<Recorded, RecordError> {
    let status = json!({"metadata": {"uid": meta(stored, "uid"), "resourceVersion": meta(stored, "resourceVersion")},
        "status": {"epoch": epoch}});
    let record = Record { status: Some(status), ..Record::default() };
    fixture.cluster.record(&job(&meta(stored, "name")), record, Vec::new(), &Fence::open()).await
}

async fn seen_epoch(fixture: &Fixture, name: &str) -> Option<i64> {
    let observed = fixture.cluster.observe(&job(name), &[], Detail::Status).await.unwrap();
    observed.job.and_then(|job| job.status.as_ref()?.epoch)
}

#[tokio::test(start_paused = true)]
async fn a_round_sees_its_own_status_write_before_any_watch_does() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    fixture.faults.plan(Method::GET, "operationjobs", (1_000, Then::Hang));
    raise_epoch(&fixture, &stored, 1).await.unwrap();
    assert_eq!(seen_epoch(&fixture, "j").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_job_is_read_anew_after_a_conflict() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    fixture.patch(&format!("{JOBS}/j/status"), &json!({"status": {"epoch": 7}})).await;
    let error = raise_epoch(&fixture, &stored, 1).await.unwrap_err();
    assert!(matches!(error, RecordError::Conflict { .. }), "{error}");
    assert_eq!(seen_epoch(&fixture, "j").await, Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_status_write_whose_reply_was_lost_is_seen_by_the_next_round() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    fixture.faults.plan(Method::PATCH, "/j/status", (1, Then::DropConnection));
    let error = raise_epoch(&fixture, &stored, 3).await.unwrap_err();
    assert!(matches!(error, RecordError::Unknown { .. }), "{error}");
    assert_eq!(seen_epoch(&fixture, "j").await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_round_does_not_begin_while_the_outcome_of_the_last_write_is_unknown() {
    let fixture = Fixture::watching().await;
    let stored = fixture.known_job("j").await;
    let down = || Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    fixture.faults.plan(Method::PATCH, "/j/status", (1, down()));
    fixture.faults.plan(Method::GET, "/operationjobs/j", (1, down()));
    raise_epoch(&fixture, &stored, 3).await.unwrap_err();
    let error = fixture.cluster.observe(&job("j"), &[], Detail::Status).await.err().unwrap();
    assert!(error.to_string().contains("down"), "{error}");
    assert_eq!(seen_epoch(&fixture, "j").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_the_watch_does_not_show_is_listed() {
    let fixture = Fixture::bare().await;
    fixture.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    fixture.declare(pods(&[])).await;
    let stored = fixture.job("unseen").await;
    assert!(fixture.cluster.jobs().is_empty());
    // A term that counted the jobs by its cache would give away the pods that this job has claimed.
    let listed = JobRef { key: job("unseen"), uid: meta(&stored, "uid") };
    assert_eq!(fixture.cluster.list_jobs().await, Ok(vec![listed]));
}

#[tokio::test(start_paused = true)]
async fn a_live_read_shows_a_pod_before_the_watch_does() {
    let fixture = Fixture::watching().await;
    fixture.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    fixture.pod("late").await;
    let (late, absent) = (LiveRead::Object(pod("late")), LiveRead::Object(pod("absent")));
    let observed = fixture.cluster.observe(&job("j"), &[late.clone(), absent.clone()], Detail::Status).await.unwrap();
    assert!(observed.live.has(&late) && observed.live.has(&absent));
    assert!(observed.live.objects[&pod("late")].is_some());
    assert_eq!(observed.live.objects[&pod("absent")], None);
    assert!(fixture.shown("late").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_live_read_finds_gone_is_gone_though_the_watch_still_shows_it() {
    let mut fixture = Fixture::watching().await;
    fixture.pod("a").await;
    fixture.until("the pod", |cluster| cluster.store().count(&Kind::pod()) == 1).await;
    fixture.cluster.stop(std::time::Duration::ZERO).await;
    fixture.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    fixture.heard();
    let observed = fixture.cluster.observe(&job("j"), &[LiveRead::Object(pod("a"))], Detail::Status).await.unwrap();
    assert_eq!(observed.live.objects[&pod("a")], None);
    assert!(fixture.shown("a").is_none());
    assert_eq!(fixture.heard().len(), 1, "other jobs are told");
}

#[tokio::test(start_paused = true)]
async fn a_list_answers_many_reads_and_drops_absent_objects() {
    let fixture = Fixture::watching().await;
    for n in 0..12 {
        fixture.pod(&format!("p{n}")).await;
    }
    fixture.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 12).await;
    fixture.cluster.stop(std::time::Duration::ZERO).await;
    fixture.delete(&format!("{PODS}/p3"), &json!({"gracePeriodSeconds": 0})).await;
    let before = fixture.cluster.requests().count("pods", "get");
    let reads: Vec<LiveRead> = (0..30).map(|n| LiveRead::Object(pod(&format!("p{n}")))).collect();
    let observed = fixture.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap();
    assert_eq!(fixture.cluster.requests().count("pods", "get"), before);
    assert_eq!(observed.live.answered.len(), 30);
    assert_eq!(observed.live.objects.values().filter(|object| object.is_some()).count(), 11);
    assert!(fixture.shown("p3").is_none() && fixture.shown("p4").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_label_that_was_taken_away_is_noticed_by_a_live_read() {
    let fixture = Fixture::watching().await;
    fixture.pod_with("a", json!({"labels": {"app": "x"}})).await;
    fixture.pod_with("b", json!({"labels": {"app": "x"}})).await;
    fixture.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 2).await;
    fixture.cluster.stop(std::time::Duration::ZERO).await;
    fixture.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"app": "y"}}})).await;
    let read =
        LiveRead::Labelled { kind: Kind::pod(), namespace: "default".into(), label: "app".into(), value: "x".into() };
    let observed = fixture.cluster.observe(&job("j"), std::slice::from_ref(&read), Detail::Status).await.unwrap();
    assert!(observed.live.has(&read));
    assert_eq!(fixture.cluster.store().labelled(&Kind::pod(), "default", "app", "x").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_node_are_read_live_in_all_namespaces_and_those_that_are_gone_are_dropped() {
    let fixture = Fixture::watching().await;
    let mut declared = pods(&[]);
    declared.kinds.get_mut(&Kind::pod()).unwrap().fields_indexed.insert(NODE_NAME.to_owned());
    fixture.declare(declared).await;
    fixture.post("/api/v1/namespaces", &json!({"metadata": {"name": "far"}})).await;
    let pod = |namespace: &str, name: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
    };
    for (namespace, name, node) in [("default", "a", "n"), ("default", "b", "n"), ("default", "c", "m")] {
        fixture.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod(namespace, name, node)).await;
    }
    fixture.until("the pods", |cluster| cluster.store().on_node("n").len() == 2).await;
    fixture.cluster.stop(std::time::Duration::ZERO).await;
    fixture.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    fixture.post("/api/v1/namespaces/far/pods", &pod("far", "late", "n")).await;
    let read = LiveRead::OnNode { node: "n".into() };
    let observed = fixture.cluster.observe(&job("j"), std::slice::from_ref(&read), Detail::Status).await.unwrap();
    assert!(observed.live.has(&read), "{:?}", observed.live.failed);
    let names: Vec<_> = fixture.cluster.store().on_node("n").iter().map(|pod| pod.key.name.clone()).collect();
    assert_eq!(names, ["b", "late"]);
}

#[tokio::test(start_paused = true)]
async fn the_deployment_of_a_replica_set_is_learned_by_a_live_read() {
    let fixture = Fixture::watching().await;
    let deployment = fixture.workload("Deployment", "w", json!([])).await;
    let set = fixture.workload("ReplicaSet", "w-1", owned_by(&deployment)).await;
    let bare = fixture.workload("ReplicaSet", "bare", json!([])).await;
    fixture.pod_with("a", json!({"ownerReferences": owned_by(&set)})).await;
    fixture.pod_with("b", json!({"ownerReferences": owned_by(&bare)})).await;
    fixture.until("the pods", |cluster| cluster.store().count(&Kind::pod()) == 2).await;
    assert_eq!(fixture.cluster.store().unresolved(&Kind::pod(), "default").len(), 2);
    fixture.cluster.stop(std::time::Duration::ZERO).await;
    fixture.delete("/apis/apps/v1/namespaces/default/replicasets/bare", &json!({})).await;
    let read = LiveRead::Controllers { namespace: "default".into() };
    let observed = fixture.cluster.observe(&job("j"), &[read], Detail::Status).await.unwrap();
    assert!(observed.live.failed.is_empty(), "{:?}", observed.live.failed);
    let root = |name: &str| fixture.cluster.store().root(&fixture.shown(name).unwrap()).unwrap().unwrap();
    assert_eq!((root("a").kind.kind.as_str(), root("a").uid), ("Deployment", meta(&deployment, "uid")));
    assert_eq!(root("b").uid, meta(&bare, "uid"), "a set that is gone is not readed for again");
}

#[tokio::test(start_paused = true)]
async fn a_live_read_that_fails_is_data_and_the_round_goes_on() {
    let fixture = Fixture::watching().await;
    let forbidden = status(403, "Forbidden", "pods \"a\" is forbidden");
    fixture.faults.plan(Method::GET, "/pods/a", (1, Then::Answer(403, forbidden)));
    let unserved = LiveRead::All { kind: Kind::new("example.dev/v1", "Nothing"), namespace: "default".into() };
    let reads = [LiveRead::Object(pod("a")), unserved.clone()];
    let observed = fixture.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap();
    assert!(observed.live.failed[&reads[0]].message.contains("is forbidden"));
    assert!(observed.live.failed[&unserved].message.contains("does not serve"));
}

#[tokio::test(start_paused = true)]
async fn the_time_is_the_api_servers_where_the_hosts_clock_is_wrong() {
    let fixture = Fixture::bare().await;
    let wrong = fixture.sim.now() + std::time::Duration::from_secs(600);
    let client = fixture.faults.client(fixture.sim.service());
    let setup = oarlock_kube::Setup { client, clock: std::sync::Arc::new(move || wrong), identity: "h".into() };
    let (cluster, _events) = oarlock_kube::Cluster::open(setup);
    let observe = async || cluster.observe(&job("j"), &[LiveRead::Object(pod("a"))], Detail::Status).await.unwrap();
    // The port needs a few replies that agree; one reply does not suffice.
    while cluster.requests().count("pods", "get") < 3 {
        observe().await;
    }
    assert!(observe().await.now.duration_since(fixture.sim.now()).abs().as_secs() <= 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_only_read_shows_the_fields_that_were_declared_for_it_and_is_not_watched() {
    let fixture = Fixture::watching().await;
    let maps = Kind::new("v1", "ConfigMap");
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "colours"},
        "data": {"stamp": "blue"}, "immutable": true});
    fixture.post("/api/v1/namespaces/default/configmaps", &body).await;
    let key = ObjectKey { kind: maps.clone(), namespace: Some("default".into()), name: "colours".into() };
    let read = async |key: &ObjectKey| {
        let read = LiveRead::Object(key.clone());
        let observed = fixture.cluster.observe(&job("j"), &[read], Detail::Status).await.unwrap();
        observed.live.objects[key].as_ref().unwrap().fields.value()
    };
    let declared = WatchedKinds { read: [(maps.clone(), ["/data".to_owned()].into())].into(), ..pods(&[]) };
    fixture.declare(declared).await;
    assert_eq!(read(&key).await, json!({"data": {"stamp": "blue"}}));
    assert!(!fixture.cluster.store().keeps(&maps));
    fixture.declare(pods(&[])).await;
    assert_eq!(read(&key).await, json!({}), "nobody declares it any more");
}

#[tokio::test(start_paused = true)]
async fn whether_a_kind_is_served_is_asked_for_and_told_and_asked_again_when_it_is_old() {
    let fixture = Fixture::watching().await;
    let (maps, nothing) = (Kind::new("v1", "ConfigMap"), Kind::new("example.dev/v1", "Nothing"));
    let [maps_read, nothing_read] = [&maps, &nothing].map(|kind| LiveRead::Served(kind.clone()));
    let first = fixture.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap();
    assert!(!(first.served)(&maps), "nobody has asked");
    let reads = [maps_read.clone(), nothing_read.clone()];
    let asked = fixture.cluster.observe(&job("j"), &reads, Detail::Status).await.unwrap();
    assert!(asked.live.has(&maps_read) && asked.live.has(&nothing_read), "{:?}", asked.live.failed);
    assert_eq!([&maps, &nothing].map(|kind| (asked.served)(kind)), [true, false]);
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    let later = fixture.cluster.observe(&job("j"), &[], Detail::Status).await.unwrap();
    assert!(!(later.served)(&maps), "an old answer does not count");
    let again = fixture.cluster.observe(&job("j"), &[maps_read], Detail::Status).await.unwrap();
    assert!((again.served)(&maps));
}

#[tokio::test(start_paused = true)]
async fn the_targets_in_flight_of_a_job_with_a_selector_count_as_its_status_says() {
    let fixture = Fixture::watching().await;
    let made = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": "s"},
        "spec": {"action": "Replace", "selector": {"labelSelector": {"matchLabels": {"app": "web"}}}}});
    fixture.post(JOBS, &made).await;
    for (said, counted) in [(3, 3), (i32::MAX, 10_000)] {
        let status = json!({"status": {"plugin": {"name": "replace"}, "processingPodCount": said}});
        fixture.patch(&format!("{JOBS}/s/status"), &status).await;
        let counts = Some(("replace".to_owned(), counted));
        fixture.until("the status", |cluster| cluster.in_flight(&job("s")) == counts).await;
    }
}
