//! `cleanup`: what the host deletes after the end.

use oarlock_core::attempts::plan::LateCreate;
use oarlock_core::attempts::pods::PodReport;
use serde_json::json;

use crate::fixture::Fixture;
use crate::fixture::make::{daemon, flow, job, step, with};

fn ended(cleanup: serde_json::Value) -> Fixture {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({}))];
    let mut fixture = Fixture::flow(flow(steps, json!({"cleanup": cleanup})));
    fixture.settle();
    fixture.succeed("a");
    fixture.fail("b");
    fixture
}

#[test]
fn jobs_are_kept_or_deleted_as_asked_for() {
    for (jobs, left) in [("Keep", vec!["f-a", "f-b"]), ("DeleteSucceeded", vec!["f-b"]), ("DeleteAll", vec![])] {
        let fixture = ended(json!({"jobs": jobs}));
        assert_eq!(fixture.objects.keys().map(String::as_str).collect::<Vec<_>>(), left, "{jobs}");
        assert_eq!((fixture.state(), fixture.created.len()), ("Failed", 2));
    }
}

#[test]
fn the_jobs_of_all_attempts_are_deleted() {
    let steps = [step("a", &[], json!({"retryPolicy": {"limit": 1}}))];
    let mut fixture = Fixture::flow(flow(steps, json!({"cleanup": {"jobs": "DeleteAll"}})));
    fixture.settle();
    fixture.fail("a");
    fixture.wake();
    fixture.succeed("a");
    assert!(fixture.objects.is_empty(), "{:?}", fixture.objects.keys());
}

#[test]
fn the_object_is_deleted_so_long_after_its_end() {
    let mut fixture = ended(json!({"ttlSeconds": 100}));
    assert_eq!(fixture.plan().due, Some(oarlock_core::object::time::after_seconds(fixture.now, 100)));
    fixture.restart();
    fixture.pass(99);
    assert!(!fixture.is_gone);
    fixture.wake();
    assert!(fixture.is_gone);
}

#[test]
fn an_object_that_goes_on_is_not_deleted() {
    let mut fixture = ended(json!({"ttlSeconds": 100}));
    fixture.retry("1");
    fixture.pass(500);
    assert!(!fixture.is_gone);
    fixture.succeed("b");
    fixture.wake();
    assert!(fixture.is_gone);
}

#[test]
fn a_daemon_job_is_cleaned_up_alike() {
    let mut fixture =
        Fixture::daemon(with(daemon(json!({})), json!({"cleanup": {"ttlSeconds": 0, "jobs": "DeleteAll"}})), ["n1"]);
    fixture.settle();
    fixture.succeed("n1");
    assert!(fixture.objects.is_empty() && fixture.is_gone);
}

/// Returns a flow of two running steps whose spec is refused from now on.
fn refused(cleanup: serde_json::Value) -> Fixture {
    let brief = json!({"jobTemplate": with(job(), json!({"ttlSecondsAfterFinished": 30}))});
    let steps = [step("a", &[], brief.clone()), step("b", &[], brief)];
    let mut fixture = Fixture::flow(flow(steps, json!({"cleanup": cleanup})));
    fixture.settle();
    fixture.edit("/flows/1/dependencies", json!(["b"]));
    fixture.settle();
    fixture
}

