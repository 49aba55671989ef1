//! Rounds of jobs that are many or large: more targets than write batches, a neighbour that cannot be read, changes without meaning. The rounds are
//! those of `decisions.rs`. Source: docs/operationjob.md 3.1, 3.7, 3.15.

use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::object::key::JobKey;
use oarlock_core::object::time::after_millis;
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::operation_job::write_queue::MOST_BATCHES;
use oarlock_core::plugin::lookup::TARGETS_IN_FLIGHT;
use oarlock_core::plugin::proposal::{Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::{Value, json};

use crate::answers::{evict_and_wait, waiting};
use crate::bench::weather::{Fate, Weather};
use crate::bench::{Bench, JOB_UID, START};

/// Returns a bench with a job of this many targets whose writes all wait.
fn crowd(targets: usize) -> Bench {
    let names: Vec<String> = (0..targets).map(|index| format!("p{index}")).collect();
    let mut bench = Bench::new(Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    names.iter().for_each(|name| bench.pod(name, &format!("u-{name}")));
    bench.wire = 0;
    bench.settle(&mut evict_and_wait);
    bench
}

fn evictions(bench: &Bench) -> usize {
    bench.sent.iter().filter(|write| write.starts_with("evict")).count()
}

#[test]
fn a_deleted_job_takes_back_every_write_that_waits() {
    let mut bench = crowd(300);
    assert_eq!(bench.queue.waiting(JOB_UID), MOST_BATCHES);
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    bench.settle(&mut evict_and_wait);
    bench.wire = usize::MAX;
    bench.send();
    assert_eq!(evictions(&bench), 0, "docs/operationjob.md 3.15.4");
}

#[test]
fn a_deadline_ends_targets_whose_writes_wait() {
    let mut bench = crowd(300);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"activeDeadlineSeconds": 5}}));
    bench.later(6);
    bench.settle(&mut evict_and_wait);
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.status()["failures"][0]["reason"], "DeadlineExceeded");
    bench.wire = usize::MAX;
    bench.send();
    assert_eq!(bench.times("evict p0"), 0);
}

#[test]
fn until_its_neighbours_are_read_a_job_starts_and_claims_nothing_and_ends_what_is_due() {
    let mut bench = Bench::new(json!({"action": "Replace", "targets": [{"name": "a"}, {"name": "b"}], "partition": 1,
        "activeDeadlineSeconds": 30}));
    ["a", "b"].into_iter().for_each(|name| bench.pod(name, name));
    bench.settle(&mut waiting);
    let other = JobKey { namespace: "d".into(), name: "other".into() };
    lock(&bench.tables).claims.expect(&other);
    bench.edit(&json!({"metadata": {"generation": 2}, "spec": {"partition": 2}}));
    let claims = |bench: &mut Bench, seconds: i64| {
        for _ in 0..seconds {
            bench.touch_all();
            bench.settle(&mut |visit: &Visit| storing_as(visit, "NewPod", "x"));
            assert!(bench.next.is_some_and(|next| next > bench.now), "the next round waits a little");
            bench.later(1);
        }
    };
    claims(&mut bench, 5);
    let said = |bench: &Bench, index: usize| bench.status()["targetDetails"][index].clone();
    assert!(said(&bench, 0)["extraInfo"].get("NewPod").is_none() && bench.word(1) == "Pending");
    lock(&bench.tables).claims.read(&other);
    claims(&mut bench, 5);
    assert_eq!((said(&bench, 0)["extraInfo"]["NewPod"].as_str(), bench.word(1).as_str()), (Some("x"), "Processing"));
    lock(&bench.tables).claims.expect(&other);
    claims(&mut bench, 25);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded", "its time is over, whatever others have claimed");
}

#[test]
fn a_change_of_a_version_alone_makes_no_visit() {
    let mut bench = Bench::of_one(&json!({}));
    let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "u-a", "creationTimestamp": START}});
    bench.show(pod.clone());
    bench.settle(&mut waiting);
    let mut visits_after = |document: Value| {
        let mut visits = 0;
        bench.show(document);
        bench.later(1);
        bench.settle(&mut |visit: &Visit| {
            visits += 1;
            waiting(visit)
        });
        visits
    };
    assert_eq!(visits_after(pod.clone()), 0);
    let mut labelled = pod;
    labelled["metadata"]["labels"] = json!({"x": "y"});
    assert_eq!(visits_after(labelled), 1);
}

#[test]
fn of_a_plugin_whose_grant_names_no_number_a_thousand_targets_are_in_flight() {
    let mut bench = crowd(1_200);
    bench.wire = usize::MAX;
    for _ in 0..100 {
        bench.settle(&mut waiting);
        bench.later(1);
    }
    assert_eq!(bench.memory.stored.durable.processing.len(), TARGETS_IN_FLIGHT as usize);
    bench.vanish("p0");
    for _ in 0..3 {
        bench.settle(&mut evict_and_wait);
        bench.later(1);
    }
    assert!(bench.memory.stored.durable.processing.contains(&(TARGETS_IN_FLIGHT)), "an end makes room for the next");
}

/// Stores an extra, and waits until the extra is durable.
fn storing(visit: &Visit) -> Answer {
    storing_as(visit, "Mode", "seen")
}

