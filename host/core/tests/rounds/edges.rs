//! Rounds that others influence: edits in flight, a status that another client wrote, other jobs of the namespace, and kinds that a cluster lacks.
//! The rounds are those of `decisions.rs`. Source: docs/operationjob.md 2.5, 3.1, 3.7, 3.13.

use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::operation_job::shared::wake_index::TargetId;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::proposal::{PluginError, Proposal, Registration, Relation, RelationKey, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, ReadRefusal, Visit};
use serde_json::json;

use crate::answers::{evict_and_wait, marking, report, unavailable, waiting};
use crate::bench::plugin::plugin_with;
use crate::bench::{Bench, JOB_UID, START};

/// Returns a bench with a job that has succeeded.
fn ended() -> Bench {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut evict_and_wait);
    bench.gone("a");
    bench.touch_all();
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.word(0), bench.status()["progress"].as_str()), ("Succeeded".into(), Some("Succeeded")));
    bench
}

/// Marks the target, then asks for a visit every 5 s.
fn mark_and_look(visit: &Visit) -> Answer {
    let marked = visit.target.object.as_ref().is_some_and(|object| object.labels.contains_key("mark"));
    match visit.call {
        Call::OperateThenProgress if !marked => marking(visit),
        _ => {
            let report =
                Report { state: State::Processing, proposal: Proposal::default(), check_after_ms: Some(5_000) };
            Answer::Reported { operate: Proposal::default(), report }
        }
    }
}

#[test]
fn an_end_time_that_somebody_removes_is_written_again_and_the_end_told_once() {
    let mut bench = ended();
    let (writes, end) = (bench.status_writes, bench.status()["endTime"].clone());
    bench.edit(&json!({"status": {"endTime": null}}));
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    // docs/operationjob.md 2.1: this is the end of the last target, and the time to live begins there.
    assert_eq!(bench.status()["endTime"], end);
    assert_eq!(bench.event_reasons, ["Completed"]);
    bench.later(60);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.status_writes, writes + 1, "it is mended once");
}

#[test]
fn a_job_that_had_no_targets_at_first_starts_those_that_it_is_given() {
    let mut bench = Bench::new(json!({"action": "Replace"}));
    bench.pod("a", "1");
    bench.settle(&mut evict_and_wait);
    let conditions = bench.status()["conditions"].as_array().unwrap().clone();
    let valid = conditions.iter().find(|condition| condition["type"] == "Valid").unwrap();
    assert_eq!(valid["reason"], json!("NoTargets"));
    bench.later(1);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": Bench::targets(&["a"])}));
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.word(0), "Processing", "no list was frozen yet");
    assert_eq!(bench.times("evict a"), 1);
}

#[test]
fn a_spec_made_invalid_in_flight_keeps_the_parameters_that_its_targets_are_judged_by() {
    let mut bench = Bench::of_one(&json!({"parameters": {"x": 1}}));
    bench.found = plugin_with(&json!({"type": "object", "properties": {"x": {}}, "additionalProperties": false}));
    bench.settle(&mut waiting);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": -1}}));
    bench.later(1);
    let mut seen = Vec::new();
    bench.settle(&mut |visit: &Visit| {
        seen.push((visit.call, visit.job.parameters.clone()));
        waiting(visit)
    });
    assert_eq!(seen, [(Call::Progress, json!({"x": 1}))], "no `operate` while the spec is invalid");
}

#[test]
fn a_delay_that_is_raised_does_not_hold_back_a_target_that_was_operated() {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut mark_and_look);
    assert_eq!(bench.times("patch a"), 1);
    bench.later(1);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"operationDelaySeconds": 3600}}));
    bench.settle(&mut mark_and_look);
    for crashes in [false, true] {
        if crashes {
            // Only the pod still shows that the target was operated.
            bench.crash();
        }
        bench.later(1);
        bench.touch_all();
        let mut visits = 0;
        bench.settle(&mut |visit: &Visit| {
            visits += 1;
            mark_and_look(visit)
        });
        assert_eq!(visits, 1, "after a crash: {crashes}");
    }
    assert_eq!(bench.times("patch a"), 1);
}

#[test]
fn a_delay_that_is_raised_stretches_no_wait_of_a_target_that_an_earlier_term_operated() {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut mark_and_look);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"operationDelaySeconds": 3600}}));
    bench.crash();
    bench.later(1);
    bench.settle(&mut mark_and_look);
    // The plugin asked for a visit after 5 s (docs/operationjob.md 3.13.1).
    bench.later(5);
    let mut visits = 0;
    bench.settle(&mut |visit: &Visit| {
        visits += 1;
        mark_and_look(visit)
    });
    assert_eq!(visits, 1);
}

