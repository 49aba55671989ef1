//! Rules of batch Jobs, in the real server's words.

use serde_json::{Value, json};

use crate::{
    kinds::{
        jobs::{BY_NAME, BY_UID},
        workloads,
    },
    lifecycle::metadata,
    object::{self, as_map, at, str_at},
    selectors::LabelSelector,
    server::status::FieldError,
};

/// Numbers of the spec that are not negative.
const COUNTS: [&str; 7] = [
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
];
/// Fields of the spec that never change.
const FROZEN: [&str; 6] =
    ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"];
/// The most pods at once of an Indexed Job.
const INDEXED_PARALLELISM: i64 = 100_000;

/// Errors of a new Job.
pub(crate) fn create_errors(job: &Value) -> Vec<FieldError> {
    let mut errors = selector_errors(job);
    errors.extend(spec_errors(job));
    errors.extend(workloads::template_errors(job));
    if let Some(template) = at(job, &["spec", "template"]) {
        errors.extend(metadata::label_errors(template, "spec.template.labels"));
    }
    errors.extend(restart_error(job));
    errors
}

/// Errors of a change.
pub(crate) fn update_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = create_errors(new);
    let immutable = |field: &str| {
        let value = at(new, &["spec", field]).cloned().unwrap_or(Value::Null);
        FieldError::invalid(format!("spec.{field}"), &value, "field is immutable")
    };
    errors.extend(completions_error(old, new));
    let changed = |field: &&str| at(old, &["spec", field]) != at(new, &["spec", field]);
    errors.extend(FROZEN.iter().copied().filter(changed).map(immutable));
    if template(old, is_schedulable(old)) != template(new, is_schedulable(old)) {
        errors.push(immutable("template"));
    }
    errors
}

/// Where a Job's pods run can be said until it starts for the first time.
fn is_schedulable(old: &Value) -> bool {
    at(old, &["spec", "suspend"]) == Some(&json!(true)) && at(old, &["status", "startTime"]).is_none()
}

/// A Job's template, without what may change while it can still be said where its pods run.
fn template(job: &Value, schedulable: bool) -> Value {
    let mut template = at(job, &["spec", "template"]).cloned().unwrap_or(Value::Null);
    if schedulable && template.is_object() {
        for field in ["labels", "annotations"] {
            object::set_meta(&mut template, field, Value::Null);
        }
        let spec = object::map_at(&mut template, "spec");
        for field in ["nodeSelector", "tolerations", "schedulingGates"] {
            spec.shift_remove(field);
        }
        if let Some(affinity) = spec.get_mut("affinity") {
            as_map(affinity).shift_remove("nodeAffinity");
        }
        spec.retain(|field, value| field != "affinity" || value.as_object().is_some_and(|map| !map.is_empty()));
    }
    template
}

/// The number of completions changes only with that of an Indexed Job's pods, to which it is equal.
fn completions_error(old: &Value, new: &Value) -> Option<FieldError> {
    let number = |job, field: &str| at(job, &["spec", field]).and_then(Value::as_i64);
    let (before, after) = (number(old, "completions"), number(new, "completions"));
    if before == after {
        return None;
    }
    let shown = after.map_or(Value::Null, |after| json!(after));
    let is_elastic =
        |job| number(job, "completions").is_some() && number(job, "completions") == number(job, "parallelism");
    if str_at(new, &["spec", "completionMode"]) != "Indexed" || before.is_none() || after.is_none() {
        return Some(FieldError::invalid("spec.completions", &shown, "field is immutable"));
    }
    let detail = "can only be modified in tandem with spec.parallelism";
    (!is_elastic(old) || !is_elastic(new)).then(|| FieldError::invalid("spec.completions", &shown, detail))
}

