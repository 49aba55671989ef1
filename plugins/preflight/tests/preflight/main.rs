//! Native tests of the plugin preflight, with nodes built in memory and without WebAssembly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use oarlock_sdk::kit::{Sample, Visit, manifest, node, outcome, task};
use oarlock_sdk::{Mutation, Proposal, State, TaskStatus, Value, json};
use preflight::{EXIT_CODE, Preflight};

fn ready() -> Sample {
    node("n").condition("Ready", "True", "2026-01-31T11:00:00Z")
}

/// Returns a visit with an image and these parameters.
fn visit(node: &Sample, parameters: Value) -> Visit {
    let mut all = json!({"image": "check:1"});
    all.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
    Visit::to(node).parameters(all)
}

fn arguments(proposal: &Proposal) -> Value {
    let [Mutation::Task(task)] = proposal.mutations() else { panic!("{proposal:?}") };
    assert_eq!((task.name.as_str(), task.kind.as_str()), ("check", "check-pod"));
    serde_json::from_str(&task.arguments).unwrap()
}

fn refusal(node: &Sample, parameters: Value) -> String {
    let failure = visit(node, parameters).operate::<Preflight>().unwrap_err();
    assert!(!failure.is_retryable());
    failure.reason().to_owned()
}

/// Returns the outcome of a target with this task, and the proposal of its report.
fn end(task: TaskStatus) -> (String, Proposal) {
    let report = visit(&ready(), json!({})).task("check", task).progress::<Preflight>().unwrap();
    (outcome(&report), report.proposal())
}

/// Returns the proposal that stores the exit code of a check.
fn code(code: &str) -> Proposal {
    Proposal::new().extra(EXIT_CODE, code)
}

#[test]
fn a_node_that_takes_pods_is_checked_once_by_what_the_job_says() {
    let parameters = json!({"script": "true", "env": {"A": "b"}, "hostPaths": ["/data"], "resources": {"cpu": "1"}});
    let first = visit(&ready(), parameters);
    let found = arguments(&first.operate::<Preflight>().unwrap());
    let env = json!({"A": "b", "OARLOCK_NODE_NAME": "n", "OARLOCK_JOB_ID": "uid-of-job", "OARLOCK_NODE_INDEX": "0",
        "OARLOCK_NODE_COUNT": "1"});
    let expected = json!({"image": "check:1", "script": "true", "hostPaths": ["/data"], "tolerateAll": false, "env": env,
        "resources": {"cpu": "1"}});
    assert_eq!(found, expected);
    let running = first.task("check", task("Running", None, "", ""));
    assert_eq!(running.operate::<Preflight>().unwrap(), Proposal::new());
    assert_eq!(outcome(&running.progress::<Preflight>().unwrap()), "Processing");
}

#[test]
fn a_node_is_healthy_only_where_its_check_ended_well_and_did_not_say_otherwise() {
    let zero = code("0");
    for said in ["", "all fine", r#"{"passed": true}"#, r#"{"other": false}"#, r#"["passed"]"#] {
        assert_eq!(end(task("Succeeded", Some(0), said, "")), ("Succeeded".to_owned(), zero.clone()), "{said}");
    }
    for said in [r#"{"passed": false, "message": "no fan"}"#, r#"{"passed": "yes"}"#, r#"{"passed": null}"#] {
        assert_eq!(end(task("Succeeded", Some(0), said, "")), ("ReportedFailure".to_owned(), zero.clone()), "{said}");
    }
    for unclear in [r#"{"passed": tr"#, r#"{"a": 1} {"passed": false}"#, r#"[...] "passed": false}"#, "{"] {
        let report =
            visit(&ready(), json!({})).task("check", task("Succeeded", Some(0), unclear, "")).progress::<Preflight>();
        let State::Failed(error) = report.unwrap().state().clone() else { panic!("{unclear}") };
        assert_eq!(error.reason, "ReportedFailure", "{unclear}");
        assert!(error.message.contains("4096 bytes"), "{}", error.message);
    }
    assert_eq!(end(task("Failed", Some(3), "bad disk", "")), ("CheckFailed".to_owned(), code("3")));
    assert_eq!(
        end(task("Succeeded", None, "", "")),
        ("CheckFailed".to_owned(), Proposal::new()),
        "without a code nothing is proven"
    );
}

