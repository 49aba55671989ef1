//! Tests each row of the table for the OpenKruise mode. Source: docs/operationjob.md 7.

use core::time::Duration;

use oarlock_sdk::kit::{NOW, Sample, Visit, object, pod};
use oarlock_sdk::{Mutation, Proposal, Report, Result, State};
use restart::Restart;
use serde_json::{Value, json};

const API: &str = "apps.kruise.io/v1alpha1";
const KIND: &str = "ContainerRecreateRequest";
/// The name of the request for the first attempt at the first target of the kit's job.
const NAME: &str = "job-uid-of-j-0-1";
const LATER: &str = "2026-01-31T11:59:30Z";
const EARLIER: &str = "2026-01-31T11:58:00Z";

/// Returns a pod with two containers.
fn web() -> Sample {
    pod("web").field(&["spec", "containers"], json!([{"name": "app"}, {"name": "log"}]))
}

/// Returns a request for these containers, with a phase and the state of each container.
fn request(phase: &str, states: &[(&str, &str)]) -> Sample {
    let named: Vec<Value> = states.iter().map(|(name, _)| json!({"name": name})).collect();
    let states: Vec<Value> = states.iter().map(|(name, phase)| json!({"name": name, "phase": phase})).collect();
    object(API, KIND, Some("default"), NAME)
        .controller("apps.kusionstack.io/v1alpha1", "OperationJob", "job")
        .field(&["spec"], json!({"podName": "web", "containers": named}))
        .field(&["status"], json!({"phase": phase, "containerRecreateStates": states}))
}

/// Returns a visit after the request was seen.
fn visit(request: &Sample) -> Visit {
    Visit::to(&web()).extra("Mode", "InPlace").extra("Request", NAME).object(request)
}

fn gone() -> Visit {
    Visit::to_gone("web").uid("uid-of-web").extra("Mode", "InPlace").extra("Request", NAME).without_controller()
}

fn progress(visit: &Visit) -> Report {
    visit.progress::<Restart>().unwrap()
}

/// Returns the report of a processing target that waits with this sentence.
fn waits(sentence: &str) -> Report {
    Report::processing().with(Proposal::new().waits_for("Kruise", sentence))
}

/// Returns the sentence for a request that OpenKruise has not begun.
fn unbegun(node: &str) -> String {
    format!("the kruise-daemon{node} has not begun with ContainerRecreateRequest {NAME}; look whether it runs")
}

/// Returns the request that a proposal creates, or null for any other proposal.
fn created(proposal: &Proposal) -> Value {
    let [Mutation::Create(text)] = proposal.mutations() else { return Value::Null };
    serde_json::from_str(text).unwrap()
}

/// Returns the reason and the message of a failed target, or empty texts for any other target.
fn failure(report: &Report) -> (String, String) {
    let State::Failed(error) = report.state() else { return Default::default() };
    (error.reason.clone(), error.message.clone())
}

fn reason(result: Result<Report>) -> String {
    result.unwrap_err().reason().to_owned()
}

#[test]
fn a_request_for_all_regular_containers_is_created_and_the_mode_is_recorded() {
    let proposal = Visit::to(&web()).operate::<Restart>().unwrap();
    let expected = json!({
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "podName": "web",
            "containers": [{"name": "app"}, {"name": "log"}],
            "strategy": {"failurePolicy": "Fail"},
        },
    });
    assert_eq!(created(&proposal), expected);
    assert_eq!(proposal, Proposal::new().extra("Mode", "InPlace").create(expected.to_string()));
}

#[test]
fn only_the_containers_that_the_target_lists_are_asked_for() {
    let proposal = Visit::to(&web()).containers(&["log"]).operate::<Restart>().unwrap();
    assert_eq!(created(&proposal)["spec"]["containers"], json!([{"name": "log"}]));
}

#[test]
fn a_container_that_the_pod_lacks_is_named_and_nothing_is_created() {
    let failure = Visit::to(&web()).containers(&["app", "lgo"]).operate::<Restart>().unwrap_err();
    assert!(!failure.is_retryable());
    assert_eq!(
        (failure.reason(), failure.message()),
        ("ContainerNotFound", "Pod web has no container lgo; it has app, log.")
    );
}

#[test]
fn a_restart_of_no_container_is_neither_asked_for_nor_a_success() {
    let failure = Visit::to(&pod("web")).operate::<Restart>().unwrap_err();
    assert_eq!((failure.reason(), failure.is_retryable()), ("GetObjectFailed", true));
    assert_eq!(self::failure(&progress(&visit(&request("Completed", &[])))).0, "RestartFailed");
}

