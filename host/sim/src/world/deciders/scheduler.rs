//! Decides for scheduler and node controller: the node of a pod or the reason why no node fits, and how long a pod may stay on a
//! node with a `NoExecute` taint.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// The fields of a node that matter for pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Whether the node is cordoned.
    pub(crate) unschedulable: bool,
    pub(crate) taints: Vec<Taint>,
}

/// Chooses one of the fitting nodes by a drawn number, or returns the scheduler's message why no node fits.
pub(crate) fn choose(pod: &PodSpec, nodes: &[NodeView], draw: u64) -> Result<String, String> {
    let mut fit = Vec::new();
    let mut reasons = BTreeMap::<&str, usize>::new();
    for node in nodes {
        match refusal(pod, node) {
            None => fit.push(&node.name),
            Some(reason) => *reasons.entry(reason).or_default() += 1,
        }
    }
    // Sorts by length first, so that `node-10` comes after `node-9`.
    fit.sort_by_key(|name| (name.len(), name.as_str()));
    let count = u64::try_from(fit.len()).unwrap_or(u64::MAX);
    let index = draw.checked_rem(count).and_then(|index| usize::try_from(index).ok());
    if let Some(name) = index.and_then(|index| fit.get(index)) {
        return Ok((*name).clone());
    }
    let mut reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    let of = nodes.len();
    Err(if reasons.is_empty() {
        format!("0/{of} nodes are available.")
    } else {
        format!("0/{of} nodes are available: {}.", reasons.join(", "))
    })
}

/// Returns the first reason why a node does not fit, in the scheduler's order.
fn refusal(pod: &PodSpec, node: &NodeView) -> Option<&'static str> {
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: NO_SCHEDULE.to_owned(),
        ..Taint::default()
    };
    let keeps_off = |taint: &Taint| matches!(taint.effect.as_str(), NO_SCHEDULE | NO_EXECUTE);
    if node.unschedulable && !is_tolerated(pod, &cordon) {
        Some("node(s) were unschedulable")
    } else if node.taints.iter().any(|taint| keeps_off(taint) && !is_tolerated(pod, taint)) {
        Some("node(s) had untolerated taint(s)")
    } else if !is_selected(pod, node) {
        Some("node(s) didn't match Pod's node affinity/selector")
    } else {
        None
    }
}

/// Returns how long a pod may stay on its node after the node was tainted. None means forever.
pub(crate) fn stay(pod: &PodSpec, node: &NodeView) -> Option<Duration> {
    let expelling = node.taints.iter().filter(|taint| taint.effect == NO_EXECUTE);
    expelling.filter_map(|taint| tolerated_for(pod, taint)).min()
}

/// Returns how long a pod tolerates a taint. None means forever.
fn tolerated_for(pod: &PodSpec, taint: &Taint) -> Option<Duration> {
    let all: Vec<&Toleration> = tolerations(pod).filter(|one| matches(one, taint)).collect();
    if all.is_empty() {
        return Some(Duration::ZERO);
    }
    let seconds = all.iter().filter_map(|one| one.toleration_seconds).min()?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn tolerations(pod: &PodSpec) -> impl Iterator<Item = &Toleration> {
    pod.tolerations.iter().flatten()
}

fn is_tolerated(pod: &PodSpec, taint: &Taint) -> bool {
    tolerations(pod).any(|one| matches(one, taint))
}

fn matches(toleration: &Toleration, taint: &Taint) -> bool {
    let of = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, effect, operator) = (of(&toleration.key), of(&toleration.effect), of(&toleration.operator));
    let value_fits = match operator.as_str() {
        "Exists" => true,
        "" | "Equal" => of(&toleration.value) == of(&taint.value),
        _ => false,
    };
    value_fits && (effect.is_empty() || effect == taint.effect) && (key.is_empty() || key == taint.key)
}

