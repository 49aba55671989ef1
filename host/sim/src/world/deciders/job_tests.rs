//! Tests of the decider of Jobs, with a Job and pods that no cluster stores.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::time::Duration;

use super::job::{JobPlan, JobStep, JobView, plan};
use super::job_status::{indexes_of, says, text_of};
use super::job_tally::Tally;
use crate::world::action::{Member, PodName};
use crate::world::labels::COMPLETION_INDEX;
use crate::world::samples::{SamplePod, pod};

/// A Job, its pod counts, and the current time.
struct Desk {
    job: Value,
    tally: Tally,
    now: Timestamp,
}

impl Desk {
    fn new(spec: Value) -> Self {
        let mut job = json!({"metadata": {"name": "j", "namespace": "demo", "uid": "uid-j"}, "spec": {
            "parallelism": 1, "completions": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": false,
            "template": {"spec": {"restartPolicy": "Never", "containers": []}},
        }});
        json_patch::merge(&mut job, &json!({ "spec": spec }));
        Self { job, tally: Tally::default(), now: Timestamp::from_second(1_000).unwrap() }
    }

    fn change(&mut self, spec: Value) {
        json_patch::merge(&mut self.job, &json!({ "spec": spec }));
    }

    fn pass(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    /// Runs one round and writes its status into the Job.
    fn round(&mut self, pods: &[Member]) -> JobPlan {
        let job: Job = serde_json::from_value(self.job.clone()).unwrap();
        self.tally.note(&job, pods, self.now);
        let plan = plan(&JobView { job: &job, pods, tally: &self.tally, now: self.now, creation_held: false });
        if let Some(status) = &plan.status {
            json_patch::merge(&mut self.job, &json!({ "status": status }));
        }
        plan
    }

    fn status(&self, field: &str) -> &Value {
        &self.job["status"][field]
    }

    /// Returns the types and reasons of the conditions that are True.
    fn told(&self) -> Vec<(&str, &str)> {
        let all = self.status("conditions").as_array().into_iter().flatten();
        let all = all.filter(|one| one["status"] == "True");
        all.map(|one| (one["type"].as_str().unwrap(), one["reason"].as_str().unwrap())).collect()
    }
}

fn indexed(name: &str, index: i32) -> SamplePod {
    let mut pod = pod(name);
    pod.0.metadata.annotations.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), index.to_string());
    pod
}

fn made(plan: &JobPlan) -> Vec<Option<i32>> {
    let step = |step: &JobStep| if let JobStep::CreatePod { index } = step { Some(*index) } else { None };
    plan.steps.iter().filter_map(step).collect()
}

fn deleted(plan: &JobPlan) -> Vec<(&str, bool)> {
    let step = |step| match step {
        &JobStep::DeletePod { pod: PodName { ref name, .. }, released } => Some((name.as_str(), released)),
        _ => None,
    };
    plan.steps.iter().filter_map(step).collect()
}

#[test]
fn a_job_makes_its_pod_and_says_first_that_it_will_be_complete_and_then_that_it_is() {
    let mut desk = Desk::new(json!({}));
    assert_eq!(made(&desk.round(&[])), [None]);
    assert_eq!((desk.status("active"), desk.status("startTime")), (&json!(1), &json!("1970-01-01T00:16:40Z")));
    assert_eq!(desk.round(&[pod("a").member()]).steps, []);
    assert_eq!(desk.status("ready"), 1);
    let ended = [pod("a").ended(0).member()];
    desk.round(&ended);
    assert_eq!(desk.told(), [("SuccessCriteriaMet", "CompletionsReached")]);
    assert_eq!(desk.status("completionTime"), &Value::Null);
    desk.pass(1);
    desk.round(&ended);
    assert_eq!(desk.told(), [("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached")]);
    assert_eq!((desk.status("succeeded"), desk.status("active")), (&json!(1), &json!(0)));
    assert_eq!(desk.status("completionTime"), "1970-01-01T00:16:41Z");
    assert_eq!(desk.round(&[]), JobPlan::default());
}

