//! Rules of the failure policy and the replacement policy of batch Jobs. The messages are the real server's.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::{
    lifecycle::metadata,
    object::{at, str_at},
    server::status::FieldError,
};

/// The most rules of a failure policy or success policy.
pub(crate) const RULES: u64 = 20;
/// The most exit codes of a rule.
const EXIT_CODES: u64 = 255;
/// The most condition patterns of a rule.
const CONDITIONS: u64 = 20;

/// The actions that a rule can take on a failed pod.
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const CONDITION_STATES: [&str; 3] = ["False", "True", "Unknown"];

/// Returns the errors of the `podFailurePolicy` in a Job's spec.
pub(crate) fn failure_policy_errors(spec: &Value) -> Vec<FieldError> {
    let rules = list(at(spec, &["podFailurePolicy", "rules"]));
    let field = "spec.podFailurePolicy.rules";
    let mut errors = Vec::new();
    errors.extend(too_many(field, rules, RULES));
    for (index, rule) in rules.iter().enumerate() {
        errors.extend(failure_rule_errors(spec, rule, &format!("{field}[{index}]")));
    }
    errors
}

/// Returns the error of the `podReplacementPolicy` in a Job's spec.
pub(crate) fn replacement_policy_error(spec: &Value) -> Option<FieldError> {
    let policy = at(spec, &["podReplacementPolicy"])?;
    // A failure policy can judge only a pod that has finally failed.
    let judged = at(spec, &["podFailurePolicy"]).is_some();
    let allowed: &[&str] = if judged { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    let fits = policy.as_str().is_some_and(|policy| allowed.contains(&policy));
    (!fits).then(|| FieldError::not_supported("spec.podReplacementPolicy", policy, &owned(allowed)))
}

/// Returns a `podFailurePolicy` as the real server's errors show it: with the Go names of the fields.
pub(crate) fn shown_failure_policy(policy: Option<&Value>) -> Value {
    let Some(policy) = policy else { return Value::Null };
    let rule = |rule: &Value| {
        let conditions = at(rule, &["onPodConditions"]).and_then(Value::as_array).map(|all| {
            let pattern = |one: &Value| json!({"Type": str_at(one, &["type"]), "Status": str_at(one, &["status"])});
            all.iter().map(pattern).collect::<Value>()
        });
        let codes = at(rule, &["onExitCodes"]).map(|codes| {
            let name = at(codes, &["containerName"]);
            json!({"ContainerName": name, "Operator": str_at(codes, &["operator"]), "Values": at(codes, &["values"])})
        });
        json!({"Action": str_at(rule, &["action"]), "OnExitCodes": codes, "OnPodConditions": conditions})
    };
    shown_rules(policy, rule)
}

/// Returns the rules of a policy as the real server's errors show them.
pub(crate) fn shown_rules(policy: &Value, rule: impl Fn(&Value) -> Value) -> Value {
    let rules = at(policy, &["rules"]).and_then(Value::as_array);
    let rules = rules.map_or(Value::Null, |rules| rules.iter().map(rule).collect());
    Map::from_iter([("Rules".to_owned(), rules)]).into()
}

/// Returns a value's elements, or none if the value is not a list.
pub(crate) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Returns the error of a list with more than `limit` elements.
pub(crate) fn too_many(field: &str, list: &[Value], limit: u64) -> Option<FieldError> {
    (list.len() as u64 > limit).then(|| FieldError::too_many(field, list.len(), limit))
}

/// Returns the error of a text that is not in `allowed`, which must be sorted.
fn choice_error(field: String, said: &str, allowed: &[&str]) -> Option<FieldError> {
    if said.is_empty() {
        let mut detail = "valid values: [".to_owned();
        for (index, one) in allowed.iter().enumerate() {
            let _ = write!(detail, "{}{one:?}", if index == 0 { "" } else { " " });
        }
        detail.push(']');
        return Some(FieldError::required(field, &detail));
    }
    (!allowed.contains(&said)).then(|| FieldError::not_supported(field, &json!(said), &owned(allowed)))
}

fn failure_rule_errors(spec: &Value, rule: &Value, field: &str) -> Vec<FieldError> {
    let action = str_at(rule, &["action"]);
    let (codes, conditions) = (at(rule, &["onExitCodes"]), list(rule.get("onPodConditions")));
    let mut errors = Vec::new();
    if action == "FailIndex" && at(spec, &["backoffLimitPerIndex"]).is_none() {
        let detail = "requires the backoffLimitPerIndex to be set";
        errors.push(FieldError::invalid(format!("{field}.action"), &json!(action), detail));
    }
    errors.extend(choice_error(format!("{field}.action"), action, &ACTIONS));
    errors.extend(codes.into_iter().flat_map(|codes| exit_code_errors(spec, codes, &format!("{field}.onExitCodes"))));
    errors.extend(condition_errors(conditions, &format!("{field}.onPodConditions")));
    let detail = match (codes.is_some(), !conditions.is_empty()) {
        (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return errors,
    };
    errors.push(FieldError::invalid_without_value(field, detail));
    errors
}

fn exit_code_errors(spec: &Value, codes: &Value, field: &str) -> Vec<FieldError> {
    let operator = str_at(codes, &["operator"]);
    let mut errors = Vec::new();
    errors.extend(choice_error(format!("{field}.operator"), operator, &OPERATORS));
    if let Some(name) = at(codes, &["containerName"]) {
        let lists = ["containers", "initContainers"].map(|own| list(at(spec, &["template", "spec", own])));
        if !lists.concat().iter().any(|container| str_at(container, &["name"]) == name.as_str().unwrap_or_default()) {
            let detail = "must be one of the container or initContainer names in the pod template";
            errors.push(FieldError::invalid(format!("{field}.containerName"), name, detail));
        }
    }
    errors.extend(exit_value_errors(codes, operator, &format!("{field}.values")));
    errors
}

fn exit_value_errors(codes: &Value, operator: &str, field: &str) -> Vec<FieldError> {
    let values = list(codes.get("values"));
    let shown = codes.get("values").cloned().unwrap_or(Value::Null);
    let mut errors = Vec::new();
    if values.is_empty() {
        errors.push(FieldError::invalid(field, &shown, "at least one value is required"));
    }
    errors.extend(too_many(field, values, EXIT_CODES));
    for (index, value) in values.iter().enumerate() {
        let place = format!("{field}[{index}]");
        if operator == "In" && *value == json!(0) {
            errors.push(FieldError::invalid(&place, value, "must not be 0 for the In operator"));
        }
        if values.iter().take(index).any(|earlier| earlier == value) {
            errors.push(FieldError::duplicate(&place, value));
        }
    }
    if !values.is_sorted_by_key(Value::as_i64) {
        errors.push(FieldError::invalid(field, &shown, "must be ordered"));
    }
    errors
}

fn condition_errors(patterns: &[Value], field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    errors.extend(too_many(field, patterns, CONDITIONS));
    for (index, pattern) in patterns.iter().enumerate() {
        let place = format!("{field}[{index}]");
        errors.extend(metadata::qualified_errors(&format!("{place}.type"), str_at(pattern, &["type"])));
        errors.extend(choice_error(format!("{place}.status"), str_at(pattern, &["status"]), &CONDITION_STATES));
    }
    errors
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a Job `j` with one container `main` and further fields of the spec.
    pub(crate) fn job(spec: Value) -> Value {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]});
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"parallelism": 1, "completions": 1, "completionMode": "NonIndexed", "template": {"spec": pod}},
        });
        let Value::Object(further) = spec else { panic!("a spec is a map") };
        for (field, value) in further {
            job["spec"][field] = value;
        }
        job
    }

    pub(crate) fn said(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(FieldError::sentence).collect()
    }

    #[test]
    fn a_rule_has_at_most_255_exit_codes() {
        let many: Vec<i64> = (1..=256).collect();
        let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": many}});
        let told = said(&failure_policy_errors(&job(json!({"podFailurePolicy": {"rules": [rule]}}))["spec"]));
        let values = "spec.podFailurePolicy.rules[0].onExitCodes.values";
        assert_eq!(told, [format!("{values}: Too many: 256: must have at most 255 items")]);
    }
}
