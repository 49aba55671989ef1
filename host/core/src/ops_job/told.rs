//! What the owner of an OpsJob is told of its targets. Source: docs/opsjob.md 3 and 4.

use serde_json::{Value, json};

use crate::ops_job::holders::{HeldPlace, PlaceTaken};
use crate::ops_job::phases::Why;
use crate::ops_job::targets::{MOST, Skipped, Unresolved};

/// Most skipped nodes that an output names.
const SKIPPED_SHOWN: usize = 200;

/// The output that says which nodes were left out; none where none was.
pub(super) fn skipped_output(skipped: &[Skipped]) -> Vec<Value> {
    let shown: Vec<Value> = skipped
        .iter()
        .take(SKIPPED_SHOWN)
        .map(|skipped| json!({"node": skipped.node, "reason": format!("{:?}", skipped.reason)}))
        .collect();
    if shown.is_empty() { Vec::new() } else { vec![json!({"name": "skipped", "value": json!(shown).to_string()})] }
}

/// The words for the loser of a target, of which `targets` has the name.
pub(super) fn busy_words(busy: &PlaceTaken, targets: &[(String, String)]) -> Why {
    let (HeldPlace::Node(uid) | HeldPlace::Pod(_, uid)) = &busy.place;
    let name = targets.iter().find(|(_, of)| of == uid).map_or(uid.as_str(), |(name, _)| name);
    let holder = &busy.holder;
    Why::new("TargetBusy", format!("OpsJob {holder} works on {name}: wait for it, or stop it, and make this one anew"))
}

/// The words for a job that has no targets.
pub(super) fn unresolved_words(unresolved: &Unresolved) -> Why {
    match unresolved {
        Unresolved::NodeNotFound(name) => Why::new("NodeNotFound", format!("there is no node {name}")),
        Unresolved::HostOfTwo(host, [first, second]) => {
            Why::new("Invalid", format!("host {host} is that of {first} and of {second}: name the node"))
        }
        Unresolved::Outside(node, of) => {
            Why::new("Invalid", format!("node {node} is not of the {of} that is asked for as well"))
        }
        Unresolved::WorkspaceNotFound(workspace) => Why::new(
            "WorkspaceNotFound",
            format!(
                "no node is of workspace {workspace}: kubectl label node NAME node-restriction.kubernetes.io/workspace={workspace}"
            ),
        ),
        Unresolved::ClusterUnknown(cluster) => Why::new("ClusterUnknown", format!("this is not cluster {cluster}")),
        Unresolved::ExcludedNotFound(name, near) => {
            let near = near.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            Why::new("Invalid", format!("spec.excludedNodes: no node has the name or host {name}{near}"))
        }
        Unresolved::ExcludedNameNotFound(name) => Why::new(
            "Invalid",
            format!(
                "spec.excludedNodes: no node has the name {name}; with securityUpgrade write names of nodes, and no hosts"
            ),
        ),
        Unresolved::NoTargets(counts) => {
            let counts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason:?}")).collect();
            let counts = if counts.is_empty() { "none is there".to_owned() } else { counts.join(", ") };
            Why::new("NoTargets", format!("no node is left: {counts}"))
        }
        Unresolved::NoPods => {
            Why::new("NoTargets", "the workload has no pods, or none on the nodes that are asked for".to_owned())
        }
        Unresolved::TooLarge(count, bytes) => Why::new(
            "Invalid",
            format!(
                "there is no room for the names of {count} targets, of {bytes} bytes, beside the spec: make several jobs, or ask for \
                 nodes by workspace or cluster"
            ),
        ),
        Unresolved::TooMany(count) => Why::new("Invalid", format!("{count} targets are too many: at most {MOST}")),
    }
}