#[test]
fn a_job_never_runs_more_pods_than_completions_are_left() {
    let mut desk = Desk::new(json!({"completions": 3, "parallelism": 2}));
    assert_eq!(made(&desk.round(&[])).len(), 2);
    let pods = [pod("a").ended(0).member(), pod("b").ended(0).member()];
    assert_eq!(made(&desk.round(&pods)).len(), 1);
    assert_eq!(desk.status("succeeded"), 2);
    assert_eq!(made(&desk.round(&pods[..1])).len(), 1, "what was counted stays so when its pod is gone");
    assert_eq!(desk.status("succeeded"), 2);
}

#[test]
fn without_completions_the_first_success_ends_what_is_started() {
    let mut desk = Desk::new(json!({"completions": null, "parallelism": 2}));
    assert_eq!(made(&desk.round(&[])).len(), 2);
    assert_eq!(desk.round(&[pod("a").ended(0).member(), pod("b").member()]).steps, []);
    assert_eq!(desk.told(), []);
    desk.round(&[pod("a").ended(0).member(), pod("b").ended(1).member()]);
    assert_eq!(desk.told(), [("SuccessCriteriaMet", "CompletionsReached")]);
}

#[test]
fn a_failed_pod_is_replaced_after_ten_seconds_and_then_twenty() {
    let mut desk = Desk::new(json!({"backoffLimit": 2}));
    desk.round(&[]);
    let failed = |name: &str| pod(name).ended(1).member();
    let plan = desk.round(&[failed("a")]);
    assert_eq!((made(&plan), plan.again), (vec![], Some(Duration::from_secs(10))));
    desk.pass(10);
    assert_eq!(made(&desk.round(&[failed("a")])), [None]);
    let both = [failed("a"), failed("b")];
    assert_eq!(desk.round(&both).again, Some(Duration::from_secs(20)));
    desk.pass(20);
    assert_eq!(made(&desk.round(&both)), [None]);
    let all = [failed("a"), failed("b"), failed("c")];
    desk.round(&all);
    desk.round(&all);
    assert_eq!(desk.told(), [("FailureTarget", "BackoffLimitExceeded"), ("Failed", "BackoffLimitExceeded")]);
    assert_eq!((desk.status("failed"), desk.status("completionTime")), (&json!(3), &Value::Null));
}

#[test]
fn a_deadline_that_is_patched_in_ends_a_running_job_once_its_pods_have_ended() {
    let mut desk = Desk::new(json!({"backoffLimit": 0}));
    desk.round(&[]);
    desk.pass(30);
    desk.change(json!({"activeDeadlineSeconds": 60}));
    assert_eq!(desk.round(&[pod("a").member()]).again, Some(Duration::from_secs(30)));
    desk.change(json!({"activeDeadlineSeconds": 1}));
    assert_eq!(deleted(&desk.round(&[pod("a").member()])), [("a", false)]);
    assert_eq!((desk.status("active"), desk.status("terminating")), (&json!(0), &json!(1)));
    desk.round(&[pod("a").terminating().member()]);
    assert_eq!(desk.told(), [("FailureTarget", "DeadlineExceeded")]);
    desk.round(&[]);
    assert_eq!(desk.told(), [("FailureTarget", "DeadlineExceeded"), ("Failed", "DeadlineExceeded")]);
    assert_eq!(desk.status("failed"), 1);
}

#[test]
fn a_suspended_job_deletes_its_pods_without_counting_them_and_starts_anew() {
    let mut desk = Desk::new(json!({"backoffLimit": 0, "activeDeadlineSeconds": 50}));
    desk.round(&[]);
    desk.change(json!({"suspend": true}));
    let plan = desk.round(&[pod("a").member()]);
    assert_eq!((deleted(&plan), plan.again), (vec![("a", true)], None));
    desk.tally.release("uid-a");
    assert_eq!(desk.told(), [("Suspended", "JobSuspended")]);
    desk.pass(100);
    desk.round(&[]);
    desk.change(json!({"suspend": false}));
    assert_eq!(made(&desk.round(&[])), [None]);
    assert_eq!((desk.told(), desk.status("failed")), (vec![], &json!(0)));
    assert_eq!(desk.status("startTime"), "1970-01-01T00:18:20Z");
}

#[test]
fn a_job_that_is_made_suspended_has_no_start() {
    let mut desk = Desk::new(json!({"suspend": true}));
    assert_eq!(desk.round(&[]).steps, []);
    assert_eq!((desk.told(), desk.status("startTime")), (vec![("Suspended", "JobSuspended")], &Value::Null));
}