#[test]
fn a_check_without_a_result_says_why() {
    for (message, reason) in [
        ("lost: Evicted: no time to pull the image or to schedule", "PodLost"),
        ("image: not started within 300 s: ErrImagePull: lost", "ImagePull"),
        ("unschedulable: not started within 300 s: Unschedulable: 0/3 nodes", "Unschedulable"),
        ("timed out: DeadlineExceeded: its image was lost", "CheckTimeout"),
        ("not started within 300 s: CreateContainerError: image lost in time", "CheckFailed"),
    ] {
        assert_eq!(end(task("Failed", None, "", message)).0, reason, "{message}");
    }
}

#[test]
fn a_node_that_takes_no_pod_fails_and_is_named() {
    let down = node("n").condition("Ready", "Unknown", "2026-01-31T11:00:00Z");
    assert_eq!(refusal(&down, json!({})), "NodeNotReady");
    assert_eq!(refusal(&down, json!({"tolerateAll": true})), "NodeNotReady");
    assert_eq!(refusal(&node("n"), json!({})), "NodeNotReady");
    let cordoned = ready().field(&["spec", "unschedulable"], json!(true));
    assert_eq!(refusal(&cordoned, json!({})), "Unschedulable");
    let taint = |effect: &str| ready().field(&["spec", "taints"], json!([{"key": "k", "effect": effect}]));
    assert_eq!(refusal(&taint("NoExecute"), json!({})), "Unschedulable");
    for fit in [taint("PreferNoSchedule"), ready()] {
        arguments(&visit(&fit, json!({})).operate::<Preflight>().unwrap());
    }
    let tolerated = visit(&cordoned, json!({"tolerateAll": true})).operate::<Preflight>().unwrap();
    assert_eq!(arguments(&tolerated)["tolerateAll"], true);
}

#[test]
fn the_gpus_are_those_that_the_node_has_and_a_node_without_them_fails() {
    let with = |name: &str| ready().field(&["status", "allocatable"], json!({name: "8", "cpu": "4"}));
    let asked = json!({"gpus": 2});
    let resources = |node: &Sample, parameters: &Value| {
        arguments(&visit(node, parameters.clone()).operate::<Preflight>().unwrap())["resources"].clone()
    };
    assert_eq!(resources(&with("nvidia.com/gpu"), &asked), json!({"nvidia.com/gpu": "2"}));
    assert_eq!(resources(&with("amd.com/gpu"), &asked), json!({"amd.com/gpu": "2"}));
    let named = json!({"gpus": 1, "gpuName": "x.io/gpu"});
    assert_eq!(resources(&with("x.io/gpu"), &named), json!({"x.io/gpu": "1"}));
    assert_eq!(refusal(&with("nvidia.com/gpu"), named), "NoGpu");
    assert_eq!(refusal(&ready().field(&["status", "allocatable"], json!({"nvidia.com/gpu": "0"})), asked), "NoGpu");
}

#[test]
fn a_node_that_is_gone_fails_unless_its_check_has_ended() {
    assert_eq!(
        outcome(&Visit::to_gone("n").parameters(json!({"image": "i"})).progress::<Preflight>().unwrap()),
        "NodeGone"
    );
    let gone = |task: TaskStatus| Visit::to_gone("n").parameters(json!({"image": "i"})).task("check", task);
    assert_eq!(outcome(&gone(task("Running", None, "", "")).progress::<Preflight>().unwrap()), "NodeGone");
    assert_eq!(outcome(&gone(task("Succeeded", Some(0), "", "")).progress::<Preflight>().unwrap()), "Succeeded");
}

#[test]
fn manifest_describes_each_parameter() {
    let manifest = manifest::<Preflight>().unwrap();
    assert_eq!((manifest.name.as_str(), manifest.action.as_str()), ("preflight", "preflight"));
    let parameters = manifest.parameters.unwrap();
    assert_eq!(parameters["additionalProperties"], false);
    for (name, one) in parameters["properties"].as_object().unwrap() {
        assert!(one["description"].is_string(), "{name} is not described");
    }
}
