//! The pods of a failed Job: why it failed, and whether the infrastructure is the cause. Source: docs/jobflow.md 2.4, 2.5.

use serde_json::Value;

use crate::attempts::unit::MESSAGE_BYTES;
use crate::object::bound::{shown, shown_cause};
use crate::object::fields::{list, number, text};

/// The result of reading a Job's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodReport {
    /// Node, exit code and termination message of a failed pod. Empty if no pod failed.
    pub message: String,
    /// True if pods failed, and the infrastructure made each of them fail.
    pub is_infrastructure: bool,
}

/// The reasons of a pod whose node went down, or that made room for another pod.
const REASONS: [&str; 4] = ["NodeLost", "Shutdown", "NodeShutdown", "Preempting"];

/// The reasons of a pod that the kubelet did not admit, or did not admit again after its restart. `OutOf...` is another such reason.
const NOT_TAKEN: [&str; 7] = [
    "UnexpectedAdmissionError",
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "TaintToleration",
    "TopologyAffinityError",
];

/// Part of the message of an eviction that the node caused, or of a pod that a kubelet under pressure did not admit. An eviction for the pod's own
/// limit names the limit instead, sets no condition, and would happen again.
const NODE_WAS: &str = "The node ";

/// The reasons of a container whose end is unknown, because its node went down. A container that fails by itself has another reason.
const LOST: [&str; 2] = ["Unknown", "ContainerStatusUnknown"];

/// Reads a list of pods. `node_exists` says whether a node of that name exists.
pub fn report(pods: &[Value], node_exists: impl Fn(&str) -> bool) -> PodReport {
    let failed: Vec<&Value> = pods.iter().filter(|pod| has_failed(pod)).collect();
    let is_infrastructure = !failed.is_empty() && failed.iter().all(|pod| is_disrupted(pod, &node_exists));
    PodReport { message: failed.first().map(|pod| describe(pod)).unwrap_or_default(), is_infrastructure }
}

/// Returns true if the pod has failed. A pod that is being evicted counts as failed before it has ended.
fn has_failed(pod: &Value) -> bool {
    let leaves = text(pod, "/metadata/deletionTimestamp").is_some() && text(pod, "/status/phase") != Some("Succeeded");
    text(pod, "/status/phase") == Some("Failed") || leaves && disruption(pod).is_some()
}

/// Returns the condition that says that the pod is evicted, preempted or expelled.
fn disruption(pod: &Value) -> Option<&Value> {
    let is_target = |c: &&Value| text(c, "/type") == Some("DisruptionTarget") && text(c, "/status") == Some("True");
    list(pod, "/status/conditions").iter().find(is_target)
}

fn is_disrupted(pod: &Value, node_exists: impl Fn(&str) -> bool) -> bool {
    let reason = text(pod, "/status/reason").unwrap_or_default();
    let is_evicted_by_node = || text(pod, "/status/message").is_some_and(|message| message.contains(NODE_WAS));
    disruption(pod).is_some()
        || REASONS.contains(&reason)
        || NOT_TAKEN.contains(&reason)
        || reason.starts_with("OutOf")
        || reason == "Evicted" && is_evicted_by_node()
        || is_lost(pod)
        || text(pod, "/spec/nodeName").is_some_and(|node| !node_exists(node))
}

/// Returns the containers that ended with another exit code than 0, except sidecars. The kubelet ends sidecars with the pod, so their exit codes
/// decide nothing.
fn bad_ends(pod: &Value) -> impl Iterator<Item = &Value> {
    let is_sidecar = |name: &str| {
        let mut own = list(pod, "/spec/initContainers").iter().filter(|own| text(own, "/name") == Some(name));
        own.any(|own| text(own, "/restartPolicy") == Some("Always"))
    };
    let statuses = ["/status/containerStatuses", "/status/initContainerStatuses"];
    let all = statuses.into_iter().flat_map(|field| list(pod, field));
    let ended = all.filter(move |status| !text(status, "/name").is_some_and(is_sidecar));
    let ended = ended.filter_map(|status| status.pointer("/state/terminated"));
    ended.filter(|ended| number(ended, "/exitCode").is_some_and(|code| code != 0))
}

fn is_lost(pod: &Value) -> bool {
    let mut reasons = bad_ends(pod).map(|ended| text(ended, "/reason").unwrap_or_default()).peekable();
    reasons.peek().is_some() && reasons.all(|reason| LOST.contains(&reason))
}

