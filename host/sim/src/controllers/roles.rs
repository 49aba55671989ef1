//! The controller of aggregated ClusterRoles: an aggregated role gets the rules of all roles that its selectors match.

use serde_json::{Value, json};

use crate::{
    controllers::edit,
    object::{self, as_map, at},
    selectors::LabelSelector,
    server::cluster::State,
    storage::{Key, LogEntry},
};

/// Updates the aggregated roles after a write to any role. A changed role is another such write, so the update reaches roles
/// that aggregate aggregated roles. It ends as long as no role contains itself.
pub(crate) fn observe(state: &mut State, entry: &LogEntry) {
    let Some(kind) = state.kinds.by_path("rbac.authorization.k8s.io", "v1", "clusterroles").cloned() else { return };
    if entry.table != kind.table {
        return;
    }
    let roles = state.store.scan(kind.table, None).map(|(_, role)| role.clone()).collect::<Vec<_>>();
    for role in &roles {
        let Some(selectors) = at(&role.value, &["aggregationRule", "clusterRoleSelectors"]).and_then(Value::as_array)
        else {
            continue;
        };
        let name = object::name(&role.value);
        let mut rules: Vec<Value> = Vec::new();
        for selector in selectors.iter().filter_map(|one| LabelSelector::from_object(Some(one))) {
            let chosen = roles.iter().filter(|one| object::name(&one.value) != name && selector.matches(&one.value));
            for rule in
                chosen.flat_map(|one| at(&one.value, &["rules"]).and_then(Value::as_array).into_iter().flatten())
            {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
        edit::edit(state, &kind, &Key::new("", name), |role| drop(as_map(role).insert("rules".into(), json!(rules))));
    }
}
