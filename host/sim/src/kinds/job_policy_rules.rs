//! Rules of what a batch Job does about pods that failed, in the real server's words: what they mean, and when they are
//! replaced.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::{
    lifecycle::metadata,
    object::{at, str_at},
    server::status::FieldError,
};

/// The most rules of a policy, of failures or of success.
pub(crate) const RULES: u64 = 20;
/// The most exit codes of a rule.
const EXIT_CODES: u64 = 255;
/// The most patterns of conditions of a rule.
const CONDITIONS: u64 = 20;

/// What may be done about a failed pod.
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const CONDITION_STATES: [&str; 3] = ["False", "True", "Unknown"];

/// Errors of a Job's `podFailurePolicy`, if it has one. Takes the Job's spec.
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

/// Error of a Job's `podReplacementPolicy`. Takes the Job's spec.
pub(crate) fn replacement_policy_error(spec: &Value) -> Option<FieldError> {
    let policy = at(spec, &["podReplacementPolicy"])?;
    // Only a pod that has failed for good can be judged by a failure policy.
    let judged = at(spec, &["podFailurePolicy"]).is_some();
    let allowed: &[&str] = if judged { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    let fits = policy.as_str().is_some_and(|policy| allowed.contains(&policy));
    (!fits).then(|| FieldError::not_supported("spec.podReplacementPolicy", policy, &owned(allowed)))
}

/// A `podFailurePolicy` as the real server shows it: under the names that its own code has for the fields.
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

/// The rules of a policy as the real server shows them.
pub(crate) fn shown_rules(policy: &Value, rule: impl Fn(&Value) -> Value) -> Value {
    let rules = at(policy, &["rules"]).and_then(Value::as_array);
    let rules = rules.map_or(Value::Null, |rules| rules.iter().map(rule).collect());
    Map::from_iter([("Rules".to_owned(), rules)]).into()
}

/// A list as it is, and anything else as an empty one.
pub(crate) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Error of a list with more than `limit` elements.
pub(crate) fn too_many(field: &str, list: &[Value], limit: u64) -> Option<FieldError> {
    (list.len() as u64 > limit).then(|| FieldError::too_many(field, list.len(), limit))
}

/// Error of a text that must be one of a few; `allowed` is in order.
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
mod tests {
    use super::*;
    use crate::kinds::job_rules::tests::{job, said};

    fn failure(rules: Value, further: Value) -> Vec<String> {
        let mut spec = job(further)["spec"].take();
        spec["podFailurePolicy"] = json!({"rules": rules});
        said(&failure_policy_errors(&spec))
    }

    fn rule(codes: Value) -> Value {
        json!([{"action": "FailJob", "onExitCodes": codes}])
    }

    const RULE: &str = "spec.podFailurePolicy.rules[0]";

    #[test]
    fn rule_about_failed_pods_has_a_known_action_and_one_question() {
        let codes = json!({"operator": "In", "values": [1]});
        let table = [
            (json!({"action": "FailJob", "onExitCodes": codes}), None),
            (json!({"action": "FailJob", "onPodConditions": [{"type": "A", "status": "Unknown"}]}), None),
            (
                json!({"action": "", "onExitCodes": codes}),
                Some(".action: Required value: valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"),
            ),
            (
                json!({"action": "Panic", "onExitCodes": codes}),
                Some(
                    ".action: Unsupported value: \"Panic\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \
                     \"Ignore\"",
                ),
            ),
            (
                json!({"action": "FailIndex", "onExitCodes": codes}),
                Some(".action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"),
            ),
            (
                json!({"action": "Count", "onExitCodes": codes, "onPodConditions": [{"type": "A", "status": "True"}]}),
                Some(": Invalid value: specifying both OnExitCodes and OnPodConditions is not supported"),
            ),
            (
                json!({"action": "Ignore"}),
                Some(": Invalid value: specifying one of OnExitCodes and OnPodConditions is required"),
            ),
        ];
        for (rule, wanted) in table {
            let wanted: Vec<String> = wanted.map(|wanted| format!("{RULE}{wanted}")).into_iter().collect();
            assert_eq!(failure(json!([rule]), json!({})), wanted, "{rule}");
        }
        let per_index = json!([{"action": "FailIndex", "onExitCodes": codes}]);
        assert!(failure(per_index, json!({"backoffLimitPerIndex": 1})).is_empty());
    }

    #[test]
    fn exit_codes_are_some_different_and_ordered_and_not_zero_for_in() {
        let values = format!("{RULE}.onExitCodes.values");
        let table = [
            (json!({"operator": "NotIn", "values": [0, 1]}), Vec::new()),
            (json!({"operator": "In", "containerName": "main", "values": [1, 2]}), Vec::new()),
            (
                json!({"operator": "Like", "values": [1]}),
                vec![format!(
                    "{RULE}.onExitCodes.operator: Unsupported value: \"Like\": supported values: \"In\", \"NotIn\""
                )],
            ),
            (
                json!({"operator": "", "containerName": "other"}),
                vec![
                    format!("{RULE}.onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]"),
                    format!(
                        "{RULE}.onExitCodes.containerName: Invalid value: \"other\": must be one of the container or \
                         initContainer names in the pod template"
                    ),
                    format!("{values}: Invalid value: null: at least one value is required"),
                ],
            ),
            (
                json!({"operator": "In", "values": []}),
                vec![format!("{values}: Invalid value: []: at least one value is required")],
            ),
            (
                json!({"operator": "In", "values": [2, 0, 2]}),
                vec![
                    format!("{values}[1]: Invalid value: 0: must not be 0 for the In operator"),
                    format!("{values}[2]: Duplicate value: 2"),
                    format!("{values}: Invalid value: [2,0,2]: must be ordered"),
                ],
            ),
        ];
        for (codes, wanted) in table {
            assert_eq!(failure(rule(codes.clone()), json!({})), wanted, "{codes}");
        }
        let many: Vec<i64> = (1..=256).collect();
        let wanted = format!("{values}: Too many: 256: must have at most 255 items");
        assert_eq!(failure(rule(json!({"operator": "In", "values": many})), json!({})), [wanted]);
    }

    #[test]
    fn init_container_can_be_asked_about_too() {
        let pod = json!({"initContainers": [{"name": "first"}], "containers": [{"name": "main"}]});
        let codes = json!({"operator": "In", "containerName": "first", "values": [1]});
        assert!(failure(rule(codes), json!({"template": {"spec": pod}})).is_empty());
    }

    #[test]
    fn pattern_of_a_condition_has_a_qualified_type_and_a_known_status() {
        let pattern = |one: Value| failure(json!([{"action": "Count", "onPodConditions": [one]}]), json!({}));
        let place = format!("{RULE}.onPodConditions[0]");
        assert!(pattern(json!({"type": "example.com/Broken", "status": "False"})).is_empty());
        assert_eq!(
            pattern(json!({"type": "A", "status": "Maybe"})),
            [format!(
                "{place}.status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\""
            )]
        );
        assert_eq!(
            pattern(json!({"type": "A", "status": ""})),
            [format!("{place}.status: Required value: valid values: [\"False\" \"True\" \"Unknown\"]")]
        );
        let unnamed = pattern(json!({"type": "", "status": "True"}));
        assert_eq!(unnamed[0], format!("{place}.type: Invalid value: \"\": name part must be non-empty"));
        assert!(unnamed[1].contains("name part must consist of alphanumeric characters"), "{unnamed:?}");
    }

    #[test]
    fn policy_of_failures_has_at_most_twenty_rules() {
        let failed = json!({"action": "Count", "onPodConditions": [{"type": "A", "status": "True"}]});
        let rules = |count: usize| failure(Value::from(vec![failed.clone(); count]), json!({}));
        assert!(rules(20).is_empty());
        assert_eq!(rules(21), ["spec.podFailurePolicy.rules: Too many: 21: must have at most 20 items"]);
    }

    #[test]
    fn pods_are_replaced_when_they_have_failed_where_failures_are_judged() {
        let replaced = |spec: Value| {
            let error = replacement_policy_error(&spec);
            error.map(|error| error.sentence()).unwrap_or_default()
        };
        let field = "spec.podReplacementPolicy: Unsupported value:";
        assert_eq!(replaced(json!({})), "");
        assert_eq!(replaced(json!({"podReplacementPolicy": "TerminatingOrFailed"})), "");
        let wanted = format!("{field} \"Never\": supported values: \"Failed\", \"TerminatingOrFailed\"");
        assert_eq!(replaced(json!({"podReplacementPolicy": "Never"})), wanted);
        let judged = |policy: &str| json!({"podReplacementPolicy": policy, "podFailurePolicy": {"rules": []}});
        assert_eq!(replaced(judged("Failed")), "");
        let wanted = format!("{field} \"TerminatingOrFailed\": supported values: \"Failed\"");
        assert_eq!(replaced(judged("TerminatingOrFailed")), wanted);
    }
}
