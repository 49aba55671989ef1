//! The defaults that the real server fills in when it decodes objects of built-in kinds. They never replace a client's
//! values.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    kinds::{pods, registry::Kind},
    object::{as_map, map_at, str_at},
};

/// Fills in the defaults of an object of a built-in kind.
pub(crate) fn fill(kind: &Kind, object: &mut Value) {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => pods::default_spec(map_at(object, "spec")),
        ("", "Secret") => secret(object),
        ("", "Service") => service(object),
        ("apps", "Deployment") => deployment(map_at(object, "spec")),
        ("apps", "ReplicaSet") => {
            let spec = map_at(object, "spec");
            set(spec, "replicas", json!(1));
            template(spec);
        }
        ("apps", "StatefulSet") => stateful_set(map_at(object, "spec")),
        ("apps", "DaemonSet") => daemon_set(map_at(object, "spec")),
        ("batch", "Job") => job(map_at(object, "spec")),
        ("batch", "CronJob") => cron_job(map_at(object, "spec")),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => policy(map_at(object, "spec")),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(map_at(object, "spec")),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => binding(object),
        _ => {}
    }
}

/// Sets a field if it is absent or null.
fn set(map: &mut Map<String, Value>, field: &str, value: Value) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.to_owned(), value);
    }
}

fn inner<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    as_map(map.entry(field).or_insert_with(|| json!({})))
}

fn template(spec: &mut Map<String, Value>) {
    let template = inner(spec, "template");
    inner(template, "metadata");
    pods::default_spec(inner(template, "spec"));
}

fn deployment(spec: &mut Map<String, Value>) {
    set(spec, "replicas", json!(1));
    let strategy = inner(spec, "strategy");
    set(strategy, "type", json!("RollingUpdate"));
    if strategy.get("type") == Some(&json!("RollingUpdate")) {
        let rolling = inner(strategy, "rollingUpdate");
        set(rolling, "maxUnavailable", json!("25%"));
        set(rolling, "maxSurge", json!("25%"));
    }
    set(spec, "revisionHistoryLimit", json!(10));
    set(spec, "progressDeadlineSeconds", json!(600));
    template(spec);
}

fn stateful_set(spec: &mut Map<String, Value>) {
    set(spec, "replicas", json!(1));
    set(spec, "revisionHistoryLimit", json!(10));
    set(spec, "podManagementPolicy", json!("OrderedReady"));
    let update = inner(spec, "updateStrategy");
    set(update, "type", json!("RollingUpdate"));
    if update.get("type") == Some(&json!("RollingUpdate")) {
        set(inner(update, "rollingUpdate"), "partition", json!(0));
    }
    let claims = inner(spec, "persistentVolumeClaimRetentionPolicy");
    set(claims, "whenDeleted", json!("Retain"));
    set(claims, "whenScaled", json!("Retain"));
    template(spec);
}

fn daemon_set(spec: &mut Map<String, Value>) {
    set(spec, "revisionHistoryLimit", json!(10));
    let update = inner(spec, "updateStrategy");
    set(update, "type", json!("RollingUpdate"));
    if update.get("type") == Some(&json!("RollingUpdate")) {
        let rolling = inner(update, "rollingUpdate");
        set(rolling, "maxUnavailable", json!(1));
        set(rolling, "maxSurge", json!(0));
    }
    template(spec);
}

fn job(spec: &mut Map<String, Value>) {
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        set(spec, "completions", json!(1));
    }
    set(spec, "parallelism", json!(1));
    let limit = if spec.contains_key("backoffLimitPerIndex") { i32::MAX } else { 6 };
    set(spec, "backoffLimit", json!(limit));
    set(spec, "completionMode", json!("NonIndexed"));
    set(spec, "suspend", json!(false));
    set(spec, "manualSelector", json!(false));
    let policy = if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    set(spec, "podReplacementPolicy", json!(policy));
    for rule in entries(spec.get_mut("podFailurePolicy").and_then(|policy| policy.get_mut("rules"))) {
        for pattern in entries(rule.get_mut("onPodConditions")) {
            if str_at(pattern, &["status"]).is_empty() {
                as_map(pattern).insert("status".to_owned(), json!("True"));
            }
        }
    }
    template(spec);
}

fn entries(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

fn cron_job(spec: &mut Map<String, Value>) {
    set(spec, "concurrencyPolicy", json!("Allow"));
    set(spec, "suspend", json!(false));
    set(spec, "successfulJobsHistoryLimit", json!(3));
    set(spec, "failedJobsHistoryLimit", json!(1));
}

fn service(object: &mut Value) {
    let spec = map_at(object, "spec");
    set(spec, "type", json!("ClusterIP"));
    set(spec, "sessionAffinity", json!("None"));
    set(spec, "internalTrafficPolicy", json!("Cluster"));
    set(spec, "ipFamilies", json!(["IPv4"]));
    set(spec, "ipFamilyPolicy", json!("SingleStack"));
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let port = as_map(port);
        set(port, "protocol", json!("TCP"));
        let number = port.get("port").cloned().unwrap_or_default();
        set(port, "targetPort", number);
    }
}

/// Fills in the defaults of a Secret. The write-only `stringData` moves to `data`.
fn secret(object: &mut Value) {
    let map = as_map(object);
    set(map, "type", json!("Opaque"));
    let Some(Value::Object(texts)) = map.shift_remove("stringData") else { return };
    let data = inner(map, "data");
    for (key, text) in texts {
        data.insert(key, json!(STANDARD.encode(text.as_str().unwrap_or_default())));
    }
}

fn policy(spec: &mut Map<String, Value>) {
    set(spec, "failurePolicy", json!("Fail"));
    let constraints = inner(spec, "matchConstraints");
    set(constraints, "namespaceSelector", json!({}));
    set(constraints, "objectSelector", json!({}));
    set(constraints, "matchPolicy", json!("Equivalent"));
    for rule in constraints.get_mut("resourceRules").and_then(Value::as_array_mut).into_iter().flatten() {
        set(as_map(rule), "scope", json!("*"));
    }
}

fn definition(spec: &mut Map<String, Value>) {
    let names = inner(spec, "names");
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    set(names, "singular", json!(kind.to_lowercase()));
    set(names, "listKind", json!(format!("{kind}List")));
    set(inner(spec, "conversion"), "strategy", json!("None"));
}

fn binding(object: &mut Value) {
    for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        if matches!(str_at(subject, &["kind"]), "User" | "Group") {
            set(as_map(subject), "apiGroup", json!("rbac.authorization.k8s.io"));
        }
    }
    set(map_at(object, "roleRef"), "apiGroup", json!("rbac.authorization.k8s.io"));
}
