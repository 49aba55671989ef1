//! The bounds of a status, and the events of large objects: A39, section 7.

use oarlock_core::child::status::{StatusInput, report};
use oarlock_core::child::unit::{Unit, UnitState};
use serde_json::{Value, json};

use crate::stage::make::{daemon, flow, step};
use crate::stage::{Death, Stage};

fn thousand() -> Stage {
    let names: Vec<String> = (0..1_000).map(|index| format!("{}{index:04}", "n".repeat(56))).collect();
    let rollout = json!({"failurePolicy": {"type": "Continue"}});
    let mut stage = Stage::daemon(daemon(rollout), names.iter().map(String::as_str));
    stage.settle();
    for (index, name) in names.iter().enumerate() {
        stage.end(name, index % 2 == 0);
    }
    stage.settle();
    stage
}

#[test]
fn a_thousand_long_nodes_of_which_half_failed_have_a_bounded_status_and_four_records() {
    let mut stage = thousand();
    assert_eq!(stage.state(), "Failed");
    assert!(stage.parent.status.to_string().len() < 64_000, "{}", stage.parent.status.to_string().len());
    let counts = &stage.parent.status["counts"];
    assert_eq!((&counts["total"], &counts["failed"], &counts["succeeded"]), (&json!(1_000), &json!(500), &json!(500)));
    assert_eq!(stage.parent.status["tableTruncated"], true);
    let plan = stage.plan();
    let reported = report(StatusInput {
        parent: &stage.parent,
        units: &plan.units,
        header: &plan.header,
        verdict: &plan.verdict,
        children: &stage.children,
    });
    assert!(reported.is_cut);
    assert_eq!(stage.records(), [250; 4]);
    let before = stage.memory.units.clone();
    stage.restart();
    assert_eq!(stage.memory.units, before);
    stage.settle();
    assert_eq!(stage.created.len(), 1_000);
}

/// Every child that has ended is gone: its time was over.
fn expire_ended(stage: &mut Stage) {
    let ended = |unit: &&Unit| unit.state.is_terminal() && !unit.job.is_empty();
    let jobs: Vec<String> = stage.memory.units.iter().filter(ended).map(|unit| unit.job.clone()).collect();
    jobs.iter().for_each(|job| stage.vanish(job));
}

fn lost(stage: &Stage) -> usize {
    stage.memory.units.iter().filter(|unit| unit.reason == "RecordLost").count()
}

#[test]
fn nodes_of_a_record_that_was_deleted_by_hand_are_not_run_again_but_by_a_retry() {
    let mut stage = thousand();
    expire_ended(&mut stage);
    stage.lose_record(1);
    // It has come since, and was never one of the set.
    stage.add_node("zz");
    stage.restart();
    stage.settle();
    assert_eq!((lost(&stage), stage.created.len(), stage.records()), (250, 1_000, vec![250; 4]));
    let name = format!("{}0300", "n".repeat(56));
    assert_eq!(
        stage.unit(&name).message,
        "its line in the JobRecords is missing or unreadable, so what ran of it is unknown; check, then run: oarlock retry dj/d -n ns"
    );
    stage.restart();
    stage.retry(&format!("now/{name}"));
    assert_eq!((lost(&stage), stage.created.len()), (249, 1_001));
}

#[test]
fn steps_of_a_record_that_was_deleted_by_hand_are_not_run_again_whether_the_spec_is_refused_or_not() {
    for refused in [false, true] {
        let steps = (0..100).map(|index| step(&format!("s{index:02}"), &[], json!({})));
        let mut stage = Stage::flow(flow(steps, json!({})));
        stage.settle();
        (0..98).for_each(|index| stage.end(&format!("s{index:02}"), true));
        stage.settle();
        expire_ended(&mut stage);
        stage.lose_record(0);
        if refused {
            stage.edit("/failurePolicy", json!({"type": "unheard of"}));
        }
        stage.restart();
        stage.settle();
        stage.restart();
        stage.edit("/failurePolicy", Value::Null);
        stage.settle();
        assert_eq!((stage.created.len(), lost(&stage)), (100, 98), "refused: {refused}");
        // The sample in the status tells of those that run.
        assert_eq!((stage.state_of("s98"), stage.state_of("s99")), (UnitState::Pending, UnitState::Pending));
    }
}

