//! How targets and jobs end: well, in failure, at a deadline, or because the job is deleted.

use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::plugin::proposal::{Mutation, ObjectRef, PluginError, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Trap, Visit};
use serde_json::json;

use crate::answers::{evict_and_wait, marking, report};
use crate::bench::{Bench, START};

#[test]
fn a_job_runs_to_its_end_and_then_writes_nothing() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    bench.settle(&mut evict_and_wait);
    bench.gone("a");
    bench.touch_all();
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.word(0), "Succeeded");
    assert_eq!(bench.status()["progress"], json!("Succeeded"));
    assert_eq!(bench.told, ["Completed"]);
    let writes = bench.sent.len();
    for _ in 0..10 {
        bench.later(60);
        bench.settle(&mut evict_and_wait);
    }
    assert_eq!(bench.sent.len(), writes);
    assert!(bench.next.is_some(), "the time to live is still to come");
    bench.later(1800);
    bench.round(&mut evict_and_wait);
    assert_eq!(bench.sent.last().unwrap(), "delete j");
    assert!(!bench.told.contains(&"TTL".to_owned()), "it is told once it is true");
    bench.round(&mut evict_and_wait);
    assert!(bench.told.contains(&"TTL".to_owned()));
}

#[test]
fn a_target_that_was_never_there_is_looked_at_before_it_fails() {
    let mut bench = Bench::new(Bench::targets(&["nobody"]));
    bench.round(&mut evict_and_wait);
    assert_eq!(bench.memory.live_reads(), [LiveRead::Object(ObjectKey::pod("d", "nobody"))]);
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.word(0), "Failed/PodNotFound");
    assert_eq!(bench.status()["targetDetails"][0]["startTime"], bench.status()["targetDetails"][0]["endTime"]);
    assert!(!bench.sent.contains(&"finalizer".to_owned()));
}

#[test]
fn a_target_whose_time_is_over_gets_a_last_look_and_succeeds_if_that_shows_success() {
    let mut spec = Bench::targets(&["a", "b"]);
    spec["activeDeadlineSeconds"] = json!(60);
    let mut bench = Bench::new(spec);
    bench.pod("a", "1");
    bench.pod("b", "2");
    bench.settle(&mut evict_and_wait);
    bench.gone("a");
    bench.later(61);
    bench.settle(&mut evict_and_wait);
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.word(0), bench.word(1)), ("Succeeded".into(), "Failed/DeadlineExceeded".into()));
    assert_eq!(bench.status()["targetDetails"][1]["extraInfo"]["Released"], json!("true"));
    assert!(bench.told.contains(&"Timeout".to_owned()));
}

#[test]
fn three_traps_in_a_row_cost_one_target_its_attempt_and_its_neighbour_nothing() {
    let mut bench = Bench::new(Bench::targets(&["a", "b"]));
    bench.pod("a", "1");
    bench.pod("b", "2");
    let mut traps = 0;
    bench.settle(&mut |visit| {
        if visit.target.name == "a" && visit.call != Call::Release {
            traps += 1;
            return Answer::Trapped(Trap { reason: "PluginTrapped", message: "operate trapped".into() });
        }
        evict_and_wait(visit)
    });
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(traps, 3);
    assert_eq!((bench.word(0), bench.word(1)), ("Failed/PluginTrapped".into(), "Processing".into()));
}

#[test]
fn what_was_not_granted_costs_the_target_mutation_denied_and_nothing_is_applied() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let mut answer = |visit: &Visit| {
        let key = ObjectKey::pod("d", visit.target.name.clone());
        let mutation =
            Mutation::Delete { object: ObjectRef { key, uid: None }, grace_seconds: None, propagation: None };
        match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            _ => Answer::Proposed(Proposal { mutations: vec![mutation], ..Proposal::default() }),
        }
    };
    bench.settle(&mut answer);
    bench.later(2);
    bench.settle(&mut answer);
    assert_eq!(bench.word(0), "Failed/MutationDenied");
    assert!(bench.sent.iter().all(|sent| !sent.starts_with("delete")), "{:?}", bench.sent);
}

#[test]
fn a_failure_in_a_foreign_terms_target_is_touched_and_looked_at_first() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    bench.settle(&mut evict_and_wait);
    bench.crash();
    bench.sent.clear();
    let error = PluginError { reason: "Broken".into(), message: "it is".into() };
    let mut answer = move |visit: &Visit| match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ => report(State::Failed(error.clone())),
    };
    bench.settle(&mut answer);
    bench.later(2);
    bench.settle(&mut answer);
    bench.later(2);
    bench.settle(&mut answer);
    assert_eq!(bench.sent.iter().take(2).map(String::as_str).collect::<Vec<_>>(), ["status", "patch a"]);
    assert_eq!(bench.word(0), "Failed/Broken");
    let pod = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
    assert!(pod.annotations.is_empty(), "the touch is gone with the release: {:?}", pod.annotations);
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
}

#[test]
fn a_deleted_job_ends_its_targets_releases_them_and_lets_its_finalizer_go() {
    let mut spec = Bench::targets(&["a", "b"]);
    spec["partition"] = json!(1);
    let mut bench = Bench::new(spec);
    bench.pod("a", "1");
    bench.pod("b", "2");
    let mut mark = |visit: &Visit| {
        let held = visit.target.object.as_ref().is_some_and(|object| object.labels.contains_key("mark"));
        match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            Call::OperateThenProgress if !held => marking(visit),
            _ => report(State::Processing),
        }
    };
    bench.settle(&mut mark);
    let pod = |bench: &Bench| bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
    assert_eq!(pod(&bench).finalizers, ["f.io/f"]);
    bench.job["metadata"]["deletionTimestamp"] = json!(START);
    bench.job["metadata"]["resourceVersion"] = json!("77");
    for _ in 0..6 {
        bench.settle(&mut mark);
        bench.later(2);
    }
    assert_eq!((bench.word(0), bench.word(1)), ("Failed/JobDeleted".into(), "Failed/JobDeleted".into()));
    assert!(pod(&bench).finalizers.is_empty() && pod(&bench).labels.is_empty() && pod(&bench).annotations.is_empty());
    assert_eq!(bench.job["metadata"]["finalizers"], json!([]));
    assert_eq!(bench.sent.last().unwrap(), "patch j");
}

#[test]
fn a_deleted_job_forgets_none_of_the_releases_that_wait_for_their_turn() {
    let names: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
    let mut bench = Bench::new(Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    names.iter().for_each(|name| bench.pod(name, name));
    let mut mark = |visit: &Visit| match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ if visit.target.object.as_ref().is_some_and(|object| object.labels.contains_key("mark")) => {
            report(State::Processing)
        }
        _ => marking(visit),
    };
    bench.settle(&mut mark);
    bench.wire = 3;
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    for _ in 0..40 {
        bench.round(&mut mark);
        bench.send();
        bench.later(1);
    }
    let held =
        |name: &String| bench.store.get(&ObjectKey::pod("d", name.clone())).is_some_and(|pod| !pod.labels.is_empty());
    assert_eq!(names.iter().filter(|name| held(name)).count(), 0);
    assert!(bench.job_is_gone);
}
