//! Plain text of jobs.

use oarlock_view::{JobView, ListColumns, TargetRows, ViewChange, change_text, changes, job_list, job_text};
use serde_json::json;

use crate::jobs::{at, large, small, view};

#[test]
fn a_list_has_a_line_for_each_job() {
    let jobs =
        [view(&small()), view(&json!({"metadata": {"name": "b\u{1b}", "namespace": "n"}, "spec": {"action": "A"}}))];
    let plain = job_list(&jobs, ListColumns::default(), at("10:02:00"));
    let expected = "\
NAME      ACTION    PROGRESS     DONE   FAILED   IN FLIGHT   WAITS FOR    AGE
web       Replace   Processing   3/6    2        2           Budget web   2m
b\\u{1b}   A         Pending      0/0    0        0
";
    assert_eq!(plain, expected);
    let wide = job_list(&jobs[..1], ListColumns { namespace: true, wide: true }, at("10:02:00"));
    let expected = "\
NAMESPACE   NAME   ACTION    PROGRESS     DONE   FAILED   IN FLIGHT   WAITS FOR    AGE   PLUGIN          TOOK   RATE                                       BOUNDS
team-a      web    Replace   Processing   3/6    2        2           Budget web   2m    replace 0.1.0   2m     3.0/min, about 40s left to the partition   partition 5, parallelism 2
";
    assert_eq!(wide, expected);
}

