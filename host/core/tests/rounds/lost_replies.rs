//! Whole rounds against a cluster whose replies are lost, late or refused: what is recorded stays true, and no target is
//! held up for ever. Source: docs/operationjob.md 3.1.9, 3.7.7, 3.11, 3.15.6, S3, S6, S7.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::{Kind, Object, ObjectKey};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::plugin::grant::WriteRule;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::proposal::{
    CallFailure, MetadataChange, Mutation, ObjectRef, PluginError, Proposal, Report, State,
};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use serde_json::{Value, json};

use crate::bench::{Bench, Fate, Look, START, Weather};

/// What becomes of writes and of live reads, as a test says it.
#[derive(Clone, Default)]
struct Script(Rc<RefCell<Lines>>);

#[derive(Default)]
struct Lines {
    /// By verb and name of the object.
    writes: BTreeMap<(&'static str, &'static str), Fate>,
    /// By name of the object.
    looks: BTreeMap<&'static str, Look>,
    /// The writes that were sent.
    sent: Vec<Write>,
    /// The live reads that were made of objects.
    looked: Vec<String>,
}

impl Weather for Script {
    fn write(&mut self, write: &Write) -> Fate {
        let mut lines = self.0.borrow_mut();
        lines.sent.push(write.clone());
        lines.writes.get(&(write.verb(), write.object().name.as_str())).cloned().unwrap_or(Fate::Done)
    }

