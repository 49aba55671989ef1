//! One moment of the cluster as a user sees it: pods and the targets of a job, as rows of text. Pure.

use k8s_openapi::api::core::v1::{Node, Pod};
use oarlock_api::{OperationJob, TargetDetail};
use oarlock_sim::world::labels;

/// One moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// What the first rows are.
    pub(super) shows: Shows,
    /// The pods of one set, oldest first, or the nodes.
    pub(super) pods: Vec<PodRow>,
    /// The targets of one job, in its order.
    pub(super) targets: Vec<TargetRow>,
    /// `status.progress` of the job; empty before its first status.
    pub(super) progress: String,
}

/// What is shown beside the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shows {
    /// Pods.
    #[default]
    Pods,
    /// Nodes.
    Nodes,
}

impl Shows {
    /// One of them, in a word.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Pods => "pod",
            Self::Nodes => "node",
        }
    }
}

/// A line of `kubectl get pods` or `kubectl get nodes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodRow {
    pub(super) name: String,
    pub(super) ready: String,
    pub(super) status: String,
    /// Its relation to the job.
    pub(super) part: String,
}

/// One target of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetRow {
    pub(super) name: String,
    pub(super) progress: String,
    /// The new pod, or the reason why there is none.
    pub(super) detail: String,
}

impl TargetRow {
    /// True if the target has ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.progress.as_str(), "Succeeded" | "Failed")
    }
}

impl Snapshot {
    pub(super) fn of(pods: &[Pod], job: &OperationJob) -> Self {
        let rows = |details: &[TargetDetail]| pods.iter().map(|pod| pod_row(pod, details, job)).collect();
        Self::with(Shows::Pods, rows, job)
    }

    /// The same of nodes.
    pub(super) fn of_nodes(nodes: &[Node], job: &OperationJob) -> Self {
        Self::with(Shows::Nodes, |_| nodes.iter().map(node_row).collect(), job)
    }

    fn with(shows: Shows, rows: impl FnOnce(&[TargetDetail]) -> Vec<PodRow>, job: &OperationJob) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let details = status.target_details.unwrap_or_default();
        // Those of a selector are named in the status alone.
        let mut names = targets_of(job);
        if names.is_empty() {
            names = details.iter().map(|detail| detail.name.as_str()).collect();
        }
        let row = |name: &&str| target_row(name, details.iter().find(|detail| detail.name == **name));
        let targets = names.iter().map(row).collect();
        let pods = rows(&details);
        Self { shows, pods, targets, progress: status.progress.unwrap_or_default() }
    }

    /// The number of ended targets.
    pub(super) fn ended(&self) -> usize {
        self.targets.iter().filter(|target| target.has_ended()).count()
    }

    /// True if the job has ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.progress.as_str(), "Succeeded" | "Failed")
    }
}

/// The targets that the spec names.
fn targets_of(job: &OperationJob) -> Vec<&str> {
    let targets = job.spec.iter().flat_map(|spec| spec.targets.iter().flatten());
    targets.filter_map(|target| target.name.as_deref()).collect()
}

fn target_row(name: &str, detail: Option<&TargetDetail>) -> TargetRow {
    let progress = detail.and_then(|detail| detail.progress.clone()).unwrap_or_else(|| "Pending".to_owned());
    let explained = detail.map(|detail| match (&detail.error, new_pod(detail)) {
        (Some(error), _) => format!("{}: {}", error.reason, error.message),
        (None, Some(pod)) => format!("new pod {pod}"),
        (None, None) => String::new(),
    });
    TargetRow { name: name.to_owned(), progress, detail: explained.unwrap_or_default() }
}

fn new_pod(detail: &TargetDetail) -> Option<&str> {
    detail.extra_info.as_ref()?.get("NewPod").map(String::as_str)
}

fn node_row(node: &Node) -> PodRow {
    let name = node.metadata.name.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    let words = [if ready { "Ready" } else { "NotReady" }, if cordoned { "SchedulingDisabled" } else { "" }];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let boot_id = status.node_info.map(|info| info.boot_id).unwrap_or_default();
    // The last digits tell boot ids of this world apart.
    let boot_id: String = boot_id.chars().skip(24).collect();
    PodRow { name, ready: String::new(), status: words.join(","), part: format!("boot id ...{boot_id}") }
}

fn pod_row(pod: &Pod, details: &[TargetDetail], job: &OperationJob) -> PodRow {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let is_true = |kind: &str| status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True");
    let (phase, wanted) =
        (status.phase.clone().unwrap_or_default(), pod.spec.as_ref().map_or(0, |spec| spec.containers.len()));
    let status = match (pod.metadata.deletion_timestamp.is_some(), phase.as_str()) {
        (true, _) => "Terminating".to_owned(),
        (false, "Pending") => "ContainerCreating".to_owned(),
        (false, _) => phase,
    };
    let origin = details.iter().find(|detail| new_pod(detail) == Some(name.as_str()));
    let is_target = targets_of(job).contains(&name.as_str()) || details.iter().any(|detail| detail.name == name);
    let part = match origin {
        Some(origin) => format!("takes the place of {}", origin.name),
        None if is_target => "target".to_owned(),
        None => String::new(),
    };
    let part = [part].into_iter().chain(marks(pod)).filter(|words| !words.is_empty()).collect::<Vec<_>>().join(", ");
    PodRow { name, ready: format!("{}/{wanted}", if is_true("Ready") { wanted } else { 0 }), status, part }
}

/// Traffic and restarts of a pod, in words.
fn marks(pod: &Pod) -> Vec<String> {
    let labels = pod.metadata.labels.iter().flatten();
    let is_operated_on = labels.into_iter().any(|(key, _)| key.contains(&format!(".{}/", labels::LIFECYCLE)));
    let is_away =
        is_operated_on && !pod.metadata.labels.iter().flatten().any(|(key, _)| key == labels::SERVICE_AVAILABLE);
    let restarts: i32 = restarts_of(pod);
    let mut words = Vec::new();
    if is_away {
        words.push("out of traffic".to_owned());
    }
    if restarts > 0 {
        words.push(format!("restarted {restarts}x"));
    }
    words
}

/// How often the containers of a pod were restarted, all together.
fn restarts_of(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.fold(0, |sum, container| sum.saturating_add(container.restart_count))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_and_its_target_tell_of_each_other() {
        let job: OperationJob = serde_json::from_value(json!({
            "spec": {"targets": [{"name": "a"}, {"name": "b"}]},
            "status": {"progress": "Processing", "targetDetails": [
                {"name": "a", "progress": "Succeeded", "extraInfo": {"NewPod": "c"}},
                {"name": "b", "progress": "Failed", "error": {"reason": "PodNotFound", "message": "it is gone"}}]},
        }))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "c"}, "spec": {"containers": [{"name": "app"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let seen = Snapshot::of(&[pod], &job);
        assert_eq!(seen.ended(), 2);
        assert!(!seen.has_ended());
        let rows: Vec<_> = seen.targets.iter().map(|row| row.detail.as_str()).collect();
        assert_eq!(rows, ["new pod c", "PodNotFound: it is gone"]);
        let pods: Vec<_> =
            seen.pods.iter().map(|row| (row.ready.as_str(), row.status.as_str(), row.part.as_str())).collect();
        assert_eq!(pods, [("1/1", "Running", "takes the place of a")]);
    }
}
