//! The target nodes of an OpsJob, and the reason why each other node is left out. Source: docs/opsjob.md 3.
//!
//! Takes the requested scope and the nodes of the cluster, as of one time; yields targets in the order of their work. May not read anything else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ops_job::nearest::{WRONG, nearest};

/// The most targets of a job.
pub const MOST: usize = 5_000;

/// The facts of a node by which targets are selected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Name of the node.
    pub name: String,
    /// UID of the node.
    pub uid: String,
    /// The label `kubernetes.io/hostname`.
    pub host: String,
    /// The label with the node's workspace.
    pub workspace: Option<String>,
    /// True if the node is of the control plane.
    pub is_control_plane: bool,
    /// True if the condition Ready is True.
    pub is_ready: bool,
    /// True if the node is cordoned.
    pub is_cordoned: bool,
    /// True if the node has a taint that keeps pods off.
    pub is_tainted: bool,
    /// True if the node is being deleted.
    pub is_deleting: bool,
    /// True if a pod of a workload is on the node.
    pub is_busy: bool,
}

/// The nodes that a job selects. At least one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// Names of nodes.
    pub nodes: Vec<String>,
    /// Values of the host label, or names of nodes.
    pub hosts: Vec<String>,
    /// The nodes of the unfinished pods of a workload.
    pub of_workload: Option<BTreeSet<String>>,
    /// A value of the workspace label.
    pub workspace: Option<String>,
    /// The id of a cluster.
    pub cluster: Option<String>,
}

/// The selectors under which a filter leaves nodes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Extent {
    /// The filter never applies.
    #[default]
    Never,
    /// The filter applies unless the job names its nodes. So it applies to nodes selected by workload, workspace or cluster.
    Unnamed,
    /// The filter always applies.
    Always,
}

/// The kind of selector that a job uses.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// True if the job selects nodes by name or host.
    is_named: bool,
    /// True if the job selects nodes by workspace or cluster.
    is_wide: bool,
}

impl Extent {
    const fn holds(self, asked: Asked) -> bool {
        match self {
            Self::Never => false,
            Self::Unnamed => !asked.is_named,
            Self::Always => true,
        }
    }
}

/// The rules of a job that leave out selected nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Names and hosts of nodes that are left out.
    pub excluded: BTreeSet<String>,
    /// True if only names count in `excluded`. Each kubelet sets the host label of its own node.
    pub excludes_names_alone: bool,
    /// True if a name in `excluded` that no node has is not an error.
    pub may_exclude_nobody: bool,
    /// The selectors under which control plane nodes are left out.
    pub control_plane: Extent,
    /// The selectors under which nodes that are not Ready are left out.
    pub not_ready: Extent,
    /// The selectors under which cordoned and tainted nodes are left out.
    pub unschedulable: Extent,
    /// True if busy nodes are left out.
    pub spares_busy: bool,
    /// True if busy nodes come after idle nodes.
    pub busy_last: bool,
    /// The number of nodes that the job takes from a workspace or cluster. 0 means all.
    pub replica: usize,
    /// True if the job takes only the newest pod, or the newest running pod if any pod runs.
    pub newest_alone: bool,
}

/// The id of this cluster, and the node on which the host runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Here<'a> {
    /// The id of the cluster.
    pub cluster: &'a str,
    /// The name of the host's node.
    pub node: Option<&'a str>,
}

/// The reason why a node is not a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// The job excludes the node.
    Excluded,
    /// The node is being deleted.
    Deleting,
    /// The node is of the control plane.
    ControlPlane,
    /// The node is not Ready.
    NotReady,
    /// The node is cordoned.
    Cordoned,
    /// The node has a taint that keeps pods off.
    Tainted,
    /// A pod of a workload is on the node.
    Busy,
    /// The job already has enough nodes.
    OverReplica,
}

impl SkipReason {
    const ALL: [Self; 8] = [
        Self::Excluded,
        Self::Deleting,
        Self::ControlPlane,
        Self::NotReady,
        Self::Cordoned,
        Self::Tainted,
        Self::Busy,
        Self::OverReplica,
    ];

    /// Returns the reason with this word.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }

