//! Dry runs: their contents, and that they change nothing. Source: docs/operationjob.md 3.14.

use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::manifest::Lifecycle;
use oarlock_core::plugin::proposal::{CallFailure, Mutation, ObjectRef, PluginError, PluginEvent, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Visit};
use oarlock_core::requests::writes::{Stopped, Write, blocked_by};
use serde_json::{Value, json};

use crate::answers::{change, evict, evict_and_wait, itself, marking, proposing, report, unavailable, waiting};
use crate::bench::patch::merge;
use crate::bench::plugin::{plugin, plugin_in_lifecycle, plugin_that_changes};
use crate::bench::weather::{Fate, Look, Weather};
use crate::bench::{Bench, START};

const POSSIBLE: &str = "then possible: evict pods, patch pods (labels mark; finalizers f.io/f)";

/// Returns a bench with a dry run of these targets, whose pods exist, with these fields.
fn bench(names: &[&str], fields: &Value) -> Bench {
    let mut spec = Bench::targets(names);
    merge(&mut spec, &json!({"dryRun": true}));
    merge(&mut spec, fields);
    let mut bench = Bench::new(spec);
    names.iter().for_each(|name| bench.pod(name, name));
    bench
}

/// Runs rounds until nothing more happens.
fn run(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) {
    for _ in 0..4 {
        bench.settle(answer);
        bench.later(2);
    }
}

fn detail(bench: &Bench, index: usize) -> &Value {
    &bench.status()["targetDetails"][index]
}

fn plan(bench: &Bench, index: usize) -> &str {
    detail(bench, index)["extraInfo"]["Plan"].as_str().unwrap_or_default()
}

fn message(bench: &Bench, index: usize) -> &str {
    detail(bench, index)["error"]["message"].as_str().unwrap_or_default()
}

/// Checks that a dry run has sent only its status and dry-run requests.
fn nothing_was_done(bench: &Bench) {
    let done: Vec<_> = bench.sent.iter().filter(|sent| **sent != "status" && !sent.starts_with("try to ")).collect();
    assert!(done.is_empty(), "{done:?}");
    assert_eq!(bench.job["metadata"].get("finalizers"), None);
}

fn error(reason: &str) -> PluginError {
    PluginError { reason: reason.into(), message: "why".into() }
}

#[test]
fn a_refusal_fails_the_target_and_says_what_was_refused_by_whom_and_why() {
    let blocked = Stopped::Blocked { message: blocked_by("web", "it would violate the budget"), retry_after: None };
    let refused = Stopped::Refused { message: "admission webhook \"w\" denied the request: no".into() };
    for (stopped, word, words) in [
        (blocked, "Failed/EvictionBlocked", "evict pod a: disruption budget web: it would violate the budget"),
        (refused, "Failed/UpdateObjectFailed", "evict pod a: admission webhook \"w\" denied the request: no"),
    ] {
        let mut bench = bench(&["a"], &json!({"retryPolicy": {"limit": 3, "backoffSeconds": 0}}));
        bench.refuse.insert("evict", stopped);
        run(&mut bench, &mut evict_and_wait);
        assert_eq!((bench.word(0).as_str(), message(&bench, 0)), (word, words));
        assert!(plan(&bench, 0).starts_with("evict pod a; "), "what was tried: {}", plan(&bench, 0));
        assert_eq!(
            (bench.times("try to evict a"), &bench.event_reasons),
            (1, &vec!["TargetFailed".into(), "JobFailed".into()])
        );
        assert_eq!(detail(&bench, 0)["extraInfo"].get("Released"), None, "it owes no release");
        nothing_was_done(&bench);
        let writes = bench.status_writes;
        bench.touch_all();
        run(&mut bench, &mut |_| panic!("nobody is called any more"));
        assert_eq!(bench.status_writes, writes);
    }
}

