//! Tests of the oracle: it finds each kind of breach, and finds nothing in a correct run.

use std::sync::Arc;

use oarlock_sim::world::labels;
use serde_json::json;

use super::*;

fn version(number: u64, plural: &str, uid: &str, object: Value) -> Version {
    let (namespace, name) = ("d".to_owned(), uid.to_owned());
    let (plural, uid) = (plural.to_owned(), uid.to_owned());
    Version { resource_version: number, plural, namespace, name, uid, object: Arc::new(object), is_end: false }
}

fn told(progress: &str, more: Value) -> Value {
    let mut target = json!({"name": "p", "uid": "p", "progress": progress});
    target.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    target
}

fn job(number: u64, progress: &str, more: Value) -> Version {
    let object = json!({"spec": {"action": "Replace"}, "status": {"targetDetails": [told(progress, more)]}});
    version(number, "operationjobs", "j", object)
}

fn held(number: u64, finalizers: Value) -> Version {
    let metadata = json!({"annotations": {"hold.oarlock.dev/j": "[]"}, "finalizers": finalizers});
    version(number, "pods", "p", json!({ "metadata": metadata }))
}

fn found(versions: &[Version]) -> Vec<String> {
    breaches(versions, "d", &Meddling::default())
}

const GUARD: &str = "finalizer.operationjob.kusionstack.io/replace-protected";

#[test]
fn a_hold_before_the_intent_is_a_breach_and_after_it_is_none() {
    let (pending, started) = (job(1, "Pending", json!({})), job(2, "Processing", json!({})));
    assert_eq!(found(&[pending.clone(), held(3, json!([]))]).len(), 1);
    assert_eq!(found(&[pending, started, held(3, json!([]))]), Vec::<String>::new());
}

#[test]
fn an_intent_in_a_record_counts_like_one_in_the_status() {
    let large = |number| {
        version(
            number,
            "operationjobs",
            "j",
            json!({"spec": {"action": "Replace"}, "status": {"records": {"count": 1}}}),
        )
    };
    let record = |number, progress: &str| {
        let lines = [told(progress, json!({})).to_string()];
        version(number, "operationrecords", "j-0", json!({"job": {"uid": "j"}, "targets": lines}))
    };
    assert_eq!(found(&[large(1), record(2, "Pending"), held(3, json!([]))]).len(), 1);
    assert_eq!(found(&[large(1), record(2, "Processing"), held(3, json!([]))]), Vec::<String>::new());
    assert_eq!(found(&[large(1), record(2, "Failed"), record(3, "Succeeded")]).len(), 1);
    let emptied = version(3, "operationrecords", "j-0", json!({"job": {"uid": "j"}, "targets": []}));
    assert_eq!(found(&[large(1), record(2, "Failed"), emptied]).len(), 1);
}

#[test]
fn letting_go_before_the_new_pod_is_stored_is_a_breach_also_where_the_pod_goes_with_it() {
    let (started, stored) =
        (job(1, "Processing", json!({})), job(3, "Processing", json!({"extraInfo": {"NewPod": "n"}})));
    let (kept, free) = (held(2, json!([GUARD])), held(4, json!([])));
    let gone = Version { is_end: true, ..free.clone() };
    assert_eq!(found(&[started.clone(), kept.clone(), free.clone()]).len(), 1);
    assert_eq!(found(&[started.clone(), kept.clone(), gone]).len(), 1);
    assert_eq!(found(&[started, kept, stored, free]), Vec::<String>::new());
}

#[test]
fn letting_go_between_two_attempts_is_no_breach_and_in_the_next_one_it_is() {
    let waits = job(1, "Processing", json!({"nextAttemptTime": "2026-01-01T00:00:00Z"}));
    let (kept, free) = (held(2, json!([GUARD])), held(4, json!([])));
    assert_eq!(found(&[job(1, "Processing", json!({})), kept.clone(), free.clone()]).len(), 1);
    let started = job(0, "Processing", json!({}));
    assert_eq!(found(&[started.clone(), kept.clone(), waits.clone(), free.clone()]), Vec::<String>::new());
    let next = job(3, "Processing", json!({"attempt": 2}));
    assert_eq!(found(&[started, kept, waits, next, free]).len(), 1);
}

