//! Applies the rules of a kind before an object is stored: which path may write status, the generation, the fields that the server
//! sets, and validation. `metadata` has the rules that all kinds share.

use serde_json::{Value, json};

use crate::{
    kinds::{jobs, pods, registry::Kind, schema::Schema, workloads},
    lifecycle::{cel_rules, validate},
    object::{self, as_map, copy_field, copy_meta, map_at},
    server::status::FieldError,
};

/// Prepares a new object for the store.
pub(crate) fn for_create(kind: &Kind, object: &mut Value) {
    if kind.traits.status && !kind.is("", "Node") {
        as_map(object).shift_remove("status");
    }
    if kind.traits.generation {
        object::set_meta(object, "generation", json!(1));
    }
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => pods::prepare_create(object),
        ("", "Namespace") => {
            map_at(object, "spec").insert("finalizers".into(), json!(["kubernetes"]));
            map_at(object, "status").insert("phase".into(), json!("Active"));
            let name = object::name(object).to_owned();
            let labels = object::map_at_metadata(object, "labels");
            labels.insert("kubernetes.io/metadata.name".into(), json!(name));
        }
        ("", "Node") => drop(map_at(object, "spec")),
        ("batch", "Job") => jobs::prepare_create(object),
        ("apps", "ReplicaSet") => drop(as_map(object).insert("status".into(), json!({"replicas": 0}))),
        ("apps", "StatefulSet") => {
            as_map(object).insert("status".into(), json!({"replicas": 0, "availableReplicas": 0}));
        }
        ("apps", "DaemonSet") => drop(as_map(object).insert(
            "status".into(),
            json!({
                "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
            }),
        )),
        _ => {}
    }
}

/// Fills in the fields that the real server sets when it reads a new object back from its store, after validation.
pub(crate) fn for_store(kind: &Kind, object: &mut Value) {
    if kind.is("batch", "Job") {
        jobs::default_labels(object);
    }
}

/// Restores the fields that an update's path cannot change: status on the main resource, everything else on the status
/// path.
pub(crate) fn for_update(kind: &Kind, subresource: &str, old: &Value, new: &mut Value) {
    if subresource == "status" {
        return keep_for_status(kind, old, new);
    }
    if kind.traits.status && !kind.is("", "Node") {
        copy_field(old, new, "status");
    }
    if kind.is("batch", "Job") {
        jobs::default_labels(new);
    }
    if kind.is("", "Namespace") && subresource != "finalize" {
        copy_field(old, new, "status");
        copy_field(
            old.get("spec").unwrap_or(&Value::Null),
            as_map(new).entry("spec").or_insert(Value::Null),
            "finalizers",
        );
    }
}

fn keep_for_status(kind: &Kind, old: &Value, new: &mut Value) {
    if kind.custom.is_some() {
        // The real server takes only the status of a custom resource here. It does not even check metadata.uid.
        let mut kept = old.clone();
        copy_field(new, &mut kept, "status");
        copy_meta(new, &mut kept, "managedFields");
        *new = kept;
        return;
    }
    if kind.is("", "Pod") {
        pods::complete_status(new);
        copy_meta(old, new, "ownerReferences");
        copy_meta(old, new, "deletionTimestamp");
    }
    if kind.group == "apps" || kind.is("batch", "Job") {
        copy_meta(old, new, "labels");
    }
    let own =
        old.as_object().into_iter().flatten().filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"));
    let own = own.map(|(field, value)| (field.clone(), value.clone())).collect::<Vec<_>>();
    as_map(new).retain(|field, _| matches!(field.as_str(), "metadata" | "status"));
    as_map(new).extend(own);
}

/// Raises metadata.generation if more than metadata and status changed.
pub(crate) fn raise_generation(kind: &Kind, old: &Value, new: &mut Value) {
    if kind.traits.generation && !same_intent(kind, old, new) {
        object::set_meta(new, "generation", json!(object::generation(old) + 1));
    }
}

fn same_intent(kind: &Kind, old: &Value, new: &Value) -> bool {
    let counts = |field: &String| {
        !(matches!(field.as_str(), "metadata" | "kind" | "apiVersion") || (field == "status" && kind.traits.status))
    };
    let fields = |value: &Value| value.as_object().into_iter().flatten().filter(|(field, _)| counts(field)).count();
    let same = |(field, value): (&String, &Value)| old.get(field) == Some(value);
    fields(old) == fields(new) && new.as_object().into_iter().flatten().filter(|(field, _)| counts(field)).all(same)
}

/// Returns the errors of a custom object by its schema and its CEL rules. Rules run only on objects of the right shape. The status
/// path checks only status.
fn schema_errors(schema: &Schema, new: &Value, old: Option<&Value>, subresource: &str) -> Vec<FieldError> {
    let mut found = Vec::new();
    if subresource == "status" {
        if let (Some(known), Some(status)) = (schema.properties.get("status"), new.get("status")) {
            validate::errors(known, (status, old.and_then(|old| old.get("status"))), "", &mut found);
        }
        for error in &mut found {
            error.field = validate::join("status", &error.field);
        }
    } else {
        validate::errors(schema, (new, old), "", &mut found);
    }
    if !schema.has_rules() {
        return found;
    }
    if found.iter().any(FieldError::blocks_rules) {
        found.push(FieldError::rules_not_run());
    } else {
        found.extend(cel_rules::errors(schema, (new, old), ""));
    }
    found
}

/// Returns the errors of a new object.
pub(crate) fn create_errors(kind: &Kind, object: &Value) -> Vec<FieldError> {
    if let Some(custom) = &kind.custom {
        return schema_errors(&custom.root, object, None, "");
    }
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => pods::create_errors(object),
        (group, "Event") => jobs::event_errors(object, group == "events.k8s.io"),
        _ => workloads::create_errors(kind, object),
    }
}

/// Returns the errors of an updated object.
pub(crate) fn update_errors(kind: &Kind, subresource: &str, old: &Value, new: &Value) -> Vec<FieldError> {
    if let Some(custom) = &kind.custom {
        return schema_errors(&custom.root, new, Some(old), subresource);
    }
    match (kind.group.as_str(), kind.kind.as_str(), subresource) {
        ("", "Pod", "") => pods::update_errors(old, new),
        (_, _, "") => workloads::update_errors(kind, old, new),
        _ => Vec::new(),
    }
}
