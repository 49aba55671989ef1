//! Changes of objects that no watch shows. A plugin reads such an object with `get`, and changes what it has read. Source: docs/operationjob.md 3.7.

use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::proposal::{MetadataChange, Mutation, ObjectRef, PluginError, Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::Write;
use serde_json::{Value, json};

use crate::answers::{proposing, report, unavailable, waiting};
use crate::bench::plugin::plugin_that_changes;
use crate::bench::weather::{Fate, Weather};
use crate::bench::{Bench, JOB_UID};

fn key() -> ObjectKey {
    ObjectKey { kind: Kind::new("x.io/v1", "Widget"), namespace: Some("d".into()), name: "w".into() }
}

/// Returns a bench with a job of one target, and a widget that belongs to the job of this UID.
fn bench(owner: &str) -> Bench {
    let mut bench = Bench::of_one(&json!({}));
    bench.found = plugin_that_changes(&key().kind);
    let document = json!({"metadata": {"name": "w", "namespace": "d", "uid": "widget", "resourceVersion": "7",
        "ownerReferences": [{"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": owner,
            "uid": owner, "controller": true}]}});
    let widget = Object::slim(&document, &key().kind, &[]).unwrap();
    bench.unwatched.insert(key(), Arc::new(widget));
    bench.settle(&mut waiting);
    bench.later(2);
    bench.touch_all();
    bench
}

/// Returns every change that a plugin can make to an object, with the verb of its write.
fn changes() -> Vec<(&'static str, Mutation)> {
    let object = || ObjectRef { key: key(), uid: Some("widget".into()) };
    let patch = |subresource: Option<&str>| Mutation::Patch {
        object: object(),
        subresource: subresource.map(str::to_owned),
        patch: json!({"spec": {"x": 1}}),
    };
    let metadata = Mutation::Metadata(MetadataChange {
        object: object(),
        set_labels: vec![("mark".into(), "true".into())],
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: vec![],
        remove_finalizers: vec![],
        keep: true,
    });
    let delete = Mutation::Delete { object: object(), grace_seconds: None, propagation: None };
    vec![("patch", patch(None)), ("patch", patch(Some("status"))), ("patch", metadata), ("delete", delete)]
}

/// Answers as a plugin that reads the widget, then proposes this change of it.
fn reading(visit: &Visit, change: &Mutation) -> Answer {
    match (visit.call, visit.reads.get(&key(), false)) {
        (Call::Release, _) => Answer::Proposed(Proposal::default()),
        (_, Err(_)) => unavailable(),
        (_, Ok(_)) => proposing(vec![change.clone()]),
    }
}

fn message(bench: &Bench) -> String {
    bench.status()["targetDetails"][0]["error"]["message"].to_string()
}

#[test]
fn what_a_plugin_has_not_read_it_does_not_change() {
    for (verb, change) in changes() {
        let mut bench = bench(JOB_UID);
        bench.settle(&mut |visit: &Visit| match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            _ => proposing(vec![change.clone()]),
        });
        bench.later(2);
        bench.settle(&mut waiting);
        assert_eq!(bench.word(0), "Failed/MutationDenied", "{change:?}");
        assert!(message(&bench).contains("read it with `get` first"), "{}", message(&bench));
        assert_eq!(bench.times(&format!("{verb} w")), 0);
    }
}

#[test]
fn an_object_of_another_job_that_only_a_live_read_shows_is_not_changed() {
    for (verb, change) in changes() {
        let mut bench = bench("other-job");
        bench.settle(&mut |visit: &Visit| reading(visit, &change));
        bench.later(2);
        bench.settle(&mut waiting);
        assert_eq!(bench.word(0), "Failed/MutationDenied", "{change:?}");
        assert!(message(&bench).contains("it belongs to job other-job"), "{}", message(&bench));
        assert_eq!(bench.times(&format!("{verb} w")), 0);
    }
}

/// Records the writes to the widget.
struct Kept(std::sync::mpsc::Sender<Write>);

impl Weather for Kept {
    fn write(&mut self, write: &Write) -> Fate {
        if *write.object() == key() {
            self.0.send(write.clone()).unwrap();
        }
        Fate::Done
    }
}

#[test]
fn an_object_that_only_a_live_read_shows_is_changed_and_deleted_under_the_uid_that_it_showed() {
    for (verb, change) in changes() {
        let mut bench = bench(JOB_UID);
        let (sender, sent) = std::sync::mpsc::channel();
        bench.weather = Box::new(Kept(sender));
        let mut changed = false;
        bench.settle(&mut |visit: &Visit| {
            let answer = reading(visit, &change);
            let proposes = matches!(&answer, Answer::Proposed(proposal) if !proposal.mutations.is_empty());
            if proposes && std::mem::replace(&mut changed, true) { report(State::Processing) } else { answer }
        });
        let sent: Vec<Write> = sent.try_iter().collect();
        let [write] = sent.as_slice() else { panic!("{change:?}: {sent:?}, {}", bench.word(0)) };
        assert_eq!((write.verb(), write.uid()), (verb, Some("widget")));
        if let Mutation::Patch { subresource: Some(_), .. } = change {
            assert_eq!(write.version(), Some("7"), "no API server checks the UID in a patch of a subresource");
        }
    }
}

#[test]
fn an_object_that_a_live_read_did_not_find_counts_as_changed_and_deleted() {
    for (_, change) in changes() {
        let mut bench = bench(JOB_UID);
        bench.unwatched.clear();
        bench.sent.clear();
        bench.settle(&mut |visit: &Visit| reading(visit, &change));
        bench.later(2);
        bench.settle(&mut waiting);
        assert_eq!((bench.word(0), bench.sent.clone()), ("Processing".into(), Vec::<String>::new()), "{change:?}");
    }
}

#[test]
fn a_namesake_of_the_object_that_a_plugin_means_is_not_changed() {
    for (verb, change) in changes() {
        let mut bench = bench(JOB_UID);
        let later = Object { uid: "later".into(), ..Object::clone(&bench.unwatched[&key()]) };
        bench.unwatched.insert(key(), Arc::new(later));
        bench.settle(&mut |visit: &Visit| reading(visit, &change));
        assert_eq!(bench.times(&format!("{verb} w")), 0, "{change:?}");
    }
}

#[test]
fn what_is_proposed_with_a_failure_is_made_of_an_object_that_only_a_live_read_shows() {
    for (verb, change) in changes() {
        let mut bench = bench(JOB_UID);
        // In a later term the end waits for an invalidation, and follows some rounds later.
        bench.crash();
        bench.settle(&mut |visit: &Visit| match (visit.call, visit.reads.get(&key(), false)) {
            (Call::Release, _) => Answer::Proposed(Proposal::default()),
            (_, Err(_)) => unavailable(),
            _ => {
                let proposal = Proposal { mutations: vec![change.clone()], ..Proposal::default() };
                let error = PluginError { reason: "Broken".into(), message: "it is".into() };
                let report = Report { state: State::Failed(error), proposal, check_after_ms: None };
                Answer::Reported { operate: Proposal::default(), report }
            }
        });
        bench.later(2);
        bench.settle(&mut waiting);
        assert_eq!((bench.word(0), bench.times(&format!("{verb} w"))), ("Failed/Broken".into(), 1), "{change:?}");
    }
}

#[test]
fn an_object_that_the_job_has_made_is_not_made_again_once_a_live_read_shows_it() {
    let mut bench = bench(JOB_UID);
    let body: Value = json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": "w"}});
    bench.settle(&mut |visit: &Visit| reading(visit, &Mutation::Create(body.clone())));
    assert_eq!(bench.times("create w"), 0);
}
