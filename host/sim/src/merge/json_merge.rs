//! Takes an object and a JSON merge patch (RFC 7386), yields the merged object. May not know what the fields mean.

use serde_json::Value;

use crate::object::as_map;

/// Merges `patch` into `object`: null removes, maps are merged, all else replaces.
pub(crate) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        object.clone_from(patch);
        return;
    };
    let map = as_map(object);
    for (field, value) in fields {
        if value.is_null() {
            map.shift_remove(field);
        } else {
            merge(map.entry(field).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_removes_nulls_and_replaces_lists() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        merge(&mut object, &json!({"a": {"b": null, "d": {"e": null}}, "l": [3]}));
        assert_eq!(object, json!({"a": {"c": 2, "d": {}}, "l": [3]}));
    }
}
