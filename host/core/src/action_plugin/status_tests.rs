//! Tests of the status of an ActionPlugin. No cluster runs.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::action_plugin::facts::{GrantsFrom, PluginFacts, VersionFacts, facts_of};
use crate::action_plugin::kind::{ActionPlugins, FIGURES_EVERY};
use crate::action_plugin::status::ActionPluginStatus;
use crate::action_plugin::stored::StoredActionPlugin;
use crate::kind::locks::TargetLocks;
use crate::kind::plan::{KindPlan, StoreTime};
use crate::kind::plan_kind::{PlanKind as _, Seen};
use crate::object::time::after_seconds;
use crate::requests::reads::{Answers, KeptObjects};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-01-01T00:01:00Z")
}

fn version(number: &str, state: &str) -> VersionFacts {
    VersionFacts {
        file: format!("{number}.wasm"),
        version: number.to_owned(),
        action: "Replace".to_owned(),
        digest: format!("sha256:{number}"),
        state: state.to_owned(),
        reason: state.to_owned(),
        ..VersionFacts::default()
    }
}

fn object(spec: &Value, status: &Value) -> StoredActionPlugin {
    let metadata = json!({"name": "replace", "uid": "u", "resourceVersion": "7", "generation": 2});
    StoredActionPlugin::read(&json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

fn facts(versions: Vec<VersionFacts>) -> PluginFacts {
    PluginFacts { versions, ..PluginFacts::default() }
}

fn plan(object: &StoredActionPlugin, facts: &PluginFacts, now: Timestamp) -> KindPlan<()> {
    let (read, mut answers, locks) = (facts_of("replace"), Answers::default(), TargetLocks::default());
    answers.insert(read.clone(), Ok(KeptObjects::of(&read, [json!(facts)])));
    let seen = Seen { object, children: &[], memory: &(), answers: &answers, failed: &[], locks: &locks, now };
    ActionPlugins.plan(&seen).unwrap()
}

/// Returns the object with the status that the host would store for these facts.
fn reported(facts: &PluginFacts) -> StoredActionPlugin {
    let empty = object(&json!({}), &json!(null));
    object(&json!({}), &json!(ActionPluginStatus::of(&empty, facts, now())))
}

fn condition(status: &ActionPluginStatus, kind: &str) -> Option<String> {
    let found = status.conditions.iter().find(|condition| condition.kind == kind)?;
    Some(format!("{}/{}", found.status, found.reason))
}

#[test]
fn the_version_that_serves_stands_for_the_plugin() {
    let all = facts(vec![version("1", "Draining"), version("3", "Rejected"), version("2", "Serving")]);
    let status = ActionPluginStatus::of(&object(&json!({}), &json!(null)), &all, now());
    assert_eq!((status.version.as_str(), status.state.as_str(), status.observed_generation), ("2", "Serving", 2));
    let order: Vec<&str> = status.versions.iter().map(|version| version.version.as_str()).collect();
    assert_eq!(order, ["2", "3", "1"]);
    assert_eq!(condition(&status, "Serving"), Some("True/Serving".to_owned()));
}

#[test]
fn an_object_whose_file_is_missing_says_what_to_do() {
    let status = ActionPluginStatus::of(&object(&json!({}), &json!(null)), &facts(Vec::new()), now());
    assert_eq!((status.state.as_str(), status.reason.as_str()), ("Absent", "NoFile"));
    assert!(status.message.contains("add the file, or delete this object"), "{}", status.message);
}

#[test]
fn a_swap_is_told_with_its_time_and_with_the_reason_of_the_version_before() {
    let before = reported(&facts(vec![version("1", "Serving")]));
    let mut old = version("1", "Draining");
    old.reason = "Replaced".to_owned();
    let after = facts(vec![version("2", "Serving"), old]);
    let later = after_seconds(now(), 9);
    let swap = ActionPluginStatus::of(&before, &after, later).last_swap.unwrap();
    assert_eq!((swap.from.as_str(), swap.to.as_str(), swap.reason.as_str()), ("1", "2", "Replaced"));
    assert_eq!(swap.time, "2026-01-01T00:01:09Z");
    let gone = ActionPluginStatus::of(&before, &facts(vec![version("2", "Serving")]), later).last_swap.unwrap();
    assert_eq!(gone.reason, "Removed");
    let same = ActionPluginStatus::of(&before, &facts(vec![version("1", "Serving")]), later);
    assert_eq!(same.last_swap, None);
}

#[test]
fn a_new_state_is_stored_in_turn_and_new_figures_at_most_once_in_five_minutes() {
    let served = facts(vec![version("1", "Serving")]);
    let first = plan(&object(&json!({}), &json!(null)), &served, now());
    assert_eq!(first.status.unwrap().when, StoreTime::InTurn(None));
    let before = reported(&served);
    let later = after_seconds(now(), 9);
    assert_eq!(plan(&before, &served, later).status, None, "nothing is new");
    let mut busy = version("1", "Serving");
    (busy.jobs, busy.peak_use) = (3, BTreeMap::from([("hostCalls".to_owned(), 40)]));
    let figures = plan(&before, &facts(vec![busy]), later);
    assert_eq!(figures.status.unwrap().when, StoreTime::InTurn(Some(after_seconds(now(), FIGURES_EVERY))));
    assert_eq!(figures.again, Some(after_seconds(later, FIGURES_EVERY)));
    let changed = plan(&before, &facts(vec![version("1", "AwaitingGrant")]), later);
    assert_eq!(changed.status.unwrap().when, StoreTime::InTurn(None));
}

#[test]
fn a_spec_that_has_no_effect_and_an_invalid_one_are_told() {
    let from = |grants_from, spec: &Value| {
        let facts = PluginFacts { grants_from, ..PluginFacts::default() };
        condition(&ActionPluginStatus::of(&object(spec, &json!(null)), &facts, now()), "SpecInForce")
    };
    let (good, bad) = (json!({"namespaces": ["*"]}), json!({"nonsense": 1}));
    assert_eq!(from(GrantsFrom::File, &json!({})), None);
    assert_eq!(from(GrantsFrom::File, &good).as_deref(), Some("False/GrantsFromFile"));
    assert_eq!(from(GrantsFrom::Cluster, &good).as_deref(), Some("True/GrantsFromCluster"));
    assert_eq!(from(GrantsFrom::Cluster, &bad).as_deref(), Some("False/GrantInvalid"));
}

#[test]
fn rights_that_the_host_lacks_are_listed_with_the_command_that_adds_them() {
    let lacking = Some(vec!["create pods/eviction in all namespaces".to_owned()]);
    let facts = PluginFacts { lacking, ..PluginFacts::default() };
    let status = ActionPluginStatus::of(&object(&json!({}), &json!(null)), &facts, now());
    let told = status.conditions.iter().find(|one| one.kind == "HostMayNot").unwrap();
    assert!(told.message.contains("create pods/eviction in all namespaces"), "{}", told.message);
    assert!(told.message.contains("oarlock plugin roles replace | kubectl apply -f -"), "{}", told.message);
}

#[test]
fn a_plugin_with_very_many_requests_has_a_bounded_status() {
    let mut greedy = version("1", "AwaitingGrant");
    greedy.rights = (0..10_000).map(|number| format!("read v1 Kind{number} {}", "x".repeat(5_000))).collect();
    greedy.missing = greedy.rights.clone();
    greedy.message = "y".repeat(1 << 20);
    let all = vec![greedy; 100];
    let status = ActionPluginStatus::of(&object(&json!({}), &json!(null)), &facts(all), now());
    let bytes = json!(status).to_string().len();
    assert!(bytes < 64 * 1024, "{bytes}");
    assert_eq!(status.rights.last().map(String::as_str), Some("and 9936 more"));
}
