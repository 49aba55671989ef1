//! Reads and sets the common fields of Kubernetes objects. Missing fields read as absent, and no shape of JSON causes a
//! panic.

use serde_json::{Map, Value, json};

/// Returns `metadata.<field>` unless it is absent or null.
pub(crate) fn meta<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field).filter(|value| !value.is_null())
}

/// Returns `metadata.<field>` as text, empty when absent.
pub(crate) fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    meta(object, field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns `metadata.name`, empty when absent.
pub(crate) fn name(object: &Value) -> &str {
    meta_str(object, "name")
}

/// Returns `metadata.namespace`, empty when absent.
pub(crate) fn namespace(object: &Value) -> &str {
    meta_str(object, "namespace")
}

/// Returns `metadata.uid`, empty when absent.
pub(crate) fn uid(object: &Value) -> &str {
    meta_str(object, "uid")
}

/// Returns `metadata` for writing, and creates it if it is missing.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    map_at(object, "metadata")
}

/// Returns the map under `field` of `object` for writing. A missing field or another value becomes an empty map.
pub(crate) fn map_at<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = as_map(object).entry(field).or_insert_with(|| json!({}));
    as_map(slot)
}

/// Returns `metadata.<field>` as a map for writing. A missing field or another value becomes an empty map.
pub(crate) fn map_at_metadata<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = metadata_mut(object).entry(field).or_insert_with(|| json!({}));
    as_map(slot)
}

/// Returns a value as a map for writing. Any other value becomes an empty map.
pub(crate) fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// Sets `metadata.<field>`. A null value removes the field.
pub(crate) fn set_meta(object: &mut Value, field: &str, value: Value) {
    let metadata = metadata_mut(object);
    if value.is_null() {
        metadata.shift_remove(field);
    } else {
        metadata.insert(field.to_owned(), value);
    }
}

/// Copies `metadata.<field>` from one object to another, or removes the field if the first object lacks it.
pub(crate) fn copy_meta(from: &Value, to: &mut Value, field: &str) {
    set_meta(to, field, meta(from, field).cloned().unwrap_or(Value::Null));
}

/// Copies a top-level field from one object to another, or removes the field if the first object lacks it.
pub(crate) fn copy_field(from: &Value, to: &mut Value, field: &str) {
    let map = as_map(to);
    match from.get(field) {
        Some(value) => drop(map.insert(field.to_owned(), value.clone())),
        None => drop(map.shift_remove(field)),
    }
}

/// Returns the entries of `metadata.finalizers`.
pub(crate) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    meta(object, "finalizers").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns true if the object has a deletion timestamp.
pub(crate) fn is_deleting(object: &Value) -> bool {
    meta(object, "deletionTimestamp").is_some()
}

/// Returns `metadata.generation`, 0 when absent.
pub(crate) fn generation(object: &Value) -> i64 {
    meta(object, "generation").and_then(Value::as_i64).unwrap_or_default()
}

/// Returns the entries of `metadata.ownerReferences`.
pub(crate) fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    meta(object, "ownerReferences").and_then(Value::as_array).into_iter().flatten()
}

/// Returns the value at a path of field names, unless it is absent or null.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field)).filter(|value| !value.is_null())
}

/// Returns the text at a path of field names, empty when absent.
pub(crate) fn str_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}
