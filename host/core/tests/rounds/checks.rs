//! Checks of nodes: the stored result of a check suffices to judge its node, and only the check's own output counts.

use oarlock_core::plugin::proposal::State;
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::{Value, json};

use crate::answers::{proposing, report};
use crate::bench::Bench;
use crate::tasks::{kubelet, kubelet_of_deleted, running, stored, task};

fn checks(visit: &Visit) -> Answer {
    match (visit.call, visit.target.tasks.is_empty()) {
        (Call::OperateThenProgress, true) => proposing(vec![task("check-pod", json!({"image": "check:1"}))]),
        _ => report(State::Processing),
    }
}

fn step(bench: &mut Bench) {
    bench.later(2);
    bench.settle(&mut checks);
}

/// Returns a bench with a job whose check has begun.
fn begun() -> Bench {
    let mut bench = crate::tasks::bench(&json!({}));
    bench.settle(&mut checks);
    step(&mut bench);
    bench
}

fn container(state: &Value) -> Value {
    json!([{"name": "task", "state": state}])
}

/// Returns the stored task of a check that ran and whose pod then has this status.
fn after(status: &Value) -> Value {
    let mut bench = begun();
    kubelet(&mut bench, &running());
    step(&mut bench);
    kubelet(&mut bench, status);
    step(&mut bench);
    stored(&bench)
}

/// Returns the stored output of a check that ended with this code.
fn output(exit_code: i32, message: &str) -> String {
    let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
    let ended = container(&json!({"terminated": {"exitCode": exit_code, "message": message}}));
    let stored = after(&json!({"phase": phase, "containerStatuses": ended}));
    assert_eq!(stored["exitCode"], exit_code);
    let output = stored["output"].as_str().unwrap_or_default().to_owned();
    assert!(output.len() <= 512);
    output
}

#[test]
fn a_result_that_is_too_long_to_be_stored_keeps_what_it_says_of_the_node() {
    for passed in [json!(true), json!(false)] {
        for much in ["\"x".repeat(400), "ä".repeat(1_500)] {
            let said = json!({"much": [much], "passed": passed, "message": much}).to_string();
            let kept: Value = serde_json::from_str(&output(0, &said)).unwrap();
            assert_eq!(kept["passed"], passed);
            assert!(kept["message"].as_str().unwrap().starts_with(&much[..100]));
        }
    }
    let odd = json!({"passed": "yes".repeat(300)}).to_string();
    assert_eq!(output(0, &odd), r#"{"passed":null}"#);
    let says_nothing = json!({"much": "x".repeat(600)}).to_string();
    assert_eq!(output(0, &says_nothing), "{}");
}

#[test]
fn of_other_long_text_the_beginning_is_stored_where_the_check_ended_well_and_the_end_where_it_did_not() {
    let text = format!("begin {} end", "x".repeat(600));
    let (well, badly) = (output(0, &text), output(3, &text));
    assert!(well.starts_with("begin x") && well.ends_with("x[...]"), "{well}");
    assert!(badly.starts_with("[...]x") && badly.ends_with("x end"), "{badly}");
}

#[test]
fn a_result_of_which_the_kubelet_kept_the_end_alone_is_marked_as_cut() {
    let said = format!("{}{}", "x".repeat(4_094 - 16), r#""passed": false}}"#);
    for text in [&format!("{said}\n"), &"x".repeat(4_096)] {
        assert_eq!((text.len(), output(0, text).get(..5)), (4_096, Some("[...]")));
    }
    let whole = format!(r#"{{"passed":true,"message":"{}"}}"#, "x".repeat(4_096 - 28));
    let kept: Value = serde_json::from_str(&output(0, &whole)).unwrap();
    assert_eq!((whole.len(), &kept["passed"]), (4_096, &json!(true)), "it is whole");
}

#[test]
fn a_check_whose_pod_was_ended_by_somebody_has_no_result_whatever_its_exit_code() {
    for (reason, begin) in [
        ("DeadlineExceeded", "timed out: DeadlineExceeded: image"),
        ("Evicted", "lost: Evicted: image"),
        ("Preempting", "lost: Preempting: image"),
    ] {
        for exit_code in [0, 143] {
            let ended = container(&json!({"terminated": {"exitCode": exit_code, "message": r#"{"passed": true}"#}}));
            let status = json!({"phase": "Failed", "reason": reason, "message": "image", "containerStatuses": ended});
            let stored = after(&status);
            assert_eq!((&stored["state"], &stored["exitCode"]), (&json!("Failed"), &Value::Null), "{stored}");
            assert_eq!(stored["message"], begin);
        }
    }
}

#[test]
fn a_check_whose_pod_somebody_deletes_is_lost_although_its_program_ends_well() {
    let mut bench = begun();
    kubelet(&mut bench, &running());
    step(&mut bench);
    kubelet_of_deleted(&mut bench, &running());
    step(&mut bench);
    assert_eq!(stored(&bench)["state"], "Running");
    let ended = container(&json!({"terminated": {"exitCode": 0}}));
    kubelet_of_deleted(&mut bench, &json!({"phase": "Succeeded", "containerStatuses": ended}));
    step(&mut bench);
    let stored = stored(&bench);
    assert_eq!((&stored["state"], &stored["exitCode"]), (&json!("Failed"), &Value::Null));
    assert_eq!(stored["message"], "lost: somebody deleted its pod");
}
