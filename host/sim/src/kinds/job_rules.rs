//! Rules of batch Jobs, in the real server's words. The rules of selectors, policies and changes are in files of their own.

use serde_json::{Value, json};

use crate::{
    kinds::{job_policy_rules, job_selector_rules, job_success_rules, workloads},
    lifecycle::metadata,
    object::{self, at, str_at},
    server::status::FieldError,
};

/// Numbers of the spec that are not negative, in the order in which they are looked at.
const COUNTS: [&str; 7] = [
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
];
/// The most pods at once of an Indexed Job, and the most of its indexes that may fail.
const INDEXED_LIMIT: i64 = 100_000;
/// With more completions than this a Job with limits per index has the limit below instead.
const MANY_COMPLETIONS: i64 = 100_000;
const LIMIT_OF_MANY: i64 = 10_000;
/// The longest name of a Job's controller.
const MANAGER_LENGTH: u64 = 63;
/// Characters of the path in a controller's name.
const PATH_PUNCTUATION: &str = "/-._~%!$&'()*+,;=:";

/// Errors of a new Job.
pub(crate) fn create_errors(job: &Value) -> Vec<FieldError> {
    errors(job, true)
}

/// Errors of a Job, whatever it was before. `with_domain` asks for those of its pods' labels that have a domain.
pub(crate) fn errors(job: &Value, with_domain: bool) -> Vec<FieldError> {
    let mut errors = job_selector_rules::generated_errors(job, with_domain);
    errors.extend(spec_errors(job));
    errors.extend(host_name_error(job));
    errors
}

/// Errors of a Job's spec.
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

/// Errors of the name of the controller that acts on a Job in place of the cluster's own.
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

/// Errors of the completion mode, and of what depends on it.
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

