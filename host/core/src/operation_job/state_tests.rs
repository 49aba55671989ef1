//! Tests of `state.rs`: the state read from a status, from records, and from both if they differ.

use serde_json::json;

use super::*;

fn job(value: serde_json::Value) -> OperationJob {
    serde_json::from_value(value).unwrap()
}

#[test]
fn words_nobody_knows_read_as_absent() {
    let job = job(json!({"spec": {"targets": [{"name": "a"}, {"name": "b"}]},
        "status": {"progress": "Fine", "targetDetails": [{"name": "a", "progress": "Great", "startTime": "soon"}]}}));
    let state = JobState::read(&job, &[], Timestamp::UNIX_EPOCH, None);
    assert_eq!(state.targets.len(), 2);
    assert_eq!(state.targets[0].progress, Progress::Pending);
    assert_eq!(state.targets[0].start, None);
}

#[test]
fn a_target_in_flight_whose_start_is_lost_has_its_time_from_now_on() {
    let details = json!([{"name": "a", "progress": "Processing"}, {"name": "b", "progress": "Pending"}]);
    let job = job(json!({"spec": {"targets": [{"name": "a"}, {"name": "b"}]}, "status": {"targetDetails": details}}));
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let first = JobState::read(&job, &[], now, None);
    assert_eq!((first.targets[0].start, first.targets[1].start), (Some(now), None));
    let later = "2026-01-01T01:00:00Z".parse().unwrap();
    assert_eq!(JobState::read(&job, &[], later, Some(&first)).targets[0].start, Some(now), "it is remembered");
}

#[test]
fn a_target_keeps_the_name_under_which_it_was_recorded() {
    let job = job(json!({"spec": {"targets": [{"name": "changed"}]},
        "status": {"targetDetails": [{"name": "a", "progress": "Processing"}]}}));
    assert_eq!(JobState::read(&job, &[], Timestamp::UNIX_EPOCH, None).name(0), "a");
}

#[test]
fn until_it_starts_a_target_has_the_uid_that_the_spec_names_and_then_the_stored_one() {
    let targets: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| json!({"name": name, "uid": "spec"})).into();
    let details = json!([{"name": "a"}, {"name": "b", "uid": "stored"},
        {"name": "c", "progress": "Processing", "uid": "stored"}, {"name": "d", "progress": "Failed"},
        {"name": "other", "uid": "stored"}]);
    let job = job(json!({"spec": {"targets": targets}, "status": {"targetDetails": details}}));
    let state = JobState::read(&job, &[], Timestamp::UNIX_EPOCH, None);
    let uids: Vec<_> = state.targets.iter().map(|target| target.uid.as_deref()).collect();
    assert_eq!(uids, [Some("spec"), Some("spec"), Some("stored"), None, Some("stored")]);
}

