//! The JSON of jobs on which scripts rely.

use oarlock_view::{JobView, ViewChange, change_line, job_document, jobs_document};
use serde_json::{Value, json};

use crate::jobs::{at, large_without_records, small, view};

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_job_is_one_document_with_its_targets() {
    let mut one = small();
    one["spec"]["targets"] = json!([{"name": "d"}]);
    one["status"]["targetDetails"] = json!([one["status"]["targetDetails"][3]]);
    let expected = json!({
        "namespace": "team-a", "name": "web", "uid": "u1", "action": "Replace",
        "plugin": {"name": "replace", "version": "0.1.0", "digest": "sha256:1"},
        "progress": "Processing",
        "counts": {"total": 6, "succeeded": 1, "failed": 2, "inFlight": 2, "pending": 1},
        "creationTime": "2026-07-01T10:00:00Z", "startTime": "2026-07-01T10:00:00Z",
        "waitsFor": "Budget web", "deleting": false, "dryRun": false, "detailComplete": true,
    });
    let mut with_targets = expected.clone();
    one["status"]["totalPodCount"] = json!(6);
    let seen = view(&one);
    let document = read(&job_document(&seen, at("10:02:00")).unwrap());
    with_targets["targets"] = json!([{"index": 0, "name": "d", "progress": "Processing", "blocked": true, "attempt": 1,
        "startTime": "2026-07-01T10:01:00Z",
        "error": {"reason": "EvictionBlocked", "message": "disruption budget web allows no eviction now"}}]);
    let listed = document["targets"].as_array().unwrap();
    assert_eq!(listed[0], with_targets["targets"][0]);
    let mut head = document.clone();
    head.as_object_mut().unwrap().shift_remove("targets");
    assert_eq!(head, expected);
    assert_eq!(read(&jobs_document(&[seen], at("10:02:00")).unwrap()), json!({"items": [expected]}));
}

#[test]
fn a_change_is_one_line() {
    let seen = view(&small());
    let line = |change| {
        let line = change_line(&change, &seen, at("10:02:00")).unwrap();
        assert!(!line.contains('\n'));
        read(&line)
    };
    let changed = line(ViewChange::Job);
    assert_eq!(changed["type"], "job");
    assert_eq!((&changed["job"]["ratePerMinute"], &changed["job"]["remainingSeconds"]), (&json!(3.0), &json!(40)));
    let target = line(ViewChange::Target(4));
    assert_eq!(
        target,
        json!({"type": "target", "time": "2026-07-01T10:02:00Z", "namespace": "team-a", "name": "web", "target": {
            "index": 4, "name": "e", "progress": "Failed", "blocked": false, "attempt": 2,
            "startTime": "2026-07-01T10:01:00Z", "endTime": "2026-07-01T10:01:10Z",
            "error": {"reason": "Boom", "message": "\u{1b}[31mred"}}})
    );
    let lost = line(ViewChange::Disconnected("refused".into()));
    assert_eq!((&lost["type"], &lost["message"]), (&json!("disconnected"), &json!("refused")));
    assert_eq!(
        [line(ViewChange::Connected), line(ViewChange::Deleted)].map(|line| line["type"].clone()),
        [json!("connected"), json!("deleted")]
    );
}

#[test]
fn characters_that_a_terminal_acts_on_are_escapes_in_json_and_mean_the_same() {
    let mut odd = small();
    odd["metadata"]["name"] = json!("a\u{9b}\u{202e}\u{7f}");
    let text = job_document(&view(&odd), at("10:02:00")).unwrap();
    assert!(text.contains(r"a\u009b\u202e\u007f") && text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    assert_eq!(read(&text)["name"], "a\u{9b}\u{202e}\u{7f}");
}

#[test]
fn a_document_says_whether_detail_is_missing() {
    let text = job_document(&JobView::new(&large_without_records(), &[]), at("10:02:00")).unwrap();
    let document = read(&text);
    assert_eq!((&document["detailComplete"], document["targets"].as_array().unwrap().len()), (&json!(false), 10_000));
}
