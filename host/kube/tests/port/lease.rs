//! Leadership and its fence.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http::Method;
use oarlock_kube::lease::config::LeaseConfig;
use oarlock_kube::lease::elector::LeaderElector;
use oarlock_kube::transport::requests::RequestLabels;
use oarlock_kube::{Cluster, Setup};
use oarlock_support::logged::Logged;
use serde_json::json;
use tokio::time::Instant;
use tracing::Level;

use crate::faults::{Faults, Then, status};
use crate::fixture::{Fixture, port};

pub(crate) const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/oarlock";

pub(crate) fn stand(cluster: &Cluster, identity: &str) -> LeaderElector {
    LeaderElector::stand(
        cluster,
        LeaseConfig {
            namespace: "default".into(),
            name: "oarlock".into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
        },
    )
}

pub(crate) async fn leads(elector: &LeaderElector) {
    let mut leadership = elector.leadership();
    let leading = leadership.wait_for(|now| now.leading);
    tokio::time::timeout(Duration::from_secs(120), leading).await.expect("leads in time").unwrap();
}

/// Returns a second process with its own connection.
fn rival(fixture: &Fixture) -> (Cluster, Faults) {
    let faults = Faults::default();
    let (cluster, _events) = port(&fixture.sim, &faults, "host-1");
    (cluster, faults)
}

