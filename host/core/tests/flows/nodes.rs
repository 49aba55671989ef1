//! The nodes on which a DaemonJob runs: A30, A32 to A35.

use oarlock_core::attempts::unit::UnitState;
use serde_json::{Value, json};

use crate::fixture::make::{daemon, job, with};
use crate::fixture::{Death, Fixture};

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("n{index}")).collect()
}

#[test]
fn all_nodes_but_the_excluded_ones_have_a_job_in_one_round() {
    let nodes = names(50);
    let spec = with(daemon(json!({})), json!({"excludeNodeList": " n1,\n n2"}));
    let mut fixture = Fixture::daemon(spec, nodes.iter().map(String::as_str));
    fixture.round();
    assert_eq!(fixture.created.len(), 48);
    assert!(!fixture.started().contains(&"n1") && fixture.names().contains(&"d-n10"));
    let pod = &fixture.object_of("n10")["spec"]["template"]["spec"];
    assert_eq!((&pod["nodeName"], &pod["restartPolicy"]), (&json!("n10"), &json!("Never")));
    assert_eq!(fixture.object_of("n10")["metadata"]["annotations"]["oarlock.dev/node"], "n10");
}

#[test]
fn the_set_is_durable_before_the_first_create_and_survives_a_restart() {
    let mut fixture = Fixture::daemon(daemon(json!({})), ["n1", "n2"]);
    let plan = fixture.plan();
    assert!(plan.durable_first && plan.header.set_generation == Some(1));
    fixture.carry_out(&plan, Some(Death::AfterCreates));
    fixture.restart();
    fixture.add_node("n3");
    fixture.settle();
    assert_eq!(fixture.started(), ["n1", "n2"]);
}

#[test]
fn a_node_that_is_cordoned_right_after_its_job_was_made_stays_in_the_set() {
    let rollout = json!({"newNodePolicy": "Run", "skipCordoned": true, "concurrency": 1});
    let mut fixture = Fixture::daemon(daemon(rollout), ["n1", "n2"]);
    fixture.round();
    assert_eq!((fixture.started(), fixture.unit("n1").has_child()), (vec!["n1"], false));
    fixture
        .set_node(json!({"metadata": {"name": "n1", "uid": fixture.nodes["n1"].uid}, "spec": {"unschedulable": true}}));
    fixture.settle();
    assert_eq!((fixture.state_of("n1"), fixture.started()), (UnitState::Pending, vec!["n1"]));
}

#[test]
fn no_field_of_ours_goes_to_the_job_and_every_other_one_does() {
    let spec = with(daemon(json!({})), json!({"completions": 2, "suspend": true, "unheardOf": 1, "cleanup": {}}));
    let mut fixture = Fixture::daemon(spec, ["n1"]);
    fixture.settle();
    let spec = &fixture.object_of("n1")["spec"];
    assert_eq!((&spec["completions"], &spec["suspend"], &spec["unheardOf"]), (&json!(2), &json!(true), &json!(1)));
    assert!(spec.get("rollout").is_none() && spec.get("cleanup").is_none());
    assert_eq!(fixture.state_of("n1"), UnitState::Pending);
}

#[test]
fn an_edit_takes_the_set_again() {
    let mut fixture = Fixture::daemon(daemon(json!({"concurrency": 1})), ["n1", "n2", "n3"]);
    fixture.settle();
    fixture.add_node("n0");
    fixture.edit("/excludeNodeList", json!("n1,n3"));
    fixture.settle();
    let units: Vec<&str> = fixture.memory.units.iter().map(|unit| unit.name.as_str()).collect();
    assert_eq!(units, ["n0", "n1", "n2"], "n1 has started, n3 has not");
}

#[test]
fn the_outcome_of_a_node_that_goes_afterwards_stays() {
    let mut fixture = Fixture::daemon(daemon(json!({})), ["n1", "n2"]);
    fixture.settle();
    fixture.succeed("n1");
    fixture.nodes.clear();
    fixture.end("n2", false);
    fixture.settle();
    assert_eq!(
        (fixture.end_of("n1").as_str(), fixture.end_of("n2").as_str()),
        ("Succeed", "Failed/BackoffLimitExceeded")
    );
    assert_eq!((fixture.state(), fixture.changed.len()), ("Failed", 0));
}

#[test]
fn a_node_of_another_uid_is_another_node() {
    for (policy, jobs) in [("Ignore", 1), ("Run", 2)] {
        let mut fixture = Fixture::daemon(daemon(json!({"newNodePolicy": policy})), ["n1"]);
        fixture.settle();
        fixture.set_node(json!({"metadata": {"name": "n1", "uid": "another"}}));
        fixture.settle();
        assert_eq!((fixture.created.len(), fixture.changed.len()), (jobs, 1), "{policy}");
        if policy == "Run" {
            assert_eq!(fixture.names(), ["d-n1", "d-n1-r1"]);
            fixture.succeed("n1");
        }
        assert_eq!(fixture.state(), "Succeed");
    }
}