#[test]
fn several_changes_of_one_object_are_each_tried_on_the_object_as_it_is() {
    let mut bench = bench(&["a"], &json!({}));
    run(&mut bench, &mut |visit| {
        let label = change(visit, Some(("mark", "x")), None);
        let finalizer = change(visit, None, Some("f.io/f"));
        proposing(vec![label, finalizer, Mutation::Evict { pod: itself(visit), grace_seconds: Some(5) }])
    });
    let first =
        "patch pod a (labels mark=x), then patch pod a (finalizers f.io/f), then evict pod a (grace period 5 s); ";
    assert_eq!((plan(&bench, 0), bench.word(0).as_str()), (format!("{first}{POSSIBLE}").as_str(), "Succeeded"));
    assert_eq!((bench.times("try to patch a"), bench.times("try to evict a")), (2, 1));
    nothing_was_done(&bench);
}

#[test]
fn changes_of_other_objects_are_tried_in_every_verb() {
    let kind = Kind::new("example.com/v1", "Thing");
    let mut bench = bench(&["a"], &json!({}));
    bench.found = plugin_that_changes(&kind);
    bench.other(&kind, "t");
    let key = ObjectKey { kind, namespace: Some("d".into()), name: "t".into() };
    run(&mut bench, &mut |_| {
        let object = ObjectRef { key: key.clone(), uid: None };
        let body = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "n"}});
        proposing(vec![
            Mutation::Patch { object: object.clone(), subresource: None, patch: json!({"spec": {"size": 2}}) },
            Mutation::Create(body),
            Mutation::Delete { object, grace_seconds: None, propagation: None },
        ])
    });
    let first =
        "patch thing t (fields /spec/size=2), then create thing n, then delete thing t; then possible: evict pods, ";
    assert!(plan(&bench, 0).starts_with(first), "{}", plan(&bench, 0));
    assert_eq!(bench.word(0), "Succeeded");
    assert_eq!(bench.sent, ["status", "try to patch t", "try to create n", "try to delete t", "status"]);
}

#[test]
fn a_plugin_that_proposes_no_change_says_why_it_waits() {
    let stores = |visit: &Visit| {
        let Answer::Reported { mut operate, report } = waiting(visit) else { panic!("it reports") };
        operate.set_extra = vec![("NotAllowedToReplaceNewPod".into(), "web-0".into()), ("NewPod".into(), "b".into())];
        let message = "it is itself the new pod of web-0".into();
        operate.events = vec![PluginEvent { warning: false, reason: "Waits".into(), message }];
        Answer::Reported { operate, report }
    };
    let mut bench = bench(&["a"], &json!({}));
    run(&mut bench, &mut { stores });
    let why = "NotAllowedToReplaceNewPod=web-0; NewPod=b; it is itself the new pod of web-0";
    assert_eq!(plan(&bench, 0), format!("nothing at first: the plugin waits ({why}); {POSSIBLE}"));
    let extras: Vec<_> = detail(&bench, 0)["extraInfo"].as_object().unwrap().keys().cloned().collect();
    assert_eq!((bench.word(0).as_str(), extras), ("Succeeded", vec!["Owner".to_owned(), "Plan".into()]));
    assert_eq!((bench.status_writes, &bench.event_reasons), (1, &vec!["Planned".into(), "Completed".into()]));
    let mut done = self::bench(&["a"], &json!({}));
    run(&mut done, &mut |_| report(State::Succeeded));
    assert_eq!(plan(&done, 0), format!("nothing at first: the plugin reports the target as done; {POSSIBLE}"));
}

#[test]
fn what_is_so_already_is_no_change() {
    let mut bench = bench(&["a"], &json!({}));
    bench.show(json!({"metadata": {"name": "a", "namespace": "d", "uid": "a", "labels": {"mark": "true"},
        "finalizers": ["f.io/f"]}}));
    run(&mut bench, &mut |visit| {
        let Mutation::Metadata(mut change) = change(visit, Some(("mark", "true")), Some("f.io/f")) else { panic!() };
        change.keep = true;
        proposing(vec![Mutation::Metadata(change)])
    });
    assert_eq!(plan(&bench, 0), format!("nothing at first: the target already has all proposed changes; {POSSIBLE}"));
    assert_eq!((bench.word(0).as_str(), bench.status_writes), ("Succeeded", 1));
}

