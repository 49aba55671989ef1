//! The target pods of an OpsJob: pods of one workload. Source: docs/opsjob.md 3.
//!
//! Takes the requested scope and the existing pods, as of one time; yields targets by name. May not read anything else.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::fields::text;
use crate::object::time::read_time;
use crate::ops_job::export::PodImages;
use crate::ops_job::targets::{
    Filters, Here, Index, MOST, NodeFacts, Resolved, Selectors, SkipReason, Skipped, Unresolved,
};

/// The facts of a pod by which targets are selected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// The node to which the pod is bound.
    pub node: Option<String>,
    /// Phase of the pod.
    pub phase: String,
    /// Time of creation.
    pub created: Option<Timestamp>,
    /// Images of the pod, if the job needs them.
    #[serde(default, skip_serializing_if = "PodImages::is_empty")]
    pub images: PodImages,
}

impl PodFacts {
    /// Reads a stored pod. Returns `None` if the pod lacks a name or a UID, which no stored pod does.
    pub fn read(pod: &Value) -> Option<Self> {
        Some(Self {
            name: text(pod, "/metadata/name")?.to_owned(),
            uid: text(pod, "/metadata/uid")?.to_owned(),
            node: text(pod, "/spec/nodeName").filter(|node| !node.is_empty()).map(str::to_owned),
            phase: text(pod, "/status/phase").unwrap_or_default().to_owned(),
            created: read_time(text(pod, "/metadata/creationTimestamp")),
            images: PodImages::read(pod),
        })
    }

    /// Returns a key that is greatest for the newest running pod, or for the newest pod if none runs.
    fn newness(&self) -> (bool, Option<Timestamp>, &str) {
        (self.phase == "Running", self.created, &self.name)
    }

    /// Returns the node of a running pod. A pod that is not `Running` has none, because its author may name any node.
    pub fn runs_on(&self) -> Option<&str> {
        self.node.as_deref().filter(|_| self.phase == "Running")
    }
}

/// The pods of a workload, including pods that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadPods {
    /// Namespace of the pods.
    pub namespace: String,
    /// The pods of the workload.
    pub pods: Vec<PodFacts>,
}

