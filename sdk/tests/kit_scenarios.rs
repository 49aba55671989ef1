//! Plays the scenarios that the kits of all languages share, so that each kit refuses the same deeds with the same words.

#![cfg(test)]

use std::cell::RefCell;

use oarlock_sdk::kit::{Visit, object, pod};
use oarlock_sdk::{
    Action, Change, Freshness, Job, Object, ObjectRef, Proposal, Report, Result, Target, Value, export, get, json,
};

thread_local! {
    /// The scenario of the current call, and the fields that the plugin has read.
    static SCENARIO: RefCell<(Value, Vec<Value>)> = const { RefCell::new((Value::Null, Vec::new())) };
}

struct Strange;

impl Action for Strange {
    fn operate(_: &Job, target: &Target) -> Result<Proposal> {
        let scenario = SCENARIO.with_borrow(|(scenario, _)| scenario.clone());
        let Some(pod) = target.object() else { return Ok(Proposal::new()) };
        (0..scenario["calls"].as_u64().unwrap_or(0)).for_each(|_| drop(pod.name()));
        if let Some(kind) = scenario["get"].as_str() {
            get(&ObjectRef::new("x.io/v1", kind, Some("default".to_owned()), "w"), Freshness::Watched)?;
        }
        if let Some(relation) = scenario["related"].as_str() {
            target.related(relation, Freshness::Watched)?;
        }
        if let Some(pointer) = scenario["field"].as_str() {
            let read: Option<Value> = pod.field(pointer)?;
            SCENARIO.with_borrow_mut(|(_, seen)| seen.extend(read));
        }
        let times = scenario["times"].as_u64().unwrap_or(1);
        Ok((0..times).fold(Proposal::new(), |proposal, _| changes(&scenario, &pod, proposal)))
    }

    fn progress(_: &Job, _: &Target) -> Result<Report> {
        Ok(Report::succeeded())
    }
}

export!(Strange, manifest = include_str!("../kit-scenarios.manifest.json"));

fn widget(of: &Value) -> ObjectRef {
    let namespace = of["namespace"].as_str().unwrap_or("default");
    ObjectRef::new("x.io/v1", "Widget", Some(namespace.to_owned()), "w")
}

fn changes(scenario: &Value, pod: &Object, proposal: Proposal) -> Proposal {
    let text = |at: &str| scenario.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let mutations = scenario["mutations"].as_array().into_iter().flatten().filter_map(Value::as_object).flatten();
    let mut proposal = mutations.fold(proposal, |proposal, (deed, of)| mutation(proposal, pod, deed, of));
    if scenario.get("event").is_some() {
        proposal = proposal.event(text("/event/0"), text("/event/1"));
    }
    if scenario.get("extra").is_some() {
        let times = usize::try_from(scenario["long"].as_u64().unwrap_or(1)).unwrap_or(1);
        proposal = proposal.extra(text("/extra/0"), text("/extra/1").repeat(times));
    }
    proposal
}

fn mutation(proposal: Proposal, pod: &Object, deed: &str, of: &Value) -> Proposal {
    let named = |field: &str| of[field].as_str().unwrap_or_default();
    match deed {
        "label" => {
            let labels = of.as_object().into_iter().flatten();
            let change = labels.fold(Change::of(pod), |change, (key, value)| {
                change.set_label(key, value.as_str().unwrap_or_default())
            });
            proposal.change(change)
        }
        "evict" => {
            let other = ObjectRef::new("v1", "Pod", pod.namespace(), named("name"));
            proposal.evict(ObjectRef { uid: of["uid"].as_str().map(str::to_owned), ..other }, None)
        }
        "delete" => proposal.delete(widget(of)),
        "patch" => proposal.patch(widget(&Value::Null), of.to_string()),
        "create" => proposal.create(json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": of}).to_string()),
        "drain" => proposal.drain(of.as_str().unwrap_or_default()),
        other => panic!("no scenario knows the deed {other}"),
    }
}

#[test]
fn each_deed_is_refused_or_allowed_with_the_words_of_the_host() {
    let shared: Value = serde_json::from_str(include_str!("../kit-scenarios.json")).unwrap();
    for scenario in shared["scenarios"].as_array().unwrap() {
        SCENARIO.set((scenario.clone(), Vec::new()));
        let web = pod("web")
            .field(&["spec", "nodeName"], json!("node-1"))
            .field(&["status", "conditions"], json!([{"type": "Ready"}]));
        let mut widget = object("x.io/v1", "Widget", Some("default"), "w");
        if let Some(owner) = scenario["owner"].as_str() {
            widget = widget.controller("apps.kusionstack.io/v1alpha1", "OperationJob", owner);
        }
        let parameters = scenario.get("parameters").cloned().unwrap_or(json!({}));
        let mut visit = Visit::to(&web).object(&widget).parameters(parameters);
        if scenario["beforeLook"] == true {
            visit = visit.before_look();
        }
        let (answer, name) = (visit.operate::<Strange>(), &scenario["name"]);
        match scenario["refused"].as_array() {
            None => {
                assert!(answer.is_ok(), "{name}: {answer:?}");
                let seen = SCENARIO.with_borrow(|(_, seen)| seen.clone());
                assert_eq!(seen.first(), scenario.get("reads"), "{name}");
            }
            Some(refused) => {
                let failure = answer.unwrap_err();
                assert_eq!(failure.reason(), refused[0], "{name}: {failure}");
                assert!(failure.message().contains(refused[1].as_str().unwrap()), "{name}: {failure}");
            }
        }
    }
}
