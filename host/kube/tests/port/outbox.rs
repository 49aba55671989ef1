//! The rules of the outbox: the writes it sends, those it does not send, and one result for every entry it took.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Entry, Stopped, Write};
use oarlock_core::job::key::JobRef;
use oarlock_kube::lease::{Fence, LeaderElector};
use oarlock_kube::watch::watches::{WatchedKind, WatchedKinds};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::apply::{evict, label, stopped};
use crate::faults::{Then, status};
use crate::lease::{LEASE, leads, stand};
use crate::scene::{JOBS, PODS, Scene, job, meta, pod};
use crate::watches::WIDGETS;

/// As many of one namespace as are sent at once.
const AT_ONCE: u32 = 24;

impl Scene {
    /// Waits until this many patches of the pod were sent.
    async fn patched(&self, name: &str, times: usize) {
        let path = format!("/pods/{name}");
        self.until("the patches", |_| self.faults.count(Method::PATCH, &path) == times).await;
    }

    /// One label for each of `targets`, on the pod of this UID.
    fn labels(&self, targets: std::ops::Range<u32>, name: &str, uid: &str) -> Vec<Entry> {
        targets.map(|index| self.entry(index, vec![label(name, uid)])).collect()
    }
}

fn unknown(stopped: Option<&Stopped>) -> bool {
    matches!(stopped, Some(Stopped::Unknown { .. }))
}