/// Returns true if a node has the labels that a pod requires.
fn is_selected(pod: &PodSpec, node: &NodeView) -> bool {
    let selector = pod.node_selector.iter().flatten();
    let affinity = pod.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let required = affinity.and_then(|all| all.required_during_scheduling_ignored_during_execution.as_ref());
    selector.into_iter().all(|(key, value)| node.labels.get(key) == Some(value))
        && required.is_none_or(|one| one.node_selector_terms.iter().any(|term| term_fits(term, node)))
}

fn term_fits(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    labels.into_iter().all(|one| fits(one, node.labels.get(&one.key)))
        && fields.into_iter().all(|one| one.key == "metadata.name" && fits(one, Some(&node.name)))
        && (term.match_expressions.is_some() || term.match_fields.is_some())
}

fn fits(wanted: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let listed = || value.is_some_and(|value| wanted.values.iter().flatten().any(|one| one == value));
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = || number(wanted.values.as_ref().and_then(|all| all.first()));
    match wanted.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(bound()).is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value).zip(bound()).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(fields: serde_json::Value) -> PodSpec {
        let mut spec = json!({"containers": []});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn node(name: &str) -> NodeView {
        let labels = BTreeMap::from([("zone".to_owned(), name.to_owned()), ("cores".to_owned(), "8".to_owned())]);
        NodeView { name: name.to_owned(), labels, ..NodeView::default() }
    }

    fn tainted(effect: &str) -> NodeView {
        let taint = Taint { key: "k".into(), value: Some("v".into()), effect: effect.into(), ..Taint::default() };
        NodeView { taints: vec![taint], ..node("a") }
    }

    #[test]
    fn the_nodes_are_drawn_from_by_number_and_not_by_letter() {
        let nodes: Vec<NodeView> = (0..12).map(|index| node(&format!("node-{index}"))).collect();
        assert_eq!(choose(&spec(json!({})), &nodes, 9), Ok("node-9".into()));
        assert_eq!(choose(&spec(json!({})), &nodes, 22), Ok("node-10".into()));
        assert_eq!(choose(&spec(json!({})), &[], 0), Err("0/0 nodes are available.".into()));
    }

    #[test]
    fn affinity_is_any_of_its_terms_and_all_of_their_expressions() {
        let affinity = |terms: serde_json::Value| {
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            refusal(&spec(json!({"affinity": {"nodeAffinity": required}})), &node("a")).is_none()
        };
        let one =
            |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        assert!(affinity(
            json!([{"matchExpressions": [one("zone", "In", &["b"])]}, {"matchExpressions": [one("zone", "NotIn", &["b"]), one("cores", "Gt", &["4"])]}])
        ));
        assert!(!affinity(json!([{"matchExpressions": [one("zone", "Exists", &[]), one("cores", "Lt", &["4"])]}])));
        assert!(affinity(json!([{"matchFields": [one("metadata.name", "In", &["a"])]}])));
        assert!(!affinity(json!([{}])));
    }

    #[test]
    fn a_toleration_holds_for_its_key_value_and_effect() {
        let tolerates = |toleration: serde_json::Value, effect: &str| {
            refusal(&spec(json!({"tolerations": [toleration]})), &tainted(effect)).is_none()
        };
        assert!(tolerates(json!({"key": "k", "value": "v"}), "NoSchedule"));
        assert!(!tolerates(json!({"key": "k", "value": "w"}), "NoSchedule"));
        assert!(!tolerates(json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), "NoExecute"));
        assert!(tolerates(json!({"key": "other"}), "PreferNoSchedule"));
    }

    #[test]
    fn the_shortest_time_of_an_expelling_taint_counts() {
        let stays =
            |tolerations: serde_json::Value| stay(&spec(json!({"tolerations": tolerations})), &tainted("NoExecute"));
        assert_eq!(stays(json!([])), Some(Duration::ZERO));
        assert_eq!(stays(json!([{"operator": "Exists"}])), None);
        let both =
            json!([{"operator": "Exists", "tolerationSeconds": 9}, {"key": "k", "value": "v", "tolerationSeconds": 5}]);
        assert_eq!(stays(both), Some(Duration::from_secs(5)));
        assert_eq!(stay(&spec(json!({})), &tainted("NoSchedule")), None);
    }
}
