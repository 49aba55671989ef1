//! Tests of the plan. No cluster runs.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::kind::locks::TargetLocks;
use oarlock_core::kind::plan::KindPlan;
use oarlock_core::kind::plan_kind::{PlanKind as _, Seen};
use oarlock_core::requests::reads::{Answers, KeptObjects, Pending, Read, ReadFailed};
use oarlock_core::requests::writes::{FailedWrite, Stopped, Write};
use serde_json::{Value, json};

use crate::job::{EchoJob, FINALIZER};
use crate::kind::EchoJobs;
use crate::plan::{pods_of, selected_namespaces};
use crate::pod::{EchoPod, creation};

const NOW: &str = "2026-01-01T00:01:00Z";

/// Returns a job with a finalizer and this status. `deadline` counts from the start.
fn job(deadline: Option<i64>, status: &Value) -> EchoJob {
    let spec = json!({"namespaceSelector": "team=a", "image": "echo:1", "activeDeadlineSeconds": deadline});
    let metadata = json!({"name": "j", "uid": "u", "resourceVersion": "7", "finalizers": [FINALIZER]});
    EchoJob::read(&json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

fn running(deadline: Option<i64>) -> EchoJob {
    let status = json!({"phase": "Running", "namespaces": ["a", "b"], "startedAt": "2026-01-01T00:00:00Z"});
    job(deadline, &status)
}

/// Returns the pod of `job` in a namespace, as the API server would store it.
fn stored_pod(job: &EchoJob, namespace: &str, phase: &str) -> Value {
    let Write::Create { mut body, .. } = creation(job, namespace) else { panic!("it is no creation") };
    body["metadata"]["uid"] = json!(format!("p-{namespace}"));
    body["status"] = json!({"phase": phase});
    body
}

fn pods(job: &EchoJob, pods: &[(&str, &str)]) -> Vec<Arc<EchoPod>> {
    pods.iter().map(|(namespace, phase)| Arc::new(EchoPod::read(&stored_pod(job, namespace, phase)).unwrap())).collect()
}

/// The inputs of a plan beside the job and its pods.
#[derive(Default)]
struct Rest {
    answers: Answers,
    failed: Vec<FailedWrite>,
}

impl Rest {
    fn answer(read: &Read, objects: Vec<Value>) -> Self {
        let mut answers = Answers::default();
        answers.insert(read.clone(), Ok(KeptObjects::of(read, objects)));
        Self { answers, ..Self::default() }
    }
}

fn planned(job: &EchoJob, children: &[Arc<EchoPod>], rest: &Rest) -> Result<KindPlan<()>, Pending> {
    let (locks, now) = (TargetLocks::default(), NOW.parse::<Timestamp>().unwrap());
    let Rest { answers, failed } = rest;
    EchoJobs.plan(&Seen { object: job, children, memory: &(), answers, failed, locks: &locks, now })
}

fn plan(job: &EchoJob, children: &[Arc<EchoPod>]) -> KindPlan<()> {
    planned(job, children, &Rest::default()).unwrap()
}

fn told(plan: &KindPlan<()>) -> Vec<String> {
    let told = |write: &Write| format!("{} {}", write.verb(), write.object());
    plan.writes.iter().map(told).collect()
}

fn status(plan: KindPlan<()>) -> Value {
    plan.status.map(|status| status.body).unwrap_or_default()
}

#[test]
fn a_new_job_gets_its_finalizer_at_the_version_that_the_host_saw() {
    let mut new = job(None, &json!({}));
    new.object.finalizers = vec!["other".to_owned()];
    let plan = plan(&new, &[]);
    let [Write::Patch { body, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    assert_eq!(body[0], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}));
    assert_eq!(body[1], json!({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}));
    assert_eq!(plan.status, None);
}

#[test]
fn the_namespaces_are_stored_before_the_first_pod() {
    let job = job(None, &json!({}));
    let read = selected_namespaces(&job);
    assert_eq!(planned(&job, &[], &Rest::default()), Err(Pending::Reads([read.clone()].into())));
    let found = |name: &str| json!({"metadata": {"name": name}});
    let terminating = json!({"metadata": {"name": "c", "deletionTimestamp": NOW}});
    let plan = planned(&job, &[], &Rest::answer(&read, vec![found("b"), terminating, found("a")])).unwrap();
    assert_eq!(told(&plan), Vec::<String>::new());
    assert_eq!(status(plan), json!({"phase": "Running", "namespaces": ["a", "b"], "startedAt": NOW}));
}

#[test]
fn a_selector_that_the_api_server_refuses_is_in_the_status_and_is_tried_again() {
    let job = job(None, &json!({}));
    let mut rest = Rest::default();
    let failed = ReadFailed { message: "no selector".to_owned(), is_refused: true, retry_after: None };
    rest.answers.insert(selected_namespaces(&job), Err(failed));
    let plan = planned(&job, &[], &rest).unwrap();
    assert!(plan.trouble.is_some());
    assert_eq!(status(plan), json!({"phase": "Pending", "message": "no selector"}));
}

#[test]
fn a_job_with_an_invalid_spec_fails_and_says_why() {
    let metadata = json!({"name": "j", "uid": "u", "resourceVersion": "7", "finalizers": [FINALIZER]});
    let job = EchoJob::read(&json!({"metadata": metadata, "spec": {"image": 3}})).unwrap();
    let failed = status(plan(&job, &[]));
    assert_eq!(failed["phase"], "Failed");
    assert!(failed["message"].as_str().unwrap().starts_with("spec: invalid type: integer"), "{failed}");
}

#[test]
fn each_namespace_without_a_pod_gets_one() {
    let job = running(Some(90));
    let plan = plan(&job, &pods(&job, &[("b", "Running")]));
    assert_eq!(told(&plan), ["create Pod a/echo-j"]);
    assert_eq!(plan.again, Some("2026-01-01T00:01:30Z".parse().unwrap()), "the deadline");
    assert_eq!(plan.status, None);
}

#[test]
fn a_refused_pod_is_in_the_status_until_it_exists() {
    let mut job = running(None);
    let refused = Stopped::Refused { message: "quota".to_owned() };
    let rest = Rest { failed: vec![FailedWrite { write: creation(&job, "a"), stopped: refused }], ..Rest::default() };
    assert_eq!(status(planned(&job, &[], &rest).unwrap())["message"], "quota");
    job.status.message = "quota".to_owned();
    assert_eq!(status(plan(&job, &[])), Value::Null, "the next round tries again first");
    let created = pods(&job, &[("a", "Pending"), ("b", "Pending")]);
    let cleared = status(plan(&job, &created));
    assert!(cleared["phase"] == "Running" && cleared.get("message").is_none(), "{cleared}");
}

#[test]
fn a_job_ends_with_its_last_pod() {
    let job = running(None);
    let of = |phases: [&str; 2]| {
        let pods = pods(&job, &[("a", phases[0]), ("b", phases[1])]);
        let status = status(plan(&job, &pods));
        (status["phase"].clone(), status["finishedAt"].clone(), status["message"].clone())
    };
    assert_eq!(of(["Succeeded", "Running"]), (Value::Null, Value::Null, Value::Null));
    assert_eq!(of(["Succeeded", "Succeeded"]), (json!("Succeeded"), json!(NOW), Value::Null));
    assert_eq!(of(["Succeeded", "Failed"]), (json!("Failed"), json!(NOW), json!("Pod b/echo-j failed")));
}

#[test]
fn a_job_without_namespaces_succeeds() {
    let mut job = running(None);
    job.status.namespaces = Some(Vec::new());
    assert_eq!(status(plan(&job, &[]))["phase"], "Succeeded");
}

#[test]
fn a_job_after_its_deadline_fails_first_and_then_deletes_the_pods_that_run() {
    let mut job = running(Some(60));
    let pods = pods(&job, &[("a", "Succeeded"), ("b", "Running")]);
    let failed = plan(&job, &pods);
    assert_eq!(told(&failed), Vec::<String>::new(), "a pod without its record could come again");
    let failed = status(failed);
    assert_eq!((&failed["phase"], &failed["message"]), (&json!("Failed"), &json!("the deadline is over")));
    job.status.finished_at = Some(NOW.to_owned());
    assert_eq!(told(&plan(&job, &pods)), ["delete Pod b/echo-j"]);
}

#[test]
fn a_deleted_job_goes_after_its_pods_also_after_those_that_only_a_live_read_shows() {
    let mut job = running(None);
    job.object.deleted = Some(NOW.parse().unwrap());
    let read = pods_of(&job);
    assert_eq!(planned(&job, &[], &Rest::default()), Err(Pending::Reads([read.clone()].into())));
    let (mut gone, mut foreign) = (stored_pod(&job, "a", "Running"), stored_pod(&job, "c", "Running"));
    gone["metadata"]["deletionTimestamp"] = json!(NOW);
    foreign["metadata"]["ownerReferences"][0]["uid"] = json!("other");
    let found = vec![gone, stored_pod(&job, "b", "Running"), foreign.clone()];
    let waits = planned(&job, &[], &Rest::answer(&read, found)).unwrap();
    assert_eq!(told(&waits), ["delete Pod b/echo-j"]);
    assert!(waits.again.is_some());
    let last = planned(&job, &[], &Rest::answer(&read, vec![foreign])).unwrap();
    let [Write::Patch { body, .. }] = &last.writes[..] else { panic!("{last:?}") };
    assert_eq!(body[1], json!({"op": "remove", "path": "/metadata/finalizers/0"}));
    job.object.finalizers.clear();
    assert_eq!(plan(&job, &[]), KindPlan::default());
}
