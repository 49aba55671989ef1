//! The bounds of a status, and the events of large objects: A39, section 7.

use oarlock_core::attempts::status::{StatusInput, report};
use oarlock_core::attempts::unit::{Unit, UnitState};
use serde_json::{Value, json};

use crate::fixture::make::{daemon, flow, step};
use crate::fixture::{Death, Fixture};

fn thousand() -> Fixture {
    let names: Vec<String> = (0..1_000).map(|index| format!("{}{index:04}", "n".repeat(56))).collect();
    let rollout = json!({"failurePolicy": {"type": "Continue"}});
    let mut fixture = Fixture::daemon(daemon(rollout), names.iter().map(String::as_str));
    fixture.settle();
    for (index, name) in names.iter().enumerate() {
        fixture.end(name, index % 2 == 0);
    }
    fixture.settle();
    fixture
}

#[test]
fn a_thousand_long_nodes_of_which_half_failed_have_a_bounded_status_and_four_records() {
    let mut fixture = thousand();
    assert_eq!(fixture.state(), "Failed");
    assert!(fixture.parent.status.to_string().len() < 64_000, "{}", fixture.parent.status.to_string().len());
    let counts = &fixture.parent.status["counts"];
    assert_eq!((&counts["total"], &counts["failed"], &counts["succeeded"]), (&json!(1_000), &json!(500), &json!(500)));
    assert_eq!(fixture.parent.status["tableTruncated"], true);
    let plan = fixture.plan();
    let reported = report(StatusInput {
        parent: &fixture.parent,
        units: &plan.units,
        header: &plan.header,
        summary: &plan.summary,
        children: &fixture.children,
    });
    assert!(reported.is_cut);
    assert_eq!(fixture.records(), [250; 4]);
    let before = fixture.memory.units.clone();
    fixture.restart();
    assert_eq!(fixture.memory.units, before);
    fixture.settle();
    assert_eq!(fixture.created.len(), 1_000);
}

/// Removes every child that has ended, as its time to live does.
fn expire_ended(fixture: &mut Fixture) {
    let ended = |unit: &&Unit| unit.state.is_terminal() && !unit.job.is_empty();
    let jobs: Vec<String> = fixture.memory.units.iter().filter(ended).map(|unit| unit.job.clone()).collect();
    jobs.iter().for_each(|job| fixture.vanish(job));
}

fn lost(fixture: &Fixture) -> usize {
    fixture.memory.units.iter().filter(|unit| unit.reason == "RecordLost").count()
}

#[test]
fn nodes_of_a_record_that_was_deleted_by_hand_are_not_run_again_but_by_a_retry() {
    let mut fixture = thousand();
    expire_ended(&mut fixture);
    fixture.lose_record(1);
    // This node joined later and never belonged to the set.
    fixture.add_node("zz");
    fixture.restart();
    fixture.settle();
    assert_eq!((lost(&fixture), fixture.created.len(), fixture.records()), (250, 1_000, vec![250; 4]));
    let name = format!("{}0300", "n".repeat(56));
    assert_eq!(
        fixture.unit(&name).message,
        "its line in the JobRecords is missing or unreadable, so what ran of it is unknown; check, then run: oarlock retry dj/d -n ns"
    );
    fixture.restart();
    fixture.retry(&format!("now/{name}"));
    assert_eq!((lost(&fixture), fixture.created.len()), (249, 1_001));
}

#[test]
fn steps_of_a_record_that_was_deleted_by_hand_are_not_run_again_whether_the_spec_is_refused_or_not() {
    for refused in [false, true] {
        let steps = (0..100).map(|index| step(&format!("s{index:02}"), &[], json!({})));
        let mut fixture = Fixture::flow(flow(steps, json!({})));
        fixture.settle();
        (0..98).for_each(|index| fixture.end(&format!("s{index:02}"), true));
        fixture.settle();
        expire_ended(&mut fixture);
        fixture.lose_record(0);
        if refused {
            fixture.edit("/failurePolicy", json!({"type": "unheard of"}));
        }
        fixture.restart();
        fixture.settle();
        fixture.restart();
        fixture.edit("/failurePolicy", Value::Null);
        fixture.settle();
        assert_eq!((fixture.created.len(), lost(&fixture)), (100, 98), "refused: {refused}");
        // The sample in the status names the running steps.
        assert_eq!((fixture.state_of("s98"), fixture.state_of("s99")), (UnitState::Pending, UnitState::Pending));
    }
}

/// Returns a flow of these steps that have all succeeded and whose Jobs are gone.
fn done(steps: std::ops::Range<usize>) -> Fixture {
    let mut fixture = Fixture::flow(flow(steps.clone().map(numbered), json!({})));
    fixture.settle();
    steps.for_each(|index| fixture.end(&format!("s{index:03}"), true));
    fixture.settle();
    expire_ended(&mut fixture);
    fixture.settle();
    fixture
}

fn numbered(index: usize) -> Value {
    step(&format!("s{index:03}"), &[], json!({}))
}

/// Each of these edits moves entries from one JobRecord to another.
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
            let mut fixture = done(0..300);
            fixture.edit("/flows", steps.iter().copied().map(numbered).collect());
            let plan = fixture.plan();
            fixture.carry_out(&plan, Some(Death::AmongRecords(dies_after)));
            fixture.restart();
            fixture.settle();
            let told = format!("{new} new ones, {dies_after} records written");
            assert_eq!((lost(&fixture), fixture.created.len()), (0, 300 + new), "{told}");
            fixture.restart();
            fixture.settle();
            assert_eq!((lost(&fixture), fixture.created.len()), (0, 300 + new), "{told}");
        }
    }
}