#[test]
fn one_job_is_told_in_facts_and_in_a_table_of_its_targets() {
    let expected = "\
Job:          team-a/web
Action:       Replace
Plugin:       replace 0.1.0
Bounds:       partition 5, parallelism 2
Progress:     Processing, 50% of 6: 1 succeeded, 2 failed, 2 in flight, 1 pending
Started:      2026-07-01T10:00:00Z, 2m ago
Rate:         3.0/min, about 40s left to the partition
Waits for:    Budget web (2 targets are in flight, and disruption budget web allows no eviction now)

TARGET   STATE       FOR
d        Blocked     1m    EvictionBlocked: disruption budget web allows no eviction now
c        In flight   30s   new pod c2
b        Failed      20s   PodNotFound: pod b is gone
e        Failed      10s   attempt 2; Boom: \\u{1b}[31mred
f        Pending
a        Succeeded   10s   new pod a2
";
    assert_eq!(job_text(&view(&small()), TargetRows::First, at("10:02:00")), expected);
}

#[test]
fn of_many_targets_the_first_ones_are_shown_and_how_to_see_all() {
    let (job, records) = large();
    let seen = JobView::new(&job, &records);
    let text = job_text(&seen, TargetRows::First, at("10:02:00"));
    assert!(text.ends_with("\n... and 9980 more; -o wide shows all\n"), "{text}");
    let all = job_text(&seen, TargetRows::All, at("10:02:00"));
    assert!(all.lines().last().unwrap().starts_with("web-7d9f8c6b5d-09999   Pending"), "{}", all.lines().count());
}

#[test]
fn a_failed_job_says_which_condition_tells_why_and_a_missing_record_is_said() {
    let mut failed = small();
    failed["status"]["progress"] = json!("Failed");
    failed["status"]["endTime"] = json!("2026-07-01T10:01:30Z");
    failed["status"]["records"] = json!({"count": 1, "size": 250});
    failed["status"]["conditions"] =
        json!([{"type": "Failed", "status": "True", "reason": "TargetsFailed", "message": "2 of 6 targets failed"}]);
    let text = job_text(&view(&failed), TargetRows::First, at("10:02:00"));
    assert!(
        text.contains("\nFailed=True TargetsFailed: 2 of 6 targets failed\n1 of 1 OperationRecords not read"),
        "{text}"
    );
    assert!(text.contains("Started:      2026-07-01T10:00:00Z, took 1m30s\n") && !text.contains("Rate:"), "{text}");
}

#[test]
fn a_change_is_a_line_and_what_did_not_change_is_none() {
    let before = view(&small());
    let mut moved = small();
    moved["status"]["targetDetails"][3] = json!({"name": "d", "progress": "Failed",
        "error": {"reason": "DeadlineExceeded", "message": "deadline of 60 s exceeded"}});
    moved["status"]["failedPodCount"] = json!(3);
    moved["status"]["processingPodCount"] = json!(1);
    moved["status"]["waitsFor"] = json!(null);
    let now = view(&moved);
    assert_eq!(changes(Some(&before), &before), []);
    let lines: Vec<String> =
        changes(Some(&before), &now).iter().map(|change| change_text(change, &now, at("10:02:00"))).collect();
    assert_eq!(
        lines,
        [
            "2026-07-01T10:02:00Z  job     web                      Processing 4 of 6; 1 succeeded, 3 failed, 1 in flight, 1 \
             pending; 3.0/min, about 20s left to the partition",
            "2026-07-01T10:02:00Z  target  d                        Failed     DeadlineExceeded: deadline of 60 s exceeded",
        ]
    );
}

#[test]
fn the_first_view_tells_the_job_and_the_targets_that_are_not_simply_pending() {
    let indexes: Vec<ViewChange> = changes(None, &view(&small()));
    let targets = [0, 1, 2, 3, 4].map(ViewChange::Target);
    assert_eq!(indexes, [vec![ViewChange::Job], targets.to_vec()].concat());
}

#[test]
fn a_lost_connection_and_a_deleted_job_are_lines_of_their_own() {
    let seen = view(&small());
    let line = |change| change_text(&change, &seen, at("10:02:00"));
    assert_eq!(
        [line(ViewChange::Disconnected("refused\n".into())), line(ViewChange::Connected), line(ViewChange::Deleted)],
        [
            "2026-07-01T10:02:00Z  the cluster is not reached, asking again: refused",
            "2026-07-01T10:02:00Z  the cluster is reached again",
            "2026-07-01T10:02:00Z  job     web                      deleted before it ended",
        ]
    );
}

#[test]
fn a_dry_run_is_called_one_everywhere_and_shows_the_plan_of_each_target() {
    let mut dry = small();
    dry["spec"]["dryRun"] = json!(true);
    dry["status"]["targetDetails"][0]["extraInfo"] = json!({"Plan": "evict pod a; then possible: evict pods"});
    let list = job_list(&[view(&dry)], ListColumns::default(), at("10:02:00"));
    assert!(list.contains("   Processing (dry run)   "), "{list}");
    let text = job_text(&view(&dry), TargetRows::First, at("10:02:00"));
    assert!(text.contains("\nProgress:     Processing (dry run), 50% of 6: "), "{text}");
    assert!(text.contains("   plan: evict pod a; then possible: evict pods\n"), "{text}");
    let line = change_text(&ViewChange::Job, &view(&dry), at("10:02:00"));
    assert!(line.contains(" Processing (dry run) "), "{line}");
}

#[test]
fn drains_and_tasks_are_told_in_words() {
    let mut job = small();
    let task = json!({"state": "Failed", "pod": "u", "exitCode": 3, "sha256": "d", "output": "o", "message": "why"});
    let drain = json!({"state": "Draining", "blocked": ["d/a", "d/b"], "more": 3});
    let extras = json!({"Drain": drain.to_string(), "Task/check": task.to_string(), "Task/x": "no JSON"});
    job["status"]["targetDetails"][2]["extraInfo"] = extras;
    let told = view(&job).targets()[2].detail(at("10:02:00"));
    assert_eq!(told, "draining, 5 pods stay; task check Failed (exit code 3): why; task x");
    let waiting = json!({"state": "Waiting", "message": "not started within 300 s"});
    let extras = json!({"Drain": json!({"state": "Drained"}).to_string(), "Task/check": waiting.to_string()});
    job["status"]["targetDetails"][2]["extraInfo"] = extras;
    let told = view(&job).targets()[2].detail(at("10:02:00"));
    assert_eq!(told, "drained; task check Waiting: not started within 300 s");
}
