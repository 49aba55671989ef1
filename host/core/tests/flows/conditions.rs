//! Conditions, with the mirrors that kstatus reads: section 5.

use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{daemon, flow, plain, step};

/// `Complete Failed Progressing Valid Blocked Paused Reconciling Stalled`: T, F, or - where it is not there.
fn row(stage: &Stage) -> String {
    let kinds = ["Complete", "Failed", "Progressing", "Valid", "Blocked", "Paused", "Reconciling", "Stalled"];
    let short = |kind| match stage.condition(kind).split('/').next() {
        Some("True") => 'T',
        Some("False") => 'F',
        _ => '-',
    };
    kinds.map(short).into_iter().collect()
}

#[test]
fn each_course_of_a_flow_has_its_row_of_conditions() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    assert_eq!(row(&stage), "FFTTFFT-", "running");
    stage.edit("/suspend", json!(true));
    stage.settle();
    assert_eq!(row(&stage), "FFTTFTT-", "suspended with a child that goes on");
    stage.succeed("a");
    assert_eq!(row(&stage), "FFFTFTT-", "suspended");
    stage.edit("/suspend", json!(false));
    stage.settle();
    stage.succeed("b");
    assert_eq!(row(&stage), "TFFTFF--", "succeeded");
    stage.edit("/flows/0/name", json!("A"));
    stage.settle();
    assert_eq!(row(&stage), "FTFFFF-T", "not valid");
}

#[test]
fn a_failed_flow_is_stalled_and_a_retry_ends_that() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[])]));
    stage.settle();
    stage.fail("a");
    assert_eq!(row(&stage), "FFTTFFT-", "it winds down");
    stage.fail("b");
    assert_eq!(row(&stage), "FTFTFF-T");
    stage.retry("1");
    assert_eq!(row(&stage), "FFTTFFT-");
}

#[test]
fn a_blocked_flow_is_stalled_only_while_nothing_is_active() {
    let mut stage =
        Stage::flow(flow([json!({"name": "a", "jobTemplateRef": "t"}), step("b", &[], json!({}))], json!({})));
    stage.settle();
    assert_eq!(row(&stage), "FFTTTFT-");
    stage.succeed("b");
    assert_eq!(row(&stage), "FFFTTF-T");
}

#[test]
fn the_time_of_a_condition_changes_only_with_its_status() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &["a"])]));
    stage.settle();
    stage.pass(100);
    stage.succeed("a");
    stage.pass(100);
    stage.restart();
    stage.succeed("b");
    let since = |kind: &str| {
        let found = stage.memory.header.conditions.iter().find(|one| one.kind == kind).unwrap();
        found.last_transition_time.clone()
    };
    assert_eq!((since("Valid").as_str(), since("Complete").as_str()), (crate::stage::START, "2026-01-01T00:03:20Z"));
    assert!(stage.memory.header.conditions.iter().all(|one| one.observed_generation == Some(1)));
}

#[test]
fn progressing_names_five_units_and_says_how_many_more() {
    let names: Vec<String> = (0..9).map(|index| format!("n{index}")).collect();
    let mut stage = Stage::daemon(daemon(json!({})), names.iter().map(String::as_str));
    stage.settle();
    let message = stage.message("Progressing");
    assert!(
        message.contains("n4 (Pending)") && !message.contains("n5") && message.ends_with("and 4 more"),
        "{message}"
    );
}

#[test]
fn a_long_story_is_cut_to_a_kilobyte() {
    let steps =
        (0..80).map(|index| json!({"name": format!("s{index}-{}", "x".repeat(50)), "jobTemplateRef": "y".repeat(200)}));
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    assert!(stage.memory.header.conditions.iter().all(|one| one.message.len() <= 1_024));
    assert!(stage.memory.units.iter().all(|unit| unit.message.len() <= 256));
}

