//! Tests each row of the table for the eviction mode. Source: docs/operationjob.md 6.2.

use std::time::Duration;

use oarlock_sdk::kit::{NOW, Sample, Visit, object, pod};
use oarlock_sdk::{Proposal, Report, Result, State};
use replace::Replace;
use serde_json::json;

const EVICTED: &str = "2026-01-31T11:59:00Z";
const LATER: &str = "2026-01-31T11:59:30Z";

/// Returns a pod of a ReplicaSet.
fn old() -> Sample {
    pod("old").controller("apps/v1", "ReplicaSet", "foo").created("2026-01-01T00:00:00Z")
}

/// Returns a pod that the ReplicaSet created later.
fn new(name: &str) -> Sample {
    pod(name).controller("apps/v1", "ReplicaSet", "foo").created(LATER)
}

fn ready(sample: Sample) -> Sample {
    sample.condition("Ready", "True", LATER)
}

/// Returns a visit after the pod was evicted and is gone.
fn gone() -> Visit {
    Visit::to_gone("old")
        .extra("Mode", "Evict")
        .extra("Owner", "ReplicaSet/foo/uid-of-foo")
        .extra("EvictedAt", EVICTED)
        .object(&object("apps/v1", "ReplicaSet", Some("default"), "foo"))
}

fn operate(visit: Visit) -> Result<Proposal> {
    visit.operate::<Replace>()
}

fn progress(visit: Visit) -> Report {
    visit.progress::<Replace>().unwrap()
}

fn taken(name: &str) -> Proposal {
    Proposal::new().extra("NewPod", name)
}

/// Adds the text for a claimed new pod that is not Ready and gives no reason.
fn unready(proposal: Proposal, name: &str) -> Proposal {
    proposal.waits_for("NewPod", &format!("pod {name} is not Ready"))
}

/// Returns the text for a controller that created no new pod.
fn none_made() -> Proposal {
    Proposal::new().waits_for("NewPod", "ReplicaSet foo has made no new pod; it may have been scaled down")
}

#[test]
fn pod_is_evicted_by_uid_and_the_mode_is_recorded() {
    let old = old();
    let proposal = operate(Visit::to(&old)).unwrap();
    assert_eq!(proposal.events()[0].reason, "EvictedPod");
    assert_eq!(proposal.without_events(), Proposal::new().extra("Mode", "Evict").evict(&old, None));
    let again = operate(Visit::to(&old).extra("Mode", "Evict")).unwrap();
    assert_eq!(again.without_events(), Proposal::new().evict(&old, None));
}

#[test]
fn grace_period_of_the_job_overrides_that_of_the_pod() {
    let old = old();
    let proposal = operate(Visit::to(&old).parameters(json!({"gracePeriodSeconds": 5}))).unwrap();
    assert_eq!(proposal.without_events(), Proposal::new().extra("Mode", "Evict").evict(&old, Some(5)));
}

#[test]
fn pod_without_controller_is_left_alone() {
    for target in [pod("old"), pod("old").deleted(LATER)] {
        let failure = operate(Visit::to(&target)).unwrap_err();
        assert!(!failure.is_retryable());
        assert_eq!(failure.reason(), "NoController");
    }
    let vanished = Visit::to_gone("old").parameters(json!({"strategy": "Evict"}));
    assert_eq!(operate(vanished).unwrap_err().reason(), "NoController");
}

#[test]
fn pod_of_a_controller_that_may_make_no_other_is_left_alone_and_the_kind_is_named() {
    for (api_version, kind) in [("batch/v1", "Job"), ("v1", "ReplicationController"), ("other.io/v1", "ReplicaSet")] {
        let failure = operate(Visit::to(&pod("old").controller(api_version, kind, "owner"))).unwrap_err();
        assert!(!failure.is_retryable());
        assert_eq!(failure.reason(), "NotReplaceable");
        assert!(failure.message().contains(&format!("belongs to {kind} owner")), "{}", failure.message());
    }
}

#[test]
fn mirror_pod_is_not_replaceable() {
    let mirror = pod("old").controller("v1", "Node", "node-1").annotation("kubernetes.io/config.mirror", "abc");
    assert_eq!(operate(Visit::to(&mirror)).unwrap_err().reason(), "NotReplaceable");
}

#[test]
fn pod_that_goes_already_is_adopted() {
    let mode = Proposal::new().extra("Mode", "Evict");
    assert_eq!(operate(Visit::to(&old().deleted(LATER))).unwrap(), mode);
    assert_eq!(operate(Visit::to(&old().deleted(LATER)).extra("Mode", "Evict")).unwrap(), Proposal::new());
    assert_eq!(operate(gone()).unwrap(), Proposal::new());
    // The pod lost its controller while it was terminating. The eviction goes on.
    assert_eq!(operate(Visit::to(&pod("old").deleted(LATER)).extra("Mode", "Evict")).unwrap(), Proposal::new());
}

