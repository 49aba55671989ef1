//! Rules of changes of batch Jobs, in the real server's words.

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
/// What a pod's spec says about the node that it runs on, but for its affinity.
const SCHEDULING: [&str; 3] = ["nodeSelector", "tolerations", "schedulingGates"];

/// Errors of a change.
pub(crate) fn update_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    let labelled = |key: &str| at(old, &["spec", "template", "metadata", "labels", key]).is_some();
    let mut errors = job_rules::errors(new, labelled(BY_NAME[1]) && labelled(BY_UID[1]));
    // The real server looks at the spec twice: once as at that of any Job and once as at one that replaces another.
    errors.extend(job_rules::spec_errors(new));
    errors.extend(completions_error(old, new));
    errors.extend(immutable_error(old, new, "selector"));
    errors.extend(template_error(old, new));
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        errors.extend(immutable_error(old, new, field));
    }
    errors
}

/// Error of a field of the spec that never changes.
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

/// The number of completions changes only where it is that of an Indexed Job, and stays equal to that of pods at once.
fn completions_error(old: &Value, new: &Value) -> Option<FieldError> {
    if str_at(new, &["spec", "completionMode"]) != "Indexed" {
        return immutable_error(old, new, "completions");
    }
    let (before, after) = (at(old, &["spec", "completions"]), at(new, &["spec", "completions"])?);
    let moved = before != Some(after) && at(new, &["spec", "parallelism"]) != Some(after);
    let detail = "can only be modified in tandem with spec.parallelism";
    moved.then(|| FieldError::invalid("spec.completions", after, detail))
}

/// Error of a changed template. While a Job is suspended and none of its pods is left, it can still be said where they
/// will run and what resources they will have.
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

/// True for a suspended Job that never started or was suspended for good, and has no pods.
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
    // Of the affinity, only that to nodes is about nodes. An affinity that says nothing is as good as none.
    let affinity = map_at(to, "affinity");
    match at(from, &["affinity", "nodeAffinity"]) {
        Some(wanted) => drop(affinity.insert("nodeAffinity".to_owned(), wanted.clone())),
        None => drop(affinity.shift_remove("nodeAffinity")),
    }
    if affinity.is_empty() && at(from, &["affinity"]).is_none() {
        as_map(to).shift_remove("affinity");
    }
}