#[test]
fn progressing_says_first_what_holds_the_object_and_then_what_it_waits_for() {
    let steps = [
        step("a", &[], json!({})),
        step("b", &[], json!({})),
        json!({"name": "c", "dependencies": ["a"], "jobTemplateRef": "t"}),
    ];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    assert_eq!(stage.message("Progressing"), "0 of 3 steps succeeded; waiting for a (Pending), b (Pending)");
    stage.succeed("a");
    let message = stage.message("Progressing");
    let blocked = "1 of 3 steps succeeded; waiting for c (JobTemplateNotFound: there is no JobTemplate \"t\"";
    assert!(message.starts_with(blocked) && message.ends_with("b (Pending)"), "{message}");
    stage.edit("/suspend", json!(true));
    stage.settle();
    let message = stage.message("Progressing");
    assert!(message.starts_with("paused: spec.suspend is true") && message.contains("1 of 3 steps"), "{message}");
    stage.succeed("b");
    let message = stage.message("Progressing");
    assert_eq!(stage.condition("Progressing"), "False/AtRest");
    assert!(message.starts_with("paused: spec.suspend is true") && message.contains("2 of 3 steps"), "{message}");
    stage.edit("/suspend", json!(false));
    stage.settle();
    let message = stage.message("Progressing");
    assert_eq!(
        (stage.condition("Progressing").as_str(), stage.condition("Stalled").as_str()),
        ("False/AtRest", "True/Blocked")
    );
    assert!(message.starts_with("2 of 3 steps succeeded; waiting for c (JobTemplateNotFound: "), "{message}");
}

#[test]
fn progressing_of_a_paused_object_names_the_failure_and_what_to_do() {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({}))];
    let mut stage = Stage::flow(flow(steps, json!({"failurePolicy": {"type": "Pause"}})));
    stage.settle();
    stage.fail("a");
    let wanted =
        "paused: these steps failed: a; mend the cause, then run: oarlock retry jf/f -n ns; 0 of 2 steps succeeded";
    assert_eq!(stage.message("Progressing"), wanted);
}

#[test]
fn progressing_names_nodes_that_are_not_ready() {
    let mut stage = Stage::daemon(daemon(json!({})), ["n1", "n2"]);
    stage.set_ready("n1", false);
    stage.settle();
    stage.succeed("n2");
    let message = stage.message("Progressing");
    assert!(message.starts_with("1 of 2 nodes succeeded; waiting for n1 (NodeNotReady: "), "{message}");
}

#[test]
fn progressing_of_what_ended_badly_says_why() {
    let mut stage = Stage::flow(plain(&[("a", &[]), ("b", &[])]));
    stage.settle();
    stage.succeed("b");
    stage.fail("a");
    assert_eq!(stage.message("Progressing"), "1 of 2 steps succeeded; these steps failed: a");
    stage.edit("/flows/0/name", json!("A"));
    stage.settle();
    assert!(stage.message("Progressing").contains("step 0: the name \"A\" must"), "{}", stage.message("Progressing"));
}

#[test]
fn nothing_progresses_while_an_attempt_is_held() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    stage.settle();
    stage.edit("/suspend", json!(true));
    stage.fail("a");
    assert_eq!((stage.end_of("a").as_str(), row(&stage).as_str()), ("Retrying/BackoffLimitExceeded", "FFFTFTT-"));
    stage.pass(60);
    assert_eq!(stage.created.len(), 1);
}

#[test]
fn a_finished_object_keeps_its_completion_time_while_it_is_being_deleted() {
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], json!({})));
    stage.settle();
    stage.succeed("a");
    let end = stage.parent.status["completionTime"].clone();
    stage.parent.terminating = true;
    stage.pass(60);
    stage.vanish("f-a");
    stage.restart();
    stage.pass(60);
    assert_eq!((stage.state(), &stage.parent.status["completionTime"]), ("Terminating", &end));
    assert!(end.is_string());
}

#[test]
fn what_to_do_with_a_paused_daemon_job_names_its_namespace() {
    let rollout = json!({"concurrency": 1, "failurePolicy": {"type": "Pause"}});
    let mut stage = Stage::daemon(crate::stage::make::daemon(rollout), ["n0", "n1"]);
    stage.settle();
    stage.fail("n0");
    assert!(stage.message("Paused").contains("oarlock retry dj/d -n ns"), "{}", stage.message("Paused"));
}
