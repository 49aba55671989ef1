//! Whole rounds against a cluster whose replies are lost, late or refused: what is recorded stays true, and no target is
//! held up for ever. Source: docs/operationjob.md 3.1.9, 3.7.7, 3.11, 3.15.6, S3, S6, S7.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly, its helpers too"
)]

#[path = "bench/bench.rs"]
mod bench;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use oarlock_core::cluster::object::{Object, ObjectKey};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::plugin::grant::WriteRule;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::proposal::{MetadataChange, Mutation, ObjectRef, Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::{Value, json};

use crate::bench::{Bench, Fate, Weather};

/// What becomes of writes, as a test says it.
#[derive(Clone, Default)]
struct Script(Rc<RefCell<Lines>>);

#[derive(Default)]
struct Lines {
    /// By verb and name of the object.
    writes: BTreeMap<(&'static str, &'static str), Fate>,
    /// The writes that were sent.
    sent: Vec<Write>,
}

impl Weather for Script {
    fn write(&mut self, write: &Write) -> Fate {
        let mut lines = self.0.borrow_mut();
        lines.sent.push(write.clone());
        lines.writes.get(&(write.verb(), write.object().name.as_str())).cloned().unwrap_or(Fate::Done)
    }
}

impl Script {
    /// A bench of one job with the target `a` and a deadline of 60 s.
    fn bench() -> (Bench, Self) {
        let mut spec = Bench::targets(&["a"]);
        spec["activeDeadlineSeconds"] = json!(60);
        let mut bench = Bench::new(spec);
        bench.pod("a", "1");
        let script = Self::default();
        bench.weather = Box::new(script.clone());
        (bench, script)
    }

    fn on(&self, verb: &'static str, name: &'static str, fate: Fate) {
        self.0.borrow_mut().writes.insert((verb, name), fate);
    }
}

fn refused() -> Fate {
    Fate::Stopped(Stopped::Refused { message: "a webhook says no".into() })
}

fn report(state: State) -> Answer {
    let report = Report { state, proposal: Proposal::default(), check_after_ms: None };
    Answer::Reported { operate: Proposal::default(), report }
}

fn itself(visit: &Visit) -> ObjectRef {
    ObjectRef { key: ObjectKey::pod("d", visit.target.name.clone()), uid: None }
}

/// A change of the target's metadata that sets this label and this finalizer, if any.
fn marking(visit: &Visit, label: Option<&str>, finalizer: Option<&str>) -> Mutation {
    Mutation::Metadata(MetadataChange {
        object: itself(visit),
        set_labels: label.iter().map(|label| ((*label).to_owned(), "true".to_owned())).collect(),
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: finalizer.iter().map(|name| (*name).to_owned()).collect(),
        remove_finalizers: vec![],
        keep: false,
    })
}

fn proposing(mutations: Vec<Mutation>) -> Answer {
    Answer::Proposed(Proposal { mutations, ..Proposal::default() })
}

fn pod(bench: &Bench) -> Arc<Object> {
    bench.store.get(&ObjectKey::pod("d", "a")).unwrap()
}

/// The plugin of all benches, with these writes beside its own.
fn plugin(more: &[Value]) -> PluginLookup {
    let found = bench::plugin();
    let mut plugin = PluginInfo::clone(found.serving().unwrap());
    let rules = more.iter().map(|rule| serde_json::from_value::<WriteRule>(rule.clone()).unwrap());
    for rules_of in [&mut plugin.manifest.writes, &mut plugin.grant.writes] {
        rules_of.extend(rules.clone());
    }
    PluginLookup::Serving(Arc::new(plugin))
}

/// Rounds as they become due, for so long.
fn run(bench: &mut Bench, seconds: i64, answer: &mut dyn FnMut(&Visit) -> Answer) {
    for _ in 0..seconds {
        bench.settle(answer);
        bench.later(1);
    }
}

/// Marks the target, and waits.
fn mark(visit: &Visit) -> Answer {
    let marked = visit.target.object.as_ref().is_some_and(|object| object.labels.contains_key("mark"));
    match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        Call::OperateThenProgress if !marked => proposing(vec![marking(visit, Some("mark"), Some("f.io/f"))]),
        _ => report(State::Processing),
    }
}

