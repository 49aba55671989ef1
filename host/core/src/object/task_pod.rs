//! State of a pod that does a task, as the host keeps it.

use oarlock_contract::task::LONGEST_SECONDS;
use serde_json::Value;

use crate::object::bound::cut;
use crate::object::bound::shown_cause;

/// The label with the name of the task. Every pod that does a task has it.
pub const TASK: &str = "oarlock.dev/task";
/// The label with the kind of the task.
pub const TASK_KIND: &str = "oarlock.dev/task-kind";
/// The label with the position of the target in its job.
pub const TARGET_INDEX: &str = "oarlock.dev/target-index";
/// The label with the UID of the job.
pub const JOB_UID: &str = "oarlock.dev/job-uid";

/// The annotation that a kubelet puts on the pods that it makes from files on its node.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// The name of the container that runs the task.
pub const CONTAINER: &str = "task";

/// The fields of a pod that [`TaskPod::read`] reads.
pub const TASK_FIELDS: [&str; 7] = [
    "/spec/nodeName",
    "/spec/activeDeadlineSeconds",
    "/status/phase",
    "/status/reason",
    "/status/message",
    "/status/containerStatuses",
    "/status/conditions",
];

/// State of a pod that does a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskPod {
    /// `status.phase`.
    pub phase: String,
    /// `spec.nodeName`. Empty until the pod is scheduled.
    pub node: String,
    /// True if a kubelet made the pod from a file on its node. The kubelet chooses the name and the labels of such a pod.
    pub is_mirror: bool,
    /// `spec.activeDeadlineSeconds`: the time after its start at which the kubelet ends the pod.
    pub deadline_seconds: i64,
    /// True if the container of the task has run. A pod without a node has run nothing.
    pub started: bool,
    /// End of the container on its node.
    pub ended: Option<ContainerEnd>,
    /// Why the pod does not run, or why it ended.
    pub why: String,
    /// Category of `why`.
    pub hindrance: Hindrance,
}

/// The kind of obstacle that keeps a pod from running or has ended it, by Kubernetes' own reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hindrance {
    /// No obstacle, or an obstacle without a variant.
    #[default]
    Other,
    /// The kubelet cannot get the image.
    Image,
    /// The scheduler finds no place for the pod.
    Unschedulable,
    /// A task in the host waits for a free slot or for its next retry.
    Turn,
    /// The pod ran longer than its deadline.
    Deadline,
    /// Another cause ended the whole pod: an eviction, a preemption or the end of its node.
    Ended,
}

impl Hindrance {
    /// Returns the hindrance that a pod's status names. `waits` is the reason for which the container waits.
    fn read(status: &Value, waits: Option<&str>, unscheduled: bool) -> Self {
        const OF_IMAGES: [&str; 2] = ["RegistryUnavailable", "SignatureValidationFailed"];
        match (status.get("reason").and_then(Value::as_str), waits) {
            (Some("DeadlineExceeded"), _) => Self::Deadline,
            (Some(reason), _) if !reason.is_empty() => Self::Ended,
            (_, Some(reason)) if reason.contains("Image") || OF_IMAGES.contains(&reason) => Self::Image,
            (_, None) if unscheduled => Self::Unschedulable,
            _ => Self::Other,
        }
    }
}

/// End of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerEnd {
    /// Exit code of the container.
    pub exit_code: i32,
    /// Termination message. The kubelet writes at most 4 KiB.
    pub message: String,
    /// The kubelet's reason, such as `OOMKilled`.
    pub reason: String,
}

impl TaskPod {
    /// Reads the state from the document of a pod. Returns `None` if the pod does no task.
    pub fn read(document: &Value) -> Option<Self> {
        document.pointer("/metadata/labels")?.get(TASK)?;
        let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let status = document.get("status").unwrap_or(&Value::Null);
        // An admission webhook may have added other containers to the pod.
        let containers = status.get("containerStatuses").and_then(Value::as_array).into_iter().flatten();
        let own = containers.into_iter().find(|one| one.get("name").is_some_and(|name| name == CONTAINER));
        let container = own.and_then(|own| own.get("state")).unwrap_or(&Value::Null);
        let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
        let unscheduled = conditions.into_iter().find(|one| {
            one.get("type").is_some_and(|kind| kind == "PodScheduled")
                && one.get("status").is_some_and(|word| word == "False")
        });
        let node = text(document, "/spec/nodeName").unwrap_or_default();
        let ended = container.get("terminated").filter(|_| !node.is_empty()).map(|end| ContainerEnd {
            exit_code: end
                .get("exitCode")
                .and_then(Value::as_i64)
                .and_then(|code| i32::try_from(code).ok())
                .unwrap_or(-1),
            message: tail(text(end, "/message").unwrap_or_default()),
            reason: cut(&text(end, "/reason").unwrap_or_default(), MOST_WHY),
        });
        let said = |value: &Value, at: &str| {
            let words = [text(value, &format!("{at}/reason")), text(value, &format!("{at}/message"))];
            let words: Vec<String> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
            (!words.is_empty()).then(|| words.join(": "))
        };
        let deadline = document.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64);
        let why = said(status, "").or_else(|| said(container, "/waiting")).or_else(|| said(unscheduled?, ""));
        let waits = text(container, "/waiting/reason");
        let hindrance = Hindrance::read(status, waits.as_deref(), unscheduled.is_some());
        Some(Self {
            deadline_seconds: deadline.unwrap_or(LONGEST_SECONDS.into()),
            phase: cut(&text(status, "/phase").unwrap_or_default(), MOST_WHY),
            started: !node.is_empty() && container.get("running").is_some() || ended.is_some(),
            node,
            is_mirror: is_mirror(document),
            ended,
            why: shown_cause(&why.unwrap_or_default(), MOST_WHY),
            hindrance,
        })
    }

    /// Returns true if this can be the pod of a task on `node`, if the node is known. A kubelet writes the status of every pod that is bound to its
    /// node, and makes mirror pods there with any name. So the host does not believe a pod on another node.
    pub fn is_for(&self, node: Option<&str>) -> bool {
        !self.is_mirror && (self.node.is_empty() || node.is_none_or(|node| self.node == node))
    }

    /// Returns true if the container or the pod has ended.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// Returns the node that a pod from the host's template requests in its document.