/// A flow of these steps that have all succeeded, and whose Jobs are gone.
fn done(steps: std::ops::Range<usize>) -> Stage {
    let mut stage = Stage::flow(flow(steps.clone().map(numbered), json!({})));
    stage.settle();
    steps.for_each(|index| stage.end(&format!("s{index:03}"), true));
    stage.settle();
    expire_ended(&mut stage);
    stage.settle();
    stage
}

fn numbered(index: usize) -> Value {
    step(&format!("s{index:03}"), &[], json!({}))
}

/// Entries move from a JobRecord to another one by each of these edits.
#[test]
fn no_outcome_is_lost_with_a_driver_that_dies_between_two_records_of_an_edit() {
    let edits: [(Vec<usize>, usize); 5] = [
        ((1..302).collect(), 2),
        ((0..300).rev().collect(), 0),
        ((1..300).collect(), 0),
        ((0..300).chain([300]).collect(), 1),
        ([300].into_iter().chain(0..300).collect(), 1),
    ];
    for (steps, new) in edits {
        for dies_after in 0..=2 {
            let mut stage = done(0..300);
            stage.edit("/flows", steps.iter().copied().map(numbered).collect());
            let plan = stage.plan();
            stage.carry_out(&plan, Some(Death::AmongRecords(dies_after)));
            stage.restart();
            stage.settle();
            let told = format!("{new} new ones, {dies_after} records written");
            assert_eq!((lost(&stage), stage.created.len()), (0, 300 + new), "{told}");
            stage.restart();
            stage.settle();
            assert_eq!((lost(&stage), stage.created.len()), (0, 300 + new), "{told}");
        }
    }
}

#[test]
fn a_flow_that_had_succeeded_stays_so_when_its_records_are_deleted() {
    let mut stage = done(0..100);
    stage.lose_record(0);
    stage.restart();
    stage.settle();
    assert_eq!((stage.state(), lost(&stage), stage.created.len()), ("Succeed", 0, 100));
    let message = "its line in the JobRecords is missing or unreadable; the whole had succeeded";
    assert_eq!(stage.unit("s007").message, message);
    // Whether a step that was added since has run, nothing tells.
    stage.lose_record(0);
    stage.edit("/flows", (0..101).map(numbered).collect());
    stage.restart();
    stage.settle();
    assert_eq!((stage.state(), lost(&stage), stage.created.len()), ("Failed", 101, 100));
}

#[test]
fn an_attempt_that_failed_tells_nothing_of_a_later_one_whose_record_is_lost() {
    let steps = (0..100).map(|index| step(&format!("s{index:03}"), &[], json!({"retryPolicy": {"limit": 1}})));
    let mut stage = Stage::flow(flow(steps, json!({"cleanup": {"jobs": "DeleteSucceeded"}})));
    stage.settle();
    stage.fail("s000");
    stage.wake();
    (0..99).for_each(|index| stage.end(&format!("s{index:03}"), true));
    stage.settle();
    assert_eq!((stage.created.len(), stage.state_of("s000")), (101, UnitState::Succeed));
    stage.lose_record(0);
    stage.restart();
    stage.settle();
    assert_eq!((stage.created.len(), stage.end_of("s000").as_str()), (101, "Failed/RecordLost"));
    // Nothing tells of the attempt that it had.
    stage.attempts.remove(&("s000".to_owned(), 1));
    stage.retry("now/s000");
    assert_eq!((stage.created.len(), stage.unit("s000").job.as_str()), (102, "f-s000-r1"));
}

