//! The model of a job, for every stored state.

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::Ranges;
use oarlock_view::{JobView, Outlook, ShownCounts, ShownProgress};
use serde_json::json;

use crate::jobs::{at, job, large, large_without_records, small, view};

#[test]
fn a_job_without_status_has_all_of_its_targets_pending() {
    let seen =
        view(&json!({"metadata": {"name": "x"}, "spec": {"action": "A", "targets": [{"name": "a"}, {"name": "b"}]}}));
    assert_eq!(seen.counts, ShownCounts { total: 2, pending: 2, ..ShownCounts::default() });
    assert_eq!((seen.progress, seen.targets().len()), (ShownProgress::Pending, 2));
    assert_eq!(Outlook::new(&seen, at("10:00:00")), Outlook::default());
}

#[test]
fn words_of_another_version_are_unknown_and_end_nothing() {
    let mut odd = small();
    odd["status"]["progress"] = json!("Hibernating");
    odd["status"]["targetDetails"][0]["progress"] = json!("Hibernating");
    let seen = view(&odd);
    assert_eq!((seen.progress, seen.targets()[0].progress), (ShownProgress::Unknown, ShownProgress::Unknown));
    assert!(!seen.progress.is_terminal());
}

#[test]
fn numbers_that_cannot_be_neither_panic_nor_cost_memory() {
    let mut odd = small();
    odd["status"]["totalPodCount"] = json!(i32::MAX);
    odd["status"]["failedPodCount"] = json!(-4);
    odd["spec"]["partition"] = json!(-1);
    let seen = view(&odd);
    assert_eq!((seen.targets().len(), seen.counts.failed, seen.partition), (10_000, 0, Some(0)));
    let mut times = small();
    times["status"]["targetDetails"][0]["endTime"] = json!("9999-12-30T21:59:59Z");
    times["status"]["startTime"] = json!("yesterday");
    assert!(Outlook::new(&view(&times), at("10:02:00")).per_minute.is_some());
}

#[test]
fn of_records_and_ranges_the_more_advanced_is_right() {
    let (job, records) = large();
    let seen = JobView::new(&job, &records);
    let at = |index: usize| &seen.targets()[index];
    assert_eq!(at(0).progress, ShownProgress::Succeeded);
    assert_eq!(
        (at(5_000).progress, at(5_000).error.as_ref().unwrap().reason.as_str()),
        (ShownProgress::Failed, "PodNotFound")
    );
    assert_eq!((at(5_250).progress, at(5_299).progress), (ShownProgress::Processing, ShownProgress::Processing));
    assert_eq!(at(9_999).progress, ShownProgress::Pending);
    assert!(seen.missing_detail().is_none());
}

#[test]
fn without_its_records_a_large_job_shows_what_its_ranges_and_failures_say() {
    let seen = JobView::new(&large_without_records(), &[]);
    let first: Vec<(&str, &str)> =
        seen.by_need().take(201).map(|target| (target.name.as_str(), target.state())).collect();
    assert_eq!(first[0], ("web-7d9f8c6b5d-05100", "In flight"));
    assert_eq!(first[200], ("web-7d9f8c6b5d-05000", "Failed"));
    let missing = seen.missing_detail().unwrap();
    assert_eq!(missing, "21 of 40 OperationRecords not read: detail of their targets is missing");
    assert_eq!(Outlook::new(&seen, at("10:02:00")), Outlook::default());
}

#[test]
fn records_that_nothing_had_to_be_written_to_are_not_missed() {
    let mut young = large_without_records();
    let status = young.status.as_mut().unwrap();
    (status.failures, status.ranges) = (None, Some(Ranges { processing: "0-999".into(), ..Ranges::default() }));
    assert_eq!(JobView::new(&young, &[]).missing_detail(), None);
}

