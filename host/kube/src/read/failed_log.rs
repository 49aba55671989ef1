//! Reads the end of the log of a failed Job: of its newest failed pod, and there of the container that failed.

use futures::AsyncReadExt as _;
use kube::api::LogParams;
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::fields::{list, number, text};
use oarlock_core::object::key::is_object_name;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::read::logs::{ContainerRun, runs};
use crate::read::past_cache::{ListPick, ListSelection};
use crate::read::target_pod::TargetPod;
use crate::transport::projection::Projection;

/// The most lines of the end of a log.
const LINES: i64 = 100;
/// The most bytes of the end of a log.
const BYTES: usize = 32 * 1024;
/// The most bytes that are read for these lines. The kubelet rotates a log after 10 MiB.
const READ: usize = 16 * 1024 * 1024;
/// The most pods of a Job that are compared.
const PODS: usize = 200;
/// The label with the name of the Job on each of its pods.
const JOB_NAME: &str = "job-name";

/// The end of the log of a failed Job: at most 100 lines and 32 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedLog {
    /// The name of the pod.
    pub pod: String,
    /// The name of the container.
    pub container: String,
    /// The end of the container in words, such as `exited with code 1 (Error)`. Empty if the container has not ended.
    pub end: String,
    /// The bytes that the container wrote.
    pub bytes: Vec<u8>,
    /// True if the last 100 lines have more than 32 KiB.
    pub is_cut: bool,
}

/// The reason why a failed Job has no log to show.
#[derive(Debug, thiserror::Error)]
pub enum NoFailedLog {
    /// The pods of the Job are deleted.
    #[error(
        "no pod of the Job {0} is left: Kubernetes deletes pods with their Job or their node, and when a Job exceeds its deadline"
    )]
    NoPod(String),
    /// No container of the pod has started.
    #[error("no container of the pod {0} has started{1}")]
    NotStarted(String, String),
    /// The API server or the kubelet gave no log, with its message.
    #[error("{0}")]
    Unavailable(String),
}

/// A container run of a Job's pod.
struct FailedRun {
    pod: TargetPod,
    run: ContainerRun,
    end: String,
}

impl Cluster {
    /// Reads the end of the log of a Job. The caller limits the time.
    ///
    /// # Errors
    /// If there is no log, with the reason.
    pub async fn failed_log(&self, namespace: &str, job: &str) -> Result<FailedLog, NoFailedLog> {
        let FailedRun { pod, run, end } = self.failed_run(namespace, job).await?;
        let unavailable = |why: String| NoFailedLog::Unavailable(why);
        let params = LogParams { tail_lines: Some(LINES), timestamps: false, ..run.params() };
        let mut log = self.open_part(&pod, &params).await.map_err(|failed| unavailable(failed.to_string()))?;
        let (mut kept, mut read, mut chunk) = (Vec::new(), 0_usize, [0_u8; 8 * 1024]);
        loop {
            let count =
                log.read(&mut chunk).await.map_err(|error| unavailable(format!("the log broke off: {error}")))?;
            if count == 0 {
                break;
            }
            read = read.saturating_add(count);
            if read > READ {
                return Err(unavailable(format!("the last {LINES} lines of {} have more than 16 MiB", pod.name)));
            }
            kept.extend_from_slice(chunk.get(..count).unwrap_or_default());
            kept.drain(..kept.len().saturating_sub(BYTES));
        }
        Ok(FailedLog { pod: pod.name, container: run.container, end, bytes: kept, is_cut: read > BYTES })
    }

    async fn failed_run(&self, namespace: &str, job: &str) -> Result<FailedRun, NoFailedLog> {
        if !is_object_name(job) {
            return Err(NoFailedLog::NoPod(job.to_owned()));
        }
        let fields = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers", "/status"];
        let projection = Projection::of_parts(&fields.map(str::to_owned));
        let labels = format!("{JOB_NAME}={job}");
        let selected = ListSelection { namespace: Some(namespace), labels: Some(&labels), fields: None };
        let pick = |pod: Value| is_of_job(&pod, job).then_some(pod);
        let kept = ListPick { projection: &projection, pick, most: PODS };
        let pods = self.link.all_stored(&Kind::new("v1", "Pod"), selected, kept).await;
        let pods = pods.map_err(|failed| NoFailedLog::Unavailable(failed.message))?;
        let newest = |pod: &&Value| {
            let created = text(pod, "/metadata/creationTimestamp").unwrap_or_default().to_owned();
            (text(pod, "/status/phase") == Some("Failed"), created)
        };
        let pod = pods.iter().max_by_key(newest).ok_or_else(|| NoFailedLog::NoPod(job.to_owned()))?;
        failed_run(namespace, pod)
    }
}

/// Returns true if a pod belongs to the Job with this name. Anybody who may create pods may write the label.
fn is_of_job(pod: &Value, job: &str) -> bool {
    let is_owner = |owner: &Value| {
        (text(owner, "/kind"), text(owner, "/name")) == (Some("Job"), Some(job))
            && owner.pointer("/controller").and_then(Value::as_bool) == Some(true)
    };
    list(pod, "/metadata/ownerReferences").iter().any(is_owner)
}

