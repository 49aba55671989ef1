//! Native tests of the plugin dumplog, with pods built in memory and without WebAssembly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use dumplog::{Dumplog, TASK};
use oarlock_sdk::kit::{Visit, manifest, outcome, pod, task};
use oarlock_sdk::{Mutation, Proposal, State};

#[test]
fn the_logs_of_a_pod_are_asked_for_until_they_are_seen_to_be_collected() {
    let first = Visit::to(&pod("web-1")).operate::<Dumplog>().unwrap();
    let [Mutation::Task(asked)] = first.mutations() else { panic!("{first:?}") };
    assert_eq!((asked.name.as_str(), asked.kind.as_str(), asked.arguments.as_str()), (TASK, "collect-logs", "{}"));
    let running = Visit::to(&pod("web-1")).task(TASK, task("Running", None, "", ""));
    assert_eq!(running.operate::<Dumplog>().unwrap(), Proposal::new());
    assert_eq!(outcome(&running.progress::<Dumplog>().unwrap()), "Processing");
    let unseen = Visit::to(&pod("web-1")).progress::<Dumplog>().unwrap();
    assert_eq!(outcome(&unseen), "Processing");
}

#[test]
fn a_pod_ends_as_its_task_does_and_says_why_its_logs_are_missing() {
    let ended = |state: &str, message: &str| {
        let visit = Visit::to(&pod("web-1")).task(TASK, task(state, None, "{}", message));
        visit.progress::<Dumplog>().unwrap()
    };
    assert_eq!(outcome(&ended("Succeeded", "")), "Succeeded");
    let State::Failed(error) = ended("Failed", "connection refused").state().clone() else { panic!("it failed") };
    let expected = "The logs of pod web-1 cannot be read: connection refused.";
    assert_eq!((error.reason.as_str(), error.message.as_str()), ("LogUnavailable", expected));
}

#[test]
fn its_manifest_is_one_that_the_host_takes() {
    assert_eq!(manifest::<Dumplog>().unwrap().name, "dumplog");
}