#[test]
fn parameters_of_the_job_are_those_of_the_request() {
    let parameters = json!({"minStartedSeconds": 5, "terminationGracePeriodSeconds": 0, "fallback": "None"});
    let proposal = Visit::to(&web()).parameters(parameters).operate::<Restart>().unwrap();
    let strategy = json!({"failurePolicy": "Fail", "minStartedSeconds": 5, "terminationGracePeriodSeconds": 0});
    assert_eq!(created(&proposal)["spec"]["strategy"], strategy);
}

#[test]
fn a_further_attempt_makes_a_request_of_its_own() {
    let earlier = request("Completed", &[("app", "Failed")]);
    let again = visit(&earlier).attempt(2).operate::<Restart>().unwrap();
    assert_eq!(created(&again)["metadata"]["name"], "job-uid-of-j-0-2");
}

#[test]
fn a_request_that_is_there_is_not_created_again() {
    let waiting = request("Pending", &[("app", "Pending")]);
    let unstored = Visit::to(&web()).extra("Mode", "InPlace").object(&waiting);
    assert_eq!(unstored.operate::<Restart>().unwrap(), Proposal::new());
    let noted = Report::processing().with(Proposal::new().extra("Request", NAME));
    assert_eq!(progress(&unstored), noted);
    assert_eq!(progress(&visit(&waiting)), waits(&unbegun("")));
}

#[test]
fn what_openkruise_keeps_a_target_waiting_for_is_said_after_ten_seconds() {
    let label = "crr.apps.kruise.io/node-name";
    let pending = request("Pending", &[("app", "Pending")]).created(LATER).label(label, "node-1");
    let early = visit(&pending).now_ms(NOW - 56_000);
    assert_eq!(progress(&early), Report::processing().check_after(Duration::from_secs(6)));
    assert_eq!(progress(&visit(&pending)), waits(&unbegun(" of node node-1")));
    let other = |phase: &str, created: &str| {
        request(phase, &[("app", phase)]).created(created).field(&["metadata", "name"], json!("other"))
    };
    let second = format!("ContainerRecreateRequest {NAME} waits for the end of other, which is about the same pod");
    for first in [other("Pending", EARLIER), other("", EARLIER), other("Recreating", LATER)] {
        assert_eq!(progress(&visit(&pending).object(&first)), waits(&second));
    }
    for no_first in [other("Completed", EARLIER), other("Pending", EARLIER).deleted(LATER)] {
        assert_eq!(progress(&visit(&pending).object(&no_first)), waits(&unbegun(" of node node-1")));
    }
    let restarts = request("Recreating", &[("app", "Succeeded"), ("log", "Recreating")]);
    let words = format!("ContainerRecreateRequest {NAME} restarts log, which is not ready yet");
    assert_eq!(progress(&visit(&restarts)), waits(&words));
}

#[test]
fn a_request_that_was_created_is_found_by_the_next_visit() {
    let first = Visit::to(&web());
    let second = first.after(&first.operate::<Restart>().unwrap());
    assert_eq!(second.operate::<Restart>().unwrap(), Proposal::new());
    assert_eq!(progress(&second), Report::processing().with(Proposal::new().extra("Request", NAME)));
}

#[test]
fn a_request_that_somebody_deleted_is_not_made_again() {
    let vanished = Visit::to(&web()).extra("Mode", "InPlace").extra("Request", NAME);
    assert_eq!(vanished.operate::<Restart>().unwrap(), Proposal::new());
    assert_eq!(reason(vanished.clone().before_look().progress::<Restart>()), "Unavailable");
    assert_eq!(failure(&progress(&vanished)).0, "RestartFailed");
    // The live read shows that the request still exists.
    let unseen = vanished.unseen(&request("Recreating", &[("app", "Recreating")]));
    assert_eq!(
        progress(&unseen),
        waits(&format!("ContainerRecreateRequest {NAME} restarts app, which is not ready yet"))
    );
}

#[test]
fn succeeded_means_that_the_request_has_ended_and_each_container_was_restarted() {
    for phase in ["Succeeded", "Completed"] {
        assert_eq!(
            progress(&visit(&request(phase, &[("app", "Succeeded"), ("log", "Succeeded")]))),
            Report::succeeded()
        );
    }
    let not_yet = request("Recreating", &[("app", "Succeeded"), ("log", "Succeeded")]);
    let words = format!("ContainerRecreateRequest {NAME} has restarted all containers, and has not ended");
    assert_eq!(progress(&visit(&not_yet)), waits(&words));
    let unknown = request("Completed", &[("app", "Succeeded")])
        .field(&["spec", "containers"], json!([{"name": "app"}, {"name": "log"}]));
    assert_eq!(failure(&progress(&visit(&unknown))).0, "RestartFailed");
}

