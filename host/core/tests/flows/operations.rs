//! Operation steps: A27, A29, and their timeouts.

use oarlock_core::attempts::plan::LateCreate;
use oarlock_core::attempts::unit::UnitState;
use oarlock_core::object::time::after_seconds;
use serde_json::{Value, json};

use crate::fixture::make::{flow, last, step, with};
use crate::fixture::{Death, Fixture};

fn operation(more: Value) -> Value {
    let targets = ["n1", "n2", "n3"].map(|name| json!({"name": name}));
    let spec = json!({"action": "reboot", "targetKind": "Node", "targets": targets, "unheardOf": 1, "TTLSecondsAfterFinished": 5});
    with(json!({"name": "a", "operation": spec}), more)
}

fn fixture_of(more: Value) -> Fixture {
    let globals = json!({"globalParams": {"labels": {"l": "1"}, "env": [{"name": "X"}], "nodeName": "n"}});
    let mut fixture = Fixture::flow(flow([operation(more), step("b", &["a"], json!({}))], globals));
    fixture.settle();
    fixture
}

fn half_failed() -> Value {
    let details = [("n1", "Succeeded"), ("n2", "Failed"), ("n3", "Succeeded")];
    json!({"progress": "Failed", "totalPodCount": 3, "succeededPodCount": 2, "failedPodCount": 1,
        "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:00:05Z",
        "targetDetails": details.map(|(name, progress)| json!({"name": name, "progress": progress, "error": {"message": "no"}}))})
}

#[test]
fn an_operation_is_created_verbatim_but_for_its_ttl() {
    let fixture = fixture_of(json!({}));
    let object = fixture.object_of("a");
    assert_eq!(
        (&object["apiVersion"], &object["kind"]),
        (&json!("apps.kusionstack.io/v1alpha1"), &json!("OperationJob"))
    );
    let mut wanted = fixture.parent.spec["flows"][0]["operation"].clone();
    // Without a time to live, the API server would set the default one.
    wanted["TTLSecondsAfterFinished"] = i32::MAX.into();
    assert_eq!(object["spec"], wanted);
    assert_eq!(
        (&object["metadata"]["labels"]["l"], &object["metadata"]["annotations"]["oarlock.dev/ttl"]),
        (&json!("1"), &json!("5"))
    );
}

#[test]
fn an_operation_without_a_time_to_live_has_the_usual_one_once_its_outcome_is_durable() {
    let spec = json!({"action": "reboot", "targetKind": "Node", "targets": [{"name": "n1"}]});
    let mut fixture = Fixture::flow(flow([json!({"name": "a", "operation": spec})], json!({})));
    fixture.settle();
    let ttl = |fixture: &Fixture| fixture.object_of("a")["spec"]["TTLSecondsAfterFinished"].as_i64();
    assert_eq!(ttl(&fixture), Some(i64::from(i32::MAX)));
    fixture.end("a", true);
    let plan = fixture.plan();
    fixture.carry_out(&plan, Some(Death::AfterStatus));
    assert_eq!(ttl(&fixture), Some(i64::from(i32::MAX)));
    fixture.restart();
    fixture.settle();
    assert_eq!((ttl(&fixture), fixture.state()), (Some(1_800), "Succeed"));
}

#[test]
fn the_progress_of_an_operation_is_that_of_its_step() {
    let mut fixture = fixture_of(json!({}));
    assert_eq!(fixture.state_of("a"), UnitState::Pending);
    fixture.set_status(
        "f-a",
        json!({"progress": "Processing", "totalPodCount": 3, "succeededPodCount": 1, "processingPodCount": 1}),
    );
    fixture.settle();
    assert_eq!((fixture.state_of("a"), fixture.unit("a").message.as_str()), (UnitState::Running, "1/3"));
    assert_eq!(fixture.parent.status["jobStatusList"]["f-a/ns"], json!({"active": 1, "succeeded": 1, "failed": 0}));
    fixture.succeed("a");
    assert_eq!((fixture.started(), fixture.changed.clone()), (vec!["a", "b"], vec![("ttl", "f-a".to_owned())]));
    assert_eq!(fixture.object_of("a")["spec"]["TTLSecondsAfterFinished"], 5);
    assert_eq!(fixture.listed, 0);
}

#[test]
fn an_operation_that_failed_in_part_names_its_targets_and_a_retry_has_only_those() {
    let mut fixture = fixture_of(json!({"retryPolicy": {"limit": 1}}));
    fixture.set_status("f-a", half_failed());
    fixture.settle();
    assert_eq!(fixture.unit("a").message, "2/3 succeeded, 1 failed: n2 (no)");
    let listed = &fixture.parent.status["jobStatusList"]["f-a/ns"];
    assert_eq!((&listed["succeeded"], &listed["failed"]), (&json!(2), &json!(1)));
    fixture.wake();
    assert_eq!(fixture.objects["f-a-r1"]["spec"]["targets"], json!([{"name": "n2"}]));
    assert!(!fixture.unit("a").outdated);
    fixture.fail("a");
    assert_eq!(fixture.end_of("a"), "Failed/OperationFailed");
    fixture.retry("1");
    assert_eq!(fixture.objects["f-a-r2"]["spec"]["targets"], json!([{"name": "n2"}]));
}