#[tokio::test(start_paused = true)]
async fn the_first_process_leads_at_once_and_stays_while_it_renews() {
    let fixture = Fixture::bare().await;
    let first = stand(&fixture.cluster, "host-0");
    leads(&first).await;
    let (cluster, _faults) = rival(&fixture);
    let second = stand(&cluster, "host-1");
    let fence = first.fence();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(fence.allows() && !second.leadership().borrow().leading);
    assert_eq!(first.leadership().borrow().term, 1);
    let made = |labels: &RequestLabels| {
        (labels.resource.as_str(), labels.verb, labels.code.as_str()) == ("leases", "create", "201")
    };
    assert!(fixture.cluster.requests().snapshot().iter().any(|(labels, _)| made(labels)), "counted by its answer");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_is_fenced_before_another_leads() {
    let fixture = Fixture::bare().await;
    let first = stand(&fixture.cluster, "host-0");
    leads(&first).await;
    let fence = first.fence();
    let (cluster, _faults) = rival(&fixture);
    let second = stand(&cluster, "host-1");
    tokio::time::sleep(Duration::from_secs(30)).await;
    fixture.faults.plan(Method::PUT, "/leases/", (10_000, Then::Hang));
    fixture.faults.plan(Method::GET, "/leases/", (10_000, Then::Hang));
    let begun = Instant::now();
    while fence.allows() {
        assert!(!second.leadership().borrow().leading, "two led at once");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(begun.elapsed() <= Duration::from_secs(10));
    leads(&second).await;
    assert!(begun.elapsed() <= Duration::from_secs(17));
    assert!(!fence.allows());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_could_not_renew_for_long_leads_again_in_a_new_term() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    let old = elector.fence();
    fixture.faults.plan(
        Method::PUT,
        "/leases/",
        (10_000, Then::Answer(503, status(503, "ServiceUnavailable", "down"))),
    );
    elector.leadership().wait_for(|now| !now.leading).await.unwrap();
    fixture.faults.heal();
    leads(&elector).await;
    assert!(!old.allows() && elector.fence().allows());
    assert_eq!(elector.leadership().borrow().term, 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_finds_its_own_identity_leads_without_waiting() {
    let fixture = Fixture::bare().await;
    let first = stand(&fixture.cluster, "host-0");
    leads(&first).await;
    // A process that dies does not release its lease.
    fixture.faults.plan(Method::PUT, "/leases/", (10_000, Then::Hang));
    let (cluster, _faults) = rival(&fixture);
    let begun = Instant::now();
    leads(&stand(&cluster, "host-0")).await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(!first.fence().allows());
}

#[tokio::test(start_paused = true)]
async fn a_process_of_the_same_identity_that_took_over_ends_the_old_term() {
    let fixture = Fixture::bare().await;
    let first = stand(&fixture.cluster, "host-0");
    leads(&first).await;
    let fence = first.fence();
    let lease = fixture.get(LEASE).await.unwrap();
    let transitions = lease["spec"]["leaseTransitions"].as_i64().unwrap();
    fixture.patch(LEASE, &json!({"spec": {"leaseTransitions": transitions + 1}})).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!fence.allows());
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_of_one_identity_the_first_ends_and_names_the_other() {
    let fixture = Fixture::bare().await;
    let first = stand(&fixture.cluster, "host-0");
    leads(&first).await;
    let (cluster, _faults) = rival(&fixture);
    let second = stand(&cluster, "host-0");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let terms = first.leadership().borrow().term + second.leadership().borrow().term;
    assert_eq!(terms, 2, "they do not lead in turns");
    assert!(second.fence().allows() && !first.fence().allows());

    let lease = fixture.get(LEASE).await.unwrap();
    let other = lease["metadata"]["annotations"]["oarlock.dev/process"].as_str().unwrap();
    let error = first.resign().await.unwrap_err().to_string();
    assert!(error.contains(other) && error.contains("host-0") && error.contains("--identity"), "{error}");
    assert!(second.resign().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_renewal_ends_no_term() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    let fence = elector.fence();
    fixture.faults.plan(Method::PUT, "/leases/", (2, Then::DropConnection));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(fence.allows());
    assert_eq!(elector.leadership().borrow().term, 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_doubts_its_lease_looks_at_it_at_once() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    let (fence, begun) = (elector.fence(), Instant::now());
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(fence.confirm().await);
    fixture.patch(LEASE, &json!({"spec": {"holderIdentity": "host-1", "leaseTransitions": 9}})).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!fence.confirm().await && !elector.leadership().borrow().leading);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_looked_at_ends_the_doubt_with_the_term() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    fixture.faults.plan(Method::PUT, "/leases/", (1_000, Then::Hang));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let begun = Instant::now();
    assert!(!elector.fence().confirm().await);
    assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_is_taken_within_two_seconds() {
    let fixture = Fixture::bare().await;
    let first = stand(&fixture.cluster, "host-0");
    leads(&first).await;
    let (cluster, _faults) = rival(&fixture);
    let second = stand(&cluster, "host-1");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let fence = first.fence();
    let begun = Instant::now();
    first.resign().await.unwrap();
    assert!(!fence.allows());
    leads(&second).await;
    assert!(begun.elapsed() <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_back_although_the_process_resigns_while_a_renewal_is_under_way() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    fixture.faults.late_reply(Method::PUT, "/leases/", Duration::from_millis(300));
    let before = fixture.faults.count(Method::PUT, "/leases/");
    fixture.until("a renewal", |_| fixture.faults.count(Method::PUT, "/leases/") > before).await;
    elector.resign().await.unwrap();
    let lease = fixture.get(LEASE).await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"].as_str().unwrap_or_default(), "");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_keeps_no_process_from_ending() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    fixture.faults.plan(Method::PUT, "/leases/", (1_000, Then::Hang));
    let before = fixture.faults.count(Method::PUT, "/leases/");
    fixture.until("a renewal", |_| fixture.faults.count(Method::PUT, "/leases/") > before).await;
    let begun = Instant::now();
    elector.resign().await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(10), "one time-out each for the renewal and the release");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_machine_was_suspended_is_fenced_before_it_sends_anything() {
    let fixture = Fixture::bare().await;
    let slept = Arc::new(AtomicI64::new(0));
    let (begun, seconds) = ((fixture.sim.now(), Instant::now()), slept.clone());
    // The monotonic clock stands still while a machine is suspended; the wall clock goes on.
    let clock =
        move || begun.0 + begun.1.elapsed() + Duration::from_secs(seconds.load(Ordering::Relaxed).unsigned_abs());
    let client = fixture.faults.client(fixture.sim.service());
    let setup = Setup { client, clock: Arc::new(clock), identity: "host-0".into() };
    let (cluster, _events) = Cluster::open(setup);
    let elector = stand(&cluster, "host-0");
    leads(&elector).await;
    assert!(elector.fence().allows());
    slept.store(60, Ordering::Relaxed);
    assert!(!elector.fence().allows());
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_a_home_has_no_holder_and_says_why_until_it_is_taken() {
    let fixture = Fixture::bare().await;
    let config = LeaseConfig {
        namespace: "later".into(),
        name: "oarlock".into(),
        identity: "host-0".into(),
        duration: Duration::from_secs(15),
    };
    let elector = LeaderElector::stand(&fixture.cluster, config);
    let mut unheld = elector.unheld();
    assert!(unheld.borrow().as_ref().is_some_and(|why| why.contains("not read yet")));
    let says = |known: &Option<String>| known.as_ref().is_some_and(|why| why.contains("\"later\" not found"));
    tokio::time::timeout(Duration::from_secs(120), unheld.wait_for(says)).await.unwrap().unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "later"}});
    let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(fixture.admin.clone());
    let namespace = serde_json::from_value(namespace).unwrap();
    namespaces.create(&kube::api::PostParams::default(), &namespace).await.unwrap();
    leads(&elector).await;
    assert_eq!(*unheld.borrow(), None);
}

/// Creates the lease with this holder. An empty name means no holder.
async fn lease_of(fixture: &Fixture, holder: &str) {
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15});
    let lease =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "oarlock"}, "spec": spec});
    fixture.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", &lease).await;
}