#[test]
fn a_flow_that_had_succeeded_stays_so_when_its_records_are_deleted() {
    let mut fixture = done(0..100);
    fixture.lose_record(0);
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.state(), lost(&fixture), fixture.created.len()), ("Succeed", 0, 100));
    let message = "its line in the JobRecords is missing or unreadable; the whole had succeeded";
    assert_eq!(fixture.unit("s007").message, message);
    // No stored state tells whether a step that was added since has run.
    fixture.lose_record(0);
    fixture.edit("/flows", (0..101).map(numbered).collect());
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.state(), lost(&fixture), fixture.created.len()), ("Failed", 101, 100));
}

#[test]
fn an_attempt_that_failed_tells_nothing_of_a_later_one_whose_record_is_lost() {
    let steps = (0..100).map(|index| step(&format!("s{index:03}"), &[], json!({"retryPolicy": {"limit": 1}})));
    let mut fixture = Fixture::flow(flow(steps, json!({"cleanup": {"jobs": "DeleteSucceeded"}})));
    fixture.settle();
    fixture.fail("s000");
    fixture.wake();
    (0..99).for_each(|index| fixture.end(&format!("s{index:03}"), true));
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.state_of("s000")), (101, UnitState::Succeed));
    fixture.lose_record(0);
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.end_of("s000").as_str()), (101, "Failed/RecordLost"));
    // No stored state tells of the attempt that the step had.
    fixture.attempts.remove(&("s000".to_owned(), 1));
    fixture.retry("now/s000");
    assert_eq!((fixture.created.len(), fixture.unit("s000").job.as_str()), (102, "f-s000-r1"));
}

#[test]
fn nodes_whose_jobs_run_are_known_again_before_any_other_though_their_record_is_lost() {
    for policy in ["Ignore", "Run"] {
        let mut fixture = Fixture::daemon(
            daemon(json!({"newNodePolicy": policy, "failurePolicy": {"type": "Continue"}})),
            (0..300).map(|index| format!("n{index:03}")).collect::<Vec<_>>().iter().map(String::as_str),
        );
        fixture.settle();
        (0..50).for_each(|index| fixture.add_node(&format!("a{index:03}")));
        fixture.lose_record(1);
        fixture.restart();
        fixture.settle();
        let new = if policy == "Run" { 50 } else { 0 };
        assert_eq!(
            (lost(&fixture), fixture.memory.units.len(), fixture.created.len()),
            (0, 300 + new, 300 + new),
            "{policy}"
        );
        assert_eq!(fixture.state_of("n299"), UnitState::Pending);
    }
}

#[test]
fn many_nodes_are_told_of_in_tenths_and_warnings_stop() {
    let fixture = thousand();
    assert_eq!((fixture.events("Created"), fixture.events("Failed")), (0, 1));
    assert!(fixture.events("Progress") <= 10 && fixture.events("Progress") > 0);
    assert!(fixture.events("NodeFailed") <= 100, "{}", fixture.events("NodeFailed"));
}

#[test]
fn warnings_of_many_nodes_stop_after_a_hundred_however_they_come() {
    let names: Vec<String> = (0..300).map(|index| format!("n{index:03}")).collect();
    let rollout = json!({"failurePolicy": {"type": "Continue"}});
    let mut fixture = Fixture::daemon(daemon(rollout), names.iter().map(String::as_str));
    fixture.settle();
    names.iter().for_each(|name| fixture.fail(name));
    assert_eq!(fixture.events("NodeFailed"), 100);
}

#[test]
fn a_full_list_has_full_values_and_a_crowded_one_counters() {
    let mut fixture = Fixture::daemon(daemon(json!({})), ["n1", "n2"]);
    fixture.settle();
    fixture.run("n1");
    assert_eq!(fixture.parent.status["jobStatusList"], json!({"d-n1/ns": {"active": 1, "ready": 1}, "d-n2/ns": {}}));
    assert!(fixture.parent.status.get("jobStatusListOmitted").is_none());
}

#[test]
fn the_words_that_every_job_ends_well_with_are_not_repeated() {
    let said =
        [("Reached expected number of succeeded pods", ""), ("Matched rules at index 0", "Matched rules at index 0")];
    for (message, kept) in said {
        let mut fixture = Fixture::flow(crate::fixture::make::plain(&[("a", &[])]));
        fixture.settle();
        fixture.set_status("f-a", json!({"conditions": [{"type": "Complete", "status": "True", "message": message}]}));
        fixture.settle();
        assert_eq!((fixture.state_of("a"), fixture.unit("a").message.as_str()), (UnitState::Succeed, kept));
        assert_eq!(fixture.parent.status["jobStatusList"]["f-a/ns"]["conditions"][0]["message"], message);
    }
}

#[test]
fn an_entry_that_cannot_be_read_counts_as_absent() {
    let mut fixture = Fixture::flow(crate::fixture::make::plain(&[("a", &[])]));
    fixture.settle();
    fixture.parent.status["steps"] = json!([5, {"name": "a", "state": "Unheard"}, null, {"state": "Failed"}]);
    fixture.parent.status["startTime"] = json!(7);
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.created.len(), fixture.state_of("a")), (1, UnitState::Pending));
}

#[test]
fn a_unit_is_stored_as_it_is_remembered() {
    let unit = Unit { job: "j".into(), job_uid: "u".into(), attempt: 3, counted_from: 2, ..Unit::new("a") };
    assert_eq!(serde_json::from_value::<Unit>(json!(unit)).unwrap(), unit);
}
