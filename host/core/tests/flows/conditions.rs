//! Conditions, with the mirrors that kstatus reads: section 5.

use serde_json::json;

use crate::fixture::Fixture;
use crate::fixture::make::{daemon, flow, plain, step};

/// Returns `Complete Failed Progressing Valid Blocked Paused Reconciling Stalled` as T, F, or - if the condition is missing.
fn row(fixture: &Fixture) -> String {
    let kinds = ["Complete", "Failed", "Progressing", "Valid", "Blocked", "Paused", "Reconciling", "Stalled"];
    let short = |kind| match fixture.condition(kind).split('/').next() {
        Some("True") => 'T',
        Some("False") => 'F',
        _ => '-',
    };
    kinds.map(short).into_iter().collect()
}

#[test]
fn each_course_of_a_flow_has_its_row_of_conditions() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    assert_eq!(row(&fixture), "FFTTFFT-", "running");
    fixture.edit("/suspend", json!(true));
    fixture.settle();
    assert_eq!(row(&fixture), "FFTTFTT-", "suspended with a child that goes on");
    fixture.succeed("a");
    assert_eq!(row(&fixture), "FFFTFTT-", "suspended");
    fixture.edit("/suspend", json!(false));
    fixture.settle();
    fixture.succeed("b");
    assert_eq!(row(&fixture), "TFFTFF--", "succeeded");
    fixture.edit("/flows/0/name", json!("A"));
    fixture.settle();
    assert_eq!((row(&fixture).as_str(), fixture.events("InvalidSpec")), ("FTFFFF-T", 1), "not valid");
}

#[test]
fn a_failed_flow_is_stalled_and_a_retry_ends_that() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[])]));
    fixture.settle();
    fixture.fail("a");
    assert_eq!(row(&fixture), "FFTTFFT-", "it winds down");
    fixture.fail("b");
    assert_eq!(row(&fixture), "FTFTFF-T");
    fixture.retry("1");
    assert_eq!(row(&fixture), "FFTTFFT-");
}

#[test]
fn a_blocked_flow_is_stalled_only_while_nothing_is_active() {
    let mut fixture =
        Fixture::flow(flow([json!({"name": "a", "jobTemplateRef": "t"}), step("b", &[], json!({}))], json!({})));
    fixture.settle();
    assert_eq!(row(&fixture), "FFTTTFT-");
    fixture.succeed("b");
    assert_eq!(row(&fixture), "FFFTTF-T");
}

#[test]
fn the_time_of_a_condition_changes_only_with_its_status() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    fixture.pass(100);
    fixture.succeed("a");
    fixture.pass(100);
    fixture.restart();
    fixture.succeed("b");
    let since = |kind: &str| {
        let found = fixture.memory.header.conditions.iter().find(|one| one.kind == kind).unwrap();
        found.last_transition_time.clone()
    };
    assert_eq!((since("Valid").as_str(), since("Complete").as_str()), (crate::fixture::START, "2026-01-01T00:03:20Z"));
    assert!(fixture.memory.header.conditions.iter().all(|one| one.observed_generation == Some(1)));
}

#[test]
fn progressing_names_five_units_and_says_how_many_more() {
    let names: Vec<String> = (0..9).map(|index| format!("n{index}")).collect();
    let mut fixture = Fixture::daemon(daemon(json!({})), names.iter().map(String::as_str));
    fixture.settle();
    let message = fixture.message("Progressing");
    assert!(
        message.contains("n4 (Pending)") && !message.contains("n5") && message.ends_with("and 4 more"),
        "{message}"
    );
}

#[test]
fn a_long_story_is_cut_to_a_kilobyte() {
    let steps =
        (0..80).map(|index| json!({"name": format!("s{index}-{}", "x".repeat(50)), "jobTemplateRef": "y".repeat(200)}));
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    assert!(fixture.memory.header.conditions.iter().all(|one| one.message.len() <= 1_024));
    assert!(fixture.memory.units.iter().all(|unit| unit.message.len() <= 256));
}