    /// Returns the word of the reason.
    pub fn word(self) -> String {
        format!("{self:?}")
    }
}

/// A node that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Name of the node.
    pub node: String,
    /// The reason why the node is left out.
    pub reason: SkipReason,
}

/// The targets of a job, in the order of their work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Name and UID of each target.
    pub targets: Vec<(String, String)>,
    /// The selected nodes that are left out, by name.
    pub skipped: Vec<Skipped>,
    /// The namespace of the targets, if they are pods.
    pub namespace: Option<String>,
}

impl Resolved {
    /// Returns the fields of the spec with these targets, and the workspace that all targets share.
    pub fn fields(&self, workspace: Option<&str>) -> Vec<(&'static str, Value)> {
        let target = |(name, uid): &(String, String)| match &self.namespace {
            Some(namespace) => json!({"name": name, "namespace": namespace, "uid": uid}),
            None => json!({"name": name, "uid": uid}),
        };
        let targets: Vec<Value> = self.targets.iter().map(target).collect();
        let skipped = self.skipped.iter();
        let skipped: Vec<Value> =
            skipped.map(|skipped| json!({"node": skipped.node, "reason": skipped.reason.word()})).collect();
        let workspace = workspace.map(|workspace| ("workspace", json!(workspace)));
        [("targets", json!(targets)), ("skipped", json!(skipped))].into_iter().chain(workspace).collect()
    }

    /// Returns all targets, and as many of the skipped nodes as fit into `room` bytes.
    ///
    /// # Errors
    /// If the targets alone have no room.
    pub fn within(mut self, room: usize) -> Result<Self, Unresolved> {
        // The bytes of a list item in addition to its texts.
        let namespace = self.namespace.as_ref().map_or(0, |namespace| namespace.len() + 16);
        let bytes: usize = self.targets.iter().map(|(name, uid)| name.len() + uid.len() + namespace + 24).sum();
        let Some(mut left) = room.checked_sub(bytes) else {
            return Err(Unresolved::TooLarge(self.targets.len(), bytes));
        };
        let fits = |skipped: &&Skipped| {
            let bytes = skipped.node.len() + 40;
            let fits = bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        };
        let named = self.skipped.iter().take(MOST).take_while(fits).count();
        self.skipped.truncate(named);
        Ok(self)
    }
}

/// The reason why a job has no targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No node has this name or host.
    NodeNotFound(String),
    /// Two nodes have this host.
    HostOfTwo(String, [String; 2]),
    /// The job selects this node, but the node does not meet this wider selector.
    Outside(String, &'static str),
    /// No node is in this workspace.
    WorkspaceNotFound(String),
    /// The job selects another cluster, with this id.
    ClusterUnknown(String),
    /// No node has this excluded name or host. The second value is the closest known name.
    ExcludedNotFound(String, Option<String>),
    /// No node has this excluded name. The job ignores hosts in its list of excluded nodes.
    ExcludedNameNotFound(String),
    /// All selected nodes were left out. The map counts them by reason.
    NoTargets(BTreeMap<SkipReason, usize>),
    /// The workload has no pods, or no pods on the selected nodes.
    NoPods,
    /// The job has this number of targets, which is too many.
    TooMany(usize),
    /// This number of targets needs this number of bytes, which is too many.
    TooLarge(usize, usize),
}

