//! Reads the facts of a node by which an OpsJob selects its targets. Source: docs/opsjob.md 3.

use serde_json::Value;

use crate::attempts::node::{keeps_away, ready};
use crate::object::fields::{flag, list, text};
use crate::ops_job::targets::NodeFacts;

/// The label with the workspace of a node. Kubelets may not set this label.
pub const WORKSPACE: &str = "node-restriction.kubernetes.io/workspace";
/// The label of control plane nodes.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

impl NodeFacts {
    /// Reads a stored node, or a projection of it to its metadata and [`crate::attempts::node::FIELDS`].
    pub fn read(node: &Value) -> Option<Self> {
        let label = |name: &str| text(node, &format!("/metadata/labels/{}", name.replace('/', "~1")));
        let keeps_off = |taint: &Value| text(taint, "/effect").is_some_and(keeps_away);
        // A cordon also sets this taint.
        let is_cordon = |taint: &Value| text(taint, "/key") == Some("node.kubernetes.io/unschedulable");
        Some(Self {
            name: text(node, "/metadata/name")?.to_owned(),
            uid: text(node, "/metadata/uid")?.to_owned(),
            host: label("kubernetes.io/hostname").unwrap_or_default().to_owned(),
            workspace: label(WORKSPACE).map(str::to_owned),
            is_control_plane: label(CONTROL_PLANE).is_some(),
            is_ready: ready(node).is_some_and(|ready| text(ready, "/status") == Some("True")),
            is_cordoned: flag(node, "/spec/unschedulable"),
            is_tainted: list(node, "/spec/taints").iter().any(|taint| keeps_off(taint) && !is_cordon(taint)),
            is_deleting: text(node, "/metadata/deletionTimestamp").is_some(),
            is_busy: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_decides_is_read_and_a_cordon_is_no_other_taint() {
        let cordon = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
        let node = json!({"metadata": {"name": "a", "uid": "1", "labels": {"kubernetes.io/hostname": "h", WORKSPACE: "w"}},
            "spec": {"unschedulable": true, "taints": [cordon, {"key": "k", "effect": "PreferNoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let facts = NodeFacts::read(&node).unwrap();
        assert_eq!((facts.host.as_str(), facts.workspace.as_deref()), ("h", Some("w")));
        assert!(facts.is_cordoned && !facts.is_tainted && facts.is_ready && !facts.is_control_plane);
        let bare = NodeFacts::read(&json!({"metadata": {"name": "a", "uid": "1"}})).unwrap();
        assert!(!bare.is_ready, "nobody says that it is");
    }
}
