//! Checks that both backends behave alike: a SQLite file, and a real PostgreSQL.

#![cfg(test)]

use std::path::PathBuf;
use std::sync::OnceLock;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::ops_job::gone::GoneBy;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_history::{AuditRow, History, HistoryPlace, JobFilter, JobRow, JobSnapshot, SortKey, Viewer, Window};
use oarlock_support::postgres::Postgres;
use serde_json::{Value, json};

/// Returns the PostgreSQL server of all tests. Each test has its own database there.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start().unwrap())
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("oarlock-history-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// Defines each test once for each backend.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let folder = super::folder(stringify!($name));
                let history = super::History::at(super::HistoryPlace::in_folder(&folder), stringify!($name)).unwrap();
                super::$name(history).await;
                std::fs::remove_dir_all(&folder).unwrap();
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let place = super::HistoryPlace::read(&super::server().database().unwrap()).unwrap();
                super::$name(super::History::at(place, stringify!($name)).unwrap()).await;
            })*
        }
    };
}

on_both![
    a_job_is_read_as_it_was_written,
    a_row_changes_to_a_higher_revision_alone_and_an_end_is_for_ever,
    a_page_has_what_the_filter_takes_in_its_order,
    what_somebody_deleted_is_listed_only_where_it_is_asked_for,
    jobs_of_one_second_are_in_the_order_of_their_place,
    rows_of_jobs_that_live_do_not_count,
    a_job_that_nobody_saw_go_is_closed,
    what_ended_long_ago_is_removed_once_it_is_gone,
    requests_get_their_answer_once,
    nobody_sees_what_he_may_not,
];

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

/// Returns a job that was created at this second, with this status.
fn job(id: &str, at: i64, status: &Value) -> JobSnapshot {
    let document = json!({
        "metadata": {"name": id, "uid": format!("uid-{id}"), "creationTimestamp": second(at).to_string()},
        "spec": {"type": "reboot", "jobName": id.to_uppercase(), "requester": {"id": "u1", "name": "alice"},
            "inputs": [{"name": "workspace", "value": "team"}, {"name": "label", "value": "a,\"{\n\u{1F680}\u{0}"}]},
        "status": status,
    });
    JobSnapshot::of(&document, Defaults::default()).unwrap()
}

fn running(revision: i64) -> Value {
    json!({"phase": "Running", "revision": revision, "startedAt": second(100).to_string()})
}

fn ended(phase: &str, revision: i64, at: i64) -> Value {
    json!({"phase": phase, "revision": revision, "startedAt": second(100).to_string(), "finishedAt": second(at).to_string(),
        "outputs": [{"name": "status", "value": "completed"}]})
}

fn deleted(mut job: JobSnapshot, at: i64) -> JobSnapshot {
    (job.row.deleted, job.row.gone_by) = (Some(second(at)), Some(GoneBy::Deletion));
    job
}

fn all_gone(jobs: impl IntoIterator<Item = JobSnapshot>) -> Vec<JobSnapshot> {
    jobs.into_iter().map(|job| deleted(job, 500)).collect()
}

fn everything() -> JobFilter {
    JobFilter {
        since: second(-1_000_000),
        until: second(1_000_000),
        workspace: None,
        phase: None,
        kind: None,
        with_deleted: true,
        user_words: None,
        job_words: None,
        seen: Viewer::All,
    }
}

fn window(sort: SortKey, is_ascending: bool, offset: usize, limit: usize) -> Window {
    Window { sort, is_ascending, offset, limit }
}

fn ids(rows: &[JobRow]) -> Vec<&str> {
    rows.iter().map(|row| row.job_id.as_str()).collect()
}

