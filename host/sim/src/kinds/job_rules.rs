//! Rules of batch Jobs, with the real server's messages. Selectors, policies and updates have their own files.

use serde_json::{Value, json};

use crate::{
    kinds::{job_policy_rules, job_selector_rules, job_success_rules, workloads},
    lifecycle::metadata,
    object::{self, at, str_at},
    server::status::FieldError,
};

/// Fields of the spec that must not be negative, in the order of the checks.
const COUNTS: [&str; 7] = [
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
];
/// The largest parallelism of an Indexed Job, and the most indexes that may fail.
const INDEXED_LIMIT: i64 = 100_000;
/// A Job with limits per index and more completions than this has the lower limit `LIMIT_OF_MANY`.
const MANY_COMPLETIONS: i64 = 100_000;
const LIMIT_OF_MANY: i64 = 10_000;
/// The longest name of a Job's controller in bytes.
const MANAGER_LENGTH: u64 = 63;
/// The allowed punctuation in the path of a controller's name.
const PATH_PUNCTUATION: &str = "/-._~%!$&'()*+,;=:";

/// Returns the errors of a new Job.
pub(crate) fn create_errors(job: &Value) -> Vec<FieldError> {
    errors(job, true)
}

/// Returns the errors of a new or updated Job. `with_domain` adds the check of the pod labels that have a domain.
pub(crate) fn errors(job: &Value, with_domain: bool) -> Vec<FieldError> {
    let mut errors = job_selector_rules::generated_errors(job, with_domain);
    errors.extend(spec_errors(job));
    errors.extend(host_name_error(job));
    errors
}

/// Returns the errors of a Job's spec.
pub(crate) fn spec_errors(job: &Value) -> Vec<FieldError> {
    let spec = job.get("spec").unwrap_or(&Value::Null);
    let mut errors = count_errors(spec);
    errors.extend(manager_errors(spec));
    errors.extend(mode_errors(spec));
    errors.extend(job_policy_rules::failure_policy_errors(spec));
    errors.extend(job_success_rules::success_policy_errors(spec));
    errors.extend(job_policy_rules::replacement_policy_error(spec));
    if let Some(template) = spec.get("template") {
        errors.extend(metadata::label_errors(template, "spec.template.labels"));
        errors.extend(metadata::annotation_errors(template, "spec.template.annotations"));
    }
    errors.extend(workloads::template_errors(job));
    errors.extend(restart_error(spec));
    errors.extend(job_selector_rules::selector_errors(job));
    errors
}

fn number(spec: &Value, field: &str) -> Option<i64> {
    at(spec, &[field]).and_then(Value::as_i64)
}

fn wrong_number(field: &str, number: i64, detail: &str) -> FieldError {
    FieldError::invalid(format!("spec.{field}"), &json!(number), detail)
}

fn count_errors(spec: &Value) -> Vec<FieldError> {
    let negative = COUNTS.into_iter().filter_map(|field| Some((field, number(spec, field).filter(|n| *n < 0)?)));
    let mut errors: Vec<FieldError> =
        negative.map(|(field, n)| wrong_number(field, n, "must be greater than or equal to 0")).collect();
    if number(spec, "maxFailedIndexes").is_some() && number(spec, "backoffLimitPerIndex").is_none() {
        errors.push(FieldError::required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified"));
    }
    errors
}

/// Returns the errors of `managedBy`: the name of the controller that handles the Job instead of the built-in one.
fn manager_errors(spec: &Value) -> Vec<FieldError> {
    let Some(manager) = at(spec, &["managedBy"]).and_then(Value::as_str) else { return Vec::new() };
    let field = "spec.managedBy";
    let mut errors = Vec::new();
    match manager.split_once('/') {
        _ if manager.is_empty() => errors.push(FieldError::required(field, "")),
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
            errors.extend(metadata::subdomain_errors(field, domain));
            if !path.chars().all(|c| c.is_ascii_alphanumeric() || PATH_PUNCTUATION.contains(c)) {
                let detail = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
                errors.push(FieldError::invalid(field, &json!(path), detail));
            }
        }
        _ => {
            let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.push(FieldError::invalid(field, &json!(manager), detail));
        }
    }
    if manager.len() as u64 > MANAGER_LENGTH {
        errors.push(FieldError::too_long(field, MANAGER_LENGTH));
    }
    errors
}

