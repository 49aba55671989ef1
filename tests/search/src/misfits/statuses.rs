//! Statuses and records of a job in flight that another writer overwrote.

use serde_json::{Value, json};

use super::{Begin, Misfit, Told};

/// The job ends at its deadline, as it would without the misfit: the host repaired the status.
const LATE: Told = Told::Ends("Failed");

fn status(name: &str, status: Value) -> Misfit {
    Misfit::new(name, Begin::Status(status), LATE)
}

fn record(name: &str, record: Value) -> Misfit {
    Misfit::new(name, Begin::Record(record), Told::Condition("Valid", "True/Accepted", ""))
}

/// Returns a status with one target.
fn detail(detail: Value) -> Value {
    json!({ "targetDetails": [detail] })
}

fn statuses() -> Vec<Misfit> {
    let extras = |extras: Value| detail(json!({"name": "x", "progress": "Processing", "extraInfo": extras}));
    let many: Vec<_> =
        (0..5_000).map(|number| json!({"name": format!("t{number}"), "progress": "Succeeded"})).collect();
    let wide: String = "x".repeat(300 << 10);
    vec![
        status("a progress that nobody knows", json!({"progress": "Bogus"})),
        status("counts without bounds", json!({"succeededPodCount": i32::MAX, "processingPodCount": i32::MIN})),
        status("a start at the end of the calendar", json!({"startTime": "9999-12-30T22:00:00Z"})),
        status("a start before the calendar", json!({"startTime": "0001-01-01T00:00:00Z"})),
        status("an epoch without bounds", json!({"epoch": i64::MAX})),
        status("an epoch below zero", json!({"epoch": i64::MIN})),
        status("a plugin that nobody has", json!({"plugin": {"name": "../x", "version": "?", "digest": "sha256:zz"}})),
        status("the plugin of a neighbour", json!({"plugin": {"name": "good", "version": "0.1.0", "digest": ""}})),
        status("a selection of others", json!({"selection": {"source": "Selector", "digest": ""}})),
        Misfit::new(
            "5,000 targets that have ended",
            Begin::Status(json!({ "targetDetails": many })),
            Told::Ends("Succeeded"),
        ),
        status("a detail without a name", detail(json!({"progress": "Processing"}))),
        status(
            "a target that went in two ways",
            json!({"targetDetails": [
            {"name": "x", "progress": "Succeeded"}, {"name": "x", "progress": "Failed"}]}),
        ),
        status("an attempt without bounds", detail(json!({"name": "x", "attempt": i32::MAX}))),
        status("the pod of a neighbour as new pod", extras(json!({"NewPod": "good-0"}))),
        status("an object of a neighbour as claimed", extras(json!({"ClaimedUID": "NewPod=Pod/,=,/,x=Pod/u"}))),
        status("an owner that is none", extras(json!({"Owner": "///", "Node": "\u{1b}[2J"}))),
        status("an extra of 300 KiB", extras(json!({"Huge": wide}))),
        status("ranges without bounds", json!({"ranges": {"processing": "0-18446744073709551615"}})),
        Misfit::new(
            "ranges in which all have succeeded",
            Begin::Status(json!({"ranges": {"succeeded": "0-4294967295"}})),
            Told::Ends("Succeeded"),
        ),
        status("ranges that are none", json!({"ranges": {"processing": "9-1,,-,a-b,\u{1b}[2J"}})),
        status("two billion records", json!({"records": {"count": i32::MAX, "size": i32::MAX}})),
        status("records of no size", json!({"records": {"count": -1, "size": 0}})),
        status(
            "conditions that contradict",
            json!({"conditions": [
            {"type": "Complete", "status": "True"}, {"type": "Failed", "status": "True"}, {"type": "", "status": "?"}]}),
        ),
        status("failures of others", json!({"failures": [{"index": -1, "name": "good-0", "reason": "\u{1b}[2J"}]})),
        status("an end that was none", json!({"endTime": "9999-12-30T22:00:00Z"})),
        status("nothing at all", json!(null)),
    ]
}

fn records() -> Vec<Misfit> {
    let lines = |line: &str| json!({ "targets": [line] });
    vec![
        record("an epoch of a record without bounds", json!({"epoch": i64::MAX})),
        record("a shard without bounds", json!({"shard": i32::MAX, "firstIndex": i32::MIN})),
        record("a line that is no JSON", lines("{")),
        record("a line that is a deep list", lines(&"[".repeat(60 << 10))),
        record("a line of 300 KiB", lines(&format!("{{\"name\":\"{}\"}}", "x".repeat(300 << 10)))),
        record("no lines at all", json!({"targets": null})),
        record("10,000 lines", json!({"targets": vec!["{}"; 10_000]})),
        record("a record of a neighbour's job", json!({"job": {"name": "resting", "uid": "u"}})),
    ]
}

/// Returns all misfits of this module.
pub fn table() -> Vec<Misfit> {
    statuses().into_iter().chain(records()).collect()
}
