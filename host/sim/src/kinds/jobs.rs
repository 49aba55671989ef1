//! Generated selectors and labels of batch Jobs, and the rules for new Events.

use serde_json::{Map, Value, json};

use crate::{
    object::{self, as_map, at, map_at, str_at},
    server::status::FieldError,
};

/// The labels that connect pods with their Job, by name (`BY_NAME`) and by UID (`BY_UID`).
pub(crate) const BY_NAME: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
pub(crate) const BY_UID: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Copies the labels of the pod template to a Job without labels.
pub(crate) fn default_labels(job: &mut Value) {
    let labels = at(job, &["spec", "template", "metadata", "labels"]).cloned();
    if let Some(labels) =
        labels.filter(|_| object::meta(job, "labels").and_then(Value::as_object).is_none_or(Map::is_empty))
    {
        object::set_meta(job, "labels", labels);
    }
}

/// Gives a Job a selector that matches only its pods, unless the selector is manual.
pub(crate) fn prepare_create(job: &mut Value) {
    // If only the template has labels, the real server shares one map between the template and the Job from here on, so
    // the generated labels appear in both. If the template has none, the Job gets its labels when it is stored.
    let labelled = at(job, &["spec", "template", "metadata", "labels"]).is_some();
    let shared = labelled && object::meta(job, "labels").and_then(Value::as_object).is_none_or(Map::is_empty);
    if at(job, &["spec", "manualSelector"]) != Some(&json!(true)) {
        generate_selector(job);
    }
    if shared {
        default_labels(job);
    }
}

fn generate_selector(job: &mut Value) {
    let (name, uid) = (object::name(job).to_owned(), object::uid(job).to_owned());
    let spec = map_at(job, "spec");
    let template = as_map(spec.entry("template").or_insert_with(|| json!({})));
    let metadata = as_map(template.entry("metadata").or_insert_with(|| json!({})));
    let labels = as_map(metadata.entry("labels").or_insert_with(|| json!({})));
    for key in BY_NAME {
        labels.entry(key).or_insert_with(|| json!(name));
    }
    for key in BY_UID {
        labels.entry(key).or_insert_with(|| json!(uid));
    }
    let selector = as_map(spec.entry("selector").or_insert_with(|| json!({})));
    let wanted = as_map(selector.entry("matchLabels").or_insert_with(|| json!({})));
    wanted.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| json!(uid));
}

/// Returns the errors of a new event. An event with `eventTime` must name its reporter, action and reason. An event without it
/// has the older format.
pub(crate) fn event_errors(event: &Value, strict: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if at(event, &["eventTime"]).is_some() {
        let controller = if strict { "reportingController" } else { "reportingComponent" };
        for (stored, shown) in [
            ("reportingComponent", controller),
            ("reportingInstance", "reportingInstance"),
            ("action", "action"),
            ("reason", "reason"),
        ] {
            if str_at(event, &[stored]).is_empty() {
                errors.push(FieldError::required(shown, ""));
            }
        }
        if str_at(event, &["message"]).len() > 1024 {
            errors.push(FieldError::invalid("message", &json!(""), "can have at most 1024 characters"));
        }
    } else {
        errors.extend(place_errors(event));
    }
    if strict {
        errors.extend(strict_errors(event));
    }
    errors
}

fn place_errors(event: &Value) -> Option<FieldError> {
    let (own, other) = (object::namespace(event), str_at(event, &["involvedObject", "namespace"]));
    let fits = if other.is_empty() { own.is_empty() || own == "default" } else { own == other };
    let field = "involvedObject.namespace";
    (!fits).then(|| FieldError::invalid(field, &json!(other), "does not match event.namespace"))
}

fn strict_errors(event: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if at(event, &["eventTime"]).is_none() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = str_at(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", &json!(""), &format!("has invalid value: {kind}")));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count"] {
        if at(event, &[field]).is_some_and(|value| *value != json!(0)) {
            errors.push(FieldError::invalid(field, &json!(""), "needs to be unset"));
        }
    }
    errors
}