async fn a_job_is_read_as_it_was_written(history: History) {
    assert!(history.job("none").await.unwrap().is_none());
    let stored = deleted(job("a", 0, &ended("Succeeded", 7, 160)), 200);
    history.store(std::slice::from_ref(&stored)).await.unwrap();
    let read = history.job("a").await.unwrap().unwrap();
    assert_eq!(read.row, stored.row);
    assert_eq!((&read.document["spec"], &read.document["status"]), (&stored.spec, &stored.status));
    let again = JobSnapshot::of(&read.document, Defaults::default()).unwrap();
    assert_eq!(again, stored, "what is read from a row makes the same row");
    // If two jobs have one name, the history returns the newer job.
    let mut later = job("a", 50, &running(1));
    later.row.uid = "another".to_owned();
    history.store(&[later.clone()]).await.unwrap();
    assert_eq!(history.job("a").await.unwrap().unwrap().row, later.row);
}

async fn a_row_changes_to_a_higher_revision_alone_and_an_end_is_for_ever(history: History) {
    let phase = async || history.job("a").await.unwrap().unwrap().document["status"].clone();
    history.store(&[job("a", 0, &running(3))]).await.unwrap();
    history.store(&[job("a", 0, &json!({"phase": "Pending", "revision": 2}))]).await.unwrap();
    assert_eq!(phase().await, running(3));
    let end = ended("Failed", 4, 150);
    history.store(&[job("a", 0, &end)]).await.unwrap();
    history.store(&[job("a", 0, &ended("Succeeded", 9, 170)), job("a", 0, &running(10))]).await.unwrap();
    assert_eq!(phase().await, end);
    history.store(&[deleted(job("a", 0, &end), 300)]).await.unwrap();
    history.store(&[job("a", 0, &end), deleted(job("a", 0, &end), 400)]).await.unwrap();
    let read = history.job("a").await.unwrap().unwrap();
    assert_eq!((read.row.deleted, &read.document["status"]), (Some(second(300)), &end));
}

async fn a_page_has_what_the_filter_takes_in_its_order(history: History) {
    let mut jobs = vec![
        job("c", 5, &running(1)),
        job("a", 5, &ended("Failed", 2, 150)),
        job("b", 9, &json!({})),
        job("100%_d", -50, &ended("Succeeded", 1, 120)),
    ];
    jobs[0].row.user_name = "Bob".to_owned();
    jobs[1].row.kind = "addon".to_owned();
    history.store(&all_gone(jobs)).await.unwrap();
    let page = async |filter: &JobFilter, window: &Window| {
        let (count, rows) = history.page(filter, &[], window).await.unwrap();
        (count, ids(&rows).join(" "))
    };
    let newest = window(SortKey::Created, false, 0, 10);
    let all = everything();
    assert_eq!(page(&all, &newest).await, (4, "b c a 100%_d".to_owned()));
    assert_eq!(page(&all, &window(SortKey::Created, true, 1, 2)).await, (4, "a c".to_owned()));
    assert_eq!(page(&all, &window(SortKey::JobName, true, 0, 10)).await, (4, "100%_d a b c".to_owned()));
    // An absent time sorts as the latest time.
    assert_eq!(page(&all, &window(SortKey::Ended, true, 0, 10)).await, (4, "100%_d a c b".to_owned()));
    assert_eq!(page(&all, &window(SortKey::Created, false, 0, 0)).await, (4, String::new()));
    let since = JobFilter { since: second(5), until: second(5), ..everything() };
    assert_eq!(page(&since, &newest).await, (2, "c a".to_owned()));
    for (filter, found) in [
        (JobFilter { phase: Some("Running".into()), ..everything() }, "c"),
        (JobFilter { kind: Some("addon".into()), ..everything() }, "a"),
        (JobFilter { user_words: Some("bo".into()), ..everything() }, "c"),
        (JobFilter { job_words: Some("0%_".into()), ..everything() }, "100%_d"),
        (JobFilter { job_words: Some("%".into()), workspace: Some("team".into()), ..everything() }, "100%_d"),
        (JobFilter { workspace: Some("other".into()), ..everything() }, ""),
        (JobFilter { job_words: Some("' OR 1=1 --".into()), ..everything() }, ""),
    ] {
        assert_eq!(page(&filter, &newest).await.1, found, "{filter:?}");
    }
}