#[tokio::test(start_paused = true)]
async fn an_entry_whose_request_panics_has_an_unknown_outcome_and_its_target_goes_on() {
    let scene = Scene::with_job().await;
    let uid = meta(&scene.pod("a").await, "uid");
    scene.faults.plan(Method::PATCH, "/pods/a", (1, Then::Panic));
    let entry = scene.entry(0, vec![label("a", &uid)]);
    let job_uid = entry.job.uid.clone();
    let (outbox, mut results) = scene.outbox(vec![entry.clone()], &Fence::open()).await;
    let result = results.next(1).await.remove(0);
    assert!(unknown(result.stopped.as_ref()), "{result:?}");
    assert_eq!((&result.entry, result.done), (&entry, 0));
    assert!(result.sent.is_some());
    outbox.taken(&result);
    assert!(!outbox.is_busy(&job_uid, 0));
    outbox.apply(scene.recorded(vec![entry], &Fence::open()).await);
    assert_eq!(stopped(&results.next(1).await), None, "the outbox goes on");
    drop(outbox);
    assert!(results.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_outbox_reports_each_request_on_the_wire_as_unknown_and_drops_waiting_entries() {
    let scene = Scene::with_job().await;
    let uid = meta(&scene.pod("a").await, "uid");
    scene.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Hang));
    let (outbox, mut results) = scene.outbox(scene.labels(0..40, "a", &uid), &Fence::open()).await;
    scene.patched("a", 24).await;
    drop(outbox);
    let returned = results.rest().await;
    assert!(returned.iter().all(|result| unknown(result.stopped.as_ref()) && result.sent.is_some()), "{returned:?}");
    let targets: BTreeSet<_> = returned.iter().filter_map(|result| result.entry.index).collect();
    assert_eq!((returned.len(), targets), (24, (0..AT_ONCE).collect()));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 24);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_entry_is_never_sent() {
    let scene = Scene::with_job().await;
    let (a, b) = (meta(&scene.pod("a").await, "uid"), meta(&scene.pod("b").await, "uid"));
    scene.faults.plan(Method::PATCH, "/pods/a", (24, Then::Delay(Duration::from_secs(3))));
    let mut entries = scene.labels(0..AT_ONCE, "a", &a);
    entries.extend(scene.labels(50..52, "b", &b));
    let job_uid = entries[0].job.uid.clone();
    let (outbox, mut results) = scene.outbox(entries, &Fence::open()).await;
    scene.patched("a", 24).await;
    assert!(outbox.queue(|queue| queue.withdraw(&job_uid, 50)), "it waits, and may be decided anew");
    assert!(!outbox.queue(|queue| queue.withdraw(&job_uid, 0)), "it is on the wire");
    let returned = results.next(25).await;
    assert!(returned.iter().all(|result| result.stopped.is_none() && result.entry.index != Some(50)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/b"), 1);
    drop(outbox);
    assert!(results.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_newer_entry_of_a_target_replaces_the_one_that_waits_and_none_on_the_wire() {
    let scene = Scene::with_job().await;
    let (a, b) = (meta(&scene.pod("a").await, "uid"), meta(&scene.pod("b").await, "uid"));
    scene.faults.plan(Method::PATCH, "/pods/a", (24, Then::Delay(Duration::from_secs(3))));
    let mut entries = scene.labels(0..AT_ONCE, "a", &a);
    entries.extend(scene.labels(50..51, "b", &b));
    let (outbox, mut results) = scene.outbox(entries, &Fence::open()).await;
    scene.patched("a", 24).await;
    let newer = |index, name: &str, uid: &str| Entry { attempt: 2, ..scene.entry(index, vec![label(name, uid)]) };
    let newer = vec![newer(50, "b", &b), newer(0, "a", &a)];
    outbox.apply(scene.recorded(newer, &Fence::open()).await);
    let mut returned = results.next(25).await;
    returned.iter().for_each(|result| outbox.taken(result));
    returned.extend(results.next(1).await);
    let attempts = |index| {
        let of_target = returned.iter().filter(|result| result.entry.index == Some(index));
        of_target.map(|result| result.entry.attempt).collect::<Vec<_>>()
    };
    assert_eq!((attempts(50), attempts(0)), (vec![2], vec![1, 2]));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/b"), 1);
    drop(outbox);
    assert!(results.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_target_stays_busy_until_its_result_is_taken_in() {
    let scene = Scene::with_job().await;
    let uid = meta(&scene.pod("a").await, "uid");
    let entry = scene.entry(0, vec![label("a", &uid)]);
    let job_uid = entry.job.uid.clone();
    let (outbox, mut results) = scene.outbox(vec![entry.clone()], &Fence::open()).await;
    let result = results.next(1).await.remove(0);
    // A round that began before must not decide the target anew: its memory lacks this result.
    assert!(outbox.is_busy(&job_uid, 0) && !outbox.queue(|queue| queue.withdraw(&job_uid, 0)));
    assert!(!outbox.queue(|queue| queue.withdraw_job(&job_uid)), "the job is not forgotten before its last result");
    outbox.apply(scene.recorded(vec![entry], &Fence::open()).await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 1);
    outbox.taken(&result);
    assert_eq!(stopped(&results.next(1).await), None);
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_entry_decided_on_a_view_that_the_cache_has_left_is_not_sent() {
    let scene = Scene::with_job().await;
    let old = scene.pod("a").await;
    let new = scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let version = meta(&new, "resourceVersion");
    scene.until("the edit", |_| scene.shown("a").is_some_and(|pod| pod.resource_version == version)).await;
    let at = |pod: &Value, name: &str| {
        let metadata = json!({"uid": meta(pod, "uid"), "resourceVersion": meta(pod, "resourceVersion"),
            "labels": {"marked": "true"}});
        Write::patch(&self::pod(name), json!({"metadata": metadata}))
    };
    let uid = meta(&old, "uid");
    let outdated = vec![
        at(&old, "a"),
        evict("a", &uid, Some(meta(&old, "resourceVersion"))),
        label("a", "another"),
        at(&old, "never-seen"),
    ];
    let results = scene.apply(outdated, &Fence::open()).await;
    for result in &results {
        assert_eq!((result.stopped.clone(), result.sent), (Some(Stopped::NotSent), None), "{result:?}");
    }
    let requests = scene.faults.count(Method::PATCH, "/pods/") + scene.faults.count(Method::POST, "/eviction");
    assert_eq!(requests, 0);
    assert_eq!(stopped(&scene.apply(vec![at(&new, "a")], &Fence::open()).await), None);
}

#[tokio::test(start_paused = true)]
async fn a_view_that_ages_while_the_kind_is_asked_for_stops_the_write_too() {
    let scene = Scene::with_job().await;
    scene.install(WIDGETS).await;
    let kind = Kind::new("example.dev/v1", "Widget");
    scene
        .declare(WatchedKinds { kinds: [(kind.clone(), WatchedKind::default())].into(), ..WatchedKinds::default() })
        .await;
    let path = "/apis/example.dev/v1/namespaces/default/widgets";
    let widget = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let old = scene.post(path, &widget).await;
    let key = ObjectKey { kind, namespace: Some("default".into()), name: "w".into() };
    scene.until("the widget", |cluster| cluster.store().get(&key).is_some()).await;

    // The answer of discovery is too old by then, and the kind is asked for again.
    tokio::time::sleep(Duration::from_secs(90)).await;
    scene.faults.plan(Method::GET, "/apis/example.dev/v1", (1, Then::Delay(Duration::from_secs(3))));
    let metadata = json!({"uid": meta(&old, "uid"), "resourceVersion": meta(&old, "resourceVersion"),
        "labels": {"marked": "true"}});
    let entry = scene.entry(0, vec![Write::patch(&key, json!({"metadata": metadata}))]);
    let (_outbox, mut results) = scene.outbox(vec![entry], &Fence::open()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.patch(&format!("{path}/w"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let result = results.next(1).await.remove(0);
    assert_eq!((result.stopped, result.sent), (Some(Stopped::NotSent), None));
    assert_eq!(scene.faults.count(Method::PATCH, "/widgets/"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_kind_could_not_be_asked_for_is_not_called_refused() {
    let scene = Scene::with_job().await;
    let down = Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    scene.faults.plan(Method::GET, "/apis/example.dev/v1", (1, down));
    let kind = Kind::new("example.dev/v1", "Widget");
    let key = ObjectKey { kind, namespace: Some("default".into()), name: "w".into() };
    let write = || vec![Write::patch(&key, json!({"metadata": {"labels": {"x": "y"}}}))];
    let stopped_by = stopped(&scene.apply(write(), &Fence::open()).await);
    assert_eq!(stopped_by, Some(Stopped::Throttled { retry_after: None }), "it was not sent, and may be later");
    let stopped_by = stopped(&scene.apply(write(), &Fence::open()).await);
    assert!(matches!(&stopped_by, Some(Stopped::Refused { message }) if message.contains("does not serve")));
}

#[tokio::test(start_paused = true)]
async fn an_entry_of_a_job_that_was_deleted_and_made_anew_under_its_name_is_not_sent() {
    let scene = Scene::with_job().await;
    let uid = meta(&scene.pod("a").await, "uid");
    let before = scene.entry(0, vec![label("a", &uid)]);
    scene.delete(&format!("{JOBS}/j"), &json!({})).await;
    scene.until("no job", |cluster| cluster.jobs().is_empty()).await;
    let gone = scene.apply_entries(vec![before.clone()], &Fence::open()).await;
    assert_eq!((stopped(&gone), gone[0].sent), (Some(Stopped::NotSent), None));

    scene.known_job("j").await;
    let other = scene.apply_entries(vec![before], &Fence::open()).await;
    assert_eq!((stopped(&other), other[0].sent), (Some(Stopped::NotSent), None));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 0);
    let now = JobRef { key: job("j"), uid: scene.cluster.job_uid(&job("j")).unwrap() };
    assert_ne!(now.uid, other[0].entry.job.uid);
    assert_eq!(stopped(&scene.apply(vec![label("a", &uid)], &Fence::open()).await), None);
}

#[tokio::test(start_paused = true)]
async fn the_second_write_to_an_object_carries_the_version_that_the_first_reply_showed() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    let (uid, version) = (meta(&stored, "uid"), meta(&stored, "resourceVersion"));
    scene.until("the pod", |_| scene.shown("a").is_some()).await;
    let mark = json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {"marked": "true"}}});
    let writes = vec![Write::patch(&pod("a"), mark), evict("a", &uid, Some(version))];
    let result = scene.apply_entries(vec![scene.entry(0, writes)], &Fence::open()).await.remove(0);
    assert_eq!((result.done, result.stopped), (2, None));
    let gone = |cluster: &oarlock_kube::Cluster| cluster.store().get(&pod("a")).is_none_or(|pod| pod.terminating());
    scene.until("the pod terminating or gone", gone).await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_edit_between_two_writes_of_an_entry_stops_the_second() {
    let scene = Scene::with_job().await;
    let stored = scene.pod("a").await;
    let (uid, version) = (meta(&stored, "uid"), meta(&stored, "resourceVersion"));
    scene.until("the pod", |_| scene.shown("a").is_some()).await;
    // The reply to the first write comes late, and meanwhile the pod is edited.
    scene.faults.late_reply(Method::PATCH, "/pods/a", Duration::from_secs(3));
    let mark = json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {"marked": "true"}}});
    let writes = vec![Write::patch(&pod("a"), mark), evict("a", &uid, Some(version))];
    let (_outbox, mut results) = scene.outbox(vec![scene.entry(0, writes)], &Fence::open()).await;
    scene.patched("a", 1).await;
    scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let result = results.next(1).await.remove(0);
    assert_eq!((result.done, result.stopped), (1, Some(Stopped::NotSent)));
    assert_eq!(scene.faults.count(Method::POST, "/eviction"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_closing_outbox_drops_waiting_entries_and_gives_a_hanging_request_a_second_and_a_half() {
    let scene = Scene::with_job().await;
    let uid = meta(&scene.pod("a").await, "uid");
    scene.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Hang));
    let (outbox, mut results) = scene.outbox(scene.labels(0..40, "a", &uid), &Fence::open()).await;
    scene.patched("a", 24).await;
    let begun = Instant::now();
    outbox.close().await;
    assert_eq!(begun.elapsed().as_millis().div_ceil(10), 150);
    let returned = results.rest().await;
    assert!(returned.len() == 24 && returned.iter().all(|result| unknown(result.stopped.as_ref())));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 24);
}

#[tokio::test(start_paused = true)]
async fn a_closing_outbox_waits_no_longer_than_its_last_request() {
    let scene = Scene::with_job().await;
    let uid = meta(&scene.pod("a").await, "uid");
    for on_the_wire in [0, 1, 3] {
        scene.faults.plan(Method::PATCH, "/pods/a", (on_the_wire, Then::Delay(Duration::from_millis(200))));
        let before = scene.faults.count(Method::PATCH, "/pods/a");
        let entries = scene.labels(0..u32::try_from(on_the_wire).unwrap(), "a", &uid);
        let (outbox, mut results) = scene.outbox(entries, &Fence::open()).await;
        scene.patched("a", before + on_the_wire).await;
        let begun = Instant::now();
        outbox.close().await;
        assert!(begun.elapsed() <= Duration::from_millis(210), "{:?} for {on_the_wire}", begun.elapsed());
        let returned = results.rest().await;
        assert!(returned.len() == on_the_wire && returned.iter().all(|result| result.stopped.is_none()));
    }
}

async fn leader(scene: &Scene) -> LeaderElector {
    let elector = stand(&scene.cluster, "host-0");
    leads(&elector).await;
    elector
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_closed_stays_closed_though_a_late_renewal_succeeds() {
    let scene = Scene::with_job().await;
    let uid = meta(&scene.pod("a").await, "uid");
    let elector = leader(&scene).await;
    let mut leadership = elector.leadership();
    let begun = leadership.borrow().renewed;
    let fence = elector.fence();
    // One renewal hangs from 3 s to 8 s; the next one is sent at 9 s, arrives at 11 s and succeeds.
    scene.faults.plan(Method::PUT, "/leases/", (1, Then::Hang));
    scene.faults.plan(Method::PUT, "/leases/", (1, Then::Delay(Duration::from_secs(2))));
    scene.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Delay(Duration::from_millis(900))));
    tokio::time::sleep_until(begun + Duration::from_millis(9_500)).await;
    let (outbox, mut results) = scene.outbox(scene.labels(0..64, "a", &uid), &fence).await;
    let returned = results.next(64).await;
    let done = returned.iter().filter(|result| result.stopped.is_none()).count();
    let lost = returned.iter().filter(|result| result.stopped == Some(Stopped::LostLease)).count();
    assert_eq!((done, lost), (24, 40));
    assert!(begun.elapsed() < Duration::from_secs(11), "all of it before the renewal");

    leadership.wait_for(|now| now.renewed > begun).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(12) && leadership.borrow().leading, "the late renewal succeeded");
    assert!(!fence.allows() && !fence.clone().allows());
    outbox.apply(scene.recorded(scene.labels(100..110, "a", &uid), &fence).await);
    let later = results.next(10).await;
    assert!(later.iter().all(|result| result.stopped == Some(Stopped::LostLease) && result.sent.is_none()));
    assert_eq!(scene.faults.count(Method::PATCH, "/pods/a"), 24, "not one write after the fence closed");

    let term = leadership.borrow_and_update().term;
    elector.begin_anew(term);
    assert!(!elector.fence().allows(), "a term that is over has no open fence, also before the next one begins");
    let next = leadership.wait_for(|now| now.leading && now.term > term).await.unwrap().term;
    assert_eq!((term, next), (1, 2));
    let open = elector.fence();
    assert!(open.allows() && !fence.allows());
    scene.faults.heal();
    assert_eq!(stopped(&scene.apply(vec![label("a", &uid)], &open).await), None);
}

#[tokio::test(start_paused = true)]
async fn closed_resolves_when_the_window_ends_and_at_once_when_another_process_has_the_lease() {
    let scene = Scene::with_job().await;
    let elector = leader(&scene).await;
    let begun = elector.leadership().borrow().renewed;
    let fence = elector.fence();
    scene.faults.plan(Method::PUT, "/leases/", (1_000, Then::Hang));
    fence.closed().await;
    assert_eq!(begun.elapsed().as_millis().div_ceil(10), 1_000, "two thirds of 15 s");

    scene.faults.heal();
    let mut leadership = elector.leadership();
    elector.begin_anew(1);
    leadership.wait_for(|now| now.leading && now.term == 2).await.unwrap();
    let fence = elector.fence();
    let taken = json!({"spec": {"holderIdentity": "host-1", "leaseTransitions": 9}});
    let closed = tokio::spawn(async move {
        fence.closed().await;
        Instant::now()
    });
    scene.patch(LEASE, &taken).await;
    leadership.wait_for(|now| !now.leading).await.unwrap();
    let (known, closed) = (Instant::now(), closed.await.unwrap());
    assert!(closed.duration_since(known) < Duration::from_millis(10), "{:?}", closed.duration_since(known));
}
