//! `cleanup`: what is deleted after the end.

use oarlock_core::child::plan::LateCreate;
use oarlock_core::child::pods::PodReport;
use serde_json::json;

use crate::stage::Stage;
use crate::stage::make::{daemon, flow, job, step, with};

fn ended(cleanup: serde_json::Value) -> Stage {
    let steps = [step("a", &[], json!({})), step("b", &["a"], json!({}))];
    let mut stage = Stage::flow(flow(steps, json!({"cleanup": cleanup})));
    stage.settle();
    stage.succeed("a");
    stage.fail("b");
    stage
}

#[test]
fn jobs_are_kept_or_deleted_as_asked_for() {
    for (jobs, left) in [("Keep", vec!["f-a", "f-b"]), ("DeleteSucceeded", vec!["f-b"]), ("DeleteAll", vec![])] {
        let stage = ended(json!({"jobs": jobs}));
        assert_eq!(stage.objects.keys().map(String::as_str).collect::<Vec<_>>(), left, "{jobs}");
        assert_eq!((stage.state(), stage.created.len()), ("Failed", 2));
    }
}

#[test]
fn the_jobs_of_all_attempts_are_deleted() {
    let steps = [step("a", &[], json!({"retryPolicy": {"limit": 1}}))];
    let mut stage = Stage::flow(flow(steps, json!({"cleanup": {"jobs": "DeleteAll"}})));
    stage.settle();
    stage.fail("a");
    stage.wake();
    stage.succeed("a");
    assert!(stage.objects.is_empty(), "{:?}", stage.objects.keys());
}

#[test]
fn the_object_is_deleted_so_long_after_its_end() {
    let mut stage = ended(json!({"ttlSeconds": 100}));
    assert_eq!(stage.plan().due, Some(oarlock_core::job::time::after_seconds(stage.now, 100)));
    stage.restart();
    stage.pass(99);
    assert!(!stage.is_gone);
    stage.wake();
    assert!(stage.is_gone);
}

#[test]
fn an_object_that_goes_on_is_not_deleted() {
    let mut stage = ended(json!({"ttlSeconds": 100}));
    stage.retry("1");
    stage.pass(500);
    assert!(!stage.is_gone);
    stage.succeed("b");
    stage.wake();
    assert!(stage.is_gone);
}

#[test]
fn a_daemon_job_is_cleaned_up_alike() {
    let mut stage =
        Stage::daemon(with(daemon(json!({})), json!({"cleanup": {"ttlSeconds": 0, "jobs": "DeleteAll"}})), ["n1"]);
    stage.settle();
    stage.succeed("n1");
    assert!(stage.objects.is_empty() && stage.is_gone);
}

/// A flow of two steps that run, and whose spec is refused from then on.
fn refused(cleanup: serde_json::Value) -> Stage {
    let brief = json!({"jobTemplate": with(job(), json!({"ttlSecondsAfterFinished": 30}))});
    let steps = [step("a", &[], brief.clone()), step("b", &[], brief)];
    let mut stage = Stage::flow(flow(steps, json!({"cleanup": cleanup})));
    stage.settle();
    stage.edit("/flows/1/dependencies", json!(["b"]));
    stage.settle();
    stage
}

