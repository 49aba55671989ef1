//! The four functions of the contract.

#![allow(unsafe_code, unreachable_pub, reason = "the generated exports, and the name of a section of the component")]

use crate::bindings::export_golden;
use crate::bindings::exports::oarlock::action::handler::{
    Deletion, Error, Event, Eviction, Failure, Guest, MergePatch, MetadataChange, Mutation, NodeDrain, NodeSchedulable,
    NodeTaint, ObjectRef, Propagation, Proposal, Registration, Relation, RelationKey, Report, Severity, State,
    TaskRequest,
};
use crate::bindings::oarlock::host::cluster::{Freshness, Object, ReadError, get, serves};
use crate::bindings::oarlock::host::config::value;
use crate::bindings::oarlock::host::jobs::{Job, Target};
use crate::bindings::oarlock::host::log::{Level, enabled, write};

struct Golden;

export_golden!(Golden with_types_in crate::bindings);

#[used]
#[unsafe(link_section = "oarlock.manifest")]
static SECTION: [u8; crate::MANIFEST.len()] = {
    let (text, mut bytes) = (crate::MANIFEST.as_bytes(), [0; crate::MANIFEST.len()]);
    bytes.copy_from_slice(text);
    bytes
};

impl Guest for Golden {
    fn setup() -> Result<Registration, Failure> {
        if value("/fail").is_some() {
            return Err(failure("Told", "It was told to fail.", false));
        }
        let relation = |name: &str, by| Relation {
            name: name.to_owned(),
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            by,
        };
        let mut relations = vec![
            relation("label", RelationKey::Label("golden.test/of".to_owned())),
            relation("extra", RelationKey::Extra("Chosen".to_owned())),
            relation("field", RelationKey::Field("/status/phase".to_owned())),
            relation("parameter", RelationKey::Parameter("/partner".to_owned())),
            relation("job", RelationKey::OwnerIsJob),
            relation("target", RelationKey::OwnerIsTarget),
            relation("controller", RelationKey::SameController),
        ];
        if value("/other").is_some() {
            relations.push(relation("other", RelationKey::Other(("unheard-of".to_owned(), "{}".to_owned()))));
        }
        Ok(Registration { relations, exclusive_extras: vec!["Chosen".to_owned()] })
    }

    fn operate(job: Job, target: Target) -> Result<Proposal, Failure> {
        let answer = job.parameter("/answer").map(|text| text.trim_matches('"').to_owned());
        let seen = read_all(&job, &target).map_err(|error| failure(&error.reason, &error.message, true))?;
        if enabled(Level::Info) {
            for level in [Level::Debug, Level::Info, Level::Warn, Level::Error] {
                write(level, "golden", &[("seen".to_owned(), seen.len().to_string())]);
            }
        }
        let mutations = answer.map(|answer| mutation(&answer, &job, &target)).into_iter().collect();
        let severity = if seen.is_empty() { Severity::Warning } else { Severity::Normal };
        let events = vec![Event { severity, reason: "Read".to_owned(), message: "All of it.".to_owned() }];
        Ok(Proposal { mutations, set_extra: seen, remove_extra: vec!["Gone".to_owned()], events })
    }

    fn progress(job: Job, _: Target) -> Result<Report, Failure> {
        let state = match job.parameter("/end").as_deref() {
            Some("\"Succeeded\"") => State::Succeeded,
            Some("\"Failed\"") => {
                State::Failed(Error { reason: "Told".to_owned(), message: "It was told to.".to_owned() })
            }
            _ => State::Processing,
        };
        Ok(Report { state, proposal: nothing(), check_after_ms: Some(1_000) })
    }

    fn release(_: Job, _: Target) -> Result<Proposal, Failure> {
        Err(Failure { retry_after_ms: Some(1), ..failure("NotYet", "It is not done.", true) })
    }
}

fn failure(reason: &str, message: &str, retryable: bool) -> Failure {
    Failure { retryable, reason: reason.to_owned(), message: message.to_owned(), retry_after_ms: None }
}

fn nothing() -> Proposal {
    Proposal { mutations: vec![], set_extra: vec![], remove_extra: vec![], events: vec![] }
}