#[test]
fn of_record_and_ranges_the_more_advanced_wins() {
    let targets: Vec<_> = (0..300).map(|i| json!({"name": format!("p{i}")})).collect();
    let job = job(json!({"spec": {"targets": targets},
        "status": {"ranges": {"processing": "0-2", "succeeded": "3"}}}));
    let record: OperationRecord = serde_json::from_value(json!({"shard": 0, "firstIndex": 0, "targets": [
        r#"{"name": "p0", "progress": "Succeeded"}"#, r#"{"name": "p1", "progress": "Pending"}"#]}))
    .unwrap();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let state = JobState::read(&job, &[record], now, None);
    let words: Vec<_> = state.targets.iter().take(5).map(|t| t.progress.word()).collect();
    assert_eq!(words, ["Succeeded", "Processing", "Processing", "Succeeded", "Pending"]);
    assert_eq!(state.targets[1].start, Some(now));
}

fn uses_records(status: serde_json::Value) -> OperationJob {
    let targets: Vec<_> = (0..600).map(|i| json!({"name": format!("p{i}")})).collect();
    job(json!({"spec": {"targets": targets}, "status": status}))
}

#[test]
fn a_target_of_a_lost_record_that_may_have_started_is_lost_and_the_others_are_pending() {
    let job = uses_records(json!({"records": {"count": 3, "size": 250},
        "ranges": {"processing": "0,1", "succeeded": "2", "failed": "3"}}));
    let state = JobState::read(&job, &[], Timestamp::UNIX_EPOCH, None);
    assert_eq!(state.lost, [0, 1].into());
    assert_eq!((state.targets[3].progress, state.targets[4].progress), (Progress::Failed, Progress::Pending));
}

#[test]
fn where_ranges_were_cut_nothing_of_a_lost_record_is_started_again() {
    let job = uses_records(json!({"records": {"count": 3, "size": 250}, "rangesTruncated": true,
        "ranges": {"succeeded": "0-248"}}));
    let record = |shard: i32| {
        let first = shard * 250;
        let detail = |index| TargetDetail { name: format!("p{index}"), ..TargetDetail::default() };
        let targets = (first..(first + 250).min(600)).map(detail).collect();
        OperationRecord {
            record: oarlock_api::OperationRecordSpec { shard, first_index: first, targets, ..Default::default() },
            ..OperationRecord::default()
        }
    };
    let state = JobState::read(&job, &[record(1), record(2)], Timestamp::UNIX_EPOCH, None);
    assert_eq!(state.lost, [249].into());
    // The counts alone show that target 249 of the first record is pending.
    let job =
        uses_records(json!({"records": {"count": 3, "size": 250}, "rangesTruncated": true, "pendingPodCount": 351,
        "ranges": {"succeeded": "0-248"}}));
    let state = JobState::read(&job, &[record(1), record(2)], Timestamp::UNIX_EPOCH, None);
    assert!(state.lost.is_empty(), "a record that was never written is not lost: {:?}", state.lost);
}

#[test]
fn a_line_that_cannot_be_read_is_lost_like_a_record_and_no_other_with_it() {
    let job = uses_records(json!({"records": {"count": 3, "size": 250}, "ranges": {"processing": "0-3"}}));
    let record: OperationRecord = serde_json::from_value(json!({"shard": 0, "firstIndex": 0, "targets": [
        "{", r#"{"name": "p1", "progress": "Processing", "uid": "u1"}"#, "{}", r#"{"name": 5}"#, "", 7]}))
    .unwrap();
    let state = JobState::read(&job, std::slice::from_ref(&record), Timestamp::UNIX_EPOCH, None);
    assert_eq!(state.lost, [0, 2, 3].into());
    assert_eq!((state.targets[1].uid.as_deref(), state.targets[4].progress), (Some("u1"), Progress::Pending));
    let mut known = state;
    known.targets[0].uid = Some("u0".into());
    let state = JobState::read(&job, &[record], Timestamp::UNIX_EPOCH, Some(&known));
    assert_eq!((state.targets[0].uid.as_deref(), state.lost.len()), (Some("u0"), 0), "this term remembers it");
}

#[test]
fn a_record_is_placed_by_its_number() {
    let job = uses_records(json!({"records": {"count": 3, "size": 250}, "ranges": {"processing": "250"}}));
    let record: OperationRecord = serde_json::from_value(json!({"shard": 1, "firstIndex": 0, "targets": [
        r#"{"name": "p250", "progress": "Processing", "uid": "u"}"#]}))
    .unwrap();
    let state = JobState::read(&job, &[record], Timestamp::UNIX_EPOCH, None);
    assert_eq!((state.name(0), state.targets[250].uid.as_deref(), state.lost.len()), ("p0", Some("u"), 0));
}

#[test]
fn what_this_term_remembers_stands_for_a_record_that_was_deleted() {
    let job = uses_records(json!({"records": {"count": 3, "size": 250}, "ranges": {"processing": "0"}}));
    let mut known = JobState::read(&job, &[], Timestamp::UNIX_EPOCH, None);
    known.targets[0].uid = Some("u0".into());
    let state = JobState::read(&job, &[], Timestamp::UNIX_EPOCH, Some(&known));
    assert_eq!((state.targets[0].uid.as_deref(), state.lost.len()), (Some("u0"), 0));
}

#[test]
fn a_spec_that_was_cut_short_does_not_make_recorded_targets_go() {
    let record: OperationRecord = serde_json::from_value(json!({"shard": 1, "firstIndex": 250, "targets": [
        r#"{"name": "p250", "progress": "Processing", "uid": "u"}"#]}))
    .unwrap();
    let job = job(json!({"spec": {"targets": [{"name": "p0"}]}, "status": {"records": {"count": 2, "size": 250}}}));
    let state = JobState::read(&job, &[record], Timestamp::UNIX_EPOCH, None);
    assert_eq!((state.targets.len(), state.name(250), state.uses_records()), (251, "p250", true));
}

#[test]
fn a_target_says_what_its_plugin_or_a_task_of_it_waits_for_and_since_when() {
    let task =
        |state: &str, waits: &str| json!({"state": state, "waits": waits, "since": "2026-01-01T00:00:00Z"}).to_string();
    let extra = |all: &[(&str, String)]| all.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let said = |all: &[(&str, String)]| waits_of(&extra(all));
    let pair = |word: &str, sentence: &str| Some((word.to_owned(), sentence.to_owned()));
    let image = ("Task/step-1", task("Waiting", "image: ErrImagePull: no such image"));
    let since = pair("Task", "task step-1 waits since 2026-01-01T00:00:00Z: image: ErrImagePull: no such image");
    assert_eq!(said(&[("Task/step-0", task("Succeeded", "")), image.clone()]), since);
    assert_eq!(
        said(&[image, (extras::WAITS_FOR, "NewPod: pod a is not Ready".to_owned())]),
        pair("NewPod", "pod a is not Ready")
    );
    let both = [(extras::WAITS_FOR, "Kruise: x".to_owned()), (extras::WAITS_SINCE, "2026-01-01T00:00:00Z".to_owned())];
    assert_eq!(said(&both), pair("Kruise", "x, since 2026-01-01T00:00:00Z"));
    assert_eq!(said(&[("Task/step-0", task("Running", ""))]), None);
    assert_eq!(said(&[("Task/step-0", task("Failed", "image: x"))]), None, "one that has ended waits for nothing");
}