#[test]
fn what_was_cut_off_the_ranges_is_unknown_and_what_stands_before_the_cut_is_not() {
    let mut cut = large_without_records();
    let status = cut.status.as_mut().unwrap();
    status.ranges_truncated = Some(true);
    let ranges = status.ranges.as_mut().unwrap();
    (ranges.succeeded, ranges.failed) = ("0-9,20-29".into(), "10-14,30".into());
    ranges.processing = "40".into();
    let seen = JobView::new(&cut, &[]);
    let states = [0, 12, 16, 25, 30, 31, 40].map(|index: usize| seen.targets()[index].state());
    assert_eq!(states, ["Succeeded", "Failed", "Pending", "Succeeded", "Failed", "Unknown", "In flight"]);
}

#[test]
fn records_of_another_job_of_this_name_are_left_out() {
    let (mut job, records) = large();
    job.metadata.uid = Some("another".into());
    let missing = JobView::new(&job, &records).missing_detail().unwrap();
    assert!(missing.starts_with("21 of 40 OperationRecords not read"), "{missing}");
}

#[test]
fn targets_of_a_selector_are_those_that_the_status_names() {
    let seen = view(&json!({"spec": {"action": "A", "selector": {"labelSelector": {"matchLabels": {"app": "x"}}}},
        "status": {"totalPodCount": 1, "targetDetails": [{"name": "x-1", "progress": "Pending"}]}}));
    assert_eq!((seen.targets().len(), seen.targets()[0].name.as_str()), (1, "x-1"));
}

#[test]
fn the_rate_is_that_of_the_last_minute_or_of_a_younger_jobs_whole_life() {
    let rate = |now| Outlook::new(&view(&small()), at(now)).per_minute;
    // The ends are at 10:01:10, 10:01:20 and 10:01:30, and the job began at 10:00:00.
    assert_eq!((rate("10:02:05"), rate("10:02:15"), rate("10:02:30")), (Some(3.0), Some(2.0), None));
    let mut young = small();
    young["status"]["startTime"] = json!("2026-07-01T10:01:00Z");
    assert_eq!(Outlook::new(&view(&young), at("10:01:30")).per_minute, Some(6.0));
    young["status"]["startTime"] = json!("2026-07-01T10:01:30Z");
    assert_eq!(Outlook::new(&view(&young), at("10:01:31")).per_minute, Some(180.0), "all ended in its first second");
}

#[test]
fn the_estimate_is_for_what_may_start_and_there_is_none_while_the_job_is_paused() {
    let mut going = small();
    going["spec"]["partition"] = json!(null);
    let outlook = Outlook::new(&view(&going), at("10:02:00"));
    assert_eq!((outlook.remaining, outlook.to_partition), (Some(SignedDuration::from_secs(60)), false));
    going["spec"]["partition"] = json!(4);
    let outlook = Outlook::new(&view(&going), at("10:02:00"));
    assert_eq!((outlook.remaining, outlook.to_partition), (Some(SignedDuration::from_secs(20)), true));
    going["status"]["conditions"] =
        json!([{"type": "Paused", "status": "True", "reason": "PausedBySpec", "message": "m"}]);
    assert_eq!(Outlook::new(&view(&going), at("10:02:00")).remaining, None);
}

#[test]
fn a_line_of_a_record_that_cannot_be_read_costs_no_other_its_own() {
    let record = serde_json::from_value(json!({"job": {"name": "x", "uid": "u"}, "shard": 0, "firstIndex": 0,
        "targets": ["{", r#"{"name": "b", "progress": "Failed"}"#]}));
    let of = job(json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"targets": [{"name": "a"}, {"name": "b"}]},
        "status": {"totalPodCount": 2, "records": {"count": 1, "size": 250}, "ranges": {"processing": "0"}}}));
    let seen = JobView::new(&of, [&record.unwrap()]);
    let states: Vec<(&str, &str)> =
        seen.targets().iter().map(|target| (target.name.as_str(), target.state())).collect();
    assert_eq!(states, [("a", "In flight"), ("b", "Failed")]);
}
