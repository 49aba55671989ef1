//! One round of the Job controller: read, decide (`deciders::job`), act. It creates and deletes pods first and then writes the
//! status, which reports the results.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::action::PodName;
use super::deciders::job::{JobPlan, JobStep, JobView, plan};
use super::deciders::job_status;
use super::jobs::{place_of_job, uid_of};
use super::ledger::Cause;
use super::new_objects::{job_pod_base, pod_of_job};
use super::pauses::Pause;
use super::rounds::{Rounds, told};
use super::store::Place;
use super::writer::{IN_FLIGHT, WriteFailed, only_if};

impl Rounds {
    /// Reconciles a Job. Returns the delay after which it needs another round.
    pub(crate) async fn job_round(&self, place: &Place) -> Option<Duration> {
        let job = self.jobs.get(place).filter(|job| job.metadata.deletion_timestamp.is_none())?;
        let JobPlan { steps, status, again } = self.decide_job(&job);
        let mut unmade = 0;
        let mut retry = None;
        let performed = futures::stream::iter(steps).map(|step| self.perform_step(&job, step));
        let mut performed = std::pin::pin!(performed.buffer_unordered(IN_FLIGHT));
        while let Some((is_creation, result)) = performed.next().await {
            unmade += usize::from(is_creation && result.is_err());
            retry = told(result).or(retry);
        }
        if let Some(status) = status.map(|status| job_status::without(status, unmade)) {
            let stored = job.status.as_ref().map(|status| json!(status)).unwrap_or_default();
            if !job_status::says(&stored, &status) {
                retry = told(self.write_job_status(&job, &status).await).or(retry);
            }
        }
        [again, retry].into_iter().flatten().min()
    }

    fn decide_job(&self, job: &Job) -> JobPlan {
        let pods = self.store.members(&place_of_job(job).0, uid_of(job));
        let (now, held) = (self.clock.now(), self.pauses.hold(Pause::Creation, None, &[]));
        self.jobs.tally(uid_of(job), |tally| {
            tally.note(job, &pods, now);
            plan(&JobView { job, pods: &pods, tally, now, creation_held: held })
        })
    }

    /// Performs a step. The flag says whether the step creates a pod.
    async fn perform_step(&self, job: &Job, step: JobStep) -> (bool, Result<(), WriteFailed>) {
        match step {
            JobStep::CreatePod { index } => (true, self.create_job_pod(job, index).await),
            JobStep::DeletePod { pod, released } => (false, self.delete_job_pod(job, &pod, released).await),
            JobStep::Expire => (false, self.expire(job).await),
        }
    }

    async fn create_job_pod(&self, job: &Job, index: Option<i32>) -> Result<(), WriteFailed> {
        let namespace = job.namespace().unwrap_or_default();
        let drawn = self.jobs.tally(uid_of(job), |tally| tally.draw()).to_string();
        let suffix = self.writer.random.suffix(&["job pod", &namespace, &job.name_any(), uid_of(job), &drawn]);
        let name = format!("{}{suffix}", job_pod_base(job, index));
        let mut pod = pod_of_job(job, index, name.clone());
        let spec = pod.spec.get_or_insert_default();
        let place = (namespace.clone(), name.clone());
        if spec.node_name.is_none() && !self.pauses.hold(Pause::Scheduling, Some(&place), &[]) {
            spec.node_name = self.writer.node_for(&place, spec).ok();
        }
        let (api, parameters) = (self.writer.pods(&namespace), PostParams::default());
        let created = self.writer.within_bound(api.create(&parameters, &pod)).await;
        self.store.put_pod(created.map_err(|source| WriteFailed::CreatePod { name, source })?);
        Ok(())
    }

    /// Deletes a pod. A released pod does not count as failed.
    async fn delete_job_pod(&self, job: &Job, pod: &PodName, released: bool) -> Result<(), WriteFailed> {
        self.writer.ledger.announce(&pod.uid, Cause::ScaledDown);
        self.writer.delete_pod(&job.namespace().unwrap_or_default(), pod).await?;
        if released {
            self.jobs.tally(uid_of(job), |tally| tally.release(&pod.uid));
        }
        Ok(())
    }

    /// Deletes a finished Job whose TTL is over. As with the real controller, its pods go first.
    async fn expire(&self, job: &Job) -> Result<(), WriteFailed> {
        let parameters = only_if(uid_of(job), DeleteParams::foreground());
        let (api, name) = (self.job_api(job), job.name_any());
        let deleted = self.writer.within_bound(api.delete(&name, &parameters)).await;
        deleted.map(drop).map_err(|source| WriteFailed::ChangeJob { name, source })
    }

    async fn write_job_status(&self, job: &Job, status: &Value) -> Result<(), WriteFailed> {
        let body = Patch::Merge(json!({ "metadata": { "uid": uid_of(job) }, "status": status }));
        let (api, name, parameters) = (self.job_api(job), job.name_any(), PatchParams::default());
        let patched = self.writer.within_bound(api.patch_status(&name, &parameters, &body)).await;
        self.jobs.put(patched.map_err(|source| WriteFailed::ChangeJob { name, source })?);
        Ok(())
    }

    fn job_api(&self, job: &Job) -> Api<Job> {
        Api::namespaced(self.writer.client.clone(), &job.namespace().unwrap_or_default())
    }
}
