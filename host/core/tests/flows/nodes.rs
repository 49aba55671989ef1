//! Which nodes a DaemonJob runs on: A30, A32 to A35.

use oarlock_core::child::unit::UnitState;
use serde_json::{Value, json};

use crate::stage::make::{daemon, job, with};
use crate::stage::{Death, Stage};

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("n{index}")).collect()
}

#[test]
fn all_nodes_but_the_excluded_ones_have_a_job_in_one_round() {
    let nodes = names(50);
    let spec = with(daemon(json!({})), json!({"excludeNodeList": " n1,\n n2"}));
    let mut stage = Stage::daemon(spec, nodes.iter().map(String::as_str));
    stage.round();
    assert_eq!(stage.created.len(), 48);
    assert!(!stage.started().contains(&"n1") && stage.names().contains(&"d-n10"));
    let pod = &stage.object_of("n10")["spec"]["template"]["spec"];
    assert_eq!((&pod["nodeName"], &pod["restartPolicy"]), (&json!("n10"), &json!("Never")));
    assert_eq!(stage.object_of("n10")["metadata"]["annotations"]["oarlock.dev/node"], "n10");
}

#[test]
fn the_set_is_durable_before_the_first_create_and_survives_a_restart() {
    let mut stage = Stage::daemon(daemon(json!({})), ["n1", "n2"]);
    let plan = stage.plan();
    assert!(plan.durable_first && plan.header.set_generation == Some(1));
    stage.carry_out(&plan, Some(Death::AfterCreates));
    stage.restart();
    stage.add_node("n3");
    stage.settle();
    assert_eq!(stage.started(), ["n1", "n2"]);
}

#[test]
fn a_node_that_is_cordoned_right_after_its_job_was_made_stays_in_the_set() {
    let rollout = json!({"newNodePolicy": "Run", "skipCordoned": true, "concurrency": 1});
    let mut stage = Stage::daemon(daemon(rollout), ["n1", "n2"]);
    stage.round();
    assert_eq!((stage.started(), stage.unit("n1").has_child()), (vec!["n1"], false));
    stage.set_node(json!({"metadata": {"name": "n1", "uid": stage.nodes["n1"].uid}, "spec": {"unschedulable": true}}));
    stage.settle();
    assert_eq!((stage.state_of("n1"), stage.started()), (UnitState::Pending, vec!["n1"]));
}

#[test]
fn no_field_of_ours_goes_to_the_job_and_every_other_one_does() {
    let spec = with(daemon(json!({})), json!({"completions": 2, "suspend": true, "unheardOf": 1, "cleanup": {}}));
    let mut stage = Stage::daemon(spec, ["n1"]);
    stage.settle();
    let spec = &stage.object_of("n1")["spec"];
    assert_eq!((&spec["completions"], &spec["suspend"], &spec["unheardOf"]), (&json!(2), &json!(true), &json!(1)));
    assert!(spec.get("rollout").is_none() && spec.get("cleanup").is_none());
    assert_eq!(stage.state_of("n1"), UnitState::Pending);
}

#[test]
fn a_node_that_joins_later_has_a_job_only_where_asked_for() {
    for (policy, jobs) in [("Ignore", 2), ("Run", 3)] {
        let mut stage = Stage::daemon(daemon(json!({"newNodePolicy": policy})), ["n1", "n2"]);
        stage.settle();
        stage.succeed("n1");
        stage.succeed("n2");
        assert_eq!(stage.state(), "Succeed");
        stage.add_node("n3");
        stage.settle();
        assert_eq!(stage.created.len(), jobs, "{policy}");
        if policy == "Run" {
            assert_eq!((stage.state(), stage.parent.status.get("completionTime")), ("Running", None));
            stage.succeed("n3");
        }
        assert_eq!(stage.state(), "Succeed");
    }
}

#[test]
fn an_edit_takes_the_set_again() {
    let mut stage = Stage::daemon(daemon(json!({"concurrency": 1})), ["n1", "n2", "n3"]);
    stage.settle();
    stage.add_node("n0");
    stage.edit("/excludeNodeList", json!("n1,n3"));
    stage.settle();
    let units: Vec<&str> = stage.memory.units.iter().map(|unit| unit.name.as_str()).collect();
    assert_eq!(units, ["n0", "n1", "n2"], "n1 has started, n3 has not");
}

