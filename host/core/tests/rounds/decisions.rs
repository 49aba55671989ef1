//! What rounds decide where all goes well, and what their jobs say of it.

use std::collections::BTreeSet;

use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::{Object, ObjectKey};
use oarlock_core::cluster::writes::Stopped;
use oarlock_core::job::time::after_seconds;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::proposal::{CallFailure, Mutation, ObjectRef, PluginError, Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Trap, Visit};
use oarlock_core::round::finalize::FINALIZER;
use serde_json::{Value, json};

use crate::answers::{evict_and_wait, marking, report, unavailable};
use crate::bench::{Bench, START};

#[test]
fn intent_is_recorded_before_the_first_mutation() {
    let mut bench = Bench::new(Bench::targets(&["a", "b"]));
    bench.pod("a", "1");
    bench.pod("b", "2");
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.sent, ["finalizer", "status", "evict a", "evict b"]);
    assert_eq!(bench.status()["epoch"], json!(1));
    assert_eq!(bench.status()["targetDetails"][0]["uid"], json!("1"));
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Owner"], json!("CloneSet/s/set"));
    assert_eq!(bench.job["metadata"]["finalizers"], json!([FINALIZER]));
}

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
fn partition_holds_back_the_rest_and_raising_it_lets_them_start() {
    let mut spec = Bench::targets(&["a", "b", "c"]);
    spec["partition"] = json!(1);
    let mut bench = Bench::new(spec);
    for (name, uid) in [("a", "1"), ("b", "2"), ("c", "3")] {
        bench.pod(name, uid);
    }
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.word(0), bench.word(1)), ("Processing".into(), "Pending".into()));
    bench.job["spec"]["partition"] = json!(2);
    bench.job["metadata"]["generation"] = json!(2);
    bench.job["metadata"]["resourceVersion"] = json!("99");
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.word(1), bench.word(2)), ("Processing".into(), "Pending".into()));
    assert_eq!(bench.status()["observedGeneration"], json!(2));
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
fn a_new_leader_raises_the_epoch_before_anything_else() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    bench.settle(&mut evict_and_wait);
    bench.crash();
    bench.sent.clear();
    bench.round(&mut evict_and_wait);
    assert_eq!(bench.sent, ["status"]);
    assert_eq!(bench.status()["epoch"], json!(2));
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.sent, ["status", "evict a"]);
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
fn an_eviction_that_a_budget_refuses_is_tried_again_later_and_told_once() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    bench.refuse.insert("evict", Stopped::Blocked { message: "the budget allows none".into(), retry_after: None });
    for _ in 0..40 {
        bench.settle(&mut evict_and_wait);
        bench.later(5);
    }
    assert_eq!(bench.word(0), "Processing/EvictionBlocked");
    assert_eq!(bench.told, ["EvictionBlocked"]);
    let tries = bench.sent.iter().filter(|sent| sent.starts_with("evict")).count();
    assert!((4..=8).contains(&tries), "5 s, doubling to a minute, in 200 s: {tries}");
    bench.refuse.clear();
    bench.later(120);
    bench.settle(&mut evict_and_wait);
    bench.gone("a");
    bench.touch_all();
    bench.later(70);
    bench.settle(&mut evict_and_wait);
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.word(0), "Succeeded");
}

#[test]
fn an_unknown_write_is_observed_before_it_is_repeated() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    bench.refuse.insert("evict", Stopped::Unknown { message: "timed out".into() });
    bench.settle(&mut evict_and_wait);
    bench.refuse.clear();
    bench.later(1);
    bench.round(&mut evict_and_wait);
    assert_eq!(bench.sent.iter().filter(|sent| *sent == "evict a").count(), 1);
    bench.later(4);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.sent.iter().filter(|sent| *sent == "evict a").count(), 2);
}

#[test]
fn the_end_of_a_pod_is_never_taken_for_the_time_it_was_asked_to_go() {
    for (grace, noted) in [(30, Some("2025-12-31T23:59:33Z")), (0, None)] {
        let mut bench = Bench::new(Bench::targets(&["a"]));
        bench.later(-60);
        bench.pod("a", "1");
        bench.later(60);
        bench.refuse.insert("evict", Stopped::Unknown { message: "timed out".into() });
        bench.settle(&mut evict_and_wait);
        let seen = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
        let (deleted, resource_version) = (Some(after_seconds(bench.now, 3)), "99".to_owned());
        bench.store.apply(Object { deleted, grace_seconds: Some(grace), resource_version, ..Object::clone(&seen) });
        bench.later(4);
        bench.touch_all();
        bench.settle(&mut evict_and_wait);
        assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["EvictedAt"].as_str(), noted);
    }
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
fn an_action_nobody_serves_waits_visibly_and_without_writes() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.found = PluginLookup::Unknown { loaded: vec!["Restart".into()] };
    bench.pod("a", "1");
    for _ in 0..5 {
        bench.settle(&mut evict_and_wait);
        bench.later(10);
    }
    assert_eq!(bench.sent, ["status"]);
    assert_eq!(bench.told, ["OpsAction"]);
    let conditions = bench.status()["conditions"].as_array().unwrap();
    let available = conditions.iter().find(|c| c["type"] == "ActionAvailable").unwrap();
    assert!(
        available["message"].as_str().unwrap().contains("Replace")
            && available["message"].as_str().unwrap().contains("Restart")
    );
}

