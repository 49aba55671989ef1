//! Mutations that a plugin proposes together with a failure. The host applies them after the record of the failure and before the release.

use oarlock_core::plugin::proposal::{PluginError, Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::Stopped;
use serde_json::json;

use crate::bench::weather::Fate;
use crate::lost_replies::script::Script;
use crate::lost_replies::{evicting, lost, pod, refused, run};

/// Waits in the first term, and fails with an eviction in the second term.
fn give_up(visit: &Visit, second: bool) -> Answer {
    if visit.call == Call::Release {
        return Answer::Proposed(Proposal::default());
    }
    let error = PluginError { reason: "Broken".into(), message: "it is".into() };
    let gone = visit.target.object.as_ref().is_none_or(|object| object.terminating());
    let mutations = if second && !gone { vec![evicting(visit)] } else { vec![] };
    let set_extra = if second { vec![("found".to_owned(), "it".to_owned())] } else { vec![] };
    let proposal = Proposal { mutations, set_extra, ..Proposal::default() };
    let state = if second { State::Failed(error) } else { State::Processing };
    Answer::Reported { operate: Proposal::default(), report: Report { state, proposal, check_after_ms: None } }
}

#[test]
fn what_is_proposed_with_a_failure_follows_its_record_also_in_a_later_term() {
    let (mut bench, script) = Script::bench();
    run(&mut bench, 2, &mut |visit| give_up(visit, false));
    bench.crash();
    bench.sent.clear();
    run(&mut bench, 5, &mut |visit| give_up(visit, true));
    assert_eq!(bench.word(0), "Failed/Broken");
    // The epoch, the invalidation, the outcome.
    assert_eq!(bench.sent[..4], ["status", "patch a", "status", "evict a"], "{:?}", bench.sent);
    assert_eq!(script.sent("evict", "a").len(), 1);
    let extras = &bench.status()["targetDetails"][0]["extraInfo"];
    assert_eq!((&extras["Released"], &extras["found"]), (&json!("true"), &json!("it")));
    assert_eq!(bench.status()["epoch"], json!(2));
    assert!(pod(&bench).annotations.is_empty(), "the version bump is gone with the release");
}

#[test]
fn what_is_proposed_with_a_failure_is_made_before_the_release_though_it_waits_for_its_turn() {
    let (mut bench, script) = Script::bench();
    bench.settle(&mut |visit| give_up(visit, false));
    bench.later(2);
    bench.wire = 0;
    bench.requeue(0);
    run(&mut bench, 3, &mut |visit| give_up(visit, true));
    assert_eq!(bench.word(0), "Failed/Broken");
    assert!(bench.queue.has_next(|_| true), "the eviction waits");
    bench.requeue(0);
    run(&mut bench, 3, &mut |visit| give_up(visit, true));
    assert!(bench.queue.has_next(|_| true), "no change of the pod takes it back");
    bench.wire = usize::MAX;
    bench.send();
    run(&mut bench, 3, &mut |visit| give_up(visit, true));
    assert_eq!(script.sent("evict", "a").len(), 1);
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
}

#[test]
fn a_write_that_is_not_made_though_it_was_proposed_with_a_failure_is_told_of_once() {
    for fate in
        [lost(), refused(), Fate::Stopped(Stopped::Throttled { retry_after: None }), Fate::Stopped(Stopped::Conflict)]
    {
        let (mut bench, script) = Script::bench();
        run(&mut bench, 2, &mut |visit| give_up(visit, false));
        script.on("evict", "a", fate);
        bench.requeue(0);
        run(&mut bench, 100, &mut |visit| give_up(visit, true));
        assert_eq!(bench.word(0), "Failed/Broken");
        let told = bench.event_reasons.iter().filter(|reason| *reason == "UpdateObjectFailed").count();
        assert_eq!((script.sent("evict", "a").len(), told), (1, 1), "{:?}", bench.event_reasons);
        assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
    }
}
