//! JSON patches, as an API server applies them.

use serde_json::{Value, json};

/// Applies a JSON Merge Patch.
pub fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(key)),
            value => merge(&mut into[key], value),
        }
    }
}

/// Applies a JSON Patch with the operations that the host uses. Returns true if the patch fits the document.
pub fn apply(document: &mut Value, operations: &[Value]) -> bool {
    operations.iter().all(|operation| {
        let path = operation["path"].as_str().unwrap();
        match operation["op"].as_str().unwrap() {
            "test" => document.pointer(path) == Some(&operation["value"]),
            "add" => add(document, path, &operation["value"]),
            "replace" => document.pointer_mut(path).map(|slot| *slot = operation["value"].clone()).is_some(),
            "remove" => {
                let (parent, last) = path.rsplit_once('/').unwrap();
                match document.pointer_mut(parent) {
                    Some(Value::Object(fields)) => fields.remove(&last.replace("~1", "/").replace("~0", "~")).is_some(),
                    Some(Value::Array(list)) => {
                        last.parse().is_ok_and(|at: usize| at < list.len() && list.remove(at) != Value::Null)
                    }
                    _ => false,
                }
            }
            other => panic!("the host uses no {other}"),
        }
    })
}

/// Adds a member to an object, or a value to the end of a list. Returns true if the parent exists.
fn add(document: &mut Value, path: &str, value: &Value) -> bool {
    let (parent, last) = path.rsplit_once('/').unwrap();
    match document.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.insert(last.replace("~1", "/").replace("~0", "~"), value.clone());
        }
        Some(Value::Array(list)) if last == "-" => list.push(value.clone()),
        _ => return false,
    }
    true
}
