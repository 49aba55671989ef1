//! Reads raw JSON by path. `null` and a value of another type count as absent.

use serde_json::{Map, Value};

/// Returns the value at `/a/b`, if it exists and is not null.
pub fn at<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    value.pointer(pointer).filter(|found| !found.is_null())
}

/// Returns the text at `/a/b`.
pub fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    at(value, pointer)?.as_str()
}

/// Returns the whole number at `/a/b`.
pub fn number(value: &Value, pointer: &str) -> Option<i64> {
    at(value, pointer)?.as_i64()
}

/// Returns true if the value at `/a/b` is `true`.
pub fn flag(value: &Value, pointer: &str) -> bool {
    at(value, pointer).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the list at `/a/b`, or an empty list.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    at(value, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the object at `/a/b`.
pub fn object<'a>(value: &'a Value, pointer: &str) -> Option<&'a Map<String, Value>> {
    at(value, pointer)?.as_object()
}

/// Returns the object at the path below `value`. Makes the object if it is absent or of another type.
pub fn object_at<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut place = as_object(value);
    for field in path {
        place = as_object(place.entry(*field).or_insert(Value::Null));
    }
    place
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was made an object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_and_other_types_count_as_absent() {
        let value = json!({"a": null, "b": "x", "c": {"d": [1]}});
        assert_eq!((at(&value, "/a"), text(&value, "/c"), number(&value, "/b")), (None, None, None));
        assert_eq!(list(&value, "/c/d"), [json!(1)]);
    }
}