#[test]
fn a_release_that_is_refused_leaves_the_error_of_its_target_as_it_was_recorded() {
    let (mut bench, script) = Script::bench();
    run(&mut bench, 2, &mut mark);
    script.on("patch", "a", refused());
    run(&mut bench, 120, &mut mark);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"].get("Released"), None);
    script.on("patch", "a", Fate::Done);
    run(&mut bench, 70, &mut mark);
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
    assert_eq!(bench.ended, ["Failed/DeadlineExceeded"], "an outcome is counted once");
}

#[test]
fn an_outcome_of_an_earlier_term_is_not_counted_by_the_next() {
    let names: Vec<String> = (0..251).map(|number| format!("p{number}")).collect();
    let mut spec = Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>());
    spec["activeDeadlineSeconds"] = json!(60);
    spec["partition"] = json!(1);
    let mut bench = Bench::new(spec);
    bench.pod("p0", "1");
    let script = Script::default();
    bench.weather = Box::new(script.clone());
    run(&mut bench, 2, &mut mark);
    script.on("patch", "p0", refused());
    run(&mut bench, 70, &mut mark);
    assert_eq!(bench.ended, ["Failed/DeadlineExceeded"]);
    bench.crash();
    run(&mut bench, 10, &mut mark);
    assert_eq!(bench.ended.len(), 1, "its record takes the epoch of the new term, and nothing else");
}

#[test]
fn two_changes_of_one_pod_in_one_proposal_are_both_held_and_both_let_go() {
    type Marks = [(Option<&'static str>, Option<&'static str>); 2];
    let both: [Marks; 2] =
        [[(Some("mark"), None), (None, Some("f.io/f"))], [(None, Some("f.io/f")), (None, Some("f.io/g"))]];
    for marks in both {
        let (mut bench, _) = Script::bench();
        bench.found =
            plugin(&[json!({"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "finalizers": ["f.io/g"]})]);
        let mut twice = |visit: &Visit| {
            let held = visit.target.object.as_ref().is_some_and(|object| !object.annotations.is_empty());
            match visit.call {
                Call::Release => Answer::Proposed(Proposal::default()),
                Call::OperateThenProgress if !held => {
                    proposing(marks.map(|(label, finalizer)| marking(visit, label, finalizer)).into())
                }
                _ => report(State::Processing),
            }
        };
        run(&mut bench, 2, &mut twice);
        for (label, finalizer) in marks {
            assert!(label.is_none_or(|label| pod(&bench).labels.contains_key(label)), "{:?}", pod(&bench));
            assert!(finalizer.is_none_or(|name| pod(&bench).finalizers.iter().any(|one| one == name)));
        }
        run(&mut bench, 70, &mut twice);
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
        let left = pod(&bench);
        assert!(left.labels.is_empty() && left.annotations.is_empty() && left.finalizers.is_empty(), "{left:?}");
    }
}

#[test]
fn what_a_proposal_sets_and_takes_off_again_is_not_left() {
    let (mut bench, script) = Script::bench();
    let mut undo = |visit: &Visit| {
        if visit.call != Call::OperateThenProgress {
            return Answer::Proposed(Proposal::default());
        }
        let mut off = marking(visit, None, None);
        if let Mutation::Metadata(change) = &mut off {
            change.remove_labels.push("mark".into());
        }
        proposing(vec![marking(visit, Some("mark"), None), off])
    };
    run(&mut bench, 2, &mut undo);
    assert!(!script.0.borrow().sent.is_empty());
    assert!(pod(&bench).labels.is_empty() && pod(&bench).annotations.is_empty(), "{:?}", pod(&bench));
}
