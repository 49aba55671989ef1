//! Messages to the owner of an OpsJob about its targets. Source: docs/opsjob.md 3 and 4.

use serde_json::{Value, json};

use crate::kind::locks::TargetLocked;
use crate::ops_job::phases::PhaseReason;
use crate::ops_job::targets::{MOST, Skipped, Unresolved};

/// The most skipped nodes that the output names.
const SKIPPED_SHOWN: usize = 200;

/// Returns the output that names the skipped nodes. Returns nothing if no node was skipped.
pub(super) fn skipped_output(skipped: &[Skipped]) -> Vec<Value> {
    let shown: Vec<Value> = skipped
        .iter()
        .take(SKIPPED_SHOWN)
        .map(|skipped| json!({"node": skipped.node, "reason": format!("{:?}", skipped.reason)}))
        .collect();
    if shown.is_empty() { Vec::new() } else { vec![json!({"name": "skipped", "value": json!(shown).to_string()})] }
}

/// Returns the message for a job whose target another job holds. `targets` has the target's name.
pub(super) fn locked_message(busy: &TargetLocked, targets: &[(String, String)]) -> PhaseReason {
    let uid = &busy.target.uid;
    let name = targets.iter().find(|(_, of)| of == uid).map_or(uid.as_str(), |(name, _)| name);
    let holder = &busy.holder;
    PhaseReason::new(
        "TargetBusy",
        format!("OpsJob {holder} works on {name}: wait for that job or stop it, then create this job again"),
    )
}

/// Returns the message for a job that has no targets.
pub(super) fn unresolved_message(unresolved: &Unresolved) -> PhaseReason {
    match unresolved {
        Unresolved::NodeNotFound(name) => PhaseReason::new("NodeNotFound", format!("there is no node {name}")),
        Unresolved::HostOfTwo(host, [first, second]) => PhaseReason::new(
            "Invalid",
            format!("the nodes {first} and {second} both have the host {host}: name the node"),
        ),
        Unresolved::Outside(node, of) => {
            PhaseReason::new("Invalid", format!("node {node} does not match the input {of}"))
        }
        Unresolved::WorkspaceNotFound(workspace) => PhaseReason::new(
            "WorkspaceNotFound",
            format!(
                "no node has the workspace {workspace}: label its nodes with kubectl label node NAME node-restriction.kubernetes.io/workspace={workspace}"
            ),
        ),
        Unresolved::ClusterUnknown(cluster) => {
            PhaseReason::new("ClusterUnknown", format!("this cluster does not have the id {cluster}"))
        }
        Unresolved::ExcludedNotFound(name, near) => {
            let near = near.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            PhaseReason::new("Invalid", format!("spec.excludedNodes: no node has the name or host {name}{near}"))
        }
        Unresolved::ExcludedNameNotFound(name) => PhaseReason::new(
            "Invalid",
            format!(
                "spec.excludedNodes: no node has the name {name}; with securityUpgrade, give names of nodes and no hosts"
            ),
        ),
        Unresolved::NoTargets(counts) => {
            let counts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason:?}")).collect();
            let counts = if counts.is_empty() { "none is there".to_owned() } else { counts.join(", ") };
            PhaseReason::new("NoTargets", format!("no node is left: {counts}"))
        }
        Unresolved::NoPods => PhaseReason::new(
            "NoTargets",
            "the workload has no pods, or none on the nodes that are asked for".to_owned(),
        ),
        Unresolved::TooLarge(count, bytes) => PhaseReason::new(
            "Invalid",
            format!(
                "the spec has no room for the names of {count} targets ({bytes} bytes): create several jobs, or select the nodes by workspace or cluster"
            ),
        ),
        Unresolved::TooMany(count) => {
            PhaseReason::new("Invalid", format!("{count} targets are too many: at most {MOST}"))
        }
    }
}
