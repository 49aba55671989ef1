//! Live reads that are refused or not answered: the status shows them, and they hold up no target forever.

use oarlock_core::object::api_object::{Object, ObjectKey};
use oarlock_core::plugin::proposal::CallFailure;
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::json;

use crate::bench::weather::{Fate, Look};
use crate::lost_replies::script::Script;
use crate::lost_replies::{evicting, lost, mark, once, pod, refused, run, until_failed};

/// Marks the target and needs a live read of `x`: in every call in flight, or only in this call.
fn looking(visit: &Visit, from: Call) -> Answer {
    let needs = visit.call == from || visit.call != Call::Release && from == Call::OperateThenProgress;
    if needs && visit.reads.get(&ObjectKey::pod("d", "x"), true).is_err() {
        let reason = "Unavailable".to_owned();
        return Answer::Failed(CallFailure { retryable: true, reason, message: "m".into(), retry_after_ms: None });
    }
    mark(visit)
}

#[test]
fn a_live_read_that_keeps_failing_is_the_error_of_its_target_until_it_is_answered() {
    for look in [Look::Refused, Look::Silent] {
        let (mut bench, script) = Script::bench();
        let mut answer = |visit: &Visit| looking(visit, Call::OperateThenProgress);
        script.look("x", look);
        run(&mut bench, 6, &mut answer);
        assert_eq!(bench.word(0), "Processing/GetObjectFailed");
        let written = bench.status_writes;
        run(&mut bench, 20, &mut answer);
        assert_eq!(bench.status_writes, written, "written once");
        script.look("x", Look::Answered);
        run(&mut bench, 6, &mut answer);
        assert_eq!((bench.word(0), pod(&bench).labels.contains_key("mark")), ("Processing".into(), true));
        script.look("x", look);
        bench.requeue(0);
        run(&mut bench, 10, &mut answer);
        assert_eq!(bench.word(0), "Processing/GetObjectFailed");
        run(&mut bench, 100, &mut answer);
        let message = bench.status()["targetDetails"][0]["error"]["message"].as_str().unwrap().to_owned();
        assert!(bench.word(0) == "Failed/DeadlineExceeded" && message.contains("GetObjectFailed"), "{message}");
    }
}

#[test]
fn a_target_that_cannot_start_because_its_pod_cannot_be_read_says_so() {
    for look in [Look::Refused, Look::Silent] {
        let (mut bench, script) = Script::bench();
        bench.gone("a");
        script.look("a", look);
        run(&mut bench, 6, &mut mark);
        assert_eq!(bench.word(0), "Pending/GetObjectFailed");
        let written = bench.status_writes;
        run(&mut bench, 20, &mut mark);
        assert_eq!(bench.status_writes, written, "written once");
        bench.pod("a", "2");
        script.look("a", Look::Answered);
        run(&mut bench, 6, &mut mark);
        assert_eq!((bench.word(0), pod(&bench).labels.contains_key("mark")), ("Processing".into(), true));
    }
}

#[test]
fn a_final_check_whose_live_reads_keep_failing_does_not_keep_its_target_for_ever() {
    for (name, call) in [("a", Call::Release), ("x", Call::Progress)] {
        let (mut bench, script) = Script::bench();
        run(&mut bench, 2, &mut mark);
        script.look(name, Look::Silent);
        let seconds = 2 + until_failed(&mut bench, &mut |visit| looking(visit, call));
        assert!((120..=130).contains(&seconds), "{name}: {seconds}");
    }
}

#[test]
fn a_bump_whose_live_read_keeps_failing_does_not_keep_its_target_for_ever() {
    let (mut bench, script) = Script::bench();
    script.on("evict", "a", lost());
    script.look("a", Look::Silent);
    let seconds = until_failed(&mut bench, &mut once(0, |visit| vec![evicting(visit)]));
    assert!((120..=130).contains(&seconds), "{seconds}");
}

#[test]
fn a_live_read_that_failed_long_ago_costs_no_target_its_final_look() {
    let (mut bench, script) = Script::bench();
    bench.job["spec"]["activeDeadlineSeconds"] = json!(120);
    script.on("evict", "a", lost());
    script.look("a", Look::Silent);
    let mut answer = once(0, |visit| vec![evicting(visit)]);
    run(&mut bench, 10, &mut answer);
    bench.version += 1;
    bench.store.apply(Object { resource_version: bench.version.to_string(), ..Object::clone(&pod(&bench)) });
    bench.requeue(0);
    script.look("a", Look::Answered);
    run(&mut bench, 109, &mut answer);
    let looked = script.looked("a");
    run(&mut bench, 4, &mut answer);
    assert_eq!((bench.word(0), script.looked("a")), ("Failed/DeadlineExceeded".into(), looked + 1));
}

#[test]
fn a_release_whose_live_reads_keep_failing_is_made_without_the_plugin() {
    for (name, look) in [("x", Look::Refused), ("x", Look::Silent), ("a", Look::Refused), ("a", Look::Silent)] {
        let (mut bench, script) = Script::bench();
        let call = if name == "x" { Call::Release } else { Call::Progress };
        let mut answer = |visit: &Visit| looking(visit, call);
        run(&mut bench, 2, &mut answer);
        script.on("patch", "a", refused());
        if name == "x" {
            script.look(name, look);
        }
        run(&mut bench, 62, &mut answer);
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
        if name == "a" {
            bench.crash();
            script.look(name, look);
        }
        script.on("patch", "a", Fate::Done);
        run(&mut bench, 90, &mut answer);
        assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"), "{name} {look:?}");
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
        assert!(pod(&bench).finalizers.is_empty() && pod(&bench).annotations.is_empty());
        let told = bench.event_reasons.iter().filter(|reason| *reason == "ReleaseTargetFailed").count();
        assert!(told >= 1, "{:?}", bench.event_reasons);
    }
}