#[test]
fn pod_that_is_still_there_is_waited_for() {
    for target in [old(), old().deleted(LATER)] {
        let visit = Visit::to(&target).extra("Mode", "Evict").object(&ready(new("new")));
        assert_eq!(progress(visit), Report::processing());
    }
}

#[test]
fn oldest_pod_of_the_same_controller_is_taken() {
    let younger = new("a").created("2026-01-31T11:59:40Z");
    assert_eq!(
        progress(gone().object(&younger).object(&new("b"))),
        Report::processing().with(unready(taken("b"), "b"))
    );
    assert_eq!(progress(gone().object(&ready(new("b")))), Report::succeeded().with(taken("b")));
}

#[test]
fn pod_that_is_not_the_successor_is_not_taken() {
    for (why, other) in [
        ("older than the eviction", new("b").created("2026-01-31T11:58:59Z")),
        ("of another controller", pod("b").controller("apps/v1", "ReplicaSet", "bar").created(LATER)),
        ("terminating", new("b").deleted(LATER)),
        ("barred", new("b").hold("uid-of-job", &["barred"])),
    ] {
        let report = progress(gone().object(&ready(other)));
        assert_eq!(report.proposal(), none_made(), "{why}");
        assert_eq!(report.state(), &State::Processing, "{why}");
    }
    let taken_by_another = progress(gone().object(&ready(new("b"))).claimed("b"));
    assert_eq!(taken_by_another, Report::processing().with(none_made()));
}

#[test]
fn two_targets_take_two_pods() {
    let both = || gone().object(&new("a")).object(&new("b"));
    assert_eq!(progress(both()).proposal(), unready(taken("a"), "a"));
    assert_eq!(progress(both().claimed("a")).proposal(), unready(taken("b"), "b"));
}

#[test]
fn pod_of_a_stateful_set_keeps_its_name() {
    let next = pod("old").uid("uid-2").controller("apps/v1", "StatefulSet", "foo").created(LATER);
    let visit = gone().extra("Owner", "StatefulSet/foo/uid-of-foo").object(&ready(next));
    assert_eq!(progress(visit), Report::succeeded().with(taken("old")));
}

#[test]
fn taken_pod_is_success_once_it_is_ready() {
    let waiting = gone().extra("NewPod", "b");
    let told = Report::processing().with(unready(Proposal::new(), "b"));
    assert_eq!(progress(waiting.clone().object(&new("b"))), told);
    assert_eq!(progress(waiting.clone().object(&new("b").condition("Ready", "False", LATER))), told);
    let goes = Proposal::new().waits_for("NewPod", "pod b is being deleted");
    assert_eq!(progress(waiting.clone().object(&ready(new("b")).deleted(LATER))), Report::processing().with(goes));
    assert_eq!(progress(waiting.object(&ready(new("b")))), Report::succeeded());
}

#[test]
fn taken_pod_has_to_be_ready_for_long_enough() {
    let visit = gone().extra("NewPod", "b").object(&ready(new("b"))).parameters(json!({"minReadySeconds": 40}));
    assert_eq!(progress(visit.clone()), Report::processing().check_after(Duration::from_secs(10)));
    assert_eq!(progress(visit.clone().now_ms(NOW + 9_999)), Report::processing().check_after(Duration::from_millis(1)));
    assert_eq!(progress(visit.now_ms(NOW + 10_000)), Report::succeeded());
}

#[test]
fn taken_pod_that_vanished_is_chosen_anew_after_a_look() {
    let waiting = gone().extra("NewPod", "b").object(&new("c"));
    assert_eq!(waiting.clone().before_look().progress::<Replace>().unwrap_err().reason(), "Unavailable");
    assert_eq!(progress(waiting.clone()), Report::processing().with(unready(taken("c"), "c")));
    // The live read shows that the pod still exists.
    assert_eq!(progress(waiting.unseen(&ready(new("b")))), Report::succeeded());
}

#[test]
fn pod_made_before_the_eviction_is_taken_once_the_controller_made_no_other() {
    let asked = |time: &str| gone().extra("EvictedAt", time).object(&new("surplus"));
    assert_eq!(progress(asked("2026-01-31T11:59:55Z")).proposal(), Proposal::new());
    assert_eq!(progress(asked("2026-01-31T11:59:50Z")).proposal(), unready(taken("surplus"), "surplus"));
    let both = asked("2026-01-31T11:59:40Z")
        .object(&pod("younger").controller("apps/v1", "ReplicaSet", "foo").created("2026-01-31T11:59:50Z"));
    assert_eq!(progress(both).proposal(), unready(taken("younger"), "younger"));
}

