//! The nodes that an OpsJob is for, and why each other one is not. Source: docs/opsjob.md 3.
//!
//! Takes what was asked and what the cluster has, at one time; yields targets in the order of their turn. May not look anything up.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use crate::ops_job::nearest::{WRONG, nearest};

/// Most targets of a job.
pub const MOST: usize = 5_000;

/// A node as far as it decides here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The label `kubernetes.io/hostname`.
    pub host: String,
    /// The label of workspaces.
    pub workspace: Option<String>,
    /// It is of the control plane.
    pub is_control_plane: bool,
    /// Its condition Ready is True.
    pub is_ready: bool,
    /// It is cordoned.
    pub is_cordoned: bool,
    /// It has a taint that keeps pods off.
    pub is_tainted: bool,
    /// It is being deleted.
    pub is_deleting: bool,
    /// A pod of a workload is on it.
    pub is_busy: bool,
}

/// Which nodes are asked for. At least one field is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// Names of nodes.
    pub nodes: Vec<String>,
    /// Values of the label with the host, or names of nodes.
    pub hosts: Vec<String>,
    /// The nodes of the unfinished pods of a workload.
    pub of_workload: Option<BTreeSet<String>>,
    /// A value of the label of workspaces.
    pub workspace: Option<String>,
    /// The id of a cluster.
    pub cluster: Option<String>,
}

/// By which selectors nodes have to be asked for, so that those of some kind are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Extent {
    /// By none: they are targets as others are.
    #[default]
    Never,
    /// By all but names and hosts: by workload, workspace or cluster.
    Unnamed,
    /// By any.
    Always,
}

/// How the nodes of a job are asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// By name or host.
    is_named: bool,
    /// By workspace or cluster.
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

/// What of a job decides beside the selectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Names and hosts of nodes that are left out.
    pub excluded: BTreeSet<String>,
    /// Only names count among these: a kubelet says the host of its node itself.
    pub excludes_names_alone: bool,
    /// A name among them that no node has is no error.
    pub may_exclude_nobody: bool,
    /// Where the control plane is left out.
    pub control_plane: Extent,
    /// Where nodes that are not Ready are.
    pub not_ready: Extent,
    /// Where cordoned and tainted nodes are.
    pub unschedulable: Extent,
    /// Busy nodes are left out.
    pub spares_busy: bool,
    /// Busy nodes come after idle ones.
    pub busy_last: bool,
    /// So many are taken of a workspace or cluster; 0 for all.
    pub replica: usize,
    /// Of pods the newest is taken, of those that run if one does.
    pub newest_alone: bool,
}

/// The id of this cluster, and the node that the host itself runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Here<'a> {
    /// The id.
    pub cluster: &'a str,
    /// The name of the node.
    pub node: Option<&'a str>,
}

/// Why a node is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// It is among the excluded ones.
    Excluded,
    /// It is being deleted.
    Deleting,
    /// It is of the control plane.
    ControlPlane,
    /// It is not Ready.
    NotReady,
    /// It is cordoned.
    Cordoned,
    /// It has a taint.
    Tainted,
    /// A workload runs on it.
    Busy,
    /// There are enough without it.
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

    /// The reason of this word.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }

    /// Its word.
    pub fn word(self) -> String {
        format!("{self:?}")
    }
}

/// A node that is no target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name.
    pub node: String,
    /// Why.
    pub reason: SkipReason,
}

/// The targets of a job, in the order of their turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Name and UID of each.
    pub targets: Vec<(String, String)>,
    /// The others that were asked for, by name.
    pub skipped: Vec<Skipped>,
    /// The namespace of the targets, where these are pods.
    pub namespace: Option<String>,
}

impl Resolved {
    /// The fields of a spec that say so, with the workspace that all targets share.
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

    /// As far as it has room in so many bytes and an object: all targets, and as many of the others as fit.
    ///
    /// # Errors
    /// There is no room for all targets.
    pub fn within(mut self, room: usize) -> Result<Self, Unresolved> {
        // What a list item takes beside its texts.
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

/// Why a job has no targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No node has this name or host.
    NodeNotFound(String),
    /// Two nodes have this host.
    HostOfTwo(String, [String; 2]),
    /// This node is not of what else was asked for, which is named.
    Outside(String, &'static str),
    /// No node is of this workspace.
    WorkspaceNotFound(String),
    /// This is another cluster.
    ClusterUnknown(String),
    /// No node has the name or host that is excluded; this one is the nearest.
    ExcludedNotFound(String, Option<String>),
    /// No node has the name that is excluded, by a job for which hosts do not count.
    ExcludedNameNotFound(String),
    /// All were left out: how many for each reason.
    NoTargets(BTreeMap<SkipReason, usize>),
    /// The workload has no pods, or none on the nodes that are asked for.
    NoPods,
    /// So many are too many.
    TooMany(usize),
    /// These take more than so many bytes.
    TooLarge(usize, usize),
}

/// The targets of a job.
///
/// # Errors
/// The reason why it has none, of which its owner is told.
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
    // Whoever loses the control plane or this host loses the job: they come last.
    taken
        .sort_by_key(|node| (here.node == Some(&*node.name), node.is_control_plane, filters.busy_last && node.is_busy));
    resolved.targets = taken.into_iter().map(|node| (node.name.clone(), node.uid.clone())).collect();
    Ok(resolved)
}

/// Nodes by name and by host. A host that is the name of another node is no host: a kubelet sets that label itself, and a node that is
/// taken over could pass for another one.
pub(super) struct Index<'a> {
    by_name: HashMap<&'a str, &'a NodeFacts>,
    by_host: HashMap<&'a str, Vec<&'a NodeFacts>>,
}

impl<'a> Index<'a> {
    /// The nodes of this cluster, which the job has to be for. Whatever it leaves out is among them.
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

    /// All of these nodes.
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

    /// The nodes that are selected by name, and those that are by host.
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

    /// The node of this name, or else the only one of this host.
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

/// The name or host that is nearest to this one, of the nodes of a workspace where one is asked for: others are not told of.
pub(super) fn near_node<'a>(name: &str, workspace: Option<&String>, nodes: &'a [NodeFacts]) -> Option<&'a str> {
    let of_workspace = |node: &&NodeFacts| workspace.is_none() || node.workspace.as_ref() == workspace;
    let names = nodes.iter().filter(of_workspace).flat_map(|node| [node.name.as_str(), &node.host]);
    // A name of another length costs no comparison: there may be thousands.
    let known: Vec<&str> = names.filter(|known| known.len().abs_diff(name.len()) <= WRONG).collect();
    nearest(name, &known)
}

/// The nodes of the narrowest selector, by name, each of which has to be of all wider ones. True where they are named.
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

/// The first reason for which a node is left out that is not excluded.
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