#[test]
fn a_node_that_goes_takes_its_job_along() {
    let mut stage = Stage::daemon(daemon(json!({})), ["n1", "n2"]);
    stage.settle();
    stage.run("n1");
    stage.nodes.remove("n1");
    stage.succeed("n2");
    assert_eq!(
        (stage.end_of("n1").as_str(), stage.changed.clone()),
        ("Omitted/NodeGone", vec![("delete", "d-n1".to_owned())])
    );
    assert_eq!((stage.state(), stage.parent.status["progress"].as_str()), ("Succeed", Some("1/1")));
}

#[test]
fn the_outcome_of_a_node_that_goes_afterwards_stays() {
    let mut stage = Stage::daemon(daemon(json!({})), ["n1", "n2"]);
    stage.settle();
    stage.succeed("n1");
    stage.nodes.clear();
    stage.end("n2", false);
    stage.settle();
    assert_eq!((stage.end_of("n1").as_str(), stage.end_of("n2").as_str()), ("Succeed", "Failed/BackoffLimitExceeded"));
    assert_eq!((stage.state(), stage.changed.len()), ("Failed", 0));
}

#[test]
fn a_node_of_another_uid_is_another_node() {
    for (policy, jobs) in [("Ignore", 1), ("Run", 2)] {
        let mut stage = Stage::daemon(daemon(json!({"newNodePolicy": policy})), ["n1"]);
        stage.settle();
        stage.set_node(json!({"metadata": {"name": "n1", "uid": "another"}}));
        stage.settle();
        assert_eq!((stage.created.len(), stage.changed.len()), (jobs, 1), "{policy}");
        if policy == "Run" {
            assert_eq!(stage.names(), ["d-n1", "d-n1-r1"]);
            stage.succeed("n1");
        }
        assert_eq!(stage.state(), "Succeed");
    }
}

#[test]
fn a_node_that_was_replaced_while_the_driver_was_down_loses_its_old_job() {
    let mut stage = Stage::daemon(daemon(json!({"newNodePolicy": "Run"})), ["n1"]);
    stage.settle();
    stage.set_node(json!({"metadata": {"name": "n1", "uid": "another"}}));
    let plan = stage.plan();
    stage.carry_out(&plan, Some(Death::AfterStatus));
    stage.restart();
    stage.settle();
    assert_eq!(stage.objects.keys().collect::<Vec<_>>(), ["d-n1-r1"]);
}

#[test]
fn a_node_that_is_not_ready_is_waited_for_without_a_slot() {
    let mut stage = Stage::daemon(daemon(json!({"concurrency": 1})), ["n1", "n2"]);
    stage.set_ready("n1", false);
    stage.settle();
    assert_eq!((stage.started(), stage.end_of("n1").as_str()), (vec!["n2"], "Waiting/NodeNotReady"));
    stage.succeed("n2");
    assert_eq!(stage.state(), "Running");
    stage.set_ready("n1", true);
    stage.settle();
    assert_eq!((stage.started(), stage.end_of("n1").as_str()), (vec!["n2", "n1"], "Pending"));
    stage.set_ready("n1", false);
    stage.settle();
    assert_eq!(stage.end_of("n1"), "Pending", "it keeps its Job");
}

#[test]
fn a_node_that_is_not_ready_is_left_out_where_asked_for() {
    let mut stage = Stage::daemon(daemon(json!({"notReadyPolicy": "Skip"})), ["n1", "n2"]);
    stage.set_ready("n1", false);
    stage.settle();
    assert_eq!(stage.end_of("n1"), "Omitted/NodeNotReady");
    stage.succeed("n2");
    assert_eq!((stage.state(), stage.parent.status["progress"].as_str()), ("Succeed", Some("1/1")));
}

#[test]
fn all_nodes_left_out_is_a_success_without_targets() {
    let mut stage = Stage::daemon(daemon(json!({"notReadyPolicy": "Skip"})), ["n1"]);
    stage.set_ready("n1", false);
    stage.settle();
    assert_eq!((stage.state(), stage.condition("Complete").as_str()), ("Succeed", "True/NoTargets"));
}

