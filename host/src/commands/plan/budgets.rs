//! Warns of disruption budgets that would refuse the first evictions of a plan.

use std::collections::BTreeMap;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::core::{Selector, SelectorExt as _};
use oarlock_core::operation_job::progress::targets;
use oarlock_core::plugin::proposal::Mutation;

use super::rights::Lacking;
use super::shown::leaving;
use crate::commands::jobs::JobClient;
use crate::preview::{PreviewSetup, PreviewedTarget};

/// Returns the warnings about budgets. Lists the budgets of the namespace only if the plan evicts a pod.
pub(super) async fn warnings(client: &JobClient, stage: &PreviewSetup, later: &[PreviewedTarget]) -> Vec<String> {
    let evicts = |target: &&PreviewedTarget| target.mutations.iter().any(|one| matches!(one, Mutation::Evict { .. }));
    let evicted: Vec<BTreeMap<String, String>> = later
        .iter()
        .filter(evicts)
        .filter_map(|target| leaving(stage, target))
        .map(|pod| pod.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
        .collect();
    if evicted.is_empty() {
        return Vec::new();
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.raw().clone(), client.namespace());
    match budgets.list(&ListParams::default()).await {
        Ok(list) => list.items.iter().filter_map(|budget| warning(budget, &evicted)).collect(),
        Err(error) => {
            let (role, resources) = ("oarlock-plan-budgets", "poddisruptionbudgets.policy");
            let lacking = Lacking { role, verb: "list", resources, namespace: Some(client.namespace()) };
            let forbidden = matches!(&error, kube::Error::Api(status) if status.is_forbidden());
            let remedy = if forbidden { lacking.remedy() } else { String::new() };
            vec![format!("disruption budgets were not read, so one may refuse an eviction: {error}{remedy}")]
        }
    }
}

fn warning(budget: &PodDisruptionBudget, evicted: &[BTreeMap<String, String>]) -> Option<String> {
    let allowed = budget.status.as_ref().map_or(0, |status| status.disruptions_allowed);
    let selector: Selector = budget.spec.as_ref()?.selector.clone()?.try_into().ok()?;
    let count = evicted.iter().filter(|labels| selector.matches(labels)).count();
    let name = budget.metadata.name.as_deref().unwrap_or_default();
    let allows = match allowed {
        ..=0 => "no eviction".to_owned(),
        1 => "1 eviction".to_owned(),
        more => format!("{more} evictions"),
    };
    let exceeds = count > usize::try_from(allowed).unwrap_or(0);
    exceeds.then(|| {
        format!("disruption budget {name} allows {allows} now, and covers {} to evict; the others wait", targets(count))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_that_allows_less_than_is_evicted_is_named() {
        let budget = |allowed: i32, selector: serde_json::Value| -> PodDisruptionBudget {
            serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"selector": selector},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 3, "desiredHealthy": 3, "expectedPods": 3}}))
            .unwrap()
        };
        let web = || json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]});
        let pods: Vec<BTreeMap<String, String>> =
            ["web", "web", "db"].iter().map(|app| BTreeMap::from([("app".to_owned(), (*app).to_owned())])).collect();
        let said = warning(&budget(0, web()), &pods).unwrap();
        assert_eq!(
            said,
            "disruption budget web allows no eviction now, and covers 2 targets to evict; the others wait"
        );
        assert_eq!(warning(&budget(2, web()), &pods), None);
        assert!(warning(&budget(2, json!({})), &pods).unwrap().contains("allows 2 evictions now, and covers 3"));
        assert_eq!(warning(&budget(0, serde_json::Value::Null), &pods), None, "no selector selects nothing");
    }
}