#[test]
fn what_a_plugin_says_of_its_failure_is_the_targets_error() {
    let failure = |retryable: bool| {
        Answer::Failed(CallFailure { retryable, reason: "Odd".into(), message: "why".into(), retry_after_ms: None })
    };
    let mut reported = bench(&["a"], &json!({"retryPolicy": {"limit": 2}}));
    run(&mut reported, &mut |_| report(State::Failed(error("NoController"))));
    assert_eq!((reported.word(0).as_str(), message(&reported, 0)), ("Failed/NoController", "why"));
    nothing_was_done(&reported);
    let mut failed = bench(&["a"], &json!({}));
    run(&mut failed, &mut |_| failure(false));
    assert_eq!(failed.word(0), "Failed/Odd");
    let mut once = bench(&["a"], &json!({}));
    let mut tries = 0;
    run(&mut once, &mut |visit| {
        tries += 1;
        if tries == 1 { failure(true) } else { evict(visit) }
    });
    assert_eq!((once.word(0).as_str(), tries), ("Succeeded", 2));
    let mut reads = bench(&["a"], &json!({}));
    run(&mut reads, &mut |visit| if visit.target.call_try < 3 { unavailable() } else { evict(visit) });
    assert_eq!(reads.word(0), "Succeeded");
}

#[test]
fn what_is_not_granted_fails_and_is_not_tried() {
    let mut bench = bench(&["a"], &json!({}));
    run(&mut bench, &mut |visit| proposing(vec![change(visit, Some(("other", "x")), None)]));
    assert_eq!(bench.word(0), "Failed/MutationDenied");
    let mut drains = self::bench(&["a"], &json!({}));
    run(&mut drains, &mut |_| proposing(vec![Mutation::Other { verb: "drain".into() }]));
    assert_eq!(drains.word(0), "Failed/MutationDenied");
    assert!(message(&drains, 0).contains("does not carry out `drain`"), "{}", message(&drains, 0));
    assert_eq!((bench.sent, drains.sent), (vec!["status".to_owned()], vec!["status".to_owned()]));
}

#[test]
fn no_lifecycle_is_begun_or_waited_for_and_the_plan_says_that_it_would_be() {
    let mut bench = bench(&["a"], &json!({}));
    bench.found = plugin_in_lifecycle(Lifecycle::On);
    run(&mut bench, &mut marking);
    let begins = "begin the PodOpsLifecycle and wait for its permission, then ";
    assert!(plan(&bench, 0).starts_with(&format!("{begins}patch pod a (labels mark=true; ")), "{}", plan(&bench, 0));
    nothing_was_done(&bench);
    let mut busy = self::bench(&["a"], &json!({}));
    busy.found = plugin_in_lifecycle(Lifecycle::On);
    busy.show(json!({"metadata": {"name": "a", "namespace": "d", "uid": "a",
        "labels": {"operating.podopslifecycle.kusionstack.io/other": "1"}}}));
    run(&mut busy, &mut marking);
    let waits = "wait while operation other of the PodOpsLifecycle is under way on pod a, then ";
    assert!(plan(&busy, 0).starts_with(&format!("{waits}{begins}")), "{}", plan(&busy, 0));
    assert_eq!((bench.word(0), busy.word(0)), ("Succeeded".into(), "Succeeded".into()));
}

#[test]
fn partition_parallelism_and_pause_bound_it_as_any_job() {
    let mut bench = bench(&["a", "b", "c"], &json!({"partition": 2, "parallelism": 1, "paused": true}));
    run(&mut bench, &mut evict_and_wait);
    assert_eq!((bench.word(0).as_str(), &bench.status()["waitsFor"]), ("Pending", &json!("Paused")));
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"paused": false}}));
    bench.wire = 0;
    bench.settle(&mut evict_and_wait);
    assert_eq!([0, 1, 2].map(|index| bench.word(index)), ["Processing", "Pending", "Pending"]);
    bench.edit(&json!({"metadata": {"generation": 3}, "spec": {"paused": true}}));
    bench.settle(&mut evict_and_wait);
    bench.wire = usize::MAX;
    bench.send();
    assert_eq!(bench.times("try to evict a"), 0, "what waited was withdrawn");
    bench.edit(&json!({"metadata": {"generation": 4}, "spec": {"paused": false}}));
    run(&mut bench, &mut evict_and_wait);
    assert_eq!([0, 1, 2].map(|index| bench.word(index)), ["Succeeded", "Succeeded", "Pending"]);
    assert_eq!(bench.status()["waitsFor"], "Partition");
    nothing_was_done(&bench);
}