#[test]
fn a_node_that_never_gets_ready_fails_in_time_and_with_it_the_object() {
    for policy in ["FailFast", "Continue", "Pause"] {
        let rollout = json!({"nodeTimeoutSeconds": 60, "failurePolicy": {"type": policy}});
        let mut stage = Stage::daemon(daemon(rollout), ["n1"]);
        stage.set_ready("n1", false);
        stage.settle();
        stage.pass(59);
        assert_eq!(stage.end_of("n1"), "Waiting/NodeNotReady");
        stage.restart();
        stage.now = stage.plan().due.unwrap();
        let plan = stage.round();
        assert_eq!((stage.end_of("n1").as_str(), stage.state()), ("Failed/NodeNotReady", "Failed"), "{policy}");
        assert_eq!((plan.verdict.has_completed, stage.condition("Failed").as_str()), (true, "True/NodesFailed"));
        assert_eq!((stage.events("Succeed"), stage.events("NodeFailed")), (0, 1));
    }
}

fn four() -> [Value; 4] {
    let tainted = |name: &str, effect: &str| json!({"metadata": {"name": name, "uid": name}, "spec": {"taints": [{"key": "k", "effect": effect}]}});
    [
        json!({"metadata": {"name": "n1", "uid": "n1"}, "spec": {"unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}}),
        tainted("n2", "NoSchedule"),
        tainted("n3", "NoExecute"),
        tainted("n4", "PreferNoSchedule"),
    ]
}

#[test]
fn cordoned_and_tainted_nodes_run_by_default_and_are_left_out_where_asked_for() {
    let rollouts = [
        (json!({}), vec!["n1", "n2", "n3", "n4"]),
        (json!({"taints": "Respect"}), vec!["n4"]),
        (json!({"skipCordoned": true}), vec!["n2", "n3", "n4"]),
        (json!({"taints": "TolerateAll"}), vec!["n1", "n2", "n3", "n4"]),
        (json!({"nodeSelector": {"matchLabels": {"a": "b"}}}), vec![]),
    ];
    for (rollout, wanted) in rollouts {
        let mut stage = Stage::daemon(daemon(rollout.clone()), []);
        four().into_iter().for_each(|node| stage.set_node(node));
        stage.settle();
        assert_eq!(stage.started(), wanted, "{rollout}");
        if rollout == json!({"taints": "TolerateAll"}) {
            assert_eq!(
                stage.object_of("n3")["spec"]["template"]["spec"]["tolerations"],
                json!([{"operator": "Exists"}])
            );
        }
    }
}

#[test]
fn a_node_that_the_pod_itself_refuses_is_left_out() {
    let mut spec = job();
    spec["template"]["spec"]["nodeSelector"] = json!({"zone": "a"});
    let mut stage = Stage::daemon(spec, ["n1"]);
    stage.set_node(json!({"metadata": {"name": "n2", "uid": "n2", "labels": {"zone": "a"}}}));
    stage.settle();
    assert_eq!(stage.started(), ["n2"]);
}

#[test]
fn nothing_is_created_for_a_daemon_job_that_is_being_deleted() {
    let mut stage = Stage::daemon(daemon(json!({"concurrency": 1, "newNodePolicy": "Run"})), ["n1", "n2"]);
    stage.settle();
    stage.parent.terminating = true;
    stage.add_node("n3");
    stage.succeed("n1");
    assert_eq!((stage.started(), stage.state()), (vec!["n1"], "Terminating"));
}

#[test]
fn each_success_after_new_nodes_is_told() {
    let mut stage = Stage::daemon(daemon(json!({"newNodePolicy": "Run"})), ["n0"]);
    stage.settle();
    stage.succeed("n0");
    stage.now = oarlock_core::job::time::after_seconds(stage.now, 60);
    stage.add_node("n1");
    stage.settle();
    stage.succeed("n1");
    assert_eq!((stage.state(), stage.events("Succeed")), ("Succeed", 2));
}

#[test]
fn each_failure_after_new_nodes_is_told() {
    let rollout = json!({"newNodePolicy": "Run", "failurePolicy": {"type": "Continue"}});
    let mut stage = Stage::daemon(daemon(rollout), ["n0"]);
    stage.settle();
    stage.fail("n0");
    stage.add_node("n1");
    stage.settle();
    assert_eq!((stage.state(), stage.events("Failed")), ("Running", 1));
    stage.succeed("n1");
    assert_eq!((stage.state(), stage.events("Failed")), ("Failed", 2));
}
