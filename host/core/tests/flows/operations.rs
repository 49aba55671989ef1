//! Operation steps: A27, A29, and their time.

use oarlock_core::child::plan::LateCreate;
use oarlock_core::child::unit::UnitState;
use oarlock_core::job::time::after_seconds;
use serde_json::{Value, json};

use crate::stage::make::{flow, last, step, with};
use crate::stage::{Death, Stage};

fn operation(more: Value) -> Value {
    let targets = ["n1", "n2", "n3"].map(|name| json!({"name": name}));
    let spec = json!({"action": "reboot", "targetKind": "Node", "targets": targets, "unheardOf": 1, "TTLSecondsAfterFinished": 5});
    with(json!({"name": "a", "operation": spec}), more)
}

fn stage_of(more: Value) -> Stage {
    let globals = json!({"globalParams": {"labels": {"l": "1"}, "env": [{"name": "X"}], "nodeName": "n"}});
    let mut stage = Stage::flow(flow([operation(more), step("b", &["a"], json!({}))], globals));
    stage.settle();
    stage
}

fn half_failed() -> Value {
    let details = [("n1", "Succeeded"), ("n2", "Failed"), ("n3", "Succeeded")];
    json!({"progress": "Failed", "totalPodCount": 3, "succeededPodCount": 2, "failedPodCount": 1,
        "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:00:05Z",
        "targetDetails": details.map(|(name, progress)| json!({"name": name, "progress": progress, "error": {"message": "no"}}))})
}

#[test]
fn an_operation_is_created_verbatim_but_for_its_ttl() {
    let stage = stage_of(json!({}));
    let object = stage.object_of("a");
    assert_eq!(
        (&object["apiVersion"], &object["kind"]),
        (&json!("apps.kusionstack.io/v1alpha1"), &json!("OperationJob"))
    );
    let mut wanted = stage.parent.spec["flows"][0]["operation"].clone();
    // Without any it would get the default one.
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
    let mut stage = Stage::flow(flow([json!({"name": "a", "operation": spec})], json!({})));
    stage.settle();
    let ttl = |stage: &Stage| stage.object_of("a")["spec"]["TTLSecondsAfterFinished"].as_i64();
    assert_eq!(ttl(&stage), Some(i64::from(i32::MAX)));
    stage.end("a", true);
    let plan = stage.plan();
    stage.carry_out(&plan, Some(Death::AfterStatus));
    assert_eq!(ttl(&stage), Some(i64::from(i32::MAX)));
    stage.restart();
    stage.settle();
    assert_eq!((ttl(&stage), stage.state()), (Some(1_800), "Succeed"));
}

#[test]
fn the_progress_of_an_operation_is_that_of_its_step() {
    let mut stage = stage_of(json!({}));
    assert_eq!(stage.state_of("a"), UnitState::Pending);
    stage.set_status(
        "f-a",
        json!({"progress": "Processing", "totalPodCount": 3, "succeededPodCount": 1, "processingPodCount": 1}),
    );
    stage.settle();
    assert_eq!((stage.state_of("a"), stage.unit("a").message.as_str()), (UnitState::Running, "1/3"));
    assert_eq!(stage.parent.status["jobStatusList"]["f-a/ns"], json!({"active": 1, "succeeded": 1, "failed": 0}));
    stage.succeed("a");
    assert_eq!((stage.started(), stage.changed.clone()), (vec!["a", "b"], vec![("ttl", "f-a".to_owned())]));
    assert_eq!(stage.object_of("a")["spec"]["TTLSecondsAfterFinished"], 5);
    assert_eq!(stage.listed, 0);
}

#[test]
fn an_operation_that_failed_in_part_names_its_targets_and_a_retry_has_only_those() {
    let mut stage = stage_of(json!({"retryPolicy": {"limit": 1}}));
    stage.set_status("f-a", half_failed());
    stage.settle();
    assert_eq!(stage.unit("a").message, "2/3 succeeded, 1 failed: n2 (no)");
    stage.wake();
    assert_eq!(stage.objects["f-a-r1"]["spec"]["targets"], json!([{"name": "n2"}]));
    assert!(!stage.unit("a").outdated);
    stage.fail("a");
    stage.retry("1");
    assert_eq!(stage.objects["f-a-r2"]["spec"]["targets"], json!([{"name": "n2"}]));
}

#[test]
fn a_retry_by_hand_of_an_operation_has_only_the_targets_that_did_not_succeed() {
    let mut stage = stage_of(json!({}));
    stage.set_status("f-a", half_failed());
    stage.settle();
    assert_eq!(stage.end_of("a"), "Failed/OperationFailed");
    stage.retry("1");
    assert_eq!(stage.objects["f-a-r1"]["spec"]["targets"], json!([{"name": "n2"}]));
}

