//! Native tests of the plugin exportimage, with pods built in memory and without WebAssembly.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail loudly")]

use exportimage::{Exportimage, TASK};
use oarlock_sdk::kit::{Visit, manifest, outcome, pod, task};
use oarlock_sdk::{Mutation, Proposal, State};
use serde_json::{Value, json};

fn visit() -> Visit {
    Visit::to(&pod("web-1")).parameters(json!({}))
}

#[test]
fn a_copy_is_asked_for_until_it_is_seen_and_the_ops_job_says_all_else() {
    let first = visit().operate::<Exportimage>().unwrap();
    let [Mutation::Task(asked)] = first.mutations() else { panic!("{first:?}") };
    let arguments: Value = serde_json::from_str(&asked.arguments).unwrap();
    assert_eq!((asked.name.as_str(), asked.kind.as_str()), (TASK, "copy-image"));
    assert_eq!(arguments, json!({}));
    let running = visit().task(TASK, task("Running", None, "", ""));
    assert_eq!(running.operate::<Exportimage>().unwrap(), Proposal::new());
    assert_eq!(outcome(&running.progress::<Exportimage>().unwrap()), "Processing");
}

#[test]
fn a_container_is_committed_on_the_node_of_its_pod() {
    let parameters = json!({"mode": "commit", "container": "app", "target": "custom/commits/default/a:1"});
    let visit = || Visit::to(&pod("web-1")).parameters(parameters.clone());
    let first = visit().operate::<Exportimage>().unwrap();
    let [Mutation::Task(asked)] = first.mutations() else { panic!("{first:?}") };
    let arguments: Value = serde_json::from_str(&asked.arguments).unwrap();
    assert_eq!((asked.name.as_str(), asked.kind.as_str()), (TASK, "run-on-node"));
    assert_eq!(arguments["builtin"], "commit");
    assert_eq!(arguments["commit"], json!({"container": "app", "target": "custom/commits/default/a:1"}));
    for (message, reason) in [("ToolMissing: no nerdctl", "ToolMissing"), ("lost: its pod is gone", "CommandFailed")] {
        let failed = visit().task(TASK, task("Failed", None, "", message)).progress::<Exportimage>().unwrap();
        let State::Failed(error) = failed.state().clone() else { panic!("it failed") };
        assert_eq!(error.reason, reason);
    }
}

#[test]
fn a_pod_ends_as_its_copy_does_with_the_reason_that_the_host_gives() {
    let ended = |state: &str, message: &str| {
        visit().task(TASK, task(state, None, "{}", message)).progress::<Exportimage>().unwrap()
    };
    assert_eq!(outcome(&ended("Succeeded", "")), "Succeeded");
    for (message, reason, words) in [
        (
            "Unauthorized: there are no credentials for it",
            "Unauthorized",
            "not exported: there are no credentials for it.",
        ),
        ("lost: what was stored", "PushFailed", "not exported: lost: what was stored."),
    ] {
        let State::Failed(error) = ended("Failed", message).state().clone() else { panic!("it failed") };
        assert_eq!(error.reason, reason);
        assert!(error.message.ends_with(words), "{}", error.message);
    }
}

#[test]
fn its_manifest_is_one_that_the_host_takes() {
    assert_eq!(manifest::<Exportimage>().unwrap().name, "exportimage");
}
