//! Live reads of the disruption budgets over a pod. This module may not decide whether the pod is evicted.
//!
//! The eviction API answers 500 if several budgets select a pod, and names none of them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::fields::text;
use oarlock_core::requests::writes::{blocked_by_several, is_of_several};
use serde::Deserialize as _;
use serde_json::Value;

use crate::link::Link;
use crate::read::past_cache::{ListPick, ListSelection};
use crate::transport::projection::Projection;

/// The most budgets of a namespace that the host reads.
const MOST: usize = 1_000;

impl Link {
    /// Returns the message of a blocked eviction. If the API server says that several budgets block it, the message names them. If the host
    /// may not list budgets, it keeps the message of the API server.
    pub(crate) async fn with_budgets(&self, pod: &ObjectKey, message: String) -> String {
        if !is_of_several(&message) {
            return message;
        }
        let Some(pod_seen) = self.objects.store.get(pod) else { return message };
        let labels: BTreeMap<String, String> =
            pod_seen.labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let fields = Projection::of_object(&["/spec/selector".to_owned()]);
        let pick =
            |budget: Value| selects(&budget, &labels).then(|| text(&budget, "/metadata/name").map(str::to_owned))?;
        let there = ListSelection { namespace: pod.namespace.as_deref(), ..ListSelection::default() };
        let kind = Kind::new("policy/v1", "PodDisruptionBudget");
        let picked = ListPick { projection: &fields, pick, most: MOST };
        match self.all_stored(&kind, there, picked).await {
            Ok(names) => blocked_by_several(names, &message),
            Err(failed) => {
                tracing::debug!(?pod, error = failed.message, "failed to list the PodDisruptionBudgets of a pod");
                message
            }
        }
    }
}

/// Returns true if a budget selects a pod with these labels.
fn selects(budget: &Value, labels: &BTreeMap<String, String>) -> bool {
    let selector = budget.pointer("/spec/selector").and_then(|selector| LabelSelector::deserialize(selector).ok());
    let selector = selector.and_then(|selector| Selector::try_from(selector).ok());
    selector.is_some_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_selects_by_labels_and_expressions_and_an_empty_one_selects_all() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let of = |selector: Value| selects(&json!({"spec": {"selector": selector}}), &labels);
        assert!(of(json!({})) && of(json!({"matchLabels": {"app": "web"}})));
        assert!(of(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]})));
        assert!(!of(json!({"matchLabels": {"app": "db"}})) && !of(Value::Null));
    }
}