#[test]
fn a_create_that_was_lost_asks_for_the_same_targets_again() {
    let mut stage = stage_of(json!({"retryPolicy": {"limit": 1, "backoffSeconds": 0}}));
    stage.set_status("f-a", half_failed());
    let (mut first, mut asked) = (stage.plan(), Vec::new());
    for _ in 0..3 {
        let (creates, reads) = (std::mem::take(&mut first.creates), std::mem::take(&mut first.reads));
        assert!(reads.is_empty());
        asked.extend(creates.into_iter().map(|create| create.object["spec"]["targets"].clone()));
        stage.carry_out(&first, None);
        stage.restart();
        stage.now = after_seconds(stage.now, 1);
        first = stage.plan();
    }
    assert!(asked.iter().all(|targets| *targets == json!([{"name": "n2"}])) && asked.len() == 2, "{asked:?}");
}

#[test]
fn an_edited_operation_has_all_of_its_targets() {
    let mut stage = stage_of(json!({}));
    stage.set_status("f-a", half_failed());
    stage.settle();
    stage.edit("/flows/0/operation/targets", json!([{"name": "n1"}, {"name": "n2"}, {"name": "n9"}]));
    stage.retry("1");
    assert_eq!(stage.objects["f-a-r1"]["spec"]["targets"].as_array().unwrap().len(), 3);
}

#[test]
fn an_unknown_action_blocks_with_its_message_and_then_runs() {
    let mut stage = stage_of(json!({}));
    let condition = json!({"type": "ActionAvailable", "status": "False", "message": "no plugin has reboot"});
    stage.set_status("f-a", json!({"progress": "Pending", "conditions": [condition]}));
    stage.settle();
    assert_eq!(
        (stage.end_of("a").as_str(), stage.unit("a").message.as_str()),
        ("Blocked/OperationNotReady", "no plugin has reboot")
    );
    stage.set_status("f-a", json!({"progress": "Processing", "totalPodCount": 3}));
    stage.settle();
    assert_eq!((stage.state_of("a"), stage.created.len()), (UnitState::Running, 1));
}

#[test]
fn an_operation_that_is_out_of_time_is_deleted_before_another_attempt() {
    let mut stage = stage_of(json!({"timeoutSeconds": 30, "retryPolicy": {"limit": 1, "backoffSeconds": 0}}));
    stage.pass(29);
    assert_eq!(stage.state_of("a"), UnitState::Pending);
    stage.wake();
    assert_eq!(stage.changed, [("delete", "f-a".to_owned())]);
    stage.wake();
    assert_eq!(stage.names(), ["f-a", "f-a-r1"]);
    stage.pass(30);
    assert_eq!((stage.end_of("a").as_str(), stage.objects.len()), ("Failed/DeadlineExceeded", 0));
    assert_eq!(stage.state(), "Failed");
}

#[test]
fn an_operation_follows_another_once_no_create_of_that_can_come_late() {
    let mut stage = stage_of(json!({"timeoutSeconds": 30, "retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    let mut late = stage.object_of("a").clone();
    let until = after_seconds(stage.now, 60);
    stage.memory.late_creates.insert("a".to_owned(), LateCreate { attempt: 0, until });
    stage.pass(30);
    assert_eq!((stage.state_of("a"), stage.changed.last()), (UnitState::Retrying, Some(&("delete", "f-a".to_owned()))));
    stage.pass(10);
    late["metadata"]["uid"] = json!("late");
    stage.plant(late);
    stage.settle();
    assert_eq!((stage.objects.len(), stage.created.len(), stage.plan().due), (0, 1, Some(until)));
    stage.wake();
    assert_eq!(stage.names(), ["f-a", "f-a-r1"]);
}

#[test]
fn a_retry_by_hand_of_an_operation_that_is_out_of_time_waits_until_it_is_gone() {
    let mut stage = stage_of(json!({"timeoutSeconds": 30}));
    stage.now = oarlock_core::job::time::after_seconds(stage.now, 30);
    let plan = stage.plan();
    stage.carry_out(&plan, Some(crate::stage::Death::AfterStatus));
    stage.restart();
    stage.parent.retry = Some("1".to_owned());
    let plan = stage.plan();
    assert!(plan.creates.is_empty(), "its targets are still held");
    stage.settle();
    assert_eq!((stage.changed.clone(), stage.names()), (vec![("delete", "f-a".to_owned())], vec!["f-a", "f-a-r1"]));
}

#[test]
fn an_operation_that_is_gone_unfinished_has_failed() {
    let mut stage = stage_of(json!({}));
    stage.vanish("f-a");
    stage.settle();
    assert_eq!(stage.end_of("a"), "Failed/JobDeleted");
}

#[test]
fn an_operation_without_targets_that_succeeded_is_done() {
    let mut stage = stage_of(json!({}));
    stage.set_status("f-a", json!({"progress": "Succeeded", "totalPodCount": 0}));
    stage.settle();
    assert_eq!(stage.end_of("a"), "Succeed");
}

#[test]
fn a_flow_that_is_out_of_time_deletes_its_operations() {
    let more = json!({"timeoutSeconds": 10, "finally": [last("z", json!({}))]});
    let mut stage = Stage::flow(flow([operation(json!({}))], more));
    stage.settle();
    stage.pass(10);
    assert_eq!((stage.changed.clone(), stage.started()), (vec![("delete", "f-a".to_owned())], vec!["a", "z"]));
}
