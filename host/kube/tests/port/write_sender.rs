//! The rules of the write queue: it sends some writes, drops others, and returns one result for each batch that it took.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::JobRef;
use oarlock_core::requests::writes::{Stopped, Write, WriteBatch};
use oarlock_kube::lease::elector::LeaderElector;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::watch::objects::{WatchedKind, WatchedKinds};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::apply::{evict, label, stopped};
use crate::faults::{Then, status};
use crate::fixture::{Fixture, JOBS, PODS, job, meta, pod};
use crate::lease::{LEASE, leads, stand};
use crate::watches::WIDGETS;

/// The most writes of one namespace that are in flight at once.
const AT_ONCE: u32 = 24;

impl Fixture {
    /// Waits until the port has sent this many patches of the pod.
    async fn patched(&self, name: &str, times: usize) {
        let path = format!("/pods/{name}");
        self.until("the patches", |_| self.faults.count(Method::PATCH, &path) == times).await;
    }

    /// Returns one batch for each of `targets`, which labels the pod of this UID.
    fn labels(&self, targets: std::ops::Range<u32>, name: &str, uid: &str) -> Vec<WriteBatch> {
        targets.map(|index| self.entry(index, vec![label(name, uid)])).collect()
    }
}

fn unknown(stopped: Option<&Stopped>) -> bool {
    matches!(stopped, Some(Stopped::Unknown { .. }))
}

