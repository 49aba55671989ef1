//! Tests the eviction mode, in a cluster without OpenKruise. The tests of Replace cover the rows of its table. Source:
//! docs/operationjob.md 7.

use oarlock_sdk::kit::{Sample, Visit, pod};
use oarlock_sdk::{Proposal, Report, Result};
use restart::Restart;
use serde_json::{Value, json};

const LATER: &str = "2026-01-31T11:59:30Z";

/// Returns a pod with two containers and without a controller.
fn bare() -> Sample {
    pod("web").field(&["spec", "containers"], json!([{"name": "app"}, {"name": "log"}]))
}

/// Returns a pod of a ReplicaSet with two containers.
fn web() -> Sample {
    bare().controller("apps/v1", "ReplicaSet", "foo").created("2026-01-01T00:00:00Z")
}

fn without_kruise(visit: Visit) -> Visit {
    visit.unserved("apps.kruise.io/v1alpha1", "ContainerRecreateRequest")
}

fn visit(pod: &Sample) -> Visit {
    without_kruise(Visit::to(pod))
}

fn operate(visit: &Visit) -> Result<Proposal> {
    visit.operate::<Restart>()
}

fn refusal(visit: &Visit) -> (String, String) {
    let failure = operate(visit).unwrap_err();
    assert!(!failure.is_retryable());
    (failure.reason().to_owned(), failure.message().to_owned())
}

fn fallback(way: &str) -> Value {
    json!({"fallback": way})
}

#[test]
fn without_kruise_the_pod_is_evicted_and_the_mode_is_recorded() {
    let web = web();
    let expected = Proposal::new().extra("Mode", "Evict").evict(&web, None);
    assert_eq!(operate(&visit(&web)).unwrap().without_events(), expected);
    assert_eq!(operate(&visit(&web).parameters(fallback("Evict"))).unwrap().without_events(), expected);
    // A list of all containers means the same as an empty list.
    assert_eq!(operate(&visit(&web).containers(&["log", "app"])).unwrap().without_events(), expected);
    let grace = visit(&web).parameters(json!({"gracePeriodSeconds": 5}));
    assert_eq!(operate(&grace).unwrap().without_events(), Proposal::new().extra("Mode", "Evict").evict(&web, Some(5)));
}

#[test]
fn one_container_of_two_is_not_restarted_by_an_eviction() {
    let (reason, message) = refusal(&visit(&web()).containers(&["app"]));
    assert_eq!(reason, "RestartUnsupported");
    assert!(message.contains("does not list") && message.ends_with("nothing was done."), "{message}");
}

#[test]
fn a_job_without_fallback_evicts_nothing() {
    let (reason, message) = refusal(&visit(&web()).parameters(fallback("None")));
    assert_eq!(reason, "RestartUnsupported");
    assert!(message.contains("fallback is None"), "{message}");
}

#[test]
fn a_pod_that_nobody_would_make_anew_is_left_alone() {
    let (reason, message) = refusal(&visit(&bare()));
    assert_eq!(reason, "RestartUnsupported");
    assert!(message.contains("no controller"), "{message}");
    let job = bare().controller("batch/v1", "Job", "once");
    assert_eq!(refusal(&visit(&job)).0, "NotReplaceable");
    let mirror = bare().controller("v1", "Node", "node-1").annotation("kubernetes.io/config.mirror", "abc");
    assert_eq!(refusal(&visit(&mirror)).0, "NotReplaceable");
}

#[test]
fn a_container_that_the_pod_lacks_is_named() {
    let (reason, message) = refusal(&visit(&web()).containers(&["app", "log", "x"]).parameters(fallback("None")));
    assert_eq!(reason, "ContainerNotFound");
    assert!(message.contains("no container x"), "{message}");
}

#[test]
fn a_pod_that_went_by_itself_counts_as_evicted_where_all_of_it_was_meant() {
    let gone = || without_kruise(Visit::to_gone("web"));
    let adopted = operate(&gone().controller("ReplicaSet", "foo")).unwrap();
    assert_eq!(adopted, Proposal::new().extra("Mode", "Evict"));
    for left in [
        gone().without_controller(),
        gone().controller("ReplicaSet", "foo").containers(&["app"]),
        gone().controller("ReplicaSet", "foo").parameters(fallback("None")),
    ] {
        assert_eq!(refusal(&left).0, "PodNotFound");
    }
}

#[test]
fn succeeded_means_that_the_new_pod_is_ready() {
    let new = web().created(LATER).uid("uid-2").field(&["metadata", "name"], json!("web-2"));
    let gone = without_kruise(Visit::to_gone("web"))
        .extra("Mode", "Evict")
        .extra("Owner", "ReplicaSet/foo/uid-of-foo")
        .extra("EvictedAt", "2026-01-31T11:59:00Z");
    let taken = Proposal::new().extra("NewPod", "web-2");
    let waits = taken.clone().waits_for("NewPod", "pod web-2 is not Ready");
    assert_eq!(gone.clone().object(&new).progress::<Restart>().unwrap(), Report::processing().with(waits));
    let ready = new.condition("Ready", "True", LATER);
    assert_eq!(gone.object(&ready).progress::<Restart>().unwrap(), Report::succeeded().with(taken));
}

#[test]
fn a_target_keeps_its_way_when_kruise_comes() {
    let web = web();
    let begun = Visit::to(&web).extra("Mode", "Evict").containers(&["app", "log"]);
    assert_eq!(operate(&begun).unwrap().without_events(), Proposal::new().evict(&web, None));
    let released = begun.release::<Restart>().unwrap();
    assert_eq!((released.mutations().len(), released.events()[0].reason.as_str()), (0, "RestartReleased"));
}
