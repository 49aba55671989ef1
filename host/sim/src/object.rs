//! Reads and sets the few fields that every Kubernetes object has. Missing fields read as absent; no shape of JSON
//! makes it panic.

use serde_json::{Map, Value, json};

/// `metadata.<field>`.
pub(crate) fn meta<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field).filter(|value| !value.is_null())
}

/// `metadata.<field>` as text, empty when absent.
pub(crate) fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    meta(object, field).and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`.
pub(crate) fn name(object: &Value) -> &str {
    meta_str(object, "name")
}

/// `metadata.namespace`, empty when absent.
pub(crate) fn namespace(object: &Value) -> &str {
    meta_str(object, "namespace")
}

/// `metadata.uid`, empty when absent.
pub(crate) fn uid(object: &Value) -> &str {
    meta_str(object, "uid")
}

/// `metadata` for writing, made if it is missing.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    map_at(object, "metadata")
}

/// The object under `field` of `object` for writing, made if it is missing or something else.
pub(crate) fn map_at<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = as_map(object).entry(field).or_insert_with(|| json!({}));
    as_map(slot)
}

/// `metadata.<field>` as a map for writing, made if it is missing.
pub(crate) fn map_at_metadata<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = metadata_mut(object).entry(field).or_insert_with(|| json!({}));
    as_map(slot)
}

/// A value as a map, which it becomes if it is not.
pub(crate) fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// Sets `metadata.<field>`; null removes it.
pub(crate) fn set_meta(object: &mut Value, field: &str, value: Value) {
    let metadata = metadata_mut(object);
    if value.is_null() {
        metadata.shift_remove(field);
    } else {
        metadata.insert(field.to_owned(), value);
    }
}

/// Copies `metadata.<field>` from one object to another, or removes it if the first has none.
pub(crate) fn copy_meta(from: &Value, to: &mut Value, field: &str) {
    set_meta(to, field, meta(from, field).cloned().unwrap_or(Value::Null));
}

/// Copies a top-level field, or removes it where it is absent.
pub(crate) fn copy_field(from: &Value, to: &mut Value, field: &str) {
    let map = as_map(to);
    match from.get(field) {
        Some(value) => drop(map.insert(field.to_owned(), value.clone())),
        None => drop(map.shift_remove(field)),
    }
}

/// `metadata.finalizers`.
pub(crate) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    meta(object, "finalizers").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// True once deletion has begun.
pub(crate) fn is_deleting(object: &Value) -> bool {
    meta(object, "deletionTimestamp").is_some()
}

/// `metadata.generation`, 0 when absent.
pub(crate) fn generation(object: &Value) -> i64 {
    meta(object, "generation").and_then(Value::as_i64).unwrap_or_default()
}

/// The owner references.
pub(crate) fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    meta(object, "ownerReferences").and_then(Value::as_array).into_iter().flatten()
}

/// A value deep inside, by field names.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field)).filter(|value| !value.is_null())
}

/// Text deep inside, empty when absent.
pub(crate) fn str_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}
