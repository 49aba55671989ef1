//! Batch Jobs in the simulated cluster under paused time: their pods run commands, and they end as on a real cluster.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use oarlock_sim::world::{Pause, Scope, Seedbed, World, WorldOptions};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

#[cfg(test)]
mod fixture {
    use super::*;

    pub(super) struct Fixture {
        pub(super) client: Client,
        pub(super) world: World,
    }

    impl Fixture {
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

        pub(super) async fn pods(&self) -> Vec<Pod> {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), "demo");
            pods.list(&Default::default()).await.unwrap().items
        }

        /// Waits until a Job has a condition, and returns the Job.
        pub(super) async fn until(&self, name: &str, condition: &str) -> Job {
            let bears = |job: Option<&Job>| job.is_some_and(|job| told(job).iter().any(|(kind, _)| kind == condition));
            let waits = kube::runtime::wait::await_condition(self.jobs(), name, bears);
            tokio::time::timeout(Duration::from_secs(3_600), waits).await.unwrap().unwrap().unwrap()
        }
    }

    /// Returns types and reasons of the conditions that are True.
    pub(super) fn told(job: &Job) -> Vec<(String, String)> {
        let all = job.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let all = all.into_iter().filter(|one| one.status == "True");
        all.map(|one| (one.type_, one.reason.unwrap_or_default())).collect()
    }

    /// Returns a Job `j` whose container runs a script, with further fields of its spec.
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
use fixture::{Fixture, job, outcome, told, took};

#[tokio::test(start_paused = true)]
async fn a_job_on_a_node_whose_commands_fail_fails() {
    let fixture = Fixture::new(1.0).await;
    fixture.world.fail_checks("node-1", 4);
    let mut bad = job("sleep 2", json!({"backoffLimit": 0}));
    bad["spec"]["template"]["spec"]["nodeName"] = json!("node-1");
    fixture.create(bad).await.unwrap();
    fixture.until("j", "Failed").await;
    assert_eq!(outcome(&fixture.pods().await[0]).1, 4);
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_its_command_to_the_end_and_is_complete() {
    let fixture = Fixture::new(1.0).await;
    let created = fixture.create(job("sleep 40; exit 0", json!({}))).await.unwrap();
    let uid = created.uid().unwrap();
    let complete = fixture.until("j", "Complete").await;
    assert_eq!(told(&complete).len(), 2, "SuccessCriteriaMet came first");
    assert!((40..43).contains(&took(&complete)), "{}", took(&complete));
    assert_eq!(complete.status.unwrap().succeeded, Some(1));
    let pods = fixture.pods().await;
    let owner = pods[0].owner_references()[0].clone();
    assert_eq!((owner.uid, owner.controller, owner.block_owner_deletion), (uid.clone(), Some(true), Some(true)));
    assert_eq!((pods[0].labels()["batch.kubernetes.io/controller-uid"].clone(), pods.len()), (uid, 1));
    assert!(pods[0].name_any().starts_with("j-") && pods[0].name_any().len() == 7, "{}", pods[0].name_any());
    assert_eq!(outcome(&pods[0]), ("Succeeded".into(), 0, "Completed".into(), String::new()));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_command_fails_too_often_has_failed() {
    let fixture = Fixture::new(1.0).await;
    let script = "echo no disk > /dev/termination-log; exit 3";
    fixture.create(job(script, json!({"backoffLimit": 1}))).await.unwrap();
    let failed = fixture.until("j", "Failed").await;
    let reason = "BackoffLimitExceeded".to_owned();
    assert_eq!(told(&failed), [("FailureTarget".into(), reason.clone()), ("Failed".into(), reason)]);
    let pods = fixture.pods().await;
    assert_eq!((pods.len(), failed.status.unwrap().failed), (2, Some(2)));
    assert_eq!(outcome(&pods[0]), ("Failed".into(), 3, "Error".into(), "no disk\n".into()));
}

#[tokio::test(start_paused = true)]
async fn a_failing_container_that_is_restarted_ends_its_job_by_its_restarts() {
    let fixture = Fixture::new(1.0).await;
    let mut wanted = job("sleep 1; false", json!({"backoffLimit": 3}));
    wanted["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
    fixture.create(wanted).await.unwrap();
    let failed = fixture.until("j", "Failed").await;
    assert_eq!(told(&failed)[1].1, "BackoffLimitExceeded");
    assert_eq!((failed.status.unwrap().failed, fixture.pods().await.len()), (Some(1), 0));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_job_go_by_the_garbage_collector() {
    let fixture = Fixture::new(1.0).await;
    fixture.create(job("sleep 1000", json!({}))).await.unwrap();
    fixture.world.until("a pod", Duration::from_secs(30), |pods| pods.len() == 1).await.unwrap();
    fixture.jobs().delete("j", &DeleteParams::background()).await.unwrap();
    fixture.world.until("no pod", Duration::from_secs(30), <[_]>::is_empty).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_tells_its_pods_their_indexes() {
    let fixture = Fixture::new(1.0).await;
    let spec = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 2});
    fixture.create(job("sleep 3", spec)).await.unwrap();
    let complete = fixture.until("j", "Complete").await;
    assert_eq!(complete.status.unwrap().completed_indexes.as_deref(), Some("0-2"));
    let pods = fixture.pods().await;
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
    let fixture = Fixture::new(1.0).await;
    fixture.world.hold(Pause::Scheduling, Scope::World);
    let mut wanted = job("true", json!({}));
    wanted["spec"]["template"]["spec"]["nodeName"] = json!("node-2");
    fixture.create(wanted).await.unwrap();
    fixture.until("j", "Complete").await;
    assert_eq!(fixture.pods().await[0].spec.as_ref().unwrap().node_name.as_deref(), Some("node-2"));
}
