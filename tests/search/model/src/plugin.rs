//! The plugin of all scenarios, as a closure. It evicts its target, or marks and guards it, and waits for the new pod.

use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::proposal::{
    CallFailure, MetadataChange, Mutation, ObjectRef, PluginError, Proposal, Registration, Relation, RelationKey,
    Report, State,
};
use oarlock_core::plugin::visit::{Answer, Call, ReadRefusal, Visit};
use serde_json::json;

use crate::scenario::{GUARD, MARK, NAMESPACE, ORIGIN, Way};

/// The extra with the name of the new pod.
pub const NEW_POD: &str = "NewPod";

/// Returns the plugin, served and granted.
pub fn lookup() -> PluginLookup {
    let read = json!({"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"]});
    let evict = json!({"verb": "evict", "apiVersion": "v1", "kind": "Pod"});
    let mark = json!({"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": [MARK], "finalizers": [GUARD]});
    let asked = |mut rule: serde_json::Value| {
        rule["reason"] = json!("r");
        rule
    };
    let manifest = json!({"schema": 1, "name": "replace", "version": "0.1.0", "action": "Replace", "target": ["Pod"],
        "reads": [asked(read.clone())], "writes": [asked(evict.clone()), asked(mark.clone())],
        "parameters": {"type": "object", "additionalProperties": false}});
    let grant = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "replace"},
        "spec": {"anyVersion": true, "namespaces": ["*"], "reads": [read], "writes": [evict, mark]}});
    let relation = |name: &str, by| Relation { name: name.into(), kind: Kind::pod(), by };
    let relations = vec![
        relation("successors", RelationKey::SameController),
        relation("partners", RelationKey::Label(ORIGIN.into())),
    ];
    PluginLookup::Serving(Arc::new(PluginInfo {
        manifest: Manifest::parse(manifest.to_string().as_bytes()).unwrap(),
        grant: Grant::parse(&grant).unwrap(),
        registration: Registration { relations, exclusive_extras: vec![NEW_POD.into()] },
        digest: "sha256:1".into(),
    }))
}

/// Returns the answer of one visit. `way` stands for the plugin's parameters.
pub fn answer(way: Way, visit: &Visit) -> Answer {
    match (way, visit.call) {
        (_, Call::Release) => Answer::Proposed(Proposal::default()),
        (Way::Evicted | Way::EvictedUnderItsName, call) => evicts(call, visit),
        (Way::Marked, call) => marks(call, visit),
    }
}

fn evicts(call: Call, visit: &Visit) -> Answer {
    match &visit.target.object {
        Some(object) if call == Call::OperateThenProgress && !object.terminating() => {
            proposed(Mutation::Evict { pod: itself(visit), grace_seconds: None })
        }
        Some(_) => report(State::Processing, None),
        None => {
            let found = match visit.target.extras.get(NEW_POD) {
                Some(name) => named(visit, name),
                None => {
                    let found = visit.reads.related("successors", false);
                    found.map(|found| found.into_iter().find(|pod| !pod.terminating()))
                }
            };
            settle(found)
        }
    }
}

fn marks(call: Call, visit: &Visit) -> Answer {
    let known = visit.target.extras.get(NEW_POD);
    let partner = |live| visit.reads.related("partners", live).map(|found| found.into_iter().next());
    match &visit.target.object {
        Some(object) => {
            let marked = object.labels.contains_key(MARK);
            if call == Call::OperateThenProgress && !marked && !object.terminating() {
                return proposed(change(visit, |change| {
                    change.set_labels.push((MARK.into(), "true".into()));
                    change.add_finalizers.push(GUARD.into());
                }));
            }
            if object.terminating() && known.is_some() && object.finalizers.iter().any(|name| name == GUARD) {
                let mutations = vec![change(visit, |change| change.remove_finalizers.push(GUARD.into()))];
                let proposal = Proposal { mutations, ..Proposal::default() };
                let report = Report { state: State::Processing, proposal, check_after_ms: None };
                return Answer::Reported { operate: Proposal::default(), report };
            }
            match partner(false) {
                Ok(Some(pod)) if known != Some(&pod.key.name) => report(State::Processing, Some(pod.key.name.clone())),
                _ => report(State::Processing, None),
            }
        }
        None => match (known, partner(known.is_none())) {
            (Some(name), _) => settle(named(visit, name)),
            (None, Ok(None)) => {
                let error = PluginError { reason: "PodNotFound".into(), message: "it is gone".into() };
                report(State::Failed(error), None)
            }
            (None, found) => settle(found),
        },
    }
}

/// Returns the report once the target's pod is gone.
fn settle(found: Result<Option<Arc<Object>>, ReadRefusal>) -> Answer {
    let Ok(found) = found else {
        let (reason, message) = ("Unavailable".to_owned(), "a live read is needed".to_owned());
        return Answer::Failed(CallFailure { retryable: true, reason, message, retry_after_ms: None });
    };
    match found {
        Some(pod) if pod.available && !pod.terminating() => report(State::Succeeded, Some(pod.key.name.clone())),
        Some(pod) => report(State::Processing, Some(pod.key.name.clone())),
        None => report(State::Processing, None),
    }
}

fn named(visit: &Visit, name: &str) -> Result<Option<Arc<Object>>, ReadRefusal> {
    visit.reads.get(&ObjectKey::pod(NAMESPACE, name), false)
}

fn itself(visit: &Visit) -> ObjectRef {
    ObjectRef { key: ObjectKey::pod(NAMESPACE, visit.target.name.clone()), uid: None }
}

fn change(visit: &Visit, with: impl FnOnce(&mut MetadataChange)) -> Mutation {
    let mut change = MetadataChange {
        object: itself(visit),
        set_labels: vec![],
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: vec![],
        remove_finalizers: vec![],
        keep: false,
    };
    with(&mut change);
    Mutation::Metadata(change)
}

fn proposed(mutation: Mutation) -> Answer {
    Answer::Proposed(Proposal { mutations: vec![mutation], ..Proposal::default() })
}

fn report(state: State, new_pod: Option<String>) -> Answer {
    let set_extra = new_pod.into_iter().map(|name| (NEW_POD.to_owned(), name)).collect();
    let proposal = Proposal { set_extra, ..Proposal::default() };
    Answer::Reported { operate: Proposal::default(), report: Report { state, proposal, check_after_ms: None } }
}
