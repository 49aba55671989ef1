//! Rules of the selectors of batch Jobs and of the labels that they select. The messages are the real server's.

use serde_json::{Map, Value, json};

use crate::{
    kinds::jobs::{BY_NAME, BY_UID},
    lifecycle::metadata,
    object::{self, at, str_at},
    selectors::LabelSelector,
    server::status::FieldError,
};

/// Returns the errors of a generated selector and generated labels, which a client cannot override. Jobs of older clusters have no
/// labels with a domain, so `with_domain` is false for them.
pub(crate) fn generated_errors(job: &Value, with_domain: bool) -> Vec<FieldError> {
    let Some(selector) = at(job, &["spec", "selector"]).filter(|_| !is_manual(job)) else { return Vec::new() };
    let (uid, name) = (object::uid(job), object::name(job));
    let mut wanted = vec![(BY_UID[0], uid), (BY_NAME[0], name)];
    if with_domain {
        wanted.extend([(BY_UID[1], uid), (BY_NAME[1], name)]);
    }
    let mut errors: Vec<FieldError> = wanted.iter().filter_map(|label| label_error(job, *label)).collect();
    let own: Map<String, Value> = wanted.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    if syntax_errors(selector).is_empty() && !finds(selector, &own.into()) {
        errors.push(FieldError::invalid("spec.selector", &shown(selector), "`selector` not auto-generated"));
    }
    errors
}

/// Returns the errors of the selector, generated or not.
pub(crate) fn selector_errors(job: &Value) -> Vec<FieldError> {
    let labels = labels(job);
    let selector = at(job, &["spec", "selector"]);
    let mut errors = selector.map_or_else(|| vec![FieldError::required("spec.selector", "")], syntax_errors);
    // A selector with syntax errors is not compared with the labels.
    let found = match selector {
        Some(selector) => !errors.is_empty() || finds(selector, labels.unwrap_or(&Value::Null)),
        None => false,
    };
    if !found {
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", &sorted(labels), detail));
    }
    errors
}

/// Returns a selector as the real server's errors show it.
pub(crate) fn shown(selector: &Value) -> Value {
    let mut shown = Map::new();
    if let Some(labels) = at(selector, &["matchLabels"]) {
        shown.insert("matchLabels".to_owned(), sorted(Some(labels)));
    }
    if let Some(expressions) = at(selector, &["matchExpressions"]) {
        let expressions = expressions.as_array().into_iter().flatten().map(|one| sorted(Some(one)));
        shown.insert("matchExpressions".to_owned(), expressions.collect());
    }
    shown.into()
}

fn is_manual(job: &Value) -> bool {
    at(job, &["spec", "manualSelector"]) == Some(&json!(true))
}

fn labels(job: &Value) -> Option<&Value> {
    at(job, &["spec", "template", "metadata", "labels"])
}

/// Sorts the maps of a value by key, as the real server's errors show them.
fn sorted(value: Option<&Value>) -> Value {
    let mut value = value.cloned().unwrap_or(Value::Null);
    value.sort_all_objects();
    value
}

fn finds(selector: &Value, labels: &Value) -> bool {
    let labelled = json!({"metadata": {"labels": labels}});
    LabelSelector::from_object(Some(selector)).is_some_and(|selector| selector.matches(&labelled))
}

fn label_error(job: &Value, (key, wanted): (&str, &str)) -> Option<FieldError> {
    let (field, detail) = (format!("spec.template.metadata.labels[{key}]"), format!("must be '{wanted}'"));
    match labels(job).and_then(|labels| labels.get(key)).and_then(Value::as_str) {
        None => Some(FieldError::required(field, &detail)),
        Some(said) => (said != wanted).then(|| FieldError::invalid(field, &sorted(labels(job)), &detail)),
    }
}

fn syntax_errors(selector: &Value) -> Vec<FieldError> {
    let mut errors = metadata::label_map_errors(selector.get("matchLabels"), "spec.selector.matchLabels");
    let expressions = at(selector, &["matchExpressions"]).and_then(Value::as_array).into_iter().flatten();
    for (index, expression) in expressions.enumerate() {
        errors.extend(expression_errors(expression, &format!("spec.selector.matchExpressions[{index}]")));
    }
    errors
}

fn expression_errors(expression: &Value, field: &str) -> Vec<FieldError> {
    let values = at(expression, &["values"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let operator = str_at(expression, &["operator"]);
    let mut errors = Vec::new();
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(format!("{field}.values"), detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(format!("{field}.values"), detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => {
            let detail = "not a valid selector operator";
            errors.push(FieldError::invalid(format!("{field}.operator"), &json!(operator), detail));
        }
    }
    errors.extend(metadata::qualified_errors(&format!("{field}.key"), str_at(expression, &["key"])));
    for (index, value) in values.iter().enumerate() {
        let text = value.as_str().unwrap_or_default();
        errors.extend(metadata::label_value_errors(&format!("{field}.values[{index}]"), text));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::job_policy_rules::tests::{job, said};

    fn generated(labels: Value, selector: Value) -> Value {
        let mut job = job(json!({"selector": selector}));
        object::set_meta(&mut job, "uid", json!("u"));
        job["spec"]["template"]["metadata"] = json!({"labels": labels});
        job
    }

    #[test]
    fn generated_labels_are_the_jobs_name_and_uid_and_are_shown_in_order() {
        let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}});
        let labels = json!({"job-name": "k", "controller-uid": "u", "batch.kubernetes.io/controller-uid": "u"});
        let job = generated(labels, selector);
        let shown = r#"{"batch.kubernetes.io/controller-uid":"u","controller-uid":"u","job-name":"k"}"#;
        let named = format!("spec.template.metadata.labels[job-name]: Invalid value: {shown}: must be 'j'");
        let missing =
            "spec.template.metadata.labels[batch.kubernetes.io/job-name]: Required value: must be 'j'".to_owned();
        assert_eq!(said(&generated_errors(&job, true)), [named.clone(), missing]);
        let older = said(&generated_errors(&job, false));
        let unknown = "spec.selector: Invalid value: {\"matchLabels\":{\"batch.kubernetes.io/controller-uid\":\"u\"}}: \
                       `selector` not auto-generated";
        assert_eq!(older, [named, unknown.to_owned()]);
    }
}