#[test]
fn an_indexed_job_runs_each_index_once_and_a_second_pod_of_one_goes() {
    let mut desk = Desk::new(json!({"completionMode": "Indexed", "completions": 4, "parallelism": 3}));
    assert_eq!(made(&desk.round(&[])), [Some(0), Some(1), Some(2)]);
    let pods = [indexed("a", 0).ended(0).member(), indexed("b", 1).member(), indexed("c", 2).ended(0).member()];
    assert_eq!(made(&desk.round(&pods)), [Some(3)]);
    assert_eq!((desk.status("succeeded"), desk.status("completedIndexes")), (&json!(2), &json!("0,2")));
    let twice = [indexed("b", 1).member(), indexed("d", 3).member(), indexed("e", 3).member()];
    assert_eq!(deleted(&desk.round(&twice)), [("e", true)]);
}

#[test]
fn a_success_policy_completes_a_job_and_its_other_pods_do_not_fail() {
    let policy = json!({"rules": [{"succeededIndexes": "7"}, {"succeededIndexes": "0,2-3", "succeededCount": 2}]});
    let spec = json!({"completionMode": "Indexed", "completions": 4, "parallelism": 4, "successPolicy": policy});
    let mut desk = Desk::new(spec);
    desk.round(&[]);
    let some = [indexed("a", 0).ended(0).member(), indexed("b", 1).ended(0).member(), indexed("c", 2).member()];
    desk.round(&some);
    assert_eq!(desk.told(), []);
    let more = [indexed("c", 2).ended(0).member(), indexed("d", 3).member()];
    assert_eq!(deleted(&desk.round(&more)), [("d", true)]);
    desk.tally.release("uid-d");
    desk.round(&more[..1]);
    assert_eq!(desk.told(), [("SuccessCriteriaMet", "SuccessPolicy"), ("Complete", "SuccessPolicy")]);
    assert_eq!(desk.status("failed"), 0);
}

#[test]
fn a_finished_job_expires_after_its_time_and_one_of_another_manager_is_left_alone() {
    let mut desk = Desk::new(json!({"ttlSecondsAfterFinished": 30}));
    let ended = [pod("a").ended(0).member()];
    desk.round(&ended);
    desk.round(&ended);
    assert_eq!(desk.round(&ended).again, Some(Duration::from_secs(30)));
    desk.change(json!({"ttlSecondsAfterFinished": 0}));
    assert_eq!(desk.round(&ended).steps, [JobStep::Expire]);
    assert_eq!(Desk::new(json!({"managedBy": "example.com/other"})).round(&[]), JobPlan::default());
    assert_eq!(made(&Desk::new(json!({"managedBy": "kubernetes.io/job-controller"})).round(&[])), [None]);
}

#[test]
fn a_pod_that_somebody_deletes_has_failed() {
    let mut desk = Desk::new(json!({}));
    desk.round(&[]);
    let plan = desk.round(&[pod("a").terminating().member()]);
    assert_eq!(made(&plan), [None], "its deletion began long ago");
    assert_eq!((desk.status("failed"), desk.status("terminating")), (&json!(1), &json!(1)));
    let mut strict = Desk::new(json!({"podReplacementPolicy": "Failed"}));
    strict.round(&[]);
    assert_eq!(strict.round(&[pod("a").terminating().member()]).steps, []);
    assert_eq!(strict.status("failed"), 0);
    strict.round(&[]);
    assert_eq!(strict.status("failed"), 1, "it was there and is gone");
}

#[test]
fn a_world_that_comes_later_counts_no_pod_twice() {
    let mut desk = Desk::new(json!({"completions": 5}));
    desk.job["status"] = json!({"succeeded": 2, "failed": 1, "startTime": "1970-01-01T00:00:00Z"});
    desk.round(&[pod("a").ended(0).member(), pod("b").ended(1).member()]);
    assert_eq!((desk.status("succeeded"), desk.status("failed")), (&json!(2), &json!(1)));
}

#[test]
fn indexes_are_written_as_runs_and_read_back_and_empty_is_as_good_as_absent() {
    assert_eq!(text_of(&indexes_of("0,2-4,9", 8)), "0,2-4");
    assert!(says(&json!({"a": 1}), &json!({"a": 1, "b": 0, "c": {}, "d": null})));
    assert!(!says(&json!({"a": 1}), &json!({"a": 2})));
}
