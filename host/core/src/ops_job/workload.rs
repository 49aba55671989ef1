//! The workload that an OpsJob names, and its pods. Source: docs/opsjob.md 3.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::object::api_object::Kind;
use crate::object::bound::shown;
use crate::object::fields::{list, text};
use crate::object::key::is_object_name;

/// The kinds of workloads: API version, kind, and the words that people use. The second word is the resource.
const KINDS: [(&str, &str, &[&str]); 6] = [
    ("apps/v1", "Deployment", &["deployment", "deployments", "deploy"]),
    ("apps/v1", "StatefulSet", &["statefulset", "statefulsets", "sts"]),
    ("apps/v1", "DaemonSet", &["daemonset", "daemonsets", "ds"]),
    ("apps/v1", "ReplicaSet", &["replicaset", "replicasets", "rs"]),
    ("batch/v1", "Job", &["job", "jobs"]),
    ("v1", "Pod", &["pod", "pods", "po"]),
];
/// The annotation of a mirror pod, as a path.
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";

/// A workload by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadName {
    /// Kind of the workload.
    pub kind: Kind,
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub name: String,
}

impl WorkloadName {
    /// Reads `namespace/kind/name`.
    pub fn read(words: &str) -> Option<Self> {
        let mut parts = words.split('/');
        let (namespace, word, name) = (parts.next()?, parts.next()?.to_ascii_lowercase(), parts.next()?);
        let (api_version, kind, _) = KINDS.into_iter().find(|(_, _, names)| names.contains(&word.as_str()))?;
        let is_whole = parts.next().is_none() && is_object_name(namespace) && is_object_name(name);
        is_whole.then(|| Self { kind: Kind::new(api_version, kind), namespace: namespace.into(), name: name.into() })
    }

    /// Returns the kinds that a workload may have.
    pub fn kinds() -> impl Iterator<Item = Kind> {
        KINDS.into_iter().map(|(api_version, kind, _)| Kind::new(api_version, kind))
    }

    /// Returns the API group and the resource.
    pub fn resource(&self) -> (&str, &'static str) {
        let words = KINDS.iter().find(|(_, kind, _)| *kind == self.kind.kind).map_or(&[][..], |(.., words)| words);
        let group = self.kind.api_version.split_once('/').map_or("", |(group, _)| group);
        (group, words.get(1).copied().unwrap_or_default())
    }

    /// Returns the workload as `namespace/kind/name`.
    pub fn text(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.kind.kind.to_ascii_lowercase(), self.name)
    }
}

/// Returns the message for a workload that does not exist, or whose kind no OpsJob takes.
pub fn missing_message(words: &str) -> String {
    let workload = shown(words, 256);
    let Some(kind) = other_kind(words) else {
        return format!("there is no workload {workload}; it is written namespace/kind/name");
    };
    let known: Vec<&str> = KINDS.iter().filter_map(|(.., names)| names.first().copied()).collect();
    let hint = match kind.to_ascii_lowercase().as_str() {
        "cronjob" | "cronjobs" | "cj" => "; name one of its Jobs, as namespace/job/name",
        _ => "",
    };
    let (kind, known) = (shown(kind, 64), known.join(", "));
    format!("there is no workload {workload}: the kind {kind} is not supported; use one of {known}{hint}")
}

/// Returns the kind in a full workload name, if no OpsJob takes this kind.
fn other_kind(words: &str) -> Option<&str> {
    let mut parts = words.split('/');
    let (_, kind, _) = (parts.next()?, parts.next()?, parts.next()?);
    let is_known = KINDS.iter().any(|(.., names)| names.contains(&kind.to_ascii_lowercase().as_str()));
    (parts.next().is_none() && !is_known && !kind.is_empty()).then_some(kind)
}

/// Returns the name of a workload, in any form of writing.
pub fn name_of(words: &str) -> &str {
    words.rsplit('/').next().unwrap_or(words)
}

/// Returns the UID of an object's controller.
pub fn controller(object: &Value) -> Option<&str> {
    let mut owners = list(object, "/metadata/ownerReferences").iter();
    let owner = owners.find(|owner| owner.pointer("/controller") == Some(&Value::Bool(true)))?;
    text(owner, "/uid")
}

/// Returns the node to which a pod is bound, unless the pod has ended.
pub fn node_of(pod: &Value) -> Option<&str> {
    let has_ended = matches!(text(pod, "/status/phase"), Some("Succeeded" | "Failed"));
    text(pod, "/spec/nodeName").filter(|node| !has_ended && !node.is_empty())
}

/// Returns the node that a pod makes busy. Only pods of workloads count, not pods of DaemonSets, mirror pods or pods of the system.
pub fn busies<'a>(pod: &'a Value, system: &BTreeSet<String>) -> Option<&'a str> {
    let mut owners = list(pod, "/metadata/ownerReferences").iter();
    let is_daemon = owners.any(|owner| text(owner, "/kind") == Some("DaemonSet"));
    let is_mirror = text(pod, MIRROR).is_some();
    let is_of_system = text(pod, "/metadata/namespace").is_some_and(|namespace| system.contains(namespace));
    node_of(pod).filter(|_| !is_daemon && !is_mirror && !is_of_system)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_workload_is_named_by_any_word_of_its_kind() {
        for words in ["d/deployment/web", "d/Deployments/web", "d/deploy/web"] {
            let read = WorkloadName::read(words).unwrap();
            assert_eq!(
                (read.kind.kind.as_str(), read.namespace.as_str(), read.name.as_str()),
                ("Deployment", "d", "web")
            );
        }
        for words in ["web", "d/web", "d/pod/", "d/pod/My_Pod", "D/pod/a", "/pod/a", "d/secret/a", "d/pod/a/log"] {
            assert_eq!(WorkloadName::read(words), None, "{words}");
        }
    }

    #[test]
    fn a_kind_that_is_not_supported_is_named_beside_those_that_are() {
        let told = missing_message("default/cronjob/nightly");
        assert!(told.starts_with(
            "there is no workload default/cronjob/nightly: the kind cronjob is not supported; use one of deployment, "
        ));
        assert!(told.ends_with("job, pod; name one of its Jobs, as namespace/job/name"), "{told}");
        assert!(missing_message("d/secret/a").contains("the kind secret is not supported"));
        for words in ["web", "d/web", "d/pod/web", "d//a", "a/b/c/d", "d/Deploy/x"] {
            assert!(missing_message(words).ends_with("; it is written namespace/kind/name"), "{words}");
        }
    }

    #[test]
    fn pods_of_daemons_of_the_system_and_those_that_have_ended_make_no_node_busy() {
        let pod = |namespace: &str, kind: &str, phase: &str| {
            json!({"metadata": {"namespace": namespace, "ownerReferences": [{"kind": kind, "uid": "u", "controller": true}]},
                "spec": {"nodeName": "n"}, "status": {"phase": phase}})
        };
        let system = BTreeSet::from(["kube-system".to_owned()]);
        assert_eq!(busies(&pod("d", "ReplicaSet", "Pending"), &system), Some("n"));
        for idle in
            [pod("d", "DaemonSet", "Running"), pod("kube-system", "ReplicaSet", "Running"), pod("d", "Job", "Failed")]
        {
            assert_eq!(busies(&idle, &system), None, "{idle}");
        }
        assert_eq!(controller(&pod("d", "Job", "Running")), Some("u"));
    }
}
