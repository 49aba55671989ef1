//! How targets and jobs end: in success, in failure, at a deadline, or because the job is deleted.

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::plugin::proposal::{Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Trap, Visit};
use oarlock_core::requests::live_reads::LiveRead;
use serde_json::json;

use crate::answers::{evict_and_wait, marking, report, waiting};
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
    assert_eq!(bench.event_reasons, ["Completed"]);
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
    assert!(!bench.event_reasons.contains(&"TTL".to_owned()), "it is told once it is true");
    bench.round(&mut evict_and_wait);
    assert!(bench.event_reasons.contains(&"TTL".to_owned()));
}

#[test]
fn a_target_that_was_never_there_is_looked_at_before_it_fails() {
    let mut bench = Bench::new(Bench::targets(&["nobody"]));
    bench.round(&mut evict_and_wait);
    assert_eq!(
        bench.memory.work.all_reads(&bench.memory.decisions.selecting),
        [LiveRead::Object(ObjectKey::pod("d", "nobody"))]
    );
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.word(0), "Failed/PodNotFound");
    assert_eq!(bench.status()["targetDetails"][0]["startTime"], bench.status()["targetDetails"][0]["endTime"]);
    assert_eq!(bench.status()["plugin"], json!(null));
    assert!(!bench.sent.contains(&"finalizer".to_owned()));
}

#[test]
fn a_target_in_flight_fails_at_its_deadline_and_no_earlier() {
    let mut bench = Bench::of_one(&json!({"activeDeadlineSeconds": 30}));
    bench.settle(&mut waiting);
    bench.later(29);
    bench.settle(&mut waiting);
    assert_eq!(bench.word(0), "Processing");
    for _ in 0..3 {
        bench.later(2);
        bench.settle(&mut waiting);
    }
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
}

#[test]
fn a_delay_that_outlasts_the_deadline_is_named_in_the_error() {
    let mut bench = Bench::of_one(&json!({"operationDelaySeconds": 100, "activeDeadlineSeconds": 3}));
    for _ in 0..5 {
        bench.settle(&mut waiting);
        bench.later(2);
    }
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
    let error = bench.memory.stored.state.targets[0].error.as_ref().unwrap();
    assert!(error.message.contains("(operationDelaySeconds, 100 s, is no shorter)"), "{}", error.message);
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