/// Gives containers the resources of those in their place, if these are the same by name and no container was added.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::job_rules::tests::{said, stored};

    /// What a change is refused with; `edit` makes the new Job from the old one.
    fn refused(old: &Value, edit: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut new = old.clone();
        edit(&mut new);
        said(&update_errors(old, &new))
    }

    fn set(old: &Value, field: &str, value: Value) -> Vec<String> {
        refused(old, |new| new["spec"][field] = value)
    }

    #[test]
    fn field_that_never_changes_is_shown_as_the_real_servers_code_names_it() {
        let spec = json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2});
        let old = stored(spec);
        let rules = json!({"rules": [{"action": "Count", "onExitCodes": {"operator": "In", "values": [1]}}]});
        let told = set(&old, "podFailurePolicy", rules);
        let shown = r#"{"Rules":[{"Action":"Count","OnExitCodes":{"ContainerName":null,"Operator":"In","Values":[1]},"OnPodConditions":null}]}"#;
        assert_eq!(told, [format!("spec.podFailurePolicy: Invalid value: {shown}: field is immutable")]);
        let told = set(&old, "successPolicy", json!({"rules": [{"succeededIndexes": "0"}]}));
        let shown = r#"{"Rules":[{"SucceededIndexes":"0","SucceededCount":null}]}"#;
        assert_eq!(told, [format!("spec.successPolicy: Invalid value: {shown}: field is immutable")]);
        let told = set(&old, "managedBy", json!("a.io/b"));
        assert_eq!(told, ["spec.managedBy: Invalid value: \"a.io/b\": field is immutable"]);
        let told = set(&old, "backoffLimitPerIndex", json!(1));
        assert_eq!(told, ["spec.backoffLimitPerIndex: Invalid value: 1: field is immutable"]);
        let told = set(&old, "completionMode", json!("NonIndexed"));
        assert_eq!(told, ["spec.completionMode: Invalid value: \"NonIndexed\": field is immutable"]);
        let selector = json!({"matchLabels": {"job-name": "j"}});
        let told = set(&old, "selector", selector);
        let shown = r#"{"matchLabels":{"job-name":"j"}}"#;
        assert_eq!(told, [format!("spec.selector: Invalid value: {shown}: field is immutable")]);
    }

    #[test]
    fn rest_of_the_spec_changes() {
        let old = stored(json!({}));
        for (field, value) in [
            ("parallelism", json!(5)),
            ("activeDeadlineSeconds", json!(5)),
            ("backoffLimit", json!(5)),
            ("ttlSecondsAfterFinished", json!(5)),
            ("suspend", json!(true)),
            ("podReplacementPolicy", json!("Failed")),
        ] {
            assert!(set(&old, field, value).is_empty(), "{field}");
        }
    }

    #[test]
    fn rule_of_every_job_is_broken_twice_by_a_change() {
        let once = "spec.parallelism: Invalid value: -1: must be greater than or equal to 0";
        assert_eq!(set(&stored(json!({})), "parallelism", json!(-1)), [once, once]);
    }

    #[test]
    fn completions_change_with_the_pods_at_once_of_an_indexed_job_only() {
        let told = set(&stored(json!({})), "completions", json!(2));
        assert_eq!(told, ["spec.completions: Invalid value: 2: field is immutable"]);
        let old = stored(json!({"completionMode": "Indexed", "completions": 3, "parallelism": 2}));
        let told = set(&old, "completions", json!(4));
        let wanted = "spec.completions: Invalid value: 4: can only be modified in tandem with spec.parallelism";
        assert_eq!(told, [wanted]);
        assert!(set(&old, "completions", json!(2)).is_empty());
        let both = refused(&old, |new| {
            new["spec"]["completions"] = json!(7);
            new["spec"]["parallelism"] = json!(7);
        });
        assert!(both.is_empty(), "{both:?}");
        let required = "spec.completions: Required value: when completion mode is Indexed";
        assert_eq!(set(&old, "completions", Value::Null), [required, required]);
    }

    fn edit(old: &Value, pointer: &str, value: Value) -> Option<String> {
        let told = refused(old, |new| {
            let (place, field) = pointer.rsplit_once('/').unwrap();
            new.pointer_mut(place).unwrap()[field] = value;
        });
        assert!(told.len() <= 1, "{told:?}");
        told.into_iter().next().map(|told| told.split(": Invalid value").next().unwrap().to_owned())
    }

    fn suspended(status: Value) -> Value {
        let mut job = stored(json!({"suspend": true}));
        job["status"] = status;
        job
    }

    #[test]
    fn job_at_rest_takes_other_nodes_and_resources_and_nothing_else() {
        let pod = "/spec/template/spec";
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}});
        let free = [
            (format!("{pod}/nodeSelector"), json!({"a": "b"})),
            (format!("{pod}/tolerations"), json!([{"key": "a"}])),
            (format!("{pod}/schedulingGates"), json!([{"name": "a"}])),
            (format!("{pod}/affinity"), affinity),
            (format!("{pod}/affinity"), json!({})),
            (format!("{pod}/containers/0/resources"), json!({"requests": {"cpu": "1"}})),
            ("/spec/template/metadata/annotations".to_owned(), json!({"a": "b"})),
            ("/spec/template/metadata/labels/a".to_owned(), json!("b")),
        ];
        let fixed = [
            (format!("{pod}/terminationGracePeriodSeconds"), json!(7)),
            (format!("{pod}/affinity"), json!({"podAffinity": {}})),
            (format!("{pod}/containers/0/image"), json!("other")),
        ];
        let at_rest = [
            suspended(json!({})),
            suspended(json!({
                "startTime": "2026-01-01T00:00:00Z", "active": 0, "conditions": [{"type": "Suspended", "status": "True"}],
            })),
        ];
        for old in at_rest {
            for (pointer, value) in &free {
                assert_eq!(edit(&old, pointer, value.clone()), None, "{pointer}");
            }
            for (pointer, value) in &fixed {
                assert_eq!(edit(&old, pointer, value.clone()).as_deref(), Some("spec.template.spec"), "{pointer}");
            }
        }
    }

    #[test]
    fn job_that_is_not_at_rest_keeps_its_template() {
        let condition = json!([{"type": "Suspended", "status": "True"}]);
        let running = [
            stored(json!({})),
            suspended(json!({"startTime": "2026-01-01T00:00:00Z"})),
            suspended(json!({"startTime": "2026-01-01T00:00:00Z", "active": 1, "conditions": condition})),
            suspended(json!({"active": 1})),
        ];
        for old in running {
            let told = edit(&old, "/spec/template/spec/nodeSelector", json!({"a": "b"}));
            assert_eq!(told.as_deref(), Some("spec.template"), "{old}");
        }
    }
}
