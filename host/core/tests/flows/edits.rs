//! Edits of the spec: the table of 2.8.

use oarlock_core::attempts::unit::UnitState;
use serde_json::json;

use crate::fixture::Fixture;
use crate::fixture::make::{flow, job, plain, step, with};

#[test]
fn a_step_that_is_added_after_the_end_runs() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.succeed("a");
    assert_eq!(fixture.state(), "Succeed");
    fixture.edit("/flows", json!([step("a", &[], json!({})), step("b", &["a"], json!({}))]));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.started()), ("Running", vec!["a", "b"]));
    assert_eq!(fixture.parent.status.get("completionTime"), None);
    fixture.succeed("b");
    assert_eq!((fixture.state(), fixture.events("Succeed")), ("Succeed", 2));
}

#[test]
fn a_step_that_is_added_after_a_failure_is_omitted() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.fail("a");
    fixture.edit("/flows", json!([step("a", &[], json!({})), step("b", &[], json!({}))]));
    fixture.settle();
    assert_eq!((fixture.end_of("b").as_str(), fixture.created.len()), ("Omitted/FlowFailed", 1));
}

#[test]
fn a_step_that_is_removed_counts_no_more_and_its_child_stays() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[])]));
    fixture.settle();
    fixture.fail("b");
    fixture.edit("/flows", json!([step("a", &[], json!({}))]));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.objects.len(), fixture.memory.units.len()), ("Pending", 2, 1));
    fixture.succeed("a");
    assert_eq!((fixture.state(), fixture.parent.status["progress"].as_str()), ("Succeed", Some("1/1")));
    fixture.edit("/flows", json!([step("a", &[], json!({})), step("b", &[], json!({}))]));
    fixture.settle();
    assert_eq!((fixture.state(), fixture.created.len()), ("Failed", 2));
}

#[test]
fn an_edited_step_that_has_started_keeps_its_child_and_is_outdated() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    for step in ["0", "1"] {
        fixture.edit(&format!("/flows/{step}/jobTemplate/template/spec/containers/0/image"), json!("new"));
    }
    fixture.settle();
    assert_eq!((fixture.unit("a").outdated, fixture.unit("b").outdated), (true, false));
    fixture.restart();
    fixture.succeed("a");
    assert!(fixture.unit("a").outdated);
    assert_eq!(fixture.object_of("b")["spec"]["template"]["spec"]["containers"][0]["image"], "new");
    assert!(!fixture.unit("b").outdated);
    fixture.edit("/flows/0/jobTemplate/template/spec/containers/0/image", json!("i"));
    fixture.settle();
    assert!(!fixture.unit("a").outdated, "it is what stands there again");
}

#[test]
fn new_globals_outdate_what_has_started() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    fixture.edit("/globalParams", json!({"env": [{"name": "X", "value": "1"}]}));
    fixture.settle();
    assert!(fixture.unit("a").outdated);
    fixture.succeed("a");
    assert_eq!(fixture.object_of("b")["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"], "1");
}

#[test]
fn a_changed_template_outdates_what_was_made_from_it() {
    let by_template =
        |name: &str, needed: &[&str]| json!({"name": name, "dependencies": needed, "jobTemplateRef": "t"});
    let mut fixture = Fixture::flow(flow([by_template("a", &[]), by_template("b", &["a"])], json!({})));
    fixture.add_template("t", "u/1", job());
    fixture.settle();
    fixture.add_template("t", "u/2", json!({"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}}));
    fixture.settle();
    assert!(fixture.unit("a").outdated);
    fixture.succeed("a");
    assert_eq!(fixture.object_of("b")["spec"]["template"]["spec"]["containers"][0]["image"], "new");
    assert!(!fixture.unit("b").outdated);
}

#[test]
fn an_attempt_after_an_edit_is_up_to_date() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    fixture.settle();
    fixture.edit("/flows/0/jobTemplate/template/spec/containers/0/image", json!("new"));
    fixture.fail("a");
    assert!(fixture.unit("a").outdated);
    fixture.wake();
    assert_eq!((fixture.unit("a").attempt, fixture.unit("a").outdated), (1, false));
}

#[test]
fn a_queue_that_a_job_was_given_makes_it_no_other_revision() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[])]));
    fixture.settle();
    fixture.parent.labels.insert("kueue.x-k8s.io/queue-name".to_owned(), "q".to_owned());
    fixture.edit("/flows/1/timeoutSeconds", json!(60));
    fixture.settle();
    assert_eq!((fixture.unit("a").outdated, fixture.unit("b").outdated), (false, true));
}

