//! The host removes its holds even if a release is refused or lost, and each outcome stays as it was recorded.

use k8s_openapi::jiff::SignedDuration;
use oarlock_core::object::api_object::Object;
use oarlock_core::plugin::proposal::{Mutation, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::json;

use crate::answers::{proposing, report};
use crate::bench::Bench;
use crate::bench::weather::{Fate, Look};
use crate::lost_replies::script::Script;
use crate::lost_replies::{lost, mark, marking, once, plugin, pod, refused, run};

#[test]
fn a_release_that_is_refused_leaves_the_error_of_its_target_as_it_was_recorded() {
    let (mut bench, script) = Script::bench();
    run(&mut bench, 2, &mut mark);
    script.on("patch", "a", refused());
    run(&mut bench, 120, &mut mark);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"].get("Released"), None);
    script.on("patch", "a", Fate::Done);
    run(&mut bench, 70, &mut mark);
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
    assert_eq!(bench.ended, ["Failed/DeadlineExceeded"], "an outcome is counted once");
}

#[test]
fn an_outcome_of_an_earlier_term_is_not_counted_by_the_next() {
    let names: Vec<String> = (0..251).map(|number| format!("p{number}")).collect();
    let mut spec = Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>());
    spec["activeDeadlineSeconds"] = json!(60);
    spec["partition"] = json!(1);
    let mut bench = Bench::new(spec);
    bench.pod("p0", "1");
    let script = Script::default();
    bench.weather = Box::new(script.clone());
    run(&mut bench, 2, &mut mark);
    script.on("patch", "p0", refused());
    run(&mut bench, 70, &mut mark);
    assert_eq!(bench.ended, ["Failed/DeadlineExceeded"]);
    bench.crash();
    run(&mut bench, 10, &mut mark);
    assert_eq!(bench.ended.len(), 1, "its record takes the epoch of the new term, and nothing else");
}

#[test]
fn two_changes_of_one_pod_in_one_proposal_are_both_held_and_both_let_go() {
    type Marks = [(Option<&'static str>, Option<&'static str>); 2];
    let both: [Marks; 2] =
        [[(Some("mark"), None), (None, Some("f.io/f"))], [(None, Some("f.io/f")), (None, Some("f.io/g"))]];
    for marks in both {
        let (mut bench, _) = Script::bench();
        bench.found =
            plugin(&[json!({"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "finalizers": ["f.io/g"]})]);
        let mut twice = |visit: &Visit| {
            let held = visit.target.object.as_ref().is_some_and(|object| !object.annotations.is_empty());
            match visit.call {
                Call::Release => Answer::Proposed(Proposal::default()),
                Call::OperateThenProgress if !held => {
                    proposing(marks.map(|(label, finalizer)| marking(visit, label, finalizer)).into())
                }
                _ => report(State::Processing),
            }
        };
        run(&mut bench, 2, &mut twice);
        for (label, finalizer) in marks {
            assert!(label.is_none_or(|label| pod(&bench).labels.contains_key(label)), "{:?}", pod(&bench));
            assert!(finalizer.is_none_or(|name| pod(&bench).finalizers.iter().any(|one| one == name)));
        }
        run(&mut bench, 70, &mut twice);
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
        let left = pod(&bench);
        assert!(left.labels.is_empty() && left.annotations.is_empty() && left.finalizers.is_empty(), "{left:?}");
    }
}

#[test]
fn what_a_proposal_sets_and_takes_off_again_is_not_left() {
    let (mut bench, script) = Script::bench();
    let mut undo = |visit: &Visit| {
        if visit.call != Call::OperateThenProgress {
            return Answer::Proposed(Proposal::default());
        }
        let mut off = marking(visit, None, None);
        if let Mutation::Metadata(change) = &mut off {
            change.remove_labels.push("mark".into());
        }
        proposing(vec![marking(visit, Some("mark"), None), off])
    };
    run(&mut bench, 2, &mut undo);
    assert!(!script.0.borrow().sent.is_empty());
    assert!(pod(&bench).labels.is_empty() && pod(&bench).annotations.is_empty(), "{:?}", pod(&bench));
}

#[test]
fn a_lost_release_of_a_terminating_pod_is_looked_for_before_it_is_repeated() {
    let (mut bench, script) = Script::bench();
    let mut guard = once(0, |visit| vec![marking(visit, None, Some("f.io/f"))]);
    run(&mut bench, 2, &mut guard);
    let deleted = Some(bench.now + SignedDuration::from_secs(600));
    let resource_version = "99".to_owned();
    bench.store.apply(Object { deleted, grace_seconds: Some(600), resource_version, ..Object::clone(&pod(&bench)) });
    script.on("patch", "a", lost());
    let before = script.sent("patch", "a").len();
    run(&mut bench, 62, &mut guard);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
    let released = script.sent("patch", "a").len();
    assert!(released > before && script.sent("patch", "a")[before].version().is_none());
    let looked = script.looked("a");
    run(&mut bench, 20, &mut guard);
    let (again, looks) = (script.sent("patch", "a").len() - released, script.looked("a") - looked);
    assert!(again > 0 && looks >= again, "{again} times, after {looks} looks");
}

#[test]
fn a_lost_release_of_a_pod_that_can_never_be_read_is_tried_again_now_and_then() {
    let (mut bench, script) = Script::bench();
    run(&mut bench, 2, &mut mark);
    script.on("patch", "a", lost());
    script.look("a", Look::Refused);
    run(&mut bench, 200, &mut mark);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
    let before = script.sent("patch", "a").len();
    run(&mut bench, 600, &mut mark);
    let tries = script.sent("patch", "a").len() - before;
    assert!((3..=12).contains(&tries), "{tries} in ten minutes");
    script.on("patch", "a", Fate::Done);
    run(&mut bench, 70, &mut mark);
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
    assert!(pod(&bench).labels.is_empty());
}
