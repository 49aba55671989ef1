//! Bad input: the catalogue of section 10, for objects that were stored before a policy refused such input.

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::fixture::make::{daemon, flow, job, last, plain, step, with};

#[test]
fn no_steps_at_all_succeed_at_once() {
    for flows in [json!(null), json!([])] {
        let mut fixture = Fixture::flow(json!({"flows": flows}));
        fixture.settle();
        assert_eq!((fixture.state(), fixture.condition("Complete").as_str()), ("Succeed", "True/NoSteps"));
        assert!(fixture.parent.status.get("completionTime").is_some());
    }
}

#[test]
fn an_object_without_spec_is_no_trouble() {
    let mut fixture = Fixture::flow(Value::Null);
    fixture.settle();
    assert_eq!(fixture.state(), "Succeed");
    let mut fixture = Fixture::daemon(Value::Null, ["n1"]);
    fixture.settle();
    assert_eq!((fixture.state(), fixture.condition("Valid").as_str()), ("Failed", "False/NoWork"));
}

fn answer(spec: Value) -> (String, String) {
    let mut fixture = Fixture::flow(spec);
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.state()), (0, "Failed"));
    (fixture.condition("Valid").trim_start_matches("False/").to_owned(), fixture.message("Valid"))
}

#[test]
fn bad_names_are_named() {
    for name in ["", "A", "a_b", "-a", "a.", "é"] {
        assert_eq!(answer(plain(&[(name, &[])])).0, "BadName", "{name:?}");
    }
    assert_eq!(answer(plain(&[(&"a".repeat(64), &[])])).0, "BadName");
    assert_eq!(answer(json!({"flows": [{"jobTemplate": job()}, 5, null]})).0, "BadName");
    assert_eq!(answer(plain(&[("a", &[]), ("a", &[])])).0, "DuplicateStep");
    assert_eq!(
        answer(flow([step("a", &[], json!({}))], json!({"finally": [last("a", json!({}))]}))).0,
        "DuplicateStep"
    );
}

#[test]
fn bad_dependencies_are_named() {
    let (reason, message) = answer(plain(&[("a", &["job2"])]));
    assert_eq!(reason, "UnknownDependency");
    assert!(message.contains("step a") && message.contains("job2"), "{message}");
    assert_eq!(answer(plain(&[("a", &["a"])])).0, "Cycle");
    let (reason, message) = answer(flow([step("a", &["z"], json!({}))], json!({"finally": [last("z", json!({}))]})));
    assert!(reason == "UnknownDependency" && message.contains("finally"), "{message}");
    assert_eq!(
        answer(flow([step("a", &[], json!({}))], json!({"finally": [step("z", &["a"], json!({}))]}))).0,
        "InvalidValue"
    );
}

#[test]
fn no_work_and_two_kinds_of_it_are_named() {
    let kinds = [
        (json!({"name": "a"}), "NoWork"),
        (json!({"name": "a", "jobTemplate": {"template": {"spec": {"containers": null}}}}), "NoWork"),
        (json!({"name": "a", "jobTemplate": null, "jobTemplateRef": "", "operation": null}), "NoWork"),
        (json!({"name": "a", "jobTemplate": job(), "operation": {}}), "InvalidValue"),
        (json!({"name": "a", "jobTemplateRef": "t", "operation": {}}), "InvalidValue"),
        (json!({"name": "a", "jobTemplate": job(), "overrides": {}}), "InvalidValue"),
        (json!({"name": "a", "operation": {}, "shareVolumeMounts": [{}]}), "InvalidValue"),
        (json!({"name": "a", "jobTemplate": job(), "when": "failure"}), "InvalidValue"),
        (json!({"name": "a", "jobTemplate": job(), "when": "later"}), "InvalidValue"),
        (json!({"name": "a", "jobTemplate": job(), "timeoutSeconds": -1}), "InvalidValue"),
        (json!({"name": "a", "jobTemplate": job(), "retryPolicy": {"limit": -1}}), "InvalidValue"),
    ];
    for (bad, wanted) in kinds {
        let (reason, message) = answer(flow([bad.clone()], json!({})));
        assert_eq!(reason, wanted, "{bad}");
        assert!(message.contains("step a"), "{message}");
    }
}

#[test]
fn bad_values_of_the_flow_are_named() {
    for more in
        [json!({"timeoutSeconds": 0}), json!({"failurePolicy": {"type": "x"}}), json!({"cleanup": {"ttlSeconds": -1}})]
    {
        assert_eq!(answer(flow([step("a", &[], json!({}))], more)).0, "InvalidValue");
    }
    let many: Vec<Value> = (0..501).map(|index| step(&format!("s{index}"), &[], json!({}))).collect();
    assert_eq!(answer(flow(many, json!({}))).0, "InvalidValue");
}

