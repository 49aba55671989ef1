//! The reasons in stored objects, against the catalogue that `oarlock explain` prints.
//!
//! This finds words that the code builds, which a search of the sources cannot see. Takes objects; yields the words without an entry.

use std::collections::BTreeSet;

use oarlock_view::{ReasonKind, entries_of_reason, reason_entries};
use serde_json::Value;

/// Words of plugins, Jobs and pods that scenarios make up. The catalogue has only words of Oarlock and its plugins.
const OF_SCENARIOS: [&str; 4] = ["Hostile", "R", "ScriptLost", "UnknownDeed"];
/// The controllers whose events have reasons of Oarlock.
const OURS: [&str; 3] = ["operationjob-controller", "jobflow-controller", "daemonjob-controller"];

/// Returns the reasons that an object shows. An event of another controller shows none.
fn reasons(object: &Value) -> Vec<&str> {
    let reporter = object.get("reportingController").and_then(Value::as_str).unwrap_or_default();
    if object.get("regarding").is_some() && !OURS.contains(&reporter) {
        return Vec::new();
    }
    let list = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let conditions = list("/status/conditions").map(|condition| condition.get("reason"));
    let targets = list("/status/targetDetails").map(|target| target.pointer("/error/reason"));
    let units = list("/status/steps").chain(list("/status/nodes")).map(|unit| unit.get("reason"));
    let waits = ["/status/waitsFor", "/reason"].map(|pointer| object.pointer(pointer));
    let all = conditions.chain(targets).chain(units).chain(waits).flatten();
    all.filter_map(Value::as_str).filter(|word| !word.is_empty()).collect()
}

/// Returns the kind whose entries an object may use. An event belongs to the kind of the object that it is about. The conditions of
/// an OpsJob have reasons of targets, so it has none of its own.
fn kind(name: &str, object: &Value) -> Option<ReasonKind> {
    let name = if name == "Event" { object.pointer("/regarding/kind")?.as_str()? } else { name };
    ReasonKind::read(name).filter(|kind| *kind != ReasonKind::OpsJob)
}

/// Returns the reasons without an entry for their kind, each with its object. `objects` are pairs of a kind and an object.
///
/// # Panics
/// If the catalogue cannot be read.
pub(crate) fn unexplained<'a>(objects: impl Iterator<Item = (&'a str, &'a Value)>) -> BTreeSet<String> {
    #[allow(clippy::expect_used, reason = "a test reads the catalogue")]
    let entries = reason_entries().expect("the catalogue is valid");
    let mut found = BTreeSet::new();
    for (name, object) in objects {
        let kind = kind(name, object);
        let is_known = |word: &str| {
            let mut entries = entries_of_reason(&entries, word).into_iter();
            OF_SCENARIOS.contains(&word) || entries.any(|entry| kind.is_none_or(|kind| entry.kinds.contains(&kind)))
        };
        let of_kind = kind.map_or_else(|| name.to_owned(), |kind| kind.name().to_owned());
        let unknown = reasons(object).into_iter().filter(|word| !is_known(word));
        found.extend(unknown.map(|word| format!("{word} of a {of_kind} has no entry in host/view/reasons.yaml")));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reason_without_an_entry_for_its_kind_is_found_wherever_it_is_shown() {
        let flow = json!({"status": {"conditions": [{"reason": "Accepted"}, {"reason": "Broken"}],
            "steps": [{"reason": "StepBroke"}, {"reason": ""}]}});
        let job = json!({"status": {"waitsFor": "Budget web", "targetDetails": [{"error": {"reason": "NodeAway"}}],
            "conditions": [{"reason": "BySpec"}]}});
        let event =
            json!({"reason": "Told", "reportingController": "operationjob-controller", "regarding": {"kind": "Pod"}});
        let foreign =
            json!({"reason": "FailedScheduling", "reportingController": "scheduler", "regarding": {"kind": "Pod"}});
        let events = [("Event", &event), ("Event", &foreign)];
        let found = unexplained([("JobFlow", &flow), ("OperationJob", &job)].into_iter().chain(events));
        let words: Vec<&str> = found.iter().filter_map(|text| text.split(" has").next()).collect();
        let expected = [
            "Broken of a JobFlow",
            "BySpec of a OperationJob",
            "NodeAway of a OperationJob",
            "StepBroke of a JobFlow",
            "Told of a Pod",
        ];
        assert_eq!(words, expected);
    }
}
