//! The defaults of a custom kind's schema. A null in a field that is not nullable counts as absent: the field gets its default
//! or is dropped.

use serde_json::{Map, Value};

use crate::kinds::schema::Schema;

/// Fills in the defaults of a value and of everything inside it.
pub(crate) fn default(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => default_map(schema, map),
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|one| default(items, one));
            }
        }
        _ => {}
    }
}

fn default_map(schema: &Schema, map: &mut Map<String, Value>) {
    for (field, known) in &schema.properties {
        let unset = map.get(field).is_none_or(|value| value.is_null() && !known.nullable);
        match (&known.default, unset) {
            (Some(value), true) => drop(map.insert(field.clone(), value.clone())),
            (None, true) => drop(map.shift_remove(field)),
            _ => {}
        }
    }
    if let Some(values) = &schema.additional {
        map.retain(|field, value| schema.properties.contains_key(field) || values.nullable || !value.is_null());
    }
    for (field, value) in map.iter_mut() {
        if let Some(known) = schema.field(field) {
            default(known, value);
        }
    }
}