#[test]
fn a_failed_container_fails_the_target_with_its_message_though_the_request_is_complete() {
    let states = json!([{"name": "app", "phase": "Succeeded"}, {"name": "log", "phase": "Failed", "message": "no such process"}]);
    for phase in ["Completed", "Recreating"] {
        let broken = request(phase, &[("app", "Succeeded"), ("log", "Failed")])
            .field(&["status", "containerRecreateStates"], states.clone());
        let message = "Container log of pod web was not restarted: no such process";
        assert_eq!(failure(&progress(&visit(&broken))), ("RestartFailed".to_owned(), message.to_owned()));
    }
}

#[test]
fn a_request_that_openkruise_gave_up_fails_the_target_with_its_message() {
    for phase in ["Failed", "Completed"] {
        let given_up =
            request(phase, &[("app", "Recreating")]).field(&["status", "message"], json!("deadline exceeded"));
        let (reason, message) = failure(&progress(&visit(&given_up)));
        assert_eq!(reason, "RestartFailed");
        assert!(message.contains("app") && message.ends_with("deadline exceeded"), "{message}");
    }
}

#[test]
fn a_pod_that_is_gone_has_no_container_to_restart() {
    assert_eq!(reason(gone().before_look().progress::<Restart>()), "Unavailable");
    assert_eq!(reason(gone().progress::<Restart>()), "PodNotFound");
    let given_up = request("Completed", &[("app", "Recreating")]).field(&["status", "message"], json!("pod has gone"));
    assert_eq!(reason(gone().object(&given_up).progress::<Restart>()), "PodNotFound");
    assert_eq!(gone().operate::<Restart>().unwrap(), Proposal::new());
    // The pod was deleted after its containers were restarted.
    assert_eq!(progress(&gone().object(&request("Completed", &[("app", "Succeeded")]))), Report::succeeded());
}

#[test]
fn a_pod_that_goes_is_not_restarted_and_waited_for() {
    let going = web().deleted(LATER);
    let proposal = Visit::to(&going).operate::<Restart>().unwrap();
    assert_eq!(proposal, Proposal::new().extra("Mode", "InPlace"));
    let given_up = request("Completed", &[("app", "Recreating")]);
    let waiting = Visit::to(&going).extra("Mode", "InPlace").extra("Request", NAME).object(&given_up);
    assert_eq!(progress(&waiting), waits("pod web is being deleted"));
}

#[test]
fn a_request_that_met_another_pod_of_the_name_is_no_success() {
    let done = request("Completed", &[("app", "Succeeded")]).label("crr.apps.kruise.io/pod-uid", "uid-2");
    assert_eq!(failure(&progress(&visit(&done))).0, "RestartFailed");
    let own = request("Completed", &[("app", "Succeeded")]).label("crr.apps.kruise.io/pod-uid", "uid-of-web");
    assert_eq!(progress(&visit(&own)), Report::succeeded());
}

#[test]
fn release_deletes_the_request() {
    let waiting = request("Recreating", &[("app", "Recreating")]);
    for seen in [visit(&waiting), gone().object(&waiting)] {
        let proposal = seen.release::<Restart>().unwrap();
        assert!(
            matches!(proposal.mutations(), [Mutation::Delete(deletion)] if deletion.object.name == NAME),
            "{proposal:?}"
        );
        assert_eq!(proposal.events()[0].reason, "RestartReleased");
    }
}

#[test]
fn release_looks_before_it_believes_that_there_is_no_request() {
    let unseen = Visit::to(&web()).extra("Mode", "InPlace");
    assert_eq!(unseen.clone().before_look().release::<Restart>().unwrap_err().reason(), "Unavailable");
    assert_eq!(unseen.clone().release::<Restart>().unwrap(), Proposal::new());
    let found = unseen.unseen(&request("Pending", &[("app", "Pending")])).release::<Restart>().unwrap();
    assert_eq!(found.mutations().len(), 1);
    let leaving = request("Pending", &[("app", "Pending")]).deleted(LATER);
    assert_eq!(visit(&leaving).release::<Restart>().unwrap(), Proposal::new());
    // The plugin makes no change before the mode is stored.
    assert_eq!(Visit::to(&web()).before_look().release::<Restart>().unwrap(), Proposal::new());
}

#[test]
fn a_target_stays_in_place_where_openkruise_is_gone() {
    let stuck = Visit::to(&web()).extra("Mode", "InPlace").extra("Request", NAME).unserved(API, KIND);
    assert_eq!(failure(&progress(&stuck)).0, "RestartFailed");
}