#[test]
fn controller_is_not_suspected_at_once() {
    let visit = gone().extra("EvictedAt", "2026-01-31T11:59:57Z").before_look();
    assert_eq!(progress(visit), Report::processing().check_after(Duration::from_secs(7)));
}

#[test]
fn controller_that_is_there_is_waited_for() {
    assert_eq!(gone().before_look().progress::<Replace>().unwrap_err().reason(), "Unavailable");
    assert_eq!(progress(gone()), Report::processing().with(none_made()));
}

#[test]
fn what_a_new_pod_lacks_is_told_after_ten_seconds_and_forgotten_once_it_serves() {
    let stuck = new("b").field(
        &["status", "conditions"],
        json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]),
    );
    let words = "pod b has no node: Unschedulable: 0/3 nodes";
    let visit = gone().extra("NewPod", "b");
    assert_eq!(progress(visit.clone().object(&stuck)).proposal(), Proposal::new().waits_for("NewPod", words));
    let early = visit.clone().extra("EvictedAt", "2026-01-31T11:59:57Z").object(&stuck);
    assert_eq!(progress(early), Report::processing().check_after(Duration::from_secs(7)));
    let serves = visit.extra("WaitsFor", &format!("NewPod: {words}")).object(&ready(new("b")));
    assert_eq!(progress(serves), Report::succeeded().with(Proposal::new().waits_no_more()));
}

/// Source: <https://github.com/kubernetes/kubernetes/issues/54525>.
#[test]
fn pod_that_had_ended_by_itself_was_replaced_before() {
    let failed =
        old().field(&["status", "conditions"], json!([{"type": "Ready", "status": "False", "reason": "PodFailed"}]));
    let begun = Proposal::new().extra("Mode", "Evict").extra("Ended", "true").evict(&failed, None);
    assert_eq!(operate(Visit::to(&failed)).unwrap().without_events(), begun);
    assert_eq!(progress(gone().extra("Ended", "true")).state(), &State::Succeeded);
    // A StatefulSet creates an ended pod again.
    let owner = object("apps/v1", "StatefulSet", Some("default"), "foo");
    let visit = gone().extra("Ended", "true").extra("Owner", "StatefulSet/foo/uid-of-foo").object(&owner);
    assert_eq!(progress(visit).state(), &State::Processing);
}

#[test]
fn controller_that_is_gone_creates_no_more_pods() {
    let orphaned = |owner: &str| Visit::to_gone("old").extra("Mode", "Evict").extra("Owner", owner).extra("Node", "n");
    for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"] {
        let report = progress(orphaned(&format!("{kind}/foo/uid-of-foo")));
        assert!(matches!(report.state(), State::Failed(error) if error.reason == "OwnerGone"), "{kind}");
    }
    // An object with the same name and another UID is another controller.
    let namesake = object("apps/v1", "ReplicaSet", Some("default"), "foo").uid("uid-2");
    let report = progress(orphaned("ReplicaSet/foo/uid-of-foo").object(&namesake));
    assert!(matches!(report.state(), State::Failed(error) if error.reason == "OwnerGone"));
    // The controller created one more pod before it was deleted.
    let last = progress(orphaned("ReplicaSet/foo/uid-of-foo").unseen(&new("b")));
    assert_eq!(last, Report::processing());
}

#[test]
fn controller_that_cannot_be_read_is_waited_for() {
    for owner in ["CloneSet/foo/u", "nonsense"] {
        let visit = Visit::to_gone("old").extra("Mode", "Evict").extra("Owner", owner);
        assert_eq!(progress(visit), Report::processing(), "{owner}");
    }
    assert_eq!(progress(Visit::to_gone("old").extra("Mode", "Evict").without_controller()), Report::processing());
}

#[test]
fn release_changes_nothing_and_says_what_happened() {
    let said = |visit: Visit| visit.extra("Mode", "Evict").release::<Replace>().unwrap();
    for (visit, words) in [
        (Visit::to(&old()), "was not evicted"),
        (Visit::to(&old().deleted(LATER)), "can't be undone"),
        (Visit::to_gone("old"), "is gone"),
    ] {
        let proposal = said(visit);
        assert!(proposal.events()[0].message.contains(words), "{proposal:?}");
        assert_eq!(proposal.without_events(), Proposal::new());
    }
    assert_eq!(Visit::to(&old()).release::<Replace>().unwrap(), Proposal::new());
}
