//! Requests of a plugin other than writes: a pod to claim, live reads of other objects, and extras to store.

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::plugin::proposal::{Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Visit};

use crate::answers::{evict_and_wait, report, unavailable};
use crate::bench::Bench;

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
    bench.requeue(0);
    bench.round(&mut note);
    for _ in 0..5 {
        bench.requeue(1);
        bench.round(&mut note);
    }
    bench.later(2);
    bench.settle(&mut note);
    let times = |name: &str| visits.iter().filter(|visited| *visited == name).count();
    assert_eq!((times("a"), times("b")), (2, 5), "once to decide it, once when it is durable");
}

#[test]
fn what_operate_and_progress_store_in_one_visit_is_bounded_together() {
    let mut bench = Bench::new(Bench::targets(&["a"]));
    bench.pod("a", "1");
    let storing = |key: &str| Proposal { set_extra: vec![(key.to_owned(), "x".repeat(600))], ..Proposal::default() };
    bench.settle(&mut |_| Answer::Reported {
        operate: storing("one"),
        report: Report { state: State::Processing, proposal: storing("two"), check_after_ms: None },
    });
    bench.later(2);
    bench.settle(&mut evict_and_wait);
    assert_eq!(bench.word(0), "Failed/MutationDenied");
}