pub fn asked_node(document: &Value) -> Option<&str> {
    const BY_SCHEDULER: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                                /nodeSelectorTerms/0/matchFields/0/values/0";
    ["/spec/nodeName", BY_SCHEDULER].iter().find_map(|at| document.pointer(at)?.as_str())
}

/// The longest text of a kubelet that the host keeps, other than the termination message.
const MOST_WHY: usize = 256;
/// The most bytes that the host reads of a termination message: four times the kubelet's limit.
const MOST_MESSAGE: usize = 16 * 1024;

/// Returns the end of a termination message.
fn tail(message: String) -> String {
    let from = message.len().saturating_sub(MOST_MESSAGE);
    let from = (from..=message.len()).find(|&at| message.is_char_boundary(at)).unwrap_or(0);
    message.get(from..).unwrap_or_default().to_owned()
}

fn is_mirror(document: &Value) -> bool {
    let owners = document.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten();
    let annotations = document.pointer("/metadata/annotations");
    annotations.is_some_and(|all| all.get(MIRROR).is_some())
        || owners.into_iter().any(|owner| owner.get("kind").is_some_and(|kind| kind == "Node"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(status: &Value) -> TaskPod {
        let metadata = json!({"labels": {TASK: "a"}});
        TaskPod::read(&json!({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})).unwrap()
    }

    #[test]
    fn a_pod_of_another_node_or_of_a_kubelet_is_for_no_task_here() {
        let of = |metadata: Value, spec: Value| {
            let mut metadata = metadata;
            metadata["labels"] = json!({TASK: "a"});
            TaskPod::read(&json!({"metadata": metadata, "spec": spec})).unwrap().is_for(Some("n"))
        };
        assert!(of(json!({}), json!({"nodeName": "n"})) && of(json!({}), json!({})));
        assert!(!of(json!({}), json!({"nodeName": "m"})));
        assert!(!of(json!({"annotations": {MIRROR: "x"}}), json!({"nodeName": "n"})));
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}]);
        assert!(!of(json!({"ownerReferences": owner}), json!({"nodeName": "n"})));
    }

    #[test]
    fn what_is_on_no_node_has_run_nothing() {
        let state = json!({"terminated": {"exitCode": 0, "message": "passed"}});
        let status = json!({"phase": "Succeeded", "containerStatuses": [{"name": CONTAINER, "state": state}]});
        let seen = TaskPod::read(&json!({"metadata": {"labels": {TASK: "a"}}, "status": status})).unwrap();
        assert_eq!((seen.started, seen.ended.clone(), seen.is_over()), (false, None, true));
    }

    #[test]
    fn a_pod_of_somebody_else_does_no_task() {
        assert_eq!(TaskPod::read(&json!({"metadata": {"labels": {}}, "status": {"phase": "Running"}})), None);
    }

    #[test]
    fn a_container_that_somebody_put_beside_it_is_not_the_task() {
        let beside = json!({"name": "proxy", "state": {"terminated": {"exitCode": 0}}});
        let own = json!({"name": "task", "state": {"running": {}}});
        let both = read(&json!({"phase": "Running", "containerStatuses": [beside, own]}));
        assert_eq!((both.started, both.is_over()), (true, false));
        let alone = read(&json!({"phase": "Pending", "containerStatuses": [beside]}));
        assert_eq!((alone.started, alone.is_over()), (false, false));
    }

    #[test]
    fn it_says_why_it_waits_and_how_it_ended() {
        let unscheduled = read(&json!({"phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]}));
        assert_eq!((unscheduled.why.as_str(), unscheduled.started), ("Unschedulable: 0/3 nodes", false));
        let pulling = read(
            &json!({"phase": "Pending", "containerStatuses": [{"name": "task", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
        );
        assert_eq!((pulling.why.as_str(), pulling.is_over()), ("ImagePullBackOff", false));
        let evicted = read(&json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}));
        assert_eq!((evicted.why.as_str(), evicted.is_over()), ("Evicted: low on memory", true));
        let ended = read(
            &json!({"phase": "Failed", "containerStatuses": [{"name": "task", "state": {"terminated": {"exitCode": 3, "message": "m"}}}]}),
        );
        let end = ended.ended.clone().unwrap();
        assert_eq!((end.exit_code, end.message.as_str(), ended.started), (3, "m", true));
    }
}