    fn look(&mut self, read: &LiveRead) -> Look {
        let LiveRead::Object(key) = read else { return Look::Answered };
        let mut lines = self.0.borrow_mut();
        lines.looked.push(key.name.clone());
        lines.looks.get(key.name.as_str()).copied().unwrap_or(Look::Answered)
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

    fn look(&self, name: &'static str, look: Look) {
        self.0.borrow_mut().looks.insert(name, look);
    }

    /// The writes of this verb to this object.
    fn sent(&self, verb: &str, name: &str) -> Vec<Write> {
        let of = |write: &&Write| write.verb() == verb && write.object().name == name;
        self.0.borrow().sent.iter().filter(of).cloned().collect()
    }

    fn looked(&self, name: &str) -> usize {
        self.0.borrow().looked.iter().filter(|looked| *looked == name).count()
    }
}

fn refused() -> Fate {
    Fate::Stopped(Stopped::Refused { message: "a webhook says no".into() })
}

/// The request is under way, and no reply comes.
fn lost() -> Fate {
    Fate::Stopped(Stopped::Unknown { message: "timed out".into() })
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
    let found = crate::bench::plugin();
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

fn evicting(visit: &Visit) -> Mutation {
    Mutation::Evict { pod: itself(visit), grace_seconds: None }
}

fn widget() -> Kind {
    Kind::new("x.io/v1", "Widget")
}

/// The plugin of all benches, which may do these things with widgets and patch pods too.
fn plugin_with_widgets() -> PluginLookup {
    let rule = |verb: &str, kind: &Kind| json!({"verb": verb, "apiVersion": kind.api_version, "kind": kind.kind});
    let mut metadata = rule("metadata", &widget());
    metadata["labels"] = json!(["mark"]);
    plugin(&[metadata, rule("create", &widget()), rule("patch", &Kind::pod())])
}

fn create_widget() -> Mutation {
    Mutation::Create(json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w"}}))
}

/// A patch of the target that names no version.
fn unversioned(visit: &Visit) -> Mutation {
    Mutation::Patch { object: itself(visit), subresource: None, patch: json!({"spec": {"x": 1}}) }
}

/// Marks the widget `w`, whose version is a precondition.
fn mark_widget(visit: &Visit) -> Mutation {
    let mut mutation = marking(visit, Some("mark"), None);
    if let Mutation::Metadata(change) = &mut mutation {
        let key = ObjectKey { kind: widget(), namespace: Some("d".into()), name: "w".into() };
        change.object = ObjectRef { key, uid: None };
    }
    mutation
}

/// Proposes these mutations in one visit, `at` so many seconds after the first, and waits.
fn once(at: u64, mutations: impl Fn(&Visit) -> Vec<Mutation>) -> impl FnMut(&Visit) -> Answer {
    let (mut begin, mut proposed) = (None, false);
    move |visit: &Visit| {
        let since = visit.job.now_ms - *begin.get_or_insert(visit.job.now_ms);
        let now = visit.call == Call::OperateThenProgress && since >= at * 1_000;
        match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            _ if now && !std::mem::replace(&mut proposed, true) => proposing(mutations(visit)),
            _ => {
                let wait = (at * 1_000).saturating_sub(since).clamp(1_000, 60_000);
                let report = Report {
                    state: State::Processing,
                    proposal: Proposal::default(),
                    check_after_ms: Some(u32::try_from(wait).unwrap()),
                };
                Answer::Reported { operate: Proposal::default(), report }
            }
        }
    }
}

/// Seconds from now until the target has failed.
fn until_failed(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) -> i64 {
    for seconds in 0..200 {
        bench.settle(answer);
        if bench.word(0) == "Failed/DeadlineExceeded" {
            return seconds;
        }
        bench.later(1);
    }
    panic!("its time is long over: {:#?}", bench.memory);
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
fn a_lost_release_of_a_terminating_pod_is_looked_for_before_it_is_repeated() {
    let (mut bench, script) = Script::bench();
    let mut guard = once(0, |visit| vec![marking(visit, None, Some("f.io/f"))]);
    run(&mut bench, 2, &mut guard);
    let deleted = Some(bench.now + SignedDuration::from_secs(600));
    let resource_version = "99".to_owned();
    bench.store.apply(Object { deleted, grace_seconds: Some(600), resource_version, ..Object::clone(&pod(&bench)) });
    script.on("patch", "a", lost());
    let before = script.sent("patch", "a").len();
    run(&mut bench, 62, &mut guard);
    assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
    let released = script.sent("patch", "a").len();
    assert!(released > before && script.sent("patch", "a")[before].version().is_none());
    let looked = script.looked("a");
    run(&mut bench, 20, &mut guard);
    let (again, looks) = (script.sent("patch", "a").len() - released, script.looked("a") - looked);
    assert!(again > 0 && looks >= again, "{again} times, after {looks} looks");
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

/// Waits in the first term, and gives up with an eviction in the second.
fn give_up(visit: &Visit, second: bool) -> Answer {
    if visit.call == Call::Release {
        return Answer::Proposed(Proposal::default());
    }
    let error = PluginError { reason: "Broken".into(), message: "it is".into() };
    let gone = visit.target.object.as_ref().is_none_or(|object| object.terminating());
    let mutations = if second && !gone { vec![evicting(visit)] } else { vec![] };
    let proposal = Proposal { mutations, ..Proposal::default() };
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
    // The epoch, the bump, the outcome.
    assert_eq!(bench.sent[..4], ["status", "patch a", "status", "evict a"], "{:?}", bench.sent);
    assert_eq!(script.sent("evict", "a").len(), 1);
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
}

#[test]
fn what_is_proposed_with_a_failure_is_made_before_the_release_though_it_waits_for_its_turn() {
    let (mut bench, script) = Script::bench();
    bench.settle(&mut |visit| give_up(visit, false));
    bench.later(2);
    bench.wire = 0;
    bench.memory.turn_to(0);
    run(&mut bench, 3, &mut |visit| give_up(visit, true));
    assert_eq!(bench.word(0), "Failed/Broken");
    assert!(bench.queue.has_next(), "the eviction waits");
    bench.memory.turn_to(0);
    run(&mut bench, 3, &mut |visit| give_up(visit, true));
    assert!(bench.queue.has_next(), "no change of the pod takes it back");
    bench.wire = usize::MAX;
    bench.send();
    run(&mut bench, 3, &mut |visit| give_up(visit, true));
    assert_eq!(script.sent("evict", "a").len(), 1);
    assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"));
}

/// Marks the target, and needs a live read of `x`: in flight, or in this call alone.
fn looking(visit: &Visit, from: Call) -> Answer {
    let needs = visit.call == from || visit.call != Call::Release && from == Call::OperateThenProgress;
    if needs && visit.reads.get(&ObjectKey::pod("d", "x"), true).is_err() {
        let reason = "Unavailable".to_owned();
        return Answer::Failed(CallFailure { retryable: true, reason, message: "m".into(), retry_after_ms: None });
    }
    mark(visit)
}

#[test]
fn a_live_read_that_keeps_failing_is_the_error_of_its_target_until_it_is_answered() {
    for look in [Look::Refused, Look::Silent] {
        let (mut bench, script) = Script::bench();
        let mut answer = |visit: &Visit| looking(visit, Call::OperateThenProgress);
        script.look("x", look);
        run(&mut bench, 6, &mut answer);
        assert_eq!(bench.word(0), "Processing/GetObjectFailed");
        let written = bench.status_writes;
        run(&mut bench, 20, &mut answer);
        assert_eq!(bench.status_writes, written, "written once");
        script.look("x", Look::Answered);
        run(&mut bench, 6, &mut answer);
        assert_eq!((bench.word(0), pod(&bench).labels.len()), ("Processing".into(), 1));
        script.look("x", look);
        bench.memory.turn_to(0);
        run(&mut bench, 10, &mut answer);
        assert_eq!(bench.word(0), "Processing/GetObjectFailed");
        run(&mut bench, 100, &mut answer);
        let message = bench.status()["targetDetails"][0]["error"]["message"].as_str().unwrap().to_owned();
        assert!(bench.word(0) == "Failed/DeadlineExceeded" && message.contains("GetObjectFailed"), "{message}");
    }
}

#[test]
fn a_final_check_whose_live_reads_keep_failing_does_not_keep_its_target_for_ever() {
    for (name, call) in [("a", Call::Release), ("x", Call::Progress)] {
        let (mut bench, script) = Script::bench();
        run(&mut bench, 2, &mut mark);
        script.look(name, Look::Silent);
        let seconds = 2 + until_failed(&mut bench, &mut |visit| looking(visit, call));
        assert!((120..=130).contains(&seconds), "{name}: {seconds}");
    }
}

#[test]
fn a_bump_whose_live_read_keeps_failing_does_not_keep_its_target_for_ever() {
    let (mut bench, script) = Script::bench();
    script.on("evict", "a", lost());
    script.look("a", Look::Silent);
    let seconds = until_failed(&mut bench, &mut once(0, |visit| vec![evicting(visit)]));
    assert!((120..=130).contains(&seconds), "{seconds}");
}

#[test]
fn a_live_read_that_failed_long_ago_costs_no_target_its_final_look() {
    let (mut bench, script) = Script::bench();
    bench.job["spec"]["activeDeadlineSeconds"] = json!(120);
    script.on("evict", "a", lost());
    script.look("a", Look::Silent);
    let mut answer = once(0, |visit| vec![evicting(visit)]);
    run(&mut bench, 10, &mut answer);
    bench.version += 1;
    bench.store.apply(Object { resource_version: bench.version.to_string(), ..Object::clone(&pod(&bench)) });
    bench.memory.turn_to(0);
    script.look("a", Look::Answered);
    run(&mut bench, 109, &mut answer);
    let looked = script.looked("a");
    run(&mut bench, 4, &mut answer);
    assert_eq!((bench.word(0), script.looked("a")), ("Failed/DeadlineExceeded".into(), looked + 1));
}

#[test]
fn a_release_whose_live_reads_keep_failing_is_made_without_the_plugin() {
    for (name, look) in [("x", Look::Refused), ("x", Look::Silent), ("a", Look::Refused), ("a", Look::Silent)] {
        let (mut bench, script) = Script::bench();
        let call = if name == "x" { Call::Release } else { Call::Progress };
        let mut answer = |visit: &Visit| looking(visit, call);
        run(&mut bench, 2, &mut answer);
        script.on("patch", "a", refused());
        if name == "x" {
            script.look(name, look);
        }
        run(&mut bench, 62, &mut answer);
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
        if name == "a" {
            bench.crash();
            script.look(name, look);
        }
        script.on("patch", "a", Fate::Done);
        run(&mut bench, 90, &mut answer);
        assert_eq!(bench.status()["targetDetails"][0]["extraInfo"]["Released"], json!("true"), "{name} {look:?}");
        assert_eq!(bench.word(0), "Failed/DeadlineExceeded");
        assert!(pod(&bench).finalizers.is_empty() && pod(&bench).annotations.is_empty());
        let told = bench.told.iter().filter(|reason| *reason == "ReleaseTargetFailed").count();
        assert!(told >= 1, "{:?}", bench.told);
    }
}

#[test]
fn a_write_that_was_decided_before_the_deadline_and_lost_after_it_is_excluded_before_the_end_is_recorded() {
    let (mut bench, script) = Script::bench();
    bench.settle(&mut |_: &Visit| report(State::Processing));
    bench.now = START.parse::<Timestamp>().unwrap() + SignedDuration::from_millis(59_950);
    // Its record waits for its slot, which comes after the deadline.
    bench.memory.written = Some((bench.now, 0));
    bench.memory.turn_to(0);
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
