//! The scenario of a model of OpsJobs: the OpsJobs, their nodes, and the number of faults.

use std::collections::BTreeSet;

use oarlock_core::ops_job::names::{API_VERSION, FINALIZER, OPS_KIND};
use serde_json::{Value, json};

use crate::ops::state::OpsState;
use crate::ops::switch::OpsSwitch;
use crate::scenario::before_all;

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpsBudget {
    /// A process dies at any point and restarts.
    pub crashes: u8,
    /// The other process takes the lease, or a process takes its own lease again.
    pub takeovers: u8,
    /// The reply to a request is lost, or the request times out and the API server may still carry it out later.
    pub losses: u8,
    /// A user stops an OpsJob.
    pub stops: u8,
    /// A user deletes an OpsJob.
    pub deletions: u8,
    /// Another client deletes an OperationJob.
    pub removals: u8,
    /// An admin moves the workspace to another node.
    pub moves: u8,
    /// Time passes to the next due time.
    pub ticks: u8,
}

/// One OpsJob of a scenario. Its UID is `uid-NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The name of the OpsJob.
    pub name: &'static str,
    /// The name of its only node.
    pub node: &'static str,
    /// The node that gets the workspace of the first node at some time. An OpsJob with this node selects by workspace.
    pub moves_to: Option<&'static str>,
    /// True if the user creates the OpsJob at some time after the start.
    pub is_later: bool,
    /// True if the OpsJob has its targets and its finalizer from the start.
    pub has_targets: bool,
}

impl Task {
    /// Returns an OpsJob that exists from the start.
    pub const fn on(node: &'static str, name: &'static str) -> Self {
        Self { name, node, moves_to: None, is_later: false, has_targets: false }
    }

    /// Returns the OpsJob as one that selects its node by a workspace, which this other node gets at some time.
    pub const fn moving_to(self, node: &'static str) -> Self {
        Self { moves_to: Some(node), ..self }
    }

    /// Returns the OpsJob as one that the user creates at some time after the start.
    pub const fn later(self) -> Self {
        Self { is_later: true, ..self }
    }

    /// Returns the OpsJob with its targets and its finalizer.
    pub const fn with_targets(self) -> Self {
        Self { has_targets: true, ..self }
    }

    /// Returns the OpsJob as its user creates it. All OpsJobs are created within one second.
    pub fn document(&self) -> Value {
        let selector = match self.moves_to {
            Some(_) => json!({"name": "workspace", "value": WORKSPACE}),
            None => json!({"name": "node", "value": self.node}),
        };
        let mut document = json!({"apiVersion": API_VERSION, "kind": OPS_KIND,
            "metadata": {"name": self.name, "uid": format!("uid-{}", self.name), "resourceVersion": "1",
                "creationTimestamp": before_all().to_string()},
            "spec": {"type": "reboot", "ttlSecondsAfterFinished": -1,
                "inputs": [selector, {"name": "drain", "value": "false"}]}});
        if self.has_targets {
            document["metadata"]["finalizers"] = json!([FINALIZER]);
            document["spec"]["targets"] = json!([{"name": self.node, "uid": node_uid(self.node)}]);
        }
        document
    }
}

/// The start, the rules and the faults of one model of OpsJobs.
#[derive(Clone)]
pub struct OpsScenario {
    /// The name of the scenario.
    pub name: &'static str,
    /// The OpsJobs.
    pub tasks: &'static [Task],
    /// How often each event may happen.
    pub budget: OpsBudget,
    /// The rule that is switched off.
    pub off: Option<OpsSwitch>,
    /// True if the model begins at every state of an undisturbed run, not only at the first.
    pub from_anywhere: bool,
    /// Makes the first steps. The search begins at the state after them.
    pub begin: Option<fn(&Self, &mut OpsState)>,
    /// True if the second process never leads.
    pub is_alone: bool,
    /// The model checks one in this many states for healing once faults stop.
    pub heal_one_in: u64,
}

impl OpsScenario {
    /// Creates a scenario with these OpsJobs.
    pub const fn new(name: &'static str, tasks: &'static [Task], budget: OpsBudget) -> Self {
        Self { name, tasks, budget, off: None, from_anywhere: false, begin: None, is_alone: false, heal_one_in: 512 }
    }

    /// Makes the model begin at every state of an undisturbed run.
    #[must_use]
    pub const fn from_anywhere(mut self) -> Self {
        self.from_anywhere = true;
        self
    }

    /// Makes the search begin after these steps.
    #[must_use]
    pub const fn after(mut self, steps: fn(&Self, &mut OpsState)) -> Self {
        self.begin = Some(steps);
        self
    }

    /// Leaves the lease to the first process, which may lose it and get it back.
    #[must_use]
    pub const fn alone(mut self) -> Self {
        self.is_alone = true;
        self
    }

    /// Switches a rule off.
    #[must_use]
    pub const fn without(mut self, rule: OpsSwitch) -> Self {
        self.off = Some(rule);
        self
    }

    /// Checks one in this many states for healing.
    #[must_use]
    pub const fn heals_one_in(mut self, states: u64) -> Self {
        self.heal_one_in = states;
        self
    }

    /// Returns true if this rule is switched off.
    pub fn lacks(&self, rule: OpsSwitch) -> bool {
        self.off == Some(rule)
    }

    /// Returns a stored node with its workspace. Each node is Ready.
    pub fn node(&self, name: &str, has_moved: bool) -> Value {
        let is_of_workspace = |task: &Task| {
            let place = if has_moved { task.moves_to } else { task.moves_to.map(|_| task.node) };
            place == Some(name)
        };
        let mut node = json!({"kind": "Node", "metadata": {"name": name, "uid": node_uid(name), "labels": {HOST: name}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        if self.tasks.iter().any(is_of_workspace) {
            node["metadata"]["labels"][WORKSPACE_LABEL] = json!(WORKSPACE);
        }
        node
    }

    /// Returns all stored nodes.
    pub fn nodes(&self, has_moved: bool) -> Vec<Value> {
        let names: BTreeSet<&str> =
            self.tasks.iter().flat_map(|task| [Some(task.node), task.moves_to]).flatten().collect();
        names.into_iter().map(|name| self.node(name, has_moved)).collect()
    }

    /// Returns the OpsJob with this name.
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name == name)
    }
}

/// The workspace of OpsJobs that select their node by workspace.
const WORKSPACE: &str = "w";
/// The label with the workspace of a node.
const WORKSPACE_LABEL: &str = "node-restriction.kubernetes.io/workspace";
/// The label with the host of a node.
const HOST: &str = "kubernetes.io/hostname";

/// Returns the UID of a node.
pub fn node_uid(name: &str) -> String {
    format!("uid-{name}")
}
