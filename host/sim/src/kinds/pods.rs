//! Defaults and rules of pods and pod templates. The simulated cluster schedules and runs pods.

use serde_json::{Map, Value, json};

use crate::{
    lifecycle::metadata,
    object::{as_map, at, map_at, str_at},
    server::status::FieldError,
};

/// The default fields of every container.
const CONTAINER_DEFAULTS: [(&str, &str); 3] = [
    ("terminationMessagePath", "/dev/termination-log"),
    ("terminationMessagePolicy", "File"),
    ("imagePullPolicy", "IfNotPresent"),
];
/// The restart policies of a pod.
const RESTARTS: [&str; 3] = ["Always", "OnFailure", "Never"];

/// Fills in the fields that the server sets on a new pod.
pub(crate) fn prepare_create(pod: &mut Value) {
    let spec = map_at(pod, "spec");
    spec.entry("enableServiceLinks").or_insert_with(|| json!(true));
    if !spec.contains_key("priority") {
        spec.insert("priority".into(), json!(0));
        spec.insert("preemptionPolicy".into(), json!("PreemptLowerPriority"));
    }
    let account = spec.get("serviceAccountName").cloned().unwrap_or_else(|| json!("default"));
    spec.insert("serviceAccount".into(), account.clone());
    spec.insert("serviceAccountName".into(), account);
    tolerate(spec);
    let qos = qos_class(pod);
    as_map(pod).insert("status".into(), json!({"phase": "Pending", "qosClass": qos}));
}

/// Fills in the defaults of a pod spec, in a pod or in a template.
pub(crate) fn default_spec(spec: &mut Map<String, Value>) {
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("securityContext", json!({})),
        ("schedulerName", json!("default-scheduler")),
    ] {
        if spec.get(field).is_none_or(Value::is_null) {
            spec.insert(field.into(), value);
        }
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            default_container(container);
        }
    }
}

fn default_container(container: &mut Value) {
    let untagged = untagged(str_at(container, &["image"]));
    let container = as_map(container);
    container.entry("resources").or_insert_with(|| json!({}));
    for (field, value) in CONTAINER_DEFAULTS {
        let value = if field == "imagePullPolicy" && untagged { "Always" } else { value };
        container.entry(field).or_insert_with(|| json!(value));
    }
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        as_map(port).entry("protocol").or_insert_with(|| json!("TCP"));
    }
}

/// Returns true if the image is pulled every time: it has no digest, and no tag or the tag `latest`.
fn untagged(image: &str) -> bool {
    let last = image.rsplit('/').next().unwrap_or_default();
    !last.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Adds the two tolerations of the admission plugin, so that a pod survives a short loss of its node.
fn tolerate(spec: &mut Map<String, Value>) {
    let slot = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(list) = slot.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let known = list.iter().any(|one| str_at(one, &["key"]) == key || one.get("key").is_none());
        if !known {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
}

fn qos_class(pod: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .into_iter()
        .filter_map(|list| at(pod, &["spec", list])?.as_array())
        .flatten()
        .map(|container| (at(container, &["resources", "requests"]), at(container, &["resources", "limits"])))
        .collect::<Vec<_>>();
    let empty = |value: &Option<&Value>| value.and_then(Value::as_object).is_none_or(Map::is_empty);
    if containers.iter().all(|(requests, limits)| empty(requests) && empty(limits)) {
        return "BestEffort";
    }
    let full = |limits: &Value| limits.get("cpu").is_some() && limits.get("memory").is_some();
    let guaranteed = |(requests, limits): &(Option<&Value>, Option<&Value>)| {
        limits.is_some_and(full) && (empty(requests) || requests == limits)
    };
    if containers.iter().all(guaranteed) { "Guaranteed" } else { "Burstable" }
}

/// Returns the errors of a new pod.
pub(crate) fn create_errors(pod: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let containers = at(pod, &["spec", "containers"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        errors.push(FieldError::required("spec.containers", ""));
    }
    let mut seen = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        let (name, field) = (str_at(container, &["name"]), format!("spec.containers[{index}].name"));
        if name.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if seen.contains(&name) {
            errors.push(FieldError::duplicate(field, &json!(name)));
        } else {
            errors.extend(metadata::label_name_errors(&field, name));
        }
        if str_at(container, &["image"]).is_empty() {
            errors.push(FieldError::required(format!("spec.containers[{index}].image"), ""));
        }
        seen.push(name);
    }
    let restart = str_at(pod, &["spec", "restartPolicy"]);
    if !restart.is_empty() && !RESTARTS.contains(&restart) {
        let allowed = RESTARTS.map(str::to_owned);
        errors.push(FieldError::not_supported("spec.restartPolicy", &json!(restart), &allowed));
    }
    errors
}

/// Returns the errors of an updated pod. Only a few fields of its spec may change.
pub(crate) fn update_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = create_errors(new);
    if old.get("spec") != new.get("spec") && frozen(old) != frozen(new) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
                      `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                      existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                      previously negative)";
        errors.push(FieldError::forbidden("spec", detail));
    }
    errors
}

/// Returns the immutable part of a pod's spec.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or(Value::Null);
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            as_map(container).shift_remove("image");
        }
    }
    let map = as_map(&mut spec);
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        map.shift_remove(field);
    }
    // A binding sets the node once. A scheduler in this process sets it by an update.
    if str_at(pod, &["spec", "nodeName"]).is_empty() {
        map.shift_remove("nodeName");
    }
    spec
}

/// Keeps `podIP` equal to the first of `podIPs`, whichever of them a kubelet writes.
pub(crate) fn complete_status(pod: &mut Value) {
    let own = str_at(pod, &["status", "podIP"]).to_owned();
    let list = at(pod, &["status", "podIPs"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let first = list.first().map(|one| str_at(one, &["ip"])).unwrap_or_default().to_owned();
    if !own.is_empty() && own != first {
        map_at(pod, "status").insert("podIPs".into(), json!([{"ip": own}]));
    } else if own.is_empty() && !first.is_empty() {
        map_at(pod, "status").insert("podIP".into(), json!(first));
    }
}

/// Returns true if the pod's Ready condition is true.
pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = at(pod, &["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|one| str_at(one, &["type"]) == "Ready" && str_at(one, &["status"]) == "True")
}