#[test]
fn times_to_live_begin_also_while_the_spec_is_refused() {
    let mut fixture = refused(json!({}));
    fixture.edit("/cleanup", json!({"jobs": "x"}));
    assert_eq!(fixture.condition("Valid"), "False/Cycle");
    let object = fixture.objects.get_mut("f-a").unwrap();
    object["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    fixture.show("f-a");
    fixture.succeed("a");
    fixture.fail("b");
    let own = |word| fixture.changed.iter().filter(move |(changed, _)| *changed == word).count();
    assert_eq!((own("adopt"), own("ttl"), own("delete")), (1, 2, 0));
    assert_eq!(fixture.object_of("b")["spec"]["ttlSecondsAfterFinished"], 30);
}

#[test]
fn jobs_are_deleted_as_asked_for_also_while_the_spec_is_refused() {
    for (jobs, left) in [("Keep", vec!["f-a", "f-b"]), ("DeleteSucceeded", vec!["f-b"]), ("DeleteAll", vec![])] {
        let mut fixture = refused(json!({"jobs": jobs}));
        fixture.succeed("a");
        fixture.fail("b");
        assert_eq!(fixture.objects.keys().map(String::as_str).collect::<Vec<_>>(), left, "{jobs}");
    }
}

#[test]
fn an_object_whose_spec_is_refused_is_deleted_only_where_nothing_of_it_could_go_on() {
    let mut fixture = refused(json!({"ttlSeconds": 100}));
    fixture.succeed("a");
    fixture.fail("b");
    fixture.pass(200);
    assert!(!fixture.is_gone, "another attempt of b may follow once the spec is mended");
    let mut fixture = refused(json!({"ttlSeconds": 100}));
    fixture.succeed("a");
    fixture.succeed("b");
    fixture.pass(99);
    assert!(!fixture.is_gone);
    fixture.wake();
    assert!(fixture.is_gone);
    let mut fixture = Fixture::flow(flow([step("a", &["a"], json!({}))], json!({"cleanup": {"ttlSeconds": 0}})));
    fixture.settle();
    fixture.pass(100);
    assert!(!fixture.is_gone, "it never ran");
    let mut fixture = Fixture::flow(flow([step("a", &[], json!({}))], json!({"cleanup": {"ttlSeconds": 100}})));
    fixture.settle();
    fixture.succeed("a");
    fixture
        .edit("/flows", json!([step("a", &[], json!({})), step("b", &["c"], json!({})), step("c", &["b"], json!({}))]));
    fixture.pass(200);
    assert_eq!(fixture.condition("Valid"), "False/Cycle");
    assert!(!fixture.is_gone, "b and c run once the spec is mended");
}

#[test]
fn an_operation_that_failed_while_the_spec_is_refused_stays_for_its_next_attempt() {
    let operation = json!({"action": "reboot", "targets": [{"name": "x"}, {"name": "y"}]});
    let steps = [json!({"name": "a", "operation": operation, "retryPolicy": {"limit": 1}})];
    let mut fixture = Fixture::flow(flow(steps, json!({"cleanup": {"jobs": "DeleteAll"}})));
    fixture.settle();
    fixture.edit("/flows/0/dependencies", json!(["a"]));
    fixture.fail("a");
    assert_eq!((fixture.condition("Valid").as_str(), fixture.objects.len()), ("False/Cycle", 1));
    fixture.edit("/flows/0/dependencies", json!([]));
    fixture.settle();
    fixture.wake();
    assert_eq!(fixture.names(), ["f-a", "f-a-r1"]);
}

#[test]
fn a_name_stays_taken_as_long_as_a_create_of_it_may_come_late() {
    let brief = json!({"jobTemplate": with(job(), json!({"ttlSecondsAfterFinished": 0}))});
    let mut fixture = Fixture::flow(flow([step("a", &[], brief)], json!({})));
    fixture.settle();
    let late = oarlock_core::object::time::after_seconds(fixture.now, 60);
    fixture.memory.late_creates.insert("a".to_owned(), LateCreate { attempt: 0, until: late });
    fixture.succeed("a");
    assert_eq!((fixture.changed.as_slice(), fixture.plan().due), ([].as_slice(), Some(late)));
    fixture.wake();
    assert_eq!(fixture.changed, [("ttl", "f-a".to_owned())]);
}

#[test]
fn a_job_that_comes_late_to_a_step_that_has_ended_is_deleted() {
    let mut fixture = ended(json!({}));
    let mut twin = fixture.objects["f-a"].clone();
    fixture.vanish("f-a");
    fixture.settle();
    twin["metadata"]["uid"] = json!("late");
    twin["status"] = json!({});
    fixture.plant(twin);
    fixture.settle();
    assert_eq!(fixture.changed, [("delete", "f-a".to_owned())]);
    assert_eq!((fixture.end_of("a").as_str(), fixture.created.len()), ("Succeed", 2));
}

#[test]
fn a_job_that_comes_late_to_a_step_that_was_given_up_is_deleted() {
    let steps = [step("a", &[], json!({"retryPolicy": {"limit": 3}})), step("b", &[], json!({}))];
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    fixture.fail("a");
    fixture.now = fixture.plan().due.unwrap();
    let plan = fixture.plan();
    let mut late = plan.creates[0].object.clone();
    fixture.memory = fixture.remembered(&plan);
    let until = oarlock_core::object::time::after_seconds(fixture.now, 60);
    fixture.memory.late_creates.insert("a".to_owned(), LateCreate { attempt: 1, until });
    // The host knows at once why b fails.
    let b = fixture.unit("b").job_uid.clone();
    fixture.memory.pods.insert(b, PodReport::default());
    fixture.fail("b");
    assert_eq!((fixture.end_of("a").as_str(), fixture.unit("a").has_child()), ("Failed/BackoffLimitExceeded", false));
    late["metadata"]["uid"] = json!("late");
    fixture.plant(late);
    fixture.settle();
    assert_eq!(fixture.changed.last(), Some(&("delete", "f-a-r1".to_owned())));
    assert!(fixture.objects.keys().all(|name| name != "f-a-r1"));
    fixture.retry("1/a");
    assert_eq!((fixture.created.len(), fixture.plan().due), (2, Some(until)), "another one may come");
    fixture.wake();
    assert_eq!(fixture.names().last(), Some(&"f-a-r2"), "the number that was given up is not used again");
}

#[test]
fn a_job_that_is_seen_late_of_a_step_whose_record_was_lost_is_no_stray() {
    let steps: Vec<_> = (0..90).map(|number| step(&format!("s{number:02}"), &[], json!({}))).collect();
    let mut fixture = Fixture::flow(flow(steps, json!({})));
    fixture.settle();
    (0..90).for_each(|number| fixture.succeed(&format!("s{number:02}")));
    let seen_late = fixture.objects["f-s50"].clone();
    fixture.vanish("f-s50");
    fixture.lose_record(0);
    fixture.edit("/flows/0/when", json!("finished"));
    fixture.restart();
    fixture.settle();
    assert_eq!(fixture.end_of("s50"), "Failed/RecordLost");
    fixture.plant(seen_late);
    fixture.settle();
    assert_eq!((fixture.objects.len(), fixture.changed.as_slice()), (90, [].as_slice()));
}
