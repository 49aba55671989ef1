//! Native tests of the plugin addon, with nodes built in memory and without WebAssembly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use addon::{Addon, STEPS, TAINT, TAINTED};
use oarlock_sdk::kit::{NOW, Sample, Visit, node, object, outcome, pod, task};
use oarlock_sdk::{Mutation, Proposal, State, Value, json};

const DIGEST: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// Returns a node with the taint of the job.
fn tainted() -> Sample {
    let taint = json!([{"key": TAINT, "value": "job", "effect": "NoSchedule"}]);
    node("n").field(&["spec", "taints"], taint).hold("uid-of-job", &["taint:oarlock.dev/opsjob:NoSchedule"])
}

fn step(more: Value) -> Value {
    let mut step = json!({"name": "kernel", "script": {"sha256": DIGEST, "origin": "template"}});
    step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    step
}

/// Returns a visit to a node whose work began with all of these steps.
fn visit(node: &Sample, steps: &[Value]) -> Visit {
    let all: Vec<String> = (0..steps.len()).map(|index| index.to_string()).collect();
    begun(node, steps).extra(STEPS, &all.join(","))
}

/// Returns the first visit to a node.
fn begun(node: &Sample, steps: &[Value]) -> Visit {
    Visit::to(node).parameters(json!({"steps": steps}))
}

fn waiting(node: &Sample) -> Visit {
    visit(node, &[]).parameters(json!({"steps": [step(json!({}))], "waitUntilIdle": true})).extra(STEPS, "0")
}

/// Returns the names and arguments of the proposed tasks.
fn tasks(visit: &Visit) -> Vec<(String, Value)> {
    let proposal = visit.operate::<Addon>().unwrap();
    let task = |mutation: &Mutation| match mutation {
        Mutation::Task(task) if task.kind == "run-on-node" => {
            Some((task.name.clone(), serde_json::from_str(&task.arguments).unwrap()))
        }
        _ => None,
    };
    proposal.mutations().iter().filter_map(task).collect()
}

/// Returns true if the first mutation adds the taint, and false if it removes the taint.
fn taints(proposal: &Proposal) -> Option<bool> {
    match proposal.mutations() {
        [Mutation::Taint(taint), ..] => {
            assert_eq!((taint.key.as_str(), taint.value.as_str(), taint.effect.as_str()), (TAINT, "job", "NoSchedule"));
            Some(taint.present)
        }
        _ => None,
    }
}

#[test]
fn a_node_gets_its_taint_and_then_its_scripts_one_after_the_other() {
    let steps = [step(json!({})), step(json!({"interpreter": "/bin/sh", "timeoutSeconds": 7}))];
    let both = visit(&node("n"), &steps);
    assert_eq!(taints(&both.operate::<Addon>().unwrap()), Some(true));
    assert_eq!(tasks(&both).len(), 1, "its first script follows without another visit");
    let alone = waiting(&node("n")).operate::<Addon>().unwrap();
    assert_eq!(
        (taints(&alone), alone.mutations().len()),
        (Some(true), 1),
        "a node that is awaited gets the taint alone"
    );
    let first = visit(&tainted(), &steps);
    let script = |interpreter: &str| json!({"sha256": DIGEST, "origin": "template", "interpreter": interpreter});
    let expected = json!({"script": script("/bin/bash"), "timeoutSeconds": 600});
    assert_eq!(tasks(&first), [("step-0".to_owned(), expected)]);
    let running = first.task("step-0", task("Running", None, "", ""));
    assert_eq!((tasks(&running), outcome(&running.progress::<Addon>().unwrap())), (vec![], "Processing".to_owned()));
    let second = running.task("step-0", task("Succeeded", Some(0), "", ""));
    let expected = json!({"script": script("/bin/sh"), "timeoutSeconds": 7});
    assert_eq!(tasks(&second), [("step-1".to_owned(), expected)]);
}

#[test]
fn the_taint_goes_before_the_node_has_succeeded() {
    let done = |node: &Sample| visit(node, &[step(json!({}))]).task("step-0", task("Succeeded", Some(0), "", ""));
    let report = done(&tainted()).progress::<Addon>().unwrap();
    assert_eq!((outcome(&report).as_str(), taints(&report.proposal())), ("Processing", Some(false)));
    assert_eq!(outcome(&done(&node("n")).progress::<Addon>().unwrap()), "Succeeded");
    assert_eq!(done(&node("n")).operate::<Addon>().unwrap(), Proposal::new(), "it does not come back");
}