/// The pods of an Indexed Job are hosts named after the Job and their index. A Job whose last pod could not have such a
/// name would never be done.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A Job `j` of one container `main`, with further fields of its spec.
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

    /// A Job as above that may be stored but for what `spec` says.
    pub(crate) fn stored(spec: Value) -> Value {
        let mut job = job(spec);
        crate::kinds::jobs::prepare_create(&mut job);
        job
    }

    pub(crate) fn said(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(FieldError::sentence).collect()
    }

    fn check(spec: Value, wanted: &[&str]) {
        assert_eq!(said(&create_errors(&stored(spec.clone()))), wanted, "{spec}");
    }

    #[test]
    fn number_that_is_negative_is_refused_wherever_it_is() {
        for field in ["parallelism", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished", "completions"]
        {
            let mut spec = json!({});
            spec[field] = json!(-1);
            check(spec, &[&format!("spec.{field}: Invalid value: -1: must be greater than or equal to 0")]);
        }
    }

    #[test]
    fn limits_per_index_are_for_indexed_jobs() {
        check(
            json!({"backoffLimitPerIndex": 1}),
            &["spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode"],
        );
        check(
            json!({"maxFailedIndexes": 1}),
            &[
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
                "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
            ],
        );
        let indexed = json!({"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 0});
        check(indexed, &[]);
        check(
            json!({"completionMode": "Sideways", "backoffLimitPerIndex": 1}),
            &["spec.completionMode: Unsupported value: \"Sideways\": supported values: \"NonIndexed\", \"Indexed\""],
        );
        check(
            json!({"completionMode": "Indexed", "completions": null}),
            &["spec.completions: Required value: when completion mode is Indexed"],
        );
    }

    #[test]
    fn indexed_job_has_only_so_many_pods_and_failed_indexes() {
        let spec = |completions: i64, parallelism: i64, failed: Value| {
            json!({
                "completionMode": "Indexed", "completions": completions, "parallelism": parallelism,
                "backoffLimitPerIndex": 1, "maxFailedIndexes": failed,
            })
        };
        check(spec(100_000, 100_000, json!(100_000)), &[]);
        check(spec(100_001, 10_000, json!(10_000)), &[]);
        check(
            spec(3, 100_001, json!(4)),
            &[
                "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
                "spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions",
            ],
        );
        check(
            spec(100_001, 10_001, json!(100_001)),
            &[
                "spec.maxFailedIndexes: Invalid value: 100001: must be less than or equal to 100000",
                "spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 \
             and used with backoff limit per index",
                "spec.maxFailedIndexes: Invalid value: 100001: must be less than or equal to 10000 when completions are above \
             100000 and used with backoff limit per index",
            ],
        );
        check(
            spec(100_001, 1, Value::Null),
            &["spec.maxFailedIndexes: Required value: must be specified when completions is above 100000"],
        );
    }

    #[test]
    fn manager_is_named_by_a_path_with_a_domain_of_at_most_63_bytes() {
        let wants = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        check(json!({"managedBy": "acme.io/foo"}), &[]);
        check(json!({"managedBy": ""}), &["spec.managedBy: Required value"]);
        for wrong in ["foo", "/foo", "acme.io/"] {
            check(json!({"managedBy": wrong}), &[&format!("spec.managedBy: Invalid value: {wrong:?}: {wants}")]);
        }
        check(
            json!({"managedBy": "acme.io/a b"}),
            &["spec.managedBy: Invalid value: \"a b\": Invalid path (regex used for validation is \
             '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')"],
        );
        check(
            json!({"managedBy": "A.io/a"}),
            &["spec.managedBy: Invalid value: \"A.io\": a lowercase RFC 1123 subdomain must consist of lower case \
             alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"],
        );
        check(json!({"managedBy": format!("a/{}", "b".repeat(61))}), &[]);
        check(
            json!({"managedBy": format!("a/{}", "b".repeat(62))}),
            &["spec.managedBy: Too long: may not be more than 63 bytes"],
        );
    }

    #[test]
    fn pods_of_a_job_end() {
        let restart = |policy: &str, spec: Value| {
            let mut job = stored(spec);
            job["spec"]["template"]["spec"]["restartPolicy"] = json!(policy);
            said(&create_errors(&job))
        };
        let field = "spec.template.spec.restartPolicy";
        let required = format!("{field}: Required value: valid values: \"OnFailure\", \"Never\"");
        assert_eq!(restart("Always", json!({})), [required]);
        assert!(restart("OnFailure", json!({})).is_empty());
        assert_eq!(
            restart("Sometimes", json!({})),
            [
                format!(
                    "{field}: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\""
                ),
                format!("{field}: Unsupported value: \"Sometimes\": supported values: \"OnFailure\", \"Never\""),
            ]
        );
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        let judged = restart("OnFailure", json!({"podFailurePolicy": {"rules": []}}));
        assert_eq!(judged, [format!("{field}: Invalid value: \"OnFailure\": {detail}")]);
    }

    #[test]
    fn last_pod_of_an_indexed_job_can_be_named_after_it() {
        let named = |name: &str, mode: &str, completions: i64| {
            let mut job = job(json!({"completionMode": mode, "completions": completions}));
            object::set_meta(&mut job, "name", json!(name));
            crate::kinds::jobs::prepare_create(&mut job);
            said(&create_errors(&job))
        };
        let refused = |name: &str, host: &str| {
            let detail = format!("will not able to create pod with invalid DNS label: {host}");
            vec![format!("metadata.name: Invalid value: {name:?}: {detail}")]
        };
        let (fits, long) = ("a".repeat(61), "a".repeat(62));
        assert!(named(&fits, "Indexed", 10).is_empty());
        assert_eq!(named(&fits, "Indexed", 11), refused(&fits, &format!("{fits}-10")));
        assert_eq!(named(&long, "Indexed", 1), refused(&long, &format!("{long}-0")));
        assert_eq!(named("a.b", "Indexed", 1), refused("a.b", "a.b-0"));
        // Without pods there is no name, and the pods of other Jobs are not numbered.
        assert!(named("a.b", "Indexed", 0).is_empty());
        assert!(named("a.b", "NonIndexed", 3).is_empty());
        assert!(named(&"a".repeat(63), "NonIndexed", 3).is_empty());
    }

    #[test]
    fn name_that_is_no_label_is_refused_as_a_label_of_its_pods() {
        let mut job = job(json!({}));
        let name = "a".repeat(64);
        object::set_meta(&mut job, "name", json!(name));
        crate::kinds::jobs::prepare_create(&mut job);
        let wanted = format!("spec.template.labels: Invalid value: {name:?}: must be no more than 63 bytes");
        assert_eq!(said(&create_errors(&job)), [wanted.clone(), wanted]);
    }
}