#[test]
fn an_ended_job_keeps_its_finalizer_until_the_other_jobs_of_its_namespace_are_read() {
    let mut bench = ended();
    bench.crash();
    // The other job is not read yet in this term: a target of it may still take a new pod of this job (docs/operationjob.md 3.7.11).
    let other = JobKey { namespace: "d".into(), name: "other".into() };
    lock(&bench.tables).claims.expect(&other);
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    for _ in 0..5 {
        bench.round(&mut evict_and_wait);
        bench.later(1);
    }
    assert_eq!((bench.times("patch j"), bench.job_is_gone), (0, false));
    assert!(bench.next.is_some_and(|next| next <= bench.now), "it asks again by itself");
    lock(&bench.tables).claims.read(&other);
    bench.settle(&mut evict_and_wait);
    assert_eq!((bench.times("patch j"), bench.job_is_gone), (1, true));
}

#[test]
fn whether_a_kind_is_served_is_asked_once_where_nobody_knows() {
    let mut bench = Bench::of_one(&json!({}));
    bench.served = Arc::new(|kind| *kind != Kind::namespace());
    let mut seen = Vec::new();
    bench.settle(&mut |visit: &Visit| {
        let answers = [Kind::pod(), Kind::namespace()].map(|kind| visit.reads.serves(&kind));
        seen.push(answers.clone());
        if answers[1].is_err() { unavailable() } else { waiting(visit) }
    });
    assert_eq!(seen, [[Ok(true), Err(ReadRefusal::Unavailable)], [Ok(true), Ok(false)]], "{seen:?}");
}

#[test]
fn a_plugin_is_told_that_a_kind_is_not_served_although_objects_of_it_are_kept() {
    let mut bench = Bench::of_one(&json!({}));
    bench.served = Arc::new(|kind| *kind != Kind::pod());
    let mut seen = Vec::new();
    bench.settle(&mut |visit: &Visit| {
        seen.push([Kind::pod(), Kind::namespace()].map(|kind| visit.reads.serves(&kind)));
        if seen.len() == 1 { unavailable() } else { waiting(visit) }
    });
    let unknown = Err(ReadRefusal::Unavailable);
    assert_eq!(seen, [[unknown, Ok(true)], [Ok(false), Ok(true)]]);
    assert!(bench.store.keeps(&Kind::pod()));
}

#[test]
fn a_target_of_an_exclusive_plugin_waits_for_a_pod_that_another_job_has_begun_on_and_not_marked() {
    for delay in [0, 1] {
        let mut bench = Bench::of_one(&json!({"operationDelaySeconds": delay}));
        if let PluginLookup::Serving(plugin) = &bench.found {
            let mut exclusive = PluginInfo::clone(plugin);
            exclusive.manifest.exclusive = true;
            bench.found = PluginLookup::Serving(Arc::new(exclusive));
        }
        let other = JobRef { key: JobKey { namespace: "d".into(), name: "other".into() }, uid: "other".into() };
        let other: TargetId = (Arc::new(other), 0);
        assert!(lock(&bench.tables).exclusive.take("1", &other));
        bench.settle(&mut waiting);
        for _ in 0..5 {
            bench.later(2);
            bench.settle(&mut waiting);
        }
        assert_eq!((bench.word(0), bench.memory.decisions.counts().processing), ("Pending".into(), 0));
        let woken = lock(&bench.tables).exclusive.give_back(&other.0.key, 0);
        assert_eq!(woken.iter().map(|(job, index)| (job.uid.as_str(), *index)).collect::<Vec<_>>(), [(JOB_UID, 0)]);
        bench.requeue(0);
        bench.settle(&mut waiting);
        assert_eq!(bench.word(0), "Processing");
        assert!(!lock(&bench.tables).exclusive.take("1", &other), "it has the pod now");
        bench.later(2);
        bench.touch_all();
        bench.settle(&mut |visit: &Visit| match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            _ => report(State::Succeeded),
        });
        bench.later(2);
        bench.settle(&mut waiting);
        assert_eq!(bench.word(0), "Succeeded");
        assert!(lock(&bench.tables).exclusive.take("1", &other), "it has given it back");
    }
}

