//! Batch Jobs in the simulated world under paused time: their pods run commands, and they end as on a real cluster.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use oarlock_sim::world::{Pause, Scope, Seedbed, World, WorldOptions};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

#[cfg(test)]
mod stage {
    use super::*;

    pub(super) struct Stage {
        pub(super) client: Client,
        pub(super) world: World,
    }

    impl Stage {
        pub(super) async fn new(sleep_factor: f64) -> Self {
            let options = Options { seed: 5, ..Options::default() };
            let clock = options.clock.clone();
            let client = Client::new(Cluster::new(options).service(), "demo");
            let options = WorldOptions { sleep_factor, ..WorldOptions::new(5, clock) };
            let world = World::start(client.clone(), options).await.unwrap();
            Seedbed::namespace(client.clone(), "demo").await.unwrap();
            Self { client, world }
        }

        pub(super) fn jobs(&self) -> Api<Job> {
            Api::namespaced(self.client.clone(), "demo")
        }

        pub(super) async fn create(&self, job: Value) -> Result<Job, String> {
            let job = serde_json::from_value(job).unwrap();
            let created = self.jobs().create(&PostParams::default(), &job).await;
            created.map_err(|refusal| refusal.to_string())
        }

        pub(super) async fn patch(&self, name: &str, spec: Value) -> Result<Job, String> {
            let patch = Patch::Merge(json!({ "spec": spec }));
            let patched = self.jobs().patch(name, &PatchParams::default(), &patch).await;
            patched.map_err(|refusal| refusal.to_string())
        }

        pub(super) async fn pods(&self) -> Vec<Pod> {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), "demo");
            pods.list(&Default::default()).await.unwrap().items
        }

        /// Waits until a Job bears a condition; yields the Job.
        pub(super) async fn until(&self, name: &str, condition: &str) -> Job {
            let bears = |job: Option<&Job>| job.is_some_and(|job| told(job).iter().any(|(kind, _)| kind == condition));
            let waits = kube::runtime::wait::await_condition(self.jobs(), name, bears);
            tokio::time::timeout(Duration::from_secs(3_600), waits).await.unwrap().unwrap().unwrap()
        }

        pub(super) async fn until_gone(&self, name: &str) {
            let waits = kube::runtime::wait::await_condition(self.jobs(), name, |job: Option<&Job>| job.is_none());
            tokio::time::timeout(Duration::from_secs(3_600), waits).await.unwrap().unwrap();
        }
    }

    /// Types and reasons of the conditions that are True.
    pub(super) fn told(job: &Job) -> Vec<(String, String)> {
        let all = job.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let all = all.into_iter().filter(|one| one.status == "True");
        all.map(|one| (one.type_, one.reason.unwrap_or_default())).collect()
    }

    /// A Job `j` whose container runs a script, with further fields of its spec.
    pub(super) fn job(script: &str, spec: Value) -> Value {
        let container = json!({"name": "main", "image": "busybox:1", "command": ["sh", "-c", script]});
        let pod = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]});
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": pod}},
        });
        for (field, value) in spec.as_object().unwrap() {
            job["spec"][field] = value.clone();
        }
        job
    }

    pub(super) fn took(job: &Job) -> i64 {
        let status = job.status.as_ref().unwrap();
        let [start, end] =
            [&status.start_time, &status.completion_time].map(|time| time.as_ref().unwrap().0.as_second());
        end - start
    }

    pub(super) fn outcome(pod: &Pod) -> (String, i32, String, String) {
        let status = pod.status.clone().unwrap();
        let state = status.container_statuses.unwrap().remove(0).state.unwrap().terminated.unwrap();
        assert!(state.finished_at.is_some());
        (status.phase.unwrap(), state.exit_code, state.reason.unwrap(), state.message.unwrap_or_default())
    }
}

#[cfg(test)]
use stage::{Stage, job, outcome, told, took};

