//! Rules of updates of batch Jobs, with the real server's messages.

use serde_json::{Value, json};

use crate::{
    kinds::{
        job_policy_rules::shown_failure_policy,
        job_rules, job_selector_rules,
        job_success_rules::shown_success_policy,
        jobs::{BY_NAME, BY_UID},
    },
    object::{as_map, at, copy_field, map_at, str_at},
    server::status::FieldError,
};

const IMMUTABLE: &str = "field is immutable";
/// The fields of a pod's spec that choose its node, except for the affinity.
const SCHEDULING: [&str; 3] = ["nodeSelector", "tolerations", "schedulingGates"];

/// Returns the errors of an update.
pub(crate) fn update_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    let labelled = |key: &str| at(old, &["spec", "template", "metadata", "labels", key]).is_some();
    let mut errors = job_rules::errors(new, labelled(BY_NAME[1]) && labelled(BY_UID[1]));
    // The real server validates the spec twice: first as the spec of any Job, then as the spec of an update.
    errors.extend(job_rules::spec_errors(new));
    errors.extend(completions_error(old, new));
    errors.extend(immutable_error(old, new, "selector"));
    errors.extend(template_error(old, new));
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        errors.extend(immutable_error(old, new, field));
    }
    errors
}

/// Returns the error of an immutable field of the spec.
fn immutable_error(old: &Value, new: &Value, field: &str) -> Option<FieldError> {
    let path = ["spec", field];
    let value = at(new, &path);
    if at(old, &path) == value {
        return None;
    }
    let shown = match field {
        "selector" => value.map_or(Value::Null, job_selector_rules::shown),
        "podFailurePolicy" => shown_failure_policy(value),
        "successPolicy" => shown_success_policy(value),
        _ => value.cloned().unwrap_or(Value::Null),
    };
    Some(FieldError::invalid(format!("spec.{field}"), &shown, IMMUTABLE))
}

/// Returns the error of changed completions. They may change only for an Indexed Job, together with its parallelism.
fn completions_error(old: &Value, new: &Value) -> Option<FieldError> {
    if str_at(new, &["spec", "completionMode"]) != "Indexed" {
        return immutable_error(old, new, "completions");
    }
    let (before, after) = (at(old, &["spec", "completions"]), at(new, &["spec", "completions"])?);
    let moved = before != Some(after) && at(new, &["spec", "parallelism"]) != Some(after);
    let detail = "can only be modified in tandem with spec.parallelism";
    moved.then(|| FieldError::invalid("spec.completions", after, detail))
}

/// Returns the error of a changed template. While a Job is suspended and has no pods, its node constraints and its containers'
/// resources may change.
fn template_error(old: &Value, new: &Value) -> Option<FieldError> {
    let template = |job: &Value| at(job, &["spec", "template"]).cloned().unwrap_or(Value::Null);
    let (mut before, after) = (template(old), template(new));
    if !is_at_rest(old) {
        return (before != after).then(|| FieldError::invalid("spec.template", &after, IMMUTABLE));
    }
    let after = after.get("spec").cloned().unwrap_or(Value::Null);
    let before = as_map(&mut before).entry("spec").or_insert(Value::Null);
    lend_scheduling(&after, before);
    for list in ["containers", "initContainers"] {
        lend_resources(&after, before, list);
    }
    (*before != after).then(|| FieldError::invalid("spec.template.spec", &after, IMMUTABLE))
}

/// Returns true if the Job is suspended, has no active pods, and either never started or has the condition `Suspended`.
fn is_at_rest(job: &Value) -> bool {
    let conditions = at(job, &["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let is_suspended = |one: &Value| str_at(one, &["type"]) == "Suspended" && str_at(one, &["status"]) == "True";
    let mut conditions = conditions.filter(|one| is_suspended(one));
    let active = at(job, &["status", "active"]).and_then(Value::as_i64).unwrap_or_default();
    at(job, &["spec", "suspend"]) == Some(&json!(true))
        && active == 0
        && (at(job, &["status", "startTime"]).is_none() || conditions.next().is_some())
}

fn lend_scheduling(from: &Value, to: &mut Value) {
    for field in SCHEDULING {
        copy_field(from, to, field);
    }
    // Only the node affinity chooses nodes. An empty affinity equals a missing one.
    let affinity = map_at(to, "affinity");
    match at(from, &["affinity", "nodeAffinity"]) {
        Some(wanted) => drop(affinity.insert("nodeAffinity".to_owned(), wanted.clone())),
        None => drop(affinity.shift_remove("nodeAffinity")),
    }
    if affinity.is_empty() && at(from, &["affinity"]).is_none() {
        as_map(to).shift_remove("affinity");
    }
}

/// Copies the resources of the containers at the same positions, if their names match and no container was added.
fn lend_resources(from: &Value, to: &mut Value, list: &str) {
    let Some(lenders) = at(from, &[list]).and_then(Value::as_array) else { return };
    let Some(containers) = to.get_mut(list).and_then(Value::as_array_mut) else { return };
    if lenders.len() != containers.len() {
        return;
    }
    for (lender, container) in lenders.iter().zip(containers) {
        if lender.get("name") == container.get("name") {
            copy_field(lender, container, "resources");
        }
    }
}