/// Returns the targets of a job.
///
/// # Errors
/// If the job has no targets. The reason is for the job's owner.
pub fn resolve(
    selectors: &Selectors,
    filters: &Filters,
    nodes: &[NodeFacts],
    here: Here<'_>,
) -> Result<Resolved, Unresolved> {
    let index = Index::of(selectors, filters, nodes, here)?;
    let (chosen, is_named) = choose(selectors, nodes, &index)?;
    let asked = Asked { is_named, is_wide: !is_named && selectors.of_workload.is_none() };
    let mut resolved = Resolved::default();
    let mut taken: Vec<&NodeFacts> = Vec::new();
    for node in chosen.into_values() {
        let is_full = asked.is_wide && filters.replica > 0 && taken.len() >= filters.replica;
        let is_excluded = index.excludes(filters, node);
        let reason = is_excluded.then_some(SkipReason::Excluded).or_else(|| skip_reason(node, filters, asked));
        let reason = reason.or(is_full.then_some(SkipReason::OverReplica));
        match reason {
            Some(reason) => resolved.skipped.push(Skipped { node: node.name.clone(), reason }),
            None => taken.push(node),
        }
    }
    if taken.is_empty() {
        let mut counts = BTreeMap::new();
        resolved.skipped.iter().for_each(|skipped| *counts.entry(skipped.reason).or_default() += 1);
        return Err(Unresolved::NoTargets(counts));
    }
    if taken.len() > MOST {
        return Err(Unresolved::TooMany(taken.len()));
    }
    // Work on the control plane or on the host's node can interrupt the job, so these nodes come last.
    taken
        .sort_by_key(|node| (here.node == Some(&*node.name), node.is_control_plane, filters.busy_last && node.is_busy));
    resolved.targets = taken.into_iter().map(|node| (node.name.clone(), node.uid.clone())).collect();
    Ok(resolved)
}

/// Nodes by name and by host. A host label that is the name of another node does not count. A kubelet sets this label itself, so a compromised node
/// could pass for another node.
pub(super) struct Index<'a> {
    by_name: HashMap<&'a str, &'a NodeFacts>,
    by_host: HashMap<&'a str, Vec<&'a NodeFacts>>,
}

impl<'a> Index<'a> {
    /// Returns the index of this cluster's nodes. Checks the job's cluster and the excluded nodes.
    pub(super) fn of(
        selectors: &Selectors,
        filters: &Filters,
        nodes: &'a [NodeFacts],
        here: Here<'_>,
    ) -> Result<Self, Unresolved> {
        if let Some(other) = selectors.cluster.as_ref().filter(|cluster| *cluster != here.cluster) {
            return Err(Unresolved::ClusterUnknown(other.clone()));
        }
        let index = Self::over(nodes);
        let unknown = filters.excluded.iter().find(|name| !index.has_excluded(filters, name));
        match (unknown.filter(|_| !filters.may_exclude_nobody), filters.excludes_names_alone) {
            (Some(unknown), true) => Err(Unresolved::ExcludedNameNotFound(unknown.clone())),
            (Some(unknown), false) => {
                let near = near_node(unknown, selectors.workspace.as_ref(), nodes).map(str::to_owned);
                Err(Unresolved::ExcludedNotFound(unknown.clone(), near))
            }
            (None, _) => Ok(index),
        }
    }

    /// Returns the index of all of these nodes.
    pub(super) fn over(nodes: &'a [NodeFacts]) -> Self {
        let by_name: HashMap<&str, &NodeFacts> = nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let mut by_host: HashMap<&str, Vec<&NodeFacts>> = HashMap::new();
        let has_host = |node: &&NodeFacts| node.host == node.name || !by_name.contains_key(node.host.as_str());
        nodes.iter().filter(has_host).for_each(|node| by_host.entry(&node.host).or_default().push(node));
        Self { by_name, by_host }
    }

    /// Returns true if a node is left out by its name or host.
    pub(super) fn excludes(&self, filters: &Filters, node: &NodeFacts) -> bool {
        let of_host =
            || self.by_host.get(node.host.as_str()).is_some_and(|of| of.iter().any(|own| own.name == node.name));
        filters.excluded.contains(&node.name)
            || !filters.excludes_names_alone && filters.excluded.contains(&node.host) && of_host()
    }

    /// Returns true if some node has this excluded name or host.
    pub(super) fn has_excluded(&self, filters: &Filters, name: &str) -> bool {
        self.by_name.contains_key(name) || !filters.excludes_names_alone && self.by_host.contains_key(name)
    }

    /// Returns the nodes that are selected by name, and the nodes that are selected by host.
    pub(super) fn selected(
        &self,
        selectors: &Selectors,
    ) -> Result<(Vec<&'a NodeFacts>, Vec<&'a NodeFacts>), Unresolved> {
        let of_name = |name: &String| {
            self.by_name.get(name.as_str()).copied().ok_or_else(|| Unresolved::NodeNotFound(name.clone()))
        };
        let named = selectors.nodes.iter().map(of_name).collect::<Result<_, _>>()?;
        Ok((named, selectors.hosts.iter().map(|host| self.of_host(host)).collect::<Result<_, _>>()?))
    }