fn describe(pod: &Value) -> String {
    let mut said = vec![format!("pod {}", text(pod, "/metadata/name").unwrap_or("?"))];
    said.extend(text(pod, "/spec/nodeName").map(|node| format!("on {node}")));
    if let Some(ended) = bad_ends(pod).next() {
        let told = text(ended, "/message").map(|message| format!(": {}", shown(message, MESSAGE_BYTES)));
        let code = number(ended, "/exitCode").unwrap_or_default();
        // `Error` says no more than the exit code.
        let why = text(ended, "/reason").filter(|reason| *reason != "Error");
        let why = why.map(|reason| format!(" ({})", shown(reason, MESSAGE_BYTES / 2)));
        said.push(format!("exited with {code}{}{}", why.unwrap_or_default(), told.unwrap_or_default()));
    }
    let causes = ["/status/reason", "/status/message"].map(|field| text(pod, field));
    let disrupted = disruption(pod).and_then(|condition| text(condition, "/message"));
    for cause in causes.into_iter().chain([disrupted]).flatten() {
        said.push(format!("({})", shown(cause, MESSAGE_BYTES / 2)));
    }
    shown_cause(&said.join(" "), MESSAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: Value) -> Value {
        let mut status = status;
        status["phase"] = "Failed".into();
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": status})
    }

    #[test]
    fn a_failed_pod_is_told_with_node_code_and_message() {
        let ended = json!({"containerStatuses": [{"state": {"terminated": {"exitCode": 3, "message": "disk\nfull"}}}]});
        let told = report(&[pod(ended)], |_| true);
        assert_eq!(
            told,
            PodReport { message: "pod p on n exited with 3: disk\\nfull".into(), is_infrastructure: false }
        );
    }

    #[test]
    fn the_infrastructure_is_to_blame_only_where_it_is_for_every_failed_pod() {
        let evicted = || pod(json!({"reason": "Evicted", "message": "The node was low on resource: memory."}));
        let target = pod(json!({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}));
        assert!(report(&[evicted(), target, pod(json!({"reason": "OutOfcpu"}))], |_| true).is_infrastructure);
        assert!(!report(&[evicted(), pod(json!({}))], |_| true).is_infrastructure);
        assert!(report(&[pod(json!({}))], |_| false).is_infrastructure, "its node is gone");
        assert!(!report(&[], |_| true).is_infrastructure);
    }

    #[test]
    fn a_container_whose_node_went_down_under_it_is_lost_and_one_that_failed_by_itself_is_not() {
        let ended = |code: i64, reason: &str| json!({"state": {"terminated": {"exitCode": code, "reason": reason}}});
        let of = |statuses: Value| report(&[pod(json!({"containerStatuses": statuses}))], |_| true);
        for (code, reason) in [(255, "Unknown"), (137, "ContainerStatusUnknown")] {
            let told = of(json!([ended(code, reason), ended(0, "Completed")]));
            assert_eq!(
                told,
                PodReport { message: format!("pod p on n exited with {code} ({reason})"), is_infrastructure: true }
            );
        }
        assert!(!of(json!([ended(255, "Error")])).is_infrastructure);
        assert!(!of(json!([ended(255, "Unknown"), ended(1, "Error")])).is_infrastructure);
        assert_eq!(of(json!([ended(137, "OOMKilled")])).message, "pod p on n exited with 137 (OOMKilled)");
    }

    /// kubernetes/website#46896: such a pod has no condition on purpose, because the kubelet would evict it again.
    #[test]
    fn a_pod_that_is_evicted_for_its_own_limits_has_failed_by_itself() {
        let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi.";
        assert!(!report(&[pod(json!({"reason": "Evicted", "message": message}))], |_| true).is_infrastructure);
    }

    /// kubernetes/kubernetes#93338, #109663: after a reboot the kubelet may not know its node's labels yet.
    #[test]
    fn a_pod_that_the_kubelet_did_not_take_has_not_failed_by_itself() {
        for reason in ["NodeAffinity", "NodePorts", "OutOfmemory", "UnexpectedAdmissionError"] {
            assert!(report(&[pod(json!({"reason": reason}))], |_| true).is_infrastructure, "{reason}");
        }
        let message = "Pod was rejected: The node had condition: [MemoryPressure]. ";
        assert!(report(&[pod(json!({"reason": "Evicted", "message": message}))], |_| true).is_infrastructure);
    }

    /// warpdotdev/oz-agent-worker#118, buildkite/agent-stack-k8s#862: the kubelet ends sidecars once the work has ended.
    #[test]
    fn the_end_of_a_sidecar_says_nothing_of_a_failure() {
        let ended = |name: &str, code: i64, reason: &str| json!({"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}});
        let with_sidecar = |main: Value| {
            let mut pod =
                pod(json!({"initContainerStatuses": [ended("proxy", 137, "Error")], "containerStatuses": [main]}));
            pod["spec"]["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}]);
            report(&[pod], |_| true)
        };
        assert_eq!(with_sidecar(ended("main", 3, "Error")).message, "pod p on n exited with 3");
        assert!(with_sidecar(ended("main", 255, "Unknown")).is_infrastructure);
    }

    #[test]
    fn a_pod_that_is_evicted_counts_before_it_has_ended_and_one_that_is_merely_deleted_does_not() {
        let evicted = json!({"type": "DisruptionTarget", "status": "True", "message": "Eviction API: evicting"});
        let leaving = |conditions: Value| {
            let metadata = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
            json!({"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": conditions}})
        };
        let told = report(&[leaving(json!([evicted])), leaving(json!([]))], |_| true);
        let message = "pod p on n (Eviction API: evicting)".to_owned();
        assert_eq!(told, PodReport { message, is_infrastructure: true });
        assert_eq!(report(&[leaving(json!([]))], |_| true), PodReport::default());
        let mut well = leaving(json!([evicted]));
        well["status"]["phase"] = "Succeeded".into();
        assert_eq!(report(&[well], |_| true), PodReport::default());
    }

    #[test]
    fn ten_megabytes_of_termination_message_are_cut() {
        let ended = json!({"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "\u{1b}x".repeat(5_000_000)}}}]});
        assert!(report(&[pod(ended)], |_| true).message.len() <= MESSAGE_BYTES);
    }
}
