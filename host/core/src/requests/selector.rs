//! Checks a job's selector and turns it into a query that one list of the API server can answer.
//!
//! Takes `spec.selector`; yields a [`TargetQuery`], or the first field that breaks a rule. Source: docs/operationjob.md 1.2, 3.2.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use oarlock_api::{OwnerSelector, TargetSelector};
use oarlock_contract::names::{is_api_version, is_label_value, is_qualified_name};
use oarlock_contract::object_key::{Kind, Owner};

use crate::object::key::is_object_name;

/// The objects that a selector asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetQuery {
    /// Objects whose labels match this label selector, in the form of a list request.
    Labels(String),
    /// Objects whose controller has this kind and name. For a Deployment, these are the objects of its ReplicaSets.
    Controller {
        /// Kind of the controller. Its version is ignored.
        kind: Kind,
        /// Name of the controller.
        name: String,
    },
}

impl TargetQuery {
    /// Returns the query of a selector.
    ///
    /// # Errors
    ///
    /// If a field breaks a rule. The error names the field and the rule.
    pub fn read(selector: &TargetSelector) -> Result<Self, String> {
        match (&selector.label_selector, &selector.owner_ref) {
            (Some(labels), None) => by_label(labels).map(Self::Labels),
            (None, Some(owner)) => by_owner(owner),
            // Admission uses the same words.
            (None, None) => Err("spec.selector: give labelSelector or ownerRef".to_owned()),
            (Some(_), Some(_)) => Err("spec.selector: give labelSelector or ownerRef, not both".to_owned()),
        }
    }

    /// Returns true if the requested controller has its objects through ReplicaSets.
    pub fn through_replica_sets(&self) -> bool {
        matches!(self, Self::Controller { kind, .. } if (group(kind), kind.kind.as_str()) == ("apps", "Deployment"))
    }

    /// Returns true if `owner` is the requested controller.
    pub fn is_controller(&self, owner: &Owner) -> bool {
        match self {
            Self::Labels(_) => false,
            Self::Controller { kind, name } => {
                owner.controller
                    && (group(&owner.kind), &owner.kind.kind, &owner.name) == (group(kind), &kind.kind, name)
            }
        }
    }
}

/// Returns the group of a kind. The core group is empty.
fn group(kind: &Kind) -> &str {
    kind.api_version.split_once('/').map_or("", |(group, _)| group)
}

fn by_owner(owner: &OwnerSelector) -> Result<TargetQuery, String> {
    let field = |name: &str, rule: &str| Err(format!("spec.selector.ownerRef.{name}: {rule}"));
    if !is_api_version(&owner.api_version) {
        return field("apiVersion", "must be a group and its version, such as apps/v1");
    }
    if owner.kind.is_empty() {
        return field("kind", "required");
    }
    if !is_object_name(&owner.name) {
        return field("name", "must be a DNS-1123 subdomain of at most 253 characters");
    }
    Ok(TargetQuery::Controller { kind: Kind::new(&owner.api_version, &owner.kind), name: owner.name.clone() })
}

/// Returns the selector in the form of a list request. Refuses an empty selector: it would match every pod of the namespace, and a misspelt field
/// leaves one behind.
fn by_label(selector: &LabelSelector) -> Result<String, String> {
    let labels = selector.match_labels.as_ref();
    let mut terms = labels.map_or_else(|| Ok(Vec::new()), equalities)?;
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let place = format!("spec.selector.labelSelector.matchExpressions[{index}]");
        terms.push(term(expression).map_err(|(field, rule)| format!("{place}.{field}: {rule}"))?);
    }
    match terms.is_empty() {
        true => Err("spec.selector.labelSelector: give matchLabels or matchExpressions".to_owned()),
        false => Ok(terms.join(",")),
    }
}

fn equalities(labels: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    let equality = |(key, value): (&String, &String)| match (is_qualified_name(key), is_label_value(value)) {
        (true, true) => Ok(format!("{key}={value}")),
        (false, _) => Err(format!("spec.selector.labelSelector.matchLabels: {} is no label key", shown(key))),
        (true, false) => {
            Err(format!("spec.selector.labelSelector.matchLabels.{key}: {} is no label value", shown(value)))
        }
    };
    labels.iter().map(equality).collect()
}

