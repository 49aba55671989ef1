//! Tests of each step of a ContainerRecreateRequest, as OpenKruise makes it.

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStateRunning, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::world::recreate_requests::{RecreateSpec, RecreateStatus, StatusContext};
use crate::world::samples;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const UNBROKEN: Fault<'_> = &|_| None;

/// Returns a pod of containers, each with its restarts and its readiness. All containers run since [`NOW`].
fn pod(containers: &[(&str, i32, bool)]) -> Pod {
    let mut pod = samples::pod("web").0;
    let container = |name: &str| Container { name: name.to_owned(), ..Container::default() };
    let spec =
        PodSpec { containers: containers.iter().map(|(name, ..)| container(name)).collect(), ..PodSpec::default() };
    let running = ContainerStateRunning { started_at: Some(Time(NOW)) };
    let status = |(name, restart_count, ready): &(&str, i32, bool)| ContainerStatus {
        name: (*name).to_owned(),
        restart_count: *restart_count,
        ready: *ready,
        state: Some(ContainerState { running: Some(running.clone()), ..ContainerState::default() }),
        ..ContainerStatus::default()
    };
    pod.spec = Some(spec);
    pod.status.get_or_insert_default().container_statuses = Some(containers.iter().map(status).collect());
    pod
}

/// Returns a request for containers, each of which had two restarts when the request was accepted.
fn request(containers: &[&str], phase: &str, states: &[(&str, &str)]) -> RecreateRequest {
    let container = |name: &&str| RecreateContainer {
        name: (*name).to_owned(),
        status_context: Some(StatusContext { restart_count: 2 }),
    };
    let state = |(name, phase): &(&str, &str)| RecreateState {
        name: (*name).to_owned(),
        phase: (*phase).to_owned(),
        message: String::new(),
    };
    RecreateRequest {
        place: ("demo".to_owned(), "request".to_owned()),
        uid: "uid".to_owned(),
        version: 1,
        created: None,
        is_terminating: false,
        pod_uid: Some("uid-web".to_owned()),
        spec: RecreateSpec {
            pod_name: "web".to_owned(),
            containers: containers.iter().map(container).collect(),
            ..RecreateSpec::default()
        },
        status: RecreateStatus {
            phase: phase.to_owned(),
            container_recreate_states: states.iter().map(state).collect(),
        },
    }
}

fn said(phase: &str, states: &[(&str, &str)]) -> Value {
    let states: Vec<Value> = states.iter().map(|(name, phase)| json!({ "name": name, "phase": phase })).collect();
    json!({ "phase": phase, "containerRecreateStates": states })
}

fn ended(states: &[(&str, &str)], message: Option<&str>) -> Value {
    let mut status = said(COMPLETED, states);
    status["completionTime"] = json!("1970-01-01T00:00:00Z");
    if let Some(message) = message {
        status["message"] = json!(message);
    }
    status
}