/// Returns the errors of the completion mode and of the fields that depend on it.
fn mode_errors(spec: &Value) -> Vec<FieldError> {
    match at(spec, &["completionMode"]).and_then(Value::as_str) {
        Some("Indexed") => indexed_errors(spec),
        None | Some("NonIndexed") => ["backoffLimitPerIndex", "maxFailedIndexes"]
            .into_iter()
            .filter_map(|field| Some(wrong_number(field, number(spec, field)?, "requires indexed completion mode")))
            .collect(),
        Some(other) => {
            let allowed = ["NonIndexed", "Indexed"].map(str::to_owned);
            vec![FieldError::not_supported("spec.completionMode", &json!(other), &allowed)]
        }
    }
}

fn indexed_errors(spec: &Value) -> Vec<FieldError> {
    let completions = number(spec, "completions");
    let (parallelism, failed) = (number(spec, "parallelism"), number(spec, "maxFailedIndexes"));
    let mut errors = Vec::new();
    if completions.is_none() {
        errors.push(FieldError::required("spec.completions", "when completion mode is Indexed"));
    }
    if let Some(n) = parallelism.filter(|n| *n > INDEXED_LIMIT) {
        let detail = format!("must be less than or equal to {INDEXED_LIMIT} when completion mode is Indexed");
        errors.push(wrong_number("parallelism", n, &detail));
    }
    if let Some(n) = failed.filter(|n| completions.is_some_and(|completions| *n > completions)) {
        errors.push(wrong_number("maxFailedIndexes", n, "must be less than or equal to completions"));
    }
    if let Some(n) = failed.filter(|n| *n > INDEXED_LIMIT) {
        let detail = format!("must be less than or equal to {INDEXED_LIMIT}");
        errors.push(wrong_number("maxFailedIndexes", n, &detail));
    }
    if completions.is_none_or(|n| n <= MANY_COMPLETIONS) || number(spec, "backoffLimitPerIndex").is_none() {
        return errors;
    }
    if failed.is_none() {
        let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.push(FieldError::required("spec.maxFailedIndexes", &detail));
    }
    let detail = format!(
        "must be less than or equal to {LIMIT_OF_MANY} when completions are above {MANY_COMPLETIONS} and used with \
         backoff limit per index"
    );
    let limited = [("parallelism", parallelism), ("maxFailedIndexes", failed)].into_iter();
    let above = limited.filter_map(|(field, n)| Some((field, n.filter(|n| *n > LIMIT_OF_MANY)?)));
    errors.extend(above.map(|(field, n)| wrong_number(field, n, &detail)));
    errors
}

fn restart_error(spec: &Value) -> Option<FieldError> {
    let field = "spec.template.spec.restartPolicy";
    match str_at(spec, &["template", "spec", "restartPolicy"]) {
        "Never" => None,
        "OnFailure" => at(spec, &["podFailurePolicy"]).map(|_| {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            FieldError::invalid(field, &json!("OnFailure"), detail)
        }),
        "Always" | "" => Some(FieldError::required(field, "valid values: \"OnFailure\", \"Never\"")),
        other => Some(FieldError::not_supported(field, &json!(other), &["OnFailure".to_owned(), "Never".to_owned()])),
    }
}

/// Returns the error of a name that is too long for the host names of an Indexed Job's pods. A pod's host name is the Job's name and
/// the pod's index. If the last pod could not have such a name, the Job would never complete.
fn host_name_error(job: &Value) -> Option<FieldError> {
    let spec = job.get("spec")?;
    let completions = number(spec, "completions").filter(|n| *n > 0)?;
    let name = object::name(job);
    let host = format!("{name}-{}", completions - 1);
    if str_at(spec, &["completionMode"]) != "Indexed" || metadata::is_label_name(&host) {
        return None;
    }
    let detail = format!("will not able to create pod with invalid DNS label: {host}");
    Some(FieldError::invalid("metadata.name", &json!(name), &detail))
}
