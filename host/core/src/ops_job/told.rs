//! What the owner of an OpsJob is told of its targets. Source: spec of OpsJob 4.2, 5.

use serde_json::{Value, json};

use crate::ops_job::holders::{HeldPlace, PlaceTaken};
use crate::ops_job::phases::Why;
use crate::ops_job::targets::{MOST, Skipped, Unresolved};

/// Most skipped nodes that an output names.
const SKIPPED_SHOWN: usize = 200;

/// The outputs that say which nodes were left out.
pub(super) fn outputs(skipped: &[Skipped]) -> Value {
    let shown: Vec<Value> = skipped
        .iter()
        .take(SKIPPED_SHOWN)
        .map(|skipped| json!({"node": skipped.node, "reason": format!("{:?}", skipped.reason)}))
        .collect();
    if shown.is_empty() { json!([]) } else { json!([{"name": "skipped", "value": json!(shown).to_string()}]) }
}

/// The words for the loser of a target.
pub(super) fn busy_words(busy: &PlaceTaken) -> Why {
    let place = match &busy.place {
        HeldPlace::Node(uid) => format!("node with UID {uid}"),
        HeldPlace::Workload(_, uid) => format!("workload with UID {uid}"),
    };
    Why::new("TargetBusy", format!("the OpsJob with UID {} works on the {place}; wait for it, or stop it", busy.holder))
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
        Unresolved::ExcludedNotFound(name) => {
            Why::new("Invalid", format!("spec.excludedNodes: no node has the name or host {name}"))
        }
        Unresolved::NoTargets(counts) => {
            let counts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason:?}")).collect();
            let counts = if counts.is_empty() { "none is there".to_owned() } else { counts.join(", ") };
            Why::new("NoTargets", format!("no node is left: {counts}"))
        }
        Unresolved::TooMany(count) => Why::new("Invalid", format!("{count} nodes are too many: at most {MOST}")),
    }
}