#[test]
fn extras_and_mutations_of_a_failed_report_are_stored_and_made() {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut waiting);
    bench.sent.clear();
    bench.later(2);
    bench.touch_all();
    bench.settle(&mut |visit: &Visit| {
        let Answer::Proposed(marks) = marking(visit) else { unreachable!() };
        let proposal = Proposal { set_extra: vec![("Seen".into(), "smoke".into())], ..marks };
        let state = State::Failed(PluginError { reason: "Broken".into(), message: "it is".into() });
        match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            _ => Answer::Reported {
                operate: Proposal::default(),
                report: Report { state, proposal, check_after_ms: None },
            },
        }
    });
    assert_eq!(bench.word(0), "Failed/Broken");
    assert_eq!(bench.sent[..2], ["status", "patch a"], "the end is durable before the pod is changed");
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Seen"], json!("smoke"));
    assert_eq!(bench.times("patch a"), 2, "the mark goes with the release");
    assert!(bench.store.get(&ObjectKey::pod("d", "a")).unwrap().labels.is_empty());
}

#[test]
fn a_job_that_is_done_in_its_first_round_names_the_plugin_that_did_it() {
    for state in [State::Succeeded, State::Failed(PluginError { reason: "Broken".into(), message: "it is".into() })] {
        let mut bench = Bench::of_one(&json!({}));
        bench.settle(&mut |visit: &Visit| match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            _ => report(state.clone()),
        });
        assert!(bench.status()["endTime"].is_string() && bench.status_writes <= 2, "{}", bench.status());
        assert_eq!(bench.status()["plugin"]["digest"], json!("sha256:1"), "{}", bench.status());
    }
}

#[test]
fn a_hold_that_a_successful_report_puts_on_is_let_go() {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut waiting);
    bench.later(2);
    bench.touch_all();
    let mut succeed = |visit: &Visit| match (visit.call, marking(visit)) {
        (Call::OperateThenProgress, Answer::Proposed(proposal)) => {
            let report = Report { state: State::Succeeded, proposal, check_after_ms: None };
            Answer::Reported { operate: Proposal::default(), report }
        }
        _ => Answer::Proposed(Proposal::default()),
    };
    bench.settle(&mut succeed);
    assert_eq!((bench.word(0), bench.times("patch a") > 0), ("Succeeded".into(), true));
    for _ in 0..5 {
        bench.later(60);
        bench.touch_all();
        bench.settle(&mut succeed);
    }
    let pod = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
    assert!(pod.finalizers.is_empty() && pod.annotations.is_empty(), "docs/operationjob.md 3.11.1: {pod:?}");
}

#[test]
fn a_target_that_waits_for_a_pod_of_another_job_starts_also_after_somebody_edited_the_status() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    if let PluginLookup::Serving(plugin) = &bench.found {
        let mut exclusive = PluginInfo::clone(plugin);
        exclusive.manifest.exclusive = true;
        bench.found = PluginLookup::Serving(Arc::new(exclusive));
    }
    let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "u", "creationTimestamp": START}});
    let mut held = pod.clone();
    held["metadata"]["labels"] = json!({"oarlock.dev/held": "true"});
    held["metadata"]["annotations"] = json!({"hold.oarlock.dev/other": "[]"});
    bench.show(held);
    bench.settle(&mut waiting);
    bench.later(2);
    bench.edit(&json!({"status": {"succeededPodCount": 7}}));
    bench.settle(&mut waiting);
    bench.later(2);
    bench.settle(&mut waiting);
    bench.next = None;
    bench.show(pod);
    assert!(bench.next.is_some(), "the change of the pod wakes the job");
    bench.settle(&mut waiting);
    assert_eq!(bench.word(0), "Processing");
}

#[test]
fn an_object_that_a_parameter_names_is_related_and_wakes_the_targets_of_its_job_alone() {
    let PluginLookup::Serving(info) = plugin_with(&json!({"type": "object"})) else { unreachable!() };
    let by = RelationKey::Parameter("/partner".into());
    let relations = vec![Relation { name: "partner".into(), kind: Kind::pod(), by }];
    let registration = Registration { relations, exclusive_extras: vec![] };
    let mut bench = Bench::of_one(&json!({"parameters": {"partner": "b"}}));
    bench.found = PluginLookup::Serving(Arc::new(PluginInfo { registration, ..PluginInfo::clone(&info) }));
    let mut seen = Vec::new();
    let mut answer = |visit: &Visit| {
        let partners = visit.reads.related("partner", false).unwrap();
        seen.push(partners.iter().map(|object| object.key.name.clone()).collect::<Vec<_>>());
        waiting(visit)
    };
    bench.settle(&mut answer);
    let appears = |name: &str| json!({"metadata": {"name": name, "namespace": "d", "uid": name}});
    bench.show(appears("another"));
    bench.settle(&mut answer);
    bench.show(appears("b"));
    bench.settle(&mut answer);
    bench.vanish("b");
    bench.settle(&mut answer);
    assert_eq!(seen, [vec![], vec!["b".to_owned()], vec![]], "the other pod wakes nobody");
}
