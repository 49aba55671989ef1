//! Writes that are lost or conflict. The host observes their objects before it repeats the writes, and no target ends while a write may still take
//! effect.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::proposal::{Mutation, ObjectRef, Proposal, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::{BatchResult, Stopped};
use serde_json::json;

use crate::answers::{itself, proposing, report};
use crate::bench::JOB_UID;
use crate::bench::START;
use crate::bench::weather::{Fate, Look};
use crate::lost_replies::script::Script;
use crate::lost_replies::{evicting, lost, marking, once, plugin, until_failed};

fn widget() -> Kind {
    Kind::new("x.io/v1", "Widget")
}

/// Returns the usual plugin, which may also mark and create widgets and patch pods.
fn plugin_with_widgets() -> PluginLookup {
    let rule = |verb: &str, kind: &Kind| json!({"verb": verb, "apiVersion": kind.api_version, "kind": kind.kind});
    let mut metadata = rule("metadata", &widget());
    metadata["labels"] = json!(["mark"]);
    plugin(&[metadata, rule("create", &widget()), rule("patch", &Kind::pod())])
}

fn create_widget() -> Mutation {
    Mutation::Create(json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w"}}))
}

/// Returns a patch of the target that names no version.
fn unversioned(visit: &Visit) -> Mutation {
    Mutation::Patch { object: itself(visit), subresource: None, patch: json!({"spec": {"x": 1}}) }
}

/// Returns a change that marks the widget `w`. The widget's version is a precondition.
fn mark_widget(visit: &Visit) -> Mutation {
    let mut mutation = marking(visit, Some("mark"), None);
    if let Mutation::Metadata(change) = &mut mutation {
        let key = ObjectKey { kind: widget(), namespace: Some("d".into()), name: "w".into() };
        change.object = ObjectRef { key, uid: None };
    }
    mutation
}

#[test]
fn a_lost_eviction_after_a_patch_of_the_same_entry_is_looked_for_before_it_is_repeated() {
    for fate in [lost(), Fate::Stopped(Stopped::Conflict)] {
        let (mut bench, script) = Script::bench();
        let mut mark_and_evict = |visit: &Visit| match visit.call {
            Call::OperateThenProgress => proposing(vec![marking(visit, Some("mark"), Some("f.io/f")), evicting(visit)]),
            _ => report(State::Processing),
        };
        script.on("evict", "a", fate);
        bench.settle(&mut mark_and_evict);
        let looked = script.looked("a");
        for _ in 0..20 {
            bench.now += SignedDuration::from_millis(200);
            bench.settle(&mut mark_and_evict);
            let evictions = script.sent("evict", "a").len();
            assert!(evictions == 1 || script.looked("a") > looked, "repeated on the view that it was decided on");
        }
        assert!(script.looked("a") > looked && script.sent("evict", "a").len() > 1, "and it is repeated");
    }
}

#[test]
fn an_eviction_that_was_lost_after_a_patch_of_the_same_entry_fails_once_the_end_is_recorded() {
    let (mut bench, script) = Script::bench();
    script.on("evict", "a", lost());
    let mut answer = once(0, |visit| vec![marking(visit, Some("mark"), None), evicting(visit)]);
    let seconds = until_failed(&mut bench, &mut answer);
    assert!((60..=62).contains(&seconds), "{seconds}");
    assert_eq!(bench.accept(&script.sent("evict", "a")[0]), Some(Stopped::Conflict));
}

#[test]
fn a_lost_write_that_names_no_version_is_waited_for_and_erases_no_other() {
    type Proposes = fn(&Visit) -> Mutation;
    let unversioned: [(&str, &str, Proposes); 2] = [("patch", "a", unversioned), ("create", "w", |_| create_widget())];
    for (verb, name, mutation) in unversioned {
        let (mut bench, script) = Script::bench();
        bench.found = plugin_with_widgets();
        script.on("evict", "a", lost());
        script.on(verb, name, lost());
        let mut evict = once(0, |visit| vec![evicting(visit)]);
        let mut later = once(50, move |visit| vec![mutation(visit)]);
        let mut answer = move |visit: &Visit| match evict(visit) {
            Answer::Reported { .. } => later(visit),
            other => other,
        };
        for _ in 0..58 {
            bench.settle(&mut answer);
            bench.later(1);
        }
        let sent = script.sent(verb, name);
        assert_eq!(sent.len(), 1, "the plugin has proposed it");
        script.on(verb, name, Fate::Done);
        let seconds = 58 + until_failed(&mut bench, &mut answer);
        assert!((115..=120).contains(&seconds), "{verb}: 65 s after it was lost, {seconds}");
        assert_eq!(bench.accept(&script.sent("evict", "a")[0]), Some(Stopped::Conflict), "{verb}");
    }
}

#[test]
fn a_lost_write_to_another_object_is_waited_for_unless_that_has_changed() {
    for moved in [false, true] {
        let (mut bench, script) = Script::bench();
        bench.found = plugin_with_widgets();
        bench.other(&widget(), "w");
        script.on("patch", "w", lost());
        let mut answer = once(50, |visit| vec![mark_widget(visit)]);
        for _ in 0..58 {
            bench.settle(&mut answer);
            bench.later(1);
        }
        assert_eq!(script.sent("patch", "w").len(), 1);
        if moved {
            bench.other(&widget(), "w");
        }
        let seconds = 58 + until_failed(&mut bench, &mut answer);
        let expected = if moved { 60..=62 } else { 115..=118 };
        assert!(expected.contains(&seconds), "moved {moved}: {seconds}");
    }
}

#[test]
fn a_lost_write_without_a_version_is_not_waited_for_once_its_pod_is_gone() {
    let (mut bench, script) = Script::bench();
    bench.found = plugin_with_widgets();
    script.on("patch", "a", lost());
    let mut answer = once(50, |visit| vec![unversioned(visit)]);
    for _ in 0..58 {
        bench.settle(&mut answer);
        bench.later(1);
    }
    assert_eq!(script.sent("patch", "a").iter().filter(|write| write.version().is_none()).count(), 1);
    bench.gone("a");
    bench.requeue(0);
    let seconds = 58 + until_failed(&mut bench, &mut answer);
    assert!((60..=62).contains(&seconds), "{seconds}");
}

#[test]
fn a_conflict_on_another_object_brings_the_next_visit_soon_and_not_at_once() {
    for stopped in [Stopped::Conflict, Stopped::Gone] {
        let (mut bench, script) = Script::bench();
        bench.found = plugin_with_widgets();
        bench.other(&widget(), "w");
        script.on("patch", "w", Fate::Stopped(stopped));
        let mut mark = |visit: &Visit| match visit.call {
            Call::OperateThenProgress => proposing(vec![mark_widget(visit)]),
            _ => report(State::Processing),
        };
        bench.settle(&mut mark);
        assert_eq!(script.sent("patch", "w").len(), 1, "on the same view");
        bench.later(1);
        bench.settle(&mut mark);
        assert_eq!(script.sent("patch", "w").len(), 2);
        for _ in 0..60 {
            bench.later(1);
            bench.settle(&mut mark);
        }
        assert!(script.sent("patch", "w").len() < 20, "less and less often");
    }
}

#[test]
fn a_bump_that_is_never_answered_does_not_keep_its_target_for_ever() {
    let (mut bench, script) = Script::bench();
    for verb in ["evict", "patch"] {
        script.on(verb, "a", lost());
    }
    let mut answer = once(0, |visit| vec![evicting(visit)]);
    let seconds = until_failed(&mut bench, &mut answer);
    assert!((125..=127).contains(&seconds), "once the eviction is too late: {seconds}");
}

#[test]
fn a_write_that_was_decided_before_the_deadline_and_lost_after_it_is_excluded_before_the_end_is_recorded() {
    let (mut bench, script) = Script::bench();
    bench.settle(&mut |_: &Visit| report(State::Processing));
    bench.now = START.parse::<Timestamp>().unwrap() + SignedDuration::from_millis(59_950);
    // The record waits for its rate limit, which allows it after the deadline.
    bench.memory.reports.written = Some((bench.now, 0));
    bench.requeue(0);
    bench.round(&mut |visit: &Visit| {
        let set_extra = vec![("Mode".to_owned(), "Evict".to_owned())];
        Answer::Proposed(Proposal { mutations: vec![evicting(visit)], set_extra, ..Proposal::default() })
    });
    script.on("evict", "a", lost());
    script.look("a", Look::Silent);
    for _ in 0..20 {
        bench.now += SignedDuration::from_millis(10);
        bench.settle(&mut |_: &Visit| report(State::Processing));
    }
    let [eviction] = script.sent("evict", "a").try_into().unwrap();
    script.look("a", Look::Answered);
    let seconds = until_failed(&mut bench, &mut |_: &Visit| report(State::Processing));
    assert!(seconds < 10, "{seconds}");
    assert_eq!(bench.accept(&eviction), Some(Stopped::Conflict));
}

#[test]
fn a_write_under_way_is_not_forgotten_where_somebody_raises_the_epoch_of_the_status() {
    let (mut bench, script) = Script::bench();
    bench.wire = 0;
    let mut answer = once(0, |visit| vec![evicting(visit)]);
    bench.settle(&mut answer);
    let entry = bench.queue.take_next(|_| true).unwrap();
    bench.job["status"]["epoch"] = json!(50);
    bench.moved();
    bench.settle(&mut answer);
    bench.wire = usize::MAX;
    bench.queue.finished(JOB_UID, entry.index);
    let stopped = Some(Stopped::Unknown { message: "timed out".into() });
    let late = entry.writes[0].clone();
    bench.memory.work.results.push(BatchResult { entry, sent: Some(bench.now), at: bench.now, done: 0, stopped });
    let seconds = until_failed(&mut bench, &mut answer);
    assert!((60..=62).contains(&seconds), "{seconds}");
    assert_eq!(bench.accept(&late), Some(Stopped::Conflict), "{:?}", script.sent("patch", "a"));
}