fn spec_errors(job: &Value) -> Vec<FieldError> {
    let number = |field: &str| at(job, &["spec", field]).and_then(Value::as_i64);
    let negative = COUNTS.into_iter().filter_map(|field| Some((field, number(field).filter(|n| *n < 0)?)));
    let mut errors: Vec<FieldError> = negative
        .map(|(field, n)| FieldError::invalid(format!("spec.{field}"), &json!(n), "must be greater than or equal to 0"))
        .collect();
    let mode = str_at(job, &["spec", "completionMode"]);
    let indexed = mode == "Indexed";
    for (field, allowed) in
        [("completionMode", ["Indexed", "NonIndexed"]), ("podReplacementPolicy", ["Failed", "TerminatingOrFailed"])]
    {
        let said = str_at(job, &["spec", field]);
        if !said.is_empty() && !allowed.contains(&said) {
            let allowed = allowed.map(str::to_owned);
            errors.push(FieldError::not_supported(format!("spec.{field}"), &json!(said), &allowed));
        }
    }
    if indexed && number("completions").is_none() {
        errors.push(FieldError::required("spec.completions", "when completion mode is Indexed"));
    }
    if indexed && number("parallelism").is_some_and(|n| n > INDEXED_PARALLELISM) {
        let detail = format!("must be less than or equal to {INDEXED_PARALLELISM} when completion mode is Indexed");
        errors.push(FieldError::invalid("spec.parallelism", &json!(number("parallelism")), &detail));
    }
    if at(job, &["spec", "successPolicy"]).is_some() {
        let rules = at(job, &["spec", "successPolicy", "rules"]).and_then(Value::as_array).map_or(0, Vec::len);
        if !indexed {
            errors.push(FieldError::invalid_without_value("spec.successPolicy", "requires indexed completion mode"));
        } else if rules == 0 {
            errors.push(FieldError::required("spec.successPolicy.rules", "at least one rules must be specified"));
        }
    }
    let manager = str_at(job, &["spec", "managedBy"]);
    if !manager.is_empty()
        && !manager.split_once('/').is_some_and(|(domain, path)| !domain.is_empty() && !path.is_empty())
    {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(FieldError::invalid("spec.managedBy", &json!(manager), detail));
    }
    errors
}

/// The selector and the labels by which a Job finds its pods. Those that the server makes cannot be said otherwise.
fn selector_errors(job: &Value) -> Vec<FieldError> {
    let labels = at(job, &["spec", "template", "metadata", "labels"]).cloned().unwrap_or_else(|| json!({}));
    let Some(selector) = at(job, &["spec", "selector"]) else { return vec![FieldError::required("spec.selector", "")] };
    let finds = |labels: Value| {
        let labelled = json!({"metadata": {"labels": labels}});
        LabelSelector::from_object(Some(selector)).is_some_and(|selector| selector.matches(&labelled))
    };
    if at(job, &["spec", "manualSelector"]) == Some(&json!(true)) {
        let detail = "`selector` does not match template `labels`";
        let field = "spec.template.metadata.labels";
        return if finds(labels.clone()) { Vec::new() } else { vec![FieldError::invalid(field, &labels, detail)] };
    }
    let wanted =
        BY_UID.map(|key| (key, object::uid(job))).into_iter().chain(BY_NAME.map(|key| (key, object::name(job))));
    let wanted: Vec<(&str, &str)> = wanted.collect();
    let mut errors = Vec::new();
    for (key, value) in &wanted {
        let (field, detail) = (format!("spec.template.metadata.labels[{key}]"), format!("must be '{value}'"));
        match labels.get(key).and_then(Value::as_str) {
            None => errors.push(FieldError::required(field, &detail)),
            Some(said) if said != *value => errors.push(FieldError::invalid(field, &labels, &detail)),
            Some(_) => {}
        }
    }
    let own: serde_json::Map<String, Value> =
        wanted.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    if !finds(own.into()) {
        errors.push(FieldError::invalid("spec.selector", selector, "`selector` not auto-generated"));
    }
    errors
}

fn restart_error(job: &Value) -> Option<FieldError> {
    let field = "spec.template.spec.restartPolicy";
    match str_at(job, &["spec", "template", "spec", "restartPolicy"]) {
        "OnFailure" | "Never" => None,
        "Always" | "" => Some(FieldError::required(field, "valid values: \"OnFailure\", \"Never\"")),
        other => Some(FieldError::not_supported(field, &json!(other), &["OnFailure".to_owned(), "Never".to_owned()])),
    }
}