/// Returns the targets of a job on pods. Only nodes that the job names, as selectors or as excluded nodes, limit the pods.
///
/// # Errors
/// If the job has no targets. The reason is for the job's owner.
pub fn resolve_pods(
    selectors: &Selectors,
    filters: &Filters,
    found: &WorkloadPods,
    nodes: &[NodeFacts],
    here: Here<'_>,
) -> Result<Resolved, Unresolved> {
    let index = Index::of(selectors, filters, nodes, here)?;
    if let Some(other) = selectors.workspace.as_ref().filter(|workspace| **workspace != found.namespace) {
        return Err(Unresolved::WorkspaceNotFound(other.clone()));
    }
    let (named, of_hosts) = index.selected(selectors)?;
    let wanted: BTreeSet<&str> = named.into_iter().chain(of_hosts).map(|node| node.name.as_str()).collect();
    let excluded: BTreeSet<&str> =
        nodes.iter().filter(|node| index.excludes(filters, node)).map(|node| node.name.as_str()).collect();
    let mut resolved = Resolved { namespace: Some(found.namespace.clone()), ..Resolved::default() };
    let (mut left_out, mut chosen) = (BTreeSet::new(), Vec::new());
    for pod in &found.pods {
        match pod.node.as_deref() {
            node if !wanted.is_empty() && !node.is_some_and(|node| wanted.contains(node)) => {}
            Some(node) if excluded.contains(node) => drop(left_out.insert(node.to_owned())),
            _ => chosen.push(pod),
        }
    }
    if filters.newest_alone {
        chosen = chosen.into_iter().max_by_key(|pod| pod.newness()).into_iter().collect();
    }
    resolved.targets = chosen.into_iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
    let skipped = left_out.into_iter().map(|node| Skipped { node, reason: SkipReason::Excluded });
    resolved.skipped = skipped.collect();
    resolved.targets.sort();
    match resolved.targets.len() {
        0 => Err(Unresolved::NoPods),
        count if count > MOST => Err(Unresolved::TooMany(count)),
        _ => Ok(resolved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, phase: &str) -> PodFacts {
        let node = Some(node.to_owned()).filter(|node| !node.is_empty());
        PodFacts { name: name.into(), uid: format!("u-{name}"), node, phase: phase.into(), ..PodFacts::default() }
    }

    fn node(name: &str) -> NodeFacts {
        NodeFacts { name: name.into(), host: format!("host-{name}"), ..NodeFacts::default() }
    }

    fn found() -> WorkloadPods {
        let pods = vec![pod("b", "n1", "Running"), pod("a", "n2", "Failed"), pod("c", "", "Pending")];
        WorkloadPods { namespace: "team".into(), pods }
    }

    fn names(selectors: &Selectors, filters: &Filters) -> Result<Vec<String>, Unresolved> {
        let nodes = [node("n1"), node("n2")];
        let here = Here { cluster: "here", node: None };
        let resolved = resolve_pods(selectors, filters, &found(), &nodes, here)?;
        assert_eq!(resolved.namespace.as_deref(), Some("team"));
        Ok(resolved.targets.into_iter().map(|(name, _)| name).collect())
    }

    fn owned<T: FromIterator<String>>(all: &[&str]) -> T {
        all.iter().map(|one| (*one).to_owned()).collect()
    }

    #[test]
    fn a_pod_names_its_node_only_while_it_runs() {
        assert_eq!(pod("a", "n1", "Running").runs_on(), Some("n1"));
        for phase in ["Pending", "Succeeded", "Failed", "Unknown", ""] {
            assert_eq!(pod("a", "n1", phase).runs_on(), None, "{phase}");
        }
    }

    #[test]
    fn all_pods_of_a_workload_are_targets_by_name_those_that_have_ended_too() {
        assert_eq!(names(&Selectors::default(), &Filters::default()).unwrap(), ["a", "b", "c"]);
        assert_eq!(found().pods.iter().filter_map(PodFacts::runs_on).collect::<Vec<_>>(), ["n1"]);
    }

    #[test]
    fn nodes_that_are_named_or_excluded_narrow_them() {
        let on = Selectors { nodes: owned(&["n1"]), ..Selectors::default() };
        assert_eq!(names(&on, &Filters::default()).unwrap(), ["b"]);
        let on = Selectors { hosts: owned(&["host-n2"]), ..Selectors::default() };
        assert_eq!(names(&on, &Filters::default()).unwrap(), ["a"]);
        let without = Filters { excluded: owned(&["host-n1"]), ..Filters::default() };
        assert_eq!(names(&Selectors::default(), &without).unwrap(), ["a", "c"]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let refused = |selectors: Selectors, filters: Filters| names(&selectors, &filters).unwrap_err();
        let none = Selectors { nodes: owned(&["n9"]), ..Selectors::default() };
        assert_eq!(refused(none, Filters::default()), Unresolved::NodeNotFound("n9".into()));
        let other = Selectors { workspace: Some("other".into()), ..Selectors::default() };
        assert_eq!(refused(other, Filters::default()), Unresolved::WorkspaceNotFound("other".into()));
        let away = Selectors { cluster: Some("away".into()), ..Selectors::default() };
        assert_eq!(refused(away, Filters::default()), Unresolved::ClusterUnknown("away".into()));
        let twins = [node("n1"), NodeFacts { host: "host-n1".into(), ..node("n2") }];
        let of_host = Selectors { hosts: owned(&["host-n1"]), ..Selectors::default() };
        let here = Here { cluster: "here", node: None };
        let refused_twins = resolve_pods(&of_host, &Filters::default(), &found(), &twins, here).unwrap_err();
        assert_eq!(refused_twins, Unresolved::HostOfTwo("host-n1".into(), ["n1".into(), "n2".into()]));
        let typo = Filters { excluded: owned(&["n8"]), ..Filters::default() };
        assert_eq!(refused(Selectors::default(), typo), Unresolved::ExcludedNotFound("n8".into(), Some("n1".into())));
        let all = Filters { excluded: owned(&["n1"]), ..Filters::default() };
        let on = Selectors { nodes: owned(&["n1"]), ..Selectors::default() };
        assert_eq!(refused(on, all), Unresolved::NoPods);
    }
}