/// Returns the run that failed, or else the last run. A sidecar that its pod ended is the last choice.
fn failed_run(namespace: &str, pod: &Value) -> Result<FailedRun, NoFailedLog> {
    let field = |pointer: &str| text(pod, pointer).unwrap_or_default().to_owned();
    let (name, uid) = (field("/metadata/name"), field("/metadata/uid"));
    let all = runs(pod);
    let is_sidecar = |run: &ContainerRun| {
        let own = |one: &&Value| text(one, "/name") == Some(&*run.container);
        list(pod, "/spec/initContainers")
            .iter()
            .find(own)
            .is_some_and(|one| text(one, "/restartPolicy") == Some("Always"))
    };
    let failed = all.iter().filter(|run| ended(pod, run).is_some_and(|(code, _)| code != 0));
    let failed = failed.min_by_key(|run| (is_sidecar(run), run.place, -run.number));
    let Some(run) = failed.or(all.last()).cloned() else { return Err(NoFailedLog::NotStarted(name, obstacle(pod))) };
    let end = ended(pod, &run).map(|(code, reason)| format!("exited with code {code}{reason}")).unwrap_or_default();
    Ok(FailedRun { pod: TargetPod { namespace: namespace.to_owned(), name, uid }, run, end })
}

/// Returns the exit code of a run that has ended, and its reason in parentheses.
fn ended(pod: &Value, run: &ContainerRun) -> Option<(i64, String)> {
    let status = statuses(pod).find(|status| text(status, "/name") == Some(&*run.container))?;
    let end = status.pointer(if run.is_previous { "/lastState/terminated" } else { "/state/terminated" })?;
    let reason = text(end, "/reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some((number(end, "/exitCode")?, reason))
}

/// Returns the reason why no container of a pod has started, after a colon.
fn obstacle(pod: &Value) -> String {
    let waiting = statuses(pod).find_map(|status| status.pointer("/state/waiting"));
    let unscheduled = list(pod, "/status/conditions").iter().find(|one| text(one, "/status") == Some("False"));
    let own = pod.pointer("/status").filter(|status| text(status, "/reason").is_some());
    let why = own.or(waiting).or(unscheduled);
    let words = ["/reason", "/message"].into_iter().filter_map(|pointer| text(why?, pointer));
    words.map(|word| format!(": {word}")).collect()
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["/status/initContainerStatuses", "/status/containerStatuses", "/status/ephemeralContainerStatuses"];
    lists.into_iter().flat_map(|pointer| list(pod, pointer))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ended_with(name: &str, code: i64) -> Value {
        let end = json!({"exitCode": code, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z"});
        json!({"name": name, "restartCount": 0, "state": {"terminated": end}})
    }

    fn chosen(pod: &Value) -> String {
        match failed_run("team", pod) {
            Ok(FailedRun { run, end, .. }) => format!("{} {} {end}", run.container, run.is_previous),
            Err(none) => none.to_string(),
        }
    }

    #[test]
    fn the_log_of_the_container_that_failed_is_chosen_before_a_sidecar_that_its_pod_ended() {
        let pod = json!({"metadata": {"name": "p"},
            "spec": {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "good"}, {"name": "bad"}, {"name": "worse"}]},
            "status": {"initContainerStatuses": [ended_with("proxy", 143)],
                "containerStatuses": [ended_with("good", 0), ended_with("bad", 1), ended_with("worse", 2)]}});
        assert_eq!(chosen(&pod), "bad false exited with code 1 (Error)");
        let mut waits = pod.clone();
        let last = ended_with("bad", 7)["state"].clone();
        waits["status"]["containerStatuses"][1] = json!({"name": "bad", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last});
        assert_eq!(chosen(&waits), "bad true exited with code 7 (Error)");
    }

    #[test]
    fn a_pod_without_a_started_container_says_what_it_waits_for() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]},
            "status": {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}});
        assert_eq!(chosen(&pod), "no container of the pod p has started: ErrImagePull: no such image");
        pod["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
        assert_eq!(chosen(&pod), "no container of the pod p has started: Unschedulable");
        pod["status"] = json!({});
        assert_eq!(chosen(&pod), "no container of the pod p has started");
    }

    #[test]
    fn a_pod_of_another_owner_with_the_label_of_the_job_is_no_pod_of_the_job() {
        let owned = |owner: Value| is_of_job(&json!({"metadata": {"ownerReferences": [owner]}}), "job");
        assert!(owned(json!({"kind": "Job", "name": "job", "controller": true})));
        assert!(!owned(json!({"kind": "Job", "name": "job"})));
        assert!(!owned(json!({"kind": "Job", "name": "other", "controller": true})));
        assert!(!is_of_job(&json!({}), "job"));
    }
}