async fn what_somebody_deleted_is_listed_only_where_it_is_asked_for(history: History) {
    let mut expired = deleted(job("expired", 1, &ended("Succeeded", 2, 150)), 160);
    expired.row.gone_by = Some(GoneBy::Expiry);
    let gone = deleted(job("deleted", 2, &ended("Failed", 2, 150)), 160);
    history.store(&[expired.clone(), gone.clone()]).await.unwrap();
    let newest = window(SortKey::Created, false, 0, 10);
    let listed = async |with_deleted: bool| {
        let filter = JobFilter { with_deleted, ..everything() };
        let (count, rows) = history.page(&filter, &[], &newest).await.unwrap();
        assert_eq!(count, rows.len());
        ids(&rows).join(" ")
    };
    assert_eq!((listed(false).await.as_str(), listed(true).await.as_str()), ("expired", "deleted expired"));
    let read = history.job("expired").await.unwrap().unwrap();
    assert_eq!(read.row, expired.row);
    let again = JobSnapshot::of(&read.document, Defaults::default()).unwrap();
    assert_eq!(again.row.gone_by, Some(GoneBy::Expiry), "its document says so as well");
    // If the end of a job is stored before its deletion, the later write adds the time and the reason of the deletion.
    history.store(&[job("late", 3, &ended("Failed", 2, 150))]).await.unwrap();
    history.store(&[deleted(job("late", 3, &ended("Failed", 2, 150)), 170)]).await.unwrap();
    assert_eq!(history.job("late").await.unwrap().unwrap().row.gone_by, Some(GoneBy::Deletion));
}

async fn jobs_of_one_second_are_in_the_order_of_their_place(history: History) {
    let placed = |id: &str, at: i64, seq: i64| {
        let mut job = job(id, at, &running(1));
        job.row.seq = seq;
        job
    };
    let jobs = [placed("c", 5, 7), placed("a", 5, 12), placed("b", 5, 9), placed("z", 4, 99), placed("d", 6, 1)];
    history.store(&all_gone(jobs)).await.unwrap();
    let (_, rows) = history.page(&everything(), &[], &window(SortKey::Created, true, 0, 10)).await.unwrap();
    assert_eq!(ids(&rows), ["z", "c", "b", "a", "d"]);
    let (_, rows) = history.page(&everything(), &[], &window(SortKey::Kind, false, 1, 3)).await.unwrap();
    assert_eq!(ids(&rows), ["a", "b", "c"]);
}