#[test]
fn a_delay_is_kept_across_a_restart() {
    let mut spec = Bench::targets(&["a"]);
    spec["operationDelaySeconds"] = json!(20);
    let mut bench = Bench::new(spec);
    bench.pod("a", "1");
    bench.settle(&mut evict_and_wait);
    bench.later(10);
    bench.crash();
    bench.settle(&mut evict_and_wait);
    assert!(bench.sent.iter().all(|sent| !sent.starts_with("evict")));
    bench.later(10);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.sent.last().unwrap(), "evict a");
}

#[test]
fn a_retryable_failure_waits_longer_each_time_and_shows_after_two_rounds() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let mut calls = Vec::new();
    let start = bench.now;
    for _ in 0..40 {
        let now = bench.now;
        bench.settle(&mut |_: &Visit| {
            calls.push(now.duration_since(start).as_secs());
            Answer::Failed(CallFailure {
                retryable: true,
                reason: "Busy".into(),
                message: "m".into(),
                retry_after_ms: None,
            })
        });
        bench.later(1);
    }
    assert_eq!(calls, [0, 1, 3, 7, 15, 31]);
    assert_eq!(bench.word(0), "Processing/Busy");
}

#[test]
fn two_targets_never_claim_one_new_pod() {
    let mut bench = Bench::new(Bench::targets(&["a", "b"]));
    bench.pod("a", "1");
    bench.pod("b", "2");
    bench.settle(&mut evict_and_wait);
    bench.gone("a");
    bench.gone("b");
    bench.later(1);
    bench.pod("n1", "3");
    bench.pod("n2", "4");
    bench.touch_all();
    let mut choose = |visit: &Visit| {
        let related = visit.reads.related("successors", false).unwrap();
        let name = related.first().unwrap().key.name.clone();
        let set_extra = vec![("NewPod".to_owned(), name)];
        let report = Report {
            state: State::Succeeded,
            proposal: Proposal { set_extra, ..Proposal::default() },
            check_after_ms: None,
        };
        Answer::Reported { operate: Proposal::default(), report }
    };
    bench.later(1);
    bench.settle(&mut choose);
    bench.later(1);
    bench.settle(&mut choose);
    let chosen: BTreeSet<_> =
        (0..2).map(|index| bench.status()["targetDetails"][index]["extraInfo"]["NewPod"].as_str().unwrap()).collect();
    assert_eq!(chosen, ["n1", "n2"].into());
}

#[test]
fn a_job_without_spec_or_with_a_broken_one_is_invalid_and_can_be_deleted() {
    for spec in [Value::Null, json!({"action": "Replace", "targets": [{"name": "a"}], "partition": -1})] {
        let mut bench = Bench::new(spec);
        bench.pod("a", "1");
        bench.settle(&mut evict_and_wait);
        let conditions = bench.status()["conditions"].as_array().unwrap();
        assert!(conditions.iter().any(|c| c["type"] == "Valid" && c["status"] == "False"));
        assert_eq!(bench.told, ["InvalidSpec"]);
        assert_eq!(bench.job["metadata"].get("finalizers"), None, "it can be deleted");
    }
}

#[test]
fn looks_that_a_plugin_asks_for_one_after_the_other_are_made_together_in_the_end() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let mut visits = 0;
    bench.settle(&mut |visit: &Visit| {
        visits += 1;
        for name in ["x", "y", "z"] {
            if visit.reads.get(&ObjectKey::pod("d", name), true).is_err() {
                return unavailable();
            }
        }
        report(State::Processing)
    });
    assert_eq!((visits, bench.word(0)), (4, "Processing".into()));
}

#[test]
fn a_plugin_that_always_asks_for_one_more_look_waits_as_after_any_failure() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let mut names = 0;
    bench.settle(&mut |visit: &Visit| {
        names += 1;
        assert!(visit.reads.get(&ObjectKey::pod("d", format!("x{names}")), true).is_err());
        unavailable()
    });
    assert!(names < 40, "{names} visits at one time");
    assert!(bench.next.is_some_and(|next| next > bench.now));
}

#[test]
fn what_waits_for_its_record_is_not_visited_by_the_rounds_until_then() {
    let mut bench = Bench::new(Bench::targets(&["a", "b"]));
    bench.pod("a", "1");
    bench.pod("b", "2");
    bench.settle(&mut |_: &Visit| report(State::Processing));
    let mut visits = Vec::new();
    let mut note = |visit: &Visit| {
        visits.push(visit.target.name.clone());
        let set_extra = vec![("NewPod".to_owned(), "n".to_owned())];
        let stored = visit.target.extras.contains_key("NewPod") || visit.target.name == "b";
        let proposal = Proposal { set_extra: if stored { vec![] } else { set_extra }, ..Proposal::default() };
        let report = Report { state: State::Processing, proposal, check_after_ms: None };
        Answer::Reported { operate: Proposal::default(), report }
    };
    bench.memory.turn_to(0);
    bench.round(&mut note);
    for _ in 0..5 {
        bench.memory.turn_to(1);
        bench.round(&mut note);
    }
    bench.later(2);
    bench.settle(&mut note);
    let times = |name: &str| visits.iter().filter(|visited| *visited == name).count();
    assert_eq!((times("a"), times("b")), (2, 5), "once to decide it, once when it is durable");
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