#[test]
fn progressing_says_first_what_holds_the_object_and_then_what_it_waits_for() {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({})),
        json!({"name": "c", "dependencies": ["a"], "jobTemplateRef": "t"}),
    ];
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    assert_eq!(fixture.message("Progressing"), "0 of 3 steps succeeded; waiting for a (Pending), b (Pending)");
    fixture.succeed("a");
    let message = fixture.message("Progressing");
    let blocked = "1 of 3 steps succeeded; waiting for c (JobTemplateNotFound: there is no JobTemplate \"t\"";
    assert!(message.starts_with(blocked) && message.ends_with("b (Pending)"), "{message}");
    fixture.edit("/suspend", json!(true));
    fixture.settle();
    let message = fixture.message("Progressing");
    assert!(message.starts_with("paused: spec.suspend is true") && message.contains("1 of 3 steps"), "{message}");
    fixture.succeed("b");
    let message = fixture.message("Progressing");
    assert_eq!(fixture.condition("Progressing"), "False/AtRest");
    assert!(message.starts_with("paused: spec.suspend is true") && message.contains("2 of 3 steps"), "{message}");
    fixture.edit("/suspend", json!(false));
    fixture.settle();
    let message = fixture.message("Progressing");
    assert_eq!(
        (fixture.condition("Progressing").as_str(), fixture.condition("Stalled").as_str()),
        ("False/AtRest", "True/Blocked")
    );
    assert!(message.starts_with("2 of 3 steps succeeded; waiting for c (JobTemplateNotFound: "), "{message}");
}

#[test]
fn progressing_of_a_paused_object_names_the_failure_and_what_to_do() {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({}))];
    let mut fixture = Fixture::flow(flow(steps, json!({"failurePolicy": {"type": "Pause"}})));
    fixture.settle();
    fixture.fail("a");
    let wanted =
        "paused: these steps failed: a; mend the cause, then run: oarlock retry jf/f -n ns; 0 of 2 steps succeeded";
    assert_eq!(fixture.message("Progressing"), wanted);
}

#[test]
fn progressing_names_nodes_that_are_not_ready() {
    let mut fixture = Fixture::daemon(daemon(json!({})), ["n1", "n2"]);
    fixture.set_ready("n1", false);
    fixture.settle();
    fixture.succeed("n2");
    let message = fixture.message("Progressing");
    assert!(message.starts_with("1 of 2 nodes succeeded; waiting for n1 (NodeNotReady: "), "{message}");
}

#[test]
fn progressing_of_what_ended_badly_says_why() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &[])]));
    fixture.settle();
    fixture.succeed("b");
    fixture.fail("a");
    assert_eq!(fixture.message("Progressing"), "1 of 2 steps succeeded; these steps failed: a");
    fixture.edit("/flows/0/name", json!("A"));
    fixture.settle();
    assert!(
        fixture.message("Progressing").contains("step 0: the name \"A\" must"),
        "{}",
        fixture.message("Progressing")
    );
}

#[test]
fn nothing_progresses_while_an_attempt_is_held() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    fixture.settle();
    fixture.edit("/suspend", json!(true));
    fixture.fail("a");
    assert_eq!((fixture.end_of("a").as_str(), row(&fixture).as_str()), ("Retrying/BackoffLimitExceeded", "FFFTFTT-"));
    fixture.pass(60);
    assert_eq!(fixture.created.len(), 1);
}

#[test]
fn a_finished_object_keeps_its_completion_time_while_it_is_being_deleted() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({})));
    fixture.settle();
    fixture.succeed("a");
    let end = fixture.parent.status["completionTime"].clone();
    fixture.parent.terminating = true;
    fixture.pass(60);
    fixture.vanish("f-a");
    fixture.restart();
    fixture.pass(60);
    assert_eq!((fixture.state(), &fixture.parent.status["completionTime"]), ("Terminating", &end));
    assert!(end.is_string());
}

#[test]
fn what_to_do_with_a_paused_daemon_job_names_its_namespace() {
    let rollout = json!({"concurrency": 1, "failurePolicy": {"type": "Pause"}});
    let mut fixture = Fixture::daemon(crate::fixture::make::daemon(rollout), ["n0", "n1"]);
    fixture.settle();
    fixture.fail("n0");
    assert!(fixture.message("Paused").contains("oarlock retry dj/d -n ns"), "{}", fixture.message("Paused"));
}
