//! A node as a DaemonJob sees it, with its matching of selectors and taints. Source: docs/jobflow.md 4.1.

use serde_json::Value;

use crate::object::fields::{flag, list, object, text};

/// A node as the host last saw it, without the fields that do not matter to a DaemonJob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Name of the node.
    pub name: String,
    /// UID of the node.
    pub uid: String,
    /// Labels of the node.
    pub labels: Labels,
    /// Taints of the node.
    pub taints: Vec<NodeTaint>,
    /// True if the node is cordoned.
    pub cordoned: bool,
    /// True if the condition Ready exists and is not True.
    pub not_ready: bool,
}

/// A taint of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTaint {
    /// Key of the taint.
    pub key: String,
    /// Value of the taint; empty if it has none.
    pub value: String,
    /// Effect of the taint.
    pub effect: String,
}

/// The labels of a node in one text. A map of labels would take most of the node's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<str>);

impl Labels {
    /// Returns the value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        // Neither `=` nor a line break can occur in a label's key or value.
        self.0.lines().find_map(|line| line.split_once('=').filter(|(own, _)| *own == key)).map(|(_, value)| value)
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(labels: T) -> Self {
        let lines = labels.into_iter().map(|(key, value)| [key.as_ref(), "=", value.as_ref(), "\n"].concat());
        Self(lines.collect::<String>().into())
    }
}

impl<const N: usize> From<[(String, String); N]> for Labels {
    fn from(labels: [(String, String); N]) -> Self {
        labels.into_iter().collect()
    }
}

/// The fields other than metadata that a view is read from.
pub const FIELDS: [&str; 3] = ["/spec/taints", "/spec/unschedulable", "/status/conditions"];

impl NodeView {
    /// Reads a stored node, or a projection of it to [`FIELDS`].
    pub fn read(node: &Value) -> Option<Self> {
        let own = |value: &Value, pointer: &str| text(value, pointer).unwrap_or_default().to_owned();
        let taint = |taint: &Value| NodeTaint {
            key: own(taint, "/key"),
            value: own(taint, "/value"),
            effect: own(taint, "/effect"),
        };
        let labels = object(node, "/metadata/labels").into_iter().flatten();
        Some(Self {
            name: text(node, "/metadata/name")?.to_owned(),
            uid: text(node, "/metadata/uid")?.to_owned(),
            labels: labels.filter_map(|(key, value)| Some((key, value.as_str()?))).collect(),
            taints: list(node, "/spec/taints").iter().map(taint).collect(),
            cordoned: flag(node, "/spec/unschedulable"),
            not_ready: ready(node).is_some_and(|ready| text(ready, "/status") != Some("True")),
        })
    }

    /// Returns true if a `LabelSelector` matches the node. An absent selector matches every node.
    pub fn matches(&self, selector: Option<&Value>) -> bool {
        let Some(selector) = selector else { return true };
        let labels = object(selector, "/matchLabels");
        labels.is_none_or(|labels| self.has_labels(labels)) && self.meets(list(selector, "/matchExpressions"))
    }

    fn has_labels(&self, wanted: &serde_json::Map<String, Value>) -> bool {
        wanted.iter().all(|(key, value)| self.labels.get(key) == value.as_str())
    }

    fn meets(&self, expressions: &[Value]) -> bool {
        expressions.iter().all(|expression| {
            let key = text(expression, "/key").unwrap_or_default();
            is_met(self.labels.get(key), expression)
        })
    }

    /// Returns true if the pod's own `nodeSelector` and required node affinity allow the node. Otherwise the kubelet would refuse the pod.
    pub fn admits(&self, pod: &Value) -> bool {
        let selector = object(pod, "/nodeSelector").is_none_or(|wanted| self.has_labels(wanted));
        let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let terms = list(pod, required);
        selector && (terms.is_empty() || terms.iter().any(|term| self.is_of_term(term)))
    }

    fn is_of_term(&self, term: &Value) -> bool {
        let (labels, fields) = (list(term, "/matchExpressions"), list(term, "/matchFields"));
        // An empty term matches no node.
        let is_named = |field: &Value| text(field, "/key") == Some("metadata.name") && is_met(Some(&self.name), field);
        !(labels.is_empty() && fields.is_empty()) && self.meets(labels) && fields.iter().all(is_named)
    }