/// Calls every function for reads. Returns the values.
fn read_all(job: &Job, target: &Target) -> Result<Vec<(String, String)>, ReadError> {
    let mut seen = vec![
        ("job".to_owned(), format!("{}/{} {} {}", job.namespace(), job.name(), job.uid(), job.action())),
        ("count".to_owned(), format!("{} {} {}", job.target_count(), job.cancelled(), job.now_ms())),
        ("target".to_owned(), format!("{} {} {} {:?}", target.name(), target.index(), target.kind(), target.uid())),
        ("try".to_owned(), format!("{} {}", target.attempt(), target.call_try())),
        ("times".to_owned(), format!("{} {:?}", target.started_ms(), target.deadline_ms())),
        ("extras".to_owned(), format!("{:?} {}", target.extra("Chosen"), target.extras().len())),
        ("rest".to_owned(), format!("{:?} {}", target.containers(), target.task("none").is_none())),
    ];
    if let Some(object) = target.object() {
        seen.push(("object".to_owned(), object_in_words(&object)?));
    }
    for relation in ["label", "extra", "field", "parameter", "job", "target", "controller"] {
        let found = target.related(relation, Freshness::Watched)?;
        seen.push((format!("by-{relation}"), found.len().to_string()));
    }
    let map = get("v1", "ConfigMap", Some(&job.namespace()), "colours", Freshness::Live)?;
    seen.push(("map".to_owned(), map.map(|map| map.name()).unwrap_or_default()));
    seen.push(("serves".to_owned(), serves("v1", "ConfigMap")?.to_string()));
    Ok(seen)
}

fn object_in_words(object: &Object) -> Result<String, ReadError> {
    let kind = format!("{} {} {:?}", object.api_version(), object.kind(), object.namespace());
    let named = format!("{} {} {}", object.name(), object.uid(), !object.resource_version().is_empty());
    let marks = format!("{:?} {:?}", object.label("app"), object.annotation("note"));
    let ends = format!("{} {:?}", object.has_finalizer("f"), object.deletion_time_ms());
    let fields = format!("{:?} {}", object.field("/status/phase")?, !object.json()?.is_empty());
    Ok([kind, named, marks, ends, fields].join("; "))
}

/// Returns the mutation with this name.
fn mutation(name: &str, job: &Job, target: &Target) -> Mutation {
    let namespace = Some(job.namespace());
    let object = |kind: &str, name: String, uid| ObjectRef {
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.clone(),
        name,
        uid,
    };
    let pod = object("Pod", target.name(), target.uid());
    let node = || "n1".to_owned();
    match name {
        "metadata" => Mutation::Metadata(MetadataChange {
            object: pod,
            set_labels: vec![("golden.test/a".to_owned(), "1".to_owned())],
            remove_labels: vec!["golden.test/b".to_owned()],
            set_annotations: vec![("golden.test/a".to_owned(), "1".to_owned())],
            remove_annotations: vec!["golden.test/b".to_owned()],
            add_finalizers: vec!["golden.test/a".to_owned()],
            remove_finalizers: vec!["golden.test/b".to_owned()],
            keep: false,
        }),
        "create" => {
            Mutation::Create(r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}"#.to_owned())
        }
        "patch" => Mutation::Patch(MergePatch {
            object: object("ConfigMap", "colours".to_owned(), None),
            subresource: None,
            patch: r#"{"data": {"a": "b"}}"#.to_owned(),
        }),
        "evict" => Mutation::Evict(Eviction { pod, grace_period_seconds: Some(5) }),
        "delete" => Mutation::Delete(Deletion {
            object: pod,
            grace_period_seconds: None,
            propagation: Some(Propagation::Foreground),
        }),
        "schedulable" => Mutation::Schedulable(NodeSchedulable { node: node(), schedulable: false }),
        "taint" => Mutation::Taint(NodeTaint {
            node: node(),
            key: "k".to_owned(),
            value: "v".to_owned(),
            effect: "NoSchedule".to_owned(),
            present: true,
        }),
        "drain" => Mutation::Drain(NodeDrain {
            node: node(),
            grace_period_seconds: None,
            delete_empty_dir_data: false,
            force: false,
        }),
        "task" => Mutation::Task(TaskRequest {
            name: "t".to_owned(),
            kind: "run-on-node".to_owned(),
            arguments: "{}".to_owned(),
        }),
        other => Mutation::Other((other.to_owned(), "{}".to_owned())),
    }
}