#[test]
fn each_eligible_target_is_shown_whatever_the_others_come_to_and_whoever_is_down() {
    let fields = json!({"failurePolicy": {"type": "FailFast"}, "maxUnavailable": 1, "operationDelaySeconds": 600});
    let mut bench = bench(&["a", "b", "c"], &fields);
    let down = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    bench.show(json!({"metadata": {"name": "c", "namespace": "d", "uid": "c"}, "status": down}));
    run(&mut bench, &mut |visit| match visit.target.name.as_str() {
        "a" => report(State::Failed(error("NoController"))),
        _ => evict(visit),
    });
    assert_eq!([0, 1, 2].map(|index| bench.word(index)), ["Failed/NoController", "Succeeded", "Succeeded"]);
}

#[test]
fn a_pod_that_is_gone_was_not_there_to_be_planned_for() {
    let mut missing = bench(&["a"], &json!({"targets": [{"name": "a"}, {"name": "x"}]}));
    run(&mut missing, &mut evict_and_wait);
    assert_eq!([0, 1].map(|index| missing.word(index)), ["Succeeded", "Failed/PodNotFound"]);
    let mut goes = bench(&["a"], &json!({}));
    goes.wire = 0;
    goes.settle(&mut evict_and_wait);
    goes.vanish("a");
    run(&mut goes, &mut |_| panic!("nothing is planned for it"));
    assert_eq!(goes.word(0), "Failed/PodNotFound");
    nothing_was_done(&goes);
}

/// Fails the first writes with these failures, each once.
struct Meets(Vec<Stopped>);

impl Weather for Meets {
    fn write(&mut self, _: &Write) -> Fate {
        self.0.pop().map_or(Fate::Done, Fate::Stopped)
    }
}

#[test]
fn what_says_nothing_of_the_request_is_tried_again() {
    let unknown = || Stopped::Unknown { message: "late".into() };
    for met in [unknown(), Stopped::Conflict, Stopped::NotSent, Stopped::Throttled { retry_after: Some(1) }] {
        let mut bench = bench(&["a"], &json!({}));
        bench.weather = Box::new(Meets(vec![met.clone(), met.clone()]));
        for _ in 0..6 {
            run(&mut bench, &mut evict_and_wait);
        }
        assert_eq!((bench.word(0).as_str(), bench.times("try to evict a")), ("Succeeded", 3), "{met:?}");
        nothing_was_done(&bench);
    }
}

/// Replies to no write and answers no live read.
struct Dark;

impl Weather for Dark {
    fn write(&mut self, _: &Write) -> Fate {
        Fate::Stopped(Stopped::Unknown { message: "late".into() })
    }

    fn look(&mut self, _: &oarlock_core::requests::live_reads::LiveRead) -> Look {
        Look::Silent
    }
}

#[test]
fn a_deadline_ends_it_without_a_bump_or_a_last_look() {
    for crash in [false, true] {
        let mut bench = bench(&["a"], &json!({"activeDeadlineSeconds": 30}));
        bench.weather = Box::new(Dark);
        for step in 0..20 {
            bench.settle(&mut evict_and_wait);
            bench.later(2);
            if crash && step < 3 {
                bench.crash();
            }
        }
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded", "crash: {crash}");
        assert!(message(&bench, 0).ends_with("nothing was changed"), "{}", message(&bench, 0));
        nothing_was_done(&bench);
    }
}

#[test]
fn a_host_that_dies_at_any_point_tries_again_and_comes_to_the_same() {
    for wire in [0, usize::MAX] {
        let mut bench = bench(&["a", "b"], &json!({}));
        for _ in 0..3 {
            bench.wire = wire;
            bench.round(&mut evict_and_wait);
            bench.crash();
        }
        bench.wire = usize::MAX;
        for _ in 0..3 {
            run(&mut bench, &mut evict_and_wait);
            bench.crash();
        }
        assert_eq!([0, 1].map(|index| bench.word(index)), ["Succeeded", "Succeeded"]);
        assert!(plan(&bench, 1).starts_with("evict pod b; "), "{}", plan(&bench, 1));
        nothing_was_done(&bench);
    }
}