#[test]
fn an_eviction_is_a_breach_unless_its_pod_or_the_node_that_it_is_on_is_a_target_in_flight() {
    let evicted = |number| {
        let conditions =
            json!([{"type": labels::DISRUPTION_TARGET, "status": "True", "reason": labels::EVICTED_BY_API}]);
        version(number, "pods", "q", json!({"spec": {"nodeName": "p"}, "status": {"conditions": conditions}}))
    };
    let drain = |progress: &str, state: &str| {
        job(1, progress, json!({"extraInfo": {"Drain": json!({ "state": state }).to_string()}}))
    };
    let count = |job: Version| found(&[job, evicted(2)]).len();
    assert_eq!(count(job(1, "Processing", json!({}))), 1);
    assert_eq!((count(drain("Processing", "Drained")), count(drain("Failed", "Draining"))), (1, 1));
    assert_eq!(found(&[drain("Processing", "Draining"), evicted(2)]), Vec::<String>::new());
}

/// Returns a version of a job with four targets, this `parallelism` and this status.
fn bounded(number: u64, parallelism: Value, status: Value) -> Version {
    let targets = [json!({"name": "a"}), json!({"name": "b"}), json!({"name": "c"}), json!({"name": "d"})];
    let spec = json!({"parallelism": parallelism, "targets": targets});
    version(number, "operationjobs", "j", json!({"spec": spec, "status": status}))
}

#[test]
fn a_start_beyond_parallelism_is_a_breach_and_one_that_was_before_it_was_lowered_is_none() {
    let told = |all: [&str; 4]| {
        let names = ["a", "b", "c", "d"].into_iter();
        let targets: Vec<_> = names.zip(all).map(|(name, word)| json!({"name": name, "progress": word})).collect();
        json!({ "targetDetails": targets })
    };
    let two = told(["Processing", "Processing", "Pending", "Pending"]);
    let three = told(["Processing", "Processing", "Processing", "Pending"]);
    let third = told(["Processing", "Succeeded", "Processing", "Processing"]);
    assert_eq!(found(&[bounded(1, json!(2), two.clone()), bounded(2, json!(2), three.clone())]).len(), 1);
    assert_eq!(found(&[bounded(1, json!("26%"), two.clone()), bounded(2, json!("26%"), three.clone())]).len(), 1);
    assert_eq!(found(&[bounded(1, json!(null), three.clone()), bounded(2, json!(2), two)]), Vec::<String>::new());
    let lowered = bounded(2, json!(2), three.clone());
    assert_eq!(found(&[bounded(1, json!(3), three.clone()), lowered.clone()]), Vec::<String>::new());
    assert_eq!(found(&[bounded(1, json!(3), three), lowered, bounded(3, json!(2), third)]).len(), 1);
}

#[test]
fn a_start_beyond_parallelism_is_a_breach_also_where_targets_are_in_ranges() {
    let told = |processing: &str| json!({"records": {"count": 1}, "ranges": {"processing": processing}});
    let run = |last: &str| found(&[bounded(1, json!(3), told("0-1")), bounded(2, json!(3), told(last))]).len();
    assert_eq!((run("0-2"), run("0-1,3"), run("0-3"), run("0,1,2,3")), (0, 0, 1, 1));
}

#[test]
fn an_outcome_that_changes_or_is_lost_is_a_breach() {
    assert_eq!(found(&[job(1, "Failed", json!({})), job(2, "Processing", json!({}))]).len(), 1);
    assert_eq!(found(&[job(1, "Failed", json!({})), version(2, "operationjobs", "j", json!({}))]).len(), 1);
}

