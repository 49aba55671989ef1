//! The part of a node's spec that the host keeps because it may have to undo changes there.

use serde_json::Value;

/// The cordon and the taints of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSpec {
    /// `spec.unschedulable`: true if the node is cordoned.
    pub cordoned: bool,
    /// `spec.taints`, as stored.
    pub taints: Vec<Value>,
}

impl NodeSpec {
    /// Reads the cordon and the taints from the document of a node.
    pub fn read(document: &Value) -> Self {
        let cordoned = document.pointer("/spec/unschedulable").is_some_and(|value| value == true);
        let taints = document.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
        Self { cordoned, taints }
    }

    /// Returns the index of the taint with this key and effect.
    pub fn taint(&self, key: &str, effect: &str) -> Option<usize> {
        let is = |taint: &Value, field: &str, text: &str| taint.get(field).and_then(Value::as_str) == Some(text);
        self.taints.iter().position(|taint| is(taint, "key", key) && is(taint, "effect", effect))
    }
}