fn restart_of(names: &[&str]) -> RecreateStep {
    RecreateStep::Restart(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn a_request_is_accepted_with_the_identity_of_its_pod_and_the_restarts_so_far() {
    let mut fresh = request(&["app"], "", &[]);
    fresh.pod_uid = None;
    fresh.spec.containers[0].status_context = None;
    let step = recreate(&fresh, Some(&pod(&[("app", 2, true)])), UNBROKEN, NOW);
    let RecreateStep::Accept { labels, containers } = step else { panic!("{step:?}") };
    assert_eq!((&labels[POD_UID], &containers[0]["statusContext"]["restartCount"]), (&json!("uid-web"), &json!(2)));
}

#[test]
fn an_accepted_request_is_pending_until_the_daemon_takes_it_up() {
    let pod = pod(&[("app", 2, true)]);
    let step = recreate(&request(&["app"], "", &[]), Some(&pod), UNBROKEN, NOW);
    assert_eq!(step, RecreateStep::Say(said(PENDING, &[("app", PENDING)])));
    let step = recreate(&request(&["app"], PENDING, &[("app", PENDING)]), Some(&pod), UNBROKEN, NOW);
    assert_eq!(step, RecreateStep::Begin(said(RECREATING, &[("app", PENDING)])));
}

#[test]
fn waiting_containers_are_restarted_once() {
    let both = request(&["app", "log"], RECREATING, &[("app", PENDING), ("log", PENDING)]);
    let step = |containers: &[(&str, i32, bool)]| recreate(&both, Some(&pod(containers)), UNBROKEN, NOW);
    assert_eq!(step(&[("app", 2, true), ("log", 2, true)]), restart_of(&["app", "log"]));
    // One container was restarted and the reply was lost. The container is not restarted again.
    assert_eq!(step(&[("app", 3, false), ("log", 2, true)]), restart_of(&["log"]));
    let states = said(RECREATING, &[("app", RECREATING), ("log", RECREATING)]);
    assert_eq!(step(&[("app", 3, false), ("log", 3, false)]), RecreateStep::Say(states));
}

#[test]
fn ordered_containers_are_restarted_one_after_the_other() {
    let mut both = request(&["app", "log"], RECREATING, &[("app", PENDING), ("log", PENDING)]);
    both.spec.strategy.ordered_recreate = true;
    let step = |containers: &[(&str, i32, bool)]| recreate(&both, Some(&pod(containers)), UNBROKEN, NOW);
    assert_eq!(step(&[("app", 2, true), ("log", 2, true)]), restart_of(&["app"]));
    let waits = said(RECREATING, &[("app", RECREATING), ("log", PENDING)]);
    assert_eq!(step(&[("app", 3, false), ("log", 2, true)]), RecreateStep::Say(waits));
    assert_eq!(step(&[("app", 3, true), ("log", 2, true)]), restart_of(&["log"]));
}

#[test]
fn a_request_is_complete_once_each_container_is_ready_and_then_rests() {
    let one = request(&["app"], RECREATING, &[("app", RECREATING)]);
    let step = |restarts, ready| recreate(&one, Some(&pod(&[("app", restarts, ready)])), UNBROKEN, NOW);
    assert_eq!(step(3, false), RecreateStep::Rest);
    assert_eq!(step(3, true), RecreateStep::Say(ended(&[("app", SUCCEEDED)], None)));
    for phase in [COMPLETED, SUCCEEDED, FAILED] {
        let over = request(&["app"], phase, &[("app", PENDING)]);
        assert_eq!(recreate(&over, Some(&pod(&[("app", 2, true)])), UNBROKEN, NOW), RecreateStep::Rest);
    }
}

#[test]
fn a_container_has_to_run_for_long_enough() {
    let mut one = request(&["app"], RECREATING, &[("app", RECREATING)]);
    one.spec.strategy.min_started_seconds = 10;
    let at = |seconds| {
        let now = Timestamp::from_second(seconds).unwrap();
        recreate(&one, Some(&pod(&[("app", 3, true)])), UNBROKEN, now)
    };
    assert_eq!(at(4), RecreateStep::Wait(Duration::from_secs(6)));
    assert!(matches!(at(10), RecreateStep::Say(status) if status["phase"] == COMPLETED));
}

#[test]
fn a_container_that_cannot_be_restarted_fails_when_its_turn_comes_and_ends_the_request() {
    let fault: Fault<'_> = &|name| (name == "log").then(|| "no such process".to_owned());
    let both = |states| request(&["app", "log"], RECREATING, states);
    let waiting = both(&[("app", PENDING), ("log", PENDING)]);
    assert_eq!(recreate(&waiting, Some(&pod(&[("app", 2, true), ("log", 2, true)])), fault, NOW), restart_of(&["app"]));
    let step = recreate(&waiting, Some(&pod(&[("app", 3, false), ("log", 2, true)])), fault, NOW);
    let RecreateStep::Say(status) = step else { panic!("{step:?}") };
    let failed = json!({ "name": "log", "phase": FAILED, "message": "no such process" });
    assert_eq!((&status["phase"], &status["containerRecreateStates"][1]), (&json!(RECREATING), &failed));
    let one_failed = both(&[("app", RECREATING), ("log", FAILED)]);
    let step = recreate(&one_failed, Some(&pod(&[("app", 3, false), ("log", 2, true)])), fault, NOW);
    assert_eq!(step, RecreateStep::Say(ended(&[("app", RECREATING), ("log", FAILED)], None)));
    let mut ignoring = one_failed;
    ignoring.spec.strategy.failure_policy = Some("Ignore".to_owned());
    let step = recreate(&ignoring, Some(&pod(&[("app", 3, false), ("log", 2, true)])), fault, NOW);
    assert_eq!(step, RecreateStep::Rest, "it waits for the other container");
}

#[test]
fn a_container_that_the_pod_lacks_fails() {
    let step = recreate(&request(&["gone"], RECREATING, &[]), Some(&pod(&[("app", 2, true)])), UNBROKEN, NOW);
    let RecreateStep::Say(status) = step else { panic!("{step:?}") };
    assert_eq!((&status["phase"], &status["containerRecreateStates"][0]["phase"]), (&json!(COMPLETED), &json!(FAILED)));
}

#[test]
fn a_request_whose_pod_is_gone_or_goes_or_is_another_one_is_over() {
    let one = request(&["app"], RECREATING, &[("app", RECREATING)]);
    let over = RecreateStep::Say(ended(&[("app", RECREATING)], Some("pod has gone")));
    assert_eq!(recreate(&one, None, UNBROKEN, NOW), over);
    assert_eq!(recreate(&one, Some(&samples::pod("web").terminating().0), UNBROKEN, NOW), over);
    assert_eq!(recreate(&one, Some(&samples::pod("web").uid("second").0), UNBROKEN, NOW), over);
    let mut leaving = one;
    leaving.is_terminating = true;
    assert_eq!(recreate(&leaving, None, UNBROKEN, NOW), RecreateStep::Rest);
}