/// Checks the condition every tenth of a second for this many seconds.
async fn always(elector: &LeaderElector, seconds: u64, holds: impl Fn(Option<&str>) -> bool) {
    for _ in 0..seconds * 10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let unheld = elector.unheld().borrow().clone();
        assert!(holds(unheld.as_deref()), "{unheld:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_free_lease_that_can_be_read_and_not_written_is_unheld_and_logged_once_until_that_is_over() {
    for (code, cause) in [(403, "Forbidden"), (422, "Invalid"), (503, "ServiceUnavailable")] {
        let fixture = Fixture::bare().await;
        lease_of(&fixture, "").await;
        fixture.faults.plan(Method::PUT, "/leases/", (10_000, Then::Answer(code, status(code, cause, "not by you"))));
        let logged = Logged::begin("oarlock_kube", Level::INFO);
        let elector = stand(&fixture.cluster, "host-0");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let refused = |why: &str| why.starts_with("failed to take the lease: ") && why.contains("not by you");
        always(&elector, 60, |unheld| unheld.is_some_and(refused)).await;
        // Another cause does not start another outage.
        fixture.faults.plan(Method::GET, "/leases/", (3, Then::DropConnection));
        always(&elector, 10, |unheld| unheld.is_some()).await;
        assert_eq!((logged.with("failed to").len(), logged.with("succeed").len()), (1, 0), "{:?}", logged.with(""));
        fixture.faults.heal();
        leads(&elector).await;
        assert_eq!(*elector.unheld().borrow(), None);
        assert_eq!((logged.with("failed to").len(), logged.with("succeed").len()), (1, 1), "{:?}", logged.with(""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_process_holds_is_held_until_it_has_run_out() {
    let fixture = Fixture::bare().await;
    lease_of(&fixture, "host-9").await;
    fixture.faults.plan(Method::PUT, "/leases/", (10_000, Then::Answer(403, status(403, "Forbidden", "not by you"))));
    let logged = Logged::begin("oarlock_kube", Level::INFO);
    let elector = stand(&fixture.cluster, "host-0");
    tokio::time::sleep(Duration::from_millis(500)).await;
    always(&elector, 13, |unheld| unheld.is_none()).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    always(&elector, 13, |unheld| unheld.is_some_and(|why| why.contains("not by you"))).await;
    // The holder is back.
    fixture.patch(LEASE, &json!({"spec": {"leaseTransitions": 7}})).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    always(&elector, 10, |unheld| unheld.is_none()).await;
    assert_eq!((logged.with("failed to").len(), logged.with("succeed").len()), (1, 1), "{:?}", logged.with(""));
    assert_eq!(logged.with("did not renew").len(), 1, "{:?}", logged.with(""));
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_leaves_the_lease_held_and_a_long_one_does_not() {
    let fixture = Fixture::bare().await;
    let elector = stand(&fixture.cluster, "host-0");
    leads(&elector).await;
    fixture.faults.plan(Method::PUT, "/leases/", (3, Then::Refuse(http::StatusCode::SERVICE_UNAVAILABLE)));
    always(&elector, 30, |unheld| unheld.is_none()).await;
    for method in [Method::PUT, Method::GET] {
        fixture.faults.plan(method, "/leases/", (10_000, Then::Refuse(http::StatusCode::SERVICE_UNAVAILABLE)));
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    always(&elector, 30, |unheld| unheld.is_some_and(|why| why.starts_with("failed to read the lease: "))).await;
    fixture.faults.heal();
    leads(&elector).await;
    assert_eq!(*elector.unheld().borrow(), None);
}