#[test]
fn a_success_without_a_new_pod_that_served_is_a_breach() {
    let new = |status: &str| {
        version(2, "pods", "n", json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}))
    };
    let done = job(3, "Succeeded", json!({"extraInfo": {"NewPod": "n"}}));
    assert_eq!(found(&[job(1, "Processing", json!({})), new("False"), done.clone()]).len(), 1);
    assert_eq!(found(&[job(1, "Processing", json!({})), new("True"), done]), Vec::<String>::new());
}

#[test]
fn a_job_that_goes_and_still_holds_a_pod_is_a_breach_unless_its_finalizer_was_taken_off() {
    let run = [job(1, "Processing", json!({})), held(2, json!([])), Version { is_end: true, ..job(3, "", json!({})) }];
    assert_eq!(found(&run).len(), 1);
    let meddling = Meddling { stripped: ["j".to_owned()].into(), ..Meddling::default() };
    assert_eq!(breaches(&run, "d", &meddling), Vec::<String>::new());
}

#[test]
fn two_targets_with_one_new_pod_are_a_breach() {
    let target =
        |name: &str| json!({"name": name, "uid": name, "progress": "Processing", "extraInfo": {"NewPod": "n"}});
    let job = json!({"status": {"targetDetails": [target("a"), target("b")]}});
    assert_eq!(found(&[version(1, "operationjobs", "j", job)]).len(), 1);
}

#[test]
fn an_epoch_that_falls_is_a_breach() {
    let job = |number, epoch: i64| version(number, "operationjobs", "j", json!({"status": {"epoch": epoch}}));
    assert_eq!(found(&[job(1, 2), job(2, 2), job(3, 1)]).len(), 1);
}

/// Returns a version of the record of a job, with lines for these targets.
fn record(number: u64, uid: &str, epoch: i64, targets: &[(&str, &str)]) -> Version {
    let line = |(name, progress): &(&str, &str)| json!({"name": name, "uid": name, "progress": progress}).to_string();
    let lines: Vec<String> = targets.iter().map(line).collect();
    version(number, "operationrecords", uid, json!({"job": {"uid": "j"}, "shard": 0, "epoch": epoch, "targets": lines}))
}

/// Returns a version of a job whose targets are in records, with further fields of its status.
fn recorded(number: u64, status: Value) -> Version {
    let mut job = json!({"spec": {"targets": [{"name": "a"}, {"name": "b"}]}, "status": {"records": {"count": 1}}});
    job["status"].as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    version(number, "operationjobs", "j", job)
}

