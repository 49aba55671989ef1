//! The pods that an OpsJob is for: those of one workload. Source: docs/opsjob.md 3.
//!
//! Takes what was asked and the pods that were found, at one time; yields targets by name. May not look anything up.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::child::fields::text;
use crate::job::time::read_time;
use crate::ops_job::targets::{Filters, Here, MOST, NodeFacts, Resolved, Selectors, SkipReason, Skipped, Unresolved};

/// A pod as far as it decides here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Its phase.
    pub phase: String,
}

impl PodFacts {
    /// The fields that are read for this.
    pub const FIELDS: [&str; 2] = ["/spec/nodeName", "/status/phase"];

    /// Reads a stored pod; `None` if it lacks a name or a UID, which no stored one does.
    pub fn read(pod: &Value) -> Option<Self> {
        Some(Self {
            name: text(pod, "/metadata/name")?.to_owned(),
            uid: text(pod, "/metadata/uid")?.to_owned(),
            node: text(pod, "/spec/nodeName").filter(|node| !node.is_empty()).map(str::to_owned),
            created: read_time(text(pod, "/metadata/creationTimestamp")),
            phase: text(pod, "/status/phase").unwrap_or_default().to_owned(),
        })
    }

    /// The node that it is on, unless it has ended.
    pub fn runs_on(&self) -> Option<&str> {
        self.node.as_deref().filter(|_| !matches!(self.phase.as_str(), "Succeeded" | "Failed"))
    }
}

/// The pods of a workload, those that have ended among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadPods {
    /// Their namespace.
    pub namespace: String,
    /// They.
    pub pods: Vec<PodFacts>,
}

/// The targets of a job on pods. Of nodes only those decide that are named, as selector or as excluded.
///
/// # Errors
/// The reason why it has none, of which its owner is told.
pub fn resolve_pods(
    selectors: &Selectors,
    filters: &Filters,
    (found, nodes): (&WorkloadPods, &[NodeFacts]),
    here: Here<'_>,
) -> Result<Resolved, Unresolved> {
    if let Some(other) = selectors.cluster.as_ref().filter(|cluster| *cluster != here.cluster) {
        return Err(Unresolved::ClusterUnknown(other.clone()));
    }
    if let Some(other) = selectors.workspace.as_ref().filter(|workspace| **workspace != found.namespace) {
        return Err(Unresolved::WorkspaceNotFound(other.clone()));
    }
    let is_called = |node: &NodeFacts, name: &String| node.name == *name || node.host == *name;
    let unknown = filters.excluded.iter().find(|name| !nodes.iter().any(|node| is_called(node, name)));
    if let Some(unknown) = unknown.filter(|_| !filters.may_exclude_nobody) {
        return Err(Unresolved::ExcludedNotFound(unknown.clone()));
    }
    let by_name = selectors.nodes.iter().map(|name| (name, nodes.iter().find(|node| node.name == *name)));
    let by_host = selectors.hosts.iter().map(|host| (host, nodes.iter().find(|node| node.host == *host)));
    let mut wanted = BTreeSet::new();
    for (name, node) in by_name.chain(by_host) {
        wanted.insert(node.ok_or_else(|| Unresolved::NodeNotFound(name.clone()))?.name.as_str());
    }
    let is_excluded = |name: &str| {
        nodes.iter().any(|node| node.name == name && filters.excluded.iter().any(|own| is_called(node, own)))
    };
    let (mut resolved, mut left_out) =
        (Resolved { namespace: Some(found.namespace.clone()), ..Resolved::default() }, BTreeSet::new());
    for pod in &found.pods {
        match pod.node.as_deref() {
            node if !wanted.is_empty() && !node.is_some_and(|node| wanted.contains(node)) => {}
            Some(node) if is_excluded(node) => drop(left_out.insert(node.to_owned())),
            _ => resolved.targets.push((pod.name.clone(), pod.uid.clone())),
        }
    }
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
        PodFacts { name: name.into(), uid: format!("u-{name}"), node, phase: phase.into(), created: None }
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
        let resolved = resolve_pods(selectors, filters, (&found(), &nodes), here)?;
        assert_eq!(resolved.namespace.as_deref(), Some("team"));
        Ok(resolved.targets.into_iter().map(|(name, _)| name).collect())
    }

    fn owned<T: FromIterator<String>>(all: &[&str]) -> T {
        all.iter().map(|one| (*one).to_owned()).collect()
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
        let typo = Filters { excluded: owned(&["n8"]), ..Filters::default() };
        assert_eq!(refused(Selectors::default(), typo), Unresolved::ExcludedNotFound("n8".into()));
        let all = Filters { excluded: owned(&["n1"]), ..Filters::default() };
        let on = Selectors { nodes: owned(&["n1"]), ..Selectors::default() };
        assert_eq!(refused(on, all), Unresolved::NoPods);
    }
}