    /// Returns true if the node has a taint that keeps pods away and that the pod does not tolerate. Taints of a node that is not ready do not count:
    /// they pass, and `notReadyPolicy` covers them.
    pub fn repels(&self, pod: &Value) -> bool {
        let lasts = |key: &str| !PASSING.contains(&key);
        let mut taints = self.taints.iter().filter(|taint| keeps_away(&taint.effect) && lasts(&taint.key));
        taints.any(|taint| !list(pod, "/tolerations").iter().any(|toleration| tolerates(toleration, taint)))
    }
}

/// Taints of nodes that are not ready.
const PASSING: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Returns the Ready condition of a node.
pub(crate) fn ready(node: &Value) -> Option<&Value> {
    let mut conditions = list(node, "/status/conditions").iter();
    conditions.find(|condition| text(condition, "/type") == Some("Ready"))
}

/// Returns true for an effect of a taint that keeps pods away.
pub(crate) fn keeps_away(effect: &str) -> bool {
    matches!(effect, "NoSchedule" | "NoExecute")
}

/// Returns true if the value of a requirement's key meets the requirement.
fn is_met(value: Option<&str>, expression: &Value) -> bool {
    let values = list(expression, "/values");
    let is_in = |value: &str| values.iter().any(|one| one.as_str() == Some(value));
    let bound = || values.first().and_then(Value::as_str).and_then(|bound| bound.parse::<i64>().ok());
    let number = || value.and_then(|value| value.parse::<i64>().ok());
    match text(expression, "/operator").unwrap_or_default() {
        "In" => value.is_some_and(is_in),
        "NotIn" => !value.is_some_and(is_in),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number().zip(bound()).is_some_and(|(number, bound)| number > bound),
        "Lt" => number().zip(bound()).is_some_and(|(number, bound)| number < bound),
        _ => false,
    }
}

fn tolerates(toleration: &Value, NodeTaint { key, value, effect }: &NodeTaint) -> bool {
    let own = |field: &str| text(toleration, field).unwrap_or_default();
    let (own_key, own_effect) = (own("/key"), own("/effect"));
    let exists = own("/operator") == "Exists";
    (own_effect.is_empty() || own_effect == effect)
        && (own_key == key || own_key.is_empty() && exists)
        && (exists || own("/value") == value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node() -> NodeView {
        NodeView::read(&json!({"metadata": {"name": "n", "uid": "u", "labels": {"zone": "a", "size": "8"}},
            "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "p", "effect": "PreferNoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}))
        .unwrap()
    }

    #[test]
    fn selectors_and_affinity_are_read_as_kubernetes_does() {
        let node = node();
        assert!(node.not_ready && node.matches(None) && node.matches(Some(&json!({"matchLabels": {"zone": "a"}}))));
        let gt = json!({"key": "size", "operator": "Gt", "values": ["7"]});
        assert!(node.matches(Some(&json!({"matchExpressions": [gt, {"key": "x", "operator": "DoesNotExist"}]}))));
        assert!(!node.admits(&json!({"nodeSelector": {"zone": "b"}})));
        let affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let fields = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]);
        assert!(node.admits(&affinity(fields)) && !node.admits(&affinity(json!([{}]))));
    }

    #[test]
    fn only_taints_that_keep_pods_away_repel() {
        let node = node();
        assert!(node.repels(&json!({})));
        assert!(!node.repels(&json!({"tolerations": [{"key": "k", "value": "v"}]})));
        assert!(!node.repels(&json!({"tolerations": [{"operator": "Exists"}]})));
        assert!(node.repels(&json!({"tolerations": [{"key": "k", "value": "v", "effect": "NoExecute"}]})));
    }

    /// Source: <https://github.com/kubernetes/kubernetes/issues/67845>.
    #[test]
    fn taints_of_a_node_that_is_not_ready_leave_it_in_the_set() {
        let taints = PASSING.map(|key| NodeTaint {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..NodeTaint::default()
        });
        assert!(!NodeView { taints: taints.to_vec(), ..node() }.repels(&json!({})));
    }
}
