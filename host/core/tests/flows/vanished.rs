//! Children that expire or are deleted: A7 to A9.

use serde_json::{Value, json};

use crate::fixture::make::{flow, job, plain, step, with};
use crate::fixture::{Death, Fixture};

fn with_ttl() -> Fixture {
    let brief = with(job(), json!({"ttlSecondsAfterFinished": 0}));
    let mut fixture =
        Fixture::flow(flow([json!({"name": "a", "jobTemplate": brief}), step("b", &["a"], json!({}))], json!({})));
    fixture.settle();
    fixture
}

#[test]
fn a_withheld_ttl_begins_once_the_outcome_is_durable() {
    let mut fixture = with_ttl();
    assert!(fixture.object_of("a")["spec"].get("ttlSecondsAfterFinished").is_none());
    assert_eq!(fixture.object_of("a")["metadata"]["annotations"]["oarlock.dev/ttl"], "0");
    fixture.end("a", true);
    let plan = fixture.plan();
    fixture.carry_out(&plan, Some(Death::AfterStatus));
    assert!(fixture.objects.contains_key("f-a"));
    fixture.restart();
    fixture.settle();
    assert_eq!(
        (fixture.changed.clone(), fixture.objects.contains_key("f-a")),
        (vec![("ttl", "f-a".to_owned())], false)
    );
    fixture.succeed("b");
    assert_eq!((fixture.started(), fixture.state()), (vec!["a", "b"], "Succeed"));
    assert!(fixture.parent.status["jobStatusList"]["f-a/ns"]["conditions"].is_array());
}

#[test]
fn the_jobs_of_earlier_attempts_expire_too() {
    let brief = with(job(), json!({"ttlSecondsAfterFinished": 0}));
    let steps = [json!({"name": "a", "jobTemplate": brief, "retryPolicy": {"limit": 1}})];
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    fixture.fail("a");
    assert!(fixture.objects.contains_key("f-a"), "what it says may still be asked for");
    fixture.wake();
    assert_eq!(fixture.objects.keys().collect::<Vec<_>>(), ["f-a-r1"]);
    fixture.succeed("a");
    assert!(fixture.objects.is_empty());
}

#[test]
fn a_finished_job_that_is_deleted_changes_nothing() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    fixture.succeed("a");
    fixture.succeed("b");
    let before = fixture.memory.units.clone();
    fixture.vanish("f-a");
    fixture.settle();
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.memory.units == before, fixture.state(), fixture.created.len()), (true, "Succeed", 2));
}

#[test]
fn a_job_that_ended_and_vanished_at_once_counts_as_it_was_last_seen() {
    for (well, end) in [(true, "Succeed"), (false, "Failed/BackoffLimitExceeded")] {
        let mut fixture = Fixture::flow(plain(&[("a", &[])]));
        fixture.settle();
        fixture.end("a", well);
        fixture.vanish("f-a");
        fixture.settle();
        assert_eq!((fixture.end_of("a").as_str(), fixture.created.len(), fixture.listed), (end, 1, 0));
    }
}

#[test]
fn a_running_job_that_is_deleted_while_the_driver_is_down_has_failed() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    fixture.vanish("f-a");
    fixture.restart();
    fixture.settle();
    assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Failed/JobDeleted", 1));
}

#[test]
fn a_retry_policy_replaces_a_deleted_job() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({"retryPolicy": {"limit": 1}}))], json!({})));
    fixture.settle();
    fixture.vanish("f-a");
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Retrying/JobDeleted");
    fixture.wake();
    assert_eq!(fixture.names(), ["f-a", "f-a-r1"]);
    fixture.vanish("f-a-r1");
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Failed/JobDeleted");
}

/// Replaces the owner references of a child, runs rounds, and returns the references before.
fn set_owners(fixture: &mut Fixture, name: &str, owners: Value) -> Value {
    let stored = &mut fixture.objects.get_mut(name).unwrap()["metadata"]["ownerReferences"];
    let before = std::mem::replace(stored, owners);
    fixture.show(name);
    fixture.settle();
    before
}

#[test]
fn an_owner_reference_that_is_stripped_leaves_the_recorded_outcome() {
    let mut fixture = with_ttl();
    fixture.end("a", true);
    let plan = fixture.plan();
    fixture.carry_out(&plan, Some(Death::AfterStatus));
    set_owners(&mut fixture, "f-a", json!([]));
    for _ in 0..2 {
        assert_eq!((fixture.end_of("a").as_str(), fixture.started()), ("Succeed", vec!["a", "b"]));
        assert!(fixture.changed.is_empty(), "it is not ours any more: {:?}", fixture.changed);
        fixture.restart();
        fixture.settle();
    }
}

#[test]
fn a_child_without_its_owner_reference_blocks_its_unit_also_after_a_restart() {
    let mut fixture = Fixture::flow(plain(&[("a", &[]), ("b", &["a"])]));
    fixture.settle();
    let owners = set_owners(&mut fixture, "f-a", json!([]));
    fixture.end("a", true);
    for _ in 0..2 {
        fixture.settle();
        assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Blocked/NameConflict", 1));
        fixture.restart();
    }
    assert!(fixture.unit("a").message.contains("Job ns/f-a"), "{}", fixture.unit("a").message);
    set_owners(&mut fixture, "f-a", owners);
    assert_eq!((fixture.end_of("a").as_str(), fixture.started()), ("Succeed", vec!["a", "b"]));
}

#[test]
fn a_child_that_is_deleted_without_its_owner_reference_was_deleted() {
    for restarts in [false, true] {
        let mut fixture = Fixture::flow(plain(&[("a", &[])]));
        fixture.settle();
        set_owners(&mut fixture, "f-a", json!([]));
        if restarts {
            fixture.restart();
            fixture.settle();
        }
        fixture.vanish("f-a");
        fixture.settle();
        assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Failed/JobDeleted", 1), "{restarts}");
    }
}

#[test]
fn a_copy_of_a_child_without_owner_is_nobodys_child() {
    let mut fixture = Fixture::flow(plain(&[("a", &[])]));
    fixture.settle();
    let mut copy = fixture.objects["f-a"].clone();
    copy["metadata"] = with(copy["metadata"].clone(), json!({"name": "copy", "uid": "copied", "ownerReferences": []}));
    copy["metadata"]["labels"]["oarlock.dev/attempt"] = json!("7");
    fixture.plant(copy);
    fixture.end_child("copy", true);
    fixture.settle();
    assert_eq!((fixture.end_of("a").as_str(), fixture.changed.len()), ("Pending", 0));
    fixture.fail("a");
    assert_eq!((fixture.end_of("a").as_str(), fixture.changed.len()), ("Failed/BackoffLimitExceeded", 0));
}

#[test]
fn the_time_of_a_flow_stops_no_job_that_is_not_its_own() {
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"timeoutSeconds": 60})));
    fixture.settle();
    set_owners(&mut fixture, "f-a", json!([]));
    fixture.pass(60);
    assert_eq!((fixture.end_of("a").as_str(), fixture.changed.len()), ("Failed/FlowTimeout", 0));
    assert!(fixture.parent.status.get("completionTime").is_some());
}