#[test]
fn a_dry_run_that_is_deleted_is_gone_at_once_and_one_that_somebody_protects_ends() {
    let mut bench = bench(&["a"], &json!({}));
    bench.wire = 0;
    bench.settle(&mut evict_and_wait);
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    assert!(bench.job_is_gone);
    let mut held = self::bench(&["a", "b"], &json!({"partition": 1}));
    held.edit(&json!({"metadata": {"finalizers": ["example.com/f"]}}));
    held.wire = 0;
    held.settle(&mut evict_and_wait);
    held.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    run(&mut held, &mut |_| panic!("nobody is called any more"));
    assert_eq!([0, 1].map(|index| held.word(index)), ["Failed/JobDeleted", "Failed/JobDeleted"]);
    assert_eq!(held.sent, ["status", "status"]);
}

#[test]
fn no_other_job_notices_a_dry_run_in_flight() {
    let exclusive = |found: PluginLookup| {
        let PluginLookup::Serving(info) = found else { panic!("it serves") };
        let mut info = PluginInfo::clone(&info);
        info.manifest.exclusive = true;
        info.grant.limits.targets_in_flight = Some(1);
        PluginLookup::Serving(info.into())
    };
    let seen = |dry_run: bool| {
        let mut bench = bench(&["a"], &json!({"dryRun": dry_run}));
        bench.found = exclusive(plugin());
        bench.wire = 0;
        bench.settle(&mut evict_and_wait);
        assert_eq!(bench.word(0), "Processing");
        let other = JobKey { namespace: "d".into(), name: "other".into() };
        let pod = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
        let root = bench.store.root(&pod).unwrap().unwrap();
        let tables = &mut *lock(&bench.tables);
        let in_flight = tables.in_flight_elsewhere("replace", &other).of_all;
        (
            in_flight,
            tables.disrupted.elsewhere(&other, &ObjectKey::pod("d", "a")),
            tables.wake.waiting(&pod, &root).len(),
        )
    };
    assert_eq!((seen(false), seen(true)), ((1, true, 1), (0, false, 0)));
}

#[test]
fn a_dry_run_starts_on_a_pod_that_an_exclusive_plugin_holds_for_another_job() {
    let mut bench = bench(&["a"], &json!({}));
    let PluginLookup::Serving(info) = plugin() else { panic!("it serves") };
    let mut info = PluginInfo::clone(&info);
    info.manifest.exclusive = true;
    bench.found = PluginLookup::Serving(info.into());
    bench.show(json!({"metadata": {"name": "a", "namespace": "d", "uid": "a",
        "labels": {"oarlock.dev/held": "true"}, "annotations": {"hold.oarlock.dev/other": "[]"}}}));
    run(&mut bench, &mut evict_and_wait);
    assert_eq!(bench.word(0), "Succeeded");
    let first = "wait until other jobs have released the pod, then evict pod a; ";
    assert!(plan(&bench, 0).starts_with(first), "{}", plan(&bench, 0));
}

#[test]
fn a_job_stays_dry_or_earnest_whatever_somebody_makes_of_its_spec() {
    for dry_run in [true, false] {
        for crash in [true, false] {
            let mut bench = bench(&["a"], &json!({"dryRun": dry_run, "activeDeadlineSeconds": 30}));
            bench.wire = 0;
            bench.settle(&mut marking);
            bench.wire = usize::MAX;
            bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"dryRun": !dry_run}}));
            if !dry_run {
                bench.send();
            }
            for step in 0..20 {
                if crash && step < 3 {
                    bench.crash();
                }
                bench.settle(&mut waiting);
                bench.later(2);
            }
            assert_eq!(bench.word(0), "Failed/DeadlineExceeded", "{dry_run} {crash}");
            let pod = bench.store.get(&ObjectKey::pod("d", "a")).unwrap();
            assert!(pod.annotations.iter().next().is_none() && pod.finalizers.is_empty(), "{dry_run} {crash}");
            assert_eq!(bench.sent.iter().any(|sent| sent == "patch a"), !dry_run, "{:?}", bench.sent);
        }
    }
}

