//! Drops fields that a schema does not define, and lists their paths. `validate` handles values of a wrong type.

use serde_json::{Map, Value};

use crate::kinds::schema::{Schema, Shape};

/// Drops unknown fields, and adds their paths to `unknown`.
pub(crate) fn prune(schema: &Schema, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => prune_map(schema, map, path, unknown),
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                for (index, one) in list.iter_mut().enumerate() {
                    prune(items, one, &format!("{path}[{index}]"), unknown);
                }
            }
        }
        _ => {}
    }
}

fn prune_map(schema: &Schema, map: &mut Map<String, Value>, path: &str, unknown: &mut Vec<String>) {
    let open = schema.preserve || matches!(schema.shape, Shape::Any);
    map.retain(|field, value| {
        let own = schema.embedded && matches!(field.as_str(), "kind" | "apiVersion" | "metadata");
        let place = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
        match schema.field(field) {
            Some(known) if !own => prune(known, value, &place, unknown),
            _ if open || own => {}
            _ => {
                unknown.push(place);
                return false;
            }
        }
        true
    });
}

/// Text fields that Go holds by pointer, so an empty text differs from an absent one. The second name is a field of the same struct.
const POINTERS: [(&str, &str); 5] = [
    ("completionMode", "backoffLimitPerIndex"),
    ("managedBy", "backoffLimitPerIndex"),
    ("podReplacementPolicy", "backoffLimitPerIndex"),
    ("succeededIndexes", "succeededCount"),
    ("containerName", "operator"),
];

/// Drops the values that Go's `omitempty` omits: nulls, and empty optional lists, maps and texts. This applies only to
/// built-in kinds and metadata, which the real server holds as Go structs.
pub(crate) fn drop_empty(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|field, value| {
                let Some(known) = schema.field(field) else { return !value.is_null() };
                let free = !schema.properties.contains_key(field);
                drop_empty(known, value);
                let pointer =
                    POINTERS.iter().any(|(text, beside)| text == field && schema.properties.contains_key(*beside));
                let required = free || pointer || schema.limits.required.iter().any(|one| one == field);
                !value.is_null() && (required || !is_empty(known, value))
            });
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|one| drop_empty(items, one));
            }
        }
        _ => {}
    }
}

fn is_empty(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty() && schema.additional.is_some() && schema.properties.is_empty(),
        Value::String(text) => text.is_empty() && schema.shape == Shape::String,
        _ => false,
    }
}
