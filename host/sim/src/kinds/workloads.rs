//! Rules beyond the schema for workloads, budgets, definitions and policies. They cover common mistakes. The real server
//! has more rules.

use serde_json::{Value, json};

use crate::{
    admission::cel_eval,
    kinds::{job_rules, job_update_rules, pods, registry::Kind},
    object::{self, at, str_at},
    selectors::LabelSelector,
    server::status::FieldError,
};

/// Returns the errors of a new object.
pub(crate) fn create_errors(kind: &Kind, object: &Value) -> Vec<FieldError> {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") => {
            let mut errors = selector_errors(object);
            errors.extend(template_errors(object));
            errors
        }
        ("batch", "Job") => job_rules::create_errors(object),
        ("policy", "PodDisruptionBudget") => budget_errors(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition_errors(object),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => policy_errors(object),
        _ => Vec::new(),
    }
}

/// Returns the errors of an updated object.
pub(crate) fn update_errors(kind: &Kind, old: &Value, new: &Value) -> Vec<FieldError> {
    if kind.is("batch", "Job") {
        return job_update_rules::update_errors(old, new);
    }
    let mut errors = create_errors(kind, new);
    let frozen: &[&str] = match (kind.group.as_str(), kind.kind.as_str()) {
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => &["selector"],
        _ => &[],
    };
    if matches!(kind.kind.as_str(), "ConfigMap" | "Secret") && kind.group.is_empty() {
        errors.extend(immutable_errors(old, new));
    }
    for field in frozen {
        let path = ["spec", *field];
        if at(old, &path) != at(new, &path) {
            let value = at(new, &path).cloned().unwrap_or(Value::Null);
            errors.push(FieldError::invalid(format!("spec.{field}"), &value, "field is immutable"));
        }
    }
    errors
}

/// Returns the errors of a changed ConfigMap or Secret that is marked immutable.
fn immutable_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    if old.get("immutable") != Some(&json!(true)) {
        return Vec::new();
    }
    let changed = ["immutable", "data", "binaryData"].into_iter().filter(|field| old.get(*field) != new.get(*field));
    changed.map(|field| FieldError::forbidden(field, "field is immutable when `immutable` is set")).collect()
}

fn selector_errors(object: &Value) -> Vec<FieldError> {
    let Some(selector) = at(object, &["spec", "selector"]) else {
        return vec![FieldError::required("spec.selector", "")];
    };
    let labels = at(object, &["spec", "template", "metadata", "labels"]).cloned().unwrap_or_else(|| json!({}));
    let labelled = json!({"metadata": {"labels": labels}});
    if selector.as_object().is_none_or(serde_json::Map::is_empty) {
        return vec![FieldError::invalid("spec.selector", selector, "empty selector is invalid for deployment")];
    }
    if LabelSelector::from_object(Some(selector)).is_some_and(|selector| !selector.matches(&labelled)) {
        return vec![FieldError::invalid(
            "spec.template.metadata.labels",
            &labels,
            "`selector` does not match template `labels`",
        )];
    }
    Vec::new()
}

/// Returns the errors of an object's pod template.
pub(crate) fn template_errors(object: &Value) -> Vec<FieldError> {
    let template = at(object, &["spec", "template"]).cloned().unwrap_or(Value::Null);
    let errors = pods::create_errors(&template).into_iter();
    errors.map(|error| FieldError { field: format!("spec.template.{}", error.field), ..error }).collect()
}

fn budget_errors(budget: &Value) -> Vec<FieldError> {
    let set = |field: &str| at(budget, &["spec", field]).is_some();
    if set("minAvailable") && set("maxUnavailable") {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        // The real server's error shows the spec with the Go names of the fields.
        let own = |field: &str| at(budget, &["spec", field]).cloned().unwrap_or(Value::Null);
        let shown = json!({
            "MinAvailable": own("minAvailable"), "Selector": own("selector"), "MaxUnavailable": own("maxUnavailable"),
            "UnhealthyPodEvictionPolicy": own("unhealthyPodEvictionPolicy"),
        });
        return vec![FieldError::invalid("spec", &shown, detail)];
    }
    Vec::new()
}

fn definition_errors(definition: &Value) -> Vec<FieldError> {
    let wanted =
        format!("{}.{}", str_at(definition, &["spec", "names", "plural"]), str_at(definition, &["spec", "group"]));
    let mut errors = Vec::new();
    if object::name(definition) != wanted {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &json!(object::name(definition)), detail));
    }
    let versions =
        at(definition, &["spec", "versions"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let stored = versions.iter().filter(|one| one.get("storage") == Some(&json!(true))).count();
    if stored != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", &json!(versions), detail));
    }
    for (index, version) in versions.iter().enumerate() {
        if at(version, &["schema", "openAPIV3Schema"]).is_none() {
            let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
            errors.push(FieldError::required(field, "schemas are required"));
        }
    }
    errors
}

fn policy_errors(policy: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for list in ["matchConditions", "variables", "validations"] {
        let all = at(policy, &["spec", list]).and_then(Value::as_array).into_iter().flatten();
        for (index, one) in all.enumerate() {
            let source = str_at(one, &["expression"]);
            let field = format!("spec.{list}[{index}].expression");
            if source.trim().is_empty() {
                errors.push(FieldError::required(field, "expression is not specified"));
            } else if let Err(cause) = cel_eval::compile(source) {
                errors.push(FieldError::invalid(field, &json!(source), &format!("compilation failed: {cause}")));
            }
        }
    }
    errors
}