#[test]
fn of_a_large_dry_run_each_target_has_its_plan_and_the_events_stay_few() {
    let names: Vec<String> = (0..300).map(|index| format!("p{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = bench(&names, &json!({}));
    for _ in 0..6 {
        run(&mut bench, &mut evict_and_wait);
    }
    assert_eq!(bench.status()["progress"], "Succeeded");
    for (shard, record) in &bench.records {
        for (at, line) in record["targets"].as_array().unwrap().iter().enumerate() {
            let line: Value = serde_json::from_str(line.as_str().unwrap()).unwrap();
            let first = format!("evict pod p{}; ", *shard as usize * 250 + at);
            assert!(line["extraInfo"]["Plan"].as_str().unwrap().starts_with(&first), "{line}");
        }
    }
    assert!(
        bench.event_reasons.len() <= 11 && !bench.event_reasons.contains(&"Planned".into()),
        "{:?}",
        bench.event_reasons
    );
    nothing_was_done(&bench);
}

#[test]
fn what_a_plugin_tells_in_its_proposal_is_not_told_as_done() {
    let mut bench = bench(&["a"], &json!({}));
    run(&mut bench, &mut |visit| {
        let event = PluginEvent { warning: false, reason: "EvictedPod".into(), message: "it is evicted".into() };
        let Answer::Proposed(proposal) = evict(visit) else { panic!("it proposes") };
        Answer::Proposed(Proposal { events: vec![event], ..proposal })
    });
    assert_eq!(
        (bench.event_reasons.join(" ").as_str(), bench.status_writes),
        ("Planned Completed", 2),
        "the start and the end"
    );
}

#[test]
fn the_pods_of_a_selector_are_frozen_and_tried_and_the_job_goes_after_its_time_to_live() {
    let query = json!({"labelSelector": {"matchLabels": {"mark": "true"}}});
    let fields = json!({"targets": null, "selector": query, "TTLSecondsAfterFinished": 60});
    let mut bench = bench(&["a"], &fields);
    bench.show(json!({"metadata": {"name": "b", "namespace": "d", "uid": "b", "labels": {"mark": "true"}}}));
    run(&mut bench, &mut evict_and_wait);
    assert_eq!((bench.word(0).as_str(), detail(&bench, 0)["name"].as_str()), ("Succeeded", Some("b")));
    assert!(plan(&bench, 0).starts_with("evict pod b; "), "{}", plan(&bench, 0));
    nothing_was_done(&bench);
    bench.crash();
    run(&mut bench, &mut |_| panic!("nobody is called any more"));
    bench.later(60);
    bench.settle(&mut |_| panic!("nobody is called any more"));
    assert_eq!((bench.times("delete j"), bench.job_is_gone), (1, true));
}

#[test]
fn a_change_that_tests_for_the_outcome_of_an_earlier_one_is_shown_and_not_tried() {
    let mut bench = bench(&["a"], &json!({}));
    bench.show(json!({"metadata": {"name": "a", "namespace": "d", "uid": "a", "finalizers": ["f.io/f"],
        "deletionTimestamp": "2026-01-01T01:00:00Z"}}));
    run(&mut bench, &mut |visit| {
        let Mutation::Metadata(mut lets_go) = change(visit, None, None) else { panic!() };
        lets_go.remove_finalizers = vec!["f.io/f".into()];
        lets_go.keep = true;
        proposing(vec![change(visit, Some(("mark", "x")), None), Mutation::Metadata(lets_go)])
    });
    let first = "patch pod a (labels mark=x), then patch pod a (finalizers f.io/f-; not tried: it depends on the previous change); ";
    assert!(plan(&bench, 0).starts_with(first), "{}", plan(&bench, 0));
    assert_eq!((bench.word(0).as_str(), bench.times("try to patch a")), ("Succeeded", 1));
}