#[test]
fn a_flow_takes_no_action_of_ops_jobs_alone() {
    for action in ["exportimage", "dumplog"] {
        let (reason, words) = answer(json!({"flows": [{"name": "a", "operation": {"action": action}}]}));
        assert_eq!(reason, "InvalidValue");
        assert!(words.contains(&format!("step a: only an OpsJob can run {action}")), "{words}");
    }
}

#[test]
fn bad_values_of_a_daemon_job_are_named() {
    let bad = [
        json!({"concurrency": "150%"}),
        json!({"concurrency": -1}),
        json!({"concurrency": "x"}),
        json!({"nodeTimeoutSeconds": -1}),
        json!({"failurePolicy": {"maxFailures": "1.5%"}}),
        json!({"taints": "x"}),
        json!({"notReadyPolicy": "x"}),
        json!({"newNodePolicy": "x"}),
    ];
    for rollout in bad {
        let mut fixture = Fixture::daemon(daemon(rollout.clone()), ["n1"]);
        fixture.settle();
        assert_eq!(
            (fixture.condition("Valid").as_str(), fixture.created.len()),
            ("False/InvalidValue", 0),
            "{rollout}"
        );
    }
    let mut fixture = Fixture::daemon(with(job(), json!({"manualSelector": true})), ["n1"]);
    fixture.settle();
    assert_eq!(fixture.condition("Valid"), "False/InvalidValue");
}

#[test]
fn an_odd_list_of_excluded_nodes_means_its_names() {
    let mut fixture = Fixture::daemon(with(job(), json!({"excludeNodeList": ",,a, ,b"})), ["a", "b", "c"]);
    fixture.settle();
    assert_eq!(fixture.started(), ["c"]);
    let mut fixture = Fixture::daemon(with(job(), json!({"excludeNodeList": ",,a, ,b"})), ["a", "b"]);
    fixture.settle();
    assert_eq!((fixture.state(), fixture.condition("Complete").as_str()), ("Succeed", "True/NoTargets"));
}

#[test]
fn fields_without_effect_are_told_once() {
    let handled = json!({"ErrorHandler": [{"x": 1}], "errorHandler": {"y": 1}});
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], handled));
    fixture.settle();
    fixture.succeed("a");
    fixture.restart();
    fixture.settle();
    assert_eq!(fixture.events("IgnoredField"), 2);
    assert!(fixture.event_notes.iter().any(|(_, message)| message.contains("finally")));
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"ErrorHandler": []})));
    fixture.settle();
    assert_eq!(fixture.events("IgnoredField"), 0);
    let mut fixture = Fixture::daemon(with(job(), json!({"globalParams": {"nodeName": "n7"}})), ["n1"]);
    fixture.settle();
    assert_eq!(
        (fixture.events("IgnoredField"), fixture.object_of("n1")["spec"]["template"]["spec"]["nodeName"].as_str()),
        (1, Some("n1"))
    );
}

#[test]
fn what_go_clients_write_is_accepted() {
    let nulls = json!({"name": "a", "dependencies": null, "jobTemplateRef": "t", "shareVolumeMounts": null,
        "jobTemplate": {"template": {"metadata": {"creationTimestamp": null}, "spec": {"containers": null}}}});
    let mut fixture =
        Fixture::flow(flow([nulls], json!({"shareVolumes": null, "globalParams": {"env": null, "labels": null}})));
    fixture.add_template("t", "u/1", job());
    fixture.settle();
    assert_eq!((fixture.condition("Valid").as_str(), fixture.started()), ("True/Accepted", vec!["a"]));
}

#[test]
fn ten_megabytes_of_an_error_are_cut() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    let report =
        oarlock_core::attempts::pods::PodReport { message: "\u{1b}x".repeat(5_000_000), is_infrastructure: false };
    fixture.pods.insert("f-a".to_owned(), report);
    fixture.fail("a");
    assert!(fixture.unit("a").message.len() <= 256 && !fixture.unit("a").message.contains('\u{1b}'));
}

#[test]
fn a_hundred_dependencies_are_accepted_however_often_they_are_named_and_one_more_is_not() {
    let names: Vec<String> = (0..101).map(|index| format!("s{index}")).collect();
    let of = |count: usize| {
        let needed: Vec<&str> = names
            .iter()
            .chain(&names)
            .map(String::as_str)
            .filter(|name| names[..count].iter().any(|one| one == name))
            .collect();
        let roots = names.iter().map(|name| step(name, &[], json!({})));
        let mut fixture = Fixture::flow(flow(roots.chain([step("last", &needed, json!({}))]), json!({})));
        fixture.settle();
        fixture.condition("Valid")
    };
    assert_eq!((of(100).as_str(), of(101).as_str()), ("True/Accepted", "False/InvalidValue"));
}