#[test]
fn a_create_that_was_lost_asks_for_the_same_targets_again() {
    let mut fixture = fixture_of(json!({"retryPolicy": {"limit": 1, "backoffSeconds": 0}}));
    fixture.set_status("f-a", half_failed());
    let (mut first, mut asked) = (fixture.plan(), Vec::new());
    for _ in 0..3 {
        let (creates, reads) = (std::mem::take(&mut first.creates), std::mem::take(&mut first.reads));
        assert!(reads.is_empty());
        asked.extend(creates.into_iter().map(|create| create.object["spec"]["targets"].clone()));
        fixture.carry_out(&first, None);
        fixture.restart();
        fixture.now = after_seconds(fixture.now, 1);
        first = fixture.plan();
    }
    assert!(asked.iter().all(|targets| *targets == json!([{"name": "n2"}])) && asked.len() == 2, "{asked:?}");
}

#[test]
fn an_edited_operation_has_all_of_its_targets() {
    let mut fixture = fixture_of(json!({}));
    fixture.set_status("f-a", half_failed());
    fixture.settle();
    fixture.edit("/flows/0/operation/targets", json!([{"name": "n1"}, {"name": "n2"}, {"name": "n9"}]));
    fixture.retry("1");
    assert_eq!(fixture.objects["f-a-r1"]["spec"]["targets"].as_array().unwrap().len(), 3);
}

#[test]
fn an_operation_that_is_out_of_time_is_deleted_before_another_attempt() {
    let mut fixture = fixture_of(json!({"timeoutSeconds": 30, "retryPolicy": {"limit": 1, "backoffSeconds": 0}}));
    fixture.pass(29);
    assert_eq!(fixture.state_of("a"), UnitState::Pending);
    fixture.wake();
    assert_eq!(fixture.changed, [("delete", "f-a".to_owned())]);
    fixture.wake();
    assert_eq!(fixture.names(), ["f-a", "f-a-r1"]);
    fixture.pass(30);
    assert_eq!((fixture.end_of("a").as_str(), fixture.objects.len()), ("Failed/DeadlineExceeded", 0));
    assert_eq!(fixture.state(), "Failed");
}

#[test]
fn an_operation_follows_another_once_no_create_of_that_can_come_late() {
    let mut fixture = fixture_of(json!({"timeoutSeconds": 30, "retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    let mut late = fixture.object_of("a").clone();
    let until = after_seconds(fixture.now, 60);
    fixture.memory.late_creates.insert("a".to_owned(), LateCreate { attempt: 0, until });
    fixture.pass(30);
    assert_eq!(
        (fixture.state_of("a"), fixture.changed.last()),
        (UnitState::Retrying, Some(&("delete", "f-a".to_owned())))
    );
    fixture.pass(10);
    late["metadata"]["uid"] = json!("late");
    fixture.plant(late);
    fixture.settle();
    assert_eq!((fixture.objects.len(), fixture.created.len(), fixture.plan().due), (0, 1, Some(until)));
    fixture.wake();
    assert_eq!(fixture.names(), ["f-a", "f-a-r1"]);
}

#[test]
fn a_retry_by_hand_of_an_operation_that_is_out_of_time_waits_until_it_is_gone() {
    let mut fixture = fixture_of(json!({"timeoutSeconds": 30}));
    fixture.now = oarlock_core::object::time::after_seconds(fixture.now, 30);
    let plan = fixture.plan();
    fixture.carry_out(&plan, Some(crate::fixture::Death::AfterStatus));
    fixture.restart();
    fixture.parent.retry = Some("1".to_owned());
    let plan = fixture.plan();
    assert!(plan.creates.is_empty(), "its targets are still held");
    fixture.settle();
    assert_eq!((fixture.changed.clone(), fixture.names()), (vec![("delete", "f-a".to_owned())], vec!["f-a", "f-a-r1"]));
}

#[test]
fn an_operation_that_is_gone_unfinished_has_failed() {
    let mut fixture = fixture_of(json!({}));
    fixture.vanish("f-a");
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Failed/JobDeleted");
}

#[test]
fn an_operation_without_targets_that_succeeded_is_done() {
    let mut fixture = fixture_of(json!({}));
    fixture.set_status("f-a", json!({"progress": "Succeeded", "totalPodCount": 0}));
    fixture.settle();
    assert_eq!(fixture.end_of("a"), "Succeed");
}

#[test]
fn a_flow_that_is_out_of_time_deletes_its_operations() {
    let more = json!({"timeoutSeconds": 10, "finally": [last("z", json!({}))]});
    let mut fixture = Fixture::flow(flow([operation(json!({}))], more));
    fixture.settle();
    fixture.pass(10);
    assert_eq!((fixture.changed.clone(), fixture.started()), (vec![("delete", "f-a".to_owned())], vec!["a", "z"]));
}
