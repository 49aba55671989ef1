//! Edits of the spec: the table of 2.8.

use oarlock_core::child::unit::UnitState;
use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{flow, job, plain, step, with};

#[test]
fn a_step_that_is_added_after_the_end_runs() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.succeed("a");
    assert_eq!(stage.state(), "Succeed");
    stage.edit("/flows", json!([step("a", &[], json!({})), step("b", &["a"], json!({}))]));
    stage.settle();
    assert_eq!((stage.state(), stage.started()), ("Running", vec!["a", "b"]));
    assert_eq!(stage.parent.status.get("completionTime"), None);
    stage.succeed("b");
    assert_eq!((stage.state(), stage.events("Succeed")), ("Succeed", 2));
}

#[test]
fn a_step_that_is_added_after_a_failure_is_omitted() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.fail("a");
    stage.edit("/flows", json!([step("a", &[], json!({})), step("b", &[], json!({}))]));
    stage.settle();
    assert_eq!((stage.end_of("b").as_str(), stage.created.len()), ("Omitted/FlowFailed", 1));
}

#[test]
fn a_step_that_is_removed_counts_no_more_and_its_child_stays() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[])]));
    stage.settle();
    stage.fail("b");
    stage.edit("/flows", json!([step("a", &[], json!({}))]));
    stage.settle();
    assert_eq!((stage.state(), stage.objects.len(), stage.memory.units.len()), ("Pending", 2, 1));
    stage.succeed("a");
    assert_eq!((stage.state(), stage.parent.status["progress"].as_str()), ("Succeed", Some("1/1")));
    stage.edit("/flows", json!([step("a", &[], json!({})), step("b", &[], json!({}))]));
    stage.settle();
    assert_eq!((stage.state(), stage.created.len()), ("Failed", 2));
}

#[test]
fn an_edited_step_that_has_started_keeps_its_child_and_is_outdated() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    for step in ["0", "1"] {
        stage.edit(&format!("/flows/{step}/jobTemplate/template/spec/containers/0/image"), json!("new"));
    }
    stage.settle();
    assert_eq!((stage.unit("a").outdated, stage.unit("b").outdated), (true, false));
    stage.restart();
    stage.succeed("a");
    assert!(stage.unit("a").outdated);
    assert_eq!(stage.object_of("b")["spec"]["template"]["spec"]["containers"][0]["image"], "new");
    assert!(!stage.unit("b").outdated);
    stage.edit("/flows/0/jobTemplate/template/spec/containers/0/image", json!("i"));
    stage.settle();
    assert!(!stage.unit("a").outdated, "it is what stands there again");
}

#[test]
fn new_globals_outdate_what_has_started() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    stage.edit("/globalParams", json!({"env": [{"name": "X", "value": "1"}]}));
    stage.settle();
    assert!(stage.unit("a").outdated);
    stage.succeed("a");
    assert_eq!(stage.object_of("b")["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"], "1");
}

#[test]
fn a_changed_template_outdates_what_was_made_from_it() {
    let by_template =
        |name: &str, needed: &[&str]| json!({"name": name, "dependencies": needed, "jobTemplateRef": "t"});
    let mut stage = Stage::flow(flow([by_template("a", &[]), by_template("b", &["a"])], json!({})));
    stage.add_template("t", "u/1", job());
    stage.settle();
    stage.add_template("t", "u/2", json!({"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}}));
    stage.settle();
    assert!(stage.unit("a").outdated);
    stage.succeed("a");
    assert_eq!(stage.object_of("b")["spec"]["template"]["spec"]["containers"][0]["image"], "new");
    assert!(!stage.unit("b").outdated);
}

#[test]
fn an_attempt_after_an_edit_is_up_to_date() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    stage.settle();
    stage.edit("/flows/0/jobTemplate/template/spec/containers/0/image", json!("new"));
    stage.fail("a");
    assert!(stage.unit("a").outdated);
    stage.wake();
    assert_eq!((stage.unit("a").attempt, stage.unit("a").outdated), (1, false));
}

#[test]
fn a_queue_that_a_job_was_given_makes_it_no_other_revision() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[])]));
    stage.settle();
    stage.parent.labels.insert("kueue.x-k8s.io/queue-name".to_owned(), "q".to_owned());
    stage.edit("/flows/1/timeoutSeconds", json!(60));
    stage.settle();
    assert_eq!((stage.unit("a").outdated, stage.unit("b").outdated), (false, true));
}