fn storing_as(visit: &Visit, key: &str, value: &str) -> Answer {
    if visit.call == Call::Release {
        return Answer::Proposed(Proposal::default());
    }
    let proposal = Proposal { set_extra: vec![(key.into(), value.into())], ..Proposal::default() };
    let report = Report { state: State::Processing, proposal, check_after_ms: None };
    Answer::Reported { operate: Proposal::default(), report }
}

#[test]
fn what_a_plugin_stores_is_durable_soon_since_its_next_visit_waits_for_that() {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut waiting);
    bench.touch_all();
    bench.settle(&mut storing);
    assert_eq!(bench.next, Some(after_millis(bench.now, 100)), "other changes of a status wait for a second");
}

/// Takes the first free pod of the controller once the target's own pod is gone.
fn take_one(visit: &Visit) -> Answer {
    if visit.call == Call::Release || visit.target.object.is_some() || visit.target.extras.contains_key("NewPod") {
        return evict_and_wait(visit);
    }
    let free = visit.reads.related("successors", false).unwrap();
    free.first().map_or_else(|| waiting(visit), |pod| storing_as(visit, "NewPod", &pod.key.name))
}

/// Returns a new pod of the controller of all targets.
fn new_pod(name: &str, made: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "d", "uid": name, "creationTimestamp": made, "resourceVersion": version,
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "CloneSet", "name": "s", "uid": "set", "controller": true}]}})
}

#[test]
fn a_pod_that_is_itself_a_target_in_flight_is_nobodys_new_pod_however_young_it_is() {
    let mut bench = crowd(2);
    bench.wire = usize::MAX;
    let pass = |bench: &mut Bench| {
        for _ in 0..3 {
            bench.settle(&mut take_one);
            bench.later(1);
        }
    };
    pass(&mut bench);
    bench.vanish("p0");
    pass(&mut bench);
    assert_eq!(bench.word(0), "Processing", "the eviction of p1 was accepted, and the cache does not show it yet");
    bench.show(new_pod("n0", &bench.now.to_string(), ""));
    pass(&mut bench);
    assert_eq!(bench.word(0), "Succeeded");
}

#[test]
fn of_pods_that_come_all_at_once_each_is_taken_by_a_target_that_waits_for_one() {
    let pass = |bench: &mut Bench| {
        for _ in 0..5 {
            bench.settle(&mut take_one);
            bench.later(1);
        }
    };
    let mut bench = crowd(100);
    bench.wire = usize::MAX;
    pass(&mut bench);
    (0..100).for_each(|index| bench.vanish(&format!("p{index}")));
    pass(&mut bench);
    for index in 0..100 {
        // Each new pod wakes the targets that have waited longest, which are the same targets for all new pods.
        bench.show(new_pod(&format!("n{index}"), &bench.now.to_string(), ""));
    }
    pass(&mut bench);
    assert_eq!(bench.memory.stored.durable.processing.len(), 0, "nothing else happens that would wake these");
}

#[test]
fn a_pod_that_comes_while_the_target_that_waits_for_it_is_visited_is_not_overlooked() {
    let mut bench = crowd(8);
    // The targets' own pods must be too old to count as new pods.
    bench.later(60);
    bench.wire = usize::MAX;
    bench.settle(&mut take_one);
    let store = bench.store.clone();
    let made = bench.now.to_string();
    let mut leaving = new_pod("p7", START, "");
    leaving["metadata"]["uid"] = json!("u-p7");
    leaving["metadata"]["deletionTimestamp"] = json!(made);
    bench.show(leaving);
    for _ in 0..5 {
        bench.settle(&mut take_one);
        bench.later(1);
    }
    bench.vanish("p7");
    bench.settle(&mut |visit: &Visit| {
        let answer = take_one(visit);
        // The new pod appears during the visit and never changes again. Its event wakes only targets whose own pod still exists, and these do not
        // want it.
        store.apply(Object::slim(&new_pod("n7", &made, "9999"), &Kind::pod(), &[]).unwrap());
        answer
    });
    for _ in 0..5 {
        bench.settle(&mut take_one);
        bench.later(1);
    }
    assert_eq!(bench.word(7), "Succeeded");
}

/// Refuses patches of the pod `first`.
struct RefusesFirst;

impl Weather for RefusesFirst {
    fn write(&mut self, write: &Write) -> Fate {
        match write.object().name.as_str() {
            "first" => Fate::Stopped(Stopped::Refused { message: "forbidden".into() }),
            _ => Fate::Done,
        }
    }
}

#[test]
fn a_refused_patch_of_one_pod_keeps_no_other_from_being_let_go() {
    let mut bench = Bench::of_one(&json!({}));
    bench.settle(&mut evict_and_wait);
    for name in ["first", "second", "third"] {
        // The pod is held by this job but is not its target.
        bench.show(json!({"metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"mark": "x", "oarlock.dev/held": "true"},
            "annotations": {format!("hold.oarlock.dev/{JOB_UID}"): "[\"label/mark\"]"}}}));
    }
    bench.weather = Box::new(RefusesFirst);
    bench.gone("a");
    bench.touch_all();
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    for _ in 0..120 {
        bench.settle(&mut evict_and_wait);
        bench.later(1);
    }
    assert!(bench.times("patch first") > 1);
    assert_eq!((bench.times("patch second"), bench.times("patch third")), (1, 1));
}