#[tokio::test(start_paused = true)]
async fn a_job_on_a_node_whose_commands_fail_fails() {
    let stage = Stage::new(1.0).await;
    stage.world.fail_checks("node-1", 4);
    let mut bad = job("sleep 2", json!({"backoffLimit": 0}));
    bad["spec"]["template"]["spec"]["nodeName"] = json!("node-1");
    stage.create(bad).await.unwrap();
    stage.until("j", "Failed").await;
    assert_eq!(outcome(&stage.pods().await[0]).1, 4);
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_its_command_to_the_end_and_is_complete() {
    let stage = Stage::new(1.0).await;
    let created = stage.create(job("sleep 40; exit 0", json!({}))).await.unwrap();
    let uid = created.uid().unwrap();
    let complete = stage.until("j", "Complete").await;
    assert_eq!(told(&complete).len(), 2, "SuccessCriteriaMet came first");
    assert!((40..43).contains(&took(&complete)), "{}", took(&complete));
    assert_eq!(complete.status.unwrap().succeeded, Some(1));
    let pods = stage.pods().await;
    let owner = pods[0].owner_references()[0].clone();
    assert_eq!((owner.uid, owner.controller, owner.block_owner_deletion), (uid.clone(), Some(true), Some(true)));
    assert_eq!((pods[0].labels()["batch.kubernetes.io/controller-uid"].clone(), pods.len()), (uid, 1));
    assert!(pods[0].name_any().starts_with("j-") && pods[0].name_any().len() == 7, "{}", pods[0].name_any());
    assert_eq!(outcome(&pods[0]), ("Succeeded".into(), 0, "Completed".into(), String::new()));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_command_fails_too_often_has_failed() {
    let stage = Stage::new(1.0).await;
    let script = "echo no disk > /dev/termination-log; exit 3";
    stage.create(job(script, json!({"backoffLimit": 1}))).await.unwrap();
    let failed = stage.until("j", "Failed").await;
    let reason = "BackoffLimitExceeded".to_owned();
    assert_eq!(told(&failed), [("FailureTarget".into(), reason.clone()), ("Failed".into(), reason)]);
    let pods = stage.pods().await;
    assert_eq!((pods.len(), failed.status.unwrap().failed), (2, Some(2)));
    assert_eq!(outcome(&pods[0]), ("Failed".into(), 3, "Error".into(), "no disk\n".into()));
}

#[tokio::test(start_paused = true)]
async fn a_failing_container_that_is_restarted_ends_its_job_by_its_restarts() {
    let stage = Stage::new(1.0).await;
    let mut wanted = job("sleep 1; false", json!({"backoffLimit": 3}));
    wanted["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
    stage.create(wanted).await.unwrap();
    let failed = stage.until("j", "Failed").await;
    assert_eq!(told(&failed)[1].1, "BackoffLimitExceeded");
    assert_eq!((failed.status.unwrap().failed, stage.pods().await.len()), (Some(1), 0));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_a_second_stops_a_running_job_which_fails_once_its_pods_have_ended() {
    let stage = Stage::new(1.0).await;
    stage.create(job("sleep 1000", json!({"completions": 2, "parallelism": 2}))).await.unwrap();
    let run = |pods: &[std::sync::Arc<Pod>]| {
        pods.len() == 2 && pods.iter().all(|pod| pod.status.as_ref().unwrap().phase.as_deref() == Some("Running"))
    };
    stage.world.until("two pods to run", Duration::from_secs(30), run).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.world.hold(Pause::Termination, Scope::World);
    stage.patch("j", json!({"activeDeadlineSeconds": 1})).await.unwrap();
    stage.until("j", "FailureTarget").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let waits = stage.jobs().get("j").await.unwrap();
    assert_eq!(told(&waits), [("FailureTarget".to_owned(), "DeadlineExceeded".to_owned())]);
    assert_eq!(waits.status.unwrap().terminating, Some(2));
    stage.world.release(Pause::Termination, Scope::World);
    let failed = stage.until("j", "Failed").await;
    assert_eq!(failed.status.unwrap().failed, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_job_without_time_to_live_is_gone_with_its_pods_once_it_has_ended() {
    let stage = Stage::new(1.0).await;
    stage.create(job("sleep 2", json!({"ttlSecondsAfterFinished": 0}))).await.unwrap();
    stage.until_gone("j").await;
    assert_eq!(stage.pods().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_job_go_by_the_garbage_collector() {
    let stage = Stage::new(1.0).await;
    stage.create(job("sleep 1000", json!({}))).await.unwrap();
    stage.world.until("a pod", Duration::from_secs(30), |pods| pods.len() == 1).await.unwrap();
    stage.jobs().delete("j", &DeleteParams::background()).await.unwrap();
    stage.world.until("no pod", Duration::from_secs(30), <[_]>::is_empty).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_loses_its_pods_and_starts_anew_when_it_is_resumed() {
    let stage = Stage::new(0.1).await;
    stage.create(job("sleep 400", json!({"backoffLimit": 0}))).await.unwrap();
    stage.world.until("a pod", Duration::from_secs(30), |pods| pods.len() == 1).await.unwrap();
    stage.patch("j", json!({"suspend": true})).await.unwrap();
    stage.until("j", "Suspended").await;
    stage.world.until("no pod", Duration::from_secs(30), <[_]>::is_empty).await.unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    stage.patch("j", json!({"suspend": false})).await.unwrap();
    let complete = stage.until("j", "Complete").await;
    assert!((40..43).contains(&took(&complete)), "a tenth of its sleep, from the second start: {}", took(&complete));
    assert_eq!(complete.status.unwrap().failed.unwrap_or(0), 0);
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_tells_its_pods_their_indexes() {
    let stage = Stage::new(1.0).await;
    let spec = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 2});
    stage.create(job("sleep 3", spec)).await.unwrap();
    let complete = stage.until("j", "Complete").await;
    assert_eq!(complete.status.unwrap().completed_indexes.as_deref(), Some("0-2"));
    let pods = stage.pods().await;
    let key = "batch.kubernetes.io/job-completion-index";
    let mut indexes: Vec<_> = pods.iter().map(|pod| pod.annotations()[key].clone()).collect();
    indexes.sort();
    assert_eq!(indexes, ["0", "1", "2"]);
    assert!(pods.iter().all(|pod| {
        let host = format!("j-{}", pod.annotations()[key]);
        pod.name_any().starts_with(&host) && pod.spec.as_ref().unwrap().hostname.as_ref() == Some(&host)
    }));
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_node_of_its_own_runs_there_without_the_scheduler() {
    let stage = Stage::new(1.0).await;
    stage.world.hold(Pause::Scheduling, Scope::World);
    let mut wanted = job("true", json!({}));
    wanted["spec"]["template"]["spec"]["nodeName"] = json!("node-2");
    stage.create(wanted).await.unwrap();
    stage.until("j", "Complete").await;
    assert_eq!(stage.pods().await[0].spec.as_ref().unwrap().node_name.as_deref(), Some("node-2"));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_run_is_refused() {
    let stage = Stage::new(1.0).await;
    let refused = async |change: &dyn Fn(&mut Value)| {
        let mut wanted = job("true", json!({}));
        change(&mut wanted);
        stage.create(wanted).await.unwrap_err()
    };
    let said = refused(&|job| job["spec"]["template"]["spec"]["restartPolicy"] = json!("Always")).await;
    assert!(said.contains("restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""), "{said}");
    let labels = json!({"labels": {"controller-uid": "mine"}});
    let said = refused(&|job| job["spec"]["template"]["metadata"] = labels.clone()).await;
    assert!(said.contains("spec.template.metadata.labels[controller-uid]: Invalid value"), "{said}");
    let said = refused(&|job| job["spec"]["template"]["spec"]["containers"] = json!([])).await;
    assert!(said.contains("spec.template.spec.containers: Required value"), "{said}");
    let said = refused(&|job| job["metadata"]["name"] = json!("x".repeat(64))).await;
    assert!(said.contains("spec.template.labels: Invalid value") && said.contains("more than 63 bytes"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_job_keeps_its_template_and_its_completions() {
    let stage = Stage::new(1.0).await;
    stage.create(job("sleep 1000", json!({}))).await.unwrap();
    let image = json!({"template": {"spec": {"terminationGracePeriodSeconds": 7}}});
    let said = stage.patch("j", image).await.unwrap_err();
    assert!(said.contains("spec.template: Invalid value") && said.contains("field is immutable"), "{said}");
    let said = stage.patch("j", json!({"completions": 2})).await.unwrap_err();
    assert!(said.contains("spec.completions: Invalid value: 2: field is immutable"), "{said}");
    let patched = stage.patch("j", json!({"parallelism": 2, "ttlSecondsAfterFinished": 5})).await.unwrap();
    let spec = patched.spec.unwrap();
    assert_eq!(
        (spec.parallelism, spec.backoff_limit, spec.completion_mode.as_deref()),
        (Some(2), Some(6), Some("NonIndexed"))
    );
}