#[test]
fn a_higher_limit_is_no_reason_to_run_what_failed() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.fail("a");
    fixture.edit("/flows/0/retryPolicy", json!({"limit": 3}));
    fixture.pass(60);
    assert_eq!((fixture.created.len(), fixture.state_of("a")), (1, UnitState::Failed));
}

#[test]
fn a_new_limit_of_the_flow_counts_at_once() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.pass(100);
    fixture.edit("/timeoutSeconds", json!(50));
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Failed/FlowTimeout");
}

#[test]
fn a_unit_names_the_template_that_its_child_was_built_from_whatever_becomes_of_that() {
    let by_template = json!({"name": "a", "jobTemplateRef": "t", "retryPolicy": {"limit": 1}});
    let mut fixture = Fixture::flow(flow([by_template, step("b", &["a"], json!({}))], json!({})));
    fixture.add_template("t", "u/1", job());
    let plan = fixture.plan();
    fixture.add_template("t", "u/2", json!({"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}}));
    fixture.carry_out(&plan, None);
    fixture.settle();
    let shown = |fixture: &Fixture| (fixture.unit("a").template.clone(), fixture.unit("a").outdated);
    assert_eq!(shown(&fixture), ("u/1".to_owned(), true), "it was created before the edit");
    fixture.restart();
    fixture.settle();
    assert_eq!(shown(&fixture), ("u/1".to_owned(), true));
    fixture.add_template("t", "u/3", job());
    fixture.settle();
    assert_eq!(shown(&fixture), ("u/1".to_owned(), false), "the edit was undone");
    fixture.fail("a");
    fixture.wake();
    assert_eq!((shown(&fixture), fixture.unit("a").attempt), (("u/3".to_owned(), false), 1));
}

#[test]
fn a_version_of_a_template_that_no_builder_wrote_is_not_shown() {
    let mut fixture = Fixture::flow(flow([json!({"name": "a", "jobTemplateRef": "t"})], json!({})));
    fixture.add_template("t", "u/1", job());
    let plan = fixture.plan();
    fixture.carry_out(&plan, None);
    fixture.objects.get_mut("f-a").unwrap()["metadata"]["annotations"]["oarlock.dev/template"] = "x y/1".into();
    fixture.show("f-a");
    fixture.settle();
    assert_eq!((fixture.unit("a").template.as_str(), fixture.unit("a").outdated), ("", false));
}

#[test]
fn a_child_that_shows_up_after_the_edit_is_outdated() {
    let limited = |seconds: i64| with(job(), json!({"activeDeadlineSeconds": seconds}));
    let mut flow = Fixture::flow(flow([json!({"name": "a", "jobTemplate": limited(1)})], json!({})));
    let mut daemon = Fixture::daemon(limited(1), ["a"]);
    let edits = [
        (&mut flow, ("/flows/0/jobTemplate", limited(2)), ("/suspend", json!(true))),
        (&mut daemon, ("/activeDeadlineSeconds", json!(2)), ("/rollout", json!({"paused": true}))),
    ];
    for (fixture, (place, value), (hold, holds)) in edits {
        let late = fixture.plan().creates[0].clone();
        fixture.edit(place, value);
        fixture.edit(hold, holds);
        fixture.settle();
        assert_eq!(fixture.created.len(), 0);
        // The API server answers the create only now.
        fixture.create(&late);
        fixture.settle();
        fixture.restart();
        fixture.settle();
        assert_eq!((fixture.created.len(), fixture.unit("a").outdated), (1, true), "{place}");
    }
}

#[test]
fn an_outdated_child_stays_so_when_its_template_is_gone() {
    let mut fixture = Fixture::flow(flow([json!({"name": "a", "jobTemplateRef": "t"})], json!({})));
    fixture.add_template("t", "u/1", job());
    fixture.settle();
    fixture.add_template("t", "u/2", with(job(), json!({"activeDeadlineSeconds": 9})));
    fixture.settle();
    assert!(fixture.unit("a").outdated);
    fixture.templates.clear();
    fixture.settle();
    assert!(fixture.unit("a").outdated);
}