#[test]
fn a_node_that_was_replaced_while_the_driver_was_down_loses_its_old_job() {
    let mut fixture = Fixture::daemon(daemon(json!({"newNodePolicy": "Run"})), ["n1"]);
    fixture.settle();
    fixture.set_node(json!({"metadata": {"name": "n1", "uid": "another"}}));
    let plan = fixture.plan();
    fixture.carry_out(&plan, Some(Death::AfterStatus));
    fixture.restart();
    fixture.settle();
    assert_eq!(fixture.objects.keys().collect::<Vec<_>>(), ["d-n1-r1"]);
}

#[test]
fn a_node_that_is_not_ready_is_waited_for_without_a_slot() {
    let mut fixture = Fixture::daemon(daemon(json!({"concurrency": 1})), ["n1", "n2"]);
    fixture.set_ready("n1", false);
    fixture.settle();
    assert_eq!((fixture.started(), fixture.end_of("n1").as_str()), (vec!["n2"], "Waiting/NodeNotReady"));
    fixture.succeed("n2");
    assert_eq!(fixture.state(), "Running");
    fixture.set_ready("n1", true);
    fixture.settle();
    assert_eq!((fixture.started(), fixture.end_of("n1").as_str()), (vec!["n2", "n1"], "Pending"));
    fixture.set_ready("n1", false);
    fixture.settle();
    assert_eq!(fixture.end_of("n1"), "Pending", "it keeps its Job");
}

#[test]
fn all_nodes_left_out_is_a_success_without_targets() {
    let mut fixture = Fixture::daemon(daemon(json!({"notReadyPolicy": "Skip"})), ["n1"]);
    fixture.set_ready("n1", false);
    fixture.settle();
    assert_eq!((fixture.state(), fixture.condition("Complete").as_str()), ("Succeed", "True/NoTargets"));
}

#[test]
fn a_node_that_never_gets_ready_fails_in_time_and_with_it_the_object() {
    for policy in ["FailFast", "Continue", "Pause"] {
        let rollout = json!({"nodeTimeoutSeconds": 60, "failurePolicy": {"type": policy}});
        let mut fixture = Fixture::daemon(daemon(rollout), ["n1"]);
        fixture.set_ready("n1", false);
        fixture.settle();
        fixture.pass(59);
        assert_eq!(fixture.end_of("n1"), "Waiting/NodeNotReady");
        fixture.restart();
        fixture.now = fixture.plan().due.unwrap();
        let plan = fixture.round();
        assert_eq!((fixture.end_of("n1").as_str(), fixture.state()), ("Failed/NodeNotReady", "Failed"), "{policy}");
        assert_eq!((plan.summary.has_completed, fixture.condition("Failed").as_str()), (true, "True/NodesFailed"));
        assert_eq!((fixture.events("Succeed"), fixture.events("NodeFailed")), (0, 1));
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
        let mut fixture = Fixture::daemon(daemon(rollout.clone()), []);
        four().into_iter().for_each(|node| fixture.set_node(node));
        fixture.settle();
        assert_eq!(fixture.started(), wanted, "{rollout}");
        if rollout == json!({"taints": "TolerateAll"}) {
            assert_eq!(
                fixture.object_of("n3")["spec"]["template"]["spec"]["tolerations"],
                json!([{"operator": "Exists"}])
            );
        }
    }
}

#[test]
fn a_node_that_the_pod_itself_refuses_is_left_out() {
    let mut spec = job();
    spec["template"]["spec"]["nodeSelector"] = json!({"zone": "a"});
    let mut fixture = Fixture::daemon(spec, ["n1"]);
    fixture.set_node(json!({"metadata": {"name": "n2", "uid": "n2", "labels": {"zone": "a"}}}));
    fixture.settle();
    assert_eq!(fixture.started(), ["n2"]);
}

#[test]
fn nothing_is_created_for_a_daemon_job_that_is_being_deleted() {
    let mut fixture = Fixture::daemon(daemon(json!({"concurrency": 1, "newNodePolicy": "Run"})), ["n1", "n2"]);
    fixture.settle();
    fixture.parent.terminating = true;
    fixture.add_node("n3");
    fixture.succeed("n1");
    assert_eq!((fixture.started(), fixture.state()), (vec!["n1"], "Terminating"));
}

#[test]
fn each_success_after_new_nodes_is_told() {
    let mut fixture = Fixture::daemon(daemon(json!({"newNodePolicy": "Run"})), ["n0"]);
    fixture.settle();
    fixture.succeed("n0");
    fixture.now = oarlock_core::object::time::after_seconds(fixture.now, 60);
    fixture.add_node("n1");
    fixture.settle();
    assert_eq!((fixture.state(), fixture.parent.status.get("completionTime")), ("Running", None));
    fixture.succeed("n1");
    assert_eq!((fixture.state(), fixture.events("Succeed")), ("Succeed", 2));
}

#[test]
fn each_failure_after_new_nodes_is_told() {
    let rollout = json!({"newNodePolicy": "Run", "failurePolicy": {"type": "Continue"}});
    let mut fixture = Fixture::daemon(daemon(rollout), ["n0"]);
    fixture.settle();
    fixture.fail("n0");
    fixture.add_node("n1");
    fixture.settle();
    assert_eq!((fixture.state(), fixture.events("Failed")), ("Running", 1));
    fixture.succeed("n1");
    assert_eq!((fixture.state(), fixture.events("Failed")), ("Failed", 2));
}