#[test]
fn a_taint_that_somebody_takes_off_is_put_on_again_while_a_script_is_left() {
    let left = [step(json!({})), step(json!({}))];
    let visit = visit(&node("n"), &left).task("step-0", task("Succeeded", Some(0), "", ""));
    assert_eq!(taints(&visit.operate::<Addon>().unwrap()), Some(true));
}

#[test]
fn a_busy_node_is_awaited_and_says_for_what() {
    let busy =
        |name: &str| pod(name).field(&["spec", "nodeName"], json!("n")).field(&["status", "phase"], json!("Running"));
    let far = |name: &str, namespace: &str| {
        let pod = object("v1", "Pod", Some(namespace), name);
        pod.field(&["spec", "nodeName"], json!("n")).field(&["status", "phase"], json!("Pending"))
    };
    let first = waiting(&tainted());
    assert_eq!(first.operate::<Addon>().unwrap(), Proposal::new().extra(TAINTED, NOW.to_string()));
    let settled = first.extra(TAINTED, &(NOW - 5_000).to_string());
    assert_eq!(tasks(&settled).len(), 1, "nothing is on it");
    let over = busy("over").field(&["status", "phase"], json!("Succeeded"));
    let daemon = busy("daemon").controller("apps/v1", "DaemonSet", "agent");
    let mirror = busy("mirror").annotation("kubernetes.io/config.mirror", "x");
    let elsewhere = busy("elsewhere").field(&["spec", "nodeName"], json!("m"));
    let spared = [over, daemon, mirror, elsewhere, far("proxy", "kube-system")];
    let spared = spared.iter().fold(settled, |visit, pod| visit.object(pod));
    assert_eq!(tasks(&spared).len(), 1, "no workload is on it");
    let waits = spared.clone().object(&busy("web")).object(&far("db", "team-a")).operate::<Addon>().unwrap_err();
    assert!(waits.is_retryable());
    assert_eq!(waits.reason(), "NodeBusy");
    assert_eq!(waits.message(), "Node n waits for the end of default/web, team-a/db.");
    let own = spared.object(&busy("web")).config(json!({"systemNamespaces": ["default", "kube-system"]}));
    assert_eq!(tasks(&own).len(), 1);
    let fresh = waiting(&tainted()).extra(TAINTED, &(NOW - 4_999).to_string()).operate::<Addon>().unwrap_err();
    assert_eq!(fresh.message(), "Node n has had its taint for less than 5 s.");
}

#[test]
fn a_pod_that_was_made_after_the_taint_keeps_no_node_busy() {
    // Pods have a creation time in whole seconds. The taint was seen half a second after NOW.
    let tainted = waiting(&tainted()).extra(TAINTED, &(NOW + 500).to_string());
    let made = |name: &str, time: &str| {
        let pod = object("v1", "Pod", Some("team-a"), name).created(time);
        pod.field(&["spec", "nodeName"], json!("n")).field(&["status", "phase"], json!("Pending"))
    };
    let waits = |visit: &Visit| visit.operate::<Addon>().map_err(|failure| failure.message().to_owned());
    let settled = |visit: Visit| visit.now_ms(NOW + 60_000);
    let before = settled(tainted.clone()).object(&made("early", "2026-01-31T11:59:59Z"));
    let same = before.clone().object(&made("same", "2026-01-31T12:00:00Z"));
    let expected = "Node n waits for the end of team-a/early, team-a/same.";
    assert_eq!(waits(&same.object(&made("late", "2026-01-31T12:00:01Z"))).unwrap_err(), expected);
    let late = (1..30).fold(settled(tainted), |visit, second| {
        visit.object(&made(&format!("late-{second}"), &format!("2026-01-31T12:00:{second:02}Z")))
    });
    assert_eq!(tasks(&late).len(), 1, "the scripts run all the same");
}

#[test]
fn each_namespace_with_a_pod_on_a_busy_node_is_named() {
    let pod = |namespace: &str, name: &str| {
        let pod = object("v1", "Pod", Some(namespace), name);
        pod.field(&["spec", "nodeName"], json!("n")).field(&["status", "phase"], json!("Running"))
    };
    let waits = waiting(&tainted()).extra(TAINTED, &(NOW - 5_000).to_string());
    let waits = (0..20).fold(waits, |visit, number| visit.object(&pod("team-a", &format!("web-{number:02}"))));
    let failure = waits.object(&pod("team-b", "db")).operate::<Addon>().unwrap_err();
    assert!(failure.message().starts_with("Node n waits for the end of team-a/web-00, team-b/db, team-a/web-01, "));
    assert!(failure.message().ends_with(" and 11 more."), "{}", failure.message());
}