#[test]
fn a_record_that_is_lost_is_a_breach_for_each_outcome_in_it_unless_its_job_goes() {
    let lines = [("a", "Failed"), ("b", "Processing")];
    let (stored, lost) = (record(2, "r", 1, &lines), Version { is_end: true, ..record(3, "r", 1, &lines) });
    assert_eq!(found(&[recorded(1, json!({})), stored.clone(), lost.clone()]).len(), 1);
    let removed = Meddling { removed: ["r".to_owned()].into(), ..Meddling::default() };
    assert_eq!(breaches(&[recorded(1, json!({})), stored.clone(), lost.clone()], "d", &removed), Vec::<String>::new());
    let gone = Version { is_end: true, ..recorded(3, json!({})) };
    assert_eq!(found(&[recorded(1, json!({})), stored.clone(), gone, lost.clone()]), Vec::<String>::new());
    let mut deleted = recorded(1, json!({}));
    Arc::make_mut(&mut deleted.object)["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(found(&[deleted, stored, lost]), Vec::<String>::new());
}

#[test]
fn an_epoch_of_a_record_that_falls_is_a_breach_also_where_it_was_made_anew() {
    let run = |last: Version| found(&[recorded(1, json!({})), record(2, "r", 2, &[]), last]).len();
    assert_eq!(run(record(3, "r", 1, &[])), 1);
    assert_eq!(run(record(3, "r", 2, &[])), 0);
    let anew = |epoch| {
        let lost = Version { is_end: true, ..record(3, "r", 2, &[]) };
        found(&[recorded(1, json!({})), record(2, "r", 2, &[]), lost, record(4, "s", epoch, &[])]).len()
    };
    assert_eq!((anew(1), anew(2)), (1, 0));
}

#[test]
fn a_job_that_ends_without_an_outcome_of_each_target_is_a_breach() {
    let end = || recorded(3, json!({"progress": "Failed", "startTime": "s", "endTime": "e"}));
    let all = record(2, "r", 1, &[("a", "Failed"), ("b", "Succeeded")]);
    assert_eq!(found(&[recorded(1, json!({})), all, end()]), Vec::<String>::new());
    let some = record(2, "r", 1, &[("a", "Failed")]);
    assert_eq!(found(&[recorded(1, json!({})), some, end()]).len(), 1);
    assert_eq!(found(&[recorded(1, json!({})), end()]).len(), 2, "no record at all");
}

#[test]
fn a_dry_run_that_acts_is_a_breach_whatever_it_does() {
    let dry = |number, progress: &str| {
        let spec = json!({"action": "Replace", "dryRun": true});
        version(
            number,
            "operationjobs",
            "j",
            json!({"spec": spec, "status": {"targetDetails": [told(progress, json!({}))]}}),
        )
    };
    let pod = |number, object: Value| version(number, "pods", "p", object);
    let bare = || pod(1, json!({"metadata": {"labels": {"app": "x"}}}));
    let after = |done: Version| found(&[bare(), dry(2, "Processing"), done]);
    assert_eq!(found(&[bare(), dry(2, "Processing"), dry(3, "Succeeded")]), Vec::<String>::new(), "its pod stays");
    assert_eq!(after(held(3, json!([]))).len(), 1);
    let evicted =
        json!({"status": {"conditions": [{"type": labels::DISRUPTION_TARGET, "reason": labels::EVICTED_BY_API}]}});
    assert_eq!(after(pod(3, evicted.clone())).len(), 1);
    let operation =
        |id: &str| json!({"metadata": {"labels": {format!("operating.podopslifecycle.kusionstack.io/{id}"): "1"}}});
    assert_eq!((after(pod(3, operation("j"))).len(), after(pod(3, operation("k"))).len()), (1, 0));
    let mut kept = dry(3, "Processing");
    Arc::make_mut(&mut kept.object)["metadata"] =
        json!({"finalizers": ["finalizer.operating.kusionstack.io/protected"]});
    assert_eq!(after(kept).len(), 1);
    let mut other = job(3, "Processing", json!({}));
    (other.uid, other.name) = ("k".to_owned(), "k".to_owned());
    assert_eq!(
        found(&[bare(), dry(2, "Processing"), other, pod(4, evicted)]),
        Vec::<String>::new(),
        "another job did it"
    );
}

#[test]
fn a_task_that_runs_twice_or_before_it_is_stored_is_a_breach() {
    let pod = |number, uid: &str, runs: bool| {
        let labels = json!({"oarlock.dev/job-uid": "j", "oarlock.dev/target-index": "0", labels::TASK: "run",
            labels::TASK_KIND: labels::RUN_ON_NODE});
        let metadata = json!({"labels": labels, "annotations": {"oarlock.dev/job": "d/j"}});
        let state = if runs { json!({"running": {}}) } else { json!({"waiting": {}}) };
        let containers = json!([{"name": "sidecar", "state": {}}, {"name": "task", "state": state}]);
        let object = json!({"metadata": metadata, "status": {"containerStatuses": containers}});
        Version { namespace: "tasks".to_owned(), ..version(number, "pods", uid, object) }
    };
    let without = job(1, "Processing", json!({}));
    let stored = job(2, "Processing", json!({"extraInfo": {"Task/run": "{}"}}));
    assert_eq!(found(&[without.clone(), pod(3, "a", false)]).len(), 1);
    let once = [without, stored, pod(3, "a", false), pod(4, "a", true), pod(5, "b", false)];
    assert_eq!(found(&once), Vec::<String>::new());
    let twice = [&once[..], &[pod(6, "b", true)]].concat();
    assert!(found(&twice).iter().all(|breach| breach.contains("S1: task run")) && found(&twice).len() == 1);
}