    /// Returns the node with this name, or the only node with this host.
    fn of_host(&self, host: &str) -> Result<&'a NodeFacts, Unresolved> {
        if let Some(node) = self.by_name.get(host) {
            return Ok(node);
        }
        match self.by_host.get(host).map(Vec::as_slice) {
            Some([only]) => Ok(only),
            Some([first, second, ..]) => {
                Err(Unresolved::HostOfTwo(host.to_owned(), [first.name.clone(), second.name.clone()]))
            }
            _ => Err(Unresolved::NodeNotFound(host.to_owned())),
        }
    }
}

/// Returns the name or host that is closest to `name`. If the job selects a workspace, only nodes of the workspace count, so that no other node is
/// revealed.
pub(super) fn near_node<'a>(name: &str, workspace: Option<&String>, nodes: &'a [NodeFacts]) -> Option<&'a str> {
    let of_workspace = |node: &&NodeFacts| workspace.is_none() || node.workspace.as_ref() == workspace;
    let names = nodes.iter().filter(of_workspace).flat_map(|node| [node.name.as_str(), &node.host]);
    // The filter by length saves comparisons, because there may be thousands of nodes.
    let known: Vec<&str> = names.filter(|known| known.len().abs_diff(name.len()) <= WRONG).collect();
    nearest(name, &known)
}

/// Returns the nodes of the narrowest selector, by name. Each node must meet all wider selectors. The flag is true if the job names its nodes.
fn choose<'a>(
    selectors: &Selectors,
    nodes: &'a [NodeFacts],
    index: &Index<'a>,
) -> Result<(BTreeMap<&'a str, &'a NodeFacts>, bool), Unresolved> {
    let (named, of_hosts) = index.selected(selectors)?;
    let of_workload = selectors.of_workload.as_ref();
    let of_workspace = |node: &NodeFacts| selectors.workspace.is_none() || node.workspace == selectors.workspace;
    if let Some(workspace) = selectors.workspace.as_ref().filter(|_| !nodes.iter().any(of_workspace)) {
        return Err(Unresolved::WorkspaceNotFound(workspace.clone()));
    }
    let is_named = !(named.is_empty() && of_hosts.is_empty());
    let chosen: Vec<&NodeFacts> = match (named.is_empty(), of_hosts.is_empty(), of_workload) {
        (false, _, _) => named,
        (true, false, _) => of_hosts.clone(),
        (true, true, Some(of_workload)) => nodes.iter().filter(|node| of_workload.contains(&node.name)).collect(),
        (true, true, None) => nodes.iter().filter(|node| of_workspace(node)).collect(),
    };
    for node in &chosen {
        let outside = |what| Err(Unresolved::Outside(node.name.clone(), what));
        if !of_hosts.is_empty() && !of_hosts.iter().any(|other| other.name == node.name) {
            return outside("node.host");
        }
        if of_workload.is_some_and(|of_workload| !of_workload.contains(&node.name)) {
            return outside("workload");
        }
        if !of_workspace(node) {
            return outside("workspace");
        }
    }
    Ok((chosen.into_iter().map(|node| (node.name.as_str(), node)).collect(), is_named))
}

/// Returns the first reason for leaving out a node that the job does not exclude.
fn skip_reason(node: &NodeFacts, filters: &Filters, asked: Asked) -> Option<SkipReason> {
    let reasons = [
        (SkipReason::Deleting, node.is_deleting),
        (SkipReason::ControlPlane, filters.control_plane.holds(asked) && node.is_control_plane),
        (SkipReason::NotReady, filters.not_ready.holds(asked) && !node.is_ready),
        (SkipReason::Cordoned, filters.unschedulable.holds(asked) && node.is_cordoned),
        (SkipReason::Tainted, filters.unschedulable.holds(asked) && node.is_tainted),
        (SkipReason::Busy, filters.spares_busy && node.is_busy),
    ];
    reasons.into_iter().find(|(_, holds)| *holds).map(|(reason, _)| reason)
}

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;