#[tokio::test(start_paused = true)]
async fn an_entry_whose_request_panics_has_an_unknown_outcome_and_its_target_goes_on() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    fixture.faults.plan(Method::PATCH, "/pods/a", (1, Then::Panic));
    let entry = fixture.entry(0, vec![label("a", &uid)]);
    let job_uid = entry.job.uid.clone();
    let (write_sender, mut results) = fixture.write_sender(vec![entry.clone()], &Fence::open()).await;
    let result = results.next(1).await.remove(0);
    assert!(unknown(result.stopped.as_ref()), "{result:?}");
    assert_eq!((&result.entry, result.done), (&entry, 0));
    assert!(result.sent.is_some());
    write_sender.acknowledge(&result);
    assert!(!write_sender.is_in_flight(&job_uid, 0));
    write_sender.apply(fixture.recorded(vec![entry], &Fence::open()).await);
    assert_eq!(stopped(&results.next(1).await), None, "the write sender goes on");
    drop(write_sender);
    assert!(results.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_outbox_reports_each_request_on_the_wire_as_unknown_and_drops_waiting_entries() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    fixture.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Hang));
    let (write_sender, mut results) = fixture.write_sender(fixture.labels(0..40, "a", &uid), &Fence::open()).await;
    fixture.patched("a", 24).await;
    drop(write_sender);
    let returned = results.rest().await;
    assert!(returned.iter().all(|result| unknown(result.stopped.as_ref()) && result.sent.is_some()), "{returned:?}");
    let targets: BTreeSet<_> = returned.iter().filter_map(|result| result.entry.index).collect();
    assert_eq!((returned.len(), targets), (24, (0..AT_ONCE).collect()));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 24);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_entry_is_never_sent() {
    let fixture = Fixture::with_job().await;
    let (a, b) = (meta(&fixture.pod("a").await, "uid"), meta(&fixture.pod("b").await, "uid"));
    fixture.faults.plan(Method::PATCH, "/pods/a", (24, Then::Delay(Duration::from_secs(3))));
    let mut entries = fixture.labels(0..AT_ONCE, "a", &a);
    entries.extend(fixture.labels(50..52, "b", &b));
    let job_uid = entries[0].job.uid.clone();
    let (write_sender, mut results) = fixture.write_sender(entries, &Fence::open()).await;
    fixture.patched("a", 24).await;
    assert!(write_sender.queue(|queue| queue.withdraw(&job_uid, 50)), "it waits, and may be decided anew");
    assert!(!write_sender.queue(|queue| queue.withdraw(&job_uid, 0)), "it is on the wire");
    let returned = results.next(25).await;
    assert!(returned.iter().all(|result| result.stopped.is_none() && result.entry.index != Some(50)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/b"), 1);
    drop(write_sender);
    assert!(results.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_newer_entry_of_a_target_replaces_the_one_that_waits_and_none_on_the_wire() {
    let fixture = Fixture::with_job().await;
    let (a, b) = (meta(&fixture.pod("a").await, "uid"), meta(&fixture.pod("b").await, "uid"));
    fixture.faults.plan(Method::PATCH, "/pods/a", (24, Then::Delay(Duration::from_secs(3))));
    let mut entries = fixture.labels(0..AT_ONCE, "a", &a);
    entries.extend(fixture.labels(50..51, "b", &b));
    let (write_sender, mut results) = fixture.write_sender(entries, &Fence::open()).await;
    fixture.patched("a", 24).await;
    let newer =
        |index, name: &str, uid: &str| WriteBatch { attempt: 2, ..fixture.entry(index, vec![label(name, uid)]) };
    let newer = vec![newer(50, "b", &b), newer(0, "a", &a)];
    write_sender.apply(fixture.recorded(newer, &Fence::open()).await);
    let mut returned = results.next(25).await;
    returned.iter().for_each(|result| write_sender.acknowledge(result));
    returned.extend(results.next(1).await);
    let attempts = |index| {
        let of_target = returned.iter().filter(|result| result.entry.index == Some(index));
        of_target.map(|result| result.entry.attempt).collect::<Vec<_>>()
    };
    assert_eq!((attempts(50), attempts(0)), (vec![2], vec![1, 2]));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/b"), 1);
    drop(write_sender);
    assert!(results.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_target_stays_busy_until_its_result_is_taken_in() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    let entry = fixture.entry(0, vec![label("a", &uid)]);
    let job_uid = entry.job.uid.clone();
    let (write_sender, mut results) = fixture.write_sender(vec![entry.clone()], &Fence::open()).await;
    let result = results.next(1).await.remove(0);
    // A round that began earlier must not decide the target again: its memory lacks this result.
    assert!(write_sender.is_in_flight(&job_uid, 0) && !write_sender.queue(|queue| queue.withdraw(&job_uid, 0)));
    assert!(
        !write_sender.queue(|queue| queue.withdraw_job(&job_uid)),
        "the job is not forgotten before its last result"
    );
    write_sender.apply(fixture.recorded(vec![entry], &Fence::open()).await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 1);
    write_sender.acknowledge(&result);
    assert_eq!(stopped(&results.next(1).await), None);
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_entry_decided_on_a_view_that_the_cache_has_left_is_not_sent() {
    let fixture = Fixture::with_job().await;
    let old = fixture.pod("a").await;
    let new = fixture.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let version = meta(&new, "resourceVersion");
    fixture.until("the edit", |_| fixture.shown("a").is_some_and(|pod| pod.resource_version == version)).await;
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
    let results = fixture.apply(outdated, &Fence::open()).await;
    for result in &results {
        assert_eq!((result.stopped.clone(), result.sent), (Some(Stopped::NotSent), None), "{result:?}");
    }
    let requests = fixture.faults.count(Method::PATCH, "/pods/") + fixture.faults.count(Method::POST, "/eviction");
    assert_eq!(requests, 0);
    assert_eq!(stopped(&fixture.apply(vec![at(&new, "a")], &Fence::open()).await), None);
}

#[tokio::test(start_paused = true)]
async fn a_view_that_ages_while_the_kind_is_asked_for_stops_the_write_too() {
    let fixture = Fixture::with_job().await;
    fixture.install(WIDGETS).await;
    let kind = Kind::new("example.dev/v1", "Widget");
    fixture
        .declare(WatchedKinds { kinds: [(kind.clone(), WatchedKind::default())].into(), ..WatchedKinds::default() })
        .await;
    let path = "/apis/example.dev/v1/namespaces/default/widgets";
    let widget = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let old = fixture.post(path, &widget).await;
    let key = ObjectKey { kind, namespace: Some("default".into()), name: "w".into() };
    fixture.until("the widget", |cluster| cluster.store().get(&key).is_some()).await;

    // The discovery answer is too old by then, so the port asks for the kind again.
    tokio::time::sleep(Duration::from_secs(90)).await;
    fixture.faults.plan(Method::GET, "/apis/example.dev/v1", (1, Then::Delay(Duration::from_secs(3))));
    let metadata = json!({"uid": meta(&old, "uid"), "resourceVersion": meta(&old, "resourceVersion"),
        "labels": {"marked": "true"}});
    let entry = fixture.entry(0, vec![Write::patch(&key, json!({"metadata": metadata}))]);
    let (_outbox, mut results) = fixture.write_sender(vec![entry], &Fence::open()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.patch(&format!("{path}/w"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let result = results.next(1).await.remove(0);
    assert_eq!((result.stopped, result.sent), (Some(Stopped::NotSent), None));
    assert_eq!(fixture.faults.count(Method::PATCH, "/widgets/"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_kind_could_not_be_asked_for_is_not_called_refused() {
    let fixture = Fixture::with_job().await;
    let down = Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    fixture.faults.plan(Method::GET, "/apis/example.dev/v1", (1, down));
    let kind = Kind::new("example.dev/v1", "Widget");
    let key = ObjectKey { kind, namespace: Some("default".into()), name: "w".into() };
    let write = || vec![Write::patch(&key, json!({"metadata": {"labels": {"x": "y"}}}))];
    let stopped_by = stopped(&fixture.apply(write(), &Fence::open()).await);
    assert_eq!(stopped_by, Some(Stopped::Throttled { retry_after: None }), "it was not sent, and may be later");
    let stopped_by = stopped(&fixture.apply(write(), &Fence::open()).await);
    assert!(matches!(&stopped_by, Some(Stopped::Refused { message }) if message.contains("does not serve")));
}

#[tokio::test(start_paused = true)]
async fn an_entry_of_a_job_that_was_deleted_and_made_anew_under_its_name_is_not_sent() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    let before = fixture.entry(0, vec![label("a", &uid)]);
    fixture.delete(&format!("{JOBS}/j"), &json!({})).await;
    fixture.until("no job", |cluster| cluster.jobs().is_empty()).await;
    let gone = fixture.apply_entries(vec![before.clone()], &Fence::open()).await;
    assert_eq!((stopped(&gone), gone[0].sent), (Some(Stopped::NotSent), None));

    fixture.known_job("j").await;
    let other = fixture.apply_entries(vec![before], &Fence::open()).await;
    assert_eq!((stopped(&other), other[0].sent), (Some(Stopped::NotSent), None));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 0);
    let now = JobRef { key: job("j"), uid: fixture.cluster.job_uid(&job("j")).unwrap() };
    assert_ne!(now.uid, other[0].entry.job.uid);
    assert_eq!(stopped(&fixture.apply(vec![label("a", &uid)], &Fence::open()).await), None);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_edit_between_two_writes_of_an_entry_stops_the_second() {
    let fixture = Fixture::with_job().await;
    let stored = fixture.pod("a").await;
    let (uid, version) = (meta(&stored, "uid"), meta(&stored, "resourceVersion"));
    fixture.until("the pod", |_| fixture.shown("a").is_some()).await;
    // The reply to the first write is late, and another client edits the pod meanwhile.
    fixture.faults.late_reply(Method::PATCH, "/pods/a", Duration::from_secs(3));
    let mark = json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {"marked": "true"}}});
    let writes = vec![Write::patch(&pod("a"), mark), evict("a", &uid, Some(version))];
    let (_outbox, mut results) = fixture.write_sender(vec![fixture.entry(0, writes)], &Fence::open()).await;
    fixture.patched("a", 1).await;
    fixture.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
    let result = results.next(1).await.remove(0);
    assert_eq!((result.done, result.stopped), (1, Some(Stopped::NotSent)));
    assert_eq!(fixture.faults.count(Method::POST, "/eviction"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_closing_outbox_drops_waiting_entries_and_gives_a_hanging_request_a_second_and_a_half() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    fixture.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Hang));
    let (write_sender, mut results) = fixture.write_sender(fixture.labels(0..40, "a", &uid), &Fence::open()).await;
    fixture.patched("a", 24).await;
    let begun = Instant::now();
    write_sender.close().await;
    assert_eq!(begun.elapsed().as_millis().div_ceil(10), 150);
    let returned = results.rest().await;
    assert!(returned.len() == 24 && returned.iter().all(|result| unknown(result.stopped.as_ref())));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 24);
}

#[tokio::test(start_paused = true)]
async fn a_closing_outbox_waits_no_longer_than_its_last_request() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    for on_the_wire in [0, 1, 3] {
        fixture.faults.plan(Method::PATCH, "/pods/a", (on_the_wire, Then::Delay(Duration::from_millis(200))));
        let before = fixture.faults.count(Method::PATCH, "/pods/a");
        let entries = fixture.labels(0..u32::try_from(on_the_wire).unwrap(), "a", &uid);
        let (write_sender, mut results) = fixture.write_sender(entries, &Fence::open()).await;
        fixture.patched("a", before + on_the_wire).await;
        let begun = Instant::now();
        write_sender.close().await;
        assert!(begun.elapsed() <= Duration::from_millis(210), "{:?} for {on_the_wire}", begun.elapsed());
        let returned = results.rest().await;
        assert!(returned.len() == on_the_wire && returned.iter().all(|result| result.stopped.is_none()));
    }
}

async fn leader(fixture: &Fixture) -> LeaderElector {
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    elector
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_closed_stays_closed_though_a_late_renewal_succeeds() {
    let fixture = Fixture::with_job().await;
    let uid = meta(&fixture.pod("a").await, "uid");
    let elector = leader(&fixture).await;
    let mut leadership = elector.leadership();
    let begun = leadership.borrow().renewed;
    let fence = elector.fence();
    // One renewal hangs from 3 s to 8 s. The next one is sent at 9 s, arrives at 11 s and succeeds.
    fixture.faults.plan(Method::PUT, "/leases/", (1, Then::Hang));
    fixture.faults.plan(Method::PUT, "/leases/", (1, Then::Delay(Duration::from_secs(2))));
    fixture.faults.plan(Method::PATCH, "/pods/a", (1_000, Then::Delay(Duration::from_millis(900))));
    tokio::time::sleep_until(begun + Duration::from_millis(9_500)).await;
    let (write_sender, mut results) = fixture.write_sender(fixture.labels(0..64, "a", &uid), &fence).await;
    let returned = results.next(64).await;
    let done = returned.iter().filter(|result| result.stopped.is_none()).count();
    let lost = returned.iter().filter(|result| result.stopped == Some(Stopped::LostLease)).count();
    assert_eq!((done, lost), (24, 40));
    assert!(begun.elapsed() < Duration::from_secs(11), "all of it before the renewal");

    leadership.wait_for(|now| now.renewed > begun).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(12) && leadership.borrow().leading, "the late renewal succeeded");
    assert!(!fence.allows() && !fence.clone().allows());
    write_sender.apply(fixture.recorded(fixture.labels(100..110, "a", &uid), &fence).await);
    let later = results.next(10).await;
    assert!(later.iter().all(|result| result.stopped == Some(Stopped::LostLease) && result.sent.is_none()));
    assert_eq!(fixture.faults.count(Method::PATCH, "/pods/a"), 24, "not one write after the fence closed");

    let term = leadership.borrow_and_update().term;
    elector.begin_anew(term);
    assert!(!elector.fence().allows(), "a term that is over has no open fence, also before the next one begins");
    let next = leadership.wait_for(|now| now.leading && now.term > term).await.unwrap().term;
    assert_eq!((term, next), (1, 2));
    let open = elector.fence();
    assert!(open.allows() && !fence.allows());
    fixture.faults.heal();
    assert_eq!(stopped(&fixture.apply(vec![label("a", &uid)], &open).await), None);
}

#[tokio::test(start_paused = true)]
async fn closed_resolves_when_the_window_ends_and_at_once_when_another_process_has_the_lease() {
    let fixture = Fixture::with_job().await;
    let elector = leader(&fixture).await;
    let begun = elector.leadership().borrow().renewed;
    let fence = elector.fence();
    fixture.faults.plan(Method::PUT, "/leases/", (1_000, Then::Hang));
    fence.closed().await;
    assert_eq!(begun.elapsed().as_millis().div_ceil(10), 1_000, "two thirds of 15 s");

    fixture.faults.heal();
    let mut leadership = elector.leadership();
    elector.begin_anew(1);
    leadership.wait_for(|now| now.leading && now.term == 2).await.unwrap();
    let fence = elector.fence();
    let other_holder = json!({"spec": {"holderIdentity": "host-1", "leaseTransitions": 9}});
    let closed = tokio::spawn(async move {
        fence.closed().await;
        Instant::now()
    });
    fixture.patch(LEASE, &other_holder).await;
    leadership.wait_for(|now| !now.leading).await.unwrap();
    let (known, closed) = (Instant::now(), closed.await.unwrap());
    assert!(closed.duration_since(known) < Duration::from_millis(10), "{:?}", closed.duration_since(known));
}
