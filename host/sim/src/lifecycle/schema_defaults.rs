//! The defaults of a custom kind's schema. A null where null is not allowed counts as absent: it takes the default, or
//! is dropped.

use serde_json::{Map, Value};

use crate::kinds::schema::Schema;

/// Fills in defaults, all the way down.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::schema::parse;

    #[test]
    fn null_takes_the_default_or_goes_unless_it_is_allowed() {
        let schema = parse(&json!({"type": "object", "properties": {
            "a": {"type": "integer", "default": 3}, "b": {"type": "string"}, "c": {"type": "string", "nullable": true},
            "d": {"type": "object", "default": {}, "properties": {"e": {"type": "boolean", "default": true}}},
        }}));
        let mut value = json!({"a": null, "b": null, "c": null});
        default(&schema, &mut value);
        assert_eq!(value, json!({"a": 3, "c": null, "d": {"e": true}}));
    }
}