#[test]
fn times_to_live_begin_also_while_the_spec_is_refused() {
    let mut stage = refused(json!({}));
    stage.edit("/cleanup", json!({"jobs": "x"}));
    assert_eq!(stage.condition("Valid"), "False/Cycle");
    let object = stage.objects.get_mut("f-a").unwrap();
    object["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    stage.show("f-a");
    stage.succeed("a");
    stage.fail("b");
    let own = |word| stage.changed.iter().filter(move |(changed, _)| *changed == word).count();
    assert_eq!((own("adopt"), own("ttl"), own("delete")), (1, 2, 0));
    assert_eq!(stage.object_of("b")["spec"]["ttlSecondsAfterFinished"], 30);
}

#[test]
fn jobs_are_deleted_as_asked_for_also_while_the_spec_is_refused() {
    for (jobs, left) in [("Keep", vec!["f-a", "f-b"]), ("DeleteSucceeded", vec!["f-b"]), ("DeleteAll", vec![])] {
        let mut stage = refused(json!({"jobs": jobs}));
        stage.succeed("a");
        stage.fail("b");
        assert_eq!(stage.objects.keys().map(String::as_str).collect::<Vec<_>>(), left, "{jobs}");
    }
}

#[test]
fn an_object_whose_spec_is_refused_is_deleted_only_where_nothing_of_it_could_go_on() {
    let mut stage = refused(json!({"ttlSeconds": 100}));
    stage.succeed("a");
    stage.fail("b");
    stage.pass(200);
    assert!(!stage.is_gone, "another attempt of b may follow once the spec is mended");
    let mut stage = refused(json!({"ttlSeconds": 100}));
    stage.succeed("a");
    stage.succeed("b");
    stage.pass(99);
    assert!(!stage.is_gone);
    stage.wake();
    assert!(stage.is_gone);
    let mut stage = Stage::flow(flow([step("a", &["a"], json!({}))], json!({"cleanup": {"ttlSeconds": 0}})));
    stage.settle();
    stage.pass(100);
    assert!(!stage.is_gone, "it never ran");
    let mut stage = Stage::flow(flow([step("a", &[], json!({}))], json!({"cleanup": {"ttlSeconds": 100}})));
    stage.settle();
    stage.succeed("a");
    stage
        .edit("/flows", json!([step("a", &[], json!({})), step("b", &["c"], json!({})), step("c", &["b"], json!({}))]));
    stage.pass(200);
    assert_eq!(stage.condition("Valid"), "False/Cycle");
    assert!(!stage.is_gone, "b and c run once the spec is mended");
}

#[test]
fn an_operation_that_failed_while_the_spec_is_refused_stays_for_its_next_attempt() {
    let operation = json!({"action": "reboot", "targets": [{"name": "x"}, {"name": "y"}]});
    let steps = [json!({"name": "a", "operation": operation, "retryPolicy": {"limit": 1}})];
    let mut stage = Stage::flow(flow(steps, json!({"cleanup": {"jobs": "DeleteAll"}})));
    stage.settle();
    stage.edit("/flows/0/dependencies", json!(["a"]));
    stage.fail("a");
    assert_eq!((stage.condition("Valid").as_str(), stage.objects.len()), ("False/Cycle", 1));
    stage.edit("/flows/0/dependencies", json!([]));
    stage.settle();
    stage.wake();
    assert_eq!(stage.names(), ["f-a", "f-a-r1"]);
}

#[test]
fn a_name_stays_taken_as_long_as_a_create_of_it_may_come_late() {
    let brief = json!({"jobTemplate": with(job(), json!({"ttlSecondsAfterFinished": 0}))});
    let mut stage = Stage::flow(flow([step("a", &[], brief)], json!({})));
    stage.settle();
    let late = oarlock_core::job::time::after_seconds(stage.now, 60);
    stage.memory.late_creates.insert("a".to_owned(), LateCreate { attempt: 0, until: late });
    stage.succeed("a");
    assert_eq!((stage.changed.as_slice(), stage.plan().due), ([].as_slice(), Some(late)));
    stage.wake();
    assert_eq!(stage.changed, [("ttl", "f-a".to_owned())]);
}

#[test]
fn a_job_that_comes_late_to_a_step_that_has_ended_is_deleted() {
    let mut stage = ended(json!({}));
    let mut twin = stage.objects["f-a"].clone();
    stage.vanish("f-a");
    stage.settle();
    twin["metadata"]["uid"] = json!("late");
    twin["status"] = json!({});
    stage.plant(twin);
    stage.settle();
    assert_eq!(stage.changed, [("delete", "f-a".to_owned())]);
    assert_eq!((stage.end_of("a").as_str(), stage.created.len()), ("Succeed", 2));
}

#[test]
fn a_job_that_comes_late_to_a_step_that_was_given_up_is_deleted() {
    let steps = [step("a", &[], json!({"retryPolicy": {"limit": 3}})), step("b", &[], json!({}))];
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    stage.fail("a");
    stage.now = stage.plan().due.unwrap();
    let plan = stage.plan();
    let mut late = plan.creates[0].object.clone();
    stage.memory = stage.remembered(&plan);
    let until = oarlock_core::job::time::after_seconds(stage.now, 60);
    stage.memory.late_creates.insert("a".to_owned(), LateCreate { attempt: 1, until });
    // It is known at once why b fails.
    let b = stage.unit("b").job_uid.clone();
    stage.memory.pods.insert(b, PodReport::default());
    stage.fail("b");
    assert_eq!((stage.end_of("a").as_str(), stage.unit("a").has_child()), ("Failed/BackoffLimitExceeded", false));
    late["metadata"]["uid"] = json!("late");
    stage.plant(late);
    stage.settle();
    assert_eq!(stage.changed.last(), Some(&("delete", "f-a-r1".to_owned())));
    assert!(stage.objects.keys().all(|name| name != "f-a-r1"));
    stage.retry("1/a");
    assert_eq!((stage.created.len(), stage.plan().due), (2, Some(until)), "another one may come");
    stage.wake();
    assert_eq!(stage.names().last(), Some(&"f-a-r2"), "the number that was given up is not used again");
}

#[test]
fn a_job_that_is_seen_late_of_a_step_whose_record_was_lost_is_no_stray() {
    let steps: Vec<_> = (0..90).map(|number| step(&format!("s{number:02}"), &[], json!({}))).collect();
    let mut stage = Stage::flow(flow(steps, json!({})));
    stage.settle();
    (0..90).for_each(|number| stage.succeed(&format!("s{number:02}")));
    let seen_late = stage.objects["f-s50"].clone();
    stage.vanish("f-s50");
    stage.lose_record(0);
    stage.edit("/flows/0/when", json!("finished"));
    stage.restart();
    stage.settle();
    assert_eq!(stage.end_of("s50"), "Failed/RecordLost");
    stage.plant(seen_late);
    stage.settle();
    assert_eq!((stage.objects.len(), stage.changed.as_slice()), (90, [].as_slice()));
}