async fn rows_of_jobs_that_live_do_not_count(history: History) {
    let jobs = [job("a", 1, &running(1)), job("b", 2, &running(1)), job("c", 3, &running(1))];
    history.store(&all_gone(jobs)).await.unwrap();
    // The job `d` still exists in the cluster.
    history.store(&[job("d", 4, &running(1))]).await.unwrap();
    let newest = window(SortKey::Created, false, 0, 10);
    let (count, rows) = history.page(&everything(), &["uid-b", "unknown"], &newest).await.unwrap();
    assert_eq!((count, ids(&rows)), (2, vec!["c", "a"]));
    let (count, _) = history.page(&everything(), &["uid-a", "uid-b", "uid-c"], &newest).await.unwrap();
    assert_eq!(count, 0);
    let many: Vec<String> = (0..10_000).map(|number| format!("{number:036}")).chain(["uid-a".to_owned()]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(history.page(&everything(), &many, &newest).await.unwrap().0, 2);
}

async fn a_job_that_nobody_saw_go_is_closed(history: History) {
    let gone = deleted(job("gone", 1, &ended("Failed", 2, 150)), 160);
    history
        .store(&[job("lost", 1, &running(3)), job("over", 1, &ended("Succeeded", 2, 150)), gone.clone()])
        .await
        .unwrap();
    history.store(&[job("lives", 1, &running(1)), job("newer", 901, &running(1))]).await.unwrap();
    assert_eq!(history.close_lost(&["uid-lives"], second(900), false).await.unwrap(), 2);
    let read = async |id: &str| history.job(id).await.unwrap().unwrap();
    let lost = read("lost").await;
    assert_eq!(
        (lost.row.phase.as_str(), lost.row.ended, lost.row.deleted),
        ("Failed", Some(second(900)), Some(second(900)))
    );
    assert_eq!(lost.document["status"]["conditions"][0]["reason"], "Lost");
    let over = read("over").await;
    assert_eq!(
        (over.row.phase.as_str(), over.row.ended, over.row.deleted),
        ("Succeeded", Some(second(150)), Some(second(900)))
    );
    assert_eq!((read("gone").await.row, read("lives").await.row.deleted), (gone.row, None));
    assert_eq!(read("newer").await.row.deleted, None, "it was made after the list");
    assert_eq!(history.close_lost(&["uid-lives", "uid-newer"], second(902), false).await.unwrap(), 0);
}

async fn what_ended_long_ago_is_removed_once_it_is_gone(history: History) {
    let jobs = [
        deleted(job("old", 1, &ended("Failed", 2, 150)), 160),
        job("kept", 1, &ended("Failed", 2, 150)),
        deleted(job("new", 1, &ended("Failed", 2, 350)), 360),
        job("lives", 1, &running(1)),
    ];
    history.store(&jobs).await.unwrap();
    assert_eq!(history.purge(second(200)).await.unwrap(), 1);
    assert_eq!(history.purge(second(200)).await.unwrap(), 0);
    let mut left = Vec::new();
    for id in ["old", "kept", "new", "lives"] {
        left.extend(history.job(id).await.unwrap().map(|job| job.row.job_id));
    }
    assert_eq!(left, ["kept", "new", "lives"]);
}

async fn requests_get_their_answer_once(history: History) {
    let begun = AuditRow {
        id: "1".into(),
        time: second(1),
        request_id: "r".into(),
        user_name: "alice".into(),
        user_id: "u".into(),
        address: "127.0.0.1:1".into(),
        verb: "POST".into(),
        job_id: String::new(),
        kind: "reboot".into(),
        status: 0,
        code: String::new(),
        body: "{\u{0}}".into(),
    };
    history.note(std::slice::from_ref(&begun)).await.unwrap();
    let answered = AuditRow { status: 200, job_id: "a-bcdfgh".into(), ..begun.clone() };
    history.note(&[answered.clone(), AuditRow { status: 500, ..begun.clone() }]).await.unwrap();
    assert_eq!(history.purge_audit(second(1)).await.unwrap(), 0);
    assert_eq!(history.purge_audit(second(2)).await.unwrap(), 1);
}

async fn nobody_sees_what_he_may_not(history: History) {
    let mut jobs = vec![job("alices", 1, &running(1)), job("bobs", 2, &running(1)), job("nobodys", 3, &running(1))];
    (jobs[1].row.user_name, jobs[1].row.user_id, jobs[1].row.kind) = ("bob".into(), "u2".into(), "addon".into());
    (jobs[2].row.user_name, jobs[2].row.user_id) = (String::new(), String::new());
    history.store(&all_gone(jobs)).await.unwrap();
    let newest = window(SortKey::Created, false, 0, 10);
    let seen = async |kinds: &[&str], id: &str, name: &str| {
        let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let seen = Viewer::Some { kinds, user_id: id.to_owned(), user_name: name.to_owned() };
        let (count, rows) = history.page(&JobFilter { seen, ..everything() }, &[], &newest).await.unwrap();
        assert_eq!(count, rows.len());
        ids(&rows).join(" ")
    };
    assert_eq!(seen(&[], "u1", "alice").await, "alices");
    assert_eq!(seen(&[], "u2", "alice").await, "");
    assert_eq!(seen(&[], "", "").await, "", "who asked for it, nobody knows, and so it is nobody's");
    assert_eq!(seen(&["addon"], "u1", "alice").await, "bobs alices");
}