#[test]
fn nodes_whose_jobs_run_are_known_again_before_any_other_though_their_record_is_lost() {
    for policy in ["Ignore", "Run"] {
        let mut stage = Stage::daemon(
            daemon(json!({"newNodePolicy": policy, "failurePolicy": {"type": "Continue"}})),
            (0..300).map(|index| format!("n{index:03}")).collect::<Vec<_>>().iter().map(String::as_str),
        );
        stage.settle();
        (0..50).for_each(|index| stage.add_node(&format!("a{index:03}")));
        stage.lose_record(1);
        stage.restart();
        stage.settle();
        let new = if policy == "Run" { 50 } else { 0 };
        assert_eq!(
            (lost(&stage), stage.memory.units.len(), stage.created.len()),
            (0, 300 + new, 300 + new),
            "{policy}"
        );
        assert_eq!(stage.state_of("n299"), UnitState::Pending);
    }
}

#[test]
fn many_nodes_are_told_of_in_tenths_and_warnings_stop() {
    let stage = thousand();
    assert_eq!((stage.events("Created"), stage.events("Failed")), (0, 1));
    assert!(stage.events("Progress") <= 10 && stage.events("Progress") > 0);
    assert!(stage.events("NodeFailed") <= 100, "{}", stage.events("NodeFailed"));
}

#[test]
fn warnings_of_many_nodes_stop_after_a_hundred_however_they_come() {
    let names: Vec<String> = (0..300).map(|index| format!("n{index:03}")).collect();
    let rollout = json!({"failurePolicy": {"type": "Continue"}});
    let mut stage = Stage::daemon(daemon(rollout), names.iter().map(String::as_str));
    stage.settle();
    names.iter().for_each(|name| stage.fail(name));
    assert_eq!(stage.events("NodeFailed"), 100);
}

#[test]
fn a_full_list_has_full_values_and_a_crowded_one_counters() {
    let mut stage = Stage::daemon(daemon(json!({})), ["n1", "n2"]);
    stage.settle();
    stage.run("n1");
    assert_eq!(stage.parent.status["jobStatusList"], json!({"d-n1/ns": {"active": 1, "ready": 1}, "d-n2/ns": {}}));
    assert!(stage.parent.status.get("jobStatusListOmitted").is_none());
}

#[test]
fn the_words_that_every_job_ends_well_with_are_not_repeated() {
    let said =
        [("Reached expected number of succeeded pods", ""), ("Matched rules at index 0", "Matched rules at index 0")];
    for (message, kept) in said {
        let mut stage = Stage::flow(crate::stage::make::plain(&[("a", &[])]));
        stage.settle();
        stage.set_status("f-a", json!({"conditions": [{"type": "Complete", "status": "True", "message": message}]}));
        stage.settle();
        assert_eq!((stage.state_of("a"), stage.unit("a").message.as_str()), (UnitState::Succeed, kept));
        assert_eq!(stage.parent.status["jobStatusList"]["f-a/ns"]["conditions"][0]["message"], message);
    }
}

#[test]
fn an_entry_that_cannot_be_read_counts_as_absent() {
    let mut stage = Stage::flow(crate::stage::make::plain(&[("a", &[])]));
    stage.settle();
    stage.parent.status["steps"] = json!([5, {"name": "a", "state": "Unheard"}, null, {"state": "Failed"}]);
    stage.parent.status["startTime"] = json!(7);
    stage.restart();
    stage.settle();
    assert_eq!((stage.created.len(), stage.state_of("a")), (1, UnitState::Pending));
}

#[test]
fn a_unit_is_stored_as_it_is_remembered() {
    let unit = Unit { job: "j".into(), job_uid: "u".into(), attempt: 3, counted_from: 2, ..Unit::new("a") };
    assert_eq!(serde_json::from_value::<Unit>(json!(unit)).unwrap(), unit);
}
