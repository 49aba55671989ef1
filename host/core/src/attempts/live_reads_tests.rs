//! Tests of `live_reads`.

use serde_json::json;

use super::*;
use crate::requests::reads::KeptObjects;

fn parent(kind: ParentKind) -> Parent {
    let object = json!({"metadata": {"namespace": "d", "name": "p", "uid": "u", "resourceVersion": "7"}});
    Parent::read(kind, object).unwrap()
}

fn job() -> ChildView {
    ChildView::read(ChildKind::Job, &json!({"metadata": {"namespace": "d", "name": "j", "uid": "u-j"}})).unwrap()
}

/// Returns the only read that a question needs next.
fn needed<T: std::fmt::Debug>(result: Result<T, Pending>) -> Read {
    let Err(Pending::Reads(reads)) = result else { panic!("{result:?}") };
    assert_eq!(reads.len(), 1, "{reads:?}");
    reads.into_iter().next().unwrap()
}

fn answer(answers: &mut Answers, read: &Read, objects: impl IntoIterator<Item = Value>) {
    answers.insert(read.clone(), Ok(KeptObjects::of(read, objects)));
}

#[test]
fn an_object_is_current_if_the_api_server_stores_the_cached_version() {
    let parent = parent(ParentKind::Flow);
    let of = |stored: Option<Value>| {
        let mut answers = Answers::default();
        let read = needed(is_current(&parent, &answers));
        assert_eq!((read.kind.kind.as_str(), read.reduction), ("JobFlow", VERSION));
        answer(&mut answers, &read, stored);
        is_current(&parent, &answers)
    };
    assert_eq!(of(Some(json!({"metadata": {"resourceVersion": "7"}}))), Ok(true));
    assert_eq!(of(Some(json!({"metadata": {"resourceVersion": "8"}}))), Ok(false));
    assert_eq!(of(None), Ok(false));
}

#[test]
fn a_child_is_looked_for_among_operation_jobs_only_if_no_job_is_meant() {
    let child = |uid: &str, owner: &str, namespace: &str| {
        let owner = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "name": "p", "uid": owner});
        json!({"metadata": {"namespace": namespace, "name": uid, "uid": uid, "ownerReferences": [owner]}})
    };
    let (flow, meant) = (parent(ParentKind::Flow), HashSet::from(["a"]));
    let jobs = needed(is_stored(&flow, &meant, &Answers::default()));
    assert_eq!(jobs.kind, Kind::new("batch/v1", "Job"));
    let labels = Some("oarlock.dev/owner-uid=u".to_owned());
    assert_eq!(jobs.selected, Selected::All { namespace: Some("d".to_owned()), labels, fields: None });
    let mut answers = Answers::default();
    answer(&mut answers, &jobs, [child("b", "u", "d"), child("a", "u", "d")]);
    assert_eq!(is_stored(&flow, &meant, &answers), Ok(true));
    let mut answers = Answers::default();
    answer(&mut answers, &jobs, [child("b", "u", "d"), child("a", "other", "d"), child("a", "u", "elsewhere")]);
    let operations = needed(is_stored(&flow, &meant, &answers));
    assert_eq!(operations.kind, Kind::job());
    answer(&mut answers, &operations, []);
    assert_eq!(is_stored(&flow, &meant, &answers), Ok(false));
    let (daemon, mut answers) = (parent(ParentKind::Daemon), Answers::default());
    let jobs = needed(is_stored(&daemon, &meant, &answers));
    answer(&mut answers, &jobs, []);
    assert_eq!(is_stored(&daemon, &meant, &answers), Ok(false), "a DaemonJob has no OperationJobs");
}

#[test]
fn the_pods_of_a_failed_job_are_read_in_the_given_time() {
    let (job, limit) = (job(), Some(Duration::from_secs(2)));
    let read = needed(failed_pods(&job, limit, &Answers::default()));
    assert_eq!((read.time_limit, read.most), (limit, PODS));
    let mut answers = Answers::default();
    answer(&mut answers, &read, [json!({"metadata": {"name": "p"}})]);
    assert_eq!(failed_pods(&job, limit, &answers).map(|pods| pods.len()), Ok(1));
}

#[test]
fn a_job_without_pods_waits_for_what_its_events_say() {
    let (job, now, mut answers) = (job(), Timestamp::from_second(1_767_225_600).unwrap(), Answers::default());
    let pods = needed(wait_reason(&job, now, &answers));
    let Selected::All { fields, labels, .. } = &pods.selected else { panic!("{pods:?}") };
    assert_eq!(labels.as_deref(), Some("batch.kubernetes.io/controller-uid=u-j"));
    assert_eq!(fields.as_deref(), Some(UNFINISHED));
    let unplaced = json!({"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]}});
    answer(&mut answers, &pods, [unplaced]);
    assert_eq!(wait_reason(&job, now, &answers).unwrap(), "pod p has no node: Unschedulable: 0/3 nodes");
    answer(&mut answers, &pods, []);
    let events = needed(wait_reason(&job, now, &answers));
    let Selected::All { fields, .. } = &events.selected else { panic!("{events:?}") };
    assert_eq!(fields.as_deref(), Some("regarding.uid=u-j,type=Warning"));
    let warning =
        json!({"type": "Warning", "reason": "FailedCreate", "note": "no quota", "eventTime": "2026-01-01T00:00:00Z"});
    answer(&mut answers, &events, [warning]);
    assert_eq!(wait_reason(&job, now, &answers).unwrap(), "FailedCreate: no quota");
}