#[test]
fn a_higher_limit_is_no_reason_to_run_what_failed() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.fail("a");
    stage.edit("/flows/0/retryPolicy", json!({"limit": 3}));
    stage.pass(60);
    assert_eq!((stage.created.len(), stage.state_of("a")), (1, UnitState::Failed));
}

#[test]
fn a_new_limit_of_the_flow_counts_at_once() {
    let mut stage = Stage::flow(plain(&[("a", &[])]));
    stage.settle();
    stage.pass(100);
    stage.edit("/timeoutSeconds", json!(50));
    stage.settle();
    assert_eq!(stage.end_of("a"), "Failed/FlowTimeout");
}

#[test]
fn a_unit_names_the_template_that_its_child_was_built_from_whatever_becomes_of_that() {
    let by_template = json!({"name": "a", "jobTemplateRef": "t", "retryPolicy": {"limit": 1}});
    let mut stage = Stage::flow(flow([by_template, step("b", &["a"], json!({}))], json!({})));
    stage.add_template("t", "u/1", job());
    let plan = stage.plan();
    stage.add_template("t", "u/2", json!({"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}}));
    stage.carry_out(&plan, None);
    stage.settle();
    let shown = |stage: &Stage| (stage.unit("a").template.clone(), stage.unit("a").outdated);
    assert_eq!(shown(&stage), ("u/1".to_owned(), true), "it was created before the edit");
    stage.restart();
    stage.settle();
    assert_eq!(shown(&stage), ("u/1".to_owned(), true));
    stage.add_template("t", "u/3", job());
    stage.settle();
    assert_eq!(shown(&stage), ("u/1".to_owned(), false), "the edit was taken back");
    stage.fail("a");
    stage.wake();
    assert_eq!((shown(&stage), stage.unit("a").attempt), (("u/3".to_owned(), false), 1));
}

#[test]
fn a_version_of_a_template_that_no_builder_wrote_is_not_shown() {
    let mut stage = Stage::flow(flow([json!({"name": "a", "jobTemplateRef": "t"})], json!({})));
    stage.add_template("t", "u/1", job());
    let plan = stage.plan();
    stage.carry_out(&plan, None);
    stage.objects.get_mut("f-a").unwrap()["metadata"]["annotations"]["oarlock.dev/template"] = "x y/1".into();
    stage.show("f-a");
    stage.settle();
    assert_eq!((stage.unit("a").template.as_str(), stage.unit("a").outdated), ("", false));
}

#[test]
fn a_child_that_shows_up_after_the_edit_is_outdated() {
    let limited = |seconds: i64| with(job(), json!({"activeDeadlineSeconds": seconds}));
    let mut flow = Stage::flow(flow([json!({"name": "a", "jobTemplate": limited(1)})], json!({})));
    let mut daemon = Stage::daemon(limited(1), ["a"]);
    let edits = [
        (&mut flow, ("/flows/0/jobTemplate", limited(2)), ("/suspend", json!(true))),
        (&mut daemon, ("/activeDeadlineSeconds", json!(2)), ("/rollout", json!({"paused": true}))),
    ];
    for (stage, (place, value), (hold, holds)) in edits {
        let late = stage.plan().creates[0].clone();
        stage.edit(place, value);
        stage.edit(hold, holds);
        stage.settle();
        assert_eq!(stage.created.len(), 0);
        // Its create had no answer until now.
        stage.create(&late);
        stage.settle();
        stage.restart();
        stage.settle();
        assert_eq!((stage.created.len(), stage.unit("a").outdated), (1, true), "{place}");
    }
}

#[test]
fn an_outdated_child_stays_so_when_its_template_is_gone() {
    let mut stage = Stage::flow(flow([json!({"name": "a", "jobTemplateRef": "t"})], json!({})));
    stage.add_template("t", "u/1", job());
    stage.settle();
    stage.add_template("t", "u/2", with(job(), json!({"activeDeadlineSeconds": 9})));
    stage.settle();
    assert!(stage.unit("a").outdated);
    stage.templates.clear();
    stage.settle();
    assert!(stage.unit("a").outdated);
}