#[test]
fn a_required_script_that_fails_is_the_last_one() {
    for (state, exit_code, message, reason) in [
        ("Failed", Some(3), "", "ScriptFailed"),
        ("Failed", None, "lost: its pod is gone", "ResultLost"),
        ("Failed", None, "timed out: DeadlineExceeded", "ScriptTimeout"),
        ("Failed", None, "image: not started within 300 s", "ScriptFailed"),
        ("Succeeded", None, "", "ScriptFailed"),
    ] {
        let two = [step(json!({})), step(json!({}))];
        let visit = visit(&tainted(), &two).task("step-0", task(state, exit_code, "no disk", message));
        assert_eq!(
            (outcome(&visit.progress::<Addon>().unwrap()).as_str(), tasks(&visit).len()),
            (reason, 0),
            "{message}"
        );
    }
    let failed = visit(&tainted(), &[step(json!({}))]).task("step-0", task("Failed", Some(3), "no disk", ""));
    let State::Failed(error) = failed.progress::<Addon>().unwrap().state().clone() else { panic!("it has failed") };
    assert_eq!(error.message, "kernel on node n ended with exit code 3: no disk");
}

#[test]
fn a_script_that_is_not_required_may_fail() {
    let two = [step(json!({"required": false})), step(json!({}))];
    for ended in [task("Failed", Some(3), "", ""), task("Failed", None, "", "lost: its pod is gone")] {
        let visit = visit(&tainted(), &two).task("step-0", ended);
        assert_eq!(tasks(&visit).len(), 1);
    }
}

#[test]
fn a_script_for_gpus_runs_where_they_are_and_a_node_without_a_script_has_succeeded() {
    let steps = [step(json!({})), step(json!({"gpuChip": "amd"}))];
    let with = |count: &str| node("n").field(&["status", "capacity"], json!({"amd.com/gpu": count, "cpu": "4"}));
    let decided = |node: &Sample, steps: &[Value]| begun(node, steps).operate::<Addon>().unwrap();
    let first = |positions: &str| Proposal::new().extra(STEPS, positions);
    for (count, positions) in [("8", "0,1"), ("0", "0")] {
        let proposal = decided(&with(count), &steps);
        let [taint @ Mutation::Taint(_), task] = proposal.mutations() else { panic!("{proposal:?}") };
        assert_eq!(proposal, first(positions).mutation(taint.clone()).mutation(task.clone()));
    }
    assert_eq!(decided(&with("0"), &steps[1..]), first(""));
    let report = begun(&with("0"), &steps[1..]).extra(STEPS, "").progress::<Addon>().unwrap();
    assert_eq!((outcome(&report).as_str(), report.proposal().events().len()), ("Succeeded", 1));
}

#[test]
fn gpus_that_come_or_go_meanwhile_change_no_step() {
    let amd = step(json!({"gpuChip": "amd"}));
    let without = tainted().field(&["status", "capacity"], json!({"amd.com/gpu": "0"}));
    let running = visit(&without, std::slice::from_ref(&amd)).task("step-0", task("Running", None, "", ""));
    assert_eq!((tasks(&running), outcome(&running.progress::<Addon>().unwrap())), (vec![], "Processing".to_owned()));
    let failed = running.task("step-0", task("Failed", Some(3), "", ""));
    assert_eq!(outcome(&failed.progress::<Addon>().unwrap()), "ScriptFailed");
    let with = tainted().field(&["status", "capacity"], json!({"amd.com/gpu": "8"}));
    let second = begun(&with, &[amd, step(json!({}))]).extra(STEPS, "1").task("step-1", task("Running", None, "", ""));
    assert_eq!(tasks(&second), []);
}

#[test]
fn a_node_that_is_gone_has_failed() {
    let visit = Visit::to_gone("n").parameters(json!({"steps": [step(json!({}))]}));
    assert_eq!(visit.operate::<Addon>().unwrap(), Proposal::new());
    assert_eq!(outcome(&visit.progress::<Addon>().unwrap()), "NodeGone");
}