type Broken = (&'static str, String);

fn term(expression: &LabelSelectorRequirement) -> Result<String, Broken> {
    let LabelSelectorRequirement { key, operator, values } = expression;
    if !is_qualified_name(key) {
        return Err(("key", format!("{} is no label key", shown(key))));
    }
    let values = values.as_deref().unwrap_or_default();
    if let Some(value) = values.iter().find(|value| !is_label_value(value)) {
        return Err(("values", format!("{} is no label value", shown(value))));
    }
    let listed = || values.join(",");
    match (operator.as_str(), values.is_empty()) {
        ("In", false) => Ok(format!("{key} in ({})", listed())),
        ("NotIn", false) => Ok(format!("{key} notin ({})", listed())),
        ("Exists", true) => Ok(key.clone()),
        ("DoesNotExist", true) => Ok(format!("!{key}")),
        ("In" | "NotIn", true) => Err(("values", format!("required for {operator}"))),
        ("Exists" | "DoesNotExist", false) => Err(("values", format!("none for {operator}"))),
        _ => Err(("operator", "must be In, NotIn, Exists or DoesNotExist".to_owned())),
    }
}

fn shown(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    format!("{start:?}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn query(selector: Value) -> Result<TargetQuery, String> {
        TargetQuery::read(&serde_json::from_value(selector).unwrap())
    }

    #[test]
    fn a_label_selector_becomes_what_a_list_takes() {
        let selector = json!({"labelSelector": {"matchLabels": {"app": "web", "example.dev/tier": ""}, "matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a", "b"]}, {"key": "zone", "operator": "NotIn", "values": ["c"]},
            {"key": "x", "operator": "Exists"}, {"key": "y", "operator": "DoesNotExist", "values": []}]}});
        let text = "app=web,example.dev/tier=,zone in (a,b),zone notin (c),x,!y";
        assert_eq!(query(selector), Ok(TargetQuery::Labels(text.into())));
    }

    #[test]
    fn a_selector_that_breaks_a_rule_names_the_field() {
        let labels = |labels: Value| json!({"labelSelector": {"matchLabels": labels}});
        let expression = |expression: Value| json!({"labelSelector": {"matchExpressions": [expression]}});
        let owner = |version: &str, kind: &str, name: &str| json!({"ownerRef": {"apiVersion": version, "kind": kind, "name": name}});
        let cases = [
            (json!({}), "spec.selector: give labelSelector or ownerRef"),
            (
                json!({"labelSelector": {}, "ownerRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}}),
                "spec.selector: give labelSelector or ownerRef, not both",
            ),
            (json!({"labelSelector": {}}), "spec.selector.labelSelector: give"),
            (labels(json!({})), "spec.selector.labelSelector: give"),
            (labels(json!({"a b": "c"})), "spec.selector.labelSelector.matchLabels: \"a b\""),
            (labels(json!({"a": "c,d"})), "spec.selector.labelSelector.matchLabels.a: \"c,d\""),
            (
                expression(json!({"key": "", "operator": "Exists"})),
                "spec.selector.labelSelector.matchExpressions[0].key",
            ),
            (
                expression(json!({"key": "a", "operator": "Like"})),
                "spec.selector.labelSelector.matchExpressions[0].operator",
            ),
            (
                expression(json!({"key": "a", "operator": "In"})),
                "spec.selector.labelSelector.matchExpressions[0].values",
            ),
            (
                expression(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                "spec.selector.labelSelector.matchExpressions[0].values",
            ),
            (
                expression(json!({"key": "a", "operator": "In", "values": ["(b)"]})),
                "spec.selector.labelSelector.matchExpressions[0].values",
            ),
            (owner("", "Deployment", "w"), "spec.selector.ownerRef.apiVersion"),
            (owner("apps/v1", "", "w"), "spec.selector.ownerRef.kind"),
            (owner("apps/v1", "Deployment", "w/status"), "spec.selector.ownerRef.name"),
        ];
        for (selector, field) in cases {
            let refused = query(selector.clone()).expect_err(&selector.to_string());
            assert!(refused.starts_with(field), "{selector}: {refused}");
        }
    }

    #[test]
    fn a_controller_is_known_by_group_kind_and_name() {
        let query = query(json!({"ownerRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}})).unwrap();
        let owner = |version: &str, name: &str, controller: bool| Owner {
            kind: Kind::new(version, "Deployment"),
            name: name.into(),
            uid: "u".into(),
            controller,
        };
        assert!(query.through_replica_sets() && query.is_controller(&owner("apps/v1beta9", "w", true)));
        let others = [owner("apps/v1", "x", true), owner("example.dev/v1", "w", true), owner("apps/v1", "w", false)];
        assert!(others.iter().all(|other| !query.is_controller(other)));
    }
}
